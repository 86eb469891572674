"""Bounds on the squared sensitivity to one client. It is the maximum of sum_ij X_ij <g_i, g_j> over
unit vectors g_i, one for each round i of the client.
"""

import numpy as np
import scipy.linalg

# Coordinate ascent ends after a pass over all vectors that raises the sum by less than this
# fraction.
_CONVERGED = 1e-13
_MAX_SWEEPS = 2000


def vector_sensitivity_bounds(X: np.ndarray) -> tuple[float, float]:
    """Computes an attained value and an upper bound of the maximum of sum_ij X_ij <g_i, g_j> over
    unit vectors g_i.

    The g_i are unit vectors of any dimension.

    The maximum runs over the correlation matrices R_ij = <g_i, g_j>, a convex set (the elliptope),
    so it is a semidefinite program with the dual min sum(y) such that diag(y) - X is positive
    semidefinite. Coordinate ascent over the g_i (each is best along sum_j X_ij g_j, j != i) gives
    the attained value; y_i = <g_i, sum_j X_ij g_j>, raised until diag(y) - X is positive
    semidefinite, gives the bound, which holds whether or not the ascent has converged.

    Args:
      X: symmetric positive semidefinite, float64 (k, k).

    Returns:
      (attained, bound), attained <= bound. They agree to about 1e-9 of the value where
      the ascent converges.

    >>> X = np.array([[1.0, -0.5], [-0.5, 1.0]])
    >>> [round(value, 6) for value in vector_sensitivity_bounds(X)]
    [3.0, 3.0]
    """
    k = X.shape[0]
    # The vectors g_i are the rows of G. By Barvinok and Pataki the maximum is attained by some G of
    # rank r with r (r + 1) / 2 <= k. The rows have one more dimension than this r, which avoids bad
    # local maxima.
    G = np.random.default_rng(0).standard_normal((k, int(np.sqrt(2 * k)) + 2))
    G /= np.linalg.norm(G, axis=1, keepdims=True)
    diagonal = np.diagonal(X)
    attained_value = -np.inf
    for _ in range(_MAX_SWEEPS):
        for i in range(k):
            direction = X[i] @ G - diagonal[i] * G[i]
            direction_norm = np.linalg.norm(direction)
            if direction_norm > 0.0:
                G[i] = direction / direction_norm
        XG = X @ G
        previous_value = attained_value
        attained_value = float(np.sum(G * XG))
        if attained_value - previous_value <= _CONVERGED * attained_value:
            break
    row_products = np.einsum("ij,ij->i", G, XG)
    smallest_eigenvalue = float(
        scipy.linalg.eigvalsh(np.diag(row_products) - X, subset_by_index=(0, 0))[0]
    )
    # The computed eigenvalue has a rounding error, which is proportional to the norm of the matrix.
    # The bound is raised by that error, so that it stays an upper bound.
    norm_bound = float(np.abs(row_products).max() + np.linalg.norm(X))
    rounding_error = 4.0 * k * float(np.finfo(np.float64).eps) * norm_bound
    return attained_value, float(row_products.sum()) + k * max(
        0.0, rounding_error - smallest_eigenvalue
    )
