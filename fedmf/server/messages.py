"""Records that a server and the clients of a round exchange, besides the model's weights."""

from typing import Any, NamedTuple

import numpy as np


class ClientParams(NamedTuple):
    """The parameters by which clients scale, zero and clip their updates.

    They are constants of the plan or follow from earlier releases. In a graph they are tensors,
    else arrays.

    Attributes:
      clip_norm: clip norm of the round; float64 () as a tensor.
      zeroing_norm: infinity for no limit; float64 () as a tensor.
      scales: factors of an update's entries, applied before it is zeroed and clipped: float32 (d,)
        for numpy, a tensor for each leaf in a graph. Empty without a `Scaling`.
    """

    clip_norm: Any
    zeroing_norm: Any
    scales: Any


class ClippedSum(NamedTuple):
    """The sum of the clipped updates of a group of clients, with counts.

    Attributes:
      values: float64 arrays in the shapes of the weights. In float32 the update of one client would
        be lost in the sum of many.
      clients: the number of updates in the sum.
      clipped, zeroed: number of updates that were clipped, and of those that count as zero.
      not_finite: clients whose examples are not finite; they are among the zeroed.
      loss_sum: the loss before each step, summed over all examples.
      examples: the number of examples that the clients trained on.
      group: the number of the group within the round; None where groups are not numbered.
      worker: the machine that computed it; empty for this process.
    """

    values: list[np.ndarray]
    clients: int
    clipped: int
    zeroed: int
    not_finite: int = 0
    loss_sum: float = 0.0
    examples: int = 0
    group: int | None = None
    worker: str = ""
