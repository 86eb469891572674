"""Options of the CIFAR-10 task."""

import dataclasses

from fedmf import fields

MODELS = ("vgg", "small")
VALIDATION = ("train", "test")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cifar10Options(fields.Checked):
    """Data and model of the task; the default network is the published one.

    Raises:
      TypeError, ValueError: naming the option, its value and what to do instead.
    """

    data: str | None = fields.text(
        None, "cifar-10-python.tar.gz or a stand-in; by default the file in Keras's own cache."
    )
    model: str = fields.choice(
        "vgg", "vgg: the published network, 551,000 parameters; small: 39,000.", lambda: MODELS
    )
    validation: str = fields.choice(
        "train",
        "train: validate on the last 5,000 training images (a tenth of a small file), which do not "
        "train; test: on every other test image, so that all training images train, as published.",
        lambda: VALIDATION,
    )
    max_clients: int | None = fields.whole(
        None, "Only the first so many images train; by default all."
    )
