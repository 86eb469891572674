"""Examples of a client or a split, as a pair (x, y) of structures of numpy arrays. The first axis
of each array counts the examples. If examples have weights in the loss, y is `Weighted`.
"""

import contextlib
import dataclasses
import hashlib
import numbers
import reprlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedmf import nest

# Inputs and labels of examples; each is an array, or a dict, tuple or list of arrays.
Examples = tuple[Any, Any]
# A client's examples in the order of each epoch. An empty sequence means that the examples are not
# finite, and that the client's update is zeroed.
Epochs = Sequence[Examples]


@dataclasses.dataclass(frozen=True)
class ClientData:
    """The training data of a client in a round.

    Attributes:
      epochs: the client's examples in the order of each epoch.
      seed: seed of the client in this round, whole numbers as `numpy.random.default_rng` takes
        them, for training that draws random numbers.
    """

    epochs: Epochs
    seed: tuple[int, ...] = ()


class NotFinite(ValueError):
    """The error for examples that no client may train on. They hold NaN or infinite values, an
    invalid weight, or a class without a weight.
    """


@contextlib.contextmanager
def errors_of(source: str, *allowed: type[Exception]) -> Iterator[None]:
    """Converts errors of user code inside the block to a ValueError that names the source of the
    error.

    Errors of the types TypeError, ValueError and `allowed` pass unchanged.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (TypeError, ValueError, *allowed)):
            raise
        raise ValueError(f"{source} raises {type(error).__name__}: {error}") from error


class _LabelsAndWeights(NamedTuple):
    """The two fields of `Weighted`."""

    labels: Any
    weights: Any


class Weighted(_LabelsAndWeights):
    """Labels with the weight of each example in the loss.

    Numpy makes no array of it, so that arithmetic and comparisons with arrays raise a TypeError:
    take `y.labels` and `y.weights`.

    Attributes:
      labels: a structure of arrays.
      weights: float32 (examples,), finite and at least 0.
    """

    __slots__ = ()
    # This attribute makes operators between a numpy array and this object raise a TypeError.
    __array_ufunc__ = None

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise TypeError(_NO_ARRAY)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple):
            raise TypeError(_NO_ARRAY)
        return tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__


_NO_ARRAY = (
    "these labels are fedmf.training.Weighted, a pair: take `y.labels`, and `y.weights` for the "
    "weight of each example in the loss"
)


def split_weights(y: Any) -> tuple[Any, Any]:
    """Returns labels and weights of `Weighted` labels, or plain labels and None."""
    return y if isinstance(y, Weighted) else (y, None)


def with_unit_weights(examples: Examples) -> Examples:
    """Returns the examples with a weight of 1 for each."""
    x, y = examples
    labels, _ = split_weights(y)
    return x, Weighted(labels, np.ones(count(examples), np.float32))


def count(examples: Examples) -> int:
    """Returns the number of examples.

    >>> count(({"pixels": np.zeros((3, 28, 28))}, np.zeros(3, np.int32)))
    3
    """
    return len(nest.flatten(examples)[0])


def has_one_example(epochs: Epochs) -> bool:
    """Returns whether a client has one epoch with one example."""
    return len(epochs) == 1 and count(epochs[0]) == 1


def take(examples: Examples, index: Any) -> Examples:
    """Returns the examples at `index`, which is an array of positions or a slice."""
    selection: Examples = nest.map_leaves(lambda array: array[index], examples)
    return selection


def concatenate(chunks: Sequence[Examples]) -> Examples:
    """Concatenates chunks of examples, at least one, in their order."""
    joined: Examples = nest.map_leaves(lambda *arrays: np.concatenate(arrays), *chunks)
    return joined


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """The shape of one example in an array, and the array's dtype.

    Attributes:
      shape: shape of one example.
      dtype: name of the dtype; "string" for texts of any length.
    """

    shape: tuple[int, ...]
    dtype: str

    @staticmethod
    def of(array: np.ndarray) -> "ArraySpec":
        """Returns the spec of an array whose first axis counts the examples."""
        return ArraySpec(array.shape[1:], _dtype_name(array.dtype))


def _dtype_name(dtype: np.dtype) -> str:
    """Returns the name that an `ArraySpec` has for a dtype."""
    return "string" if dtype.kind in "SU" else dtype.name


def spec_of(examples: Examples) -> Any:
    """Returns the examples' structure, with an `ArraySpec` in place of each array."""
    return nest.map_leaves(ArraySpec.of, examples)


def has_spec(examples: Examples, expected: Any) -> bool:
    """Returns whether the examples have this spec, as `spec_of` would return it."""
    if not nest.has_same_structure(examples, expected):
        return False
    leaf_pairs = zip(nest.flatten(examples), nest.flatten(expected), strict=True)
    return all(
        array.shape[1:] == spec.shape and _dtype_name(array.dtype) == spec.dtype
        for array, spec in leaf_pairs
    )


def digest(*structures: Any) -> str:
    """Returns the first 16 hexadecimal digits of a SHA-256 digest over contents, dtypes and shapes
    of arrays.
    """
    sha_256 = hashlib.sha256()
    for structure in structures:
        leaf_descriptions = nest.map_leaves(lambda array: f"{array.dtype} {array.shape}", structure)
        sha_256.update(repr(leaf_descriptions).encode())
        for array in nest.flatten(structure):
            sha_256.update(_content(array))
    return sha_256.hexdigest()[:16]


def _content(array: np.ndarray) -> bytes:
    """Returns the values of an array as bytes, for a digest.

    Raises:
      TypeError: it holds objects that are no texts, bytes or numbers, whose memory addresses would
        be another content in each process.
    """
    if not array.dtype.hasobject:
        return np.ascontiguousarray(array).tobytes()
    array_values = array.ravel().tolist()
    values_of_unknown_kind = [
        value for value in array_values if not isinstance(value, str | bytes | numbers.Number)
    ]
    if values_of_unknown_kind:
        raise TypeError(
            f"an array holds {reprlib.repr(values_of_unknown_kind[0])}, of which there is no "
            "digest: make an array of numbers or texts"
        )
    value_texts = [f"{type(value).__name__} {value!r}" for value in array_values]
    return repr(value_texts).encode()
