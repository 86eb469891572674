"""Mechanisms with a lower-triangular Toeplitz encoder, whose coefficients are the same in every
round.
"""

import dataclasses
from typing import ClassVar, final

import numpy as np

from fedmf import checks, fields
from fedmf.mechanisms.base import Mechanism
from fedmf.noise.buffers import Buffers
from fedmf.noise.stream import NoiseStream, check_left_inverse

# Below this number of multiplications a series is divided term by term, which is most accurate.
# Longer series are divided by FFT.
_MAX_DIRECT_MULTIPLICATIONS = 10**9


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ToeplitzMechanism(Mechanism):
    """A mechanism with a Toeplitz encoder C[t, j] = c[t - j], whose noise matrix N = C^-1 is
    Toeplitz as well. The BLT slides call it "Toeplitz mechanism".

    The generating functions c(x) = sum of c_t x^t and n(x) are inverse to each other: n(x) = 1 /
    c(x). One of the two is a field, and its length decides what a noise vector costs:

    - coefficients: c[0..bands-1], so that C is banded. With fewer bands than rounds the noise is a
      recurrence over the last bands - 1 noise vectors; with all bands it needs a row of N.
    - noising_window: n[0..window-1], so that N is banded: each noise vector combines the last
      `window` draws, and C has all bands (the banded inverse square root of Kalinin, McKenna,
      Upadhyay and Lampert 2025).

    Attributes:
      rounds: n, a positive int.
      coefficients: c, float64 (bands,), bands in 1..rounds, c[0] positive; or None. Stored as a
        read-only copy.
      noising_window: the first column of N, float64 (window,), window in 1..rounds, its first entry
        positive; or None.

    Raises:
      TypeError, ValueError: both fields or neither are set, or an argument is of the wrong kind or
        shape, not finite, or against the conditions above.

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
        for field_name in ("coefficients", "noising_window"):
            coefficient_column = getattr(self, field_name)
            if coefficient_column is not None and len(coefficient_column) > self.rounds:
                raise ValueError(
                    f"{field_name} has length {len(coefficient_column)}: rounds={self.rounds} have "
                    "at most as many, drop the others"
                )
            if coefficient_column is not None and coefficient_column[0] <= 0.0:
                raise ValueError(
                    f"{field_name}[0]={coefficient_column[0]} is on the main diagonal: "
                    "make it positive"
                )

    @property
    def bands(self) -> int:
        """The number of diagonals of the encoder, which is the length of `coefficients`, or
        `rounds` without them.
        """
        if self.coefficients is None:
            return self.rounds
        return len(self.coefficients)

    def encoder(self) -> np.ndarray:
        """Returns the encoder C, a lower-triangular float64 array of shape (rounds, rounds)."""
        return lower_toeplitz(self.toeplitz_coefficients(), self.rounds)

    def noising(self) -> np.ndarray:
        """Returns the noise matrix N = C^-1, a lower-triangular float64 array of shape (rounds,
        rounds).

        Raises:
          ValueError: float64 has too few digits for N.
        """
        N = lower_toeplitz(self.noising_coefficients(), self.rounds)
        return check_left_inverse(N, self.encoder())

    def stream(self) -> NoiseStream:
        """Returns the recipe that computes the noise vectors. It is a recurrence with the rows of C
        if C is banded, a window over the last draws if the noise matrix N is banded, and otherwise
        a product with the rows of N.
        """
        if self.noising_window is None:
            return super().stream()
        n = self.rounds
        no_buffers = np.zeros((n, 0))
        window_recipe = Buffers(
            window=_banded_rows(self.noising_window, n),
            read=no_buffers,
            write=no_buffers,
            decay=np.zeros(0),
        )
        return NoiseStream(rounds=n, sources=n, buffers=window_recipe)

    def banded_rows(self) -> np.ndarray | None:
        """Returns the rows of the encoder C if it has fewer bands than rounds, or if there is a
        single round; otherwise None.
        """
        if self.coefficients is None or 1 < self.rounds == len(self.coefficients):
            return None
        return _banded_rows(self.coefficients, self.rounds)

    def toeplitz_coefficients(self) -> np.ndarray:
        """Returns the first column c of the encoder C, float64 (bands,)."""
        if self.coefficients is not None:
            return self.coefficients
        assert self.noising_window is not None
        return inverse_series(self.noising_window, self.rounds)

    def noising_coefficients(self) -> np.ndarray:
        """Returns the first column of the noise matrix N, float64 (rounds,)."""
        if self.noising_window is not None:
            return np.pad(self.noising_window, (0, self.rounds - len(self.noising_window)))
        assert self.coefficients is not None
        return inverse_series(self.coefficients, self.rounds)


def lower_toeplitz(column: np.ndarray, n: int) -> np.ndarray:
    """Returns the (n, n) lower-triangular Toeplitz matrix whose first column is `column`, of at
    most n entries, followed by zeros.

    >>> lower_toeplitz(np.array([1.0, 2.0]), 3)
    array([[1., 0., 0.],
           [2., 1., 0.],
           [0., 2., 1.]])
    """
    checks.fits_in_memory("a Toeplitz matrix", (n, n))
    # Each row is a window of the reversed column. The window of row t starts t entries further to
    # the left than the window of row 0.
    reversed_column = np.zeros(2 * n - 1)
    reversed_column[n - len(column) : n] = column[::-1]
    row_windows = np.lib.stride_tricks.sliding_window_view(reversed_column, n)
    return np.ascontiguousarray(row_windows[::-1])


def inverse_series(series: np.ndarray, n: int) -> np.ndarray:
    """Returns the first n coefficients of 1 / p(x), float64 (n,), where p(x) is the power series
    with the coefficients `series`, and p(0) is not 0.

    >>> inverse_series(np.array([1.0, -1.0]), 4)
    array([1., 1., 1., 1.])
    """
    import scipy.signal

    series = series[:n]
    if n * len(series) <= _MAX_DIRECT_MULTIPLICATIONS:
        return scipy.signal.lfilter([1.0], series, np.eye(1, n)[0])
    # Newton's iteration q <- q (2 - p q) doubles the number of correct coefficients each time. Its
    # products are computed by FFT, whose errors are absolute: about 1e-16 of the largest
    # coefficient.
    inverse_coefficients = np.array([1.0 / series[0]])
    num_correct = 1
    while num_correct < n:
        num_correct = min(2 * num_correct, n)
        series_product = scipy.signal.fftconvolve(series[:num_correct], inverse_coefficients)[
            :num_correct
        ]
        newton_residual = np.zeros(num_correct)
        newton_residual[: len(series_product)] = -series_product
        newton_residual[0] += 1.0
        next_inverse = scipy.signal.fftconvolve(newton_residual, inverse_coefficients)[:num_correct]
        next_inverse[: len(inverse_coefficients)] += inverse_coefficients
        inverse_coefficients = next_inverse
    return inverse_coefficients


def _banded_rows(column: np.ndarray, n: int) -> np.ndarray:
    """Returns the rows of a banded Toeplitz matrix, float64 (n, len(column)). Entry [t, j] is
    column[j], or 0 where t < j.
    """
    checks.fits_in_memory("the recipe of a banded Toeplitz matrix", (n, len(column)))
    column_copies = np.tile(column, (n, 1))
    column_copies[: len(column)] = np.tril(column_copies[: len(column)])
    return column_copies
