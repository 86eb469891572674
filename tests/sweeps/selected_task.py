"""Tasks of a small linear model, for private selections whose trials train in a moment."""

import dataclasses

from fedmf import fields
from tests.training.numpy_task import EXAMPLES, OWNERS, X, Y, linear_task


def task():
    """Returns a task that declares that no training client is in its validation split."""
    return linear_task(validation_clients="others")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FewOptions(fields.Checked):
    """Options of `few`."""

    clients: int = fields.whole_number(10, "Number of clients.")


def few(options: FewOptions):
    """Returns a task of the first clients."""
    num_examples = options.clients * EXAMPLES
    return linear_task(
        x=X[:num_examples], y=Y[:num_examples], client_ids=OWNERS[:num_examples],
        validation_clients="others",
    )  # fmt: skip


def undeclared():
    """Returns a task that declares nothing."""
    return linear_task()
