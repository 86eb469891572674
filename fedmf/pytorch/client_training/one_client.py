"""Training of one client at a time."""

from collections.abc import Sequence

import numpy as np
import torch

from fedmf.pytorch.batches import as_tensors, mean_loss
from fedmf.pytorch.client_training.clipping import clip_stacked
from fedmf.pytorch.client_training.optimizers import ClientOptimizer
from fedmf.pytorch.module_copies import copied, state_texts
from fedmf.pytorch.module_functions import ModuleFunctions
from fedmf.pytorch.module_tensors import as_array, copy_arrays, trained_parameters
from fedmf.pytorch.torch_settings import training_mode
from fedmf.training.client_work import Broadcast
from fedmf.training.examples import Epochs, count
from fedmf.training.execution.in_threads import ClientResult
from fedmf.training.learner import ClientSettings

# Largest number of entries of a frozen parameter whose values are compared after each client.
_MAX_COMPARED = 4096
# Whole numbers with as many bytes as a float.
_WHOLE_NUMBERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class FrozenTensors:
    """The buffers and frozen parameters of a module, which no client may change.

    A changed one would carry a client's data to the next client without clipping. Buffers and small
    parameters are compared by their values, and large parameters by a sum of their bits.

    Args:
      module: the module, in which no client trains.
      task_name: name of the task, for errors.
    """

    def __init__(self, module: torch.nn.Module, task_name: str) -> None:
        self._task_name = task_name
        self._buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        self._versions = _parameter_versions(module)

    def check(self, module: torch.nn.Module) -> None:
        """Checks the module, or a copy that shares its parameters, after clients have trained in
        it.

        Raises:
          ValueError: a buffer or a frozen parameter was replaced or written to.
        """
        changed_names = []
        buffers = dict(module.named_buffers())
        for name in {**self._buffers, **buffers}:
            is_in_both = name in buffers and name in self._buffers
            if not is_in_both or not _has_same_values(buffers[name], self._buffers[name]):
                changed_names.append(name)
        versions = _parameter_versions(module)
        for name in {**self._versions, **versions}:
            if versions.get(name) != self._versions.get(name):
                changed_names.append(name)
        if changed_names:
            raise ValueError(
                f"training of task {self._task_name!r} changes {', '.join(changed_names)}, which "
                "would carry a client's data to other clients without clipping: use layers without "
                "such state, such as torch.nn.GroupNorm in place of batch normalisation"
            )


def _has_same_values(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Returns whether two tensors have the same values. A NaN equals a NaN."""
    return torch.equal(first, second) or as_array(first).tobytes() == as_array(second).tobytes()


def _parameter_versions(module: torch.nn.Module) -> dict[str, tuple[int, int, bytes | int]]:
    """Returns the identity, the number of changes and the values of each frozen parameter, by name;
    of a large one the sum of its bits as whole numbers.
    """
    version_by_name = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            continue
        values: bytes | int
        if parameter.numel() <= _MAX_COMPARED:
            values = as_array(parameter).tobytes()
        else:
            bits = parameter.detach().flatten().view(_WHOLE_NUMBERS[parameter.element_size()])
            values = int(bits.sum(dtype=torch.int64))
        version_by_name[name] = (id(parameter), parameter._version, values)
    return version_by_name


class ModuleClient:
    """A callable that trains one client of any module by automatic differentiation.

    Each object has a module of its own, so that threads do not share it. Each client trains in a
    copy that shares the module's parameters.

    Args:
      functions: the task's functions.
      settings: settings of the run.
      device: device of the training.
    """

    def __init__(
        self, functions: ModuleFunctions, settings: ClientSettings, device: torch.device
    ) -> None:
        self._task_name = functions.name
        self._loss = functions.loss_on(device)
        self._settings = settings
        self._device = device
        self._module = functions.build(settings.seed).to(device)
        self._module.train()
        self._parameters = list(trained_parameters(self._module).values())
        self._layers = list(self._module.modules())
        self._attributes_by_parameter = {
            parameter: dict(vars(parameter)) for parameter in self._module.parameters()
        }
        self._optimizer = ClientOptimizer(settings, device)
        self._frozen = FrozenTensors(self._module, functions.name)

    def states(self) -> dict[str, str]:
        """Returns a text for each attribute of the module, which changes with it; none if it has
        attributes whose changes cannot be seen.
        """
        try:
            return state_texts(self._module)
        except ValueError:
            return {}

    def copied_module(self) -> torch.nn.Module:
        """Returns a copy of the module that shares its parameters, and no other state.

        Raises:
          ValueError: a submodule is not copied.
        """
        module: torch.nn.Module = copied(self._module, self._module.parameters())
        if {id(layer) for layer in module.modules()} & {id(layer) for layer in self._layers}:
            raise ValueError(
                f"a layer of the model of task {self._task_name!r} is not copied by copy.deepcopy, "
                "and would carry state from one client to the next: leave out its `__deepcopy__`"
            )
        return module

    def _clear_parameters(self) -> None:
        """Removes what a client has stored as a gradient or an attribute of a parameter."""
        for parameter, attributes in self._attributes_by_parameter.items():
            parameter.grad = None
            vars(parameter).clear()
            vars(parameter).update(attributes)

    def __call__(self, sent: Broadcast, clients: Sequence[Epochs]) -> ClientResult:
        """Trains one client on its epochs, and returns its clipped update and its loss."""
        [epochs] = clients
        with training_mode(self._device):
            update, loss_sum = self.train(sent.weights, epochs)
            scales = [torch.tensor(scale, device=self._device) for scale in sent.params.scales]
            clipped = clip_stacked([leaf[None] for leaf in update], sent.params, scales)
        return ClientResult(
            values=[leaf[0] for leaf in clipped.leaves],
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
        self._clear_parameters()
        module = self.copied_module()
        loss_function = copied(self._loss)
        loss_sum = 0.0
        for batch in self._settings.batches(epochs):
            x, y = as_tensors(batch, self._device)
            loss = mean_loss(loss_function, module(x), y)
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
        # A hook or a function may refer to the module, and not to the copy.
        self._frozen.check(self._module)
        self._frozen.check(module)
        self._check_parameters(module)
        update = [
            weight - parameter.detach()
            for weight, parameter in zip(initial_weights, self._parameters, strict=True)
        ]
        return update, loss_sum

    def _check_parameters(self, module: torch.nn.Module) -> None:
        """Raises a ValueError if a copy in which a client has trained has other parameters than the
        module, whose gradients were computed.
        """
        trained_ids = [id(parameter) for parameter in trained_parameters(module).values()]
        if trained_ids != [id(parameter) for parameter in self._parameters]:
            raise ValueError(
                f"the model of task {self._task_name!r} replaces its parameters in training, or "
                "has a TorchScript module, whose copies have parameters of their own: keep the "
                "parameters of a module in Python"
            )
