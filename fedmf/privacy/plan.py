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
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedmf import checks
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.budget import most_rounds
from fedmf.mechanisms.sensitivity import Sensitivity, sensitivity
from fedmf.participation.schema import Participation
from fedmf.privacy import statement as _statement
from fedmf.privacy.amplification import group_epsilon, rdp_epsilon
from fedmf.privacy.gaussian import check_delta, check_float32_holds, gaussian_epsilon
from fedmf.privacy.quantile_clipping import MOST_CHANGE, QuantileClipping
from fedmf.privacy.rounding import finite
from fedmf.privacy.sampling import Sampling
from fedmf.privacy.sampling.base import column_norm

if TYPE_CHECKING:
    import dp_accounting

# dp_accounting takes most of a second to import, so that `fedmf --help` waits for it nowhere:
# functions import it.

# Users with so many devices are given a guarantee of their own.
_DEVICES = (2, 3, 5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
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
      simulated_cohort, claimed_cohort: set only by `simulating`, else both None.
      quantile_clipping: how the clip norm follows the updates, of which noise_multiplier covers
        both streams; None for one clip norm.
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
    simulated_cohort: int | None = None
    claimed_cohort: int | None = None
    quantile_clipping: QuantileClipping | None = None
    longer: "Plan | None" = None

    def __post_init__(self) -> None:
        mechanism, scheme, p = self.mechanism, self.sampling, self.participation
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
                "noise_multiplier", self.noise_multiplier, noise_hint, zero=True
            ),
            "clip_norm": checks.positive("clip_norm", self.clip_norm, clip_hint),
            "delta": check_delta(self.delta),
            "simulated_cohort": self.simulated_cohort,
            "claimed_cohort": self.claimed_cohort,
        }
        if (self.simulated_cohort, self.claimed_cohort) != (None, None):
            for name in ("simulated", "claimed"):
                hint = (
                    "use a number of clients a round, with "
                    "plan.simulating(simulated=..., claimed=...)"
                )
                cohort = getattr(self, f"{name}_cohort")
                checked[f"{name}_cohort"] = checks.integer(name, cohort, low=1, hint=hint)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        self._check_together()

    def _check_together(self) -> None:
        """Raises where arguments do not go with each other."""
        scheme, simulated, claimed = self.sampling, self.simulated_cohort, self.claimed_cohort
        if not isinstance(self.quantile_clipping, QuantileClipping | None):
            raise TypeError(
                f"quantile_clipping={self.quantile_clipping!r} must be a fedmf.QuantileClipping, "
                "or None for one clip norm"
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
        if scheme is not None and self.delta < scheme.min_delta:
            raise ValueError(
                f"delta={self.delta} is too small for amplification by sampling, accounted to "
                f"{scheme.min_delta}: use that, or leave sampling out"
            )
        if simulated is None or claimed is None:
            return
        if scheme is not None and scheme.cohort_size != claimed:
            raise ValueError(
                f"sampling has cohort_size={scheme.cohort_size} but claimed={claimed}: "
                "sample the claimed cohort"
            )
        if simulated >= claimed:
            raise ValueError(
                f"simulated={simulated} must be below claimed={claimed}: a simulation stands for a "
                "larger cohort; to train the claimed cohort itself leave both out"
            )

    @functools.cached_property
    def sensitivity(self) -> Sensitivity:
        """Sensitivity of the encoder under the participation, for unit clip norm: exact or a proven
        upper bound.
        """
        return sensitivity(self.mechanism, self.participation)

    @property
    def noise_scale(self) -> float:
        """simulated_cohort / claimed_cohort; 1 for a run that is what it claims."""
        return (self.simulated_cohort or 1) / (self.claimed_cohort or 1)

    @property
    def update_noise_multiplier(self) -> float:
        """Noise multiplier of the sums of updates alone; with quantile_clipping larger than that of
        the plan.
        """
        adaptive, z = self.quantile_clipping, self.noise_multiplier
        return z if adaptive is None else adaptive.update_noise_multiplier(z)

    @property
    def bit_stddev(self) -> float:
        """Standard deviation of every entry of Z of the bits' stream, in clients;
        0 without quantile_clipping.
        """
        adaptive = self.quantile_clipping
        multiplier = (
            0.0 if adaptive is None else adaptive.bit_noise_multiplier(self.noise_multiplier)
        )
        return multiplier * self.sensitivity.value * self.noise_scale

    def noise_size(self, parameters: int) -> int:
        """Coordinates of a row of noise for a model of so many parameters: with quantile_clipping
        the bits have one, behind the model's.
        """
        return parameters + (self.quantile_clipping is not None)

    @property
    def stddev(self) -> float:
        """Standard deviation of every entry of Z, in the units of a client's update: the noise
        added to a SUM is N Z.

        With quantile_clipping while the clip norm is the first one; later in proportion to it.

        Raises:
          ValueError: float32, in which noise is made and the release handed out, would make either
            0 or infinite.
        """
        scales = (
            self.update_noise_multiplier,
            self.sensitivity.value,
            self.clip_norm,
            self.noise_scale,
        )
        check_float32_holds(*scales)
        if self.quantile_clipping is not None:
            for change in (1 / MOST_CHANGE, MOST_CHANGE):
                check_float32_holds(*scales[:2], self.clip_norm * change, self.noise_scale)
            # The sum of bits has its own noise, in clients.
            check_float32_holds(
                self.bit_stddev / self.sensitivity.value, self.sensitivity.value, 1.0, 1.0
            )
        return math.prod(scales)

    @property
    def unit_noise(self) -> float:
        """Standard deviation of Z for unit clip norm, of the claimed run:
        what sampling schemes account.
        """
        return self.noise_multiplier * self.sensitivity.value

    @property
    def per_query_noise_multiplier(self) -> float:
        """Noise multiplier of one sampled query (banded paper, Thm. 4); without sampling that of
        the run.
        """
        return (
            self.noise_multiplier
            if self.sampling is None
            else self.unit_noise / column_norm(self.mechanism)
        )

    def without_amplification(self) -> "Plan":
        """The same noise as a plan without sampling: what it guarantees when it
        is known who is drawn.
        """
        return dataclasses.replace(self, sampling=None)

    @property
    def event(self) -> "dp_accounting.DpEvent":
        """The whole run as one event: that of the sampling scheme where dp_accounting has it, else
        the unamplified Gaussian.
        """
        import dp_accounting

        if self.noise_multiplier == 0:
            return dp_accounting.NonPrivateDpEvent()
        sampled = (
            None if self.sampling is None else self.sampling.event(self.mechanism, self.unit_noise)
        )
        return dp_accounting.GaussianDpEvent(self.noise_multiplier) if sampled is None else sampled

    @property
    def epsilon(self) -> float:
        """Under the zero-out relation; an upper value.

        PLD accounting, or that of the sampling scheme where it is less.
        """
        if self.sampling is None or self.noise_multiplier == 0:
            return self.unamplified_epsilon
        return min(
            self.unamplified_epsilon,
            self.sampling.epsilon(self.mechanism, self.unit_noise, self.delta),
        )

    @property
    def unamplified_epsilon(self) -> float:
        """Epsilon that does not rest on the secrecy of who is drawn;
        without sampling the same as `epsilon`.
        """
        return gaussian_epsilon(self.noise_multiplier, self.delta)

    @property
    def rdp_epsilon(self) -> float:
        """Epsilon by Renyi accounting, which the older literature reports; never below `epsilon`
        but for rounding.

        That of the sampling scheme where it has one, else that of the unamplified Gaussian.
        """
        if self.noise_multiplier > 1e100:  # whose square overflows in dp_accounting
            return dataclasses.replace(self, noise_multiplier=1e100).rdp_epsilon
        unamplified = rdp_epsilon(self.without_amplification().event, self.delta)
        if self.sampling is None or self.noise_multiplier == 0:
            return unamplified
        return min(
            unamplified, self.sampling.rdp_epsilon(self.mechanism, self.unit_noise, self.delta)
        )

    def group_epsilon(self, devices: int) -> float:
        """Epsilon at the plan's delta for a user with several devices, each a client of its own.

        Without sampling the sensitivity is `devices` times as large, exactly; with sampling the
        general bound is taken where it is less.
        """
        g = checks.integer("devices", devices, low=1, hint="count the clients of one user")
        together = gaussian_epsilon(self.noise_multiplier / g, self.delta)
        # A simulation for each delta of the search would take hours.
        if self.sampling is None or self.sampling.simulated or self.noise_multiplier == 0:
            return together
        one = functools.partial(self.sampling.epsilon, self.mechanism, self.unit_noise)
        return min(together, group_epsilon(one, self.delta, g, least=self.sampling.min_delta))

    @property
    def rho(self) -> float:
        """rho-zCDP of the run: 1 / (2 noise_multiplier^2) (Bun and Steinke 2016, Prop. 1.6).

        Sampling does not lower it.
        """
        if self.noise_multiplier == 0:
            return math.inf
        inverse = 1 / self.noise_multiplier
        return inverse * inverse / 2

    def simulating(self, *, simulated: int, claimed: int) -> "Plan":
        """A plan that trains `simulated` clients a round to estimate the utility of `claimed`
        clients a round.

        The papers' way of affording large cohorts (banded paper, Sec. 6): the noise on the mean is
        that of the claimed cohort, so stddev is scaled by simulated / claimed. The guarantee is
        that of the claimed run, which is NOT this run: the model trained here has less noise than
        its own cohort needs, and the statement says so.
        """
        return dataclasses.replace(self, simulated_cohort=simulated, claimed_cohort=claimed)

    def summary(self) -> dict[str, Any]:
        """The plan in plain JSON types, for the run folder and for `--json`."""
        certificate = self.mechanism.certificate
        return {
            "family": self.mechanism.family,
            "rounds": self.mechanism.rounds,
            "bands": self.mechanism.bands,
            "participation": self.participation.limits(),
            "sampling": self._sampling_facts(unamplified_epsilon=finite(self.unamplified_epsilon)),
            "clip_norm": self.clip_norm,
            "noise_multiplier": self.noise_multiplier,
            "sensitivity": dataclasses.asdict(self.sensitivity),
            "stddev": self.stddev,
            "epsilon": finite(self.epsilon),
            "delta": self.delta,
            "rho": finite(self.rho),
            "neighbouring_relation": "zero-out",
            "simulated_cohort": self.simulated_cohort,
            "claimed_cohort": self.claimed_cohort,
            "certificate": dataclasses.asdict(certificate) if certificate else None,
        } | self._clipping_facts()

    def _clipping_facts(self) -> dict[str, Any]:
        """What a summary and a statement say of quantile_clipping; nothing without it."""
        adaptive, bits = self.quantile_clipping, {"bit_stddev": self.bit_stddev}
        return (
            {}
            if adaptive is None
            else {"quantile_clipping": adaptive.facts(self.noise_multiplier) | bits}
        )

    def _sampling_facts(self, **more: Any) -> dict[str, Any] | None:
        if self.sampling is None:
            return None
        more["per_query_noise_multiplier"] = self.per_query_noise_multiplier
        return self.sampling.facts(self.mechanism.rounds) | more

    def guarantee_values(self) -> dict[str, Any]:
        """Epsilon, delta and rho, and what they were computed from, in plain JSON types; an
        infinite epsilon is null.
        """
        return {
            "epsilon": finite(self.epsilon),
            "delta": self.delta,
            "rho": finite(self.rho),
            "unamplified_epsilon": finite(self.unamplified_epsilon),
            "noise_multiplier": self.noise_multiplier,
            "sensitivity": self.sensitivity.value,
            "sensitivity_exact": self.sensitivity.exact,
            "sensitivity_method": self.sensitivity.method,
        }

    def group_values(self) -> list[dict[str, Any]]:
        """The guarantee of users of several devices: a sum of g clients is g times as sensitive, so
        that rho grows by g^2.
        """
        epsilons, rhos = (
            [finite(of(g)) for g in _DEVICES]
            for of in (self.group_epsilon, lambda g: g * g * self.rho)
        )
        rows = zip(_DEVICES, epsilons, rhos, strict=True)
        return [
            {"devices": g, "epsilon": epsilon, "delta": self.delta, "rho": rho}
            for g, epsilon, rho in rows
        ]

    def statement(self, **options: Any) -> str:
        """The privacy statement in the structure of the banded paper's Appendix K.1, as Markdown;
        options of `statement_values`.
        """
        return _statement.markdown(self.statement_values(**options))

    def statement_values(
        self,
        *,
        rdp: bool = False,
        pretraining: str | None = None,
        population: int | None = None,
        canaries: int = 0,
        commands: Sequence[str] | None = None,
        versions: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """Every fact of the statement, in plain JSON types and at full precision; an infinite
        epsilon is null.

        Args:
          rdp: Renyi accounting as well, which older literature reports.
          pretraining: data on which the model was trained before, in a few words, and whether it is
            public; a text that begins with "none" says that there was none; None says nothing.
          population: clients that there are, where they are known: a simulation says whether the
            run that it stands for could have them.
          canaries: synthetic clients among them, for an audit of the run.
          commands: that make what is stated again; None for those that follow from the plan.
          versions: of packages; None for those installed here.
        """
        p, scheme, claimed = self.participation, self.sampling, self.claimed_cohort
        longer = self.longer and dataclasses.replace(self.longer, delta=self.delta)
        sentences: dict[str, str] = {}
        if scheme is not None:
            evidence = scheme.evidence(self.mechanism, self.unit_noise, self.delta)
            sentences = scheme.statement(self.mechanism, self.unit_noise) | (
                {"evidence": evidence} if evidence else {}
            )
        # Cohorts of min_sep rounds in a row have no client in common, and nobody is in more than
        # most_rounds of all.
        needed = max(
            (claimed or 0) * p.min_sep,
            -(-(claimed or 0) * p.rounds // most_rounds(self.mechanism, p)),
        )
        guarantee = self.guarantee_values() | (
            {"rdp_epsilon": finite(self.rdp_epsilon)} if rdp else {}
        )
        return {
            "format": _statement.FORMAT,
            "subject": "plan",
            "dp_setting": "central",
            "simulation": None
            if claimed is None
            else {
                "simulated_cohort": self.simulated_cohort,
                "claimed_cohort": claimed,
                "population_needed": needed,
                "population": population,
            },
            "pretraining": pretraining,
            "output": {"rounds": self.mechanism.rounds, "released": "all privatised aggregates"},
            "unit_of_privacy": "client",
            "neighbouring_relation": "zero-out",
            "mechanism": {
                "family": self.mechanism.family,
                "rounds": self.mechanism.rounds,
                "bands": self.mechanism.bands,
                "sha256": _statement.mechanism_digest(self.mechanism),
            },
            "participation": p.limits(),
            "sampling": self._sampling_facts(**sentences),
            "clip_norm": self.clip_norm,
            "stddev": self.stddev,
            "guarantee": guarantee,
            "group_privacy": self.group_values(),
            "not_covered": list(_statement.NOT_COVERED),
            "commands": [self.calibrate_command(rdp=rdp)] if commands is None else list(commands),
            "versions": _statement.installed_versions() if versions is None else dict(versions),
            **self._clipping_facts(),
            **(
                {}
                if longer is None
                else {"longer": longer.guarantee_values() | {"rounds": longer.mechanism.rounds}}
            ),
        } | ({"canaries": canaries} if canaries else {})

    def calibrate_command(self, mechanism: str = "mechanism.npz", *, rdp: bool = False) -> str:
        """The command that prints the statement of this plan again."""
        stop = [] if self.longer is None else [f"--stop-after {self.mechanism.rounds}"]
        options = [*(self.longer or self).command_options(), *stop, "--statement", *["--rdp"] * rdp]
        return " ".join(["fedmf calibrate", mechanism, *options])

    def command_options(self) -> list[str]:
        """Command-line options that describe the plan, all of it but the mechanism."""
        p, scheme = self.participation, self.sampling
        options: dict[str, Any] = {"rounds": p.rounds}
        if scheme is None:
            options["schema"] = p.schema
            if p.schema in ("min_sep", "fixed_epoch"):
                options |= {"min-sep": p.min_sep, "max-participations": p.max_participations}
            if p.budget is not None:
                options["budget"] = p.budget
        options |= {
            "noise-multiplier": self.noise_multiplier,
            "delta": self.delta,
            "clip-norm": self.clip_norm,
        }
        if self.quantile_clipping is not None:
            options |= self.quantile_clipping.command_options
        if self.claimed_cohort is not None:
            options |= {
                "simulated-cohort": self.simulated_cohort,
                "claimed-cohort": self.claimed_cohort,
            }
        if scheme is not None:
            # Also what follows from the mechanism: the guarantee depends on it, and what is left
            # out is not checked.
            options |= scheme.command_options
        return [f"--{name} {value}" for name, value in options.items()]
