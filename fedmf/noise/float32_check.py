"""Whether float32, in which noise of model size is made, makes the noise that a stream describes.

What runs is x + N z. Where rounding gives x + N z + e, whoever undoes N sees z + N^-1 e in place of z, and the guarantee counts on z. So
Gaussian draws are sent through the stream in float32, as its executors do, and back in float64. (Not signs: of whole coefficients
float32 makes no error with them.)
"""

import numpy as np
import scipy.linalg

from fedmf.noise.blocks import BlockForm
from fedmf.noise.buffers import Buffers
from fedmf.noise.stream import NoiseStream

# How far what comes back may be from the draws. Of the library's mechanisms the worst found is off by 3e-5 (low_rank), most by some 1e-6.
_TOLERANCE, _PROBES = 1e-3, 4


def check_float32(stream: NoiseStream, *, length: int = 1, form: BlockForm | None = None) -> None:
    """Refuses a causal stream that float32 does not hold, in the form in which it is run.

    Args:
      stream: with a recurrence, buffers or a contraction.
      length: rounds of a recurrence that are made at a time, from the inverse of that block of C.
      form: of the stream, if its rows are made in blocks of that form; not for a recurrence.

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
            back = _through_recurrence(stream.recurrence, z, length)
        elif stream.buffers is not None:
            x = _through_buffers(stream.buffers, z) if form is None else _through_blocks(form, z)
            back = _back_through_buffers(stream.buffers, x)
        else:
            N = np.asarray(stream.contraction)
            back = _solved(N, N.astype(np.float32) @ z if form is None else _through_blocks(form, z))
        largest = float(np.abs(back - z).max())
    if not largest <= _TOLERANCE:
        raise ValueError(
            f"the noising matrix is too ill-conditioned for float32, in which its noise is made: it is wrong by {largest:.2g}; "
            "use a mechanism whose noise has rows of more similar size"
        )


def _solved(lower: np.ndarray, right: np.ndarray) -> np.ndarray:
    """lower^-1 right, float64; infinite where there is none."""
    try:
        return np.asarray(
            scipy.linalg.solve_triangular(lower, right.astype(np.float64), lower=True, check_finite=False)
        )
    except scipy.linalg.LinAlgError:
        return np.full(right.shape, np.inf)


def _through_blocks(form: BlockForm, z: np.ndarray) -> np.ndarray:
    L, S = form.length, np.zeros((form.width, z.shape[1]), np.float32)
    x = np.zeros((form.blocks * L, z.shape[1]), np.float32)
    x[: len(z)] = z
    for b in range(form.blocks):
        out = form.matrix(b).astype(np.float32) @ np.vstack([x[b * L : (b + 1) * L], S])
        x[b * L : (b + 1) * L], S = out[:L], out[L:]
    return x[: len(z)]


def _through_recurrence(C: np.ndarray, z: np.ndarray, length: int) -> np.ndarray:
    n, bands = C.shape
    before = bands - 1
    rounded, x = C[:, ::-1].astype(np.float32), np.zeros((before + n, z.shape[1]), np.float32)
    for s in range(0, n, length):
        if length == 1:
            x[before + s] = (z[s] - rounded[s, :-1] @ x[s : before + s]) / rounded[s, -1]
            continue
        count = min(length, n - s)
        block = np.zeros((count, before + count))
        for i in range(count):
            block[i, i : before + i + 1] = C[s + i, ::-1]
        D, E = block[:, before:], block[:, :before]
        weights = _solved(D, np.hstack([np.eye(count), -E])).astype(np.float32)
        x[before + s : before + s + count] = weights @ np.vstack([z[s : s + count], x[s : before + s]])
    back = np.zeros(z.shape)
    for j in range(bands):
        back += C[:, j, None] * x[before - j : before - j + n]
    return back


def _through_buffers(buffers: Buffers, z: np.ndarray) -> np.ndarray:
    n, w = buffers.window.shape
    window, read, write, decay = (
        getattr(buffers, name).astype(np.float32) for name in ("window", "read", "write", "decay")
    )
    x, sums = np.zeros(z.shape, np.float32), np.zeros((len(decay), z.shape[1]), np.float32)
    for t in range(n):
        recent = min(w, t + 1)
        if t >= w:
            sums = decay[:, None] * sums + np.outer(write[t - w], z[t - w])
        x[t] = window[t, :recent] @ z[t - recent + 1 : t + 1][::-1] + read[t] @ sums
    return x


def _back_through_buffers(buffers: Buffers, x: np.ndarray) -> np.ndarray:
    n, w = buffers.window.shape
    back, sums = np.zeros(x.shape), np.zeros((len(buffers.decay), x.shape[1]))
    for t in range(n):
        recent = min(w, t + 1)
        if t >= w:
            sums = buffers.decay[:, None] * sums + np.outer(buffers.write[t - w], back[t - w])
        earlier = buffers.window[t, 1:recent] @ back[t - recent + 1 : t][::-1] + buffers.read[t] @ sums
        back[t] = (x[t] - earlier) / buffers.window[t, 0]
    return back
