"""Contexts with numpy's default handling of floating-point errors, for callers of np.seterr.

Terms in the tails of sums underflow to 0 here, in SciPy and in dp_accounting, and 0 is the right
value. If the caller has set np.seterr(all="raise"), each of them would raise in a public call.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numpy as np

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def numpy_defaults() -> np.errstate:
    """Returns a context in which numpy handles errors as in a new process.

    >>> with np.errstate(all="raise"), numpy_defaults():
    ...     float(np.exp(np.float64(-1000.0)))
    0.0
    """
    return np.errstate(divide="warn", over="warn", under="ignore", invalid="warn")


def with_numpy_defaults(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Wraps a function so that it runs in the context of `numpy_defaults`."""

    @functools.wraps(function)
    def call(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
        with numpy_defaults():
            return function(*args, **options)

    return call
