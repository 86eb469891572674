"""What the server sends to the clients of a round beside the model's weights."""

from typing import Any, NamedTuple


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
