"""Lower bound on the error of every factorisation of prefix sums, for one participation."""

import numpy as np


def trace_norm_bound(rounds: np.ndarray) -> np.ndarray:
    """Computes a lower bound on the mean squared error of prefix sums of n rounds at noise
    multiplier 1, for each number of rounds n.

    For X = C^T C with a diagonal of at most 1, the trace of X is at most n. By the inequality of
    Cauchy and Schwarz, tr(A X^-1 A^T) tr(X) is at least the square of the trace norm of A. So the
    mean squared error, tr(A X^-1 A^T) / n, is at least (trace norm / n)^2. The singular values of A
    are 1 / (2 sin(pi (2 i - 1) / (4 n + 2))).

    The root of the bound is log(n) / pi + 0.7019 up to a term that vanishes: the constant of
    Henzinger, Kalinin and Upadhyay 2025, "Normalized Square Root" (arXiv:2509.14334), where that of
    Henzinger et al. 2022, Thm. 2, is 0.507.
    """

    def of_one(n: int) -> float:
        """Computes the bound for one number of rounds."""
        angles = np.pi * (2 * np.arange(1, n + 1) - 1) / (4 * n + 2)
        return float((1 / (2 * np.sin(angles))).sum() / n) ** 2

    return np.array([of_one(int(n)) for n in rounds])
