"""Argument checks shared by the public functions: TypeError for a wrong kind, ValueError for a
wrong value.
"""

import difflib
import inspect
import math
import numbers
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from fedmf.memory import available_memory


class TooLargeForMemory(ValueError):
    """An array that does not fit into memory, whose message names the way out."""


# The largest single dense array: of 20,000 rounds.
MAX_BYTES = 8 * 20_000**2
# Arrays that are made in less time than it takes to ask what is free.
_SMALL_BYTES = 2**22
_OTHER_FAMILY = (
    "for so many rounds use a family that never makes them (toeplitz or blt with any number of "
    "rounds, banded with few bands)"
)
# The largest model: one vector of its parameters takes 4 TB.
MAX_SIZE = 10**12
# The longest run: one vector over its rounds takes 0.8 GB.
MAX_ROUNDS = 100_000_000


def _shown(value: Any) -> str:
    """Returns a value as it stands in an error, in one line."""
    text = repr(value)
    return " ".join(text.split()) if "\n" in text else text


def rounds(name: str, value: Any) -> int:
    """Returns `value` as a number of rounds."""
    return integer(
        name, value, low=1, high=MAX_ROUNDS, hint="pass the number of rounds, a positive int"
    )


def integer(name: str, value: Any, *, low: int, high: int | None = None, hint: str) -> int:
    """Returns `value` as an int in low..high (high None: no upper end);
    `hint` ends the error's sentence.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name}={_shown(value)} is a {type(value).__name__}, not an int: {hint}")
    number = int(value)
    if number < low or (high is not None and number > high):
        bounds = f"at least {low}" if high is None else f"in {low}..{high}"
        raise ValueError(f"{name}={number} must be {bounds}: {hint}")
    return number


def real(name: str, value: Any, *, hint: str) -> float:
    """`value` as a finite float, never -0.0; `hint` ends the error's sentence."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise TypeError(
            f"{name}={_shown(value)} is a {type(value).__name__}, not a real number: {hint}"
        )
    try:
        number = float(value)
    except OverflowError:  # a whole number or a fraction beyond 1e308
        raise ValueError(
            f"{name} is beyond float64, whose numbers end at 1.8e308: {hint}"
        ) from None
    if not math.isfinite(number):
        raise ValueError(f"{name}={value} is not finite: {hint}")
    return number + 0.0  # -0.0 becomes 0.0


def boolean(name: str, value: Any) -> bool:
    """Returns `value`, True or False, as a bool."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(
            f"{name}={_shown(value)} is a {type(value).__name__}, not a bool: use True or False"
        )
    return bool(value)


def entries(name: str, value: Any, *, hint: str) -> list[Any]:
    """Returns the entries of a list, an array or any other iterable that is no text and no mapping;
    `hint` ends the error's sentence.
    """
    is_list = np.iterable(value) and not isinstance(value, str | bytes | Mapping)
    if not is_list:
        raise TypeError(f"{name}={reprlib.repr(value)} is a {type(value).__name__}: {hint}")
    return list(value)


def texts(name: str, value: Any, *, hint: str) -> tuple[str, ...]:
    """Returns the entries of a list of texts; `hint` ends the error's sentence."""
    listed = tuple(entries(name, value, hint=hint))
    for entry in listed:
        if not isinstance(entry, str):
            raise TypeError(f"{name} has {reprlib.repr(entry)}, which is no text: {hint}")
    return listed


def function(name: str, value: Any, *, num_arguments: int, hint: str) -> Callable[..., Any]:
    """Returns `value`, a function that can be called with so many positional arguments; `hint` ends
    the error's sentence.
    """
    is_class = isinstance(value, type) and num_arguments > 0
    if is_class or not callable(value):
        raise TypeError(
            f"{name}={reprlib.repr(value)} is a {type(value).__name__}, not a function: {hint}"
        )
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # Functions of C code have none.
        return value
    try:
        signature.bind(*[None] * num_arguments)
    except TypeError as error:
        raise TypeError(
            f"{name}={reprlib.repr(value)} is not called with {num_arguments} arguments ({error}): "
            f"{hint}"
        ) from None
    return value


