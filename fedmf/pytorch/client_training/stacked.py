"""Training of many clients in one call, by torch.vmap over stacked weights.

This is faster for small models, because a call of an operation takes more time than its arithmetic.

A client's update must have the same bits whatever the other clients of its call are; see
`fedmf.federated.client_training.vectorised`. Each call has the same number of slots for clients,
which follows from the run, and a step computes all of them. A check before round 0 moves clients to
other slots and beside other clients; a model whose updates change by that is not stacked.
"""

import contextlib
import functools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from fedmf import nest
from fedmf.pytorch.batches import as_tensors, mean_loss
from fedmf.pytorch.client_training.clipping import clip_stacked
from fedmf.pytorch.client_training.one_client import FrozenTensors, ModuleClient
from fedmf.pytorch.client_training.optimizers import ClientOptimizer
from fedmf.pytorch.client_training.separate_clients import (
    EmbeddingIndices,
    check_embeddings,
    check_no_embeddings,
    check_separate,
)
from fedmf.pytorch.module_copies import state_texts
from fedmf.pytorch.module_functions import ModuleFunctions
from fedmf.pytorch.module_tensors import as_array, trained_parameters
from fedmf.pytorch.torch_settings import training_mode
from fedmf.server.update_rules import OptimizerState
from fedmf.training.batching import concatenated_epochs, list_batches, order_steps
from fedmf.training.client_work import Broadcast
from fedmf.training.examples import Epochs
from fedmf.training.execution.in_threads import ClientResult
from fedmf.training.independence import Slots, check_independent, positive_batch
from fedmf.training.learner import ClientSettings

# PyTorch warns of each operation that torch.vmap computes for one client after the other.
warnings.filterwarnings("ignore", message="There is a performance drop because we have not yet")


@contextlib.contextmanager
def stacked_operations() -> Iterator[None]:
    """Turns oneDNN off inside the block, which computes recurrent layers and convolutions of one
    client after the other. It is off for all threads.
    """
    was_enabled = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = was_enabled


class _ClientsState(NamedTuple):
    """The optimizer states and weights of all clients of a call; the first axis of each tensor
    counts clients.
    """

    optimizer: OptimizerState
    weights: list[torch.Tensor]


