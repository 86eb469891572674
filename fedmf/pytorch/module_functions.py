"""The functions of a task that build, train and evaluate its model."""

import contextlib
import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from fedmf import checks
from fedmf.pytorch.module_copies import copied

# A function of the outputs and the labels of a batch, which returns a tensor.
TensorFunction = Callable[[Any, Any], Any]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ModuleFunctions:
    """The functions of a task that build, train and evaluate its model.

    Attributes:
      name: name of the task.
      build_model, loss, metrics: see `fedmf.pytorch.Task`.
    """

    name: str
    build_model: Callable[[int], torch.nn.Module]
    loss: TensorFunction
    metrics: Mapping[str, TensorFunction]

    def build(self, seed: int) -> torch.nn.Module:
        """Builds the module, with gradients on if the caller has turned them off."""
        with torch.inference_mode(False), torch.enable_grad():
            return self.build_model(seed)

    def loss_on(self, device: torch.device) -> TensorFunction:
        """Returns a copy of the loss, for outputs on a device."""
        loss: TensorFunction = copied(self.loss)
        if isinstance(loss, torch.nn.Module):
            loss.to(device)
        return loss


def seeded_module(model: Callable[[], torch.nn.Module]) -> Callable[[int], torch.nn.Module]:
    """Returns a function of a seed, as `Task.build_model` is, from a function without arguments.

    The seed determines the random numbers of PyTorch, numpy and Python while the model is built.
    Afterwards their generators have the states that they had before.
    """
    if isinstance(model, torch.nn.Module):
        raise TypeError(
            f"model is the module {type(model).__name__}: pass a function that builds it, such as "
            "model=lambda: Net()"
        )
    hint = "pass a function that builds the model, such as lambda: Net()"
    checks.function("model", model, num_arguments=0, hint=hint)

    def build(seed: int) -> torch.nn.Module:
        with _seeds(seed):
            return model()

    return build


@contextlib.contextmanager
def _seeds(seed: int) -> Iterator[None]:
    """Seeds the random number generators inside the block, and restores their states behind it."""
    numpy_state = np.random.get_state()  # noqa: NPY002  (the models of users draw from it)
    python_state = random.getstate()
    with torch.random.fork_rng(devices=[]):
        # The generator of the processor alone is seeded, because torch.manual_seed would also seed
        # those of GPUs, whose states are not restored.
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)
