"""The words that a run's model knows by number: a file of the run folder."""

import dataclasses
import pathlib

from fedmf import strict_json
from fedmf.runs.reading import read_object

VOCABULARY = "vocabulary.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunVocabulary:
    """Words and the ids that stand for them.

    Words counted over the clients that train are a function of their data, which no guarantee of
    fedmf covers.

    Attributes:
      words: id 1, 2, ... -> word; id 0 is padding.
      vocabulary_size: V; unknown words are V + 1, a sentence begins with V + 2 and ends with V + 3.
      sequence_length: words that the model reads.
      source: where the words come from, a phrase.
    """

    words: tuple[str, ...]
    vocabulary_size: int
    sequence_length: int
    source: str

    def to_json(self) -> str:
        """Returns the text of the file."""
        special_ids = {
            "padding": 0,
            "unknown": self.vocabulary_size + 1,
            "begin": self.vocabulary_size + 2,
            "end": self.vocabulary_size + 3,
        }
        content = dataclasses.asdict(self) | {"first_word": 1, "special_ids": special_ids}
        return strict_json.dumps(content, indent=1) + "\n"

    @classmethod
    def read(cls, path: pathlib.Path) -> "RunVocabulary":
        """Reads the file.

        Raises:
          FileNotFoundError: there is none.
          ValueError: it is damaged.
        """
        content = read_object(path)
        try:
            return cls(
                words=tuple(map(str, content["words"])),
                vocabulary_size=int(content["vocabulary_size"]),
                sequence_length=int(content["sequence_length"]),
                source=str(content["source"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is damaged ({error}): put the run's own file back") from error
