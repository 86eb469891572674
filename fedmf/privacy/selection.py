"""Private selection, that is the guarantee of training a random number of models and releasing only
the best one.

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

from fedmf import checks
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.privacy.gaussian import (
    MIN_DELTA,
    check_delta,
    exact_gaussian_epsilon,
    gaussian_epsilon,
    has_infinite_epsilon,
)
from fedmf.privacy.noise_search import least_noise_multiplier
from fedmf.privacy.plan import Plan, check_plan, epsilon_at
from fedmf.privacy.renyi import selection_rdp_epsilon
from fedmf.privacy.source_tail import HOST_END, check_tail
from fedmf.privacy.trial_count import POISSON, TRUNCATED_NEGATIVE_BINOMIAL, TrialCount

# A function that takes a delta, and returns the epsilon of a trial at it.
EpsilonOfDelta = Callable[[float], float]

# Interval in which the best log d1 is searched, where d1 is the delta of a trial. The accountants
# of sampled plans do not resolve deltas below its lower end.
_LOWEST_LOG_D1 = math.log(1e-9)
_HIGHEST_LOG_D1 = math.log(1 - 1e-6)
# Tolerance of the search for the best logarithm of d1. Any d1 gives a valid bound on epsilon, so
# the tolerance only makes the bound a little larger.
_TOLERANCE = 1e-4
# Tolerance of the search for log delta in `PrivateSelection.delta`.
_DELTA_TOLERANCE = 1e-6
# Larger values of e1, the epsilon of a trial at delta d1, count as this one in exp(e1), which would
# overflow.
_LARGEST_E1 = 600.0
# Larger noise multipliers count as this one in the Renyi bound.
_LARGEST_RENYI_MULTIPLIER = 1e6

PROFILE_SOURCE = "privacy profiles (compare Koskela, Redberg and Wang 2024)"
RENYI_SOURCE = "Renyi divergences (Papernot and Steinke 2022, Theorems 2 and 6)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateSelection:
    """The guarantee of a private selection, in which every trial has the guarantee of `plan`.

    Attributes:
      plan: the plan of each trial. All settings among which the selection chooses must have this
        plan's privacy guarantee.
      trials: distribution of the number of trials.

    Formal guarantee:
      The released output of the best trial is (epsilon(delta), delta)-differentially private under
      the zero-out relation, if every trial draws its setting, its noise and its clients
      independently of all others, the score is computed from the trial's releases and from data of
      other people, and nothing of the other trials is released, the number of trials included.
      The noise must be drawn outside TensorFlow graphs. If the plan simulates a larger cohort, this
      is the guarantee of the claimed run.

    Raises:
      TypeError: an attribute has another type.
      ValueError: the epsilon of the plan's sampling scheme may be simulated, or the plan is that of
        the first rounds of a longer one.
    """

    plan: Plan
    trials: TrialCount

    def __post_init__(self) -> None:
        check_plan(self.plan)
        if not isinstance(self.trials, TrialCount):
            raise TypeError(
                f"trials={self.trials!r} must be a TrialCount, such as TrialCount(mean_trials=10)"
            )
        scheme = self.plan.sampling
        if scheme is not None and scheme.simulated:
            raise ValueError(
                f"sampling={scheme.name} has an epsilon that may be simulated, which private "
                "selection cannot use: choose poisson or random-allocation, or leave sampling out"
            )
        if self.plan.longer is not None:
            raise ValueError(
                "plan is that of the first rounds of a longer plan, and private selection needs "
                "trials that run to their end: pass plan.longer"
            )

    @with_numpy_defaults
    def epsilon(self, delta: float) -> float:
        """Computes an upper bound on the selection's epsilon, which is the smaller one of the
        profile bound and of the Renyi bound.

        Args:
          delta: in [1e-15 mean_trials, 1).

        Raises:
          TypeError: `delta` is no number.
          ValueError: `delta` is out of range, or so small that the bounded size of normal draws
            weakens the guarantee.

        >>> import fedmf
        >>> config = fedmf.PlanConfig(rounds=8, min_sep=8, family="identity", epsilon=2.0)
        >>> selection = private_selection(config.plan(), mean_trials=10)
        >>> round(selection.epsilon(1e-6), 2)
        3.01
        """
        self.check_noise(delta)
        return self.bound(delta)

    @with_numpy_defaults
    def delta(self, epsilon: float) -> float:
        """Computes an upper bound on the selection's delta at an epsilon.

        Args:
          epsilon: at least 0.

        Returns:
          The smallest delta, up to a relative error of 1e-6, at which `epsilon` is reached; 1 if
          the bounds prove nothing at this epsilon.

        Raises:
          TypeError: `epsilon` is no number.
          ValueError: `epsilon` is not finite or below 0, or delta is so small that the bounded size
            of normal draws weakens the guarantee.
        """
        hint = "use a privacy loss such as 8"
        target_epsilon = checks.positive("epsilon", epsilon, hint, allow_zero=True)
        # The lower end is a little above the least delta, so that rounding cannot move it below.
        low_log_delta = math.log(1.001 * MIN_DELTA * self.trials.mean_trials)
        high_log_delta = math.log(1 - 1e-9)
        if self.bound(math.exp(high_log_delta)) > target_epsilon:
            return 1.0
        if self.bound(math.exp(low_log_delta)) <= target_epsilon:
            high_log_delta = low_log_delta
        while high_log_delta - low_log_delta > _DELTA_TOLERANCE:
            middle_log_delta = (low_log_delta + high_log_delta) / 2
            if self.bound(math.exp(middle_log_delta)) <= target_epsilon:
                high_log_delta = middle_log_delta
            else:
                low_log_delta = middle_log_delta
        delta = math.exp(high_log_delta)
        self.check_noise(delta)
        return delta

    def source(self, delta: float) -> str:
        """Returns the name of the bound that `epsilon` states at a delta.

        Raises:
          TypeError, ValueError: `delta` is out of range.
        """
        if self._profile_epsilon(delta) <= self._renyi_epsilon(delta):
            return PROFILE_SOURCE
        return RENYI_SOURCE

    def check_noise(self, delta: float) -> None:
        """Raises ValueError if the bounded size of normal draws weakens the guarantee at a delta.

        A score may prefer trials whose noise reveals a client. So the probability of such noise in
        one trial is multiplied by the mean number of trials.
        """
        trial_delta = _trial_delta(delta, self.trials)
        if has_infinite_epsilon(self.plan.noise_multiplier):
            return  # The selection guarantees nothing.
        check_tail(self.plan, HOST_END, delta=trial_delta)

    def bound(self, delta: float) -> float:
        """Computes `epsilon` without `check_noise`, for searches for the noise."""
        if has_infinite_epsilon(self.plan.noise_multiplier):
            return math.inf
        return min(self._profile_epsilon(delta), self._renyi_epsilon(delta))

    def _profile_epsilon(self, delta: float) -> float:
        """Computes the profile bound on epsilon at a delta."""
        return epsilon_at(self.plan, _trial_delta(delta, self.trials)) + self._shift

    @functools.cached_property
    def _shift(self) -> float:
        """The epsilon that private selection adds to that of one trial, in the profile bound."""
        if self.plan.sampling is None:
            return _gaussian_shift(self.plan.noise_multiplier, self.trials)
        return least_shift(functools.partial(epsilon_at, self.plan), self.trials)

    def _renyi_epsilon(self, delta: float) -> float:
        """Computes the Renyi bound on epsilon at a delta, without amplification by sampling."""
        return _gaussian_renyi_epsilon(self.plan.noise_multiplier, delta, self.trials)


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
    trial_delta = _trial_delta(delta, trials)

    def estimate(sigma: float) -> float:
        if has_infinite_epsilon(sigma):
            return math.inf
        estimate_of = functools.partial(exact_gaussian_epsilon, sigma)
        return estimate_of(trial_delta) + least_shift(estimate_of, trials)

    multiplier = least_noise_multiplier(estimate, epsilon)
    # The noise is raised until the accountant, whose epsilon is a little above the closed form,
    # proves the guarantee.
    relative_increase = 1e-7
    while _gaussian_profile_epsilon(multiplier, trial_delta, trials) > epsilon:
        multiplier *= 1 + relative_increase
        relative_increase *= 2
    if _gaussian_renyi_epsilon(multiplier, delta, trials) >= epsilon:
        return multiplier
    # The Renyi bound is the smaller one for Poisson distributions with many trials.
    renyi_multiplier = least_noise_multiplier(
        lambda sigma: _gaussian_renyi_epsilon(sigma, delta, trials), epsilon
    )
    return min(multiplier, renyi_multiplier)


def _gaussian_profile_epsilon(
    noise_multiplier: float, trial_delta: float, trials: TrialCount
) -> float:
    """Computes the profile bound for trials that are each one Gaussian release, given the delta of
    a trial in that bound.
    """
    trial_epsilon = gaussian_epsilon(noise_multiplier, trial_delta)
    return trial_epsilon + _gaussian_shift(noise_multiplier, trials)


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


def _trial_delta(delta: float, trials: TrialCount) -> float:
    """Returns the delta of a trial in the profile bound at the selection's delta.

    Raises:
      TypeError, ValueError: `delta` is out of range.
    """
    trial_delta = check_delta(delta) / trials.mean_trials
    if trial_delta < MIN_DELTA:
        raise ValueError(
            f"delta={delta} is below {MIN_DELTA * trials.mean_trials:g}, the least delta for "
            f"mean_trials={trials.mean_trials:g}: raise it"
        )
    return trial_delta


def private_selection(
    plan: Plan,
    *,
    mean_trials: float = 10.0,
    distribution: str = TRUNCATED_NEGATIVE_BINOMIAL,
    shape: float = 1.0,
) -> PrivateSelection:
    """Returns the guarantee of training a random number of models with a plan each, and releasing
    only the best one.

    Args:
      plan: the plan of each trial.
      mean_trials: mean of the number of trials, in [1, 10000].
      distribution: "truncated-negative-binomial", or "poisson", with which there may be no trial.
      shape: shape of the truncated negative binomial, in [0, 100]: 1 is the geometric
        distribution, and 0 the logarithmic one, which costs less epsilon and has a longer tail.

    Returns:
      The guarantee, with the methods `epsilon(delta)` and `delta(epsilon)`.

    Raises:
      TypeError: an argument has another type.
      ValueError: a number is out of range, the distribution is unknown, or the plan's sampling
        scheme has a simulated epsilon.

    Example:
      >>> import fedmf
      >>> config = fedmf.PlanConfig(rounds=8, min_sep=8, family="identity", noise_multiplier=2.2305)
      >>> selection = fedmf.private_selection(config.plan(), mean_trials=10, shape=0.0)
      >>> round(config.plan().epsilon, 2), round(selection.epsilon(1e-6), 3)
      (2.0, 2.827)
    """
    trials = TrialCount(mean_trials=mean_trials, distribution=distribution, shape=shape)
    return PrivateSelection(plan=plan, trials=trials)
