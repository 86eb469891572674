"""Conversion of sentences to sequences of ids, as in the published StackOverflow experiments.

With V the size of the vocabulary, the ids are 0 for padding, 1 .. V for words in order of
frequency, V + 1 for out-of-vocabulary words, V + 2 for the beginning and V + 3 for the end of a
sentence. A sentence is split on blanks and cut to the first `length` words. The end is appended
only if there were fewer than `length` words, the beginning is put in front, and the whole is padded
to length + 1 ids. The model reads all ids but the last and predicts all but the first.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

PAD = 0


@dataclasses.dataclass(frozen=True)
class SpecialIds:
    """Ids with a special meaning, such as padding, for a vocabulary of `vocabulary_size` words.

    `classes` is the total number of ids.
    """

    vocabulary_size: int
    pad = PAD
    out_of_vocabulary = property(lambda self: self.vocabulary_size + 1)
    begin = property(lambda self: self.vocabulary_size + 2)
    end = property(lambda self: self.vocabulary_size + 3)
    classes = property(lambda self: self.vocabulary_size + 4)


class Preprocessor:
    """Converter of sentences to pairs (x, y) of input ids and label ids.

    Args:
      words: the most frequent words, most frequent first, at most `vocabulary_size` of them.
      vocabulary_size: V; ids of words that do not exist stay unused, so that a model's size does
        not depend on the data.
      length: number of words of a sentence that are used.

    Raises:
      ValueError: too many words, or a word given twice.
    """

    def __init__(self, words: Sequence[str], vocabulary_size: int, length: int = 20) -> None:
        self.ids = SpecialIds(vocabulary_size)
        self.length = length
        self._id_by_word = {word.encode(): index for index, word in enumerate(words, start=1)}
        if len(self._id_by_word) != len(words) or len(words) > vocabulary_size:
            raise ValueError(
                f"words has {len(words)} entries for vocabulary_size={vocabulary_size}, or one of "
                "them twice: each needs one id"
            )

    def encode(self, sentences: Iterable[bytes | str]) -> tuple[np.ndarray, np.ndarray]:
        """Encodes sentences as arrays of ids.

        Args:
          sentences: words separated by blanks; UTF-8 where bytes.

        Returns:
          (x, y), int32, each of shape (number of sentences, length).
        """
        find_id = self._id_by_word.get
        unknown_id = self.ids.out_of_vocabulary
        sequence_length = self.length
        encoded_rows = []
        for sentence in sentences:
            encoded_sentence = sentence.encode() if isinstance(sentence, str) else sentence
            sentence_words = encoded_sentence.split()[:sequence_length]
            id_row = [self.ids.begin]
            id_row += [find_id(word, unknown_id) for word in sentence_words]
            if len(sentence_words) < sequence_length:
                id_row.append(self.ids.end)
                id_row += [PAD] * (sequence_length + 1 - len(id_row))
            encoded_rows.append(id_row)
        id_table = np.array(encoded_rows, np.int32).reshape(len(encoded_rows), sequence_length + 1)
        return np.ascontiguousarray(id_table[:, :-1]), np.ascontiguousarray(id_table[:, 1:])
