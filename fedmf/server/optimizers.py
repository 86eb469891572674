"""Server optimizers, which move the model along a round's released mean update.

They see releases alone, so that the guarantee is the same for every one.
`register_server_optimizer` gives a class of yours a name in configurations.
"""

import abc
import dataclasses
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from fedmf import checks, nest
from fedmf.server.update_rules import Optimizer, OptimizerState


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerOptimizer(abc.ABC):
    """A server optimizer, which is a pure rule that moves the model along the released mean update
    of a round.

    A subclass is a frozen dataclass of numbers and texts: its name and fields are recorded in the
    run's plan.json, and a resumed run needs an equal one.

    Attributes:
      name: name in configurations, such as "sgd".
    """

    name: ClassVar[str]

    @classmethod
    def from_config(cls, *, momentum: float, epsilon: float) -> Self:
        """Returns the optimizer with the settings of a configuration. The default ignores them.

        Args:
          momentum: the configuration's `server_momentum`.
          epsilon: the configuration's `server_epsilon`.
        """
        return cls()

    @abc.abstractmethod
    def init(self, weights: Sequence[np.ndarray]) -> Any:
        """Returns the state before the first step, a nested structure of numbers and arrays.

        It becomes a nest of arrays, whose dtypes and shapes every step must keep.

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
        """Returns the state and the weights after one step, without changing any argument.

        Args:
          state: state before the step.
          weights: weights before the step.
          update: the mean update that was released, in the weights' shapes and dtypes. Its sign is
            TFF's, old weights minus new ones, and the opposite of a FunctionLearner's update:
            weights minus `learning_rate` times update is a step of plain SGD.
          learning_rate: learning rate of this round, by the run's schedule.
        """

    def record(self) -> dict[str, Any]:
        """Returns the optimizer's name and fields, as plan.json records them.

        Raises:
          TypeError: a field is no number, text, bool or None.
        """
        value_by_field = dataclasses.asdict(self)
        for field, value in value_by_field.items():
            if not isinstance(value, str | int | float | None):
                raise TypeError(
                    f"server_optimizer={self.name} has {field}={reprlib.repr(value)}: give its "
                    "fields numbers, texts, bools or None, which plan.json records"
                )
        return {"name": self.name, **value_by_field}


Optimizers = TypeVar("Optimizers", bound=type[ServerOptimizer])
_CLASS_BY_NAME: dict[str, type[ServerOptimizer]] = {}


def register_server_optimizer(optimizer: Optimizers) -> Optimizers:
    """Registers a class of server optimizers under its name. It can be used as a decorator.

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
    optimizer_name = getattr(optimizer, "name", None)
    if not isinstance(optimizer_name, str) or not optimizer_name.isidentifier():
        raise ValueError(
            f"name={optimizer_name!r} of {optimizer.__name__} is no word: use one such as 'sgd'"
        )
    if optimizer_name in _CLASS_BY_NAME:
        raise ValueError(
            f"name={optimizer_name!r} is that of {_CLASS_BY_NAME[optimizer_name]}: use another name"
        )
    _CLASS_BY_NAME[optimizer_name] = optimizer
    return optimizer


def server_optimizer_names() -> tuple[str, ...]:
    """Returns the names of all registered server optimizers, first those of fedmf."""
    return tuple(_CLASS_BY_NAME)


def server_optimizer_named(name: str, *, momentum: float, epsilon: float) -> ServerOptimizer:
    """Returns the server optimizer that a configuration names.

    Args:
      name: one of `server_optimizer_names`.
      momentum, epsilon: settings of the configuration.

    Raises:
      ValueError: no such name.
    """
    checks.one_of("server_optimizer", name, server_optimizer_names())
    return _CLASS_BY_NAME[name].from_config(momentum=momentum, epsilon=epsilon)


def checked_initial_state(optimizer: ServerOptimizer, weights: Sequence[np.ndarray]) -> Any:
    """Returns an optimizer's state before the first step, with copies of its arrays.

    Args:
      optimizer: optimizer whose state it is.
      weights: weights of the model; the optimizer gets copies.

    Raises:
      TypeError: an entry of the state is no number or array of numbers, which the journal stores.
    """
    state = optimizer.init([np.array(weight) for weight in weights])
    return nest.unflatten(state, list(_state_arrays(optimizer, state).values()))


