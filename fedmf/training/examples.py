"""Examples of a client or a split, as a pair (x, y) of structures of numpy arrays. The first axis
of each array counts the examples. If examples have weights in the loss, y is `Weighted`.
"""

import contextlib
import dataclasses
import hashlib
import numbers
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedmf import checks, nest

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
    __array_ufunc__ = None  # This makes operators of numpy's arrays raise a TypeError.

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
    sha = hashlib.sha256()
    for structure in structures:
        leaf_descriptions = nest.map_leaves(lambda array: f"{array.dtype} {array.shape}", structure)
        sha.update(repr(leaf_descriptions).encode())
        for array in nest.flatten(structure):
            sha.update(_content(array))
    return sha.hexdigest()[:16]


def _content(array: np.ndarray) -> bytes:
    """Returns the values of an array as bytes, for a digest.

    Raises:
      TypeError: it holds objects that are no texts, bytes or numbers, whose memory addresses would
        be another content in each process.
    """
    if not array.dtype.hasobject:
        return np.ascontiguousarray(array).tobytes()
    values = array.ravel().tolist()
    strange = [value for value in values if not isinstance(value, str | bytes | numbers.Number)]
    if strange:
        raise TypeError(
            f"an array holds {reprlib.repr(strange[0])}, of which there is no digest: make an "
            "array of numbers or texts"
        )
    texts = [f"{type(value).__name__} {value!r}" for value in values]
    return repr(texts).encode()


def _as_numpy_texts(array: np.ndarray) -> np.ndarray:
    """Converts texts in an array of objects, as pandas or tf.data return them, to numpy's dtype for
    texts.

    Any other array is returned unchanged.
    """
    for text_type in (str, bytes):
        if array.dtype == object and all(isinstance(text, text_type) for text in array.flat):
            texts = array.astype(text_type)
            # numpy's dtypes for texts drop zero characters at the end of a text. If any text would
            # change, the array stays as it is.
            return texts if (texts == array).all() else array
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
        weights = _check_weights(weights, origin, describe_example)
        examples = (x, Weighted(labels, weights))
    leaves = _leaf_arrays(examples, origin)
    _check_lengths(leaves, weights, origin)
    _check_finite(leaves, origin, describe_example)
    arrays: Examples = nest.unflatten(examples, leaves)
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
        leaves = [_as_numpy_texts(np.asarray(leaf)) for leaf in nest.flatten(examples)]
        if not all(_is_supported(array.dtype) for array in leaves):
            raise TypeError
    except (TypeError, ValueError):
        raise TypeError(
            f"the examples of {origin} are not all arrays of numbers or texts of one shape: "
            "convert them with np.asarray; pad those of different lengths to one length first "
            "(tf.RaggedTensor.to_tensor, tf.keras.utils.pad_sequences)"
        ) from None
    return leaves


def _check_lengths(leaves: Sequence[np.ndarray], weights: np.ndarray | None, origin: str) -> None:
    """Raises a ValueError unless the first axes of all arrays have the same length."""
    lengths = {array.shape[0] if array.ndim else None for array in leaves}
    if len(lengths) != 1 or None in lengths:
        shapes = " and ".join(dict.fromkeys(str(array.shape) for array in leaves))
        shapes += "" if weights is None else f" (of sample_weight {weights.shape})"
        raise ValueError(
            f"the examples of {origin} have the shapes {shapes}: the first axis must count them in "
            "every array, and lists are structures: make arrays of them"
        )


def _check_finite(
    leaves: Sequence[np.ndarray], origin: str, describe_example: Callable[[int], str]
) -> None:
    """Raises NotFinite if an array holds NaN or an infinite value."""
    for array in leaves:
        has_fractions = _is_floating(array.dtype) or array.dtype.kind == "c"
        if has_fractions and not np.isfinite(array).all():
            first_index = int(np.argwhere(~np.isfinite(array))[0][0])
            raise NotFinite(
                f"the examples of {origin} hold NaN or infinite values, first in example "
                f"{describe_example(first_index)}: clean them, or leave them out"
            )


