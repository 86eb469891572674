"""Whether float32, in which noise of model size is made, makes the noise that a stream describes.

What runs is x + N z. Where rounding gives x + N z + e, an adversary who undoes N sees z + N^-1 e in
place of z, and the guarantee counts on z. So Gaussian draws are sent through the stream in float32,
as in a run, and back in float64. (Not signs: with whole coefficients float32 makes no
error on them.)
"""

import itertools

import numpy as np
import scipy.linalg

from fedmf.noise.blocks import BlockForm, block_form, equal_blocks
from fedmf.noise.stream import NoiseStream

# The largest error of a recovered draw, whose deviation is 1. Most of the library's mechanisms are
# near 1e-6, low_rank at 3e-5; that of fft grows with the rounds, to 3e-4 at 100,000.
_TOLERANCE, _PROBES = 1e-3, 4
# Rounds whose draws are recovered together.
_BLOCK = 64


def check_float32(stream: NoiseStream, form: BlockForm | None = None) -> None:
    """Refuses a causal stream that float32 does not hold, in the form in which it is run.

    Args:
      stream: with a recurrence, buffers or a contraction.
      form: the stream's blocks as they are run; None for one round at a time, and for the rows of a
        contraction themselves.

    Raises:
      ValueError: the noise would have another distribution.

    >>> inverse_grows = np.array([[1.0, 0.0]] + [[1.0, 2.0]] * 39)  # N has entries up to 2^39
    >>> check_float32(NoiseStream(rounds=40, sources=40, recurrence=inverse_grows))
    Traceback (most recent call last):
    ValueError: the noising matrix is too ill-conditioned for float32, ...
    """
    z = np.random.default_rng(0).standard_normal((stream.rounds, _PROBES), np.float32)
    with np.errstate(all="ignore"):  # an overflow fails the comparison
        if stream.contraction is not None:
            N = stream.contraction
            rows = N.astype(np.float32) @ z if form is None else _rows(form, z)
            back = _solved(N, rows)
        else:
            form = form or block_form(stream, bounds=equal_blocks(stream.rounds, 1))
            assert form is not None
            rows = _rows(form, z)
            back = _draws(stream, rows) if stream.recurrence is None else _decoded(stream, rows)
        largest = float(np.abs(back - z).max())
    if not largest <= _TOLERANCE:
        raise ValueError(
            "the noising matrix is too ill-conditioned for float32, in which its noise is made: it "
            f"is wrong by {largest:.2g}; use a mechanism whose noise has rows of more similar size"
        )


def _rows(form: BlockForm, z: np.ndarray) -> np.ndarray:
    """The rows of N z as a run makes them, float32."""
    x, S = z.copy(), np.zeros((form.first_width, z.shape[1]), np.float32)
    for b, (start, stop) in enumerate(itertools.pairwise(form.bounds)):
        out = form.matrix(b).astype(np.float32) @ np.concatenate([z[start:stop], S])
        x[start:stop], S = out[: stop - start], out[stop - start :]
    return x


def _decoded(stream: NoiseStream, x: np.ndarray) -> np.ndarray:
    """z = C x from the rows x of N z and C's diagonals, float64."""
    assert stream.recurrence is not None
    z = np.zeros(x.shape)
    for j, diagonal in enumerate(stream.recurrence.T):
        z[j:] += diagonal[j:, None] * x[: len(x) - j]
    return z


def _draws(stream: NoiseStream, x: np.ndarray) -> np.ndarray:
    """z from the rows x of N z of buffers, float64: each block's by solving for them."""
    bounds = equal_blocks(stream.rounds, _BLOCK)
    form = block_form(stream, bounds=bounds)
    assert form is not None
    z, S = np.zeros(x.shape), np.zeros((form.width, x.shape[1]))
    for b, (start, stop) in enumerate(itertools.pairwise(bounds)):
        M, count = form.matrix(b), stop - start
        z[start:stop] = _solved(M[:count, :count], x[start:stop] - M[:count, count:] @ S)
        S = M[count:] @ np.concatenate([z[start:stop], S])
    return z


def _solved(N: np.ndarray, x: np.ndarray) -> np.ndarray:
    """N^-1 x, float64; infinite where there is none."""
    try:
        return np.asarray(
            scipy.linalg.solve_triangular(N, x.astype(np.float64), lower=True, check_finite=False)
        )
    except scipy.linalg.LinAlgError:
        return np.full(x.shape, np.inf)
