"""The optimizers of clients, on tensors of PyTorch."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch

from fedmf.server.update_rules import Optimizer, OptimizerState
from fedmf.training.learner import ClientSettings


@dataclasses.dataclass(frozen=True)
class TensorFunctions:
    """The functions by which `Optimizer` computes on tensors, under numpy's names.

    Attributes:
      device: device of the tensors that it creates.
    """

    device: torch.device

    def zeros(self, shape: Sequence[int], dtype: Any) -> torch.Tensor:
        """Returns float32 zeros."""
        return torch.zeros(tuple(shape), dtype=torch.float32, device=self.device)

    def cast(self, value: Any, dtype: torch.dtype) -> torch.Tensor:
        """Returns a number or a tensor as a tensor of a dtype."""
        return torch.as_tensor(value, dtype=dtype, device=self.device)

    zeros_like = staticmethod(torch.zeros_like)
    ones_like = staticmethod(torch.ones_like)
    square = staticmethod(torch.square)
    sqrt = staticmethod(torch.sqrt)
    sign = staticmethod(torch.sign)
    reshape = staticmethod(torch.reshape)


class ClientOptimizer:
    """The optimizer of clients. It shortens each step whose L2 norm is above `max_step_norm`.

    Args:
      settings: settings of the run.
      device: device of the weights.
    """

    def __init__(self, settings: ClientSettings, device: torch.device) -> None:
        self._max_step_norm = settings.max_step_norm
        self._rate = settings.learning_rate
        self._optimizer = Optimizer(
            rule=settings.optimizer,
            momentum=settings.momentum if settings.optimizer == "sgd" else 0.9,
            epsilon=1e-3 if settings.optimizer == "yogi" else 1e-7,
            proximal=settings.proximal_strength,
            xp=TensorFunctions(device),
        )

        # A step of plain SGD needs no copy of the weights.
        self._is_plain = (
            settings.optimizer == "sgd"
            and not settings.momentum
            and not settings.proximal_strength
            and math.isinf(settings.max_step_norm)
        )

    def initial(self, weights: Sequence[torch.Tensor]) -> OptimizerState:
        """Returns the optimizer's state before the first step from these weights."""
        return self._optimizer.initial(weights)

    def step(
        self,
        state: OptimizerState,
        weights: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor],
    ) -> OptimizerState:
        """Takes a step of one client, which is written to its weights, and returns the optimizer's
        state.
        """
        if self._is_plain:
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.sub_(gradient * self._rate)
            return state
        state, new_weights = self.next(state, weights, gradients)
        for weight, new_weight in zip(weights, new_weights, strict=True):
            weight.copy_(new_weight)
        return state

    def next(
        self,
        state: OptimizerState,
        weights: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor],
    ) -> tuple[OptimizerState, list[torch.Tensor]]:
        """Returns the optimizer's state and the weights after one step. With stacked clients, the
        first axis of every tensor counts clients.
        """
        state, new_weights = self._optimizer.next(state, weights, gradients, self._rate)
        if math.isinf(self._max_step_norm):
            return state, new_weights
        steps = [new - old for new, old in zip(new_weights, weights, strict=True)]
        num_client_axes = state.step.dim()
        squared_norms = [
            step.double().square().flatten(num_client_axes).sum(-1)
            if step.dim() > num_client_axes
            else step.double().square()
            for step in steps
        ]
        step_norm = torch.stack(squared_norms).sum(0).sqrt()
        shortening_factor = (self._max_step_norm / step_norm).clamp(max=1.0)
        bounded_weights = [
            old + self._optimizer.scalar_like(shortening_factor, step) * step
            for old, step in zip(weights, steps, strict=True)
        ]
        return state, bounded_weights
