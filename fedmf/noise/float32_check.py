"""The check that the noise of a stream keeps its distribution when it is computed in float32.

A run releases x + N z. If rounding makes it x + N z + e, an adversary who inverts N sees z + N^-1 e
in place of z, but the guarantee is for z. So the check passes Gaussian draws through the stream in
float32, as a run does, and recovers them in float64. Random signs would not do, since float32 has
no rounding errors on them if the coefficients are whole numbers.
"""

import itertools

import numpy as np
import scipy.linalg

from fedmf.noise.blocks import BlockForm, block_form, equal_blocks
from fedmf.noise.stream import NoiseStream

# Largest error of the standard normal draws that are recovered from float32 noise vectors. Most
# mechanisms of fedmf have errors near 1e-6, low_rank 3e-5, and fft up to 3e-4 at 100,000 rounds.
_TOLERANCE = 1e-3
_NUM_PROBES = 4
# Number of rounds whose draws are recovered from their noise vectors at a time.
_BLOCK_ROUNDS = 64


def check_float32(stream: NoiseStream, form: BlockForm | None = None) -> None:
    """Raises ValueError if float32 is not accurate enough for a causal noise stream, so that its
    noise would have another distribution.

    Args:
      stream: a causal stream of any form.
      form: the blocks in which a run computes the stream; None for one round at a time, and for the
        rows of a contraction themselves.

    >>> inverse_grows = np.array([[1.0, 0.0]] + [[1.0, 2.0]] * 39)  # N has entries up to 2^39
    >>> check_float32(NoiseStream(rounds=40, sources=40, recurrence=inverse_grows))
    Traceback (most recent call last):
    ValueError: the noising matrix is too ill-conditioned for float32, ...
    """
    float32_draws = np.random.default_rng(0).standard_normal(
        (stream.rounds, _NUM_PROBES), np.float32
    )
    # If the recovered draws overflow, their error is infinite or NaN, and the check of the error
    # fails.
    with np.errstate(all="ignore"):
        recovered_draws = _recovered_draws(stream, form, float32_draws)
        max_error = float(np.abs(recovered_draws - float32_draws).max())
    if not max_error <= _TOLERANCE:
        raise ValueError(
            "the noising matrix is too ill-conditioned for float32, in which its noise is made: it "
            f"is wrong by {max_error:.2g}; use a mechanism whose noise has rows of more similar "
            "size"
        )


def _recovered_draws(stream: NoiseStream, form: BlockForm | None, z: np.ndarray) -> np.ndarray:
    """Recovers the draws z, float64, from the rows of N z as they are computed in float32, where N
    is the noise matrix.
    """
    if stream.contraction is not None:
        N = stream.contraction
        noise_rows = N.astype(np.float32) @ z if form is None else _rows_of_run(form, z)
        return _solve(N, noise_rows)
    if form is None:
        form = block_form(stream, bounds=equal_blocks(stream.rounds, 1))
        assert form is not None
    noise_rows = _rows_of_run(form, z)
    if stream.tree is not None:
        return stream.tree.draws_of(noise_rows.astype(np.float64))
    if stream.recurrence is None:
        return _invert_buffers(stream, noise_rows)
    return _invert_recurrence(stream, noise_rows)


def _rows_of_run(form: BlockForm, z: np.ndarray) -> np.ndarray:
    """Returns the float32 rows of N z, computed in the same way as in a run, where N is the noise
    matrix.
    """
    noise_rows = z.copy()
    state_rows = np.zeros((form.first_width, z.shape[1]), np.float32)
    for b, (start, stop) in enumerate(itertools.pairwise(form.bounds)):
        block_output = form.matrix(b).astype(np.float32) @ np.concatenate(
            [z[start:stop], state_rows]
        )
        noise_rows[start:stop] = block_output[: stop - start]
        state_rows = block_output[stop - start :]
    return noise_rows


def _invert_recurrence(stream: NoiseStream, x: np.ndarray) -> np.ndarray:
    """Returns the draws z = C x, float64, from the rows x of N z and the diagonals of the encoder
    C, where N = C^-1.
    """
    assert stream.recurrence is not None
    recovered_draws = np.zeros(x.shape)
    for j, diagonal in enumerate(stream.recurrence.T):
        recovered_draws[j:] += diagonal[j:, None] * x[: len(x) - j]
    return recovered_draws


def _invert_buffers(stream: NoiseStream, x: np.ndarray) -> np.ndarray:
    """Returns the draws z, float64, from the rows x of N z that buffers computed, where N is the
    noise matrix. It solves one block of rounds after another.
    """
    block_bounds = equal_blocks(stream.rounds, _BLOCK_ROUNDS)
    buffer_form = block_form(stream, bounds=block_bounds)
    assert buffer_form is not None
    recovered_draws = np.zeros(x.shape)
    S = np.zeros((buffer_form.width, x.shape[1]))
    for b, (start, stop) in enumerate(itertools.pairwise(block_bounds)):
        M = buffer_form.matrix(b)
        num_rounds = stop - start
        recovered_draws[start:stop] = _solve(
            M[:num_rounds, :num_rounds], x[start:stop] - M[:num_rounds, num_rounds:] @ S
        )
        S = M[num_rounds:] @ np.concatenate([recovered_draws[start:stop], S])
    return recovered_draws


def _solve(N: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Returns N^-1 x in float64 for a lower-triangular N, or infinities if N is singular."""
    try:
        return np.asarray(
            scipy.linalg.solve_triangular(N, x.astype(np.float64), lower=True, check_finite=False)
        )
    except scipy.linalg.LinAlgError:
        return np.full(x.shape, np.inf)
