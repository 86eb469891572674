"""Noise and error for every number of bands, over privacy targets and epochs, from which Table 3
and Figure 4 of the banded paper are drawn.

In n rounds and k epochs, a round samples the share k / n of the clients. With b bands there are
ceil(n / b) sampled events, each with the probability b k / n, and the noise multiplier sigma
depends on b and k only through these two numbers. Each pair of them has one curve of epsilon over
sigma, from composed privacy loss distributions, which is tabulated and inverted for all targets at
once.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy.interpolate

import fedmf
from fedmf.experiments.papers.fits import fit, say, sums_once
from fedmf.privacy.amplification import sampled_gaussian_epsilon
from fedmf.privacy.gaussian import gaussian_noise_multiplier


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
    """Noise and error of banded mechanisms whose numbers of bands and epochs are powers of two.

    Attributes:
      bands: b, powers of two up to the rounds.
      noise: sigma of one event of sensitivity 1, float64 (epsilons, epochs, bands); infinite where
        b > rounds / k.
      error: rmse for one event at sigma = 1, float64 (bands,).
    """

    bands: tuple[int, ...]
    noise: np.ndarray
    error: np.ndarray

    @functools.cached_property
    def rmse(self) -> np.ndarray:
        """Root mean squared error of prefix sums of summed updates, float64 (epsilons, epochs,
        bands).
        """
        return self.noise * self.error

    @functools.cached_property
    def best(self) -> np.ndarray:
        """Number of bands with the least error, int of shape (epsilons, epochs)."""
        return np.asarray(self.bands)[np.argmin(self.rmse, axis=-1)]


def sweep(
    *, rounds: int = 1024, delta: float = 1e-6, epsilons: Sequence[float], epochs: Sequence[int]
) -> Sweep:
    """Fits banded mechanisms for powers of two of bands, and calibrates the noise of each.

    Args:
      rounds: n, a power of two.
      delta: delta of every guarantee.
      epsilons: privacy targets.
      epochs: numbers of epochs k, which are powers of two up to rounds.
    """
    workload, single = sums_once(rounds)
    band_counts = tuple(
        b for i in range(rounds.bit_length()) if (b := 2**i) * min(epochs) <= rounds
    )
    noise_multipliers = np.full((len(epsilons), len(epochs), len(band_counts)), np.inf)
    banded_rmse = np.empty(len(band_counts))
    for i, b in enumerate(band_counts):
        say(f"fitting {b} bands")
        banded_rmse[i] = fedmf.rmse(fit(workload, single, "banded", bands=b), workload, single)
        for j, k in enumerate(epochs):
            if b * k <= rounds:
                say(f"noise for {b} bands and {k} epochs")
                event = {"probability": b * k / rounds, "compositions": -(-rounds // b)}
                noise_multipliers[:, j, i] = noise_curve(epsilons, delta, **event)
    return Sweep(bands=band_counts, noise=noise_multipliers, error=banded_rmse)


def noise_curve(
    epsilons: Sequence[float], delta: float, *, probability: float, compositions: int
) -> np.ndarray:
    """Computes the noise multiplier of each Poisson-sampled event for each epsilon, as float64.

    Without sampling (probability 1) it is exact.
    """
    if probability == 1:
        return math.sqrt(compositions) * np.array(
            [gaussian_noise_multiplier(epsilon, delta) for epsilon in epsilons]
        )
    event = {"probability": probability, "compositions": compositions}
    return inverse(lambda sigma: sampled_gaussian_epsilon(sigma, delta, **event), epsilons)


def inverse(
    epsilon_of: Callable[[float], float],
    epsilons: Sequence[float],
    *,
    tolerance: float = 1e-4,
    ratio: float = 1.4,
) -> np.ndarray:
    """Finds the noise multiplier at which the decreasing function `epsilon_of` has each of the
    target epsilons.

    It returns float64 noise multipliers, where epsilon is within the relative `tolerance` of each
    target.

    Epsilon is tabulated over the noise multiplier, and interpolated monotonically between the
    logarithms of both. Interpolated noises are added to the table until each target has an entry.
    If epsilon jumps over a target, the answer is the noise just above the jump, to `tolerance`.

    Args:
      epsilon_of: function from noise multiplier to epsilon.
      epsilons: privacy targets.
      tolerance: largest relative error of epsilon.
      ratio: ratio of neighbouring noise multipliers in the first table.
    """

    @functools.cache
    def log_epsilon(log_sigma: float) -> float:
        return math.log(max(epsilon_of(math.exp(log_sigma)), 1e-300))

    log_step = math.log(ratio)
    log_targets = [math.log(epsilon) for epsilon in epsilons]
    low = high = 0
    # The table of epsilons reaches one step beyond the smallest and the largest target, because the
    # interpolation needs slopes there.
    while log_epsilon((low + 1) * log_step) < max(log_targets):
        low -= 1
    while log_epsilon((high - 1) * log_step) > min(log_targets):
        high += 1
    log_multipliers = {s * log_step for s in range(low, high + 1)}
    found: dict[float, float] = {}
    for _ in range(12):
        # At the smallest noise multipliers epsilon can be infinite. Those entries are left out.
        multiplier_by_epsilon = {
            e: s for s in sorted(log_multipliers) if (e := log_epsilon(s)) < math.log(1e4)
        }
        interpolate = scipy.interpolate.PchipInterpolator(
            sorted(multiplier_by_epsilon),
            [multiplier_by_epsilon[e] for e in sorted(multiplier_by_epsilon)],
        )
        for target in set(log_targets) - set(found):
            s = float(interpolate(target))
            log_multipliers.add(s)
            sufficient_noise = min(s for s in log_multipliers if log_epsilon(s) <= target)
            if abs(log_epsilon(s) - target) <= tolerance:
                found[target] = s
            elif (
                sufficient_noise
                - max((s for s in log_multipliers if log_epsilon(s) > target), default=-math.inf)
                <= tolerance
            ):
                found[target] = sufficient_noise
        if len(found) == len(set(log_targets)):
            break
    # If epsilon is simulated, it may miss a target by more than the tolerance. Then the result is
    # the smallest noise multiplier in the table that meets the target.
    return np.exp(
        [
            found.get(target, min(s for s in log_multipliers if log_epsilon(s) <= target))
            for target in log_targets
        ]
    )
