"""Examples of a client or a split: a pair (x, y) of structures of numpy arrays, whose first axis counts the examples."""

import hashlib
from collections.abc import Sequence
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
    taken: Examples = tf.nest.map_structure(lambda array: array[index], examples)
    return taken


def concatenated(parts: Sequence[Examples]) -> Examples:
    """All examples of the parts, in their order; at least one part."""
    joined: Examples = tf.nest.map_structure(lambda *arrays: np.concatenate(arrays), *parts)
    return joined


def spec(examples: Examples) -> Any:
    """The examples as a structure of tf.TensorSpec, (None, ...)."""
    return tf.nest.map_structure(lambda array: tf.TensorSpec([None, *array.shape[1:]], array.dtype), examples)


def in_batches(examples: Examples, size: int) -> tuple[Examples, np.ndarray]:
    """Batches of one shape, (batches, size, ...), and what is real in them.

    Returns:
      The examples, filled with zeros behind the last one; and float32 (batches, size), 1 for an example and 0 for filling.
    """
    number = count(examples)
    batches = -(-number // size)
    empty = batches * size - number

    def batched(array: np.ndarray) -> np.ndarray:
        filled = np.pad(array, ((0, empty), *((0, 0),) * (array.ndim - 1)))
        return filled.reshape(batches, size, *array.shape[1:])

    real = (np.arange(batches * size) < number).astype(np.float32).reshape(batches, size)
    return tf.nest.map_structure(batched, examples), real


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


def checked(examples: Any, origin: str) -> Examples:
    """`examples` as arrays.

    Raises:
      TypeError: not a pair, or an entry that TensorFlow has no dtype for.
      ValueError: arrays of different lengths, a scalar, or a feature that is not finite.
    """
    if not isinstance(examples, tuple) or len(examples) != 2:
        raise TypeError(f"the examples of {origin} are a {type(examples).__name__}: pass a pair (x, y) of arrays")
    try:
        arrays: Examples = tf.nest.map_structure(np.asarray, examples)
        leaves = tf.nest.flatten(arrays)
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
        shapes = " and ".join(str(array.shape) for array in leaves)
        raise ValueError(
            f"the examples of {origin} have the shapes {shapes}: the first axis must count them in every array"
        )
    for array in leaves:
        if np.issubdtype(array.dtype, np.inexact) and not np.isfinite(array).all():
            raise ValueError(f"the examples of {origin} hold NaN or infinite values: clean them, or leave them out")
    return arrays
