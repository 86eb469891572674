"""From a noise multiplier to (epsilon, delta) and zCDP, and back: the `Plan` is the only place that
knows the noise scale.

One run of any mechanism is one Gaussian mechanism on C x, released once (Denisov et al. 2022, Thm.
2.1: adaptive inputs included), so it is accounted as ONE GaussianDpEvent whose noise multiplier is
stddev / (sensitivity * clip_norm). Where clients are sampled, the scheme may prove a smaller
epsilon (`fedmf.privacy.sampling`).
"""

import dataclasses
import functools
import math
import reprlib
from typing import TYPE_CHECKING, Any

from fedmf import checks, fields
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.leading import column_norm
from fedmf.mechanisms.sensitivity import Sensitivity, sensitivity
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.participation.schema import Participation
from fedmf.privacy.amplification import event_rdp_epsilon, group_epsilon
from fedmf.privacy.gaussian import check_delta, check_float32_holds, gaussian_epsilon
from fedmf.privacy.private_metrics import PrivateMetrics
from fedmf.privacy.quantile_clipping import MOST_CHANGE, QuantileClipping
from fedmf.privacy.sampling import Sampling
from fedmf.privacy.source_tail import HOST_END, check_tail

if TYPE_CHECKING:
    import dp_accounting

# dp_accounting takes most of a second to import, so that `fedmf --help` waits for it nowhere:
# functions import it.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Simulation:
    """The cohort that a run trains, and the larger one whose utility it estimates.

    Attributes:
      simulated, claimed: clients a round; simulated is below claimed.

    Raises:
      TypeError, ValueError: naming the argument, its value and what to do instead.
    """

    simulated: int
    claimed: int

    def __post_init__(self) -> None:
        hint = "use a number of clients a round, with plan.simulating(simulated=..., claimed=...)"
        for name in ("simulated", "claimed"):
            number = checks.integer(name, getattr(self, name), low=1, hint=hint)
            fields.set_fields(self, {name: number})
        if self.simulated >= self.claimed:
            raise ValueError(
                f"simulated={self.simulated} must be below claimed={self.claimed}: a simulation "
                "stands for a larger cohort; to train the claimed cohort itself leave both out"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan(fields.ShortRepr):
    """What will be run and what it guarantees.

    Frozen; every number the noise depends on is derived here and nowhere else.

    Attributes:
      mechanism: the noise's correlation.
      participation: what every client keeps to and the guarantee assumes; same number of rounds as
        the mechanism. With sampling it is left out: the plan takes what clients keep
        to with the scheme.
      noise_multiplier: stddev over sensitivity and clip_norm, of one GaussianDpEvent for the whole
        run; 0 means no noise and no privacy (epsilon is infinite).
        Sampling amplifies what it guarantees.
      clip_norm: L2 bound on one client's update in one round; the first one with quantile_clipping.
      delta: in [1e-15, 1); at least 1e-10 with most sampling schemes.
      sampling: a scheme of `fedmf.privacy.sampling`, in as many partitions as the mechanism has
        bands where it names none; None for no amplification.
      simulation: set by `simulating`; None for a run that is what it claims.
      quantile_clipping: how the clip norm follows the updates, of which noise_multiplier covers
        both streams; None for one clip norm.
      private_metrics: metrics of the rounds that are released as well, of which noise_multiplier
        covers both streams; None for none.
      longer: set only by `fedmf.privacy.stopping.stopped_after`: the plan of all rounds that the
        noise is for; else None.

    Raises:
      TypeError, ValueError: naming the argument, its value and what to do instead.

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
    # With sampling; never None once made.
    participation: Participation = None  # type: ignore[assignment]
    noise_multiplier: float
    clip_norm: float
    delta: float
    sampling: Sampling | None = None
    simulation: Simulation | None = None
    quantile_clipping: QuantileClipping | None = None
    private_metrics: PrivateMetrics | None = None
    longer: "Plan | None" = dataclasses.field(default=None, repr=False)

    @with_numpy_defaults
    def __post_init__(self) -> None:
        mechanism = self.mechanism
        scheme = self.sampling
        p = self.participation
        if not isinstance(mechanism, Mechanism):
            raise TypeError(
                f"mechanism={mechanism!r} must be a Mechanism: make one with "
                "fedmf.fit or load_mechanism"
            )
        if scheme is not None:
            if not isinstance(scheme, Sampling):
                raise TypeError(
                    f"sampling={scheme!r} must be None or a scheme of fedmf.privacy.sampling such "
                    "as fedmf.CyclicPoisson"
                )
            scheme = scheme.for_mechanism(mechanism)
            kept = scheme.participation(mechanism.rounds)
            p = kept if p is None else p
            if p != kept:
                raise ValueError(f"{p} is not what {scheme} keeps to: leave it out, or pass {kept}")
        if not isinstance(p, Participation):
            raise TypeError(f"participation={p!r} must be a fedmf.Participation")
        if mechanism.rounds != p.rounds:
            raise ValueError(
                f"mechanism has {mechanism.rounds} rounds but participation has {p.rounds}: fit "
                "the mechanism for the rounds of the run"
            )
        noise_hint = "use a number such as 0.65, or 0 for no privacy"
        clip_hint = (
            "use the L2 bound on an update, such as 1.0; for one that adapts add quantile_clipping"
        )
        checked = {
            "sampling": scheme,
            "participation": p,
            "noise_multiplier": checks.positive(
                "noise_multiplier", self.noise_multiplier, noise_hint, allow_zero=True
            ),
            "clip_norm": checks.positive("clip_norm", self.clip_norm, clip_hint),
            "delta": check_delta(self.delta),
        }
        fields.set_fields(self, checked)
        self._check_together()

    def _check_together(self) -> None:
        """Raises where arguments do not go with each other."""
        scheme = self.sampling
        if not isinstance(self.quantile_clipping, QuantileClipping | None):
            raise TypeError(
                f"quantile_clipping={self.quantile_clipping!r} must be a fedmf.QuantileClipping, "
                "or None for one clip norm"
            )
        if not isinstance(self.private_metrics, PrivateMetrics | None):
            raise TypeError(
                f"private_metrics={self.private_metrics!r} must be a fedmf.PrivateMetrics, or None "
                "for none"
            )
        if self.private_metrics is not None and not self.noise_multiplier:
            raise ValueError(
                f"private_metrics={self.private_metrics.share} with noise_multiplier=0, which "
                "makes nothing private: add noise, or leave it out"
            )
        if not isinstance(self.longer, Plan | None):
            raise TypeError(
                f"longer={self.longer!r} must be None: fedmf.privacy.stopping.stopped_after sets "
                "it to the plan of all rounds"
            )
        if self.longer is not None and self.longer.mechanism.rounds < self.mechanism.rounds:
            raise ValueError(
                f"longer has rounds={self.longer.mechanism.rounds}, fewer than the "
                f"rounds={self.mechanism.rounds} of the plan: "
                "make plans of the first rounds with fedmf.privacy.stopping.stopped_after"
            )
        self._check_longer()
        if scheme is not None and self.delta < scheme.min_delta:
            raise ValueError(
                f"delta={self.delta} is too small for amplification by sampling, accounted to "
                f"{scheme.min_delta}: use that, or leave sampling out"
            )
        if not isinstance(self.simulation, Simulation | None):
            raise TypeError(
                f"simulation={self.simulation!r} must be None, or what plan.simulating sets"
            )
        claimed = None if self.simulation is None else self.simulation.claimed
        if scheme is not None and claimed not in (None, scheme.cohort_size):
            raise ValueError(
                f"sampling has cohort_size={scheme.cohort_size} but claimed={claimed}: "
                "sample the claimed cohort"
            )

    def _check_longer(self) -> None:
        """Raises unless the plan of all rounds has the same noise, clip and simulation."""
        longer = self.longer
        if longer is None:
            return
        kept = ("clip_norm", "simulation", "quantile_clipping", "private_metrics")
        changed = [name for name in kept if getattr(self, name) != getattr(longer, name)]
        if not math.isclose(unit_noise(self), unit_noise(longer), rel_tol=1e-9):
            changed.append("noise_multiplier")
        if changed:
            raise ValueError(
                f"{' and '.join(changed)} changed in a plan of the first rounds, whose noise is "
                "that of all rounds: change the plan of all, then take stopped_after"
            )

    @functools.cached_property
    @with_numpy_defaults
    def sensitivity(self) -> Sensitivity:
        """Sensitivity of the encoder under the participation, for unit clip norm: exact or a proven
        upper bound.
        """
        return sensitivity(self.mechanism, self.participation)

    @property
    @with_numpy_defaults
    def stddev(self) -> float:
        """Standard deviation of every entry of Z, in the units of a client's update: the noise
        added to a SUM is N Z.

        With quantile_clipping while the clip norm is the first one; later in proportion to it.

        Raises:
          ValueError: float32, in which noise is made and the release handed out, would make either
            0 or infinite; no source draws far enough out for this delta.
        """
        check_tail(self, HOST_END)
        scales = (
            update_noise_multiplier(self),
            self.sensitivity.value,
            self.clip_norm,
            cohort_scale(self),
        )
        check_float32_holds(*scales)
        if self.quantile_clipping is not None:
            for change in (1 / MOST_CHANGE, MOST_CHANGE):
                check_float32_holds(*scales[:2], self.clip_norm * change, scales[3])
            # The sum of bits has its own noise, in clients.
            check_float32_holds(
                bit_stddev(self) / self.sensitivity.value, self.sensitivity.value, 1.0, 1.0
            )
        if self.private_metrics is not None:
            multiplier = self.private_metrics.noise_multiplier(self.noise_multiplier)
            check_float32_holds(multiplier, self.sensitivity.value, 1.0, scales[3])
        return math.prod(scales)

    @property
    @with_numpy_defaults
    def epsilon(self) -> float:
        """Under the zero-out relation; an upper value.

        PLD accounting, or that of the sampling scheme where it is less.
        """
        if self.sampling is None or self.noise_multiplier == 0:
            return unamplified_epsilon(self)
        return min(
            unamplified_epsilon(self),
            self.sampling.epsilon(self.mechanism, unit_noise(self), self.delta),
        )

    @with_numpy_defaults
    def group_epsilon(self, devices: int) -> float:
        """Epsilon at the plan's delta for a user with several devices, each a client of its own.

        Without sampling the sensitivity is `devices` times as large, exactly; with sampling the
        general bound is taken where it is less.
        """
        hint = "count the clients of one user"
        g = checks.integer("devices", devices, low=1, high=10**9, hint=hint)
        together = gaussian_epsilon(self.noise_multiplier / g, self.delta)
        # A simulation for each delta of the search would take hours.
        if self.sampling is None or self.sampling.simulated or self.noise_multiplier == 0:
            return together
        one = functools.partial(self.sampling.epsilon, self.mechanism, unit_noise(self))
        return min(together, group_epsilon(one, self.delta, g, least=self.sampling.min_delta))

    @property
    @with_numpy_defaults
    def rho(self) -> float:
        """rho-zCDP of the run: 1 / (2 noise_multiplier^2) (Bun and Steinke 2016, Prop. 1.6;
        Denisov et al. 2022, Thm. 3.1 and Def. J.2).

        Sampling does not lower it.
        """
        if self.noise_multiplier == 0:
            return math.inf
        inverse = 1 / self.noise_multiplier
        return inverse * inverse / 2

    @with_numpy_defaults
    def simulating(self, *, simulated: int, claimed: int) -> "Plan":
        """A plan that trains `simulated` clients a round to estimate the utility of `claimed`
        clients a round.

        The papers' way of affording large cohorts (banded paper, Sec. 6): the noise on the mean is
        that of the claimed cohort, so stddev is scaled by simulated / claimed. The guarantee is
        that of the claimed run, which is NOT this run: the model trained here has less noise than
        its own cohort needs, and the statement says so.
        """
        simulation = Simulation(simulated=simulated, claimed=claimed)
        return dataclasses.replace(self, simulation=simulation)


def check_plan(plan: Any) -> None:
    """Refuses what is no plan: TypeError."""
    if not isinstance(plan, Plan):
        raise TypeError(
            f"plan={reprlib.repr(plan)} must be a fedmf.Plan: make one with fedmf.calibrate"
        )


@with_numpy_defaults
def dp_event(plan: Plan) -> "dp_accounting.DpEvent":
    """Returns the whole run as one event of dp_accounting.

    Args:
      plan: of the run.

    Returns:
      The event of the sampling scheme where dp_accounting has it, else the unamplified Gaussian.

    Raises:
      TypeError: no plan.
    """
    import dp_accounting

    check_plan(plan)
    if plan.noise_multiplier == 0:
        return dp_accounting.NonPrivateDpEvent()
    scheme = plan.sampling
    sampled = None if scheme is None else scheme.event(plan.mechanism, unit_noise(plan))
    return dp_accounting.GaussianDpEvent(plan.noise_multiplier) if sampled is None else sampled


def cohort_scale(plan: Plan) -> float:
    """simulated / claimed cohort; 1 for a run that is what it claims."""
    cohorts = plan.simulation
    return 1.0 if cohorts is None else cohorts.simulated / cohorts.claimed


def noise_multiplier_without_metrics(plan: Plan) -> float:
    """Of the streams beside the private metrics'; the plan's without them."""
    metrics = plan.private_metrics
    z = plan.noise_multiplier
    return z if metrics is None else metrics.other_noise_multiplier(z)


def update_noise_multiplier(plan: Plan) -> float:
    """Noise multiplier of the sums of updates alone; above the plan's with quantile_clipping or
    private_metrics.
    """
    adaptive = plan.quantile_clipping
    z = noise_multiplier_without_metrics(plan)
    return z if adaptive is None else adaptive.update_noise_multiplier(z)


def metric_stddev(plan: Plan) -> float:
    """Standard deviation of every entry of Z of the private metrics' stream, in which a client has
    a vector of norm at most 1; 0 without them.
    """
    metrics = plan.private_metrics
    multiplier = 0.0 if metrics is None else metrics.noise_multiplier(plan.noise_multiplier)
    return multiplier * plan.sensitivity.value * cohort_scale(plan)


def bit_stddev(plan: Plan) -> float:
    """Standard deviation of every entry of Z of the bits' stream, in clients.

    0 without quantile_clipping.
    """
    adaptive = plan.quantile_clipping
    z = noise_multiplier_without_metrics(plan)
    multiplier = 0.0 if adaptive is None else adaptive.bit_noise_multiplier(z)
    return multiplier * plan.sensitivity.value * cohort_scale(plan)


def noise_size(plan: Plan, parameters: int) -> int:
    """Coordinates of a row of noise for a model of so many parameters.

    With quantile_clipping the bits have one, behind the model's.
    """
    return parameters + (plan.quantile_clipping is not None)


def unit_noise(plan: Plan) -> float:
    """Standard deviation of Z for unit clip norm, of the claimed run: what schemes account."""
    return plan.noise_multiplier * plan.sensitivity.value


def per_query_noise_multiplier(plan: Plan) -> float:
    """Noise multiplier of one sampled query (banded paper, Thm. 4); of the run without sampling."""
    if plan.sampling is None:
        return plan.noise_multiplier
    return unit_noise(plan) / column_norm(plan.mechanism)


def unamplified_epsilon(plan: Plan) -> float:
    """Epsilon that does not rest on the secrecy of who is drawn; `Plan.epsilon` without sampling.

    >>> import fedmf
    >>> config = fedmf.PlanConfig(rounds=8, min_sep=4, family="identity", noise_multiplier=2.0)
    >>> unamplified_epsilon(config.plan()) == config.plan().epsilon
    True
    """
    return gaussian_epsilon(plan.noise_multiplier, plan.delta)


def rdp_epsilon(plan: Plan) -> float:
    """Epsilon by Renyi accounting, which the older literature reports.

    Never below `Plan.epsilon` but for rounding. That of the sampling scheme where it has one, else
    that of the unamplified Gaussian.
    """
    if plan.noise_multiplier > 1e100:  # whose square overflows in dp_accounting
        return rdp_epsilon(dataclasses.replace(plan, noise_multiplier=1e100))
    unamplified = event_rdp_epsilon(dp_event(dataclasses.replace(plan, sampling=None)), plan.delta)
    if plan.sampling is None or plan.noise_multiplier == 0:
        return unamplified
    sampled = plan.sampling.rdp_epsilon(plan.mechanism, unit_noise(plan), plan.delta)
    return min(unamplified, sampled)
