"""The plan of a training run, with its mechanism, participation limits, clip norm, noise, and the
privacy guarantee that follows from them. `Plan` is the only place that computes the scale of the
noise.

For the accounting, a whole run is one Gaussian mechanism: it releases C x + Z once, where C is the
encoder, x has the clipped sum of each round in a row, and Z has independent normal entries with
standard deviation stddev. That holds for adaptive inputs too (Denisov et al. 2022, Thm. 2.1). So a
run is accounted as ONE GaussianDpEvent, whose noise multiplier is stddev / (sensitivity *
clip_norm). With client sampling, the sampling scheme may prove a smaller epsilon
(`fedmf.privacy.sampling`).
"""

import dataclasses
import functools
import math
import reprlib
from typing import TYPE_CHECKING

from fedmf import checks, fields
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.leading import column_norm
from fedmf.mechanisms.sensitivity import Sensitivity, sensitivity
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.participation.schema import Participation
from fedmf.privacy.client_groups import group_epsilon
from fedmf.privacy.gaussian import check_delta, check_float32_holds, gaussian_epsilon
from fedmf.privacy.plan_checks import check_selection, check_sizes, check_streams
from fedmf.privacy.private_metrics import PrivateMetrics
from fedmf.privacy.quantile_clipping import MOST_CHANGE, QuantileClipping
from fedmf.privacy.renyi import event_rdp_epsilon
from fedmf.privacy.sampling import Sampling
from fedmf.privacy.selection_bounds import SelectionBounds
from fedmf.privacy.simulation import Simulation
from fedmf.privacy.source_tail import check_noise_tail, is_revealed
from fedmf.privacy.trial_count import POISSON, TrialCount

if TYPE_CHECKING:
    import dp_accounting

# dp_accounting is imported inside the functions that use it. Its import takes most of a second, for
# which `fedmf --help` should not wait.

