"""Bounds on the epsilon of private selection, which trains a random number of models and releases
only the best one. They follow from the epsilons of one trial.

K trials run, where K is drawn from a `TrialCount`. Each trial draws its setting and runs with the
privacy profile delta_Q (delta as a function of epsilon). The output is that of the trial with the
best score, where ties are broken at random; nothing else is released. Let m be the mean of K, f its
generating function, and F_P(y) the probability that a trial's output is at most as good as y, with
the client's data. The density of the selected output at y is f'(F_P(y)) times the density of one
trial. Q is the same without the client's data.

Profile bound (compare Koskela, Redberg and Wang 2024, arXiv 2402.06701). Write G = 1 - F. For every
e1, G_Q <= exp(e1) G_P + delta_Q(e1). Hence, for the truncated negative binomial distribution with
shape eta,

    f'(F_P) / f'(F_Q) = ((gamma + (1 - gamma) G_Q) / (gamma + (1 - gamma) G_P))^(1 + eta)
                     <= max(exp(e1), 1 + (1 - gamma) / gamma delta_Q(e1))^(1 + eta),

and for Poisson f'(F_P) / f'(F_Q) = exp(m (G_Q - G_P)) <= exp(m (exp(e1) - 1 + delta_Q(e1))). Let
`shift` be the logarithm of the right side, for the best e1. Since f' <= m, the selection's delta at
epsilon is at most m delta_Q(epsilon - shift). So its epsilon at delta is at most

    epsilon_Q(delta / m) + shift,

where epsilon_Q is the epsilon of one trial. With d1 in place of e1, e1 = epsilon_Q(d1), the bound
needs nothing but epsilon_Q.

Renyi bound: Papernot and Steinke 2022 (arXiv 2110.03620), Theorems 2 and 6, for trials without
amplification by sampling.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

from fedmf.privacy.gaussian import (
    MIN_DELTA,
    check_delta,
    exact_gaussian_epsilon,
    gaussian_epsilon,
    has_infinite_epsilon,
)
from fedmf.privacy.noise_search import least_noise_multiplier
from fedmf.privacy.renyi import selection_rdp_epsilon
from fedmf.privacy.trial_count import POISSON, TrialCount

# A function that takes a delta, and returns the epsilon of a trial at it.
EpsilonOfDelta = Callable[[float], float]

# Interval in which the best log d1 is searched, where d1 is the delta of a trial. The accountants
# of sampled plans do not resolve deltas below its lower end.
_LOWEST_LOG_D1 = math.log(1e-9)
_HIGHEST_LOG_D1 = math.log(1 - 1e-6)
# Tolerance of the search for the best logarithm of d1. Any d1 gives a valid bound on epsilon, so
# the tolerance only makes the bound a little larger.
_TOLERANCE = 1e-4
# Larger values of e1, the epsilon of a trial at delta d1, count as this one in exp(e1), which would
# overflow.
_LARGEST_E1 = 600.0
# Larger noise multipliers count as this one in the Renyi bound.
_LARGEST_RENYI_MULTIPLIER = 1e6

PROFILE_SOURCE = "privacy profiles (compare Koskela, Redberg and Wang 2024)"
RENYI_SOURCE = "Renyi divergences (Papernot and Steinke 2022, Theorems 2 and 6)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectionBounds:
    """Bounds on the epsilon of a private selection.

    Attributes:
      trials: distribution of the number of trials.
      noise_multiplier: of each trial, which is one Gaussian release.
      sampled_epsilon_of: the epsilon of a trial with amplification by sampling, as a function of
        delta; None without sampling.
    """

    trials: TrialCount
    noise_multiplier: float
    sampled_epsilon_of: EpsilonOfDelta | None = None

    def epsilon(self, delta: float) -> float:
        """Computes the smaller one of the profile bound and of the Renyi bound at a delta."""
        if has_infinite_epsilon(self.noise_multiplier):
            return math.inf
        return min(self.profile_epsilon(delta), self.renyi_epsilon(delta))

    def source(self, delta: float) -> str:
        """Returns the name of the bound that `epsilon` states at a delta.

        Raises:
          TypeError, ValueError: `delta` is out of range.
        """
        if has_infinite_epsilon(self.noise_multiplier):
            return PROFILE_SOURCE
        if self.profile_epsilon(delta) <= self.renyi_epsilon(delta):
            return PROFILE_SOURCE
        return RENYI_SOURCE

    def profile_epsilon(self, delta: float) -> float:
        """Computes the profile bound on epsilon at a delta."""
        delta_of_trial = trial_delta(delta, self.trials)
        if self.sampled_epsilon_of is None:
            return gaussian_epsilon(self.noise_multiplier, delta_of_trial) + self._shift
        return self.sampled_epsilon_of(delta_of_trial) + self._shift

    @functools.cached_property
    def _shift(self) -> float:
        """The epsilon that private selection adds to that of one trial, in the profile bound."""
        if self.sampled_epsilon_of is None:
            return _gaussian_shift(self.noise_multiplier, self.trials)
        return least_shift(self.sampled_epsilon_of, self.trials)

    def renyi_epsilon(self, delta: float) -> float:
        """Computes the Renyi bound on epsilon at a delta, without amplification by sampling."""
        return _gaussian_renyi_epsilon(self.noise_multiplier, delta, self.trials)


def selection_noise_multiplier(epsilon: float, delta: float, trials: TrialCount) -> float:
    """Computes the noise multiplier of a trial with which a private selection satisfies (epsilon,
    delta), without amplification by sampling. It is never too small.

    Args:
      epsilon: in (0, 5000).
      delta: in [1e-15 mean_trials, 1).
      trials: distribution of the number of trials.

    >>> round(selection_noise_multiplier(3.0142, 1e-6, TrialCount(mean_trials=10)), 2)
    2.23
    """
    delta_of_trial = trial_delta(delta, trials)

    def estimate(sigma: float) -> float:
        if has_infinite_epsilon(sigma):
            return math.inf
        estimate_of = functools.partial(exact_gaussian_epsilon, sigma)
        return estimate_of(delta_of_trial) + least_shift(estimate_of, trials)

    def proven_epsilon(sigma: float) -> float:
        return SelectionBounds(trials=trials, noise_multiplier=sigma).profile_epsilon(delta)

    multiplier = least_noise_multiplier(estimate, epsilon)
    # The noise is raised until the accountant, whose epsilon is a little above the closed form,
    # proves the guarantee.
    relative_increase = 1e-7
    while proven_epsilon(multiplier) > epsilon:
        multiplier *= 1 + relative_increase
        relative_increase *= 2
    if _gaussian_renyi_epsilon(multiplier, delta, trials) >= epsilon:
        return multiplier
    # The Renyi bound is the smaller one for Poisson distributions with many trials.
    renyi_multiplier = least_noise_multiplier(
        lambda sigma: _gaussian_renyi_epsilon(sigma, delta, trials), epsilon
    )
    return min(multiplier, renyi_multiplier)


def _gaussian_renyi_epsilon(noise_multiplier: float, delta: float, trials: TrialCount) -> float:
    """Computes the Renyi bound for trials that are each one Gaussian release."""
    import dp_accounting

    if has_infinite_epsilon(noise_multiplier):
        return math.inf
    # dp_accounting fails for divergences that are negligible beside 1. Accounting for less noise
    # than there is can only overstate epsilon.
    event = dp_accounting.GaussianDpEvent(min(noise_multiplier, _LARGEST_RENYI_MULTIPLIER))
    shape = math.inf if trials.distribution == POISSON else trials.shape
    return selection_rdp_epsilon(
        event, check_delta(delta), mean_trials=trials.mean_trials, shape=shape
    )


def _gaussian_shift(noise_multiplier: float, trials: TrialCount) -> float:
    """Computes the shift of the profile bound for trials that are each one Gaussian release."""
    # The closed form is fast enough for the search, and the accountant gives the proven bound.
    return least_shift(
        functools.partial(gaussian_epsilon, noise_multiplier),
        trials,
        estimate_of=functools.partial(exact_gaussian_epsilon, noise_multiplier),
    )


def least_shift(
    epsilon_of: EpsilonOfDelta, trials: TrialCount, *, estimate_of: EpsilonOfDelta | None = None
) -> float:
    """Computes the shift of the profile bound for the best d1.

    Args:
      epsilon_of: an upper bound on the epsilon of a trial, as a function of delta.
      trials: distribution of the number of trials.
      estimate_of: a fast estimate of the same, for the search for d1.
    """
    search_epsilon_of = estimate_of or epsilon_of
    d1 = math.exp(_best_log_d1(search_epsilon_of, trials))
    # Every mechanism has epsilon 0 at delta 1.
    return min(_shift(d1, epsilon_of(d1), trials), _shift(1.0, 0.0, trials))


def _best_log_d1(epsilon_of: EpsilonOfDelta, trials: TrialCount) -> float:
    """Returns the log d1 with the least shift, up to a tolerance."""
    from scipy import optimize

    low, high = _LOWEST_LOG_D1, _HIGHEST_LOG_D1
    if trials.distribution == POISSON:
        minimum_of_shift = optimize.minimize_scalar(
            lambda log_d1: _shift(math.exp(log_d1), epsilon_of(math.exp(log_d1)), trials),
            bounds=(low, high),
            method="bounded",
            options={"xatol": _TOLERANCE},
        )
        return float(minimum_of_shift.x)

    def excess(log_d1: float) -> float:
        d1 = math.exp(log_d1)
        return epsilon_of(d1) - _log_growth(d1, trials)

    # `_shift` takes the maximum of two numbers, of which one falls with d1 and the other rises. The
    # maximum is least where both are equal.
    if excess(low) <= 0:
        return low
    if excess(high) >= 0:
        return high
    return float(optimize.brentq(excess, low, high, xtol=_TOLERANCE))


def _shift(d1: float, e1: float, trials: TrialCount) -> float:
    """Computes the shift of the profile bound, given that a trial has epsilon at most e1 at delta
    d1.
    """
    if trials.distribution == POISSON:
        return trials.mean_trials * (math.expm1(min(e1, _LARGEST_E1)) + d1)
    return (1 + trials.shape) * max(e1, _log_growth(d1, trials))


def _log_growth(d1: float, trials: TrialCount) -> float:
    """Returns log(1 + (1 - gamma) / gamma d1) of the truncated negative binomial distribution."""
    return math.log1p((1 - trials.gamma) / trials.gamma * d1)


def trial_delta(delta: float, trials: TrialCount) -> float:
    """Returns the delta of a trial in the profile bound at the selection's delta.

    Raises:
      TypeError, ValueError: `delta` is out of range.
    """
    delta_of_trial = check_delta(delta) / trials.mean_trials
    if delta_of_trial < MIN_DELTA:
        raise ValueError(
            f"delta={delta} is below {MIN_DELTA * trials.mean_trials:g}, the least delta for "
            f"mean_trials={trials.mean_trials:g}: raise it"
        )
    return delta_of_trial
