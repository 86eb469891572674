"""Examples of a client or a split: a pair (x, y) of structures of numpy arrays, whose first axis counts the examples."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# Inputs and labels; each an array, or a dict, tuple or list of arrays.
Examples = tuple[Any, Any]
# What a client trains on in a round: its examples in the order of each epoch.
Epochs = Sequence[Examples]


def count(examples: Examples) -> int:
    """The number of examples.

    >>> count(({"pixels": np.zeros((3, 28, 28))}, np.zeros(3, np.int32)))
    3
    """
    return len(tf.nest.flatten(examples)[0])


def take(examples: Examples, index: Any) -> Examples:
    """The examples at `index`, an array of positions or a slice."""
    taken: Examples = tf.nest.pack_sequence_as(examples, [array[index] for array in tf.nest.flatten(examples)])
    return taken


def concatenated(parts: Sequence[Examples]) -> Examples:
    """All examples of the parts, in their order; at least one part."""
    joined: Examples = tf.nest.map_structure(lambda *arrays: np.concatenate(arrays), *parts)
    return joined


def stacked(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays behind a new first axis, filled with zeros to the length of the longest, and to one at least.

    >>> stacked([np.ones(1), np.ones(3)])
    array([[1., 0., 0.],
           [1., 1., 1.]])
    """
    # The dtypes differ in texts, by the longest of each client.
    shape, dtype = (len(arrays), max(1, *map(len, arrays)), *arrays[0].shape[1:]), np.result_type(*arrays)
    filled = np.zeros(shape, dtype)
    for row, array in zip(filled, arrays, strict=True):
        row[: len(array)] = array
    return filled


def spec(examples: Examples) -> Any:
    """The examples as a structure of tf.TensorSpec, (None, ...)."""
    return tf.nest.map_structure(lambda array: tf.TensorSpec([None, *array.shape[1:]], array.dtype), examples)


def fits(examples: Examples, expected: Any) -> bool:
    """Whether `spec` of the examples is the expected one; much faster."""
    try:
        tf.nest.assert_same_structure(examples, expected)
    except (TypeError, ValueError):
        return False
    pairs = zip(tf.nest.flatten(examples), tf.nest.flatten(expected), strict=True)
    return all(array.shape[1:] == tuple(spec.shape[1:]) and array.dtype == spec.dtype for array, spec in pairs)


def in_batches(epochs: Epochs, size: int) -> list[np.ndarray]:
    """A client's batches of one shape, epoch after epoch.

    Returns:
      The leaves of inputs and labels, (batches, size, ...), filled with zeros behind each epoch's last example; and float32 (batches,
      size), 1 for an example and 0 for filling.

    >>> x, y, real = in_batches([(np.arange(3), np.arange(3)), (np.arange(1), np.arange(1))], 2)
    >>> x.tolist(), real.tolist()
    ([[0, 1], [2, 0], [0, 0]], [[1.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    """
    counts = np.array([count(epoch) for epoch in epochs])
    batches = -(-counts // size)
    starts = (np.cumsum(batches) - batches) * size

    def batched(arrays: Sequence[np.ndarray]) -> np.ndarray:
        filled = np.zeros((batches.sum() * size, *arrays[0].shape[1:]), arrays[0].dtype)
        for start, array in zip(starts, arrays, strict=True):
            filled[start : start + len(array)] = array
        return filled.reshape(-1, size, *arrays[0].shape[1:])

    leaves = zip(*map(tf.nest.flatten, epochs), strict=True)
    return [*map(batched, leaves), batched([np.ones(number, np.float32) for number in counts])]


def digest(*structures: Any) -> str:
    """SHA-256 over the contents, dtypes and shapes of structures of arrays, 16 hexadecimal digits."""
    sha = hashlib.sha256()
    for structure in structures:
        arrays = tf.nest.flatten(structure)
        described = tf.nest.pack_sequence_as(structure, [f"{array.dtype.str} {array.shape}" for array in arrays])
        sha.update(repr(described).encode())
        for array in arrays:
            sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()[:16]


def _of_texts(array: np.ndarray) -> np.ndarray:
    """Texts as pandas and tf.data give them, in numpy's own dtype for texts; any other array as it is."""
    for kind in (str, bytes):
        if array.dtype == object and all(isinstance(text, kind) for text in array.flat):
            texts = array.astype(kind)
            return texts if (texts == array).all() else array  # numpy drops zero bytes at the end
    return array


def checked(examples: Any, origin: str, owner: Callable[[int], str] = str) -> Examples:
    """`examples` as arrays.

    Args:
      examples: a pair of structures of what np.asarray takes.
      origin: where they are from, for errors.
      owner: index of an example -> what an error calls it.

    Raises:
      TypeError: not a pair, or an entry that TensorFlow has no dtype for.
      ValueError: arrays of different lengths, a scalar, or a feature that is not finite.
    """
    if not isinstance(examples, tuple) or len(examples) != 2:
        raise TypeError(f"the examples of {origin} are a {type(examples).__name__}: pass a pair (x, y) of arrays")
    try:
        leaves = [_of_texts(np.asarray(leaf)) for leaf in tf.nest.flatten(examples)]
        for array in leaves:
            tf.as_dtype(array.dtype)
            if array.dtype == object:
                raise TypeError
    except (TypeError, ValueError):
        raise TypeError(
            f"the examples of {origin} are not all arrays of numbers or texts of one shape: convert them with np.asarray"
        ) from None
    lengths = {array.shape[0] if array.ndim else None for array in leaves}
    if len(lengths) != 1 or None in lengths:
        shapes = " and ".join(dict.fromkeys(str(array.shape) for array in leaves))
        raise ValueError(
            f"the examples of {origin} have the shapes {shapes}: the first axis must count them in every array, and lists "
            "are structures: make arrays of them"
        )
    for array in leaves:
        if np.issubdtype(array.dtype, np.inexact) and not np.isfinite(array).all():
            first = int(np.argwhere(~np.isfinite(array))[0][0])
            raise ValueError(
                f"the examples of {origin} hold NaN or infinite values, first in example {owner(first)}: clean them, or leave them out"
            )
    arrays: Examples = tf.nest.pack_sequence_as(examples, leaves)
    return arrays
