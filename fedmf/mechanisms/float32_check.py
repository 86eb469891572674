"""Whether float32, in which noise of model size is made, makes the noise that a stream describes.

What runs is x + N z. Where rounding gives x + N z + e, whoever undoes N sees z + N^-1 e in place of z, and the guarantee counts on z. So
Gaussian draws are sent through the stream in float32, as its executors do, and back in float64. (Not signs: of whole coefficients
float32 makes no error with them.)
"""

import numpy as np
import scipy.linalg

from fedmf.mechanisms.buffers import Buffers
from fedmf.mechanisms.stream import NoiseStream

# How far what comes back may be from the draws. Of the library's mechanisms the worst found is off by 3e-5 (low_rank), most by some 1e-6.
_TOLERANCE, _PROBES = 1e-3, 4


def check_float32(stream: NoiseStream) -> None:
    """Refuses a causal stream that float32 does not hold, in whichever form it is run there.

    Raises:
      ValueError: the noise would have another distribution.

    >>> inverse_grows = np.array([[1.0, 0.0]] + [[1.0, 2.0]] * 39)  # N has entries up to 2^39
    >>> check_float32(NoiseStream(rounds=40, sources=40, recurrence=inverse_grows))
    Traceback (most recent call last):
    ValueError: the noising matrix is too ill-conditioned for float32, in which its noise is made: ...
    """
    z = np.random.default_rng(0).standard_normal((stream.rounds, _PROBES), np.float32)
    with np.errstate(all="ignore"):  # an overflow fails the comparison
        if stream.recurrence is not None:
            back = _through_recurrence(stream.recurrence, z)
        elif stream.buffers is not None:
            back = _through_buffers(stream.buffers, z)
        else:
            back = _through_contraction(np.asarray(stream.contraction), z)
        largest = float(np.abs(back - z).max())
    if not largest <= _TOLERANCE:
        raise ValueError(
            f"the noising matrix is too ill-conditioned for float32, in which its noise is made: it is wrong by {largest:.2g}; "
            "use a mechanism whose noise has rows of more similar size"
        )


def _through_contraction(N: np.ndarray, z: np.ndarray) -> np.ndarray:
    x = N.astype(np.float32) @ z
    try:
        return np.asarray(scipy.linalg.solve_triangular(N, x.astype(np.float64), lower=True, check_finite=False))
    except scipy.linalg.LinAlgError:
        return np.full(z.shape, np.inf)


def _through_recurrence(C: np.ndarray, z: np.ndarray) -> np.ndarray:
    n, bands = C.shape
    before = bands - 1
    rounded, x = C[:, ::-1].astype(np.float32), np.zeros((before + n, z.shape[1]), np.float32)
    for t in range(n):
        x[before + t] = (z[t] - rounded[t, :-1] @ x[t : before + t]) / rounded[t, -1]
    back = np.zeros(z.shape)
    for j in range(bands):
        back += C[:, j, None] * x[before - j : before - j + n]
    return back


def _through_buffers(buffers: Buffers, z: np.ndarray) -> np.ndarray:
    n, w = buffers.window.shape
    window, read, write, decay = (
        getattr(buffers, name).astype(np.float32) for name in ("window", "read", "write", "decay")
    )
    back, (sums, sums_back) = np.zeros(z.shape), np.zeros((2, len(decay), z.shape[1]))
    sums = sums.astype(np.float32)
    for t in range(n):
        recent = min(w, t + 1)
        if t >= w:
            sums = decay[:, None] * sums + np.outer(write[t - w], z[t - w])
            sums_back = buffers.decay[:, None] * sums_back + np.outer(buffers.write[t - w], back[t - w])
        x = window[t, :recent] @ z[t - recent + 1 : t + 1][::-1] + read[t] @ sums
        earlier = buffers.window[t, 1:recent] @ back[t - recent + 1 : t][::-1] + buffers.read[t] @ sums_back
        back[t] = (x - earlier) / buffers.window[t, 0]
    return back
