"""The block form of a noise stream, which computes the noise vectors of a block of rounds at a
time. A state of a few rows carries over to the next block.
"""

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import scipy.linalg

from fedmf.noise.stream import NoiseStream
from fedmf.noise.tree import TreeNoise

# Largest norm ||C E|| of the error E of a compressed noise matrix N + E, less than a rounding error
# of float32. The sensitivity grows by a factor of at most 1 / (1 - ||C E||).
MAX_DEVIATION = 1e-7
# Thresholds below which singular values are dropped, relative to the largest entry of the noise
# matrix N. They are tried in this order.
_CUTS = (1e-8, 1e-9, 1e-10, 1e-11, 1e-12, 1e-13)
# Largest number of blocks of different patterns, of a tree, whose matrices are cached.
_MAX_CACHED = 32
# Two singular values count as equal if their relative difference is below this number.
_EQUAL = 1e-6
# The first projection whose length is at least this fraction of the longest one is accepted. Two
# lengths hardly ever have exactly this odd ratio, so that rounding does not affect the choice.
_ACCEPTED_LENGTH = 0.6137


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BlockForm:
    """A computation of X = N Z in blocks of rounds, where N is the noise matrix and Z holds one
    draw per round. A state S of up to `width` rows carries over from each block to the next.

        [ X_b     ]             [ Z_b ]    X_b, Z_b   rows bounds[b] .. bounds[b + 1] - 1 of N Z, Z
        [ S_(b+1) ] = matrix(b) [ S_b ]    S_0 = 0

    Attributes:
      bounds: the first round of each block, followed by the number of rounds, n.
      width: number of rows of the largest state, r.
      matrix: block index -> float64 (rounds of the block + rows of S_(b+1), rounds of the block +
        rows of S_b).
      is_rolling: whether S_b consists of the last r rows of N Z, the newest first.

    >>> from fedmf.mechanisms import BandedMechanism
    >>> half = BandedMechanism(
    ...     diagonals=np.array([[1.0, 0.0], [1.0, 0.5], [1.0, 0.5]]), certificate_reason="by hand"
    ... )
    >>> form = block_form(half.stream(), bounds=equal_blocks(3, 2))
    >>> form.width, form.matrix(0)[:2, :2]  # S_0 is 0, so these are N's
    (1, array([[ 1. ,  0. ],
           [-0.5,  1. ]]))
    """

    bounds: tuple[int, ...]
    width: int
    matrix: Callable[[int], np.ndarray]
    is_rolling: bool = False

    @property
    def rounds(self) -> int:
        """The number of rounds, n."""
        return self.bounds[-1]

    @property
    def num_blocks(self) -> int:
        """The number of blocks."""
        return len(self.bounds) - 1

    @property
    def length(self) -> int:
        """The number of rounds of the longest block, L."""
        return int(np.diff(self.bounds).max())

    @property
    def first_width(self) -> int:
        """The number of rows of S_0, the state before the first block."""
        return self.matrix(0).shape[1] - self.bounds[1]

    def noising(self) -> np.ndarray:
        """Returns the noise matrix N that these blocks compute, float64 (rounds, rounds)."""
        n = self.rounds
        N = np.zeros((n, n))
        S = np.zeros((self.first_width, 0))
        for b, (start, stop) in enumerate(itertools.pairwise(self.bounds)):
            M = self.matrix(b)
            num_block_rounds = stop - start
            N[start:stop, :start] = M[:num_block_rounds, num_block_rounds:] @ S
            N[start:stop, start:stop] = M[:num_block_rounds, :num_block_rounds]
            S = np.hstack(
                [
                    M[num_block_rounds:, num_block_rounds:] @ S,
                    M[num_block_rounds:, :num_block_rounds],
                ]
            )
        return N


def equal_blocks(rounds: int, length: int) -> tuple[int, ...]:
    """Returns the bounds of blocks of `length` rounds, of which the last one may be shorter.

    >>> equal_blocks(5, 2)
    (0, 2, 4, 5)
    """
    return (*range(0, rounds, length), rounds)


def growing_blocks(rounds: int, longest: int) -> tuple[int, ...]:
    """Returns the bounds of blocks whose lengths double until they reach `longest` rounds.

    While they double, a block is as long as all blocks before it together. If a block is computed
    while the previous one is used, that takes at most two rows a round, and a single row before
    round 0.

    >>> growing_blocks(20, 4)
    (0, 1, 2, 4, 8, 12, 16, 20)
    """
    block_bounds = [0]
    block_length = 1
    while block_length < longest and block_bounds[-1] + block_length < rounds:
        block_bounds.append(block_bounds[-1] + block_length)
        block_length = min(block_bounds[-1], longest)
    return (*block_bounds, *range(block_bounds[-1] + block_length, rounds, block_length), rounds)


