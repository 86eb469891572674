"""Examples of a client or a split: a pair (x, y) of structures of numpy arrays, whose first axis
counts the examples.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# Inputs and labels; each an array, or a dict, tuple or list of arrays.
Examples = tuple[Any, Any]
# What a client trains on in a round: its examples in the order of each epoch. No epoch: they are
# not finite, and its update is zeroed.
Epochs = Sequence[Examples]


class NotFinite(ValueError):
    """Examples hold NaN or infinite values."""


def count(examples: Examples) -> int:
    """The number of examples.

    >>> count(({"pixels": np.zeros((3, 28, 28))}, np.zeros(3, np.int32)))
    3
    """
    return len(tf.nest.flatten(examples)[0])


def take(examples: Examples, index: Any) -> Examples:
    """The examples at `index`, an array of positions or a slice."""
    taken: Examples = tf.nest.pack_sequence_as(
        examples, [array[index] for array in tf.nest.flatten(examples)]
    )
    return taken


def concatenated(parts: Sequence[Examples]) -> Examples:
    """All examples of the parts, in their order; at least one part."""
    joined: Examples = tf.nest.map_structure(lambda *arrays: np.concatenate(arrays), *parts)
    return joined


def spec(examples: Examples) -> Any:
    """The examples as a structure of tf.TensorSpec, (None, ...)."""
    return tf.nest.map_structure(
        lambda array: tf.TensorSpec([None, *array.shape[1:]], array.dtype), examples
    )


def fits(examples: Examples, expected: Any) -> bool:
    """Whether `spec` of the examples is the expected one; much faster."""
    try:
        tf.nest.assert_same_structure(examples, expected)
    except (TypeError, ValueError):
        return False
    pairs = zip(tf.nest.flatten(examples), tf.nest.flatten(expected), strict=True)
    return all(
        array.shape[1:] == tuple(spec.shape[1:]) and array.dtype == spec.dtype
        for array, spec in pairs
    )


def digest(*structures: Any) -> str:
    """16 hexadecimal digits of SHA-256 over the arrays' contents, dtypes and shapes."""
    sha = hashlib.sha256()
    for structure in structures:
        arrays = tf.nest.flatten(structure)
        described = tf.nest.pack_sequence_as(
            structure, [f"{array.dtype} {array.shape}" for array in arrays]
        )
        sha.update(repr(described).encode())
        for array in arrays:
            sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()[:16]


def _of_texts(array: np.ndarray) -> np.ndarray:
    """Texts as pandas and tf.data give them, in numpy's own dtype for texts;
    any other array as it is.
    """
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
      ValueError: arrays of different lengths, or a scalar.
      NotFinite: NaN or an infinite value in an array.
    """
    if not isinstance(examples, tuple) or len(examples) != 2:
        raise TypeError(
            f"the examples of {origin} are a {type(examples).__name__}: pass "
            "a pair (x, y) of arrays"
        )
    try:
        leaves = [_of_texts(np.asarray(leaf)) for leaf in tf.nest.flatten(examples)]
        dtypes = [tf.as_dtype(array.dtype) for array in leaves]
        if any(array.dtype == object for array in leaves):
            raise TypeError
    except (TypeError, ValueError):
        raise TypeError(
            f"the examples of {origin} are not all arrays of numbers or texts of one shape: "
            "convert them with np.asarray; pad those of different lengths to one length first "
            "(tf.RaggedTensor.to_tensor, tf.keras.utils.pad_sequences)"
        ) from None
    lengths = {array.shape[0] if array.ndim else None for array in leaves}
    if len(lengths) != 1 or None in lengths:
        shapes = " and ".join(dict.fromkeys(str(array.shape) for array in leaves))
        raise ValueError(
            f"the examples of {origin} have the shapes {shapes}: the first axis must count them in "
            "every array, and lists are structures: make arrays of them"
        )
    for array, dtype in zip(leaves, dtypes, strict=True):
        # Not numpy's kinds of dtypes, which bfloat16 and float8 are none of.
        if (dtype.is_floating or dtype.is_complex) and not np.isfinite(array).all():
            first = int(np.argwhere(~np.isfinite(array))[0][0])
            raise NotFinite(
                f"the examples of {origin} hold NaN or infinite values, first in example "
                f"{owner(first)}: clean them, or leave them out"
            )
    arrays: Examples = tf.nest.pack_sequence_as(examples, leaves)
    return arrays
