"""Lexicon of the synthetic language, which numbers words and coins new words from syllables."""

import numpy as np

# NOTHING marks empty positions in arrays of word ids.
NOTHING = -1
_ONSETS = "b d f g k l m n p r s t v z st tr pl gr"
_VOWELS = "aeiou"


def _content_word(index: int, ending: str) -> str:
    """Returns the synthetic word number `index`, of two or more syllables."""
    # Each digit of a number becomes a syllable. The index is multiplied by 7919 first, so that
    # words with neighbouring indices look different.
    onsets = _ONSETS.split()
    num_syllable_choices = len(onsets) * len(_VOWELS)
    num_syllables = 2
    while index >= num_syllable_choices**num_syllables:
        index -= num_syllable_choices**num_syllables
        num_syllables += 1
    scrambled_index = index * 7919 % num_syllable_choices**num_syllables
    digits = [
        scrambled_index // num_syllable_choices**power % num_syllable_choices
        for power in range(num_syllables)
    ]
    syllables = [onsets[digit % len(onsets)] + _VOWELS[digit // len(onsets)] for digit in digits]
    return "".join(syllables) + ending


class Lexicon:
    """Words with their ids, which count the words in the order in which they are added."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._id_by_word: dict[str, int] = {}
        self._num_coined = 0

    def word_id(self, word: str) -> int:
        """Returns the id of a word, and adds the word if the lexicon lacks it."""
        if word not in self._id_by_word:
            self._id_by_word[word] = len(self.words)
            self.words.append(word)
        return self._id_by_word[word]

    def word_ids(self, text: str) -> np.ndarray:
        """Returns the ids of the words of a text, as an int64 array."""
        return np.array([self.word_id(word) for word in text.split()], np.int64)

    def coin_word(self, ending: str) -> int:
        """Adds the next synthetic word that does not exist yet, and returns its id."""
        coined_word = _content_word(self._num_coined, ending)
        while coined_word in self._id_by_word:
            self._num_coined += 1
            coined_word = _content_word(self._num_coined, ending)
        self._num_coined += 1
        return self.word_id(coined_word)

    def weighted_texts(
        self, weighted: tuple[tuple[str, float], ...]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns texts of at most two words as rows of word ids, with their probabilities."""
        word_weights = np.array([weight for _, weight in weighted])
        word_rows = np.full((len(weighted), 2), NOTHING, np.int64)
        for row, (text, _) in zip(word_rows, weighted, strict=True):
            word_ids = self.word_ids(text)
            row[: len(word_ids)] = word_ids
        return word_rows, word_weights / word_weights.sum()
