"""Options of the EMNIST task."""

import dataclasses

from fedmf import fields

MODELS = ("cnn", "small")
CLASSES = (
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # in the order of TFF's labels
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmnistOptions(fields.Checked):
    """Data and model of the task; the defaults are digits and the published network.

    Raises:
      TypeError, ValueError: naming the option, its value and what to do instead.
    """

    data: str | None = fields.text(
        None, "TFF's emnist_all.sqlite or a stand-in; by default the file in TFF's own cache."
    )
    only_digits: bool = fields.flag(
        True, "Digits only, 10 classes; otherwise letters too, 62 classes."
    )
    model: str = fields.choice(
        "cnn", "cnn: the published network, 1.2 million parameters; small: 57,000.", lambda: MODELS
    )
    batch_size: int = fields.whole(20, "Images in a client's batch.")
    max_clients: int | None = fields.whole(
        None, "Only the first so many writers train; by default all."
    )
    max_examples: int | None = fields.whole(
        None, "Images a client trains on at most; by default all."
    )

    @property
    def classes(self) -> int:
        """Number of labels."""
        return 10 if self.only_digits else len(CLASSES)

    def split(self, kind: str) -> str:
        """TFF's name of the "train" or "test" split."""
        return f"{'digits_only' if self.only_digits else 'all'}_{kind}"
