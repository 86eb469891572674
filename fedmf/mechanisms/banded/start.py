"""Where a banded fit starts: the best Toeplitz encoder of as many bands, found in a few milliseconds."""

import numpy as np

from fedmf.mechanisms.fitting.lbfgs import minimise
from fedmf.workloads import Workload

_MAX_STEPS = 60
_ENOUGH = 1e-4  # relative decrease in a step below which the start is good enough


def toeplitz_start(workload: Workload, bands: int) -> np.ndarray:
    """Coefficients c of a Toeplitz C, float64 (bands,), c[0] = 1, that is good for `workload` with columns of one norm.

    Of a workload with banded inverse a typical row of that is taken for all rounds, and the coefficients minimise
    |c|^2 ||A C^-1||_F^2. Otherwise, and where such a workload grows without bound, they are those of (1 - x)^(-1/2),
    the square root of the prefix sums.

    >>> from fedmf.workloads import identity
    >>> abs(toeplitz_start(identity(8), 2)[1]) < 1e-3
    True
    """
    lags = np.arange(1, bands)
    square_root = np.cumprod((2 * lags - 1) / (2 * lags))
    rows = workload.inverse_diagonals
    if rows is None or bands == 1:
        return np.append(1.0, square_root)
    import scipy.signal

    n, p = rows.shape
    typical = np.median(rows[p - 1 :] / rows[p - 1 :, :1], axis=0)
    impulse = np.zeros(n)
    impulse[0] = 1.0
    A = scipy.signal.lfilter([1.0], typical, impulse)
    remaining = np.arange(n, 0, -1.0)  # the coefficient of lag s stands in n - s entries

    def log_loss(free: np.ndarray) -> tuple[float, np.ndarray]:
        c = np.append(1.0, free)
        with np.errstate(all="ignore"):
            B = scipy.signal.lfilter([1.0], c, A)
            BC = scipy.signal.lfilter([1.0], c, B)
            loss, weighted = float(remaining @ B**2), remaining * B
            if not np.isfinite(loss * float(np.abs(BC).max())):
                return np.inf, np.zeros_like(free)
            along = -2.0 * np.array([weighted[o:] @ BC[: n - o] for o in range(1, bands)])
        return float(np.log(loss * (c @ c))), along / loss + 2.0 * free / (c @ c)

    found = square_root
    if np.isfinite(log_loss(found)[0]):
        before = np.inf
        for step, (ahead, value) in enumerate(minimise(log_loss, square_root)):
            found = ahead
            if step >= _MAX_STEPS or before - value < _ENOUGH:
                break
            before = value
    return np.append(1.0, found)