class ClientStack:
    """A callable that trains up to `num_slots` clients in one call.

    Each object has a module of its own, so that threads do not share it.

    Args:
      functions: the task's functions.
      settings: settings of the run.
      num_slots: number of slots for clients.
      device: device of the training.
      has_one_step: whether each client has one example in one epoch. Then all slots share the
        server's weights.
    """

    def __init__(
        self,
        functions: ModuleFunctions,
        settings: ClientSettings,
        num_slots: int,
        device: torch.device,
        has_one_step: bool = False,
    ) -> None:
        self._functions = functions
        self._loss = functions.loss_on(device)
        self._settings = settings
        self._num_slots = num_slots
        self._device = device
        self._has_one_step = has_one_step
        self._module = functions.build(settings.seed).to(device)
        self._module.train()
        self._names = list(trained_parameters(self._module))
        self._optimizer = ClientOptimizer(settings, device)
        self._frozen = FrozenTensors(self._module, functions.name)

    def check(self) -> None:
        """Checks that stacked clients train as single clients do, and independently of each other.

        Raises:
          Exception: the module does not run under torch.vmap, or a client's gradients depend on
            other clients.
        """
        settings = self._settings
        single_client = ModuleClient(self._functions, settings, self._device)
        parameters = trained_parameters(single_client.copied_module()).values()
        if any(parameter._backward_hooks for parameter in parameters):
            raise ValueError("a parameter has a hook, which torch.func does not call")
        initial_weights = [as_array(parameter) for parameter in parameters]
        states_before = self._states()
        rng = np.random.default_rng(0)
        batch = positive_batch(rng, settings.spec, min(2, max(self._checked_batch_sizes())))
        with training_mode(self._device):
            self._check_operations(single_client, initial_weights, batch)
            self._check_agreement(single_client, initial_weights, batch)
            slots = Slots(
                number=self._num_slots,
                weights=initial_weights,
                spec=settings.spec,
                share_weights=self._has_one_step,
            )
            check_independent(self._gradients_of_arrays, slots, self._checked_batch_sizes())
        _check_equal_states(states_before, self._states())

    def _states(self) -> dict[str, str]:
        """Returns a text for each attribute of the module and the loss, which changes with it."""
        holder = torch.nn.Module()
        holder.loss_function = [self._loss]
        return state_texts(self._module) | state_texts(holder)

    def _check_operations(
        self, single_client: ModuleClient, weights: Sequence[np.ndarray], batch: Any
    ) -> None:
        """Raises a ValueError if the module or the loss has an operation by which torch.vmap would
        mix clients.
        """
        x, y = as_tensors(batch, self._device)
        module = single_client.copied_module()
        with torch.no_grad():
            check_embeddings(functools.partial(module, x))
            outputs = module(x)
            check_no_embeddings(functools.partial(mean_loss, self._loss, outputs, y))
        check_separate(functools.partial(single_client.train, weights, [batch]))

    def _check_agreement(
        self, single_client: ModuleClient, weights: Sequence[np.ndarray], batch: Any
    ) -> None:
        """Raises a ValueError if stacked clients have another update than single clients.

        They differ if a module computes a tensor from its weights when it is built, for example.
        """
        rng = np.random.default_rng(1)
        moved_weights = [
            (weight + 0.1 * rng.normal(size=weight.shape)).astype(weight.dtype)
            for weight in weights
        ]
        expected_update, _ = single_client.train(moved_weights, [batch])
        state, _ = self._train_steps(moved_weights, [[batch]])
        for expected, stacked, weight in zip(
            expected_update, state.weights, moved_weights, strict=True
        ):
            update = torch.tensor(weight, device=self._device) - stacked[0]
            largest_magnitude = 1e-6
            if weight.size:
                largest_magnitude += float(torch.nan_to_num(expected).abs().max())
            if not torch.allclose(
                update, expected, rtol=1e-3, atol=1e-3 * largest_magnitude, equal_nan=True
            ):
                raise ValueError("torch.func computes another update than the module")

    def _checked_batch_sizes(self) -> list[int]:
        """Returns the batch sizes to check, which are all sizes up to 32, and the run's."""
        if self._has_one_step:
            return [1]
        batch_size = self._settings.batch_size
        return sorted({*range(1, min(batch_size, 32) + 1), batch_size})

    def _gradients_of_arrays(self, weights: Any, xs: Any, ys: Any) -> list[np.ndarray]:
        """Returns losses and gradients of all slots from stacked arrays, for the check."""
        x, y = as_tensors((xs, ys), self._device)
        stacked_weights = [torch.tensor(weight, device=self._device) for weight in weights]
        losses, gradients = self._losses_and_gradients(stacked_weights, x, y)
        return [tensor.cpu().numpy() for tensor in (losses, *gradients)]

    def __call__(self, sent: Broadcast, clients: Sequence[Epochs]) -> ClientResult:
        """Trains clients, at least one and at most one a slot, and returns the sum of their clipped
        updates.
        """
        with training_mode(self._device):
            state, losses = self._train_steps(sent.weights, clients)
            updates = [
                torch.tensor(weight, device=self._device) - stacked
                for weight, stacked in zip(sent.weights, state.weights, strict=True)
            ]
            scales = [torch.tensor(scale, device=self._device) for scale in sent.params.scales]
            # All slots are clipped, also those without a client, so that no rounding depends on the
            # number of clients.
            clipped = clip_stacked(updates, sent.params, scales)
        num_clients = len(clients)
        return ClientResult(
            values=[leaf[:num_clients].double().sum(0) for leaf in clipped.leaves],
            clipped=int(clipped.is_clipped[:num_clients].sum()),
            zeroed=int(clipped.is_zeroed[:num_clients].sum()),
            loss_sum=float(losses[:num_clients].sum()),
        )

    def _train_steps(
        self, weights: Sequence[np.ndarray], clients: Sequence[Epochs]
    ) -> tuple[_ClientsState, torch.Tensor]:
        """Trains clients step by step. Returns the state of all slots after the last step, and the
        loss of each slot before each step summed over examples, float64 (slots,).
        """
        steps = order_steps(list_batches(clients, self._settings.batch_size), self._num_slots)
        examples = nest.unflatten(self._settings.spec, concatenated_epochs(clients))
        xs, ys = as_tensors(examples, self._device)
        stacked_weights = self._expanded(weights)
        if not self._has_one_step:
            # A module may write to its weights, so that each slot has a copy.
            stacked_weights = [weight.contiguous() for weight in stacked_weights]
        # The optimizer has weights of its own, because a module may write to those of its call.
        optimizer_state = self._optimizer.initial(self._expanded(weights))
        state = _ClientsState(optimizer_state, stacked_weights)
        state = state._replace(
            optimizer=state.optimizer._replace(step=state.optimizer.step.repeat(self._num_slots))
        )
        loss_sums = torch.zeros(self._num_slots, dtype=torch.float64, device=self._device)
        for starts, has_batch, size in zip(*steps, strict=True):
            rows = torch.tensor(starts[:, np.newaxis] + np.arange(size), device=self._device)
            x, y = nest.map_leaves(lambda tensor, rows=rows: tensor[rows], (xs, ys))
            is_trained = torch.tensor(has_batch, device=self._device)
            weights_of_step = state.weights
            if not self._has_one_step and not has_batch.all():
                # A module may write to its weights. Slots without a batch keep theirs.
                weights_of_step = [weight.clone() for weight in state.weights]
            losses, gradients = self._losses_and_gradients(weights_of_step, x, y)
            next_state = _ClientsState(
                *self._optimizer.next(state.optimizer, weights_of_step, gradients)
            )
            state = _selected(is_trained, next_state, state)
            loss_sums += torch.where(is_trained, losses.double() * int(size), 0.0)
        self._frozen.check(self._module)
        return state, loss_sums

    def _expanded(self, weights: Sequence[np.ndarray]) -> list[torch.Tensor]:
        """Returns tensors with the weights of all slots, which share their memory."""
        return [
            torch.tensor(weight, device=self._device).expand(self._num_slots, *weight.shape)
            for weight in weights
        ]

    def _losses_and_gradients(
        self, weights: Sequence[torch.Tensor], x: Any, y: Any
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Returns the loss (slots,) and the gradients of each slot.

        Raises:
          IndexError: an index is out of the range of an embedding.
        """
        loss_and_gradient = torch.func.grad_and_value(self._loss_of_slot, has_aux=True)
        if self._has_one_step:
            shared_weights = tuple(weight[0] for weight in weights)
            gradients_of_slots = torch.func.vmap(loss_and_gradient, in_dims=(None, 0, 0))
            gradients, (losses, has_misfit) = gradients_of_slots(shared_weights, x, y)
        else:
            gradients_of_slots = torch.func.vmap(loss_and_gradient)
            gradients, (losses, has_misfit) = gradients_of_slots(tuple(weights), x, y)
        if bool(has_misfit.any()):
            raise IndexError("index out of range of an embedding")
        return losses, list(gradients)

    def _loss_of_slot(
        self, weights: Sequence[torch.Tensor], x: Any, y: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the loss of one slot, and whether an index of an embedding is out of range."""
        weight_by_name = dict(zip(self._names, weights, strict=True))
        with EmbeddingIndices() as embeddings:
            outputs = torch.func.functional_call(self._module, weight_by_name, (x,))
        return mean_loss(self._loss, outputs, y), embeddings.has_misfit()


def _check_equal_states(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raises a ValueError if training has changed an attribute of the module or the loss. In a
    stack, a client with few batches would get the value after the batches of others.
    """
    changed_names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    if changed_names:
        raise ValueError(f"training changes {', '.join(changed_names)}")


def _selected(is_new: torch.Tensor, new: _ClientsState, old: _ClientsState) -> _ClientsState:
    """Returns the new state for slots where `is_new` is true, and the old one for the others."""
    if bool(is_new.all()):
        return new

    def select(new_leaf: torch.Tensor, old_leaf: torch.Tensor) -> torch.Tensor:
        return torch.where(is_new.reshape(-1, *[1] * (new_leaf.dim() - 1)), new_leaf, old_leaf)

    selected_state: _ClientsState = nest.map_leaves(select, new, old)
    return selected_state
