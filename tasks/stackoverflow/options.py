"""Options of the StackOverflow task."""

import dataclasses

from fedmf import fields

LOSSES = ("published", "masked")
MODELS = ("plain", "published")
FRAMEWORKS = ("tensorflow", "torch")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackOverflowOptions(fields.Checked):
    """Options of the StackOverflow task for its data, its sizes and its model. The defaults are
    those of the published experiments.

    Each field has its own help text.

    Raises:
      TypeError, ValueError: naming the option, its value and what to do instead.
    """

    data: str | None = fields.path(
        None,
        "StackOverflow SQLite file; by default the one in TFF's own cache. docs/full_scale.md says "
        "where to get it.",
    )
    vocabulary_data: str | None = fields.path(
        None,
        "StackOverflow SQLite file whose frequent words are the vocabulary; "
        "by default data itself.",
    )
    vocabulary_size: int = fields.whole_number(
        10_000, "Most frequent words kept; the model has four classes more."
    )
    sequence_length: int = fields.whole_number(20, "Words of a sentence that are predicted.")
    max_sentences: int = fields.whole_number(256, "Sentences a client trains on at most.")
    batch_size: int = fields.whole_number(16, "Sentences in a client's batch.")
    embedding_size: int = fields.whole_number(96, "Width of the embedding and of the projection.")
    lstm_size: int = fields.whole_number(670, "Units of the LSTM layer.")
    model: str = fields.choice(
        "plain",
        "plain: Keras's default initialisers, and the LSTM runs on over padding; published: those "
        "of the published code, and the LSTM's output stays behind a sentence's end.",
        lambda: MODELS,
    )
    loss: str = fields.choice(
        "published",
        "published: mean over all positions, as in the papers; masked: without padding.",
        lambda: LOSSES,
    )
    validation_sentences: int = fields.whole_number(10_000, "Sentences of the validation set.")
    test_sentences: int | None = fields.whole_number(
        None, "Limit on the sentences of the test set; by default all."
    )
    max_clients: int | None = fields.whole_number(
        None, "Limit on the train clients, the first in TFF's order; by default all."
    )

    framework: str = fields.choice(
        "tensorflow",
        "Library of the model, tensorflow or torch; its weights have the same shapes in both.",
        lambda: FRAMEWORKS,
    )

    def sizes(self) -> dict[str, int]:
        """Returns the sizes of the model by name."""
        return {
            "vocabulary_size": self.vocabulary_size,
            "embedding_size": self.embedding_size,
            "lstm_size": self.lstm_size,
        }

    def on_data(self, data: str) -> "StackOverflowOptions":
        """Returns the options for another data file, in which words keep the ids that they have for
        the present file.
        """
        from fedmf.tasks.stackoverflow.data import open_corpus

        vocabulary_data = self.vocabulary_data or str(open_corpus(self.data).path)
        return dataclasses.replace(self, data=data, vocabulary_data=vocabulary_data)
