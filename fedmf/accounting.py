"""From a noise multiplier to (epsilon, delta) and zCDP, and back: the `Plan` is the only place that knows the noise scale.

One run of any mechanism is one Gaussian mechanism on C x, released once (Denisov et al. 2022, Thm. 2.1: adaptive inputs
included), so it is accounted as ONE GaussianDpEvent whose noise multiplier is stddev / (sensitivity * clip_norm).
"""

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

from fedmf import _checks
from fedmf import statement as _statement
from fedmf.mechanisms.base import Mechanism
from fedmf.participation import Participation
from fedmf.sensitivity import Sensitivity, sensitivity

if TYPE_CHECKING:
    import dp_accounting

# dp_accounting and scipy take most of a second to import, so that `fedmf --help` waits for neither: functions import them.

_MAX_EPSILON = 10_000.0
_FLOAT32_NORMAL = (2.0**-126, (2 - 2.0**-23) * 2.0**127)
MAX_TARGET_EPSILON = _MAX_EPSILON / 2
# Below this the PLD accountant's own truncation and rounding are larger than delta: its epsilon then grows without bound,
# and calibration would ask for thousands of times the noise that is needed.
MIN_DELTA = 1e-15


def _positive(name: str, value: Any, way_out: str, *, below: float = math.inf, zero: bool = False) -> float:
    """`value` as a float when it is a finite number in (0, below), or 0 where `zero` allows it; raises otherwise."""
    number = _checks.real(name, value, way_out=way_out)
    if not (0 < number < below or (zero and number == 0)):
        bounds = "non-negative" if zero else "positive"
        upper = "" if math.isinf(below) else f" and below {below:g}"
        raise ValueError(f"{name}={value!r} must be {bounds}{upper}: {way_out}")
    return number


def check_epsilon(epsilon: Any) -> float:
    """A privacy target that calibration can meet, as a float; raises otherwise."""
    return _positive("epsilon", epsilon, "ask for a privacy loss such as epsilon=8.0", below=MAX_TARGET_EPSILON)


def check_delta(delta: Any) -> float:
    """A failure probability that the accountant resolves, as a float; raises otherwise."""
    way_out = "use a failure probability such as delta=1e-6"
    number = _positive("delta", delta, way_out, below=1.0)
    if number < MIN_DELTA:
        raise ValueError(f"delta={delta!r} is below {MIN_DELTA:g}, the least the accountant resolves: {way_out}")
    return number


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """delta of the Gaussian mechanism with sensitivity 1 in closed form (Balle and Wang 2018, Theorem 8).

    Args:
      noise_multiplier: standard deviation of the noise, > 0.
      epsilon: >= 0.

    >>> round(gaussian_delta(4.22468, 1.0) * 1e6, 3)
    1.0
    """
    from scipy import special

    a, b = 1 / (2 * noise_multiplier), epsilon * noise_multiplier
    # exp(epsilon) * Phi(-a - b), computed in logarithms: the product is moderate where the factors overflow and underflow.
    return float(special.ndtr(a - b) - math.exp(epsilon + special.log_ndtr(-a - b)))


