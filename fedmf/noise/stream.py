"""Noise streams: how a mechanism turns independent Gaussian draws into the correlated
noise of each round.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator

import numpy as np
import scipy.linalg

from fedmf import checks, fields
from fedmf.noise.buffers import Buffers

# How far N C may be from I, seen through so many vectors of signs.
_INVERSE_TOLERANCE, _PROBES = 1e-6, 4


def check_recurrence(name: str, value: np.ndarray) -> np.ndarray:
    """Returns `value` as (rounds, bands) coefficients of a banded C: finite, positive main
    diagonal, zero outside C.
    """
    coefficients = checks.banded_rows(name, value)
    if coefficients[:, 0].min() <= 0.0:
        t = int(np.argmin(coefficients[:, 0]))
        raise ValueError(
            f"{name}[{t}, 0]={coefficients[t, 0]} is on the main diagonal of C: make it positive"
        )
    return coefficients


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class NoiseStream(fields.Checked):
    """A recipe for the rows of N Z, where row i of Z is the draw of source i.

    It names no array library.

    Exactly one form is set::

        recurrence   x_t = (z_t - sum_{j=1}^{bands-1} recurrence[t, j] * x_{t-j}) / recurrence[t, 0]

            recurrence[t, j] = C[t, t-j]              t=0 | c00   0    0
            (zero where t - j < 0)                    t=1 | c11  c10   0
                                                      t=2 | c22  c21  c20
            solves C x = z forwards; source t is drawn in round t (banded paper, App. J, Alg. 9)

        contraction  x_t = sum_j contraction[t, j] * z_j, the rows of N themselves

        buffers      x_t from the last few z and a few running sums; see `Buffers`

    Attributes:
      rounds: n, the number of rows.
      sources: m, the number of independent draws.
      recurrence: float64 (rounds, bands) or None; then sources equals rounds.
      contraction: float64 (rounds, sources) or None.
      buffers: Buffers or None; then sources equals rounds.

    Raises:
      TypeError, ValueError: several forms or none are given, or shapes and numbers do not fit.

    >>> stream = NoiseStream(
    ...     rounds=3, sources=3, recurrence=np.array([[1.0, 0.0], [1.0, 0.5], [1.0, 0.5]])
    ... )
    >>> np.stack(list(stream.rows(lambda i: np.eye(3)[i])))
    array([[ 1.  ,  0.  ,  0.  ],
           [-0.5 ,  1.  ,  0.  ],
           [ 0.25, -0.5 ,  1.  ]])
    """

    rounds: int = fields.validated(
        functools.partial(checks.integer, low=1, hint="pass the number of rounds, a positive int")
    )
    sources: int = fields.validated(
        functools.partial(checks.integer, low=1, hint="pass the number of independent draws")
    )
    recurrence: np.ndarray | None = fields.validated(check_recurrence, None)
    contraction: np.ndarray | None = fields.array(2, None)
    buffers: Buffers | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        names = ("recurrence", "contraction", "buffers")
        forms = [name for name in names if getattr(self, name) is not None]
        if len(forms) != 1:
            raise ValueError(
                f"the forms given are {', '.join(forms) or 'none'}: pass exactly one of "
                "recurrence, contraction, buffers"
            )
        form = getattr(self, forms[0]) if self.buffers is None else self.buffers.window
        shape, sources = form.shape, self.rounds if self.contraction is None else form.shape[1]
        if (shape[0], sources) != (self.rounds, self.sources):
            raise ValueError(
                f"rounds={self.rounds} and sources={self.sources} do not fit an array of shape "
                f"{shape}: pass a recurrence of (rounds, bands) or buffers with sources=rounds, or "
                "a contraction of (rounds, sources)"
            )

    def as_contraction(self) -> "NoiseStream":
        """The stream that gives the same noise from N itself."""
        if self.contraction is not None:
            return self
        if self.recurrence is not None:
            N = inverse_of_banded(self.recurrence)
        else:
            assert self.buffers is not None
            N = self.buffers.matrix()
        return NoiseStream(rounds=self.rounds, sources=self.sources, contraction=N)

    def causal(self) -> "NoiseStream":
        """A stream of the same distribution whose row t needs sources 0..t only; this one, if it is
        so already.

        The rows of N Z are N z coordinate by coordinate, so their distribution is that of N N^T.
        With N = L Q, L lower-triangular and Q of orthonormal rows, L Z has it too, and draws one
        new source a round (Denisov et al. 2022, Prop. 2.2).

        Raises:
          ValueError: N is too ill-conditioned for float64.
        """
        N = self.contraction
        if N is None or (self.sources == self.rounds and not np.triu(N, 1).any()):
            return self
        R = scipy.linalg.qr(N.T, mode="r", check_finite=False)[0]  # of Q nothing is needed
        L = np.tril(R[: self.rounds].T)
        L = L * np.where(np.diag(L) < 0, -1.0, 1.0)
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(self.rounds, _PROBES))
        solve = functools.partial(scipy.linalg.solve_triangular, L, lower=True, check_finite=False)
        back = solve(N @ (N.T @ solve(signs, trans="T")))  # Q Q^T signs
        largest = float(np.abs(back - signs).max())
        if not largest <= _INVERSE_TOLERANCE:
            raise ValueError(
                "the noising matrix is too ill-conditioned for float64: its causal square root is "
                f"wrong by {largest:.2g}; use a mechanism whose noise has rows of more similar size"
            )
        return NoiseStream(rounds=self.rounds, sources=self.rounds, contraction=L)

    def rows(self, draw: Callable[[int], np.ndarray]) -> Iterator[np.ndarray]:
        """Yields the rows of N Z, float64, each of the shape of a draw.

        With draw(i) the basis vector e_i the rows are those of N: that one law checks every
        mechanism and every executor. This is the plain numpy reference. A recurrence or buffers
        hold a few rows, a contraction all draws.

        Args:
          draw: source index -> array (d,).
        """
        if self.contraction is not None:
            yield from np.tensordot(
                self.contraction, np.stack([draw(j) for j in range(self.sources)]), axes=1
            )
            return
        S: np.ndarray | None = None
        for t in range(self.rounds):
            z = np.asarray(draw(t), dtype=np.float64)
            x, S = self.step(t, z, np.zeros((self.width, *z.shape)) if S is None else S)
            yield x

    @property
    def width(self) -> int:
        """Rows that a recurrence or buffers keep from round to round: the last x, or the sums and
        the last z.
        """
        if self.recurrence is not None:
            return self.recurrence.shape[1] - 1
        assert self.buffers is not None
        return self.buffers.width

    def step(self, t: int, z: np.ndarray, S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Row t of N Z and the state after it, from draw t and the state (width, ...) before it, at
        first 0; not of a contraction.
        """
        if self.recurrence is None:
            assert self.buffers is not None
            return self.buffers.step(t, z, S)
        weights = self.recurrence[t]
        x = (z - np.tensordot(weights[1:], S, axes=1)) / weights[0]
        return x, np.concatenate([x[None], S])[: len(S)]  # newest first

    def block(self, start: int, stop: int) -> np.ndarray:
        """Returns M of rounds start .. stop - 1 together, float64 (rounds + width, rounds + width):
        [rows; state after them] = M [draws; state before them]; not of a contraction.
        """
        if self.recurrence is not None:
            return _recurrence_block(self.recurrence[start:stop])
        assert self.buffers is not None
        return self.buffers.block(start, stop)

    def coefficients(self, start: int, stop: int) -> tuple[bytes, ...]:
        """Returns all that `block` computes its matrix from: equal ones have one matrix."""
        if self.recurrence is not None:
            return (self.recurrence[start:stop].tobytes(),)
        assert self.buffers is not None
        window, read, write = self.buffers.coefficients(start, stop)
        return window.tobytes(), read.tobytes(), write.tobytes()


