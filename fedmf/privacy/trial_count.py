"""Distributions of the number of trials of a private selection, which trains a random number of
models and releases only the best one.
"""

import dataclasses
import functools
import math

import numpy as np

from fedmf import checks, fields
from fedmf.numpy_errors import with_numpy_defaults

# The random distributions of the number of trials, by their names in configs.
TRUNCATED_NEGATIVE_BINOMIAL = "truncated-negative-binomial"
POISSON = "poisson"
DISTRIBUTIONS = (TRUNCATED_NEGATIVE_BINOMIAL, POISSON)
# Largest mean number of trials, and largest shape of their distribution.
_MAX_MEAN = 1e4
_MAX_SHAPE = 100.0
# Probabilities whose quantiles of the number of trials are stated.
_QUANTILES = {"median": 0.5, "percentile_90": 0.9, "percentile_99": 0.99}
# Smaller shapes of the truncated negative binomial are replaced by 0.
_LEAST_SHAPE = 1e-12
# A smaller mean becomes 1.
_LEAST_MEAN = 1 + 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialCount:
    """The distribution of the number K of trials of a private selection.

    The truncated negative binomial distribution with shape eta and parameter gamma has
    P(K = k) proportional to (1 - gamma)^k (eta)(eta + 1)...(eta + k - 1) / k! for k >= 1
    (Papernot and Steinke 2022, Def. 1). Shape 1 is the geometric distribution, shape 0 the
    logarithmic one. gamma follows from the mean.

    Attributes:
      mean_trials: mean of K, in [1, 10000].
      distribution: "truncated-negative-binomial", or "poisson", with which K may be 0.
      shape: eta of the truncated negative binomial, in [0, 100]; without effect for Poisson.

    Raises:
      TypeError: an attribute has another type.
      ValueError: a number is out of range, or the distribution is unknown.

    >>> geometric = TrialCount(mean_trials=10)
    >>> round(geometric.gamma, 6), geometric.quantile(0.5), geometric.quantile(0.99)
    (0.1, 7, 44)
    >>> logarithmic = TrialCount(mean_trials=10, shape=0.0)
    >>> logarithmic.quantile(0.5), logarithmic.quantile(0.99)
    (4, 81)
    """

    mean_trials: float = 10.0
    distribution: str = TRUNCATED_NEGATIVE_BINOMIAL
    shape: float = 1.0

    def __post_init__(self) -> None:
        mean_hint = "use the average number of trials that you can afford, such as 10"
        mean_trials = checks.positive("mean_trials", self.mean_trials, mean_hint)
        if not 1 <= mean_trials <= _MAX_MEAN:
            raise ValueError(f"mean_trials={mean_trials} must be in [1, 10000]: {mean_hint}")
        shape_hint = "use 1 for the geometric distribution, or 0 for the logarithmic one"
        shape = checks.positive("shape", self.shape, shape_hint, allow_zero=True)
        if shape > _MAX_SHAPE:
            raise ValueError(f"shape={shape} must be at most {_MAX_SHAPE:g}: {shape_hint}")
        # The search for gamma does not resolve means that are so near to 1.
        if mean_trials < _LEAST_MEAN:
            mean_trials = 1.0
        # For so small a shape the formulas for shape 0 are exact up to rounding, and the other
        # formulas would divide by almost 0.
        if shape < _LEAST_SHAPE:
            shape = 0.0
        distribution = checks.one_of("distribution", self.distribution, DISTRIBUTIONS)
        if distribution == POISSON:
            shape = 1.0
        fields.set_fields(
            self, {"mean_trials": mean_trials, "shape": shape, "distribution": distribution}
        )

    @functools.cached_property
    @with_numpy_defaults
    def gamma(self) -> float:
        """The parameter gamma of the truncated negative binomial, in (0, 1], for which the mean is
        `mean_trials`. It is NaN for Poisson.
        """
        from scipy import optimize

        if self.distribution == POISSON:
            return math.nan
        if self.mean_trials == 1:
            return 1.0

        def excess(log_gamma: float) -> float:
            return _log_mean(log_gamma, self.shape) - math.log(self.mean_trials)

        # The mean is at most (1 + shape) / gamma, and falls as gamma grows.
        return math.exp(optimize.brentq(excess, -80.0, -1e-12, xtol=1e-15, rtol=1e-15))

    @functools.cached_property
    @with_numpy_defaults
    def probabilities(self) -> np.ndarray:
        """The probabilities that K is 0, 1, 2, ..., a float64 array of shape (numbers of trials,),
        until the sum of all later ones is below the resolution of float64.
        """
        from scipy import special

        if self.distribution == POISSON:
            k = np.arange(_num_terms(self.mean_trials, 1.0))
            log_factorials = special.gammaln(k + 1)
            return np.exp(k * math.log(self.mean_trials) - self.mean_trials - log_factorials)
        if self.gamma == 1:
            return np.array([0.0, 1.0])
        eta = self.shape
        k = np.arange(1, _num_terms(self.mean_trials, self.gamma))
        log_powers = k * math.log1p(-self.gamma)
        if eta == 0:
            positive_probabilities = np.exp(log_powers) / (k * -math.log(self.gamma))
        else:
            log_binomials = special.gammaln(k + eta) - math.lgamma(eta) - special.gammaln(k + 1)
            # The sum of the terms over all k is gamma^-eta - 1.
            log_total = -eta * math.log(self.gamma) + math.log(
                -math.expm1(eta * math.log(self.gamma))
            )
            positive_probabilities = np.exp(log_powers + log_binomials - log_total)
        return np.append(0.0, positive_probabilities)

    @functools.cached_property
    def _cumulative(self) -> np.ndarray:
        """The probabilities that K is at most 0, 1, 2, ..."""
        return np.cumsum(self.probabilities)

    def quantile(self, probability: float) -> int:
        """Computes the smallest number k with P(K <= k) >= `probability`.

        Args:
          probability: in (0, 1).

        Raises:
          TypeError, ValueError: `probability` is no number in (0, 1).
        """
        hint = "use 0.5 for the median"
        level = checks.positive("probability", probability, hint, below=1.0)
        trial_index = int(np.searchsorted(self._cumulative, level))
        return min(trial_index, len(self._cumulative) - 1)

    def quantiles(self) -> dict[str, int]:
        """Returns the median, the 90% and the 99% quantile of the number of trials, by name.

        >>> TrialCount(mean_trials=10, shape=0.0).quantiles()
        {'median': 4, 'percentile_90': 26, 'percentile_99': 81}
        """
        return {name: self.quantile(probability) for name, probability in _QUANTILES.items()}

    def draw(self, rng: np.random.Generator) -> int:
        """Draws a number of trials."""
        return int(self.draws(rng, 1)[0])

    def draws(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Draws `size` independent numbers of trials, int64 (size,)."""
        # A number that is drawn uniformly from [0, 1) lies with probability P(K = k) between the
        # probabilities that K is below k and that it is at most k.
        trial_counts = np.searchsorted(self._cumulative, rng.random(size), side="right")
        return np.minimum(trial_counts, len(self._cumulative) - 1)


def _num_terms(mean: float, gamma: float) -> int:
    """Returns a number of trials beyond which all larger numbers together have a probability below
    1e-17. The probabilities fall at least as fast as (1 - gamma)^k, or as those of a Poisson
    distribution with this mean if gamma is 1.
    """
    return int(45 / gamma + 3 * mean) + 100


def _log_mean(log_gamma: float, eta: float) -> float:
    """Computes the logarithm of the mean of the truncated negative binomial distribution, given log
    gamma and the shape eta. It is that of Papernot and Steinke 2022, Def. 1.
    """
    # The odds are (1 - gamma) / gamma.
    odds = math.expm1(-log_gamma)
    # As eta tends to 0, eta / (1 - gamma^eta) tends to 1 / log(1 / gamma).
    inverse_factor = -log_gamma
    if eta > 0:
        inverse_factor = -math.expm1(eta * log_gamma) / eta
    return math.log(odds) - math.log(inverse_factor)
