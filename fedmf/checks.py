"""Argument checks of the public functions: TypeError for a wrong type, ValueError for a wrong
value.
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
    """A dense array that does not fit into memory; the message names the way out."""


# The largest single dense array, the square matrix of 20,000 rounds.
MAX_BYTES = 8 * 20_000**2
# Arrays up to this size are not checked, since reading the free memory would take longer.
_SMALL_BYTES = 2**22
_OTHER_FAMILY = (
    "for so many rounds use a family that never makes them (toeplitz or blt with any number of "
    "rounds, banded with few bands)"
)
# The largest model: one vector of its parameters takes 4 TB.
MAX_SIZE = 10**12
# The longest run: one vector over its rounds takes 0.8 GB.
MAX_ROUNDS = 100_000_000


def _format_value(value: Any) -> str:
    """Returns the text of a value in an error message, on one line."""
    text = repr(value)
    return " ".join(text.split()) if "\n" in text else text


def rounds(name: str, value: Any) -> int:
    """Returns `value` as a number of rounds, an int in 1..MAX_ROUNDS."""
    return integer(
        name, value, low=1, high=MAX_ROUNDS, hint="pass the number of rounds, a positive int"
    )


def integer(name: str, value: Any, *, low: int, high: int | None = None, hint: str) -> int:
    """Returns `value` as an int in low..high; None for `high` sets no upper limit.

    `hint`, the way out, ends the sentence of the error.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Integral):
        raise TypeError(
            f"{name}={_format_value(value)} is a {type(value).__name__}, not an int: {hint}"
        )
    number = int(value)
    if number < low or (high is not None and number > high):
        bounds = f"at least {low}" if high is None else f"in {low}..{high}"
        raise ValueError(f"{name}={number} must be {bounds}: {hint}")
    return number


def finite_float(name: str, value: Any, *, hint: str) -> float:
    """Returns `value` as a finite float, with 0.0 for -0.0; `hint` ends the error's sentence."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise TypeError(
            f"{name}={_format_value(value)} is a {type(value).__name__}, not a real number: {hint}"
        )
    try:
        number = float(value)
    except OverflowError:  # An int or a Fraction can lie beyond 1e308.
        raise ValueError(
            f"{name} is beyond float64, whose numbers end at 1.8e308: {hint}"
        ) from None
    if not math.isfinite(number):
        raise ValueError(f"{name}={value} is not finite: {hint}")
    return number + 0.0  # The sum of -0.0 and 0.0 is 0.0.


def real_number(value: Any) -> float | None:
    """Returns a real number of any library as a float; None for what is none, such as a text, a
    complex number, a masked value or an int beyond float64.

    >>> real_number(np.float32(0.5)), real_number(np.array(2)), real_number("2")
    (0.5, 2.0, None)
    """
    if np.ma.isMaskedArray(value):
        return None
    try:
        if isinstance(value, numbers.Real):
            return float(value)
        array = np.asarray(value)
        return float(array) if array.ndim == 0 and array.dtype.kind in "fiu" else None
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None


def boolean(name: str, value: Any) -> bool:
    """Returns `value`, which must be True or False, as a bool."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(
            f"{name}={_format_value(value)} is a {type(value).__name__}, not a bool: use True or "
            "False"
        )
    return bool(value)


def entries(name: str, value: Any, *, hint: str) -> list[Any]:
    """Returns the entries of `value`, an iterable such as a list or an array, as a list.

    Strings and mappings are refused; `hint` ends the error's sentence.
    """
    is_list = np.iterable(value) and not isinstance(value, str | bytes | Mapping)
    if not is_list:
        raise TypeError(f"{name}={reprlib.repr(value)} is a {type(value).__name__}: {hint}")
    return list(value)


def strings(name: str, value: Any, *, hint: str) -> tuple[str, ...]:
    """Returns the entries of `value`, an iterable of strings; `hint` ends the error's sentence."""
    checked_entries = tuple(entries(name, value, hint=hint))
    for entry in checked_entries:
        if not isinstance(entry, str):
            raise TypeError(f"{name} has {reprlib.repr(entry)}, which is not a str: {hint}")
    return checked_entries


def function(name: str, value: Any, *, num_arguments: int, hint: str) -> Callable[..., Any]:
    """Returns `value`, a function that can be called with `num_arguments` positional arguments.

    `hint` ends the error's sentence.
    """
    is_class = isinstance(value, type) and num_arguments > 0
    if is_class or not callable(value):
        raise TypeError(
            f"{name}={reprlib.repr(value)} is a {type(value).__name__}, not a function: {hint}"
        )
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # Functions written in C have no signature.
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
            f"{name}={_format_value(value)} is a {type(value).__name__}, not a str: choose one "
            f"of {', '.join(choices)}"
        )
    if value not in choices:
        raise ValueError(
            f"{name}={_format_value(value)} is unknown: choose one of {', '.join(choices)}"
        )
    return value


def did_you_mean(name: str, choices: Iterable[str], otherwise: str) -> str:
    """Returns "did you mean X?" for the choice closest to `name`.

    Without a close one it returns `otherwise` followed by all choices.

    >>> did_you_mean("cohort_sise", ["rounds", "cohort_size"], "the fields are")
    'did you mean `cohort_size`?'
    >>> did_you_mean("colour", ["rounds", "cohort_size"], "the fields are")
    'the fields are `rounds`, `cohort_size`'
    """
    choices = list(choices)
    close_matches = difflib.get_close_matches(name, choices, n=1, cutoff=0.7)
    if close_matches:
        return f"did you mean `{close_matches[0]}`?"
    quoted_choices = ", ".join(f"`{choice}`" for choice in choices)
    return f"{otherwise} {quoted_choices}"