# Largest noise multiplier that is passed to Renyi accounting. dp_accounting squares it, and the
# square of a larger one may overflow.
_LARGEST_RDP_MULTIPLIER = 1e100


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan(fields.ShortRepr):
    """The plan of a training run, with its privacy parameters and the guarantee that follows from
    them.

    Frozen. Every number on which the noise depends is derived here and nowhere else.

    Attributes:
      mechanism: the matrices that correlate the noise of different rounds.
      participation: the limits that the guarantee assumes for every client, for as many rounds as
        the mechanism has. With sampling it is left out: the scheme determines it.
      noise_multiplier: stddev / (sensitivity * clip_norm), for one GaussianDpEvent of the whole
        run; 0 means no noise and no privacy (epsilon is infinite). The sampling scheme, if there is
        one, lowers the epsilon of this noise.
      clip_norm: L2 bound on one client's update in one round; the first one with quantile_clipping.
      delta: in [1e-15, 1); at least 1e-10 with most sampling schemes.
      sampling: a scheme of `fedmf.privacy.sampling`; if it does not set the number of partitions,
        that is the mechanism's bands. None for no amplification.
      simulation: set by `simulating`; None for a run that trains the cohort of its guarantee.
      quantile_clipping: adapts the clip norm to the updates' norms; noise_multiplier covers the
        updates and the released clipping bits together. None for a constant clip norm.
      private_metrics: releases metrics of the rounds with noise; noise_multiplier covers the
        updates and the metrics together. None for no private metrics.
      selection: the number of trials of a private selection, of which this is the plan of each. The
        guarantee is then that of the selected trial. None for a single run.
      longer: the plan of all rounds of the mechanism, for a plan of its first rounds; set only by
        `fedmf.privacy.stopping.stopped_after`, else None.

    Raises:
      TypeError: an attribute has another type.
      ValueError: a number is out of range, the rounds of mechanism and participation differ,
        sampling scheme, mechanism and participation do not suit each other, or no private selection
        can have such trials.

    Example:
      >>> import fedmf
      >>> one_epoch = fedmf.Participation(rounds=8, schema="single")
      >>> mechanism = fedmf.fit(fedmf.prefix_sum(8), one_epoch, family="identity")
      >>> plan = fedmf.Plan(
      ...     mechanism=mechanism, participation=one_epoch, noise_multiplier=2.0, clip_norm=0.5,
      ...     delta=1e-6
      ... )
      >>> plan.stddev, plan.rho
      (1.0, 0.125)
    """

    mechanism: Mechanism
    # The participation may be None only if the plan has a sampling scheme; __post_init__ then sets
    # the participation of the scheme.
    participation: Participation = None  # type: ignore[assignment]
    noise_multiplier: float
    clip_norm: float
    delta: float
    sampling: Sampling | None = None
    simulation: Simulation | None = None
    quantile_clipping: QuantileClipping | None = None
    private_metrics: PrivateMetrics | None = None
    selection: TrialCount | None = None
    longer: "Plan | None" = dataclasses.field(default=None, repr=False)

    @with_numpy_defaults
    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, Mechanism):
            raise TypeError(
                f"mechanism={self.mechanism!r} must be a Mechanism: make one with "
                "fedmf.fit or load_mechanism"
            )
        self._set_sampling()
        participation = self.participation
        if not isinstance(participation, Participation):
            raise TypeError(f"participation={participation!r} must be a fedmf.Participation")
        if self.mechanism.rounds != participation.rounds:
            raise ValueError(
                f"mechanism has {self.mechanism.rounds} rounds but participation has "
                f"{participation.rounds}: fit the mechanism for the rounds of the run"
            )
        noise_hint = "use a number such as 0.65, or 0 for no privacy"
        clip_hint = (
            "use the L2 bound on an update, such as 1.0; for one that adapts add quantile_clipping"
        )
        noise_multiplier = checks.positive(
            "noise_multiplier", self.noise_multiplier, noise_hint, allow_zero=True
        )
        clip_norm = checks.positive("clip_norm", self.clip_norm, clip_hint)
        fields.set_fields(
            self,
            {
                "noise_multiplier": noise_multiplier,
                "clip_norm": clip_norm,
                "delta": check_delta(self.delta),
            },
        )
        check_streams(self.quantile_clipping, self.private_metrics, noise_multiplier)
        self._check_longer()
        check_sizes(self.delta, self.sampling, self.simulation)
        check_selection(self.selection, self.sampling, is_shortened=self.longer is not None)

    def _set_sampling(self) -> None:
        """Sets the fields of the sampling scheme that follow from the mechanism, and sets
        `participation` to the limits that the scheme ensures.
        """
        if self.sampling is None:
            return
        if not isinstance(self.sampling, Sampling):
            raise TypeError(
                f"sampling={self.sampling!r} must be None or a scheme of fedmf.privacy.sampling "
                "such as fedmf.CyclicPoisson"
            )
        scheme = self.sampling.for_mechanism(self.mechanism)
        participation = scheme.participation(self.mechanism.rounds)
        if self.participation not in (None, participation):
            raise ValueError(
                f"{self.participation} is not the participation of {scheme}: leave it out, or pass "
                f"{participation}"
            )
        fields.set_fields(self, {"sampling": scheme, "participation": participation})

    def _check_longer(self) -> None:
        """Raises unless `longer`, the plan of all rounds, has at least as many rounds as this plan
        and the same noise, clip norm and further streams.
        """
        longer_plan = self.longer
        if not isinstance(longer_plan, Plan | None):
            raise TypeError(
                f"longer={longer_plan!r} must be None: fedmf.privacy.stopping.stopped_after sets "
                "it to the plan of all rounds"
            )
        if longer_plan is None:
            return
        if longer_plan.mechanism.rounds < self.mechanism.rounds:
            raise ValueError(
                f"longer has rounds={longer_plan.mechanism.rounds}, fewer than the "
                f"rounds={self.mechanism.rounds} of the plan: "
                "make plans of the first rounds with fedmf.privacy.stopping.stopped_after"
            )
        shared_fields = ("clip_norm", "simulation", "quantile_clipping", "private_metrics")
        changed_fields = [
            name for name in shared_fields if getattr(self, name) != getattr(longer_plan, name)
        ]
        if not math.isclose(unit_noise(self), unit_noise(longer_plan), rel_tol=1e-9):
            changed_fields.append("noise_multiplier")
        if changed_fields:
            raise ValueError(
                f"{' and '.join(changed_fields)} changed in a plan of the first rounds, which has "
                "the noise of all rounds: change the plan of all rounds, then call stopped_after"
            )

    @functools.cached_property
    @with_numpy_defaults
    def sensitivity(self) -> Sensitivity:
        """The L2 sensitivity of the encoder for the rounds in which one client may take part, for
        clip norm 1. It is exact or a proven upper bound.
        """
        return sensitivity(self.mechanism, self.participation)

    @functools.cached_property
    def _selection_bounds(self) -> SelectionBounds | None:
        """The bounds on epsilon of the private selection; None for a single run."""
        if self.selection is None:
            return None
        epsilon_of_trial = None
        if self.sampling is not None:
            trial_plan = dataclasses.replace(self, selection=None)
            epsilon_of_trial = functools.partial(epsilon_at, trial_plan)
        return SelectionBounds(
            trials=self.selection,
            noise_multiplier=self.noise_multiplier,
            sampled_epsilon_of=epsilon_of_trial,
        )

    @property
    @with_numpy_defaults
    def stddev(self) -> float:
        """The standard deviation of every entry of the Gaussian matrix Z, in the units of a
        client's update. The noise added to the SUM of round t is row t of N Z, where N = C^-1 is
        the noise matrix of the mechanism.

        With quantile_clipping this is the value for the first clip norm; the noise of later rounds
        is proportional to their clip norm.

        Raises:
          ValueError: noise or release would be 0 or infinite in float32, in which they are
            computed; no noise source has long enough tails for this delta.
        """
        check_noise_tail(self)
        multiplier = update_noise_multiplier(self)
        sensitivity_value = self.sensitivity.value
        scale = cohort_scale(self)
        check_float32_holds(multiplier, sensitivity_value, self.clip_norm, scale)
        if self.quantile_clipping is not None:
            for factor in (1 / MOST_CHANGE, MOST_CHANGE):
                clip_norm = self.clip_norm * factor
                check_float32_holds(multiplier, sensitivity_value, clip_norm, scale)
            # The sum of the clipping bits (each says whether a client's update was within the clip
            # norm) has noise of its own, whose scale is in units of clients.
            bit_multiplier = bit_stddev(self) / sensitivity_value
            check_float32_holds(bit_multiplier, sensitivity_value, 1.0, 1.0)
        if self.private_metrics is not None:
            metric_multiplier = self.private_metrics.noise_multiplier(self.noise_multiplier)
            check_float32_holds(metric_multiplier, sensitivity_value, 1.0, scale)
        return math.prod((multiplier, sensitivity_value, self.clip_norm, scale))

    @property
    @with_numpy_defaults
    def epsilon(self) -> float:
        """An upper bound on epsilon under the zero-out relation, in which one client's updates are
        replaced by zeros.

        It is the smaller one of two bounds: PLD accounting without amplification, and the epsilon
        that the sampling scheme proves. With `selection` it is that of the selected trial.
        """
        return epsilon_at(self, self.delta)

    @with_numpy_defaults
    def group_epsilon(self, devices: int) -> float:
        """Computes epsilon, at the plan's delta, for a user with several devices, each of which
        takes part as a separate client.

        Without sampling, the sensitivity is exactly `devices` times as large. With sampling, the
        result is the smaller one of that bound and of general group privacy. It is infinite where
        the bounded size of normal draws on the host would reveal the user.
        """
        hint = "count the clients of one user"
        g = checks.integer("devices", devices, low=1, high=10**9, hint=hint)
        if g > 1 and is_revealed(self, devices=g):
            return math.inf
        unamplified_value = _unamplified_epsilon(self, self.noise_multiplier / g, self.delta)
        # `group_epsilon` needs epsilon at many deltas. A simulation for each of them would take
        # hours, so schemes with a simulated epsilon have only the bound without amplification here.
        if self.sampling is None or self.sampling.simulated or self.noise_multiplier == 0:
            return unamplified_value
        if self.selection is not None:
            return unamplified_value
        epsilon_at = functools.partial(self.sampling.epsilon, self.mechanism, unit_noise(self))
        amplified_value = group_epsilon(
            epsilon_at, self.delta, g, min_delta=self.sampling.min_delta
        )
        return min(unamplified_value, amplified_value)

    @property
    @with_numpy_defaults
    def rho(self) -> float:
        """The rho of zero-concentrated differential privacy (zCDP), which is 1 / (2
        noise_multiplier^2) (Bun and Steinke 2016, Prop. 1.6; Denisov et al. 2022, Thm. 3.1 and
        Def. J.2).

        Client sampling does not lower this rho. It is infinite for a private selection, for which
        none is proven.
        """
        if self.noise_multiplier == 0 or self.selection is not None:
            return math.inf
        inverse_multiplier = 1 / self.noise_multiplier
        return inverse_multiplier * inverse_multiplier / 2

    @with_numpy_defaults
    def simulating(self, *, simulated: int, claimed: int) -> "Plan":
        """Returns a plan that trains `simulated` clients a round to estimate the utility of
        `claimed` clients a round.

        The papers simulate large cohorts in this way (banded paper, Sec. 6): the noise on the mean
        is that of the claimed cohort, so stddev is scaled by simulated / claimed. The guarantee is
        that of the claimed run, which is NOT this run: the model trained here has less noise than
        its own cohort needs, and the statement says so.
        """
        simulation = Simulation(simulated=simulated, claimed=claimed)
        return dataclasses.replace(self, simulation=simulation)


