"""What the server sends to the clients of a round beside the weights, and what comes back."""

from typing import Any, NamedTuple

import numpy as np


class ClientParams(NamedTuple):
    """The numbers by which clients scale, zero and clip their updates.

    They are constants of the plan or follow from earlier releases. Arrays for numpy, tensors in a
    graph.

    Attributes:
      clip_norm: of the round; float64 () as a tensor.
      zeroing_norm: infinity for no limit; float64 () as a tensor.
      scales: which updates are multiplied by before they are zeroed and clipped: float32 (d,) for
        numpy, one for each leaf of a record of tensors. Empty without a `Scaling`.
    """

    clip_norm: Any
    zeroing_norm: Any
    scales: Any


class ClippedSum(NamedTuple):
    """The sum of the clipped updates of some clients, with counts.

    Attributes:
      values: float64 arrays in the shapes of the weights. A sum in float32 would lose what one
        client sends beside what many others do.
      clients: how many updates it is the sum of.
      clipped, zeroed: how many of them were clipped, and how many count as zero.
      not_finite: clients whose examples are not finite; they are among the zeroed.
      loss_sum: the loss before each step, summed over all examples.
      examples: on how many the clients trained.
      group: its number in the round; None where it is not told.
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