def checked_step(
    optimizer: ServerOptimizer,
    state: Any,
    weights: Sequence[np.ndarray],
    update: Sequence[np.ndarray],
    learning_rate: float,
) -> tuple[Any, list[np.ndarray]]:
    """Takes one step, checks its result, and returns copies of the new state and weights. The
    weights keep their dtypes, and the optimizer gets copies of all arrays.

    Args:
      optimizer: optimizer that takes the step.
      state: result of `checked_initial_state` or of the step before.
      weights, update, learning_rate: as in `ServerOptimizer.step`.

    Raises:
      TypeError, ValueError: the weights are not real numbers in the shapes of before, or an entry
        of the state has another dtype or shape than before, with which no run could be resumed.
    """
    copies_before = _state_arrays(optimizer, state)
    kinds_before = {entry: _kind_of(array) for entry, array in copies_before.items()}
    state_copy = nest.unflatten(state, list(copies_before.values()))
    weight_copies = [np.array(weight) for weight in weights]
    update_copies = [np.array(part) for part in update]
    step_result = optimizer.step(state_copy, weight_copies, update_copies, learning_rate)
    if not isinstance(step_result, tuple) or len(step_result) != 2:
        raise TypeError(
            f"step of server_optimizer={optimizer.name} returned {reprlib.repr(step_result)}: "
            "return "
            "(state, weights)"
        )
    stepped_arrays = _state_arrays(optimizer, step_result[0])
    stepped_kinds = {entry: _kind_of(array) for entry, array in stepped_arrays.items()}
    for entry in {**kinds_before, **stepped_kinds}:
        stepped_kind = stepped_kinds.get(entry, "nothing")
        kind_before = kinds_before.get(entry, "nothing")
        if stepped_kind != kind_before:
            raise ValueError(
                f"server_optimizer={optimizer.name} changed its {entry} from {kind_before} to "
                f"{stepped_kind} in a step, so that no resume could read it: let init return it in "
                "the dtype and shape that every step keeps"
            )
    new_state = nest.unflatten(state, [stepped_arrays[entry] for entry in kinds_before])
    return new_state, _stepped_weights(optimizer, step_result[1], weights)


def check_server_optimizer(optimizer: ServerOptimizer, weights: Sequence[np.ndarray]) -> None:
    """Takes two trial steps before round 0, and raises for an optimizer whose state could not be
    resumed.

    Args:
      optimizer: optimizer of a run.
      weights: weights that the run starts from.

    Raises:
      TypeError, ValueError: as `checked_step` does.
    """
    trial_state = checked_initial_state(optimizer, weights)
    for _ in range(2):
        trial_update = [np.ones_like(weight) for weight in weights]
        trial_state, weights = checked_step(optimizer, trial_state, weights, trial_update, 1e-3)


