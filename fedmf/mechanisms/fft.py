"""The FFT mechanism, whose near-optimal encoder for prefix sums follows from the Fourier transform,
without optimisation.
"""

import dataclasses
import functools
from typing import ClassVar, final

import numpy as np
import scipy.linalg
import scipy.special

from fedmf import checks, fields
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.family import Family, register
from fedmf.mechanisms.fitting.progress import Stopping
from fedmf.noise.buffers import Buffers
from fedmf.noise.stream import NoiseStream, triangular_inverse
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.participation.schema import Participation
from fedmf.workloads import Workload

DECODERS = ("plain", "optimal")
# The optimal decoder approximates the paper's spectrum by a rational function. This is its largest
# relative error, about as large as a rounding error of float32.
PRECISION = 1e-7


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class FFTMechanism(Mechanism):
    """The mechanism that factorizes the prefix sums by a real-valued Fourier transform. Its source
    is the multi-epoch paper, Choquette-Choo et al. 2022, Sec. 4 and App. K.

    Prefix sums are the top left block of a circulant of twice their size, S = P F* Sigma F E, with
    F the unitary DFT of 2n points, E padding by n zeros, P the first n entries, and Sigma the DFT
    of n ones and n zeros. The square root of the circulant is real (multi-epoch paper, Lem. K.1,
    Thm. J.1) and gives

        C_F = F* sqrt(Sigma) F E      (2n, n)
        B_F = P F* sqrt(Sigma) F      (n, 2n)           B_F C_F = S
        X = C_F^T C_F = P F* |Sigma| F E                (n, n), Toeplitz

    decoder "plain" is C_F with N = S^-1 B_F (multi-epoch paper, Prop. K.1: Alg. 1 in real numbers),
    as dense matrices. It uses noise of sources beyond the current round, drawn ahead; noise does
    not depend on data.

    decoder "optimal" is C_F with N = pinv(C_F) (Mechanism 2), the smallest error for this encoder
    on any workload. Privacy and noise follow from X alone: X determines the sensitivity, and
    pinv(C_F) pinv(C_F)^T = X^-1 (multi-epoch paper, Prop. K.2). So C here is the lower-triangular C
    with C^T C = X, and N = C^-1. It needs no dense matrix: |Sigma| is replaced by sums of rational
    functions within a relative `PRECISION` of it, so that a noise vector is computed from some 40
    running sums (see `_running_sums`). X, the sensitivity and the error are those of the replaced
    |Sigma|.

    Attributes:
      rounds: n, any positive int; with decoder "plain", small enough for dense matrices.
      decoder: "plain" or "optimal".

    >>> mechanism = FFTMechanism(rounds=2, decoder="plain")
    >>> mechanism.encoder().shape
    (4, 2)
    >>> (mechanism.noising() @ mechanism.encoder()).round(12) + 0.0
    array([[1., 0.],
           [0., 1.]])
    >>> FFTMechanism(rounds=10_000).stream().width
    37
    """

    family: ClassVar[str] = "fft"
    uncertified: ClassVar[str] = "the FFT encoder is a fixed construction, not optimised"
    rounds: int = fields.validated(checks.rounds)
    decoder: str = fields.choice("optimal", "", lambda: DECODERS)

    def encoder(self) -> np.ndarray:
        """Returns the encoder, whose shape depends on the decoder. With decoder "plain" it is C_F,
        float64 (2 * rounds, rounds). With "optimal" it is C, float64 (rounds, rounds),
        lower-triangular.
        """
        n = self.rounds
        if self.decoder == "plain":
            _check_plain(n)
            return scipy.linalg.circulant(_root_of_circulant(n))[:, :n]
        checks.fits_in_memory("the encoder of this FFT mechanism", (n, n))
        # X = C^T C does not change if its rows and columns are reversed. So the Cholesky factor of
        # X, reversed and transposed, is the lower-triangular C with C^T C = X.
        cholesky_factor = scipy.linalg.cholesky(
            scipy.linalg.toeplitz(self.toeplitz_gram()), lower=True
        )
        return np.ascontiguousarray(cholesky_factor[::-1, ::-1].T)

    def noising(self) -> np.ndarray:
        """Returns the noise matrix N, float64. Its shape is (rounds, 2 * rounds) with decoder
        "plain", and (rounds, rounds) with "optimal".
        """
        n = self.rounds
        if self.decoder == "plain":
            _check_plain(n)
            B = scipy.linalg.circulant(_root_of_circulant(n))[:n]
            # The noise matrix is N = S^-1 B, where S computes prefix sums and B is the decoder.
            # Multiplying by S^-1 takes the differences of successive rows.
            return np.diff(B, axis=0, prepend=0.0)
        return triangular_inverse(self.encoder())

    def stream(self) -> NoiseStream:
        """Returns the recipe of the noise vectors, which is running sums for decoder "optimal" and
        many rounds, and otherwise a product with the rows of the noise matrix N.
        """
        n = self.rounds
        if self.decoder == "plain" or 2 * len(_rational(n)[0]) + 1 >= n:
            N = self.noising()
            return NoiseStream(rounds=n, sources=N.shape[1], contraction=N)
        return NoiseStream(rounds=n, sources=n, buffers=_running_sums(n))

    def toeplitz_gram(self) -> np.ndarray:
        """Returns the first column of the Toeplitz matrix X = C^T C, float64 (rounds,)."""
        n = self.rounds
        spectrum = np.abs(_spectrum(n))
        if self.decoder == "optimal":
            spectrum[1::2] = 0.0
            for square, weight in zip(*_rational(n), strict=True):
                spectrum[1::2] += weight / (square + _squared_sines(n))
        return np.fft.irfft(spectrum, 2 * n)[:n]


