"""Check that vectorised clients do not influence each other's gradients by rounding.

Kernels round by the shapes of their arguments and, at the end of an array, by the position in it.
The check moves random clients to other slots of a call, and beside other clients, and compares
their losses and gradients bit by bit.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedmf import nest
from fedmf.training.examples import ArraySpec, Examples

# Each function turns normal random numbers into one kind of random examples. The kinds are numbers
# of either sign, positive numbers (for models with logarithms or roots), and large numbers.
_TRANSFORMS: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
    np.asarray,
    np.abs,
    functools.partial(np.multiply, 1e3),
)


class Slots(NamedTuple):
    """Slots of a vectorised call, each of which trains one client.

    Attributes:
      number: number of slots.
      weights: weights of the model, around which the weights of slots are drawn.
      spec: `ArraySpec` structure of the examples.
      share_weights: whether all slots have the same weights, as clients of one step.
    """

    number: int
    weights: Sequence[np.ndarray]
    spec: Any
    share_weights: bool


def check_independent(
    gradients_of_slots: Callable[..., Any], slots: Slots, batch_sizes: Iterable[int]
) -> None:
    """Checks that a client's gradients do not depend on its slot or on other clients.

    Losses and gradients are compared bit by bit, on random clients with weights of their own. All
    other operations of a step compute each entry by itself.

    Args:
      gradients_of_slots: function of stacked weights, inputs and labels, one entry for each slot,
        that returns losses and gradients of all slots, in any structure of arrays or tensors.
      slots: the slots of a call.
      batch_sizes: batch sizes to check.

    Raises:
      ValueError: they depend on them, or are not finite on any of the random examples.
    """
    random_generator = np.random.default_rng(2)
    for size in batch_sizes:
        is_checked = False
        for transform in _TRANSFORMS:
            random_arguments = _random_arguments(random_generator, slots, size, transform)
            stacked_gradients = gradients_of_slots(*random_arguments)
            if all(np.isfinite(leaf).all() for leaf in nest.flatten(stacked_gradients)):
                _check_arguments(
                    gradients_of_slots, slots.number, random_arguments, stacked_gradients
                )
                is_checked = True
        if not is_checked:
            raise ValueError("losses or gradients are not finite on any random examples")


def _check_arguments(
    gradients_of_slots: Callable[..., Any], num_slots: int, arguments: Any, stacked: Any
) -> None:
    """Checks that a client's gradients stay bitwise the same if it moves to another slot, or if
    other clients fill the other slots.

    Raises:
      ValueError: they are not.
    """
    for shift in (1, num_slots // 2 + 1):
        rotate = functools.partial(np.roll, shift=-shift, axis=0)
        rotated_arguments = nest.map_leaves(rotate, arguments)
        expected_gradients = nest.map_leaves(rotate, stacked)
        _check_equal_bits(gradients_of_slots(*rotated_arguments), expected_gradients)
    # Slot 0 has the first client, and all other slots have copies of the second client.
    client_of_slot = np.minimum(np.arange(num_slots), 1)
    arguments_with_copies = nest.map_leaves(
        functools.partial(np.take, indices=client_of_slot, axis=0), arguments
    )
    _check_equal_bits(
        [leaf[:1] for leaf in nest.flatten(gradients_of_slots(*arguments_with_copies))],
        [leaf[:1] for leaf in nest.flatten(stacked)],
    )


def _random_arguments(
    rng: np.random.Generator,
    slots: Slots,
    size: int,
    transform: Callable[[np.ndarray], np.ndarray],
) -> tuple[list[np.ndarray], Any, Any]:
    """Returns random weights and batches for all slots; `transform` changes the floats."""
    random_weights = []
    for weight in slots.weights:
        weight_noise = 0.1 * rng.normal(size=(slots.number, *weight.shape))
        if slots.share_weights:
            weight_noise[:] = weight_noise[0]
        random_weights.append((weight + weight_noise).astype(weight.dtype))
    random_batches = [_random_batch(rng, slots.spec, size) for _ in range(slots.number)]

    def stack(*leaves: Any) -> np.ndarray:
        """Stacks the leaves of the slots' batches."""
        stacked_leaves = np.stack([np.asarray(leaf) for leaf in leaves])
        is_float = stacked_leaves.dtype.kind == "f"
        if not is_float:
            return stacked_leaves
        return transform(stacked_leaves).astype(stacked_leaves.dtype)

    x, y = nest.map_leaves(stack, *random_batches)
    return random_weights, x, y


def _random_batch(rng: np.random.Generator, spec: tuple[Any, Any], size: int) -> Examples:
    """Returns a batch of random examples of a spec.

    Raises:
      TypeError: the spec has texts.
    """

    def random_leaf(integer: int, array_spec: ArraySpec) -> np.ndarray:
        """Returns an array of random normal numbers, or of copies of `integer` if the spec's dtype
        is not a float.
        """
        dtype = np.dtype(array_spec.dtype)
        random_values = rng.normal(size=(size, *array_spec.shape))
        if not np.issubdtype(dtype, np.floating):
            random_values = np.full_like(random_values, integer)
        return random_values.astype(dtype)

    x_spec, y_spec = spec
    # Integer inputs are 1, because a model may mask 0 as padding. Integer labels are 0, because 0
    # is a valid label in every task.
    random_inputs = nest.map_leaves(functools.partial(random_leaf, 1), x_spec)
    random_labels = nest.map_leaves(functools.partial(random_leaf, 0), y_spec)
    return random_inputs, random_labels


def positive_batch(rng: np.random.Generator, spec: tuple[Any, Any], size: int) -> Examples:
    """Returns a random batch without negative numbers, for which models with logarithms or roots
    have finite losses. On others, kernels of the same model may differ in NaN.
    """
    return nest.map_leaves(np.abs, _random_batch(rng, spec, size))


def _check_equal_bits(stacked: Any, expected: Any) -> None:
    """Raises ValueError unless two structures of arrays are bitwise identical."""
    gradient_pairs = zip(nest.flatten(stacked), nest.flatten(expected), strict=True)
    for actual, leaf in gradient_pairs:
        if np.asarray(actual).tobytes() != np.asarray(leaf).tobytes():
            raise ValueError(
                "a client's update is rounded by its place in the call, and so by other clients"
            )
