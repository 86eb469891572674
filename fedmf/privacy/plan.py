"""From a noise multiplier to (epsilon, delta) and zCDP, and back: the `Plan` is the only place that knows the noise scale.

One run of any mechanism is one Gaussian mechanism on C x, released once (Denisov et al. 2022, Thm. 2.1: adaptive inputs
included), so it is accounted as ONE GaussianDpEvent whose noise multiplier is stddev / (sensitivity * clip_norm). Where clients are
sampled, a banded mechanism is a sequence of Gaussian queries on samples instead (banded paper, Thm. 4; `fedmf.privacy.amplification`).
"""

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmf import checks
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.sensitivity import Sensitivity, sensitivity
from fedmf.participation.schema import Participation
from fedmf.privacy import statement as _statement
from fedmf.privacy.amplification import (
    MIN_COMPOSED_DELTA,
    amplified_epsilon,
    group_epsilon,
    least_noise_multiplier,
    rdp_epsilon,
)
from fedmf.privacy.gaussian import MIN_DELTA, check_delta, gaussian_epsilon, gaussian_noise_multiplier
from fedmf.privacy.sampling import CyclicFixedSize, CyclicPoisson, CyclicShuffle, Sampling

if TYPE_CHECKING:
    import dp_accounting

# dp_accounting takes most of a second to import, so that `fedmf --help` waits for it nowhere: functions import it.

