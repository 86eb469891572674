"""Whitening of released noise, which turns correlated noise with the distribution that a plan
claims into independent standard normal draws.
"""

import math

import numpy as np

from fedmf import checks

# Largest change of the whitened noise, in standard deviations, that the rounding of releases to
# float32 may cause.
MAX_ROUNDING_STDDEVS = 1e-2


def causal_factor(noising: np.ndarray) -> np.ndarray:
    """Returns the Cholesky factor L of the noise covariance, L L^T = N N^T, where N is the noise
    matrix.

    L has shape (n, n) for n rounds, and is lower triangular with a positive diagonal.

    Args:
      noising: N, (n, m) of rank n.

    Raises:
      TypeError, ValueError: noising is not such a matrix.

    >>> causal_factor(np.array([[3.0, 4.0]]))
    array([[5.]])
    """
    N = checks.finite_array("noising", noising, ndim=2)
    n, m = N.shape
    if n == m and not np.triu(N, 1).any() and (np.diagonal(N) > 0).all():
        return N
    if m < n:
        raise ValueError(
            f"noising has shape {N.shape}, fewer sources than rounds: no N of an encoder has"
        )
    R = np.linalg.qr(N.T, mode="r")
    diagonal_signs = np.sign(np.diagonal(R))
    if not diagonal_signs.all():
        raise ValueError(
            "noising has linearly dependent rows: no N of an encoder has, check N C = I"
        )
    return np.ascontiguousarray((R * diagonal_signs[:, None]).T)


def whiten(factor: np.ndarray, rows: np.ndarray, scale: float) -> np.ndarray:
    """Transforms released noise so that all its entries are independent, if it is as claimed.

    The result is the whitened noise W = L^-1 Y / scale, (rounds, coordinates). If Y is noise of the
    claimed distribution, the entries of W are independent standard normals.

    Args:
      factor: L, from `causal_factor`.
      rows: Y, (n, d), the noise of each round's release.
      scale: standard deviation of Z in the units of Y, > 0.

    Raises:
      TypeError, ValueError: the shapes do not fit, an entry is not finite, scale is not positive,
        or the factor is so ill-conditioned that the rounding of float32 rows hides the noise.
    """
    import scipy.linalg

    Y = checks.finite_array("rows", rows, ndim=2)
    n = factor.shape[0]
    if Y.shape[0] != n:
        raise ValueError(
            f"rows has shape {Y.shape}, but the plan has {n} rounds: release every round once"
        )
    checks.positive("scale", scale, "noise of a plan without noise cannot be audited")
    inverse_factor = scipy.linalg.solve_triangular(
        factor, np.eye(n), lower=True, check_finite=False
    )
    # Rounding an entry of the released noise Y to float32 changes it by at most a relative 2^-24.
    rounding_effect = 2.0**-24 * math.sqrt(
        float(((inverse_factor**2) @ (factor**2).sum(axis=1)).max())
    )
    if not rounding_effect < MAX_ROUNDING_STDDEVS:
        raise ValueError(
            "noising is so ill-conditioned that the rounding of float32 rows alone moves the "
            f"whitened noise by {rounding_effect:.2g} standard deviations: this mechanism cannot "
            "be audited by its released rows"
        )
    return scipy.linalg.solve_triangular(factor, Y / scale, lower=True, check_finite=False)
