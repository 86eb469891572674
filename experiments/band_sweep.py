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
from experiments.table_cells import fit, one_participation
from fedmf.accountants import gaussian_noise_multiplier
from fedmf.amplification import sampled_gaussian_epsilon

# Ratio of neighbouring sigmas in a curve's table.
_STEP = 1.25


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

    def worst_inversion(self) -> float:
        """The largest relative error of epsilon at the winners' sigmas, against accounting of exactly these."""
        worst = 0.0
        for i, epsilon in enumerate(self.epsilons):
            for j, k in enumerate(self.epochs):
                b = int(self.best[i, j])
                if b * k >= self.rounds:
                    continue
                sigma = float(self.noise[i, j, self.bands.index(b)])
                exact = sampled_gaussian_epsilon(
                    sigma, self.delta, probability=b * k / self.rounds, compositions=-(-self.rounds // b)
                )
                worst = max(worst, abs(exact / epsilon - 1.0))
        return worst


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
    """The noise multiplier of each sampled event for each epsilon, float64, by one table of epsilon over noise.

    Interpolated monotonically between logarithms; `Sweep.worst_inversion` says how well.
    """
    log_epsilon: dict[int, float] = {}

    def at(step: int) -> float:
        if step not in log_epsilon:
            sigma = _STEP**step
            epsilon = sampled_gaussian_epsilon(sigma, delta, probability=probability, compositions=compositions)
            log_epsilon[step] = math.log(max(epsilon, 1e-300))
        return log_epsilon[step]

    low = high = 0
    # Two knots beyond either end, for the slopes of the interpolation.
    while at(low + 2) < math.log(max(epsilons)):
        low -= 1
    while at(high - 2) > math.log(min(epsilons)):
        high += 1
    steps = [step for step in range(low, high + 1) if at(step) < math.log(1e4)]
    curve = scipy.interpolate.PchipInterpolator(
        [log_epsilon[step] for step in reversed(steps)], [math.log(_STEP) * step for step in reversed(steps)]
    )
    return np.asarray(np.exp(curve(np.log(epsilons))))
