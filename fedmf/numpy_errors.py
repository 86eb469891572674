"""numpy's own handling of floating-point errors, whatever the caller has set with np.seterr.

Sums over tails lose terms to underflow, here, in SciPy and in dp_accounting: 0 is right for them.
Under np.seterr(all="raise") each of these places would end a public call.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numpy as np

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def numpy_defaults() -> np.errstate:
    """Returns a context in which numpy warns as it does in a new process.

    >>> with np.errstate(all="raise"), numpy_defaults():
    ...     float(np.exp(np.float64(-1000.0)))
    0.0
    """
    return np.errstate(divide="warn", over="warn", under="ignore", invalid="warn")


def with_numpy_defaults(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Makes a function run in the context of `numpy_defaults`."""

    @functools.wraps(function)
    def call(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
        with numpy_defaults():
            return function(*args, **options)

    return call
