"""Operations by which torch.vmap would mix the data of the clients of a call."""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fedmf.pytorch.recorded_training import RecordedOperations

# Under torch.vmap, an index of one client that is out of range reaches the rows of another client
# in these operations.
_MIXING_OPERATIONS = ("aten.index_fill",)


class EmbeddingIndices(TorchFunctionMode):
    """A mode that keeps indices of embeddings within their range.

    torch.vmap lays the embeddings of all clients end to end and does not check the range of an
    index, so that an index out of range would read and train a row of another client.

    Attributes:
      misfits: a bool tensor for each embedding, whether an index was out of range.
    """

    def __init__(self) -> None:
        super().__init__()
        self.misfits: list[torch.Tensor] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Calls a function of PyTorch, an embedding with indices within its range."""
        keywords = dict(kwargs or {})
        if func is torch.nn.functional.embedding:
            arguments = _by_name(("input", "weight"), args, keywords)
            indices = self._within_range(arguments["input"], arguments["weight"])
            return func(indices, arguments["weight"], *args[2:], **keywords)
        if func is torch.embedding:
            arguments = _by_name(("weight", "indices"), args, keywords)
            indices = self._within_range(arguments["indices"], arguments["weight"])
            return func(arguments["weight"], indices, *args[2:], **keywords)
        return func(*args, **keywords)

    def has_misfit(self) -> torch.Tensor:
        """Returns whether an index of any embedding was out of range, as a bool scalar."""
        if not self.misfits:
            return torch.zeros((), dtype=torch.bool)
        return torch.stack(self.misfits).any()

    def _within_range(self, indices: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Notes whether indices are out of range, and returns them moved into the range."""
        last_index = weight.shape[0] - 1
        self.misfits.append(((indices < 0) | (indices > last_index)).any())
        return indices.clamp(0, last_index)


def _by_name(
    names: tuple[str, str], args: tuple[Any, ...], keywords: dict[str, Any]
) -> dict[str, Any]:
    """Returns the first two arguments of a call by name, and removes them from its keywords."""
    argument_by_name = dict(zip(names, args, strict=False))
    for name in names:
        if name not in argument_by_name:
            argument_by_name[name] = keywords.pop(name)
    return argument_by_name


def check_embeddings(forward: Callable[[], Any]) -> None:
    """Checks that `EmbeddingIndices` sees all embeddings of a module.

    Args:
      forward: calls the module, without torch.vmap.

    Raises:
      ValueError: it does not see one, as in a script.
    """
    with RecordedOperations() as recorded, EmbeddingIndices() as embeddings:
        forward()
    if recorded.counts[torch.ops.aten.embedding] > len(embeddings.misfits):
        raise ValueError("aten.embedding would mix clients, in a script or as torch.ops")


def check_no_embeddings(compute_loss: Callable[[], Any]) -> None:
    """Checks that a loss has no embedding, of which `EmbeddingIndices` would see nothing.

    Raises:
      ValueError: it has one.
    """
    with RecordedOperations() as recorded:
        compute_loss()
    if recorded.counts[torch.ops.aten.embedding]:
        raise ValueError("aten.embedding in the loss would mix clients")


def check_separate(train_step: Callable[[], Any]) -> None:
    """Checks that a training step has no operation by which torch.vmap would mix clients.

    Args:
      train_step: trains one client, without torch.vmap.

    Raises:
      ValueError: it has such an operation.
    """
    with RecordedOperations() as recorded:
        train_step()
    mixing_names = sorted(
        name
        for name in map(str, recorded.counts)
        if name.rstrip("_").startswith(_MIXING_OPERATIONS)
    )
    if mixing_names:
        raise ValueError(f"{', '.join(mixing_names)} would mix clients")
