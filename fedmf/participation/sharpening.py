"""The largest sensitivity to one client over several sets of rounds. Upper bounds are sharpened,
the largest first, until the work reaches a limit.

Contributions of norm at most 1 to the rounds of a set S move C x by at most the root of the sum of
|X_ij| over i, j in S, X = C^T C; `fedmf.participation.sensitivity` cites the papers.
"""

import dataclasses
import heapq
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
import scipy.linalg

from fedmf import checks, fields
from fedmf.participation.vector_bound import vector_sensitivity_bounds

Name = TypeVar("Name")

# Relative difference up to which two sums of entries of X = C^T C, where C is the encoder, count as
# equal, because they are computed with rounding.
ROUNDING = 1e-12
# Largest number of multiplications for tightening upper bounds on the sensitivity. Bounds that are
# not tightened within this number stay as they are.
SHARPENING_BUDGET = 2e10
# Cost of one call of `vector_sensitivity_bounds`, as a multiple of the cost of an eigenvalue.
_ALIGNMENT_COST = 300
# An upper bound counts as exact if it exceeds the squared sensitivity that some client attains by
# at most this relative amount.
_ATTAINED = 1e-8
_SPECTRAL_AND_SUMS = (
    "smaller of |X| sums (banded paper, Prop. E.1) and k times the spectral norm "
    "(multi-epoch paper, Thm. 2.1)"
)
_ALIGNMENT = (
    "largest sum of X_ij <u_i, u_j> over unit vectors, a semidefinite program and its dual "
    "(fedmf.participation.vector_bound)"
)


@dataclasses.dataclass(frozen=True)
class Sensitivity(fields.Checked):
    """The L2 sensitivity of an encoder to one client whose contribution to each round has norm at
    most 1.

    Attributes:
      value: the sensitivity, not squared.
      exact: True if value is the sensitivity (up to rounding), False if it is an upper bound.
      method: description of the algorithm and its source.
    """

    value: float = fields.validated(
        lambda name, x: checks.positive(name, x, "a norm", allow_zero=True)
    )
    exact: bool = fields.validated(checks.boolean)
    method: str = fields.validated(fields.plain_text)


def from_squared(squared: float, exact: bool, method: str) -> Sensitivity:
    """Returns the sensitivity whose square is `squared`."""
    return Sensitivity(value=float(np.sqrt(squared)), exact=bool(exact), method=method)


def largest_sharpened(
    bounds: Iterable[tuple[float, bool, Name]],
    gram: Callable[[Name], np.ndarray],
    multiplications: float = SHARPENING_BUDGET,
) -> Sensitivity:
    """Returns the largest sensitivity to one client that takes part in all rounds of one of several
    sets.

    Args:
      bounds: for each set its sum of |X|, whether the sensitivity attains that sum, and its name.
      gram: name of a set -> its X, float64 (k, k).
      multiplications: largest number of multiplications for sharpening the bounds.

    >>> largest_sharpened(
    ...     [(3.0, False, "near"), (2.0, True, "one")],
    ...     lambda name: np.array([[1.0, -0.5], [-0.5, 1.0]])
    ... ).exact
    True
    """
    # The bounds are negated because heapq pops the smallest entry first.
    heap_of_bounds = [(-bound, is_tight, name) for bound, is_tight, name in bounds]
    heapq.heapify(heap_of_bounds)
    has_spectral_bound: set[Any] = set()
    attained_by_name: dict[Any, float] = {}
    # The largest bound is the result as soon as some client attains it. Until then it is tightened,
    # first by the spectral norm and then by the semidefinite program.
    while True:
        negated_bound, is_tight, name = heap_of_bounds[0]
        largest_bound = -negated_bound
        if is_tight:
            return from_squared(
                largest_bound,
                True,
                "sum of X over a client's rounds (multi-epoch paper, Eq. 3): exact",
            )
        if name in attained_by_name:
            is_exact = largest_bound <= attained_by_name[name] * (1.0 + _ATTAINED)
            bound_kind = "exact" if is_exact else "upper bound"
            return from_squared(largest_bound, is_exact, f"{_ALIGNMENT}: {bound_kind}")
        X = gram(name)
        eigenvalue_cost = len(X) ** 3
        if name in has_spectral_bound:
            eigenvalue_cost *= _ALIGNMENT_COST
        if multiplications < eigenvalue_cost:
            return from_squared(largest_bound, False, f"{_SPECTRAL_AND_SUMS}: upper bound")
        multiplications -= eigenvalue_cost
        if name in has_spectral_bound:
            attained_by_name[name], sharper_bound = vector_sensitivity_bounds(X)
        else:
            has_spectral_bound.add(name)
            sharper_bound = len(X) * largest_eigenvalue(X)
        heapq.heapreplace(heap_of_bounds, (-min(largest_bound, sharper_bound), False, name))


def largest_eigenvalue(X: np.ndarray) -> float:
    """Returns the largest eigenvalue of a symmetric float64 matrix X of shape (k, k)."""
    n = X.shape[0]
    return float(scipy.linalg.eigvalsh(X, subset_by_index=(n - 1, n - 1))[0])
