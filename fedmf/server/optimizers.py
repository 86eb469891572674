"""Server optimizers, which move the model along a released mean update.

They see releases alone, so that the guarantee is the same for every one.
`register_server_optimizer` gives a class of yours a name in configurations.
"""

import abc
import dataclasses
import reprlib
from collections.abc import Sequence
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from fedmf import checks
from fedmf.server.update_rules import Optimizer, OptimizerState


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerOptimizer(abc.ABC):
    """A pure rule that moves the model along the mean update of a round.

    A subclass is a frozen dataclass of numbers and texts: its name and fields are recorded in the
    run's plan.json, and a resumed run needs an equal one.

    Attributes:
      name: for configurations, such as "sgd".
    """

    name: ClassVar[str]

    @classmethod
    def from_config(cls, *, momentum: float, epsilon: float) -> Self:
        """Makes the optimizer that a configuration names; by default from no argument.

        Args:
          momentum: the configuration's `server_momentum`.
          epsilon: its `server_epsilon`.
        """
        return cls()

    @abc.abstractmethod
    def init(self, weights: Sequence[np.ndarray]) -> Any:
        """Returns the state before the first step: a nest of arrays.

        Args:
          weights: float arrays of the model.
        """

    @abc.abstractmethod
    def step(
        self,
        state: Any,
        weights: Sequence[np.ndarray],
        update: Sequence[np.ndarray],
        learning_rate: float,
    ) -> tuple[Any, list[np.ndarray]]:
        """Returns the state and the weights after one step; changes none of its arguments.

        Args:
          state: before the step.
          weights: before the step.
          update: the mean update that was released, in the weights' shapes and dtypes. Its sign is
            TFF's: weights minus `learning_rate` times update is a step of plain SGD.
          learning_rate: of this round, by the run's schedule.
        """

    def record(self) -> dict[str, Any]:
        """Returns the name and the fields, as plan.json has them.

        Raises:
          TypeError: a field is no number, text, bool or None.
        """
        values = dataclasses.asdict(self)
        for field, value in values.items():
            if not isinstance(value, str | int | float | None):
                raise TypeError(
                    f"server_optimizer={self.name} has {field}={reprlib.repr(value)}: give its "
                    "fields numbers, texts, bools or None, which plan.json records"
                )
        return {"name": self.name, **values}


Optimizers = TypeVar("Optimizers", bound=type[ServerOptimizer])
_CLASS_BY_NAME: dict[str, type[ServerOptimizer]] = {}


def register_server_optimizer(optimizer: Optimizers) -> Optimizers:
    """Registers a class under its name; a decorator.

    Raises:
      TypeError: it is no subclass of `ServerOptimizer`, or no frozen dataclass.
      ValueError: its name is no plain text, or is registered already.

    >>> @register_server_optimizer
    ... @dataclasses.dataclass(frozen=True, kw_only=True)
    ... class SignDescent(ServerOptimizer):
    ...     name = "sign"
    ...
    ...     def init(self, weights):
    ...         return ()
    ...
    ...     def step(self, state, weights, update, learning_rate):
    ...         pairs = zip(weights, update, strict=True)
    ...         return state, [w - learning_rate * np.sign(u) for w, u in pairs]
    >>> server_optimizer_named("sign", momentum=0.9, epsilon=1e-3)
    SignDescent()
    >>> del _CLASS_BY_NAME["sign"]
    """
    is_optimizer = isinstance(optimizer, type) and issubclass(optimizer, ServerOptimizer)
    if not is_optimizer or "__dataclass_params__" not in vars(optimizer):
        raise TypeError(
            f"{reprlib.repr(optimizer)} is no server optimizer: register a frozen dataclass that "
            "inherits from fedmf.server.optimizers.ServerOptimizer"
        )
    name = getattr(optimizer, "name", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"name={name!r} of {optimizer.__name__} is no word: use one such as 'sgd'")
    if name in _CLASS_BY_NAME:
        raise ValueError(f"name={name!r} is that of {_CLASS_BY_NAME[name]}: use another name")
    _CLASS_BY_NAME[name] = optimizer
    return optimizer


