"""Checks of arguments of public functions. They raise TypeError for a wrong type and ValueError for
a wrong value, and the message says what to do instead.
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
    """Error for a dense array that would not fit into memory. The message says what to do
    instead.
    """


# Largest size in bytes of a single dense array, which is that of a square matrix for 20,000 rounds.
MAX_BYTES = 8 * 20_000**2
# Arrays of at most this many bytes are not checked, because reading the free memory would take
# longer than making them.
_SMALL_BYTES = 2**22
_OTHER_FAMILY = (
    "for so many rounds use a family that never makes them (toeplitz or blt with any number of "
    "rounds, banded with few bands)"
)
# Largest number of parameters of a model. One float32 vector of them takes 4 TB.
MAX_SIZE = 10**12
# Largest number of rounds of a run. One float64 vector with an entry for each round takes 0.8 GB.
MAX_ROUNDS = 100_000_000


def _format_value(value: Any) -> str:
    """Returns the text of a value for an error message, on one line."""
    value_text = repr(value)
    return " ".join(value_text.split()) if "\n" in value_text else value_text


def rounds(name: str, value: Any) -> int:
    """Checks that the argument is a number of rounds, in 1..MAX_ROUNDS, and returns it as
    an int.
    """
    return integer(
        name, value, low=1, high=MAX_ROUNDS, hint="pass the number of rounds, a positive int"
    )


def integer(name: str, value: Any, *, low: int, high: int | None = None, hint: str) -> int:
    """Checks that the argument is a whole number in low..high, and returns it as an int.

    With high=None there is no upper limit. Errors end with `hint`, which says what to do instead.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Integral):
        raise TypeError(
            f"{name}={_format_value(value)} is a {type(value).__name__}, not an int: {hint}"
        )
    number = int(value)
    if number < low or (high is not None and number > high):
        bounds_text = f"at least {low}" if high is None else f"in {low}..{high}"
        raise ValueError(f"{name}={number} must be {bounds_text}: {hint}")
    return number


def finite_float(name: str, value: Any, *, hint: str) -> float:
    """Checks that the argument is a finite real number, and returns it as a float; -0.0 becomes
    0.0. Errors end with `hint`, which says what to do instead.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise TypeError(
            f"{name}={_format_value(value)} is a {type(value).__name__}, not a real number: {hint}"
        )
    try:
        number = float(value)
    # Python raises OverflowError for an int or a Fraction that is larger than every float64.
    except OverflowError:
        raise ValueError(
            f"{name} is beyond float64, whose numbers end at 1.8e308: {hint}"
        ) from None
    if not math.isfinite(number):
        raise ValueError(f"{name}={value} is not finite: {hint}")
    return number + 0.0  # Adding 0.0 turns -0.0 into 0.0.


def real_number(value: Any) -> float | None:
    """Converts a real number of any library to a float. Returns None for any other value, such as a
    text, a complex number, a masked value or an int beyond float64.

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
    """Checks that the argument is True or False, and returns it as a Python bool."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(
            f"{name}={_format_value(value)} is a {type(value).__name__}, not a bool: use True or "
            "False"
        )
    return bool(value)


def entries(name: str, value: Any, *, hint: str) -> list[Any]:
    """Checks that the argument is an iterable such as a list or an array, and returns its entries
    as a list.

    Strings and mappings are refused. Errors end with `hint`, which says what to do instead.
    """
    is_list = np.iterable(value) and not isinstance(value, str | bytes | Mapping)
    if not is_list:
        raise TypeError(f"{name}={reprlib.repr(value)} is a {type(value).__name__}: {hint}")
    return list(value)


def strings(name: str, value: Any, *, hint: str) -> tuple[str, ...]:
    """Checks that the argument is an iterable of strings, and returns them as a tuple. Errors end
    with `hint`, which says what to do instead.
    """
    checked_entries = tuple(entries(name, value, hint=hint))
    for entry in checked_entries:
        if not isinstance(entry, str):
            raise TypeError(f"{name} has {reprlib.repr(entry)}, which is not a str: {hint}")
    return checked_entries


def function(name: str, value: Any, *, num_arguments: int, hint: str) -> Callable[..., Any]:
    """Checks that the argument is a function that takes `num_arguments` positional arguments, and
    returns it.

    Errors end with `hint`, which says what to do instead.
    """
    is_class = isinstance(value, type) and num_arguments > 0
    if is_class or not callable(value):
        raise TypeError(
            f"{name}={reprlib.repr(value)} is a {type(value).__name__}, not a function: {hint}"
        )
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # Some functions that are written in C have no signature.
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
    """Checks that the argument is one of the strings `choices`, and returns it."""
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
    """Returns the hint "did you mean X?" for a misspelt name, where X is the most similar choice.

    If no choice is similar, the hint is `otherwise` followed by all choices.

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
    """Checks that the argument is an array of finite numbers with `ndim` non-empty axes, and
    returns it as float64.

    The result is `value` itself if it already is such a float64 array, and otherwise a copy.
    """
    try:
        array = np.asarray(value)
    except ValueError as error:  # numpy raises ValueError for nested lists of unequal lengths.
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
        faulty_position = tuple(np.argwhere(~is_finite)[0].tolist())
        raise ValueError(
            f"{name}{list(faulty_position)}={float_array[faulty_position]} is not finite: "
            "replace it by a finite number"
        )
    return float_array


