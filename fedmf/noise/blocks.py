"""Noise in blocks of rounds, with a state of few rows between the blocks."""

import dataclasses
import functools
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

        [ X_b     ]             [ Z_b ]    X_b, Z_b   rows b length .. (b + 1) length - 1 of N Z, Z
        [ S_(b+1) ] = matrix(b) [ S_b ]    S_0 = 0

    Attributes:
      rounds: n.
      length: rounds of a block, L.
      width: rows of the state, r.
      matrix: block number -> float64 (L + r, L + r); rows of rounds after the last one are 0.
      rolling: whether S_b holds the last r rows of N Z themselves, the newest first.

    >>> from fedmf.mechanisms import BandedMechanism
    >>> half = BandedMechanism(
    ...     diagonals=np.array([[1.0, 0.0], [1.0, 0.5], [1.0, 0.5]]), certificate_reason="by hand"
    ... )
    >>> form = block_form(half.stream(), length=2)
    >>> form.width, form.matrix(0)[:2, :2]  # S_0 is 0, so these are N's
    (1, array([[ 1. ,  0. ],
           [-0.5,  1. ]]))
    """

    rounds: int
    length: int
    width: int
    matrix: Callable[[int], np.ndarray]
    rolling: bool = False

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return -(-self.rounds // self.length)

    def noising(self) -> np.ndarray:
        """The N that these blocks write, float64 (rounds, rounds)."""
        L, n = self.length, self.rounds
        N, S = np.zeros((n, n)), np.zeros((self.width, 0))
        for b in range(self.blocks):
            M, s = self.matrix(b), b * L
            count = min(L, n - s)
            N[s : s + count, :s] = M[:count, L:] @ S
            N[s : s + count, s : s + count] = M[:count, :count]
            S = np.hstack([M[L:, L:] @ S, M[L:, :count]])
        return N


def block_form(
    stream: NoiseStream, *, length: int, most_width: int | None = None
) -> BlockForm | None:
    """The stream in blocks, or None where that takes a state of more than `most_width` rows.

    The state of a recurrence is its last bands - 1 rows, that of buffers their sums and last draws.
    A contraction is compressed. Rounds s, s + 1, ... need N[s:, :s] Z[:s] of the draws before s,
    and that matrix has low rank for trees, smooth Toeplitz matrices and sums of few exponentials.
    S_b holds it in orthonormal coordinates, which singular value decompositions give block after
    block (the sequentially semiseparable form of Chandrasekaran et al. 2005). Singular values are
    cut off only where the encoder stays the same to 7 digits; see MAX_DEVIATION.

    Args:
      stream: anything `NoiseStream.causal` accepts.
      length: rounds of a block.
      most_width: rows that the state may have; None for any number.
    """
    n = stream.rounds
    length, stream = min(length, n), stream.causal()
    if stream.contraction is not None:
        return _compressed(stream.contraction, length, n if most_width is None else most_width)
    if most_width is not None and stream.width > most_width:
        return None
    return BlockForm(
        rounds=n,
        length=length,
        width=stream.width,
        matrix=functools.partial(_stepped, stream, length),
        rolling=stream.recurrence is not None,
    )


def _stepped(stream: NoiseStream, length: int, b: int) -> np.ndarray:
    """M of a recurrence or buffers: the rounds of block b, one after the other, on the rows of
    [Z_b; S_b] as unknowns.
    """
    M = np.zeros((length + stream.width, length + stream.width))
    unknowns = np.eye(len(M))
    S = unknowns[length:]
    with np.errstate(all="ignore"):  # what overflows is refused by the check of float32
        for i in range(min(length, stream.rounds - b * length)):
            M[i], S = stream.step(b * length + i, unknowns[i], S)
    M[length:] = S
    return M


def _compressed(N: np.ndarray, length: int, most_width: int) -> BlockForm | None:
    counts = [min(length, len(N) - s) for s in range(0, len(N), length)]
    for cut in _CUTS:
        matrices = _cut_off(N, length, most_width, cut * float(np.abs(N).max()))
        if matrices is None:  # a smaller cut is wider still
            return None
        width = max(len(M) - count for M, count in zip(matrices, counts, strict=True))
        padded = np.zeros((len(counts), length + width, length + width))
        for full, M, count in zip(padded, matrices, counts, strict=True):
            rows, columns = (np.r_[:count, length : length + side - count] for side in M.shape)
            full[np.ix_(rows, columns)] = M
        form = BlockForm(rounds=len(N), length=length, width=width, matrix=padded.__getitem__)
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


def _cut_off(N: np.ndarray, length: int, most_width: int, cut: float) -> list[np.ndarray] | None:
    """The blocks' matrices, each (rounds of the block + r_(b+1), rounds of the block + r_b)."""
    n = len(N)
    needed = np.zeros((n, 0))  # N[s:, :s] on the coordinates of S_b
    matrices = []
    for s in range(0, n, length):
        e = min(s + length, n)
        block = np.hstack([N[s:e, s:e], needed[: e - s]])
        if e == n:
            matrices.append(block)
            break
        ahead = np.hstack([N[e:, s:e], needed[e - s :]])
        left, values, right = scipy.linalg.svd(ahead, full_matrices=False, check_finite=False)
        r = int((values > cut).sum())
        if r > most_width:
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
