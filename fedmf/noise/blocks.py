"""Noise in blocks of rounds, with a state of few rows between the blocks."""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import scipy.linalg

from fedmf.noise.buffers import Buffers
from fedmf.noise.stream import NoiseStream

# A compressed noising matrix N + E stands for the encoder (I + C E)^-1 C, whose sensitivity is that of C within a factor
# 1 / (1 - ||C E||). It is used only where the norm is below this, which is less than float32 rounds.
MAX_DEVIATION = 1e-7
# Singular values that are cut off, relative to the largest entry of N: tried from the left.
_CUTS = (1e-8, 1e-9, 1e-10, 1e-11, 1e-12, 1e-13)
# Singular values closer than this, relative to the larger, count as equal.
_EQUAL = 1e-6
# A projection this long, relative to the longest, is long enough. No simple fraction, at which rounding would decide.
_LONG = 0.6137


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BlockForm:
    """The rows X of N Z block by block, with a state S of `width` rows between the blocks:

        [ X_b     ]             [ Z_b ]        X_b, Z_b   rows b * length .. (b + 1) * length - 1 of N Z and of Z
        [ S_(b+1) ] = matrix(b) [ S_b ]        S_0 = 0

    Attributes:
      rounds: n.
      length: rounds of a block, L.
      width: rows of the state, r.
      matrix: block number -> float64 (L + r, L + r); rows of rounds after the last one are 0.
      rolling: whether S_b holds the last r rows of N Z themselves, the newest first.

    >>> from fedmf.mechanisms import BandedMechanism
    >>> half = BandedMechanism(diagonals=np.array([[1.0, 0.0], [1.0, 0.5], [1.0, 0.5]]), certificate_reason="by hand")
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


def block_form(stream: NoiseStream, *, length: int, most_width: int | None = None) -> BlockForm | None:
    """The stream in blocks, or None where that takes a state of more than `most_width` rows.

    The state of a recurrence is its last bands - 1 rows, that of buffers their sums and last draws. A contraction is compressed. Rounds
    s, s + 1, ... need N[s:, :s] Z[:s] of the draws before s, and that matrix has low rank for trees, smooth Toeplitz matrices and sums of
    few exponentials. S_b holds it in orthonormal coordinates, which singular value decompositions give block after block (the sequentially
    semiseparable form of Chandrasekaran et al. 2005). Singular values are cut off only where the encoder stays the same to 7 digits; see
    MAX_DEVIATION.

    Args:
      stream: anything `NoiseStream.causal` accepts.
      length: rounds of a block.
      most_width: rows that the state may have; None for any number.
    """
    n = stream.rounds
    length, stream = min(length, n), stream.causal()
    if stream.contraction is not None:
        return _compressed(stream.contraction, length, n if most_width is None else most_width)
    width = stream.recurrence.shape[1] - 1 if stream.recurrence is not None else _buffers_width(stream)
    if most_width is not None and width > most_width:
        return None
    matrix = _recurrence_block if stream.recurrence is not None else _buffers_block
    return BlockForm(
        rounds=n,
        length=length,
        width=width,
        matrix=functools.partial(matrix, stream, length),
        rolling=matrix is _recurrence_block,
    )


def _recurrence_block(stream: NoiseStream, length: int, b: int) -> np.ndarray:
    """M of a banded C, whose S_b are the rows x_(s-1), x_(s-2), ... before the block: D X = Z - E S on the block's rows of C = [E D]."""
    C = np.asarray(stream.recurrence)
    s, r = b * length, C.shape[1] - 1
    count = min(length, len(C) - s)
    band = np.zeros((count, count + r))  # column r + j: the block's round j; column r - 1 - j: row j of S
    for i in range(count):
        band[i, i : i + r + 1] = C[s + i, ::-1]
    M = np.zeros((length + r, length + r))
    right = np.hstack([np.eye(count, length), -band[:, :r][:, ::-1]])
    with np.errstate(all="ignore"):  # what overflows is refused by the check of float32
        M[:count] = scipy.linalg.solve_triangular(band[:, r:], right, lower=True, check_finite=False)
    fresh = min(count, r)
    M[length : length + fresh] = M[count - fresh : count][::-1]
    M[length + fresh :, length : length + r - fresh] = np.eye(r - fresh)
    return M


def _buffers_width(stream: NoiseStream) -> int:
    assert stream.buffers is not None
    return len(stream.buffers.decay) + stream.buffers.window.shape[1] - 1