@functools.lru_cache(maxsize=256)
def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Smallest epsilon the PLD accountant proves for one Gaussian release with sensitivity 1; a pessimistic (upper) value.

    Args:
      noise_multiplier: standard deviation of the noise; 0, or so little that epsilon is far above every use, gives infinity.
      delta: in [1e-15, 1).

    >>> round(gaussian_epsilon(0.65294, 1e-6), 3)
    8.0
    """
    import dp_accounting
    from dp_accounting import pld

    if noise_multiplier == 0:
        return math.inf
    # The largest privacy loss of note. Products and not powers: they overflow to infinity instead of raising.
    inverse = 1 / noise_multiplier
    scale = inverse * inverse / 2 + 5 * inverse
    if scale > _MAX_EPSILON:
        return math.inf
    # The grid is coarser than 1e-4 only where that would need hundreds of thousands of points, and finer only where losses
    # themselves are that small; dp_accounting rounds losses up, so the grid can only overstate epsilon (by 1e-7 of it).
    interval = max(1e-9, min(1e-4, 1e-3 * scale), 1e-5 * scale)
    # The zero-out relation of the banded paper's K.1: a client's updates become zeros, the number of records stays.
    zero_out = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    accountant = pld.PLDAccountant(zero_out, value_discretization_interval=interval)
    # dp_accounting squares the multiplier, which overflows beyond 1e154; less noise can only overstate epsilon.
    accountant.compose(dp_accounting.GaussianDpEvent(min(noise_multiplier, 1e100)))
    return float(accountant.get_epsilon(delta))


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """Smallest noise multiplier, to well under 1e-4 relative, that gives (epsilon, delta).

    The closed form starts the search; it ends where the PLD accountant and the closed form both agree that the result is not
    weaker than asked.

    >>> round(gaussian_noise_multiplier(2.0, 1e-6), 5)  # banded paper, Table 4
    2.23048
    """
    from scipy import optimize

    epsilon, delta = check_epsilon(epsilon), check_delta(delta)
    lower, upper = 1e-3, 1.0
    while gaussian_delta(upper, epsilon) > delta:
        upper *= 2
    while gaussian_delta(lower, epsilon) < delta:
        lower /= 2
    sigma = float(optimize.brentq(lambda s: gaussian_delta(s, epsilon) - delta, lower, upper, xtol=1e-15, rtol=1e-13))
    step = 1e-7
    while gaussian_delta(sigma, epsilon) > delta or gaussian_epsilon(sigma, delta) > epsilon:
        sigma *= 1 + step
        step *= 2
    return sigma


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What will be run and what it guarantees. Frozen; every number the noise depends on is derived here and nowhere else.

    Attributes:
      mechanism: the noise's correlation.
      participation: what the controller enforces and the guarantee assumes; same number of rounds as the mechanism.
      noise_multiplier: of one GaussianDpEvent for the whole run; 0 means no noise and no privacy (epsilon is infinite).
      clip_norm: L2 bound on one client's update in one round.
      delta: in [1e-15, 1).
      sampling: amplification by sampling; None is the only value supported so far.
      simulated_cohort, claimed_cohort: set only by `simulating`, else both None.

    Raises:
      TypeError, ValueError: naming the argument, its value and what to do instead.

    Example:
      >>> import fedmf
      >>> one_epoch = fedmf.Participation(rounds=8, schema="single")
      >>> mechanism = fedmf.fit(fedmf.prefix_sum(8), one_epoch, family="identity")
      >>> plan = fedmf.Plan(mechanism=mechanism, participation=one_epoch, noise_multiplier=2.0, clip_norm=0.5, delta=1e-6)
      >>> plan.stddev, plan.rho
      (1.0, 0.125)
    """

    mechanism: Mechanism
    participation: Participation
    noise_multiplier: float
    clip_norm: float
    delta: float
    sampling: None = None
    simulated_cohort: int | None = None
    claimed_cohort: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, Mechanism):
            raise TypeError(
                f"mechanism={self.mechanism!r} must be a Mechanism: make one with fedmf.fit or fedmf.load_mechanism"
            )
        if not isinstance(self.participation, Participation):
            raise TypeError(f"participation={self.participation!r} must be a fedmf.Participation")
        if self.mechanism.rounds != self.participation.rounds:
            raise ValueError(
                f"mechanism has {self.mechanism.rounds} rounds but participation has {self.participation.rounds}: "
                "fit the mechanism for the rounds of the run"
            )
        if self.sampling is not None:
            raise ValueError(
                f"sampling={self.sampling!r}: amplification by sampling is not available; use sampling=None"
            )
        sigma = _positive(
            "noise_multiplier", self.noise_multiplier, "use a number such as 0.65, or 0 for no privacy", zero=True
        )
        object.__setattr__(self, "noise_multiplier", sigma)
        way_out = "use the L2 bound on a client's update, such as 1.0; the guarantee assumes one for the whole run, not an adaptive one"
        clip = _positive("clip_norm", self.clip_norm, way_out)
        object.__setattr__(self, "clip_norm", clip)
        object.__setattr__(self, "delta", check_delta(self.delta))
        if (self.simulated_cohort is None) != (self.claimed_cohort is None):
            raise ValueError(
                "simulated_cohort and claimed_cohort go together: use plan.simulating(simulated=..., claimed=...)"
            )
        if self.simulated_cohort is not None and self.claimed_cohort is not None:
            for name, cohort in (("simulated", self.simulated_cohort), ("claimed", self.claimed_cohort)):
                number = _checks.integer(name, cohort, low=1, way_out="use a number of clients a round")
                object.__setattr__(self, f"{name}_cohort", number)
            if self.simulated_cohort >= self.claimed_cohort:
                raise ValueError(
                    f"simulated={self.simulated_cohort} must be below claimed={self.claimed_cohort}: "
                    "a simulation stands for a larger cohort; to train the claimed cohort itself leave both out"
                )

    @functools.cached_property
    def sensitivity(self) -> Sensitivity:
        """Sensitivity of the encoder under the participation, for unit clip norm: exact or a proven upper bound."""
        return sensitivity(self.mechanism, self.participation)

    @property
    def noise_scale(self) -> float:
        """simulated_cohort / claimed_cohort; 1 for a run that is what it claims."""
        if self.simulated_cohort is None or self.claimed_cohort is None:
            return 1.0
        return self.simulated_cohort / self.claimed_cohort

    @property
    def stddev(self) -> float:
        """Standard deviation of every entry of Z, in the units of a client's update: the noise added to a SUM is N Z.

        Raises:
          ValueError: float32, in which noise is drawn, would make it 0 or infinite: a guarantee without noise.
        """
        stddev = self.noise_multiplier * self.sensitivity.value * self.clip_norm * self.noise_scale
        if self.noise_multiplier > 0 and not _FLOAT32_NORMAL[0] <= stddev <= _FLOAT32_NORMAL[1]:
            raise ValueError(
                f"clip_norm={self.clip_norm} and noise_multiplier={self.noise_multiplier} give noise of standard deviation {stddev:g}, "
                "beyond the range of float32 in which it is drawn: rescale the updates, and clip_norm with them"
            )
        return stddev

    @property
    def event(self) -> "dp_accounting.DpEvent":
        """The whole run as one event."""
        import dp_accounting

        if self.noise_multiplier == 0:
            return dp_accounting.NonPrivateDpEvent()
        return dp_accounting.GaussianDpEvent(self.noise_multiplier)

    @property
    def epsilon(self) -> float:
        """PLD accounting under the zero-out relation; an upper value."""
        return gaussian_epsilon(self.noise_multiplier, self.delta)

    @property
    def rho(self) -> float:
        """rho-zCDP of the run: 1 / (2 noise_multiplier^2) (Bun and Steinke 2016, Prop. 1.6)."""
        if self.noise_multiplier == 0:
            return math.inf
        inverse = 1 / self.noise_multiplier
        return inverse * inverse / 2

    def simulating(self, *, simulated: int, claimed: int) -> "Plan":
        """A plan that trains `simulated` clients a round to estimate the utility of `claimed` clients a round.

        The papers' way of affording large cohorts (banded paper, Sec. 6): the noise on the mean is that of the claimed
        cohort, so stddev is scaled by simulated / claimed. The guarantee is that of the claimed run, which is NOT this run:
        the model trained here has less noise than its own cohort needs, and the statement says so.
        """
        return dataclasses.replace(self, simulated_cohort=simulated, claimed_cohort=claimed)

    def statement(self) -> str:
        """The privacy statement in the structure of the banded paper's Appendix K.1, as Markdown."""
        return _statement.privacy_statement(self)

    def summary(self) -> dict[str, Any]:
        """The plan in plain JSON types, for the run folder and for `--json`."""
        certificate = self.mechanism.certificate
        return {
            "family": self.mechanism.family,
            "rounds": self.mechanism.rounds,
            "bands": self.mechanism.bands,
            "participation": dataclasses.asdict(self.participation),
            "clip_norm": self.clip_norm,
            "noise_multiplier": self.noise_multiplier,
            "sensitivity": dataclasses.asdict(self.sensitivity),
            "stddev": self.stddev,
            "epsilon": self.epsilon if math.isfinite(self.epsilon) else None,
            "delta": self.delta,
            "rho": self.rho if math.isfinite(self.rho) else None,
            "neighbouring_relation": "zero-out",
            "simulated_cohort": self.simulated_cohort,
            "claimed_cohort": self.claimed_cohort,
            "certificate": dataclasses.asdict(certificate) if certificate else None,
        }