def _check_weights(weights: Any, origin: str, describe_example: Callable[[int], str]) -> np.ndarray:
    """Checks sample weights, and returns them as a float32 array (examples,).

    Raises:
      TypeError: they are not an array of one real number for each example.
      NotFinite: a weight is negative, NaN or infinite.
    """
    array = np.asarray(weights)
    if array.ndim != 1 or not _is_real(array):
        raise TypeError(
            f"sample_weight, the sample weights of {origin}, are {array.dtype} {array.shape}: give "
            "one real number for each example, an array (examples,)"
        )
    with np.errstate(over="ignore"):
        sample_weights = array.astype(np.float32)
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


def _is_floating(dtype: np.dtype) -> bool:
    """Returns whether a dtype is a floating-point type of numpy or of ml_dtypes."""
    return dtype.kind == "f" or dtype.name.startswith(("bfloat16", "float8"))


def _is_real(array: np.ndarray) -> bool:
    """Returns whether an array holds real numbers."""
    return array.dtype.kind not in "cSU" and _is_supported(array.dtype)


def class_weight_table(class_weight: Mapping[int, float]) -> np.ndarray:
    """Returns the weights of classes 0, 1, 2 ... as a float32 array (classes,).

    Raises:
      TypeError, ValueError: the keys are not these classes, as Keras requires; or a weight is not
        finite and at least 0.

    >>> class_weight_table({1: 0.5, 0: 2})
    array([2. , 0.5], dtype=float32)
    """
    hint = "give each of the classes 0, 1, 2 ... a finite weight of at least 0"
    if not isinstance(class_weight, Mapping):
        raise TypeError(f"class_weight={class_weight!r} is no dict: {hint}")
    if not class_weight or set(class_weight) != set(range(len(class_weight))):
        raise ValueError(
            f"class_weight={class_weight!r} has other keys than 0, 1, 2 ...: {hint}, as in Keras"
        )
    largest_float32 = float(np.finfo(np.float32).max)
    weights = [
        checks.positive(
            f"class_weight[{c}]", class_weight[c], hint, below=largest_float32, allow_zero=True
        )
        for c in range(len(class_weight))
    ]
    return np.array(weights, np.float32)


def with_class_weights(
    examples: Examples,
    table: np.ndarray,
    origin: str,
    describe_example: Callable[[int], str] = str,
) -> Examples:
    """Returns the examples with new weights: the weight of each example's class, times its sample
    weight if it has one.

    Labels are converted to classes as in Keras 2.14.

    Args:
      examples: result of `check_examples`, whose labels are classes, (examples,) or (examples, 1),
        or one-hot floats (examples, classes).
      table: result of `class_weight_table`.
      origin, describe_example: as in `check_examples`.

    Raises:
      TypeError: the labels have another shape or dtype.
      NotFinite: a class has no weight, or a weight exceeds float32.
    """
    x, y = examples
    labels, sample_weights = split_weights(y)
    if nest.is_nested(labels) or not _is_real(labels):
        raise TypeError(_NO_CLASSES.format(origin, "not one array of numbers"))
    if labels.shape[1:] == table.shape != (1,) and _is_floating(labels.dtype):
        classes = labels.astype(np.float32).argmax(axis=1)
    elif labels.shape[1:] in ((), (1,)):
        classes = np.round(labels.reshape(len(labels)).astype(np.float64))
    else:
        raise TypeError(_NO_CLASSES.format(origin, f"{labels.dtype} {labels.shape}"))
    is_unknown = (classes < 0) | (classes >= len(table))
    if is_unknown.any():
        first_index = int(is_unknown.argmax())
        raise NotFinite(
            f"the labels of {origin} hold class {classes[first_index]:.0f}, first in example "
            f"{describe_example(first_index)}, and class_weight ends at {len(table) - 1}: give it "
            "a weight, too"
        )
    weights = table[classes.astype(np.int64)]
    if sample_weights is not None:
        with np.errstate(over="ignore"):
            weights = sample_weights * weights
    return x, Weighted(labels, _check_weights(weights, origin, describe_example))


_NO_CLASSES = (
    "class_weight needs labels that are classes, and those of {} are {}: give numbers (examples,), "
    "or one-hot floats (examples, classes)"
)