def one_of(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """Returns `value`, one of the strings `choices`."""
    if not isinstance(value, str):
        raise TypeError(
            f"{name}={_shown(value)} is a {type(value).__name__}, not a str: choose one "
            f"of {', '.join(choices)}"
        )
    if value not in choices:
        raise ValueError(f"{name}={_shown(value)} is unknown: choose one of {', '.join(choices)}")
    return value


def meant(name: str, known: Iterable[str], otherwise: str) -> str:
    """ "did you mean X?" where one of `known` is close to `name`, else `otherwise` and all of them.

    >>> meant("cohort_sise", ["rounds", "cohort_size"], "the fields are")
    'did you mean `cohort_size`?'
    >>> meant("colour", ["rounds", "cohort_size"], "the fields are")
    'the fields are `rounds`, `cohort_size`'
    """
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    marked = ", ".join(f"`{option}`" for option in close or known)
    return f"did you mean {marked}?" if close else f"{otherwise} {marked}"


def array(name: str, value: Any, *, ndim: int) -> np.ndarray:
    """Returns `value` as a float64 array of `ndim` non-empty axes and finite entries; a copy, or
    `value` itself.
    """
    try:
        entries = np.asarray(value)
    except ValueError as error:  # numpy's refusal of ragged nested lists
        raise TypeError(
            f"{name} is not a rectangular array of numbers: pass a {ndim}-D numpy array"
        ) from error
    if entries.dtype.kind not in "iuf":
        raise TypeError(
            f"{name} holds {entries.dtype} entries, not real numbers: pass a "
            f"{ndim}-D array of floats"
        )
    if entries.ndim != ndim or 0 in entries.shape:
        raise ValueError(
            f"{name} has shape {entries.shape}: pass a {ndim}-D array with no empty axis"
        )
    converted = entries.astype(np.float64, copy=False)
    if not np.isfinite(converted).all():
        position = tuple(int(axis[0]) for axis in np.nonzero(~np.isfinite(converted)))
        raise ValueError(
            f"{name}{list(position)}={converted[position]} is not finite: "
            "replace it by a finite number"
        )
    return converted


def lower_triangular(name: str, value: Any) -> np.ndarray:
    """Returns `value` as a square lower-triangular float64 matrix, checked by `array`."""
    matrix = array(name, value, ndim=2)
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{name} has shape {matrix.shape}: pass a square (rounds, rounds) matrix")
    above = np.argwhere(np.triu(matrix, 1))
    if len(above):
        row, column = (int(index) for index in above[0])
        raise ValueError(
            f"{name}[{row}, {column}]={matrix[row, column]} lies above the diagonal: round {row} "
            f"cannot depend on the later round {column}, pass a lower-triangular matrix"
        )
    return matrix


def banded_rows(name: str, value: Any) -> np.ndarray:
    """Returns `value` as the rows (rounds, bands) of a banded lower-triangular matrix, [t, j] =
    M[t, t - j], checked by `array`.
    """
    rows = array(name, value, ndim=2)
    n, bands = rows.shape
    if bands > n:
        raise ValueError(
            f"{name} has shape {rows.shape}: {n} rounds have at most {n} bands, drop the others"
        )
    outside = np.argwhere(np.triu(rows[:bands], 1))
    if len(outside):
        t, j = (int(index) for index in outside[0])
        raise ValueError(
            f"{name}[{t}, {j}]={rows[t, j]} lies outside the matrix, since {t} "
            f"- {j} < 0: set it to 0"
        )
    return rows


def fits_in_memory(
    what: str,
    shape: tuple[int, ...],
    *,
    copies: int = 1,
    otherwise: str = "",
    hint: str = _OTHER_FAMILY,
) -> None:
    """Raises TooLargeForMemory, a ValueError, if float64 arrays of `shape` are beyond what
    dense arrays may take here.

    A single one may be as large as `MAX_BYTES`, and `copies` of them, which are needed at a time,
    must fit into the memory that is free. Where a single array fits, the error names `otherwise` as
    the first way out; `hint` is the last one.
    """
    size = 8 * math.prod(shape)
    if copies * size <= _SMALL_BYTES:
        return
    free = available_memory()
    if size <= MAX_BYTES and copies * size <= free:
        return
    dimensions = " x ".join(map(str, shape))
    arrays = f"a dense {dimensions} array of {size / 2**30:.3g} GiB"
    if copies > 1:
        arrays = f"{copies} dense {dimensions} arrays, {copies * size / 2**30:.3g} GiB in all"
    if size <= MAX_BYTES:
        arrays += f", where {free / 2**30:.3g} GiB are free"
    other_way = ""
    if otherwise and size <= min(MAX_BYTES, free):
        other_way = f"{otherwise}, or "
    raise TooLargeForMemory(f"{what} would take {arrays}: {other_way}{hint}")


def banded_product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Rows of the product of two banded lower-triangular matrices of n rows, each given by rows:
    [t, j] = M[t, t - j].
    """
    n = left.shape[0]
    product = np.zeros((n, min(n, left.shape[1] + right.shape[1] - 1)))
    for i in range(left.shape[1]):
        for j in range(min(right.shape[1], product.shape[1] - i)):
            product[i:, i + j] += left[i:, i] * right[: n - i, j]
    return product


def banded_times(rows: np.ndarray, M: np.ndarray) -> np.ndarray:
    """The product of a banded lower-triangular matrix given by rows, (n, bands), and M, (n, d)
    (banded paper, Alg. 8).
    """
    product = rows[:, :1] * M
    for j in range(1, rows.shape[1]):
        product[j:] += rows[j:, j, None] * M[:-j]
    return product


def frozen(matrix: np.ndarray) -> np.ndarray:
    """Returns a read-only copy, so that a frozen dataclass that holds it is frozen
    all the way down.
    """
    copy = np.array(matrix, dtype=np.float64, order="C")
    copy.setflags(write=False)
    return copy


def positive(
    name: str, value: Any, hint: str, *, below: float = math.inf, zero: bool = False
) -> float:
    """`value` as a float when it is a finite number in (0, below), or 0 where `zero` allows it;
    raises otherwise.
    """
    number = real(name, value, hint=hint)
    if not (0 < number < below or (zero and number == 0)):
        bounds = "non-negative" if zero else "positive"
        upper = "" if math.isinf(below) else f" and below {below:g}"
        raise ValueError(f"{name}={value!r} must be {bounds}{upper}: {hint}")
    return number


def probability(name: str, value: Any) -> float:
    """Returns `value` as a float in [0, 1]."""
    number = real(name, value, hint="use a probability from 0 to 1")
    if not 0 <= number <= 1:
        raise ValueError(f"{name}={number:g} is not a probability: use a number from 0 to 1")
    return number
