"""Noise and error of every number of bands, over privacy targets and epochs: what banded Table 3 and Fig. 4 are drawn from.

n rounds, k epochs: a round draws k of n clients (or any such share), so that b bands are sampled with q = b k / n, ceil(n / b) times.
One composed privacy loss distribution gives epsilon for a sigma. sigma depends on b and k only through (q, ceil(n / b)), so that each pair
has one curve of epsilon over sigma, tabulated and inverted for all targets at once.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy.interpolate

import fedmf
from fedmf.experiments.table_cells import fit, one_participation
from fedmf.privacy.amplification import sampled_gaussian_epsilon
from fedmf.privacy.gaussian import gaussian_noise_multiplier

# Ratio of neighbouring sigmas in a curve's first table, and how far the logarithm of epsilon may be from the one asked for.
_STEP, _SAME = 1.4, 1e-4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
    """Noise and error for powers of two of bands and epochs.

    Attributes:
      rounds, delta: of all.
      epsilons: increasing.
      epochs: k, powers of two.
      bands: b, powers of two up to rounds.
      noise: sigma of one event of sensitivity 1, float64 (epsilons, epochs, bands); infinite where b > rounds / k.
      error: rmse for one event at sigma = 1, float64 (bands,).
    """

    rounds: int
    delta: float
    epsilons: tuple[float, ...]
    epochs: tuple[int, ...]
    bands: tuple[int, ...]
    noise: np.ndarray
    error: np.ndarray

    @functools.cached_property
    def rmse(self) -> np.ndarray:
        """Of prefix sums of sums of updates, float64 (epsilons, epochs, bands)."""
        return self.noise * self.error

    @functools.cached_property
    def best(self) -> np.ndarray:
        """The best number of bands, int (epsilons, epochs)."""
        return np.asarray(self.bands)[np.argmin(self.rmse, axis=-1)]


def sweep(
    *,
    rounds: int = 1024,
    delta: float = 1e-6,
    epsilons: Sequence[float],
    epochs: Sequence[int],
    progress: Callable[[str], None] = lambda phrase: None,
) -> Sweep:
    """Fits powers of two of bands and calibrates all of them.

    Args:
      rounds: n, a power of two.
      epochs: powers of two up to rounds.
      progress: called with a phrase before each step.
    """
    bands = tuple(2**i for i in range(rounds.bit_length()))
    noise = np.full((len(epsilons), len(epochs), len(bands)), np.inf)
    error = np.full(len(bands), np.nan)
    for at, b in enumerate(bands):
        allowed = [j for j, k in enumerate(epochs) if b * k <= rounds]
        if not allowed:
            error[at] = np.inf
            continue
        progress(f"fitting {b} bands")
        once = one_participation(rounds)
        mechanism = fit(fedmf.prefix_sum(rounds), once, "banded", bands=b)
        error[at] = fedmf.rmse(mechanism, fedmf.prefix_sum(rounds), once)
        for j in allowed:
            progress(f"noise for {b} bands and {epochs[j]} epochs")
            q, k = b * epochs[j] / rounds, -(-rounds // b)
            noise[:, j, at] = (
                noise_curve(epsilons, delta, probability=q, compositions=k)
                if q < 1
                else [gaussian_noise_multiplier(epsilon, delta) * math.sqrt(k) for epsilon in epsilons]
            )
    return Sweep(
        rounds=rounds,
        delta=delta,
        epsilons=tuple(epsilons),
        epochs=tuple(epochs),
        bands=bands,
        noise=noise,
        error=error,
    )


def noise_curve(epsilons: Sequence[float], delta: float, *, probability: float, compositions: int) -> np.ndarray:
    """The noise multiplier of each sampled event for each epsilon, float64; accounting of each gives its epsilon to 1e-4 of it.

    Epsilon is tabulated over noise and interpolated monotonically between logarithms; where accounting of the answer finds another epsilon,
    the answer becomes a further entry of the table.
    """
    log_epsilon: dict[float, float] = {}

    def at(log_sigma: float) -> float:
        if log_sigma not in log_epsilon:
            sigma = math.exp(log_sigma)
            epsilon = sampled_gaussian_epsilon(sigma, delta, probability=probability, compositions=compositions)
            log_epsilon[log_sigma] = math.log(max(epsilon, 1e-300))
        return log_epsilon[log_sigma]

    step, wanted = math.log(_STEP), np.log(epsilons)
    low = high = 0
    # A knot beyond either end, for the slopes of the interpolation.
    while at((low + 1) * step) < wanted.max():
        low -= 1
    while at((high - 1) * step) > wanted.min():
        high += 1
    for s in range(low, high + 1):
        at(s * step)
    for _ in range(20):
        # With less noise than any that is asked for epsilon can be infinite.
        knots = sorted((e, s) for s, e in log_epsilon.items() if e < math.log(1e4))
        answers = scipy.interpolate.PchipInterpolator([e for e, _ in knots], [s for _, s in knots])(wanted)
        if max(abs(at(float(s)) - e) for s, e in zip(answers, wanted, strict=True)) <= _SAME:
            return np.asarray(np.exp(answers))
    raise RuntimeError(f"epsilon does not settle at probability={probability}, compositions={compositions}")
