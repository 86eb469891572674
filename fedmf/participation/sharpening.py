"""The sensitivity to one client whose rounds are one of some sets, as sharp as it pays to make it.

Contributions of norm at most 1 to the rounds of a set S move C x by at most the root of the sum of
|X_ij| over i, j in S, X = C^T C; `fedmf.participation.sensitivity` has the papers.
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

# A pattern counts as sign-tight if |X| and X differ on it by rounding only, relative to the sum.
ROUNDING = 1e-12
# Multiplications that sharpening the bounds of many patterns may cost; patterns beyond it keep
# their |X| sum, which is valid. An alignment costs about as much as this many eigenvalues.
SHARPENING_BUDGET = 2e10
_ALIGNMENT_COST = 300
# A bound within this share above a value that contributions attain is called exact.
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
    """An L2 sensitivity for contributions of norm at most 1.

    Attributes:
      value: the sensitivity, not squared.
      exact: True if value is the sensitivity (up to rounding), False if it is an upper bound.
      method: the algorithm and its source, for people.
    """

    value: float = fields.validated(
        lambda name, x: checks.positive(name, x, "a norm", allow_zero=True)
    )
    exact: bool = fields.validated(checks.boolean)
    method: str = fields.validated(fields.plain_text)


def root(squared: float, exact: bool, method: str) -> Sensitivity:
    """Returns the sensitivity whose square is given."""
    return Sensitivity(value=float(np.sqrt(squared)), exact=bool(exact), method=method)


def largest_sharpened(
    bounds: Iterable[tuple[float, bool, Name]],
    gram: Callable[[Name], np.ndarray],
    multiplications: float = SHARPENING_BUDGET,
) -> Sensitivity:
    """The sensitivity to one client that takes part in all rounds of one of some sets.

    Args:
      bounds: of each set the sum of |X|, whether that of X is the same (or it has at most two
        rounds), and its name.
      gram: name of a set -> its X, float64 (k, k).
      multiplications: how many sharpening the bounds may cost.

    >>> largest_sharpened(
    ...     [(3.0, False, "near"), (2.0, True, "one")],
    ...     lambda name: np.array([[1.0, -0.5], [-0.5, 1.0]])
    ... ).exact
    True
    """
    heap = [(-s, tight, name) for s, tight, name in bounds]
    heapq.heapify(heap)
    spectral: set[Any] = set()
    attained: dict[Any, float] = {}
    # Best first: the largest |X| sum is the answer if it is tight;
    # otherwise sharpen it and look again.
    while True:
        negative, tight_here, name = heap[0]
        if tight_here:
            return root(
                -negative, True, "sum of X over a client's rounds (multi-epoch paper, Eq. 3): exact"
            )
        if name in attained:
            exact = -negative <= attained[name] * (1.0 + _ATTAINED)
            return root(-negative, exact, f"{_ALIGNMENT}: {'exact' if exact else 'upper bound'}")
        X = gram(name)
        cost = len(X) ** 3 * (_ALIGNMENT_COST if name in spectral else 1)
        if multiplications < cost:
            return root(-negative, False, f"{_SPECTRAL_AND_SUMS}: upper bound")
        multiplications -= cost
        if name in spectral:
            attained[name], sharper = vector_sensitivity_bounds(X)
        else:
            spectral.add(name)
            sharper = len(X) * largest_eigenvalue(X)
        heapq.heapreplace(heap, (-min(-negative, sharper), False, name))


def largest_eigenvalue(X: np.ndarray) -> float:
    """Returns the largest eigenvalue of a symmetric X, (k, k)."""
    n = X.shape[0]
    return float(scipy.linalg.eigvalsh(X, subset_by_index=(n - 1, n - 1))[0])
