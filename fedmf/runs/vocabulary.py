"""The words behind the word ids of a run's model, as a file of the run folder."""

import dataclasses
import pathlib

from fedmf import strict_json
from fedmf.runs.reading import read_object

VOCABULARY = "vocabulary.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunVocabulary:
    """The words that a language model knows, with their ids.

    If words are selected by their counts over the training clients, they are a function of the
    clients' data, which no guarantee of fedmf covers.

    Attributes:
      words: words with the ids 1, 2, ...; id 0 is padding.
      vocabulary_size: V; the id V + 1 is an unknown word, V + 2 the beginning of a sentence, and
        V + 3 its end.
      sequence_length: number of words in an input of the model.
      source: a phrase that names the source of the words.
    """

    words: tuple[str, ...]
    vocabulary_size: int
    sequence_length: int
    source: str

    def to_json(self) -> str:
        """Returns the vocabulary as the text of a JSON file."""
        special_ids = {
            "padding": 0,
            "unknown": self.vocabulary_size + 1,
            "begin": self.vocabulary_size + 2,
            "end": self.vocabulary_size + 3,
        }
        vocabulary_content = dataclasses.asdict(self) | {
            "first_word": 1,
            "special_ids": special_ids,
        }
        return strict_json.dumps(vocabulary_content, indent=1) + "\n"

    @classmethod
    def read(cls, path: pathlib.Path) -> "RunVocabulary":
        """Reads a vocabulary from the JSON file of a run folder.

        Raises:
          FileNotFoundError: the file does not exist.
          ValueError: the file is damaged.
        """
        vocabulary_content = read_object(path)
        try:
            return cls(
                words=tuple(map(str, vocabulary_content["words"])),
                vocabulary_size=int(vocabulary_content["vocabulary_size"]),
                sequence_length=int(vocabulary_content["sequence_length"]),
                source=str(vocabulary_content["source"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is damaged ({error}): put the run's own file back") from error