def _buffers_block(stream: NoiseStream, length: int, b: int) -> np.ndarray:
    """M of buffers: the product of its rounds' own [x_t; S_(t+1)] = step [z_t; S_t]."""
    assert stream.buffers is not None
    width = _buffers_width(stream)
    M = np.zeros((length + width, length + width))
    S: np.ndarray = np.eye(width, length + width, k=length)  # as combinations of the rows of [Z_b; S_b]
    for i in range(min(length, stream.rounds - b * length)):
        out = _buffers_step(stream.buffers, b * length + i) @ np.vstack([np.eye(1, length + width, k=i), S])
        M[i], S = out[0], out[1:]
    M[length:] = S
    return M


def _buffers_step(buffers: Buffers, t: int) -> np.ndarray:
    """[x_t; S_(t+1)] from [z_t; S_t] where S_t is the sums S(t), then z_(t-1), z_(t-2), ..."""
    q, w = len(buffers.decay), buffers.window.shape[1]
    M = np.zeros((q + w, q + w))
    M[0] = np.concatenate([buffers.window[t, :1], buffers.read[t], buffers.window[t, 1:]])
    M[1 : 1 + q, 1 : 1 + q] = np.diag(buffers.decay)
    if t + 1 >= w:  # z_(t+1-w) leaves the window and enters the sums
        M[1 : 1 + q, 0 if w == 1 else -1] += buffers.write[t + 1 - w]
    if w > 1:
        M[1 + q, 0] = 1.0
        M[2 + q :, 1 + q : -1] = np.eye(w - 2)
    return M


def _compressed(N: np.ndarray, length: int, most_width: int) -> BlockForm | None:
    for cut in _CUTS:
        matrices = _cut_off(N, length, most_width, cut * float(np.abs(N).max()))
        if matrices is None:  # a smaller cut is wider still
            return None
        width = max(len(M) - min(length, len(N) - b * length) for b, M in enumerate(matrices))
        padded = [_padded(M, length, width, min(length, len(N) - b * length)) for b, M in enumerate(matrices)]
        form = BlockForm(rounds=len(N), length=length, width=width, matrix=padded.__getitem__)
        if deviation(form.noising(), N) <= MAX_DEVIATION:
            return form
    return None


def deviation(written: np.ndarray, N: np.ndarray) -> float:
    """||C E||, an upper bound (Frobenius) for E = written - N and C = N^-1."""
    return float(np.linalg.norm(scipy.linalg.solve_triangular(N, written - N, lower=True, check_finite=False)))


def _cut_off(N: np.ndarray, length: int, most_width: int, cut: float) -> list[np.ndarray] | None:
    """The matrices of the blocks, each (rounds of the block + r_(b+1), rounds of the block + r_b)."""
    n = len(N)
    needed = np.zeros((n, 0))  # N[s:, :s] on the coordinates of S_b
    matrices = []
    for s in range(0, n, length):
        e = min(s + length, n)
        now = np.hstack([N[s:e, s:e], needed[: e - s]])
        if e == n:
            matrices.append(now)
            break
        ahead = np.hstack([N[e:, s:e], needed[e - s :]])
        left, values, right = scipy.linalg.svd(ahead, full_matrices=False, check_finite=False)
        r = int((values > cut).sum())
        if r > most_width:
            return None
        turn = _settled(values[:r], right[:r])
        needed = (left[:, :r] * values[:r]) @ turn.T
        matrices.append(np.vstack([now, turn @ right[:r]]))
    return matrices


def _settled(values: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Orthogonal (r, r) that rotates `right`, orthonormal rows (r, m), to a canonical basis: a saved state means the same under any LAPACK.

    Singular values determine their vectors up to the sign, and equal ones only the space that they span. A state of one basis continued in
    another would not be noise of this mechanism. The canonical basis of a space consists of projections of unit vectors onto it: each time
    of the first one whose projection is not much shorter than the longest.
    """
    r = len(values)
    turn = np.zeros((r, r))
    apart = np.flatnonzero(values[1:] < (1 - _EQUAL) * values[:-1]) + 1
    for start, end in zip([0, *apart], [*apart, r], strict=True):
        rest = right[start:end].copy()  # what is not in the basis yet, in coordinates start .. end - 1
        for i in range(start, end):
            lengths = np.linalg.norm(rest, axis=0)
            chosen = int(np.argmax(lengths >= _LONG * lengths.max()))
            now = rest[:, chosen] / lengths[chosen]
            turn[i, start:end] = now
            rest -= np.outer(now, now @ rest)
    return turn


def _padded(M: np.ndarray, length: int, width: int, count: int) -> np.ndarray:
    """`M` of `count` rounds with its parts at the places they have in a full block."""
    out = np.zeros((length + width, length + width))
    rows, columns = len(M) - count, M.shape[1] - count
    out[:count, :count], out[:count, length : length + columns] = M[:count, :count], M[:count, count:]
    out[length : length + rows, :count] = M[count:, :count]
    out[length : length + rows, length : length + columns] = M[count:, count:]
    return out