def block_form(
    stream: NoiseStream, *, bounds: tuple[int, ...], max_width: int | None = None
) -> BlockForm | None:
    """Returns the block form of a noise stream, or None if its state would have more than
    `max_width` rows.

    The state of a recurrence is its last bands - 1 rows, that of buffers their sums and last draws,
    that of a tree the sums of its last finished nodes. A contraction is compressed: rounds s, s +
    1, ... need N[s:, :s] Z[:s] of the draws before s, and this matrix has low rank for smooth
    Toeplitz matrices and sums of few exponentials. S_b holds the product in orthonormal
    coordinates, which follow from a singular value decomposition for each block (the sequentially
    semiseparable form of Chandrasekaran et al. 2005). Singular values are cut off only if the
    encoder stays the same to 7 digits; see MAX_DEVIATION.

    Args:
      stream: a stream that `NoiseStream.causal` accepts.
      bounds: bounds of the blocks; see `BlockForm`.
      max_width: largest number of rows of the state; None for any number.
    """
    stream = stream.causal()
    if stream.contraction is not None:
        if max_width is None:
            max_width = stream.rounds
        return _compress(stream.contraction, bounds, max_width)
    if max_width is not None and stream.width > max_width:
        return None
    return BlockForm(
        bounds=bounds,
        width=stream.width,
        matrix=_StreamMatrices(stream, bounds),
        is_rolling=stream.recurrence is not None,
    )


class _StreamMatrices:
    """A function that returns the matrix of each block of a recurrence or of buffers, given the
    index of the block.

    Successive blocks of equal coefficients, as Toeplitz encoders have, share one matrix, as do
    blocks of the same pattern in a tree.
    """

    def __init__(self, stream: NoiseStream, bounds: tuple[int, ...]) -> None:
        self._stream = stream
        self._bounds = bounds
        self._cached: dict[tuple[bytes, ...], np.ndarray] = {}
        has_patterns = stream.tree is not None and stream.tree.has_patterns
        self._max_cached = _MAX_CACHED if has_patterns else 1

    def __call__(self, b: int) -> np.ndarray:
        start = self._bounds[b]
        stop = self._bounds[b + 1]
        coefficients = self._stream.coefficients(start, stop)
        matrix = self._cached.get(coefficients)
        if matrix is None:
            # Overflow is ignored here, because `check_float32` refuses a matrix that has
            # overflowed.
            with np.errstate(all="ignore"):
                matrix = self._stream.block(start, stop)
            matrix.setflags(write=False)
            is_full = len(self._cached) >= self._max_cached
            cached = {} if is_full else self._cached
            # The coefficients and their matrix are cached in one assignment, so that an interrupt
            # cannot separate them.
            self._cached = {**cached, coefficients: matrix}
        return matrix


def with_small_first_states(form: BlockForm) -> BlockForm:
    """Returns a block form with the same blocks, whose state has at most one row per earlier round.

    While there are fewer draws than rows of a state, the draws themselves are the state, those of
    the newest block first. The first blocks have few rounds, and each of them would otherwise read
    and write a whole state.
    """
    if form.is_rolling:
        return form
    first_matrices = []
    # The state S_b before block b is a linear function of the draws so far, S_b = state_of_draws @
    # draws.
    state_of_draws = np.zeros((form.first_width, 0))
    for b, (start, stop) in enumerate(itertools.pairwise(form.bounds)):
        M = form.matrix(b)
        num_block_rounds = stop - start
        M = np.hstack([M[:, :num_block_rounds], M[:, num_block_rounds:] @ state_of_draws])
        state_of_draws = M[num_block_rounds:]
        if len(state_of_draws) <= stop:
            first_matrices.append(M)
            break
        first_matrices.append(np.concatenate([M[:num_block_rounds], np.eye(stop)]))

    def matrix(b: int) -> np.ndarray:
        return first_matrices[b] if b < len(first_matrices) else form.matrix(b)

    return dataclasses.replace(form, matrix=matrix)


