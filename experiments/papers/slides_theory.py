"""Theory of learning with correlated noise on the slides, compared with simulation, for mean
estimation, linear regression and finite time.

The stationary error of SGD with correlated noise is computed by the slides' Fourier formula, and
simulated with the noise streams of our mechanisms.

The data are x ~ Normal(0, H), where H has the eigenvalues `spectrum`. Labels have no noise, so that
what is left is the error that privacy costs. Let e be the difference of the weights from the
optimum, eta the learning rate, N = C^-1 the noise matrix, and Z a matrix of standard normal draws
with a row for each round. A step is

    e <- e - eta * (gradient(e) + stddev * row of N Z),    stddev = sensitivity / sqrt(2 rho)

for unit clip norm, although nothing is clipped. The error is the expectation of
<e, H e>, in units of 1 / rho. docs/papers/slides.md derives what the slides leave out.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

import fedmf
from fedmf.experiments.papers.fits import fit, one_participation, sums_once
from fedmf.mechanisms.toeplitz.mechanism import ToeplitzMechanism

# Spectra are summed at this many frequencies. The sums are exact up to (1 - eta * lambda)^POINTS,
# where eta is the learning rate and lambda the smallest eigenvalue.
POINTS = 1 << 17
OMEGA = 2 * np.pi * np.arange(POINTS) / POINTS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noise:
    """Kind of correlated noise.

    Attributes:
      name: name of the kind of noise.
      power: power spectrum |B(omega)|^2 at the frequencies OMEGA, where B is the Fourier transform
        of the noise's coefficients; float64 (POINTS,).
      mechanism: function from rounds to the mechanism whose stream makes the noise.
      decay: fraction by which the coefficients of B and C = 1 / B shrink in a round. Those of the
        best noise shrink as the error of learning does.
    """

    name: str
    power: np.ndarray
    mechanism: Callable[[int], Any]
    decay: float = 1.0


def independent() -> Noise:
    """Returns independent noise, as in noisy SGD."""
    return Noise(
        name="independent",
        power=np.ones(POINTS),
        mechanism=lambda n: fit(*sums_once(n), "identity"),
    )


def damped(nu: float) -> Noise:
    """Returns the noise of nu-Noisy-FTRL, whose coefficients are those of (1 - (1 - nu)
    x)^(1/2).
    """
    return Noise(
        name="nu-FTRL",
        power=np.abs(1 - (1 - nu) * np.exp(1j * OMEGA)),
        mechanism=lambda n: fit(*sums_once(n), "toeplitz", coefficients="nu", nu=nu),
        decay=nu,
    )


def anti_pgd(nu: float) -> Noise:
    """Returns the noise of damped anti-PGD, which is each normal draw minus nu times the draw
    before.
    """
    return Noise(
        name="damped anti-PGD",
        power=np.abs(1 - nu * np.exp(1j * OMEGA)) ** 2,
        mechanism=lambda n: ToeplitzMechanism(rounds=n, noising_window=np.array([1.0, -nu])[:n]),
        decay=1 - nu,
    )


def best(eta: float, spectrum: np.ndarray, *, sampled: bool) -> Noise:
    """Returns the noise with the least stationary error, whose |B|^2 is proportional to W^(-1/2) by
    Cauchy and Schwarz.

    |B|^2 is the power spectrum of the noise, and W is the weight that `_weight` returns.

    The coefficients of C = 1 / B are those of the minimum-phase function with this modulus, which
    is computed from the modulus' cepstrum.
    """
    power_spectrum = _weight(eta, spectrum, sampled) ** -0.5
    # The cepstrum of |C|, where C = 1 / B, and B is the Fourier transform of the noise's
    # coefficients.
    cepstrum = np.fft.ifft(-0.5 * np.log(power_spectrum)).real
    causal_cepstrum = np.zeros(POINTS)
    causal_cepstrum[0] = cepstrum[0]
    causal_cepstrum[1 : POINTS // 2] = 2 * cepstrum[1 : POINTS // 2]
    c = np.fft.ifft(np.exp(np.fft.fft(causal_cepstrum))).real
    return Noise(
        name="best",
        power=power_spectrum,
        mechanism=lambda n: ToeplitzMechanism(rounds=n, coefficients=c[:n]),
    )


def _weight(eta: float, spectrum: np.ndarray, sampled: bool) -> np.ndarray:
    """Returns the weight W of each frequency, float64 (POINTS,).

    The stationary error, in units of 1 / rho, is the mean of |B|^2 W times the mean of 1 / |B|^2,
    where |B|^2 is the power spectrum of the noise.
    """
    denominator = 2 - 2 * eta * spectrum
    eigenvalue_weights = (2 - eta * spectrum) / denominator if sampled else np.ones(len(spectrum))
    sampling_factor = 1 - (eta * spectrum / denominator).sum() if sampled else 1.0
    if sampling_factor <= 0:
        raise ValueError(
            f"eta={eta} is too large for examples of this spectrum: their own variance diverges"
        )
    rotation = np.exp(1j * OMEGA)
    frequency_response = sum(
        s * v / np.abs(1 - eta * v - rotation) ** 2
        for s, v in zip(eigenvalue_weights, spectrum, strict=True)
    )
    return 0.5 * eta**2 * frequency_response / sampling_factor


def stationary_error(
    noise: Noise, eta: float, spectrum: np.ndarray, *, sampled: bool = False
) -> float:
    """Computes the stationary error by the slides' formula, in units of 1 / rho.

    Args:
      noise: kind of noise.
      eta: learning rate.
      spectrum: eigenvalues of H, (d,).
      sampled: whether each step has the gradient of one example, (x x^T) e, or the mean gradient H
        e, as in mean estimation.
    """
    return (noise.power * _weight(eta, spectrum, sampled)).mean() * (1 / noise.power).mean()


def rounds_for(noise: Noise, eta: float, spectrum: np.ndarray, left: float = 1e-4) -> int:
    """Returns the number of rounds after which the starting point no longer matters.

    The slowest decay, of errors or of coefficients, then leaves the share `left` of a square.
    """
    slowest_decay = min(noise.decay, eta * spectrum.min())
    return max(2, int(np.ceil(np.log(left) / (2 * np.log1p(-slowest_decay)))))


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
    """Simulates the error <e, H e> of independent chains after `rounds` rounds from e = 0, float64
    (chains,).

    H is the covariance of the data, and the error is in units of 1 / rho.

    The noise comes from the mechanism's stream, scaled by its sensitivity for one participation.
    """
    mechanism = noise.mechanism(rounds)
    stddev = fedmf.sensitivity(mechanism, one_participation(rounds)).value / np.sqrt(2.0)
    noise_rng = np.random.default_rng([seed, 0])
    example_rng = np.random.default_rng([seed, 1])
    error_shape = (chains, len(spectrum))
    example_scale = np.sqrt(spectrum)
    e = np.zeros(error_shape)
    for row in mechanism.stream().rows(lambda i: noise_rng.standard_normal(error_shape)):
        if sampled:
            x = example_scale * example_rng.standard_normal(error_shape)
            gradient = x * (x * e).sum(axis=1, keepdims=True)
        else:
            gradient = spectrum * e
        e = e - eta * (gradient + stddev * row)
    return (spectrum * e**2).sum(axis=1)


def high(d: int) -> np.ndarray:
    """Returns the slides' spectrum with the high effective dimension d."""
    return np.ones(d)


def low(d: int) -> np.ndarray:
    """Returns the slides' spectrum with the low effective dimension 2 - 1 / d."""
    return np.array([1.0, *[1.0 / d] * (d - 1)])
