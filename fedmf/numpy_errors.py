"""Contexts in which numpy handles floating-point errors as it does by default, although the user of
fedmf may have called np.seterr.

In fedmf, SciPy and dp_accounting, small terms of sums underflow to 0, which is the right value. If
the user has called np.seterr(all="raise"), such terms would raise errors in calls of fedmf.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numpy as np

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def numpy_defaults() -> np.errstate:
    """Returns a context in which numpy handles floating-point errors by its defaults.

    >>> with np.errstate(all="raise"), numpy_defaults():
    ...     float(np.exp(np.float64(-1000.0)))
    0.0
    """
    return np.errstate(divide="warn", over="warn", under="ignore", invalid="warn")


def with_numpy_defaults(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorates a function so that its calls run in the context of `numpy_defaults`."""

    @functools.wraps(function)
    def call(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
        with numpy_defaults():
            return function(*args, **options)

    return call
