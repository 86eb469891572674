"""Dual lower bounds: proofs that a fitted encoder is near the best of its family."""

import numpy as np
import scipy.linalg

from fedmf.mechanisms.certificate import Certificate
from fedmf.participation.schema import Participation

__all__ = ["Certificate", "certify", "dual_bound"]


def dual_bound(A: np.ndarray, U: np.ndarray) -> float | None:
    """A lower bound on tr(A^T A X^-1) over positive-definite X with tr(U X) = tr(U); None for an indefinite U.

    For any such X, tr(A^T A X^-1) + tr(U X) >= 2 tr((A U A^T)^(1/2)), whose right side is the minimum of the left
    over all positive-definite X. With tr(U X) = tr(U) this bounds the loss by 2 T - tr(U), T = tr((A U A^T)^(1/2)). U
    may be scaled freely, and the best scale, (T / tr U)^2, gives T^2 / tr(U). For diagonal U this is Denisov et al.
    2022, Eq. 8.

    tr(U X) = tr(U) for every X with unit diagonal if U is diagonal; and for every such X with `bands` bands if U is
    zero at 0 < |i - j| < bands.

    Args:
      A: workload, (n, n).
      U: symmetric, (n, n).
    """
    factor, info = scipy.linalg.lapack.dpotrf(U, lower=True, clean=True)
    if info != 0:
        return None
    # T is the sum of singular values of A U^(1/2); from the eigenvalues of A U A^T half the digits of the small ones
    # would be lost.
    T = float(scipy.linalg.svdvals(A @ factor, overwrite_a=True, check_finite=False).sum())
    return T * T / float(np.trace(U))


def certify(
    loss: float, lower_bound: float, iterations: int, seconds: float, *, participation: Participation | None = None
) -> Certificate:
    """A Certificate; a bound that exceeds the loss by rounding is set to the loss.

    Raises:
      ArithmeticError: the bound exceeds the loss by more than rounding can explain.
    """
    if lower_bound > loss * (1.0 + 1e-9):
        raise ArithmeticError(
            f"lower bound {lower_bound} exceeds the loss {loss}: the workload is too ill-conditioned to certify"
        )
    return Certificate(
        loss=loss,
        lower_bound=min(lower_bound, loss),
        iterations=iterations,
        seconds=seconds,
        participation=participation,
    )
