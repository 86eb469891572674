"""Examples of a client or a split: a pair (x, y) of structures of numpy arrays, whose first axis
counts the examples. Where examples have weights in the loss, y is `Weighted`.
"""

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedmf import checks, nest

# Inputs and labels; each an array, or a dict, tuple or list of arrays.
Examples = tuple[Any, Any]
# What a client trains on in a round: its examples in the order of each epoch. No epoch: they are
# not finite, and its update is zeroed.
Epochs = Sequence[Examples]


@dataclasses.dataclass(frozen=True)
class ClientData:
    """What a client trains on in a round.

    Attributes:
      epochs: its examples in the order of each epoch.
      seed: of the client in this round, whole numbers as `numpy.random.default_rng` takes them, for
        training that draws random numbers.
    """

    epochs: Epochs
    seed: tuple[int, ...] = ()


class NotFinite(ValueError):
    """Examples that no round counts: they hold NaN or infinite values, a weight that is none, or a
    class without a weight.
    """


@contextlib.contextmanager
def errors_of(what: str, *known: type[Exception]) -> Iterator[None]:
    """Around a user's own code: an error becomes a ValueError that says where it is from, unless it
    is a TypeError, a ValueError, or of the kinds that are known.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (TypeError, ValueError, *known)):
            raise
        raise ValueError(f"{what} raises {type(error).__name__}: {error}") from error


class Weighted(NamedTuple):
    """Labels, and how much each example counts in the loss.

    Attributes:
      labels: a structure of arrays.
      weights: float32 (examples,), finite and at least 0.
    """

    labels: Any
    weights: Any


def apart(y: Any) -> tuple[Any, Any]:
    """The labels, and their weights or None."""
    return y if isinstance(y, Weighted) else (y, None)


def counted_once(examples: Examples) -> Examples:
    """The examples with a weight of 1 each."""
    return examples[0], Weighted(apart(examples[1])[0], np.ones(count(examples), np.float32))


def count(examples: Examples) -> int:
    """The number of examples.

    >>> count(({"pixels": np.zeros((3, 28, 28))}, np.zeros(3, np.int32)))
    3
    """
    return len(nest.flatten(examples)[0])


def take(examples: Examples, index: Any) -> Examples:
    """The examples at `index`, an array of positions or a slice."""
    taken: Examples = nest.map_leaves(lambda array: array[index], examples)
    return taken


def concatenated(parts: Sequence[Examples]) -> Examples:
    """All examples of the parts, in their order; at least one part."""
    joined: Examples = nest.map_leaves(lambda *arrays: np.concatenate(arrays), *parts)
    return joined


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of an array of examples.

    Attributes:
      shape: of one example.
      dtype: name of the dtype; "string" for texts of any length.
    """

    shape: tuple[int, ...]
    dtype: str

    @staticmethod
    def of(array: np.ndarray) -> "ArraySpec":
        """Returns the spec of an array whose first axis counts examples."""
        return ArraySpec(array.shape[1:], _dtype_name(array.dtype))


def _dtype_name(dtype: np.dtype) -> str:
    return "string" if dtype.kind in "SU" else dtype.name


def spec(examples: Examples) -> Any:
    """The examples as a structure of `ArraySpec`."""
    return nest.map_leaves(ArraySpec.of, examples)


def fits(examples: Examples, expected: Any) -> bool:
    """Whether `spec` of the examples is the expected one; faster."""
    if not nest.has_same_structure(examples, expected):
        return False
    pairs = zip(nest.flatten(examples), nest.flatten(expected), strict=True)
    return all(
        array.shape[1:] == spec.shape and _dtype_name(array.dtype) == spec.dtype
        for array, spec in pairs
    )