def _check_plain(n: int) -> None:
    """Raises ValueError if the dense matrices of decoder "plain" take too much memory."""
    if 16 * n * n > checks.MAX_BYTES:
        raise ValueError(
            f"rounds={n} with decoder='plain' take dense matrices of {16 * n * n / 2**30:.3g} GiB: "
            "use decoder='optimal', which needs none and has less error"
        )


def _spectrum(n: int) -> np.ndarray:
    """Returns Sigma, the spectrum of the circulant, at the frequencies 0..n, complex128 (n + 1,).
    At the frequencies above n, Sigma has the conjugates of these values.

    In closed form (multi-epoch paper, Eq. 44): the even frequencies are exactly 0, where a computed
    DFT has rounding errors of 1e-16, whose roots would spoil half the digits.
    """
    odd_frequencies = np.arange(1, n + 1, 2)
    spectrum = np.zeros(n + 1, dtype=np.complex128)
    spectrum[0] = n
    spectrum[1::2] = 2.0 / (1.0 - np.exp(-1j * np.pi * odd_frequencies / n))
    return spectrum


def _root_of_circulant(n: int) -> np.ndarray:
    """Returns the first column of the circulant's square root F* sqrt(Sigma) F, float64 (2n,),
    where F is the unitary Fourier transform and Sigma the spectrum.
    """
    # At odd frequencies the real part of the spectrum Sigma is 1. So Sigma is far from the negative
    # real axis, where the principal square root is discontinuous.
    return np.fft.irfft(np.sqrt(_spectrum(n)), 2 * n)


def _squared_sines(n: int) -> np.ndarray:
    """Returns 1 / |Sigma|^2 for the spectrum Sigma at the odd frequencies up to n. The spectrum is
    that of the multi-epoch paper, Eq. 45.
    """
    return np.square(np.sin(np.pi * np.arange(1, n + 1, 2) / (2 * n)))


