"""Checks of the examples that a task reads for a client or a split."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedmf import nest
from fedmf.training.examples import Examples, NotFinite, Weighted, split_weights


def _as_numpy_texts(array: np.ndarray) -> np.ndarray:
    """Converts texts in an array of objects, as pandas or tf.data return them, to numpy's dtype for
    texts.

    Any other array is returned unchanged.
    """
    for text_type in (str, bytes):
        if array.dtype == object and all(isinstance(text, text_type) for text in array.flat):
            text_array = array.astype(text_type)
            # numpy's dtypes for texts drop zero characters at the end of a text. If this would
            # change any text, the array keeps its dtype.
            return text_array if (text_array == array).all() else array
    return array


def check_examples(
    examples: Any, origin: str, describe_example: Callable[[int], str] = str
) -> Examples:
    """Checks examples, and returns them as arrays.

    Args:
      examples: a pair of structures of array-likes.
      origin: the client or split that they are from, for errors.
      describe_example: index of an example -> its description in an error.

    Raises:
      TypeError: they are no pair, an entry is neither number nor text, or the weights are not one
        real number for each example.
      ValueError: the arrays differ in length, or one is a scalar.
      NotFinite: an array holds NaN or an infinite value, or a weight is negative.
    """
    if not isinstance(examples, tuple) or len(examples) != 2:
        raise TypeError(
            f"the examples of {origin} are a {type(examples).__name__}: pass "
            "a pair (x, y) of arrays"
        )
    x, y = examples
    labels, weights = split_weights(y)
    for name, structure in (("x", x), ("y", labels)):
        if not nest.flatten(structure):
            raise ValueError(
                f"{name} of the examples of {origin} holds no array: pass at least one"
            )
    if weights is not None:
        weights = check_weights(weights, origin, describe_example)
        examples = (x, Weighted(labels, weights))
    leaf_arrays = _leaf_arrays(examples, origin)
    _check_lengths(leaf_arrays, weights, origin)
    _check_finite(leaf_arrays, origin, describe_example)
    arrays: Examples = nest.unflatten(examples, leaf_arrays)
    return arrays


def _leaf_arrays(examples: Examples, origin: str) -> list[np.ndarray]:
    """Converts all arrays of examples to numpy arrays of numbers or texts.

    Raises:
      TypeError: one cannot be converted, or is a masked array.
    """
    if any(map(np.ma.isMaskedArray, nest.flatten(examples))):
        raise TypeError(
            f"the examples of {origin} hold a masked array: fill what is masked, or leave these "
            "examples out"
        )
    try:
        leaf_arrays = [_as_numpy_texts(np.asarray(leaf)) for leaf in nest.flatten(examples)]
        if not all(_is_supported(array.dtype) for array in leaf_arrays):
            raise TypeError
    except (TypeError, ValueError):
        raise TypeError(
            f"the examples of {origin} are not all arrays of numbers or texts of one shape: "
            "convert them with np.asarray; pad those of different lengths to one length first "
            "(tf.RaggedTensor.to_tensor, tf.keras.utils.pad_sequences)"
        ) from None
    return leaf_arrays


def _check_lengths(leaves: Sequence[np.ndarray], weights: np.ndarray | None, origin: str) -> None:
    """Raises a ValueError unless the first axes of all arrays have the same length."""
    leaf_lengths = {array.shape[0] if array.ndim else None for array in leaves}
    if len(leaf_lengths) != 1 or None in leaf_lengths:
        shapes_text = " and ".join(dict.fromkeys(str(array.shape) for array in leaves))
        shapes_text += "" if weights is None else f" (of sample_weight {weights.shape})"
        raise ValueError(
            f"the examples of {origin} have the shapes {shapes_text}: the first axis must count "
            "them in every array, and lists are structures: make arrays of them"
        )


def _check_finite(
    leaves: Sequence[np.ndarray], origin: str, describe_example: Callable[[int], str]
) -> None:
    """Raises NotFinite if an array holds NaN or an infinite value."""
    for array in leaves:
        has_fractions = is_floating(array.dtype) or array.dtype.kind == "c"
        if has_fractions and not np.isfinite(array).all():
            first_index = int(np.argwhere(~np.isfinite(array))[0][0])
            raise NotFinite(
                f"the examples of {origin} hold NaN or infinite values, first in example "
                f"{describe_example(first_index)}: clean them, or leave them out"
            )


def check_weights(weights: Any, origin: str, describe_example: Callable[[int], str]) -> np.ndarray:
    """Checks sample weights, and returns them as a float32 array of shape (examples,).

    Raises:
      TypeError: they are not an array of one real number for each example.
      NotFinite: a weight is negative, NaN or infinite.
    """
    weight_array = np.asarray(weights)
    if weight_array.ndim != 1 or not is_real(weight_array):
        raise TypeError(
            f"sample_weight, the sample weights of {origin}, are {weight_array.dtype} "
            f"{weight_array.shape}: give one real number for each example, an array (examples,)"
        )
    with np.errstate(over="ignore"):
        sample_weights = weight_array.astype(np.float32)
    is_invalid = ~((sample_weights >= 0) & np.isfinite(sample_weights))
    if is_invalid.any():
        first_index = int(is_invalid.argmax())
        raise NotFinite(
            f"sample_weight, the sample weights of {origin}, hold {sample_weights[first_index]}, "
            f"first in example {describe_example(first_index)}: give finite float32 numbers of at "
            "least 0"
        )
    return sample_weights


def _is_supported(dtype: np.dtype) -> bool:
    """Returns whether examples may have this dtype. Allowed are texts, and numbers that frameworks
    support.
    """
    if dtype.kind in "fc":
        widest_dtype = np.dtype(complex if dtype.kind == "c" else float)
        return dtype.itemsize <= widest_dtype.itemsize
    return dtype.kind in "biuSU" or dtype.name.startswith(_EXTENSIONS)


# Dtypes of the package ml_dtypes, which numpy does not count among its own numbers.
_EXTENSIONS = ("bfloat16", "float8", "int4", "uint4")


def is_floating(dtype: np.dtype) -> bool:
    """Returns whether a dtype is a floating-point type of numpy or of ml_dtypes."""
    return dtype.kind == "f" or dtype.name.startswith(("bfloat16", "float8"))


def is_real(array: np.ndarray) -> bool:
    """Returns whether an array holds real numbers."""
    return array.dtype.kind not in "cSU" and _is_supported(array.dtype)