def digest(*structures: Any) -> str:
    """16 hexadecimal digits of SHA-256 over the arrays' contents, dtypes and shapes."""
    sha = hashlib.sha256()
    for structure in structures:
        described = nest.map_leaves(lambda array: f"{array.dtype} {array.shape}", structure)
        sha.update(repr(described).encode())
        for array in nest.flatten(structure):
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
      TypeError: not a pair, an entry that is no number or text, or weights that are not one
        real number for each example.
      ValueError: arrays of different lengths, or a scalar.
      NotFinite: NaN or an infinite value in an array, or a negative weight.
    """
    if not isinstance(examples, tuple) or len(examples) != 2:
        raise TypeError(
            f"the examples of {origin} are a {type(examples).__name__}: pass "
            "a pair (x, y) of arrays"
        )
    labels, weights = apart(examples[1])
    for name, structure in (("x", examples[0]), ("y", labels)):
        if not nest.flatten(structure):
            raise ValueError(
                f"{name} of the examples of {origin} holds no array: pass one at least"
            )
    if weights is not None:
        weights = _checked_weights(weights, origin, owner)
        examples = examples[0], Weighted(labels, weights)
    try:
        leaves = [_of_texts(np.asarray(leaf)) for leaf in nest.flatten(examples)]
        if not all(_is_trained_on(array.dtype) for array in leaves):
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
        shapes += "" if weights is None else f" (of sample_weight {weights.shape})"
        raise ValueError(
            f"the examples of {origin} have the shapes {shapes}: the first axis must count them in "
            "every array, and lists are structures: make arrays of them"
        )
    for array in leaves:
        is_number = _is_floating(array.dtype) or array.dtype.kind == "c"
        if is_number and not np.isfinite(array).all():
            first = int(np.argwhere(~np.isfinite(array))[0][0])
            raise NotFinite(
                f"the examples of {origin} hold NaN or infinite values, first in example "
                f"{owner(first)}: clean them, or leave them out"
            )
    arrays: Examples = nest.pack(examples, leaves)
    return arrays


def _checked_weights(weights: Any, origin: str, owner: Callable[[int], str]) -> np.ndarray:
    found = np.asarray(weights)
    if found.ndim != 1 or not _is_real(found):
        raise TypeError(
            f"sample_weight, the sample weights of {origin}, are {found.dtype} {found.shape}: give "
            "one real number for each example, an array (examples,)"
        )
    with np.errstate(over="ignore"):
        weights = found.astype(np.float32)
    wrong = ~((weights >= 0) & np.isfinite(weights))
    if wrong.any():
        first = int(wrong.argmax())
        raise NotFinite(
            f"sample_weight, the sample weights of {origin}, hold {weights[first]}, first in "
            f"example {owner(first)}: give finite float32 numbers of at least 0"
        )
    return weights


def _is_trained_on(dtype: np.dtype) -> bool:
    """Returns whether examples may have this dtype: numbers that a framework has, and texts."""
    if dtype.kind in "fc":
        widest = np.dtype(complex if dtype.kind == "c" else float)
        return dtype.itemsize <= widest.itemsize
    return dtype.kind in "biuSU" or dtype.name.startswith(_EXTENSIONS)


# Of the package ml_dtypes: to numpy they are of no kind of numbers.
_EXTENSIONS = ("bfloat16", "float8", "int4", "uint4")


def _is_floating(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype.name.startswith(("bfloat16", "float8"))


def _is_real(array: np.ndarray) -> bool:
    return array.dtype.kind not in "cSU" and _is_trained_on(array.dtype)


def class_table(class_weight: Mapping[int, float]) -> np.ndarray:
    """The weights of classes 0, 1, 2 ...; float32 (classes,).

    Raises:
      TypeError, ValueError: other classes than these, as in Keras; or weights that are not finite
        and at least 0.

    >>> class_table({1: 0.5, 0: 2})
    array([2. , 0.5], dtype=float32)
    """
    hint = "give each of the classes 0, 1, 2 ... a finite weight of at least 0"
    if not isinstance(class_weight, Mapping):
        raise TypeError(f"class_weight={class_weight!r} is no dict: {hint}")
    if not class_weight or set(class_weight) != set(range(len(class_weight))):
        raise ValueError(
            f"class_weight={class_weight!r} has other keys than 0, 1, 2 ...: {hint}, as in Keras"
        )
    largest = float(np.finfo(np.float32).max)
    weights = [
        checks.positive(f"class_weight[{c}]", class_weight[c], hint, below=largest, allow_zero=True)
        for c in range(len(class_weight))
    ]
    return np.array(weights, np.float32)


def class_weighted(
    examples: Examples, table: np.ndarray, origin: str, owner: Callable[[int], str] = str
) -> Examples:
    """The examples with the weights of their classes, times their own if they have some.

    Classes are read off labels as Keras 2.14 does.

    Args:
      examples: of `checked`; their labels are classes, (examples,) or (examples, 1), or one-hot
        floats (examples, classes).
      table: of `class_table`.
      origin, owner: as of `checked`.

    Raises:
      TypeError: other labels.
      NotFinite: a class that has no weight, or weights beyond float32.
    """
    labels, weights = apart(examples[1])
    if nest.is_nested(labels) or not _is_real(labels):
        raise TypeError(_NO_CLASSES.format(origin, "not one array of numbers"))
    if labels.shape[1:] == table.shape != (1,) and _is_floating(labels.dtype):
        classes = labels.astype(np.float32).argmax(axis=1)
    elif labels.shape[1:] in ((), (1,)):
        classes = np.round(labels.reshape(len(labels)).astype(np.float64))
    else:
        raise TypeError(_NO_CLASSES.format(origin, f"{labels.dtype} {labels.shape}"))
    unknown = (classes < 0) | (classes >= len(table))
    if unknown.any():
        first = int(unknown.argmax())
        raise NotFinite(
            f"the labels of {origin} hold class {classes[first]:.0f}, first in example "
            f"{owner(first)}, and class_weight ends at {len(table) - 1}: give it a weight, too"
        )
    by_class = table[classes.astype(np.int64)]
    with np.errstate(over="ignore"):
        product = by_class if weights is None else weights * by_class
    return examples[0], Weighted(labels, _checked_weights(product, origin, owner))


_NO_CLASSES = (
    "class_weight needs labels that are classes, and those of {} are {}: give numbers (examples,), "
    "or one-hot floats (examples, classes)"
)
