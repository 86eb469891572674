"""Training of one client at a time."""

from collections.abc import Sequence

import numpy as np
import torch

from fedmf.pytorch.batches import as_tensors, mean_loss
from fedmf.pytorch.client_training.clipping import clip_stacked
from fedmf.pytorch.client_training.optimizers import ClientOptimizer
from fedmf.pytorch.module_functions import ModuleFunctions
from fedmf.pytorch.module_tensors import as_array, copy_arrays, frozen_tensors, trained_parameters
from fedmf.pytorch.one_thread import training_mode
from fedmf.training.client_work import Broadcast
from fedmf.training.examples import Epochs, count
from fedmf.training.execution.in_threads import ClientResult
from fedmf.training.learner import ClientSettings

# Largest number of entries of a tensor whose values are compared after each client.
_MAX_COMPARED = 4096


class FrozenTensors:
    """The buffers and frozen parameters of a module, which no client may change.

    A changed one would carry a client's data to the next client without clipping. Small tensors are
    compared by their values; of large ones PyTorch counts the changes, which a module can evade by
    writing to `tensor.data`.

    Args:
      module: the module.
      task_name: name of the task, for errors.
    """

    def __init__(self, module: torch.nn.Module, task_name: str) -> None:
        self._module = module
        self._task_name = task_name
        self._versions = self._current_versions()

    def check(self) -> None:
        """Raises a ValueError if a tensor was replaced or written to since this object was made."""
        current_versions = self._current_versions()
        if current_versions == self._versions:
            return
        changed_names = [
            name
            for name in {**self._versions, **current_versions}
            if current_versions.get(name) != self._versions.get(name)
        ]
        raise ValueError(
            f"training of task {self._task_name!r} changes {', '.join(changed_names)}, which would "
            "carry a client's data to other clients without clipping: use layers without such "
            "state, such as torch.nn.GroupNorm in place of batch normalisation"
        )

    def _current_versions(self) -> dict[str, tuple[int, int, bytes]]:
        """Returns the identity, the number of changes and, for a small tensor, the values of each
        tensor, by name.
        """
        version_by_name = {}
        for name, tensor in frozen_tensors(self._module).items():
            values = b""
            if tensor.numel() <= _MAX_COMPARED:
                values = as_array(tensor).tobytes()
            version_by_name[name] = (id(tensor), tensor._version, values)
        return version_by_name


class ModuleClient:
    """A callable that trains one client of any module by automatic differentiation.

    Each object has a module of its own, so that threads do not share it.

    Args:
      functions: the task's functions.
      settings: settings of the run.
      device: device of the training.
    """

    def __init__(
        self, functions: ModuleFunctions, settings: ClientSettings, device: torch.device
    ) -> None:
        self._loss = functions.loss
        self._settings = settings
        self._device = device
        self.module = functions.build_model(settings.seed).to(device).train()
        self._parameters = list(trained_parameters(self.module).values())
        self._optimizer = ClientOptimizer(settings, device)
        self._frozen = FrozenTensors(self.module, functions.name)

    def __call__(self, sent: Broadcast, clients: Sequence[Epochs]) -> ClientResult:
        """Trains one client on its epochs, and returns its clipped update and its loss."""
        [epochs] = clients
        with training_mode(self._device):
            update, loss_sum = self.train(sent.weights, epochs)
            scales = [torch.tensor(scale, device=self._device) for scale in sent.params.scales]
            clipped = clip_stacked([leaf[None] for leaf in update], sent.params, scales)
        return ClientResult(
            values=[leaf[0].cpu().numpy() for leaf in clipped.leaves],
            clipped=int(clipped.is_clipped),
            zeroed=int(clipped.is_zeroed),
            loss_sum=loss_sum,
        )

    def train(
        self, weights: Sequence[np.ndarray], epochs: Epochs
    ) -> tuple[list[torch.Tensor], float]:
        """Trains a client from these weights. Returns its update, the weights before training minus
        those after it, and the loss before each step summed over examples.

        Raises:
          ValueError: training changed a buffer or a frozen parameter.
        """
        initial_weights = [torch.tensor(weight, device=self._device) for weight in weights]
        copy_arrays(weights, self._parameters)
        state = self._optimizer.initial(initial_weights)
        loss_sum = 0.0
        for batch in self._settings.batches(epochs):
            x, y = as_tensors(batch, self._device)
            loss = mean_loss(self._loss, self.module(x), y)
            gradients = torch.autograd.grad(
                loss, self._parameters, allow_unused=True, materialize_grads=True
            )
            with torch.no_grad():
                state = self._optimizer.step(
                    state,
                    [parameter.detach() for parameter in self._parameters],
                    [gradient.to_dense() for gradient in gradients],
                )
            loss_sum += float(loss.detach()) * count(batch)
        self._frozen.check()
        update = [
            weight - parameter.detach()
            for weight, parameter in zip(initial_weights, self._parameters, strict=True)
        ]
        return update, loss_sum