def server_optimizer_names() -> tuple[str, ...]:
    """Returns the registered names, those of fedmf first."""
    return tuple(_CLASS_BY_NAME)


def server_optimizer_named(name: str, *, momentum: float, epsilon: float) -> ServerOptimizer:
    """Returns the server optimizer that a configuration names.

    Args:
      name: one of `server_optimizer_names`.
      momentum, epsilon: of the configuration.

    Raises:
      ValueError: no such name.
    """
    checks.one_of("server_optimizer", name, server_optimizer_names())
    return _CLASS_BY_NAME[name].from_config(momentum=momentum, epsilon=epsilon)


def checked_step(
    optimizer: ServerOptimizer, stepped: Any, weights: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Returns the weights after a step, in the dtypes of those before it.

    Args:
      optimizer: of the step.
      stepped: the weights that it returned.
      weights: before the step.

    Raises:
      ValueError: the shapes differ from those before the step.
    """
    arrays = [np.asarray(array) for array in stepped]
    shapes = [array.shape for array in arrays]
    expected = [np.shape(weight) for weight in weights]
    if shapes != expected:
        raise ValueError(
            f"server_optimizer={optimizer.name} returned weights of shapes {shapes}, and the model "
            f"has {expected}: return an array for each weight"
        )
    return [
        array.astype(weight.dtype, copy=False)
        for array, weight in zip(arrays, weights, strict=True)
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Rule(ServerOptimizer):
    """A server optimizer by one of the update rules that clients have as well."""

    def init(self, weights: Sequence[np.ndarray]) -> OptimizerState:
        """See `ServerOptimizer.init`."""
        return self._rule().initial(weights)

    def step(
        self,
        state: OptimizerState,
        weights: Sequence[np.ndarray],
        update: Sequence[np.ndarray],
        learning_rate: float,
    ) -> tuple[OptimizerState, list[np.ndarray]]:
        """See `ServerOptimizer.step`."""
        return self._rule().next(state, weights, update, learning_rate)

    def _rule(self) -> Optimizer:
        """Returns the update rule with the fields of this optimizer."""
        return Optimizer(rule=self.name, **dataclasses.asdict(self))


@register_server_optimizer
@dataclasses.dataclass(frozen=True, kw_only=True)
class Sgd(_Rule):
    """SGD with momentum: FedSGDM of the banded paper, App. I."""

    name = "sgd"
    momentum: float = 0.0

    @classmethod
    def from_config(cls, *, momentum: float, epsilon: float) -> Self:
        """See `ServerOptimizer.from_config`."""
        return cls(momentum=momentum)


@register_server_optimizer
@dataclasses.dataclass(frozen=True, kw_only=True)
class Adam(_Rule):
    """Adam, with `momentum` as its beta_1."""

    name = "adam"
    momentum: float = 0.9
    epsilon: float = 1e-3

    @classmethod
    def from_config(cls, *, momentum: float, epsilon: float) -> Self:
        """See `ServerOptimizer.from_config`."""
        return cls(momentum=momentum, epsilon=epsilon)


@register_server_optimizer
@dataclasses.dataclass(frozen=True, kw_only=True)
class Adagrad(_Rule):
    """Adagrad, without momentum."""

    name = "adagrad"
    epsilon: float = 1e-3

    @classmethod
    def from_config(cls, *, momentum: float, epsilon: float) -> Self:
        """See `ServerOptimizer.from_config`."""
        return cls(epsilon=epsilon)


@register_server_optimizer
@dataclasses.dataclass(frozen=True, kw_only=True)
class Yogi(Adam):
    """Yogi, with `momentum` as its beta_1 (Reddi et al. 2021, Adaptive Federated Optimization)."""

    name = "yogi"