def lower_triangular(name: str, value: Any) -> np.ndarray:
    """Checks that the argument is a square lower-triangular matrix of finite numbers, and returns
    it as float64.
    """
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
    """Checks that the argument has the bands of a lower-triangular matrix M by rows, and returns it
    as float64.

    The shape is (rounds, bands), and entry [t, j] is M[t, t - j]. Entries with j > t, which lie
    outside of M, must be 0.
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
    time, must fit into the free memory. The error proposes `hint` as a way out. If a single array
    would fit, it proposes `otherwise` before it.
    """
    array_bytes = 8 * math.prod(shape)
    total_bytes = copies * array_bytes
    if total_bytes <= _SMALL_BYTES:
        return
    free_bytes = available_memory()
    if array_bytes <= MAX_BYTES and total_bytes <= free_bytes:
        return
    dimensions_text = " x ".join(map(str, shape))
    description = f"a dense {dimensions_text} array of {array_bytes / 2**30:.3g} GiB"
    if copies > 1:
        description = (
            f"{copies} dense {dimensions_text} arrays, {total_bytes / 2**30:.3g} GiB in all"
        )
    if array_bytes <= MAX_BYTES:
        description += f", where {free_bytes / 2**30:.3g} GiB are free"
    way_out = hint
    if otherwise and array_bytes <= min(MAX_BYTES, free_bytes):
        way_out = f"{otherwise}, or {hint}"
    raise TooLargeForMemory(f"{what} would take {description}: {way_out}")


def banded_product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Computes the product of two banded lower-triangular n x n matrices.

    Each matrix M is passed and returned as an array of shape (n, bands) with its bands by rows:
    entry [t, j] is M[t, t - j].
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
    """Computes the product of a banded lower-triangular matrix and a dense matrix M. This is the
    banded paper, Alg. 8.

    The banded matrix is passed as an array of shape (n, bands) with its bands by rows, as in
    `banded_product`. M has shape (n, d).
    """
    product = rows[:, :1] * M
    for j in range(1, rows.shape[1]):
        product[j:] += rows[j:, j, None] * M[:-j]
    return product


def frozen_copy(matrix: np.ndarray) -> np.ndarray:
    """Returns a read-only float64 copy of an array, for a field of a frozen dataclass."""
    read_only_copy = np.array(matrix, dtype=np.float64, order="C")
    read_only_copy.setflags(write=False)
    return read_only_copy


def positive(
    name: str, value: Any, hint: str, *, below: float = math.inf, allow_zero: bool = False
) -> float:
    """Checks that the argument is a number in (0, below), or in [0, below) if `allow_zero`, and
    returns it as a float.

    Errors end with `hint`, which says what to do instead.
    """
    number = finite_float(name, value, hint=hint)
    is_zero_allowed = allow_zero and number == 0
    if not (0 < number < below or is_zero_allowed):
        bounds_text = "non-negative" if allow_zero else "positive"
        if not math.isinf(below):
            bounds_text += f" and below {below:g}"
        raise ValueError(f"{name}={value!r} must be {bounds_text}: {hint}")
    return number


def probability(name: str, value: Any) -> float:
    """Checks that the argument is a probability, and returns it as a float in [0, 1]."""
    number = finite_float(name, value, hint="use a probability from 0 to 1")
    if not 0 <= number <= 1:
        raise ValueError(f"{name}={number:g} is not a probability: use a number from 0 to 1")
    return number