# A row of N has at least the norm 1 / sensitivity, because row t of N times column t of C is 1.
_LARGEST_SCALE = 1e30
_FLOAT32_NORMAL = (2.0**-126, (2 - 2.0**-23) * 2.0**127)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What will be run and what it guarantees. Frozen; every number the noise depends on is derived here and nowhere else.

    Attributes:
      mechanism: the noise's correlation.
      participation: what the controller enforces and the guarantee assumes; same number of rounds as the mechanism. With sampling it
        only fixes the unit of noise_multiplier, and the guarantee assumes `sampling.participation(rounds)`.
      noise_multiplier: stddev over sensitivity and clip_norm: without sampling, of one GaussianDpEvent for the whole run; 0 means no
        noise and no privacy (epsilon is infinite).
      clip_norm: L2 bound on one client's update in one round.
      delta: in [1e-15, 1); at least 1e-10 with CyclicPoisson and CyclicShuffle.
      sampling: a scheme of `fedmf.privacy.sampling` for a mechanism with a lower-triangular encoder; None for no amplification.
        Its groups are
        the mechanism's bands where it does not name more.
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
    sampling: Sampling | None = None
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
            object.__setattr__(self, "sampling", _fitting(self.sampling, self.mechanism))
        sigma = checks.positive(
            "noise_multiplier", self.noise_multiplier, "use a number such as 0.65, or 0 for no privacy", zero=True
        )
        object.__setattr__(self, "noise_multiplier", sigma)
        hint = "use the L2 bound on a client's update, such as 1.0; the guarantee assumes one for the whole run, not an adaptive one"
        clip = checks.positive("clip_norm", self.clip_norm, hint)
        object.__setattr__(self, "clip_norm", clip)
        object.__setattr__(self, "delta", check_delta(self.delta))
        if isinstance(self.sampling, CyclicPoisson | CyclicShuffle) and self.delta < MIN_COMPOSED_DELTA:
            raise ValueError(
                f"delta={self.delta} is too small for amplification by sampling, which is accounted to {MIN_COMPOSED_DELTA}: use that, or "
                "leave sampling out"
            )
        if (self.simulated_cohort is None) != (self.claimed_cohort is None):
            raise ValueError(
                "simulated_cohort and claimed_cohort go together: use plan.simulating(simulated=..., claimed=...)"
            )
        if self.simulated_cohort is not None and self.claimed_cohort is not None:
            for name, cohort in (("simulated", self.simulated_cohort), ("claimed", self.claimed_cohort)):
                number = checks.integer(name, cohort, low=1, hint="use a number of clients a round")
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
          ValueError: float32, in which noise is made, would make it or a row of N 0 or infinite: a guarantee without noise.
        """
        scale = self.sensitivity.value
        if self.noise_multiplier > 0 and not 1 / _LARGEST_SCALE <= scale <= _LARGEST_SCALE:
            raise ValueError(
                f"mechanism has sensitivity {scale:g}, and rows of noise about as small or large, beyond what float32 holds: divide its "
                "encoder by that"
            )
        stddev = self.noise_multiplier * scale * self.clip_norm * self.noise_scale
        held = _FLOAT32_NORMAL[0] <= min(stddev, stddev / scale) and max(stddev, stddev / scale) <= _FLOAT32_NORMAL[1]
        if self.noise_multiplier > 0 and not held:
            raise ValueError(
                f"clip_norm={self.clip_norm} and noise_multiplier={self.noise_multiplier} give noise of standard deviation {stddev:g}, "
                "beyond the range of float32 in which it is drawn: rescale the updates, and clip_norm with them"
            )
        return stddev

    @functools.cached_property
    def column_norm(self) -> float:
        """Largest column norm of the encoder: the sensitivity of a single participation, exact."""
        return sensitivity(self.mechanism, Participation(rounds=self.mechanism.rounds, schema="single")).value

    @property
    def per_query_noise_multiplier(self) -> float:
        """Noise multiplier of each of the sampled queries (banded paper, Thm. 4); without sampling that of the one event."""
        if self.sampling is None:
            return self.noise_multiplier
        return self.noise_multiplier * self.sensitivity.value / self.column_norm

    @functools.cached_property
    def unamplified_noise_multiplier(self) -> float:
        """Of one Gaussian event for the whole run if whoever is drawn were known: what holds with certainty, of `enforced`."""
        if self.sampling is None or self.guaranteed_participation == self.participation:
            return self.noise_multiplier
        return (
            self.noise_multiplier
            * self.sensitivity.value
            / sensitivity(self.mechanism, self.guaranteed_participation).value
        )

    def without_amplification(self) -> "Plan":
        """The same noise as a plan without sampling: what it guarantees when who is drawn is known."""
        if self.sampling is None:
            return self
        sigma = self.unamplified_noise_multiplier
        return dataclasses.replace(
            self, participation=self.guaranteed_participation, noise_multiplier=sigma, sampling=None
        )

    @property
    def guaranteed_participation(self) -> Participation:
        """What no client may break: the sampling scheme's participation, or without one `participation`."""
        return self.participation if self.sampling is None else self.sampling.participation(self.mechanism.rounds)

    @property
    def event(self) -> "dp_accounting.DpEvent":
        """The whole run as one event.

        CyclicPoisson: for add/remove, which is zero-out there. CyclicFixedSize: for replacing a record, hence half the multiplier.
        CyclicShuffle: dp_accounting has no such event; the unamplified one.
        """
        import dp_accounting

        if self.noise_multiplier == 0:
            return dp_accounting.NonPrivateDpEvent()
        sampling, sigma = self.sampling, self.per_query_noise_multiplier
        if isinstance(sampling, CyclicPoisson):
            one = dp_accounting.PoissonSampledDpEvent(sampling.probability, dp_accounting.GaussianDpEvent(sigma))
            return dp_accounting.SelfComposedDpEvent(one, sampling.compositions(self.mechanism.rounds))
        if isinstance(sampling, CyclicFixedSize):
            assert sampling.groups is not None
            one = dp_accounting.SampledWithoutReplacementDpEvent(
                sampling.population // sampling.groups, sampling.cohort_size, dp_accounting.GaussianDpEvent(sigma / 2)
            )
            return dp_accounting.SelfComposedDpEvent(one, sampling.compositions(self.mechanism.rounds))
        return dp_accounting.GaussianDpEvent(self.unamplified_noise_multiplier)

    @property
    def epsilon(self) -> float:
        """Under the zero-out relation; an upper value. PLD accounting, and RDP for samples of fixed size."""
        return self.epsilon_at(self.delta)

    def epsilon_at(self, delta: float) -> float:
        """Epsilon at another delta in [1e-15, 1)."""
        unamplified = gaussian_epsilon(self.unamplified_noise_multiplier, check_delta(delta))
        if self.sampling is None:
            return unamplified
        sigma = self.per_query_noise_multiplier
        return min(unamplified, amplified_epsilon(self.sampling, sigma, self.mechanism.rounds, delta))

    @property
    def unamplified_epsilon(self) -> float:
        """Epsilon that does not rest on the secrecy of who is drawn; without sampling the same as `epsilon`."""
        return gaussian_epsilon(self.unamplified_noise_multiplier, self.delta)

    @property
    def rdp_epsilon(self) -> float:
        """Epsilon by Renyi accounting of `event`, which the older literature reports; never below `epsilon` but for rounding.

        >>> import fedmf
        >>> once = fedmf.Participation(rounds=4, schema="single")
        >>> identity = fedmf.fit(fedmf.prefix_sum(4), once, family="identity")
        >>> plan = fedmf.Plan(mechanism=identity, participation=once, noise_multiplier=0.341 * 4, clip_norm=1.0, delta=1e-6)
        >>> round(plan.epsilon, 2), round(plan.rdp_epsilon, 2)
        (3.44, 3.69)
        """
        return rdp_epsilon(self.event, self.delta, replaces=isinstance(self.sampling, CyclicFixedSize))

    def group_epsilon(self, devices: int) -> float:
        """Epsilon at the plan's delta for a user with several devices, each a client of its own.

        Without sampling the sensitivity is `devices` times as large, exactly; with sampling the general bound is taken where it is less.
        """
        g = checks.integer("devices", devices, low=1, hint="count the clients of one user")
        together = gaussian_epsilon(self.unamplified_noise_multiplier / g, self.delta)
        scheme, sigma, rounds = self.sampling, self.per_query_noise_multiplier, self.mechanism.rounds
        if scheme is None:
            return together
        least = MIN_DELTA if isinstance(scheme, CyclicFixedSize) else MIN_COMPOSED_DELTA
        amplified = group_epsilon(lambda d: amplified_epsilon(scheme, sigma, rounds, d), self.delta, g, least=least)
        return min(together, amplified)

    @property
    def rho(self) -> float:
        """rho-zCDP of the run: 1 / (2 noise_multiplier^2) (Bun and Steinke 2016, Prop. 1.6). Sampling does not lower it."""
        if self.noise_multiplier == 0:
            return math.inf
        inverse = 1 / self.unamplified_noise_multiplier
        return inverse * inverse / 2

    def simulating(self, *, simulated: int, claimed: int) -> "Plan":
        """A plan that trains `simulated` clients a round to estimate the utility of `claimed` clients a round.

        The papers' way of affording large cohorts (banded paper, Sec. 6): the noise on the mean is that of the claimed
        cohort, so stddev is scaled by simulated / claimed. The guarantee is that of the claimed run, which is NOT this run:
        the model trained here has less noise than its own cohort needs, and the statement says so.
        """
        return dataclasses.replace(self, simulated_cohort=simulated, claimed_cohort=claimed)

    def statement(self, **options: Any) -> str:
        """The privacy statement in the structure of the banded paper's Appendix K.1, as Markdown.

        Options are those of `fedmf.privacy.statement.plan_values`: rdp, pretraining, population, commands, versions.
        """
        return _statement.privacy_statement(self, **options)

    def statement_values(self, **options: Any) -> dict[str, Any]:
        """The same in plain JSON types, at full precision."""
        return _statement.plan_values(self, **options)

    def summary(self) -> dict[str, Any]:
        """The plan in plain JSON types, for the run folder and for `--json`."""
        certificate = self.mechanism.certificate
        return {
            "family": self.mechanism.family,
            "rounds": self.mechanism.rounds,
            "bands": self.mechanism.bands,
            "participation": dataclasses.asdict(self.participation),
            "sampling": _sampling_summary(self),
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


def _fitting(sampling: Any, mechanism: Mechanism) -> Sampling:
    """`sampling` with its groups, if the mechanism is one that it amplifies (banded paper, Thm. 4)."""
    if not isinstance(sampling, CyclicPoisson | CyclicFixedSize | CyclicShuffle):
        raise TypeError(
            f"sampling={sampling!r} must be None, fedmf.CyclicPoisson, fedmf.CyclicFixedSize or fedmf.CyclicShuffle"
        )
    bands = _proven_bands(mechanism)
    if sampling.groups is None:
        return sampling.in_groups(bands)
    if sampling.groups < bands:
        raise ValueError(
            f"sampling has groups={sampling.groups} but the mechanism has {bands} bands, so that two rounds of one client would meet in a "
            "row of C x: leave groups out, or fit a mechanism of fewer bands"
        )
    return sampling


def _proven_bands(mechanism: Mechanism) -> int:
    """Bands of a lower-triangular encoder, from its entries and not from what it says of itself."""
    banded = getattr(mechanism, "banded_rows", None)
    rows = banded() if callable(banded) else None
    if rows is not None:
        return int(rows.shape[1])
    C = mechanism.encoder()
    n = mechanism.rounds
    if C.shape != (n, n) or np.triu(C, 1).any():
        raise ValueError(
            f"family={mechanism.family} has no square lower-triangular encoder, which amplification by sampling needs: use banded, "
            "identity, toeplitz or dense, or leave sampling out"
        )
    lags = np.subtract.outer(np.arange(n), np.arange(n))[C != 0]
    return int(lags.max(initial=0)) + 1


def _sampling_summary(plan: Plan) -> dict[str, Any] | None:
    if plan.sampling is None:
        return None
    return {
        "scheme": type(plan.sampling).__name__,
        **dataclasses.asdict(plan.sampling),
        "probability": None if isinstance(plan.sampling, CyclicShuffle) else plan.sampling.probability,
        "per_query_noise_multiplier": plan.per_query_noise_multiplier,
        "guaranteed_participation": dataclasses.asdict(plan.guaranteed_participation),
        "unamplified_epsilon": plan.unamplified_epsilon if math.isfinite(plan.unamplified_epsilon) else None,
    }


def calibrate(
    mechanism: Mechanism,
    participation: Participation,
    *,
    epsilon: float,
    delta: float,
    clip_norm: float = 1.0,
    sampling: Sampling | None = None,
) -> Plan:
    """The least noise that gives (epsilon, delta) for the whole run, never weaker than asked; see `Plan.epsilon`.

    Args:
      mechanism: from `fit` or `load_mechanism`.
      participation: what the controller will enforce.
      epsilon: target, positive and below 5000.
      delta: target, in [1e-15, 1).
      clip_norm: L2 bound on one client's update in one round.
      sampling: how clients are drawn, where that amplifies the guarantee; None for what holds however they are drawn.

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
    plan = Plan(
        mechanism=mechanism,
        participation=participation,
        noise_multiplier=gaussian_noise_multiplier(epsilon, delta),
        clip_norm=clip_norm,
        delta=delta,
        sampling=sampling,
    )
    if plan.sampling is None:
        return plan
    # In units of the sampled queries' multiplier: enough without amplification, and with it.
    unamplified = plan.noise_multiplier * sensitivity(mechanism, plan.guaranteed_participation).value / plan.column_norm
    scheme, rounds = plan.sampling, mechanism.rounds

    def epsilon_of(sigma: float) -> float:
        return 0.0 if sigma >= unamplified else amplified_epsilon(scheme, sigma, rounds, delta)

    sigma = min(unamplified, least_noise_multiplier(epsilon_of, epsilon))
    return dataclasses.replace(plan, noise_multiplier=sigma * plan.column_norm / plan.sensitivity.value)