def _stepped_weights(
    optimizer: ServerOptimizer, stepped: Any, weights: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Checks the weights after a step, and returns copies in the dtypes of the weights before it.

    Raises:
      TypeError, ValueError: they are not arrays of real numbers in the shapes of before.
    """
    hint = "return an array for each weight, of floats"
    if not isinstance(stepped, list | tuple):
        raise TypeError(
            f"server_optimizer={optimizer.name} returned weights that are a "
            f"{type(stepped).__name__}: {hint}"
        )
    stepped_arrays = [np.array(array) for array in stepped]
    stepped_shapes = [array.shape for array in stepped_arrays]
    expected_shapes = [np.shape(weight) for weight in weights]
    if stepped_shapes != expected_shapes:
        raise ValueError(
            f"server_optimizer={optimizer.name} returned weights of shapes {stepped_shapes}, and "
            f"the model has {expected_shapes}: {hint}"
        )
    is_masked = any(map(np.ma.isMaskedArray, stepped))
    if is_masked or any(array.dtype.kind not in "fiu" for array in stepped_arrays):
        dtype_names = (
            "masked arrays" if is_masked else [array.dtype.name for array in stepped_arrays]
        )
        raise TypeError(
            f"server_optimizer={optimizer.name} returned weights that are {dtype_names}: {hint}"
        )
    return [
        array.astype(weight.dtype, copy=False)
        for array, weight in zip(stepped_arrays, weights, strict=True)
    ]


def _state_arrays(optimizer: ServerOptimizer, state: Any) -> dict[str, np.ndarray]:
    """Returns copies of the entries of a state by names such as "state['steps']", in the order of
    `nest.flatten`.

    Raises:
      TypeError: an entry is no number and no array of numbers, or keys cannot be sorted.
    """
    try:
        leaf_by_entry = dict(_entries("state", state))
    except TypeError as error:
        raise TypeError(
            f"server_optimizer={optimizer.name} has a state whose keys cannot be sorted ({error}): "
            "use texts as keys"
        ) from error
    array_by_entry = {}
    for entry, leaf in leaf_by_entry.items():
        leaf_copy = np.array(leaf)
        if leaf_copy.dtype.kind not in "biufc" or np.ma.isMaskedArray(leaf):
            raise TypeError(
                f"server_optimizer={optimizer.name} has {entry}={reprlib.repr(leaf)}, which is a "
                f"{type(leaf).__name__}: keep numbers and arrays of numbers in its state, which "
                "the journal stores for a resume, and what never changes in fields"
            )
        array_by_entry[entry] = leaf_copy
    return array_by_entry


def _entries(name: str, structure: Any) -> Iterator[tuple[str, Any]]:
    """Yields name and value of each leaf of a structure, in the order of `nest.flatten`."""
    if isinstance(structure, Mapping):
        for key in sorted(structure):
            yield from _entries(f"{name}[{key!r}]", structure[key])
    elif nest.is_nested(structure):
        field_names = getattr(structure, "_fields", None)
        for i, child in enumerate(structure):
            child_name = f"{name}[{i}]" if field_names is None else f"{name}.{field_names[i]}"
            yield from _entries(child_name, child)
    else:
        yield name, structure


def _kind_of(array: np.ndarray) -> str:
    """Returns the dtype and shape of an array as text."""
    return f"{array.dtype} {array.shape}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Rule(ServerOptimizer):
    """Base class of server optimizers that use an update rule of `fedmf.server.update_rules`."""

    def init(self, weights: Sequence[np.ndarray]) -> OptimizerState:
        """Returns the state of the update rule before the first step."""
        return self._rule().initial(weights)

    def step(
        self,
        state: OptimizerState,
        weights: Sequence[np.ndarray],
        update: Sequence[np.ndarray],
        learning_rate: float,
    ) -> tuple[OptimizerState, list[np.ndarray]]:
        """Returns the state and the weights after one step of the update rule."""
        return self._rule().next(state, weights, update, learning_rate)

    def _rule(self) -> Optimizer:
        """Returns the update rule with the settings of this optimizer."""
        return Optimizer(rule=self.name, **dataclasses.asdict(self))


@register_server_optimizer
@dataclasses.dataclass(frozen=True, kw_only=True)
class Sgd(_Rule):
    """SGD with momentum. It is FedSGDM of the banded paper, App. I."""

    name = "sgd"
    momentum: float = 0.0

    @classmethod
    def from_config(cls, *, momentum: float, epsilon: float) -> Self:
        """Returns the optimizer with the configuration's momentum."""
        return cls(momentum=momentum)


@register_server_optimizer
@dataclasses.dataclass(frozen=True, kw_only=True)
class Adam(_Rule):
    """The Adam optimizer, with `momentum` as its beta_1."""

    name = "adam"
    momentum: float = 0.9
    epsilon: float = 1e-3

    @classmethod
    def from_config(cls, *, momentum: float, epsilon: float) -> Self:
        """Returns the optimizer with the configuration's momentum and epsilon."""
        return cls(momentum=momentum, epsilon=epsilon)


@register_server_optimizer
@dataclasses.dataclass(frozen=True, kw_only=True)
class Adagrad(_Rule):
    """The Adagrad optimizer, without momentum."""

    name = "adagrad"
    epsilon: float = 1e-3

    @classmethod
    def from_config(cls, *, momentum: float, epsilon: float) -> Self:
        """Returns the optimizer with the configuration's epsilon."""
        return cls(epsilon=epsilon)


@register_server_optimizer
@dataclasses.dataclass(frozen=True, kw_only=True)
class Yogi(Adam):
    """The Yogi optimizer, with `momentum` as its beta_1. It is that of Reddi et al. 2021, Adaptive
    Federated Optimization.
    """

    name = "yogi"
