"""Records of the operations of a training step, by which models are refused or not stacked."""

import collections
import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# Functions that normalise by statistics of a batch if their argument `training` is true, with its
# position.
_BATCH_NORMALISATION: dict[Callable[..., Any], int] = {
    torch.nn.functional.batch_norm: 5,
    torch.batch_norm: 5,
    torch.native_batch_norm: 5,
}


class RecordedOperations(TorchDispatchMode):
    """A mode that counts all operations inside its block.

    Attributes:
      counts: number of calls of each operation.
      random_names: names of operations that draw random numbers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: collections.Counter[Any] = collections.Counter()
        self.random_names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Counts and calls an operation."""
        self.counts[func.overloadpacket] += 1
        # Attention has the tag of random operations with a dropout of 0 too. With more, it draws
        # from the default generator, whose state is compared.
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        if is_random and "attention" not in str(func):
            self.random_names.add(str(func.overloadpacket))
        return func(*args, **(kwargs or {}))


class NoBatchStatistics(TorchFunctionMode):
    """A mode in which functions that normalise by statistics of a batch raise an error.

    Args:
      message: text of the error.
    """

    def __init__(self, message: str) -> None:
        super().__init__()
        self._message = message

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Calls a function of PyTorch.

        Raises:
          ValueError: it is a batch normalisation in training.
        """
        keywords = kwargs or {}
        position = _BATCH_NORMALISATION.get(func)
        if position is not None:
            is_training = keywords.get("training", keywords.get("train", False))
            if len(args) > position:
                is_training = args[position]
            if is_training:
                raise ValueError(self._message)
        return func(*args, **keywords)


@contextlib.contextmanager
def recorded_autocasts() -> Iterator[list[bool]]:
    """Records the autocasts that are entered inside the block, in a list that has for each whether
    it caches the casts of weights.
    """
    enter = torch.autocast.__enter__
    caches: list[bool] = []

    def recording_enter(autocast: torch.autocast) -> Any:
        """Records an autocast, and enters it."""
        caches.append(bool(autocast._enabled and autocast._cache_enabled))
        return enter(autocast)

    with mock.patch.object(torch.autocast, "__enter__", recording_enter):
        yield caches
