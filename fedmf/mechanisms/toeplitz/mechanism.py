"""Lower-triangular Toeplitz encoders: the same correlations in every round."""

import dataclasses
from typing import ClassVar, final

import numpy as np

from fedmf import checks, fields
from fedmf.mechanisms.base import Mechanism
from fedmf.noise.buffers import Buffers
from fedmf.noise.stream import NoiseStream, check_left_inverse

# Multiplications up to which a series is divided term by term, which is the most accurate way;
# beyond it by FFT.
_MAX_DIRECT_MULTIPLICATIONS = 10**9


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ToeplitzMechanism(Mechanism):
    """C[t, j] = c[t - j], so that N = C^-1 is Toeplitz as well (BLT slides: "Toeplitz mechanism").

    With generating functions, c(x) = sum of c_t x^t, the two are inverse to each other: n(x) = 1 /
    c(x). One of them is given, and its length decides what a round of noise costs:

    - coefficients: C is banded, c[0..bands-1] given. With fewer bands than rounds the noise is a
      recurrence that keeps bands - 1 rows; with all bands it takes a row of N.
    - noising_window: N is banded, n[0..window-1] given, so that each round mixes the last `window`
      draws only, and C has all bands (the banded inverse square root of Kalinin, McKenna, Upadhyay
      and Lampert 2025).

    Attributes:
      rounds: n, a positive int.
      coefficients: c, float64 (bands,), bands in 1..rounds, c[0] positive; or None. Kept as a
        read-only copy.
      noising_window: the first column of N, float64 (window,), window in 1..rounds, its first
        positive; or None.

    Raises:
      TypeError, ValueError: both or none are given, or an argument is of another kind or shape, not
        finite, or breaks what is said above.

    >>> ToeplitzMechanism(rounds=3, coefficients=[1.0, 0.5]).noising()
    array([[ 1.  ,  0.  ,  0.  ],
           [-0.5 ,  1.  ,  0.  ],
           [ 0.25, -0.5 ,  1.  ]])
    >>> ToeplitzMechanism(rounds=3, noising_window=[1.0, -0.5]).encoder()
    array([[1.  , 0.  , 0.  ],
           [0.5 , 1.  , 0.  ],
           [0.25, 0.5 , 1.  ]])
    """

    family: ClassVar[str] = "toeplitz"
    rounds: int = fields.validated(checks.rounds)
    coefficients: np.ndarray | None = fields.array(1, None)
    noising_window: np.ndarray | None = fields.array(1, None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.coefficients is None) == (self.noising_window is None):
            raise ValueError(
                "coefficients and noising_window are both given or both missing: "
                "pass exactly one of them"
            )
        for name in ("coefficients", "noising_window"):
            column = getattr(self, name)
            if column is not None and len(column) > self.rounds:
                raise ValueError(
                    f"{name} has length {len(column)}: rounds={self.rounds} have at most "
                    "as many, drop the others"
                )
            if column is not None and column[0] <= 0.0:
                raise ValueError(f"{name}[0]={column[0]} is on the main diagonal: make it positive")

    @property
    def bands(self) -> int:
        """The number of coefficients of C: those given, or `rounds` if N's are."""
        return self.rounds if self.coefficients is None else len(self.coefficients)

    def encoder(self) -> np.ndarray:
        """C, float64 (rounds, rounds), lower-triangular."""
        return lower_toeplitz(self.toeplitz_coefficients(), self.rounds)

    def noising(self) -> np.ndarray:
        """N = C^-1, float64 (rounds, rounds), lower-triangular; ValueError if float64 has too few
        digits for it.
        """
        return check_left_inverse(
            lower_toeplitz(self.noising_coefficients(), self.rounds), self.encoder()
        )

    def stream(self) -> NoiseStream:
        """C's rows as a recurrence where C is banded, N's last draws where N is, otherwise the rows
        of N.
        """
        n = self.rounds
        if self.noising_window is not None:
            window = _banded_rows(self.noising_window, n)
            none = np.zeros((n, 0))
            buffers = Buffers(window=window, read=none, write=none, decay=np.zeros(0))
            return NoiseStream(rounds=n, sources=n, buffers=buffers)
        return super().stream()

    def banded_rows(self) -> np.ndarray | None:
        """C by rows, where it has fewer bands than rounds (or one round); otherwise None."""
        if self.coefficients is None or 1 < self.rounds == len(self.coefficients):
            return None
        return _banded_rows(self.coefficients, self.rounds)

    def toeplitz_coefficients(self) -> np.ndarray:
        """c, float64 (bands,)."""
        if self.coefficients is not None:
            return self.coefficients
        assert self.noising_window is not None
        return inverse_series(self.noising_window, self.rounds)

    def noising_coefficients(self) -> np.ndarray:
        """The first column of N, float64 (rounds,)."""
        if self.noising_window is not None:
            return np.pad(self.noising_window, (0, self.rounds - len(self.noising_window)))
        assert self.coefficients is not None
        return inverse_series(self.coefficients, self.rounds)


def lower_toeplitz(column: np.ndarray, n: int) -> np.ndarray:
    """The (n, n) lower-triangular Toeplitz matrix whose first column begins
    with `column`, (at most n,).

    >>> lower_toeplitz(np.array([1.0, 2.0]), 3)
    array([[1., 0., 0.],
           [2., 1., 0.],
           [0., 2., 1.]])
    """
    checks.fits_in_memory("a Toeplitz matrix", (n, n))
    # Row t is a window of the column read backwards, t places further to the left.
    backwards = np.zeros(2 * n - 1)
    backwards[n - len(column) : n] = column[::-1]
    return np.ascontiguousarray(np.lib.stride_tricks.sliding_window_view(backwards, n)[::-1])


def inverse_series(series: np.ndarray, n: int) -> np.ndarray:
    """The first n coefficients of 1 / p(x), for p(x) given by its coefficients, p(0)
    not 0; float64 (n,).

    >>> inverse_series(np.array([1.0, -1.0]), 4)
    array([1., 1., 1., 1.])
    """
    import scipy.signal

    series = series[:n]
    if n * len(series) <= _MAX_DIRECT_MULTIPLICATIONS:
        return scipy.signal.lfilter([1.0], series, np.eye(1, n)[0])
    # Newton's iteration q <- q (2 - p q), which doubles the number of right coefficients each time.
    # Every product is an FFT: its errors are absolute, about 1e-16 of the largest coefficient.
    inverse = np.array([1.0 / series[0]])
    known = 1
    while known < n:
        known = min(2 * known, n)
        product = scipy.signal.fftconvolve(series[:known], inverse)[:known]
        residual = np.zeros(known)
        residual[: len(product)] = -product
        residual[0] += 1.0
        corrected = scipy.signal.fftconvolve(residual, inverse)[:known]
        corrected[: len(inverse)] += inverse
        inverse = corrected
    return inverse


def _banded_rows(column: np.ndarray, n: int) -> np.ndarray:
    """A banded Toeplitz matrix by rows, (n, len(column)): [t, j] = column[j], 0 where t < j."""
    checks.fits_in_memory("the recipe of a banded Toeplitz matrix", (n, len(column)))
    rows = np.tile(column, (n, 1))
    rows[: len(column)] = np.tril(rows[: len(column)])
    return rows