def check_plan(plan: object) -> None:
    """Raises TypeError if the argument is not a `Plan`."""
    if not isinstance(plan, Plan):
        raise TypeError(
            f"plan={reprlib.repr(plan)} must be a fedmf.Plan: make one with fedmf.calibrate"
        )


def selection_bounds(plan: Plan) -> SelectionBounds | None:
    """Returns the bounds on epsilon of a private selection among trials; None for a single run."""
    return plan._selection_bounds


def check_single_run(plan: Plan) -> None:
    """Raises ValueError if a plan is that of the trials of a private selection, whose guarantee a
    single run does not have to itself.
    """
    if plan.selection is not None:
        raise ValueError(
            f"plan has selection={plan.selection} and states the guarantee of a private selection, "
            "which `fedmf sweep --private-selection` runs: leave `selection` out for a single run"
        )


@with_numpy_defaults
def dp_event(plan: Plan) -> "dp_accounting.DpEvent":
    """Returns the whole run as one `DpEvent`, for the accountants of dp_accounting.

    Args:
      plan: the plan of the run.

    Returns:
      The event of the sampling scheme if dp_accounting can express it; otherwise a Gaussian event,
      whose epsilon has no amplification. A private selection is the event of its trials, repeated.

    Raises:
      TypeError: `plan` is no Plan.
    """
    import dp_accounting

    check_plan(plan)
    if plan.noise_multiplier == 0:
        return dp_accounting.NonPrivateDpEvent()
    if plan.selection is not None:
        trial_event = dp_event(dataclasses.replace(plan, selection=None))
        shape = math.inf if plan.selection.distribution == POISSON else plan.selection.shape
        return dp_accounting.RepeatAndSelectDpEvent(trial_event, plan.selection.mean_trials, shape)
    if plan.sampling is not None:
        sampled_event = plan.sampling.event(plan.mechanism, unit_noise(plan))
        if sampled_event is not None:
            return sampled_event
    return dp_accounting.GaussianDpEvent(plan.noise_multiplier)


