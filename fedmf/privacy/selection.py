"""Private selection, that is the guarantee of training a random number of models and releasing only
the best one. `fedmf.privacy.selection_bounds` has its accounting.
"""

import dataclasses
import functools
import math

from fedmf import checks
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.privacy.gaussian import MIN_DELTA
from fedmf.privacy.plan import Plan, check_plan, selection_bounds
from fedmf.privacy.selection_bounds import SelectionBounds
from fedmf.privacy.source_tail import check_trial_tail
from fedmf.privacy.trial_count import TRUNCATED_NEGATIVE_BINOMIAL, TrialCount

# Tolerance of the search for log delta in `PrivateSelection.delta`.
_DELTA_TOLERANCE = 1e-6


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
      ValueError: the epsilon of the plan's sampling scheme may be simulated, the plan is that of
        the first rounds of a longer one, or it has another number of trials.
    """

    plan: Plan
    trials: TrialCount

    def __post_init__(self) -> None:
        check_plan(self.plan)
        if not isinstance(self.trials, TrialCount):
            raise TypeError(
                f"trials={self.trials!r} must be a TrialCount, such as TrialCount(mean_trials=10)"
            )
        if self.plan.selection not in (None, self.trials):
            raise ValueError(
                f"plan has selection={self.plan.selection}, and not {self.trials}: give the same "
                "number of trials"
            )
        _ = self._bounds  # Raises if the plan cannot be that of a trial.

    @functools.cached_property
    def _bounds(self) -> SelectionBounds:
        """The bounds on epsilon."""
        bounds = selection_bounds(dataclasses.replace(self.plan, selection=self.trials))
        assert bounds is not None
        return bounds

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
        return self._bounds.source(delta)

    def check_noise(self, delta: float) -> None:
        """Raises ValueError if the bounded size of normal draws weakens the guarantee at a
        delta.
        """
        check_trial_tail(self.plan, self.trials, delta)

    def bound(self, delta: float) -> float:
        """Computes `epsilon` without `check_noise`, for searches for the noise."""
        return self._bounds.epsilon(delta)


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