def finite_array(name: str, value: Any, *, ndim: int) -> np.ndarray:
    """Returns `value` as a float64 array with `ndim` non-empty axes and finite entries.

    The result is `value` itself if it already is such an array, else a copy.
    """
    try:
        array = np.asarray(value)
    except ValueError as error:  # numpy refuses nested lists of unequal lengths.
        raise TypeError(
            f"{name} is not a rectangular array of numbers: pass a {ndim}-D numpy array"
        ) from error
    if array.dtype.kind not in "iuf":
        raise TypeError(
            f"{name} holds {array.dtype} entries, not real numbers: pass a {ndim}-D array of floats"
        )
    if array.ndim != ndim or 0 in array.shape:
        raise ValueError(
            f"{name} has shape {array.shape}: pass a {ndim}-D array with no empty axis"
        )
    float_array = array.astype(np.float64, copy=False)
    is_finite = np.isfinite(float_array)
    if not is_finite.all():
        position = tuple(np.argwhere(~is_finite)[0].tolist())
        raise ValueError(
            f"{name}{list(position)}={float_array[position]} is not finite: "
            "replace it by a finite number"
        )
    return float_array


def lower_triangular(name: str, value: Any) -> np.ndarray:
    """Returns `value` as a square lower-triangular float64 matrix, checked by `finite_array`."""
    matrix = finite_array(name, value, ndim=2)
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{name} has shape {matrix.shape}: pass a square (rounds, rounds) matrix")
    nonzeros_above = np.argwhere(np.triu(matrix, 1))
    if len(nonzeros_above):
        row, column = nonzeros_above[0].tolist()
        raise ValueError(
            f"{name}[{row}, {column}]={matrix[row, column]} lies above the diagonal: round {row} "
            f"cannot depend on the later round {column}, pass a lower-triangular matrix"
        )
    return matrix


def banded_rows(name: str, value: Any) -> np.ndarray:
    """Returns `value` as the rows of a banded lower-triangular matrix M, checked by `finite_array`.

    The rows have shape (rounds, bands), with rows[t, j] = M[t, t - j].
    """
    rows = finite_array(name, value, ndim=2)
    n, bands = rows.shape
    if bands > n:
        raise ValueError(
            f"{name} has shape {rows.shape}: {n} rounds have at most {n} bands, drop the others"
        )
    nonzeros_outside = np.argwhere(np.triu(rows[:bands], 1))
    if len(nonzeros_outside):
        t, j = nonzeros_outside[0].tolist()
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
    """Raises TooLargeForMemory, a ValueError, if float64 arrays of `shape` do not fit into memory.

    A single array may take `MAX_BYTES` at most, and `copies` arrays, which are needed at the same
    time, must fit into the free memory. If one array alone would fit, the error names `otherwise`
    as the first way out; `hint` is the last one.
    """
    array_bytes = 8 * math.prod(shape)
    total_bytes = copies * array_bytes
    if total_bytes <= _SMALL_BYTES:
        return
    free_bytes = available_memory()
    if array_bytes <= MAX_BYTES and total_bytes <= free_bytes:
        return
    dimensions = " x ".join(map(str, shape))
    description = f"a dense {dimensions} array of {array_bytes / 2**30:.3g} GiB"
    if copies > 1:
        description = f"{copies} dense {dimensions} arrays, {total_bytes / 2**30:.3g} GiB in all"
    if array_bytes <= MAX_BYTES:
        description += f", where {free_bytes / 2**30:.3g} GiB are free"
    way_out = hint
    if otherwise and array_bytes <= min(MAX_BYTES, free_bytes):
        way_out = f"{otherwise}, or {hint}"
    raise TooLargeForMemory(f"{what} would take {description}: {way_out}")


def banded_product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Returns the rows of the product of two banded lower-triangular n x n matrices.

    Each matrix M is passed and returned by its rows, with rows[t, j] = M[t, t - j].
    """
    n, left_bands = left.shape
    right_bands = right.shape[1]
    product_bands = min(n, left_bands + right_bands - 1)
    product = np.zeros((n, product_bands))
    for i in range(left_bands):
        for j in range(min(right_bands, product_bands - i)):
            product[i:, i + j] += left[i:, i] * right[: n - i, j]
    return product


def banded_times(rows: np.ndarray, M: np.ndarray) -> np.ndarray:
    """Returns the product of a banded lower-triangular matrix and M (banded paper, Alg. 8).

    The banded matrix is passed by its rows, of shape (n, bands); M has shape (n, d).
    """
    product = rows[:, :1] * M
    for j in range(1, rows.shape[1]):
        product[j:] += rows[j:, j, None] * M[:-j]
    return product


def frozen_copy(matrix: np.ndarray) -> np.ndarray:
    """Returns a read-only float64 copy, so that a frozen dataclass can hold the array."""
    copy = np.array(matrix, dtype=np.float64, order="C")
    copy.setflags(write=False)
    return copy


def positive(
    name: str, value: Any, hint: str, *, below: float = math.inf, allow_zero: bool = False
) -> float:
    """Returns `value` as a float in (0, below), or in [0, below) if `allow_zero`.

    `hint` ends the error's sentence.
    """
    number = finite_float(name, value, hint=hint)
    is_zero_allowed = allow_zero and number == 0
    if not (0 < number < below or is_zero_allowed):
        bounds = "non-negative" if allow_zero else "positive"
        if not math.isinf(below):
            bounds += f" and below {below:g}"
        raise ValueError(f"{name}={value!r} must be {bounds}: {hint}")
    return number


def probability(name: str, value: Any) -> float:
    """Returns `value` as a float in [0, 1]."""
    number = finite_float(name, value, hint="use a probability from 0 to 1")
    if not 0 <= number <= 1:
        raise ValueError(f"{name}={number:g} is not a probability: use a number from 0 to 1")
    return number