@functools.lru_cache(maxsize=16)
def _rational(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns a rational approximation of 1 / sqrt(s) as squares T and positive weights w, float64
    (q,) each. The sum of w / (T + s) is within a relative PRECISION of 1 / sqrt(s) at every value s
    of `_squared_sines`.

    1 / sqrt(s) = 2 / pi * integral of dt / (t^2 + s) over t > 0. With t = k sc(u), sc the Jacobi
    elliptic function of the complementary modulus of k, k^2 the least s, the rule of midpoints in u
    gives Zolotarev's best rational approximation on [k^2, 1]
    (Hale, Higham and Trefethen 2008, Sec. 3). Its error falls by exp(2 pi^2 / log(16 / k^2)) with
    each term; it is measured here, at all frequencies that there are.
    """
    squared_sines = _squared_sines(n)
    # k is the complementary modulus of the elliptic function sc = sn / cn. It is computed from the
    # rounded parameter, so that both belong to the same function.
    elliptic_parameter = 1.0 - squared_sines[0]
    k = np.sqrt(1.0 - elliptic_parameter)
    elliptic_period = scipy.special.ellipkm1(1.0 - elliptic_parameter)
    for q in range(1, 100):
        u = (np.arange(-(-q // 2)) + 0.5) / q * elliptic_period
        sn, cn, _, _ = scipy.special.ellipj(u, elliptic_parameter)
        low_t = k * sn / cn
        # The elliptic function sc = sn / cn satisfies sc(period - u) = 1 / (k sc(u)), where k is
        # its complementary modulus.
        high_t = (k / low_t[: q // 2])[::-1]
        t = np.concatenate([low_t, high_t])
        t_derivative = np.sqrt((k**2 + t**2) * (1.0 + t**2))  # The derivative dt / du.
        node_weights = 2.0 / np.pi * elliptic_period / q * t_derivative
        approximate_values = sum(
            weight / (square + squared_sines)
            for square, weight in zip(t**2, node_weights, strict=True)
        )
        if np.abs(approximate_values * np.sqrt(squared_sines) - 1.0).max() <= PRECISION:
            return t**2, node_weights
    raise ArithmeticError(f"rounds={n} are too many for the rational approximation")


@functools.lru_cache(maxsize=1)
@with_numpy_defaults
def _running_sums(n: int) -> Buffers:
    """Returns the recipe of the noise matrix N = C^-1, for the lower-triangular C with C^T C = X.
    It has 2 q + 1 running sums of earlier noise vectors.

    A term w / (T + s), s = sin(theta / 2)^2, is the spectrum of alpha exp(-lambda |d|), with
    T = sinh(lambda / 2)^2 and alpha = 2 w / sinh(lambda), at all odd frequencies that of
    alpha (exp(-lambda d) - exp(-lambda (n - d))) / (1 + exp(-lambda n)), d = 0..n-1, half of which
    is its contribution to X. With the frequency 0, for 0 < d < n,

        X[t, t - d] = 1 / 2 + sum over the terms of half of that,

    X[t, s] = h(t) . (decay^(t - s) * m(s)) with 2 q + 1 coordinates: the constant, the falling
    exponentials, and the rising ones, whose factors exp(-lambda (n - t)) and exp(-lambda s) are in
    h and m, since decays above 1 would overflow. X = L L^T is then the covariance of a process with
    the state of a Kalman filter,

        L[t, s] = h(t) . (decay^(t - s) * g(s)),   g(s) = (m(s) - P(s) h(s)) / L[s, s]
        L[s, s]^2 = X[0, 0] - h(s) . P(s) h(s),    P(s + 1) = decay (P(s) + g(s) g(s)^T) decay,

    and C[t, s] = L[n - 1 - s, n - 1 - t], as X is the same when reversed. The filter costs
    O(n q^2).
    """
    squares, weights = _rational(n)
    q = len(squares)
    checks.fits_in_memory("the sums of this FFT mechanism", (n, 2 * q + 1), copies=6)
    decay_rates = 2.0 * np.arcsinh(np.sqrt(squares))
    # Entry [t, j] of the falling powers is exp(-decay_rates[j] (t + 1)).
    falling_powers = np.exp(-decay_rates * np.arange(1, n + 1)[:, None])
    sum_scales = weights / np.sinh(decay_rates) / (1.0 + falling_powers[-1])
    toeplitz_diagonal = 0.5 + sum_scales @ (1.0 - falling_powers[-1])
    buffer_decays = np.concatenate([[1.0], np.exp(-decay_rates), np.ones(q)])
    # In row s of the noise matrix N, the vector h of the docstring is that of t = n - 1 - s, whose
    # rising factors are exp(-decay_rates (n - t)).
    read_weights = np.concatenate([np.ones((n, q + 1)), falling_powers], axis=1)
    write_weights = np.empty((n, 2 * q + 1))
    window_weights = np.empty((n, 1))
    P = np.zeros((2 * q + 1, 2 * q + 1))
    constant_weights = np.concatenate([[0.5], sum_scales])
    decay_products = np.outer(buffer_decays, buffer_decays)
    for s in range(n):
        h = read_weights[n - 1 - s]
        Ph = P @ h
        pivot = np.sqrt(toeplitz_diagonal - h @ Ph)
        rising_powers = falling_powers[s - 1] if s else 1.0
        g = (np.concatenate([constant_weights, -sum_scales * rising_powers]) - Ph) / pivot
        window_weights[n - 1 - s] = 1.0 / pivot
        write_weights[n - 1 - s] = -g / pivot
        P += g[:, None] * g
        P *= decay_products
    return Buffers(
        window=window_weights,
        read=write_weights,
        write=buffer_decays * read_weights,
        decay=buffer_decays,
        feedback=True,
    )


def fit_fft(
    workload: Workload,
    participation: Participation,
    stopping: Stopping,
    *,
    decoder: str = "optimal",
) -> FFTMechanism:
    """Returns the FFT mechanism. It is made for prefix sums, and does not depend on the workload or
    the participation.
    """
    return FFTMechanism(rounds=workload.rounds, decoder=decoder)


register(
    Family(
        mechanism=FFTMechanism,
        fit=fit_fft,
        label="FFT",
        color="#6978ff",
        help={"decoder": "plain or optimal"},
        choices={"decoder": DECODERS},
    )
)