def cohort_scale(plan: Plan) -> float:
    """Returns the simulated cohort size divided by the claimed one; 1 without a simulation."""
    if plan.simulation is None:
        return 1.0
    return plan.simulation.simulated / plan.simulation.claimed


def noise_multiplier_without_metrics(plan: Plan) -> float:
    """Returns the noise multiplier of everything that a run releases except its private metrics."""
    if plan.private_metrics is None:
        return plan.noise_multiplier
    return plan.private_metrics.other_noise_multiplier(plan.noise_multiplier)


def update_noise_multiplier(plan: Plan) -> float:
    """Returns the noise multiplier of the sums of updates alone. With quantile_clipping or
    private_metrics it is larger than the plan's, which covers all releases together.
    """
    multiplier = noise_multiplier_without_metrics(plan)
    if plan.quantile_clipping is None:
        return multiplier
    return plan.quantile_clipping.update_noise_multiplier(multiplier)


def metric_stddev(plan: Plan) -> float:
    """Returns the standard deviation of the normal draws behind the noise of the private metrics,
    to whose sum a client adds a vector of norm at most 1. It is 0 without private metrics.
    """
    if plan.private_metrics is None:
        return 0.0
    multiplier = plan.private_metrics.noise_multiplier(plan.noise_multiplier)
    return multiplier * plan.sensitivity.value * cohort_scale(plan)


