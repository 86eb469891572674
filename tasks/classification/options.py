"""Options of the classification task."""

import dataclasses

from fedmf import fields

MODELS = ("logistic", "dense", "pooled-text")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassificationOptions(fields.Checked):
    """Options of the classification task for its data, its model and its sizes.

    Each field has its own help text.

    Raises:
      TypeError, ValueError: naming the option, its value and what to do instead.
    """

    data: str | None = fields.path(
        None, "Data file that `fedmf data import --label-column` wrote; it is required."
    )
    classes_data: str | None = fields.path(
        None,
        "Data file whose classes, means and standard deviations are used; by default data itself.",
    )
    model: str | None = fields.choice(
        None,
        "logistic or dense (one hidden layer) for numbers, pooled-text (the mean of the words' "
        "embeddings) for texts; by default logistic or pooled-text.",
        lambda: MODELS,
    )
    hidden_units: int = fields.whole_number(32, "dense: units of the hidden layer.")
    hashed_words: int = fields.whole_number(
        2000, "pooled-text: numbers to which words are hashed, each with an embedding."
    )
    embedding_size: int = fields.whole_number(16, "pooled-text: width of the embedding.")
    text_words: int = fields.whole_number(
        100, "pooled-text: words and signs of a text that are read."
    )
    batch_size: int = fields.whole_number(16, "Rows in a client's batch.")

    def on_data(self, data: str) -> "ClassificationOptions":
        """Returns the options for another data file, in which classes and numbers have the meaning
        that they have for the present file.
        """
        classes_data = self.classes_data or self.data
        return dataclasses.replace(self, data=data, classes_data=classes_data)
