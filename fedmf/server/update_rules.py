"""Update rules that servers and clients share, for numpy arrays and for tensors.

A rule sees releases, or the gradients of one client, so that the guarantee is the same for every
rule. `fedmf.server.optimizers` makes server optimizers of them.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

RULES = ("sgd", "adam", "adagrad", "yogi")
_BETA_2 = 0.999
# Initial values of the second moment of each adaptive rule, as in Reddi et al. 2021.
_FIRST_MOMENT = {"adam": 0.0, "adagrad": 0.1, "yogi": 1e-6}


class OptimizerState(NamedTuple):
    """The state of an update rule between steps. Its lists have the weights' shapes and dtypes, and
    are empty if the rule does not use them.

    Attributes:
      step: float32 (), the number of steps; with vectorised clients float32 (clients,), and clients
        are the first axis of all other arrays.
      velocity: momentum, or the first moment.
      moment: the second moment.
      start: the weights before the first step, for FedProx.
    """

    step: Any
    velocity: list[Any]
    moment: list[Any]
    start: list[Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """An optimizer with the update rule of SGD with momentum, Adam, Adagrad or Yogi, by the
    formulas of tff.learning.optimizers. Its methods are pure functions.

    With g the gradient, on a server the mean update of TFF's sign:

        sgd       v <- momentum v + g;  w <- w - rate v
        adagrad   m <- m + g^2;  w <- w - rate g / sqrt(m + epsilon)
        adam      v <- v + (1 - momentum) (g - v);  m <- m + (1 - beta_2) (g^2 - m);
                  w <- w - rate sqrt(1 - beta_2^t) / (1 - momentum^t) v / (sqrt(m) + epsilon)
        yogi      as adam, with m <- m + (1 - beta_2) sign(g^2 - m) g^2

    beta_2 is .999. FedSGDM of the banded paper's App. I is sgd.

    Attributes:
      rule: one of `RULES`.
      momentum: in [0, 1); beta_1 of adam and yogi.
      epsilon: epsilon of the adaptive rules, small and not negative.
      proximal: mu of FedProx, which adds mu (w - w before the first step) to g (Li et al. 2020,
        Federated Optimization in Heterogeneous Networks, Eq. 2).
      xp: numpy, tensorflow, or a namespace with the same functions for tensors of PyTorch.

    >>> optimizer = Optimizer(rule="sgd", momentum=0.5)
    >>> weights = [np.array([1.0], np.float32)]
    >>> state = optimizer.initial(weights)
    >>> for rate in (1.0, 0.5):
    ...     state, weights = optimizer.next(state, weights, [np.array([1.0], np.float32)], rate)
    >>> weights[0]
    array([-0.75], dtype=float32)
    """

    rule: str = "sgd"
    momentum: float = 0.0
    epsilon: float = 1e-7
    proximal: float = 0.0
    xp: Any = np

    def initial(self, weights: Sequence[Any]) -> OptimizerState:
        """Returns the state before the first step from these weights."""
        xp = self.xp
        zero_velocity: list[Any] = []
        if self.rule in ("adam", "yogi") or (self.rule == "sgd" and self.momentum > 0):
            zero_velocity = [xp.zeros_like(w) for w in weights]
        second_moment: list[Any] = []
        if self.rule in _FIRST_MOMENT:
            initial_moment = _FIRST_MOMENT[self.rule]
            second_moment = [xp.ones_like(w) * self.scalar_like(initial_moment, w) for w in weights]
        start_weights = list(weights) if self.proximal else []
        return OptimizerState(xp.zeros((), np.float32), zero_velocity, second_moment, start_weights)

    def next(
        self, state: OptimizerState, weights: Sequence[Any], gradients: Sequence[Any], rate: Any
    ) -> tuple[OptimizerState, list[Any]]:
        """Returns the state and the weights after one step.

        Args:
          state: state before the step.
          weights: weights before the step.
          gradients: gradients in the weights' shapes and dtypes.
          rate: the learning rate of this step.
        """
        xp = self.xp
        next_step = state.step + np.float32(1)
        gradients = list(gradients)
        next_velocity = state.velocity
        next_moment = state.moment
        if self.proximal:
            gradients = [
                g + self.scalar_like(self.proximal, w) * (w - s)
                for g, w, s in zip(gradients, weights, state.start, strict=True)
            ]
        directions = gradients
        if self.rule == "sgd" and next_velocity:
            next_velocity = directions = [
                self.scalar_like(self.momentum, v) * v + g
                for v, g in zip(next_velocity, gradients, strict=True)
            ]
        elif self.rule == "adagrad":
            next_moment = [m + xp.square(g) for m, g in zip(next_moment, gradients, strict=True)]
            directions = [
                g / xp.sqrt(m + self.scalar_like(self.epsilon, m))
                for g, m in zip(gradients, next_moment, strict=True)
            ]
        elif self.rule in ("adam", "yogi"):
            next_velocity = [
                v + (g - v) * self.scalar_like(1 - self.momentum, v)
                for v, g in zip(next_velocity, gradients, strict=True)
            ]
            next_moment = [
                self._next_moment(m, xp.square(g))
                for m, g in zip(next_moment, gradients, strict=True)
            ]
            rate = rate * xp.sqrt(1 - _BETA_2**next_step) / (1 - self.momentum**next_step)
            directions = [
                v / (xp.sqrt(m) + self.scalar_like(self.epsilon, m))
                for v, m in zip(next_velocity, next_moment, strict=True)
            ]
        next_weights = [
            w - self.scalar_like(rate, w) * d for w, d in zip(weights, directions, strict=True)
        ]
        return OptimizerState(next_step, next_velocity, next_moment, state.start), next_weights

    def _next_moment(self, m: Any, square: Any) -> Any:
        """Returns the second moment after a step of Adam or Yogi."""
        one_minus_beta = self.scalar_like(1 - _BETA_2, m)
        if self.rule == "adam":
            return m + (square - m) * one_minus_beta
        return m + one_minus_beta * self.xp.sign(square - m) * square

    def scalar_like(self, value: Any, array: Any) -> Any:
        """Casts a number to an array's dtype. Numbers of several clients are shaped to lie along
        the array's first axis.
        """
        if self.xp is np:
            return np.asarray(value, array.dtype)
        value = self.xp.cast(value, array.dtype)
        if not len(value.shape):
            return value
        return self.xp.reshape(value, [-1, *[1] * (len(array.shape) - 1)])
