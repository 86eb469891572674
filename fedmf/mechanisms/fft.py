"""Prefix sums through the Fourier transform: a near-optimal encoder that needs no optimisation."""

import dataclasses
from typing import ClassVar, final

import numpy as np
import scipy.linalg

from fedmf import checks, fields
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.family import Family, register
from fedmf.mechanisms.fitting.progress import Stopping
from fedmf.participation.schema import Participation
from fedmf.workloads import Workload

DECODERS = ("plain", "optimal")


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class FFTMechanism(Mechanism):
    """The real-valued FFT mechanism of the multi-epoch paper (Choquette-Choo et al. 2022, Sec. 4
    and App. K).

    Prefix sums are the top left block of a circulant of twice their size, S = P F* Sigma F E, with
    F the unitary DFT of 2n points, E padding by n zeros, P the first n entries, and Sigma the DFT
    of n ones and n zeros. The square root of the circulant is real (Lem. K.1) and gives

        C_F = F* sqrt(Sigma) F E      (2n, n)
        B_F = P F* sqrt(Sigma) F      (n, 2n)           B_F C_F = S

    decoder "plain" is N = S^-1 B_F (Mechanism 1 there, Algorithm 1 in real numbers); "optimal" is N
    = pinv(C_F) (Mechanism 2), the smallest error for this encoder, whatever the workload. Both use
    noise of sources beyond the current round, drawn ahead; noise does not depend on data.

    Attributes:
      rounds: n, any positive int.
      decoder: "plain" or "optimal".

    >>> mechanism = FFTMechanism(rounds=2)
    >>> mechanism.encoder().shape
    (4, 2)
    >>> (mechanism.noising() @ mechanism.encoder()).round(12) + 0.0
    array([[1., 0.],
           [0., 1.]])
    """

    family: ClassVar[str] = "fft"
    uncertified: ClassVar[str] = "the FFT encoder is a fixed construction, not optimised"
    rounds: int = fields.checked(checks.rounds)
    decoder: str = fields.choice("optimal", "", lambda: DECODERS)

    def encoder(self) -> np.ndarray:
        """C_F, float64 (2 * rounds, rounds): [i, j] depends on i - j modulo 2 * rounds."""
        n = self.rounds
        checks.fits_in_memory("the encoder of this FFT mechanism", (2 * n, n))
        return scipy.linalg.circulant(_root_of_circulant(n))[:, :n]

    def noising(self) -> np.ndarray:
        """N, float64 (rounds, 2 * rounds)."""
        n = self.rounds
        checks.fits_in_memory("the noising matrix of this FFT mechanism", (n, 2 * n))
        if self.decoder == "plain":
            B = scipy.linalg.circulant(_root_of_circulant(n))[:n]
            return np.diff(B, axis=0, prepend=0.0)  # S^-1 takes differences of rows
        C = self.encoder()
        # App. K, Prop. K.2: pinv(C_F) = (C_F^T C_F)^-1 C_F^T. Odd frequencies alone are a unitary
        # map of n points, up to scale, and there |Sigma| >= 1: C^T C >= I / 2 with eigenvalues of
        # at most n, safe for a Cholesky factor.
        return scipy.linalg.cho_solve(scipy.linalg.cho_factor(C.T @ C), C.T)


def _root_of_circulant(n: int) -> np.ndarray:
    """First column of F* sqrt(Sigma) F, float64 (2n,).

    Sigma in closed form (multi-epoch paper, Eq. 44): the even frequencies are exactly 0, where a
    computed DFT has rounding errors of 1e-16, whose roots would spoil half the digits.
    """
    k = np.arange(n + 1)
    # The frequencies 0..n; the others are their conjugates
    spectrum = np.zeros(n + 1, dtype=np.complex128)
    spectrum[0] = n
    spectrum[1::2] = 2.0 / (1.0 - np.exp(-1j * np.pi * k[1::2] / n))
    # Real parts are 1 at odd k, so that the principal branch is never in doubt.
    return np.fft.irfft(np.sqrt(spectrum), 2 * n)


def fit_fft(
    workload: Workload,
    participation: Participation,
    stopping: Stopping,
    *,
    decoder: str = "optimal",
) -> FFTMechanism:
    """The FFT mechanism of prefix sums, whatever the workload."""
    del participation, stopping  # nothing depends on them
    return FFTMechanism(rounds=workload.rounds, decoder=decoder)


register(
    Family(
        mechanism=FFTMechanism,
        fit=fit_fft,
        label="FFT",
        color="#6978ff",
        help={"decoder": "plain or optimal"},
    )
)