def calibrate(
    mechanism: Mechanism,
    participation: Participation,
    *,
    epsilon: float,
    delta: float,
    clip_norm: float = 1.0,
    sampling: None = None,
) -> Plan:
    """The least noise that gives (epsilon, delta) for the whole run by PLD accounting, never weaker than asked.

    Args:
      mechanism: from `fit` or `load_mechanism`.
      participation: what the controller will enforce.
      epsilon: target, positive and below 5000.
      delta: target, in [1e-15, 1).
      clip_norm: L2 bound on one client's update in one round.
      sampling: None; amplification is not available yet.

    Raises:
      TypeError, ValueError: naming the argument, its value and what to do instead.

    Example:
      >>> import fedmf
      >>> one_epoch = fedmf.Participation(rounds=8, schema="single")
      >>> mechanism = fedmf.fit(fedmf.prefix_sum(8), one_epoch, family="tree")
      >>> plan = fedmf.calibrate(mechanism, one_epoch, epsilon=2.0, delta=1e-6)
      >>> round(plan.noise_multiplier, 5), round(plan.sensitivity.value, 3), plan.epsilon <= 2.0
      (2.23048, 2.0, True)
    """
    return Plan(
        mechanism=mechanism,
        participation=participation,
        noise_multiplier=gaussian_noise_multiplier(epsilon, delta),
        clip_norm=clip_norm,
        delta=delta,
        sampling=sampling,
    )