def bit_stddev(plan: Plan) -> float:
    """Returns the standard deviation of the normal draws behind the noise of the sum of clipping
    bits, in units of clients. It is 0 without quantile_clipping.
    """
    if plan.quantile_clipping is None:
        return 0.0
    multiplier = plan.quantile_clipping.bit_noise_multiplier(noise_multiplier_without_metrics(plan))
    return multiplier * plan.sensitivity.value * cohort_scale(plan)


def noise_size(plan: Plan, parameters: int) -> int:
    """Returns the number of entries of one round's noise vector, for a model with `parameters`
    parameters.

    With quantile_clipping the vector has one more entry, at its end, for the sum of clipping bits.
    """
    return parameters + (plan.quantile_clipping is not None)


def unit_noise(plan: Plan) -> float:
    """Returns the standard deviation of every entry of the Gaussian matrix Z for clip norm 1,
    without the scaling of a simulated cohort. Sampling schemes take it as their argument `noise`.
    """
    return plan.noise_multiplier * plan.sensitivity.value


def per_query_noise_multiplier(plan: Plan) -> float:
    """Returns the noise multiplier of each of the sampled queries to which a run with client
    sampling reduces. This reduction is that of the banded paper, Thm. 4. Without sampling it is the
    plan's noise multiplier.
    """
    if plan.sampling is None:
        return plan.noise_multiplier
    return unit_noise(plan) / column_norm(plan.mechanism)


def unamplified_epsilon(plan: Plan) -> float:
    """Computes epsilon without amplification by sampling. It also holds against attackers who know
    which clients were sampled, and equals `Plan.epsilon` for a plan without sampling.

    >>> import fedmf
    >>> config = fedmf.PlanConfig(rounds=8, min_sep=4, family="identity", noise_multiplier=2.0)
    >>> unamplified_epsilon(config.plan()) == config.plan().epsilon
    True
    """
    return _unamplified_epsilon(plan, plan.noise_multiplier, plan.delta)


def _unamplified_epsilon(plan: Plan, noise_multiplier: float, delta: float) -> float:
    """Computes the epsilon of a plan without amplification, for another noise multiplier and
    delta.
    """
    if plan.selection is None:
        return gaussian_epsilon(noise_multiplier, delta)
    return SelectionBounds(trials=plan.selection, noise_multiplier=noise_multiplier).epsilon(delta)


def epsilon_at(plan: Plan, delta: float) -> float:
    """Computes `Plan.epsilon` at another delta, in [1e-15, 1). Below the scheme's `min_delta` it
    is the epsilon without amplification by sampling.
    """
    if plan._selection_bounds is not None:
        return plan._selection_bounds.epsilon(delta)
    unamplified_value = gaussian_epsilon(plan.noise_multiplier, delta)
    scheme = plan.sampling
    if scheme is None or plan.noise_multiplier == 0 or delta < scheme.min_delta:
        return unamplified_value
    amplified_value = scheme.epsilon(plan.mechanism, unit_noise(plan), delta)
    return min(unamplified_value, amplified_value)


def rdp_epsilon(plan: Plan) -> float:
    """Computes epsilon by Renyi accounting, for comparison with the older literature, which reports
    it.

    The result is the smaller one of the sampling scheme's Renyi epsilon and of the epsilon of the
    Gaussian without amplification. It is at least `Plan.epsilon`, up to rounding.
    """
    if plan.noise_multiplier > _LARGEST_RDP_MULTIPLIER:
        return rdp_epsilon(dataclasses.replace(plan, noise_multiplier=_LARGEST_RDP_MULTIPLIER))
    if plan._selection_bounds is not None:
        return plan._selection_bounds.renyi_epsilon(plan.delta)
    unamplified_value = event_rdp_epsilon(
        dp_event(dataclasses.replace(plan, sampling=None)), plan.delta
    )
    if plan.sampling is None or plan.noise_multiplier == 0:
        return unamplified_value
    sampled_value = plan.sampling.rdp_epsilon(plan.mechanism, unit_noise(plan), plan.delta)
    return min(unamplified_value, sampled_value)