def _recurrence_block(coefficients: np.ndarray) -> np.ndarray:
    """Returns the block matrix of a recurrence whose state is the last rows, the newest first.

    With C's rows of the block in two parts, A X + P S = Z: C is A on the block's own rounds and P
    on the rounds before it.
    """
    count, bands = coefficients.shape
    width = bands - 1
    M = np.zeros((count + width, count + width))
    if count == 1:  # as below, at a tenth of the time
        M[0] = np.append(1.0, -coefficients[0, 1:]) / coefficients[0, 0]
        M[1:2] = M[0]
        M[2:, 1:width] = np.eye(max(0, width - 1))
        return M
    padded = np.hstack([coefficients, np.zeros((count, count))])
    rounds = np.arange(count)[:, None]
    A = np.tril(np.take_along_axis(padded, np.maximum(rounds - np.arange(count), 0), axis=1))
    P = np.take_along_axis(padded, rounds + 1 + np.arange(width), axis=1)
    M[:count] = scipy.linalg.solve_triangular(
        A, np.hstack([np.eye(count), -P]), lower=True, check_finite=False
    )
    num_new = min(count, width)
    M[count : count + num_new] = M[count - num_new : count][::-1]
    M[count + num_new :, count : count + width - num_new] = np.eye(width - num_new)
    return M


def banded_matrix(coefficients: np.ndarray) -> np.ndarray:
    """C, (n, n), from its rows of coefficients: C[t, t - j] = coefficients[t, j]."""
    n, bands = coefficients.shape
    checks.fits_in_memory("the matrix of these diagonals", (n, n))
    C = np.zeros((n, n))
    for j in range(bands):
        np.fill_diagonal(C[j:], coefficients[j:, j])
    return C


def inverse_of_banded(coefficients: np.ndarray) -> np.ndarray:
    """N = C^-1, (n, n) lower-triangular, from C's rows of coefficients; checked by
    `check_left_inverse`.
    """
    C = banded_matrix(coefficients)
    return check_left_inverse(lower_inverse(C), C)


def check_left_inverse(N: np.ndarray, C: np.ndarray) -> np.ndarray:
    """Returns N, of which float64 may have left too few digits to be an inverse of C.

    What runs is x + N z. With N C = I + E that is N (C' x + z) for C' = C (I + E)^-1, and it is the
    sensitivity of C' that counts: near that of C where the entries |c_i| E_ij / |c_j| are small,
    c_j being the columns of C; but of a C so ill-conditioned that E is not small, it can be any
    number of times as large.

    Raises:
      ValueError: N C is not I to 6 digits.
    """
    scales = np.abs(C).max(axis=0)  # in place of norms, which may underflow
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(C.shape[1], _PROBES))
    with np.errstate(all="ignore"):  # an overflow fails the comparison
        back = (N @ (C @ (signs / scales[:, None]))) * scales[:, None]
        largest = float(np.abs(back - signs).max())
    if not largest <= _INVERSE_TOLERANCE:
        raise ValueError(
            "the encoder is too ill-conditioned for float64: N C differs from the identity by "
            f"{largest:.2g}, so that the noise N Z would not have the encoder's privacy: use an "
            "encoder whose inverse has smaller entries"
        )
    return N


def lower_inverse(C: np.ndarray) -> np.ndarray:
    """C^-1 of a lower-triangular C, with exact zeros above the diagonal."""
    checks.fits_in_memory("the inverse of this encoder", C.shape, copies=3)
    return np.tril(
        scipy.linalg.solve_triangular(C, np.eye(C.shape[0]), lower=True, check_finite=False)
    )
