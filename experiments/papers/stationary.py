"""Stationary error of SGD with correlated noise: the slides' Fourier formula, and a simulation with
our mechanisms' streams.

x ~ Normal(0, H) with eigenvalues `spectrum`, and labels without noise, so that what is left is the
error that privacy costs. With e the difference of the weights from the optimum,

    e <- e - eta * (gradient(e) + stddev * row of N Z),    stddev = sensitivity / sqrt(2 rho)

for unit clip norm, although nothing is clipped. The error is E <e, H e>, in units of 1 / rho.
docs/fidelity.md derives what the slides leave out.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

import fedmf
from fedmf.experiments.papers.fits import fit, one_participation, sums_once
from fedmf.mechanisms.toeplitz.mechanism import ToeplitzMechanism

# Frequencies at which spectra are summed. The sums are exact up to (1 - eta
# * smallest eigenvalue)^POINTS.
POINTS = 1 << 17
OMEGA = 2 * np.pi * np.arange(POINTS) / POINTS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noise:
    """A kind of correlation.

    Attributes:
      name: of it.
      power: |B(omega)|^2 at OMEGA, where B is the transform of the noise's
        coefficients; float64 (POINTS,).
      mechanism: rounds -> the mechanism whose stream makes it.
      decay: how much less the coefficients of B and C become in a round, as a share; those of the
        best in step with the learning.
    """

    name: str
    power: np.ndarray
    mechanism: Callable[[int], Any]
    decay: float = 1.0


def independent() -> Noise:
    """Noisy SGD."""
    return Noise(
        name="independent",
        power=np.ones(POINTS),
        mechanism=lambda n: fit(*sums_once(n), "identity"),
    )


def damped(nu: float) -> Noise:
    """nu-Noisy-FTRL: coefficients of (1 - (1 - nu) x)^(1/2)."""
    return Noise(
        name="nu-FTRL",
        power=np.abs(1 - (1 - nu) * np.exp(1j * OMEGA)),
        mechanism=lambda n: fit(*sums_once(n), "toeplitz", coefficients="nu", nu=nu),
        decay=nu,
    )


def anti_pgd(nu: float) -> Noise:
    """Damped anti-PGD: each draw, less nu times the one before."""
    return Noise(
        name="damped anti-PGD",
        power=np.abs(1 - nu * np.exp(1j * OMEGA)) ** 2,
        mechanism=lambda n: ToeplitzMechanism(rounds=n, noising_window=np.array([1.0, -nu])[:n]),
        decay=1 - nu,
    )


def best(eta: float, spectrum: np.ndarray, *, sampled: bool) -> Noise:
    """The correlations of least stationary error, |B|^2 in proportion to W^(-1/2),
    by Cauchy and Schwarz.

    The coefficients of C = 1 / B are those of the minimum-phase function of this modulus,
    by its cepstrum.
    """
    power = _weight(eta, spectrum, sampled) ** -0.5
    cepstrum = np.fft.ifft(-0.5 * np.log(power)).real  # of |C|
    half = np.zeros(POINTS)
    half[0], half[1 : POINTS // 2] = cepstrum[0], 2 * cepstrum[1 : POINTS // 2]
    c = np.fft.ifft(np.exp(np.fft.fft(half))).real
    return Noise(
        name="best",
        power=power,
        mechanism=lambda n: ToeplitzMechanism(rounds=n, coefficients=c[:n]),
    )


def _weight(eta: float, spectrum: np.ndarray, sampled: bool) -> np.ndarray:
    """W(omega), float64 (POINTS,): the error is the mean of |B|^2 W times the mean of 1 / |B|^2, in
    units of 1 / rho.
    """
    left = 2 - 2 * eta * spectrum
    share = (2 - eta * spectrum) / left if sampled else np.ones(len(spectrum))
    loss = 1 - float((eta * spectrum / left).sum()) if sampled else 1.0
    if loss <= 0:
        raise ValueError(
            f"eta={eta} is too large for examples of this spectrum: their own variance diverges"
        )
    turn = np.exp(1j * OMEGA)
    response = sum(
        s * v / np.abs(1 - eta * v - turn) ** 2 for s, v in zip(share, spectrum, strict=True)
    )
    return np.asarray(0.5 * eta**2 * response / loss)


def error(noise: Noise, eta: float, spectrum: np.ndarray, *, sampled: bool = False) -> float:
    """The stationary error in units of 1 / rho.

    Args:
      noise: its correlation.
      eta: learning rate.
      spectrum: eigenvalues of H, (d,).
      sampled: whether each step has the gradient of one example, (x x^T) e, or the mean gradient H
        e, as in mean estimation.
    """
    return float((noise.power * _weight(eta, spectrum, sampled)).mean() * (1 / noise.power).mean())


def rounds_for(noise: Noise, eta: float, spectrum: np.ndarray, left: float = 1e-4) -> int:
    """Rounds after which the start is forgotten: the slowest decay, of errors or coefficients,
    leaves this share of a square.
    """
    slowest = min(noise.decay, eta * float(spectrum.min()))
    return max(2, int(np.ceil(np.log(left) / (2 * np.log1p(-slowest)))))


def simulated(
    noise: Noise,
    eta: float,
    spectrum: np.ndarray,
    *,
    rounds: int,
    chains: int,
    seed: int,
    sampled: bool = False,
) -> np.ndarray:
    """<e, H e> of independent chains after so many rounds from e = 0, float64 (chains,), in units
    of 1 / rho.

    The noise comes from the mechanism's stream, scaled by its sensitivity for one participation.
    """
    mechanism = noise.mechanism(rounds)
    stddev = fedmf.sensitivity(mechanism, one_participation(rounds)).value / np.sqrt(2.0)
    draws, examples = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])
    shape = (chains, len(spectrum))
    scale, e = np.sqrt(spectrum), np.zeros(shape)
    for row in mechanism.stream().rows(lambda i: draws.standard_normal(shape)):
        if sampled:
            x = scale * examples.standard_normal(shape)
            gradient = x * (x * e).sum(axis=1, keepdims=True)
        else:
            gradient = spectrum * e
        e = e - eta * (gradient + stddev * row)
    return np.asarray((spectrum * e**2).sum(axis=1))