def without_unread_sums(form: BlockForm, trees: TreeNoise) -> BlockForm:
    """Returns the block form of a tree whose states have only the running sums that later rounds
    read, which are those of the ones in the binary digits of the next round.
    """
    block_bounds = np.array(form.bounds)
    local_bounds = block_bounds % trees.rounds_per_tree
    is_read = local_bounds[:, None] >> np.arange(form.width) & 1 == 1

    def matrix(b: int) -> np.ndarray:
        num_block_rounds = form.bounds[b + 1] - form.bounds[b]
        block_indices = np.arange(num_block_rounds)
        rows = np.append(block_indices, num_block_rounds + np.flatnonzero(is_read[b + 1]))
        columns = np.append(block_indices, num_block_rounds + np.flatnonzero(is_read[b]))
        return form.matrix(b)[np.ix_(rows, columns)]

    width = int(is_read.sum(axis=1).max())
    return dataclasses.replace(form, width=width, matrix=matrix)


def _compress(N: np.ndarray, bounds: tuple[int, ...], max_width: int) -> BlockForm | None:
    """Returns the block form of a compressed noise matrix N, or None if the compression needs
    states of more than `max_width` rows.
    """
    rounds_per_block = np.diff(bounds).tolist()
    for cut in _CUTS:
        block_matrices = _truncated_matrices(N, bounds, max_width, cut * float(np.abs(N).max()))
        # A smaller threshold for singular values would need an even larger state, so no further
        # threshold is tried.
        if block_matrices is None:
            return None
        state_width = max(
            len(M) - count for M, count in zip(block_matrices, rounds_per_block, strict=True)
        )
        compressed_form = BlockForm(
            bounds=bounds, width=state_width, matrix=block_matrices.__getitem__
        )
        if deviation(compressed_form.noising(), N) <= MAX_DEVIATION:
            return compressed_form
    return None


def deviation(approximation: np.ndarray, N: np.ndarray) -> float:
    """Returns the Frobenius norm of C E, where E = approximation - N is the error and C = N^-1 the
    encoder.
    """
    encoded_error = scipy.linalg.solve_triangular(
        N, approximation - N, lower=True, check_finite=False
    )
    return float(np.linalg.norm(encoded_error))


def _truncated_matrices(
    N: np.ndarray, bounds: tuple[int, ...], max_width: int, cut: float
) -> list[np.ndarray] | None:
    """Returns the block matrices of the noise matrix N with all singular values up to `cut`
    dropped, or None if a state has more than `max_width` rows.

    The shape of each is (rounds of the block + r_(b+1), rounds of the block + r_b), where r_b is
    the number of rows of the state S_b.
    """
    n = len(N)
    # The effect of earlier draws on later rounds, N[s:, :s], in the coordinates of the state that
    # carries over.
    needed_columns = np.zeros((n, 0))
    block_matrices = []
    for s, e in itertools.pairwise(bounds):
        block_columns = np.hstack([N[s:e, s:e], needed_columns[: e - s]])
        if e == n:
            block_matrices.append(block_columns)
            break
        next_rows = np.hstack([N[e:, s:e], needed_columns[e - s :]])
        U, values, V = scipy.linalg.svd(next_rows, full_matrices=False, check_finite=False)
        state_width = int((values > cut).sum())
        if state_width > max_width:
            return None
        rotation = _canonical_rotation(values[:state_width], V[:state_width])
        needed_columns = (U[:, :state_width] * values[:state_width]) @ rotation.T
        block_matrices.append(np.vstack([block_columns, rotation @ V[:state_width]]))
    return block_matrices


def _canonical_rotation(values: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Returns the orthogonal matrix, float64 (r, r), that rotates singular vectors to a basis that
    does not depend on the LAPACK in use.

    With it a saved state means the same under every LAPACK. A singular value determines its vector
    up to the sign, and equal values determine only the space of their vectors. A state in one basis
    that is continued in another would not be noise of this mechanism. The canonical basis of a
    space is built from projections of unit vectors onto it. Each step takes the first unit vector
    whose projection is not much shorter than the longest.

    Args:
      values: decreasing singular values, (r,).
      right: their right singular vectors, orthonormal rows (r, m).
    """
    num_vectors = len(values)
    rotation = np.zeros((num_vectors, num_vectors))
    group_starts = np.flatnonzero(values[1:] < (1 - _EQUAL) * values[:-1]) + 1
    for start, end in zip([0, *group_starts], [*group_starts, num_vectors], strict=True):
        # Each column of `projections` is the projection of a unit vector onto the part of the space
        # that the new basis does not span yet.
        projections = right[start:end].copy()
        for i in range(start, end):
            projection_lengths = np.linalg.norm(projections, axis=0)
            longest_column = int(
                np.argmax(projection_lengths >= _ACCEPTED_LENGTH * projection_lengths.max())
            )
            basis_vector = projections[:, longest_column] / projection_lengths[longest_column]
            rotation[i, start:end] = basis_vector
            projections -= np.outer(basis_vector, basis_vector @ projections)
    return rotation
