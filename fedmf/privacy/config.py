"""The promise of a run, declared once: who takes part, the mechanism, the target and the clip."""

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any, Self

import msgspec

from fedmf import checks, fields, workloads
from fedmf.checks import did_you_mean
from fedmf.mechanisms import load_mechanism
from fedmf.mechanisms.base import Mechanism, check_mechanism
from fedmf.mechanisms.budget import Budget, check_affords_each_round
from fedmf.mechanisms.family import FAMILIES, families_with, fitted_families
from fedmf.mechanisms.fit import fit
from fedmf.mechanisms.fitting.progress import interruptible_fits, progress_line
from fedmf.mechanisms.leading import column_norm
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.participation.schema import SCHEMAS, Budgeted, Participation
from fedmf.privacy.calibrate import (
    Target,
    calibrate,
    check_rates,
    parse_rates,
    unamplified_noise_multiplier,
)
from fedmf.privacy.flat_config import (
    FIT_FIELDS,
    OPTIONS_WITH_FIELDS,
    TARGETS,
    families,
    families_taking,
    flags_of,
    named_options,
    nested,
    read_json,
    with_flat_options,
)
from fedmf.privacy.gaussian import check_delta, check_epsilon
from fedmf.privacy.plan import Plan, check_plan
from fedmf.privacy.private_metrics import PrivateMetrics
from fedmf.privacy.quantile_clipping import QuantileClipping
from fedmf.privacy.sampling import SCHEMES, Sampling, scheme_class, scheme_name, takes
from fedmf.privacy.sampling.base import SETTINGS
from fedmf.schedule import CustomSchedule, schedule_text


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """What a run promises, in some twenty fields. Commands, files and resumes take them from here.

    Every field is a command-line option of the same name and a key of a config file. Each option of
    a family is one as well, and an entry of `mechanism_options`. Defaults are those of the banded
    paper's StackOverflow experiments, except the privacy target.

    `fedmf train --help` says what each field is.

    Attributes:
      mechanism_options: other options of the family, as of `fedmf.fit`; without its defaults.

    Raises:
      TypeError, ValueError: naming the field, its value and what to do instead.

    >>> config = PlanConfig(rounds=8, min_sep=4, family="blt", mechanism_options={"buffers": 2},
    ...                     noise_multiplier=2.0)
    >>> config.participation().max_participations, config.plan().epsilon < 3
    (2, True)
    >>> " ".join(config.flags())
    '--rounds 8 --min-sep 4 --family blt --buffers 2 --noise-multiplier 2.0'
    >>> PlanConfig.from_json(config.to_json()) == config
    True
    """

    # Who takes part
    rounds: int = fields.option(2052, "Rounds of training.", checks.rounds)
    cohort_size: int = fields.whole_number(100, "Clients of a round.")
    claimed_cohort: int | None = fields.whole_number(
        None,
        "Estimate a cohort of this many clients from cohort_size simulated ones, with the noise "
        "scaled down (papers: 1000 from 100).",
    )
    schema: str = fields.choice("min_sep", f"{', '.join(SCHEMAS)}.", lambda: SCHEMAS)
    min_sep: int | None = fields.whole_number(
        None, "Least number of rounds between two participations of a client."
    )
    max_participations: int | None = fields.whole_number(None, "Most participations of a client.")
    budget: float | None = fields.positive_float(
        None, "With schema=budget: a sensitivity. By default what min_sep and its limit cost."
    )
    sampling: str | None = fields.option(
        None,
        f"Sampling scheme that amplifies the guarantee: {', '.join(SCHEMES)}. Needs population.",
        scheme_name,
        suggestions=lambda: SCHEMES,
    )
    population: int | None = fields.whole_number(None, "With sampling: clients of the data.")
    partitions: int | None = fields.whole_number(
        None,
        "With sampling: parts of the clients (not of the data), drawn from in turn. By default "
        "the mechanism's bands.",
    )

    # The mechanism
    workload: str = fields.choice(
        "prefix_sum", f"What errors count: {', '.join(workloads.NAMES)}.", lambda: workloads.NAMES
    )
    workload_momentum: float = fields.positive_float(
        0.95, "Of the momentum_sgd workload.", allow_zero=True, below=1
    )
    learning_rate_schedule: str | None = fields.option(
        None,
        "Shares of the server's peak rate, which errors count and training follows: one a round, "
        "or 1536:0.15 for all from round 1536 on, or a file of them.",
        schedule_text,
    )
    family: str = fields.choice(
        "banded", f"none (no noise), {', '.join(fitted_families())}, or file.", families
    )
    mechanism: str | None = fields.path(
        None, "With family=file: a mechanism that `fedmf fit` wrote, with any options."
    )
    bands: int | None = fields.whole_number(
        None, "Bands of a banded (by default min_sep), toeplitz or low_rank mechanism."
    )
    decoder: str | None = fields.choice(
        None,
        "Of a tree: full or online (more noise, half the memory). Of fft: optimal or plain. By "
        "default the first.",
        lambda: ("full", "online", "optimal", "plain"),
    )
    mechanism_options: Mapping[str, Any] = dataclasses.field(
        default_factory=dict,
        hash=False,
        metadata={"help": "Other options of the family.", "check": named_options},
    )

    # Privacy
    epsilon: float | None = fields.positive_float(None, "Privacy target; or give noise_multiplier.")
    noise_multiplier: float | None = fields.positive_float(
        None, "Noise multiplier of the whole run; or give epsilon.", allow_zero=True
    )
    advantage: float | None = fields.positive_float(
        None, "Or the most by which an attack on a client beats guessing, such as 0.1.", below=1
    )
    true_positive_rate: str | None = fields.option(
        None, "Or the most hits of an attack at a rate of false alarms: 0.05@0.01.", check_rates
    )
    delta: float = fields.positive_float(1e-6, "Failure probability.")
    clip_norm: float = fields.positive_float(1.0, "L2 bound on a client's update.")
    clip_quantile: float | None = fields.positive_float(
        None,
        "The clip norm follows this quantile of the updates' norms, from clip_norm on; none keeps "
        "it.",
        below=1,
    )
    clip_share: float = fields.positive_float(
        0.04, "With clip_quantile: part of the budget, rho, that following it takes.", below=1
    )
    clip_every: int = fields.whole_number(
        10, "With clip_quantile: rounds between changes of the clip norm."
    )
    clip_learning_rate: float = fields.positive_float(
        1.0, "With clip_quantile: a change is by a factor of at most its exp."
    )

    private_metrics: float = fields.positive_float(
        0.0, "Share of rho spent on metrics of the rounds, such as 0.02.", allow_zero=True, below=1
    )
    largest_loss: float = fields.positive_float(10.0, "With private_metrics: cap of each loss.")

    def __post_init__(self) -> None:
        fields.check_fields(self)
        # What the plan would refuse is refused here, before the minutes that fitting takes.
        check_delta(self.delta)
        if self.epsilon is not None:
            check_epsilon(self.epsilon)
        self.custom_schedule()
        self._check_mechanism()
        self._check_target()
        takes_budget = "budget" in SCHEMAS[self.schema].settings
        fields.require(self, "budget", needs="schema=budget", present=takes_budget)
        is_clipping_adaptive = self.clip_quantile is not None
        for name in ("clip_share", "clip_every", "clip_learning_rate"):
            fields.require(self, name, needs="`clip_quantile`", present=is_clipping_adaptive)
        if self.claimed_cohort is not None and self.claimed_cohort <= self.cohort_size:
            raise ValueError(
                f"claimed_cohort={self.claimed_cohort} must be above cohort_size="
                f"{self.cohort_size}, which stands for it: leave `claimed_cohort` out to train the "
                "cohort itself"
            )
        has_metrics = self.private_metrics > 0
        fields.require(self, "largest_loss", needs="`private_metrics`", present=has_metrics)
        self._check_sampling()
        if self.budget is None or self.min_sep is not None:
            self.participation()

    def _check_mechanism(self) -> None:
        for name in ("bands", "decoder", "mechanism"):
            takers = families_taking(name)
            families = f"family={' or '.join(takers)}, not family={self.family}"
            fields.require(self, name, needs=families, present=self.family in takers)
        if self.family == "file" and self.mechanism is None:
            raise ValueError(
                "family=file needs a file: give mechanism, a path that `fedmf fit --out` wrote"
            )
        if self.bands is not None and self.bands > self.rounds:
            raise ValueError(
                f"bands={self.bands} must be at most rounds={self.rounds}: a matrix of that size "
                "has no more diagonals"
            )
        is_used = self.workload == "momentum_sgd"
        fields.require(self, "workload_momentum", needs="workload=momentum_sgd", present=is_used)
        known = FAMILIES[self.family].options if self.family in FAMILIES else {}
        chosen = {}
        for name, value in self.mechanism_options.items():
            if name in OPTIONS_WITH_FIELDS:
                raise ValueError(f"mechanism_options has {name}={value!r}: give the field {name}")
            if name not in known:
                takers = families_with(name)
                whose = f"family={' or '.join(takers)}" if takers else "no family"
                raise ValueError(
                    f"{name}={value!r} belongs to {whose}, not to family={self.family}: leave it "
                    "out, or choose another family"
                )
            if value is not None and value != known[name].default:
                # One mechanism has one configuration.
                chosen[name] = fields.coerce(name, value, known[name].kind)
        fields.set_fields(self, {"mechanism_options": chosen})

    def _check_target(self) -> None:
        given = [name for name in TARGETS if getattr(self, name) is not None]
        if len(given) > 1:
            values = " and ".join(f"{name}={getattr(self, name)}" for name in given[:2])
            raise ValueError(f"{values} are both given: give one, the other follows")
        if self.family == "none" and self.adds_noise:
            raise ValueError(
                f"family=none adds no noise: leave out `{given[0]}`, or choose another family"
            )
        if self.family != "none" and not given:
            raise ValueError(
                "epsilon=None and noise_multiplier=None, but noise needs a privacy target: give "
                "`epsilon` (such as 8), `advantage` (such as 0.1) or `noise_multiplier`"
            )

    def _check_sampling(self) -> None:
        for name in ("population", "partitions"):
            fields.require(
                self, name, needs="`sampling`, such as poisson", present=self.sampling is not None
            )
        if self.sampling is None:
            return
        self.scheme()
        apart = None if takes(self.sampling, "min_sep") else self.min_sep
        if apart or self.max_participations is not None or self.schema != PlanConfig.schema:
            raise ValueError(
                f"sampling={self.sampling} decides how far apart clients take part: leave out "
                f"min_sep={self.min_sep}, max_participations={self.max_participations} and "
                f"schema={self.schema}"
            )
        if self.family == "banded" and self.bands is None:
            raise ValueError(
                f"sampling={self.sampling} needs bands, on which the amplification depends: `fedmf "
                "plan bands` finds the best number"
            )

    @property
    def adds_noise(self) -> bool:
        """Whether the run needs a noise seed."""
        return any(getattr(self, name) for name in TARGETS)

    def target(self) -> Target:
        """What the noise is to give; nothing where it is given itself."""
        if (rates := self.true_positive_rate) is not None:
            return {"true_positive_rate": parse_rates(rates)}
        target: Target = {"epsilon": self.epsilon, "advantage": self.advantage}
        return target if any(target.values()) else {}

    def scheme(self) -> Sampling | None:
        """How clients of the claimed run are drawn. What it takes from the mechanism is open."""
        if self.sampling is None:
            return None
        return scheme_class(self.sampling).configured(
            population=self.population,
            cohort_size=self.claimed_cohort or self.cohort_size,
            partitions=self.partitions,
            min_sep=self.min_sep if takes(self.sampling, "min_sep") else None,
        )

    def participation(self) -> Participation:
        """The participation that mechanisms are fitted for.

        With schema=budget: the min_sep participation that the budget pays for. With sampling: a
        fixed order of the population.
        """
        scheme = self.scheme()
        if scheme is not None:
            epoch = min(self.rounds, scheme.population // scheme.cohort_size)
            return Participation(rounds=self.rounds, schema="fixed_epoch", min_sep=epoch)
        return SCHEMAS[self.schema].for_fit(
            rounds=self.rounds,
            min_sep=self.min_sep,
            max_participations=self.max_participations,
        )

    def budget_with(self, mechanism: Mechanism) -> Budget | None:
        """With schema=budget the budget that clients keep to with this mechanism; else None."""
        check_mechanism(mechanism)
        if not SCHEMAS[self.schema].needs_encoder:
            return None
        if self.budget is None:
            return Budget.of(mechanism, self.participation())
        participation = Budgeted(rounds=self.rounds, budget=self.budget)
        pace = self.min_sep or self.rounds
        return Budget(mechanism=mechanism, participation=participation, pace=pace)

    def quantile_clipping(self) -> QuantileClipping | None:
        """How the clip norm adapts; None for one that stays."""
        if self.clip_quantile is None:
            return None
        return QuantileClipping(
            quantile=self.clip_quantile,
            share=self.clip_share,
            every=self.clip_every,
            learning_rate=self.clip_learning_rate,
        )

    def fit_workload(self) -> workloads.Workload:
        """The workload that mechanisms are fitted for: prefix sums in the banded paper (Sec. 6)."""
        schedule = None if self.workload == "identity" else self.custom_schedule()
        rates = None if schedule is None else schedule.learning_rates()
        momentum = self.workload_momentum
        return workloads.named(self.workload, self.rounds, momentum=momentum, learning_rates=rates)

    def custom_schedule(self, peak: float = 1.0) -> CustomSchedule | None:
        """The schedule of learning_rate_schedule; None where that is not set."""
        if (shares := self.learning_rate_schedule) is None:
            return None
        return CustomSchedule(rounds=self.rounds, peak=peak, shares=shares)

    def fit(self, *, show_progress: bool = False) -> Mechanism:
        """The mechanism: read from its file, or fitted.

        A fit takes seconds to minutes at full size, or is read from the cache of fits.
        """
        show_progress = checks.boolean("show_progress", show_progress)
        if self.mechanism is not None:
            mechanism = load_mechanism(self.mechanism)
            self._check_rounds(mechanism)
            return mechanism
        participation = self.participation()
        record = FAMILIES["identity" if self.family == "none" else self.family]
        options: dict[str, Any] = dict(self.mechanism_options)
        for name in OPTIONS_WITH_FIELDS:
            if (value := getattr(self, name)) is not None:
                options[name] = value
        if "equal_norms" in record.options:
            # The optimum for every round of an epoch order; a limit below that only lowers its
            # sensitivity.
            participation = dataclasses.replace(
                participation,
                max_participations=None,  # type: ignore[arg-type]
            )
        if record.proves_gap:
            options["tolerance"] = 1e-3
        with interruptible_fits(), progress_line(record.name, show_progress) as progress:
            return fit(
                self.fit_workload(), participation, family=record.name, progress=progress, **options
            )

    def _check_rounds(self, mechanism: Mechanism) -> None:
        check_mechanism(mechanism)
        if mechanism.rounds != self.rounds:
            raise ValueError(
                f"mechanism has {mechanism.rounds} rounds but rounds={self.rounds}: fit it for the "
                "rounds of the run"
            )

    @with_numpy_defaults
    def plan(self, mechanism: Mechanism | None = None) -> Plan:
        """The plan of `mechanism`, by default the fitted one, with the least noise for the target.

        Raises:
          TypeError, ValueError: what does not go together, before a calibration that takes minutes.
        """
        mechanism = self.fit() if mechanism is None else mechanism
        if not (target := self.target()):
            return self.plan_with(mechanism, self.noise_multiplier or 0.0)
        plan = self.plan_with(mechanism, unamplified_noise_multiplier(self.delta, target))
        if plan.sampling is None:
            return plan
        calibrated = calibrate(
            mechanism,
            None,
            delta=self.delta,
            clip_norm=self.clip_norm,
            sampling=plan.sampling,
            **target,
        )
        return self.plan_with(mechanism, calibrated.noise_multiplier)

    def plan_with(self, mechanism: Mechanism, noise_multiplier: float) -> Plan:
        """The plan with this noise, whatever the target."""
        self._check_rounds(mechanism)
        scheme = self.scheme()
        budget = self.budget_with(mechanism)
        if budget is None:
            participation = None if scheme is not None else self.participation()
        else:
            participation = budget.participation
            check_affords_each_round(participation, column_norm(mechanism))
        share = self.private_metrics
        metrics = PrivateMetrics(share=share, largest_loss=self.largest_loss) if share else None
        plan = Plan(
            mechanism=mechanism,
            participation=participation,  # type: ignore[arg-type]
            noise_multiplier=noise_multiplier,
            clip_norm=self.clip_norm,
            delta=self.delta,
            sampling=scheme,
            quantile_clipping=self.quantile_clipping(),
            private_metrics=metrics,
        )
        if self.claimed_cohort is not None:
            plan = plan.simulating(simulated=self.cohort_size, claimed=self.claimed_cohort)
        _ = plan.stddev  # refuses what float32 cannot hold
        return plan

    @classmethod
    def of(cls, plan: Plan) -> "PlanConfig":
        """The promise of a plan that was made in Python; its mechanism is mechanism.npz."""
        return PlanConfig(min_sep=1, noise_multiplier=0.0).pinned_to(plan)

    def pinned_to(self, plan: Plan, mechanism: str = "mechanism.npz") -> "PlanConfig":
        """The promise in the numbers of `plan`, of which nothing is left to follow from others.

        Args:
          plan: of this config, or one that was made in Python.
          mechanism: the file of its mechanism.
        """
        check_plan(plan)
        p = plan.participation
        scheme = plan.sampling
        adaptive = plan.quantile_clipping
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(PlanConfig)}
        # What the plan decides: at its default, unless the plan says otherwise.
        decided = {*FIT_FIELDS, *SETTINGS, *TARGETS, "sampling", "claimed_cohort", "budget"}
        decided |= {"schema", "max_participations", "private_metrics", "largest_loss"}
        decided |= {name for name in values if name.startswith("clip_")}
        for name in decided - {"cohort_size"}:
            del values[name]
        values |= {"family": "file", "mechanism": mechanism, "rounds": p.rounds}
        values |= {"noise_multiplier": plan.noise_multiplier, "delta": plan.delta}
        values["clip_norm"] = plan.clip_norm
        if (metrics := plan.private_metrics) is not None:
            values |= {"private_metrics": metrics.share, "largest_loss": metrics.largest_loss}
        if scheme is not None:
            values |= scheme.settings()
        else:
            values |= p.to_config()
        if adaptive is not None:
            values |= {f"clip_{name}": x for name, x in dataclasses.asdict(adaptive).items()}
        if (cohorts := plan.simulation) is not None:
            values |= {"cohort_size": cohorts.simulated, "claimed_cohort": cohorts.claimed}
        return PlanConfig(**values)

    def flat(self) -> dict[str, Any]:
        """Field -> value, in the order of the fields.

        Options of the mechanism stand by their own names, those of a task as task_option.NAME.
        """
        return with_flat_options({f.name: getattr(self, f.name) for f in dataclasses.fields(self)})

    def flags(self, *, leave_out: tuple[str, ...] = (), always: tuple[str, ...] = ()) -> list[str]:
        """Command-line options of what is not at its default, and of what is `always` said."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return flags_of(self.flat(), defaults, leave_out=leave_out, always=always)

    def to_json(self) -> str:
        """The fields as indented JSON, the form in which a run folder keeps them."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The config that `to_json` wrote.

        Raises:
          ValueError: no JSON, or what `from_mapping` refuses.
        """
        return cls.from_mapping(read_json(text), "JSON")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], origin: str) -> Self:
        """A config from plain values.

        Args:
          values: as `dataclasses.asdict` or `with_flat_options` give them; fields left out keep
            their default.
          origin: where they come from, named in errors.

        Raises:
          ValueError: unknown field, wrong type or value out of range.
        """
        if not isinstance(values, Mapping):
            raise ValueError(
                f"{origin} holds a {type(values).__name__}: give fields and their values"
            )
        known = [field.name for field in dataclasses.fields(cls)]
        try:
            values = nested(values)
        except TypeError as error:
            raise ValueError(f"{origin}: {error}") from error
        for name in values:
            if name not in known:
                hint = did_you_mean(name, known, "the fields are")
                raise ValueError(f"{origin} has an unknown field {name!r}: {hint}")
        try:
            return msgspec.convert(values, cls)
        except msgspec.ValidationError as error:
            # msgspec names the field behind the sentence: "Expected `int`, got `str` - at
            # `$.rounds`".
            field = re.search(r" - at `\$\.(\w+)`$", str(error))
            given = f"{field[1]}={values[field[1]]!r}: " if field and field[1] in values else ""
            raise ValueError(f"{origin}: {given}{error}") from error
