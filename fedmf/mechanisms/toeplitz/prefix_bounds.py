"""What no factorization of the prefix sums can beat under a single participation."""

import numpy as np

from fedmf import checks
from fedmf.workloads import Workload


def prefix_sum_bound(n: int) -> float:
    """A lower bound on `fedmf.loss` of every encoder, for prefix sums of n rounds under a single participation.

    For any X = C^T C with columns of norm at most 1, tr(X) <= n, and tr(A^T A X^-1) >= (sum of singular values of A)^2 /
    tr(X): the dual bound of Denisov et al. 2022, Eq. 8, with equal multipliers. The singular values of the prefix sums
    are 1 / (2 sin((2 i - 1) pi / (4 n + 2))), i = 1..n.

    >>> round(prefix_sum_bound(512) ** 0.5, 2)  # the optimum is 61.98
    60.87
    """
    n = checks.integer("n", n, low=1, hint="pass the number of rounds, a positive int")
    halves = np.sin((2.0 * np.arange(1, n + 1) - 1.0) * np.pi / (4 * n + 2))
    return float(np.sum(0.5 / halves) ** 2 / n)


def henzinger_bound(n: int) -> float:
    """A lower bound on `fedmf.loss`, as `prefix_sum_bound`, in closed form, and a little lower.

    Henzinger, Upadhyay and Upadhyay 2022, Theorem 2, as printed in multi-epoch App. J: the mean squared error of any
    factorization is at least (2 + ln((2 n + 1) / 3) + ln(2 n + 1) / (2 n))^2 / pi^2 times the squared noise multiplier.

    >>> round(henzinger_bound(512) ** 0.5, 2)
    56.47
    """
    n = checks.integer("n", n, low=1, hint="pass the number of rounds, a positive int")
    return float(n * ((2.0 + np.log((2 * n + 1) / 3) + np.log(2 * n + 1) / (2 * n)) / np.pi) ** 2)


def is_prefix_sum(workload: Workload) -> bool:
    """Whether A is known to be the prefix sums, up to a factor of 1."""
    column = workload.coefficients
    return column is not None and bool((column == 1.0).all())
