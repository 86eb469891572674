"""Noise in blocks of rounds, with a state of few rows between the blocks."""

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import scipy.linalg

from fedmf.noise.stream import NoiseStream

# A compressed noising matrix N + E stands for the encoder (I + C E)^-1 C, whose sensitivity is that
# of C within a factor 1 / (1 - ||C E||). It is used only where the norm is below this, which is
# less than float32 rounds.
MAX_DEVIATION = 1e-7
# Singular values that are cut off, relative to the largest entry of N: tried from the left.
_CUTS = (1e-8, 1e-9, 1e-10, 1e-11, 1e-12, 1e-13)
# Singular values closer than this, relative to the larger, count as equal.
_EQUAL = 1e-6
# A projection this long, relative to the longest, is long enough. No simple fraction, at which
# rounding would decide.
_LONG = 0.6137


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BlockForm:
    """The rows X of N Z block by block, with a state S of `width` rows between the blocks:

        [ X_b     ]             [ Z_b ]    X_b, Z_b   rows bounds[b] .. bounds[b + 1] - 1 of N Z, Z
        [ S_(b+1) ] = matrix(b) [ S_b ]    S_0 = 0

    Attributes:
      bounds: the first round of each block, and behind them the number of rounds, n.
      width: rows of the largest state, r.
      matrix: block number -> float64 (rounds of the block + rows of S_(b+1), rounds of the block +
        rows of S_b).
      rolling: whether S_b holds the last r rows of N Z themselves, the newest first.

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
    rolling: bool = False

    @property
    def rounds(self) -> int:
        """The number of rounds, n."""
        return self.bounds[-1]

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return len(self.bounds) - 1

    @property
    def length(self) -> int:
        """Rounds of the longest block, L."""
        return int(np.diff(self.bounds).max())

    @property
    def first_width(self) -> int:
        """Rows of S_0."""
        return self.matrix(0).shape[1] - self.bounds[1]

    def noising(self) -> np.ndarray:
        """The N that these blocks write, float64 (rounds, rounds)."""
        n = self.rounds
        N, S = np.zeros((n, n)), np.zeros((self.first_width, 0))
        for b, (start, stop) in enumerate(itertools.pairwise(self.bounds)):
            M, count = self.matrix(b), stop - start
            N[start:stop, :start] = M[:count, count:] @ S
            N[start:stop, start:stop] = M[:count, :count]
            S = np.hstack([M[count:, count:] @ S, M[count:, :count]])
        return N


def equal_blocks(rounds: int, length: int) -> tuple[int, ...]:
    """Returns the bounds of blocks of one length; the last block may be shorter.

    >>> equal_blocks(5, 2)
    (0, 2, 4, 5)
    """
    return (*range(0, rounds, length), rounds)


def growing_blocks(rounds: int, longest: int) -> tuple[int, ...]:
    """Returns the bounds of blocks that double up to `longest` rounds.

    A block is as long as all before it. Made while the block before it is used, it never takes more
    than two rows a round, and nothing but one row is made before round 0.

    >>> growing_blocks(20, 4)
    (0, 1, 2, 4, 8, 12, 16, 20)
    """
    bounds = [0]
    length = 1
    while length < longest and bounds[-1] + length < rounds:
        bounds.append(bounds[-1] + length)
        length = min(bounds[-1], longest)
    return (*bounds, *range(bounds[-1] + length, rounds, length), rounds)


def block_form(
    stream: NoiseStream, *, bounds: tuple[int, ...], max_width: int | None = None
) -> BlockForm | None:
    """The stream in blocks, or None where that takes a state of more than `max_width` rows.

    The state of a recurrence is its last bands - 1 rows, that of buffers their sums and last draws.
    A contraction is compressed. Rounds s, s + 1, ... need N[s:, :s] Z[:s] of the draws before s,
    and that matrix has low rank for trees, smooth Toeplitz matrices and sums of few exponentials.
    S_b holds it in orthonormal coordinates, which singular value decompositions give block after
    block (the sequentially semiseparable form of Chandrasekaran et al. 2005). Singular values are
    cut off only where the encoder stays the same to 7 digits; see MAX_DEVIATION.

    Args:
      stream: anything `NoiseStream.causal` accepts.
      bounds: of the blocks; see `BlockForm`.
      max_width: rows that the state may have; None for any number.
    """
    stream = stream.causal()
    if stream.contraction is not None:
        return _compressed(
            stream.contraction, bounds, stream.rounds if max_width is None else max_width
        )
    if max_width is not None and stream.width > max_width:
        return None
    return BlockForm(
        bounds=bounds,
        width=stream.width,
        matrix=_StreamMatrices(stream, bounds),
        rolling=stream.recurrence is not None,
    )


class _StreamMatrices:
    """The block matrices of a recurrence or of buffers. Blocks of equal coefficients one after the
    other, as Toeplitz encoders have, share one matrix.
    """

    def __init__(self, stream: NoiseStream, bounds: tuple[int, ...]) -> None:
        self._stream, self._bounds = stream, bounds
        self._newest: tuple[tuple[bytes, ...], np.ndarray] = ((), np.zeros((0, 0)))

    def __call__(self, b: int) -> np.ndarray:
        start, stop = self._bounds[b], self._bounds[b + 1]
        coefficients = self._stream.coefficients(start, stop)
        key, matrix = self._newest
        if key != coefficients:
            with np.errstate(all="ignore"):  # what overflows is refused by the check of float32
                matrix = self._stream.block(start, stop)
            matrix.setflags(write=False)
            self._newest = coefficients, matrix
        return matrix


def with_small_first_states(form: BlockForm) -> BlockForm:
    """Returns the same blocks with smaller states in the beginning: while there are fewer draws
    than rows of a state, the draws themselves are the state, those of the newest block first.

    The first blocks have few rounds, and would else read and write a whole state for each of them.
    """
    if form.rolling:
        return form
    matrices = []
    of_draws = np.zeros((form.first_width, 0))  # S_b = of_draws @ draws
    for b, (start, stop) in enumerate(itertools.pairwise(form.bounds)):
        M, count = form.matrix(b), stop - start
        M = np.hstack([M[:, :count], M[:, count:] @ of_draws])
        of_draws = M[count:]
        if len(of_draws) <= stop:
            matrices.append(M)
            break
        matrices.append(np.concatenate([M[:count], np.eye(stop)]))

    def matrix(b: int) -> np.ndarray:
        return matrices[b] if b < len(matrices) else form.matrix(b)

    return dataclasses.replace(form, matrix=matrix)


def _compressed(N: np.ndarray, bounds: tuple[int, ...], max_width: int) -> BlockForm | None:
    counts = np.diff(bounds).tolist()
    for cut in _CUTS:
        matrices = _cut_off(N, bounds, max_width, cut * float(np.abs(N).max()))
        if matrices is None:  # a smaller cut is wider still
            return None
        width = max(len(M) - count for M, count in zip(matrices, counts, strict=True))
        form = BlockForm(bounds=bounds, width=width, matrix=matrices.__getitem__)
        if deviation(form.noising(), N) <= MAX_DEVIATION:
            return form
    return None


def deviation(written: np.ndarray, N: np.ndarray) -> float:
    """||C E||, an upper bound (Frobenius) for E = written - N and C = N^-1."""
    return float(
        np.linalg.norm(
            scipy.linalg.solve_triangular(N, written - N, lower=True, check_finite=False)
        )
    )


def _cut_off(
    N: np.ndarray, bounds: tuple[int, ...], max_width: int, cut: float
) -> list[np.ndarray] | None:
    """The blocks' matrices, each (rounds of the block + r_(b+1), rounds of the block + r_b)."""
    n = len(N)
    needed = np.zeros((n, 0))  # N[s:, :s] on the coordinates of S_b
    matrices = []
    for s, e in itertools.pairwise(bounds):
        block = np.hstack([N[s:e, s:e], needed[: e - s]])
        if e == n:
            matrices.append(block)
            break
        ahead = np.hstack([N[e:, s:e], needed[e - s :]])
        left, values, right = scipy.linalg.svd(ahead, full_matrices=False, check_finite=False)
        r = int((values > cut).sum())
        if r > max_width:
            return None
        turn = _settled(values[:r], right[:r])
        needed = (left[:, :r] * values[:r]) @ turn.T
        matrices.append(np.vstack([block, turn @ right[:r]]))
    return matrices


def _settled(values: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Orthogonal (r, r) that rotates `right`, orthonormal rows (r, m), to a canonical basis: a
    saved state means the same under any LAPACK.

    Singular values determine their vectors up to the sign, and equal ones only the space that they
    span. A state of one basis continued in another would not be noise of this mechanism. The
    canonical basis of a space consists of projections of unit vectors onto it: each time of the
    first one whose projection is not much shorter than the longest.
    """
    r = len(values)
    turn = np.zeros((r, r))
    apart = np.flatnonzero(values[1:] < (1 - _EQUAL) * values[:-1]) + 1
    for start, end in zip([0, *apart], [*apart, r], strict=True):
        rest = right[
            start:end
        ].copy()  # what is not in the basis yet, in coordinates start .. end - 1
        for i in range(start, end):
            lengths = np.linalg.norm(rest, axis=0)
            chosen = int(np.argmax(lengths >= _LONG * lengths.max()))
            axis = rest[:, chosen] / lengths[chosen]
            turn[i, start:end] = axis
            rest -= np.outer(axis, axis @ rest)
    return turn
