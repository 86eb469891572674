"""The configuration of a plan (participation, mechanism, privacy target and clip norm), whose
fields are command-line options and keys of config files.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Self

from fedmf import checks, fields, workloads
from fedmf.mechanisms import load_mechanism
from fedmf.mechanisms.base import Mechanism, check_mechanism
from fedmf.mechanisms.budget import Budget, check_affords_each_round
from fedmf.mechanisms.family import FAMILIES, fitted_families
from fedmf.mechanisms.fit import fit
from fedmf.mechanisms.fitting.progress import interruptible_fits, progress_line
from fedmf.mechanisms.leading import column_norm
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.participation.budgeted import Budgeted
from fedmf.participation.schema import SCHEMAS, Participation
from fedmf.privacy.calibrate import (
    Target,
    calibrate,
    check_rates,
    parse_rates,
    unamplified_noise_multiplier,
)
from fedmf.privacy.config_checks import (
    check_fields_of_streams,
    check_mechanism_fields,
    check_sampling_fields,
    check_selection_fields,
    check_target_fields,
    checked_mechanism_options,
)
from fedmf.privacy.config_reading import config_from_values, read_json
from fedmf.privacy.flat_config import (
    OPTIONS_WITH_FIELDS,
    TARGETS,
    families,
    flags_of,
    named_options,
    with_flat_options,
)
from fedmf.privacy.gaussian import check_delta, check_epsilon
from fedmf.privacy.pinned_fields import determined_fields, fields_of_plan
from fedmf.privacy.plan import Plan, check_plan
from fedmf.privacy.private_metrics import PrivateMetrics
from fedmf.privacy.quantile_clipping import QuantileClipping
from fedmf.privacy.sampling import SCHEMES, Sampling, scheme_class, scheme_name, takes
from fedmf.privacy.trial_count import DISTRIBUTIONS, TRUNCATED_NEGATIVE_BINOMIAL, TrialCount
from fedmf.schedule import CustomSchedule, schedule_text


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """The settings from which a mechanism is fitted and a plan is calibrated.

    Every field is a command-line option of the same name and a key of a config file. Options of
    mechanism families, which are entries of `mechanism_options` here, are command-line options and
    keys too. The defaults are those of the banded paper's StackOverflow experiments, except for the
    privacy target, which has no default.

    `fedmf train --help` describes each field.

    Attributes:
      mechanism_options: further options of the mechanism family, as in `fedmf.fit`; options at
        their default are left out.

    Raises:
      TypeError: a field is not of its type.
      ValueError: a field is out of its range, needs another field that is not set, or contradicts
        another field; or there is not exactly one privacy target.

    >>> config = PlanConfig(rounds=8, min_sep=4, family="blt", mechanism_options={"buffers": 2},
    ...                     noise_multiplier=2.0)
    >>> config.participation().max_participations, config.plan().epsilon < 3
    (2, True)
    >>> " ".join(config.flags())
    '--rounds 8 --min-sep 4 --family blt --buffers 2 --noise-multiplier 2.0'
    >>> PlanConfig.from_json(config.to_json()) == config
    True
    """

    # Fields of participation and client sampling.
    rounds: int = fields.option(2052, "Rounds of training.", checks.rounds)
    cohort_size: int = fields.whole_number(100, "Clients of a round.")
    claimed_cohort: int | None = fields.whole_number(
        None,
        "Simulate a cohort of this many clients by one of cohort_size clients, with the noise "
        "scaled down (papers: 1000 by 100).",
    )
    schema: str = fields.choice("min_sep", f"{', '.join(SCHEMAS)}.", lambda: SCHEMAS)
    min_sep: int | None = fields.whole_number(
        None, "Least number of rounds between two participations of a client."
    )
    max_participations: int | None = fields.whole_number(None, "Most participations of a client.")
    budget: float | None = fields.positive_float(
        None, "With schema=budget: a sensitivity. By default that of min_sep and its limit."
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
        "With sampling: partitions of the clients (not of the data), sampled in turn. By default "
        "the mechanism's bands.",
    )

    # Fields of the mechanism and its fit.
    workload: str = fields.choice(
        "prefix_sum", f"Errors to minimise: {', '.join(workloads.NAMES)}.", lambda: workloads.NAMES
    )
    workload_momentum: float = fields.positive_float(
        0.95, "Momentum of the momentum_sgd workload.", allow_zero=True, below=1
    )
    learning_rate_schedule: str | None = fields.option(
        None,
        "Learning rates of the server as shares of its peak rate, for the workload and training: "
        "one a round, or 1536:0.15 for all from round 1536 on, or a file of them.",
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
        "Decoder of a tree: full or online (more noise, half the memory); of fft: optimal or "
        "plain. By default the first.",
        lambda: ("full", "online", "optimal", "plain"),
    )
    mechanism_options: Mapping[str, Any] = dataclasses.field(
        default_factory=dict,
        hash=False,
        metadata={"help": "Further options of the family.", "check": named_options},
    )

    # Fields of the privacy target and of clipping.
    epsilon: float | None = fields.positive_float(None, "Privacy target; or give noise_multiplier.")
    noise_multiplier: float | None = fields.positive_float(
        None, "Noise multiplier of the whole run; or give epsilon.", allow_zero=True
    )
    advantage: float | None = fields.positive_float(
        None, "Privacy target: bound on the advantage of an attack, such as 0.1.", below=1
    )
    true_positive_rate: str | None = fields.option(
        None,
        "Privacy target: bound on an attack's true-positive rate at a false-positive rate, such as "
        "0.05@0.01.",
        check_rates,
    )
    delta: float = fields.positive_float(1e-6, "Failure probability.")
    clip_norm: float = fields.positive_float(1.0, "L2 bound on a client's update.")
    clip_quantile: float | None = fields.positive_float(
        None,
        "Adapt the clip norm to this quantile of the updates' norms, starting from clip_norm; none "
        "for a constant clip norm.",
        below=1,
    )
    clip_share: float = fields.positive_float(
        0.04, "With clip_quantile: share of rho spent on adapting the clip norm.", below=1
    )
    clip_every: int = fields.whole_number(
        10, "With clip_quantile: rounds between changes of the clip norm."
    )
    clip_learning_rate: float = fields.positive_float(
        1.0, "With clip_quantile: step size of the geometric quantile update."
    )

    private_metrics: float = fields.positive_float(
        0.0, "Share of rho spent on metrics of the rounds, such as 0.02.", allow_zero=True, below=1
    )
    largest_loss: float = fields.positive_float(10.0, "With private_metrics: cap of each loss.")
    mean_trials: float | None = fields.positive_float(
        None,
        "Private selection: mean of the random number of trials, of which the best one is released "
        "with the guarantee that the privacy target states.",
    )
    trial_distribution: str = fields.choice(
        TRUNCATED_NEGATIVE_BINOMIAL,
        f"With mean_trials: {' or '.join(DISTRIBUTIONS)}.",
        lambda: DISTRIBUTIONS,
    )
    trial_shape: float = fields.positive_float(
        1.0, "With mean_trials: 1 is geometric, 0 logarithmic.", allow_zero=True
    )

    def __post_init__(self) -> None:
        fields.check_fields(self)
        # `Plan` checks delta and epsilon too, but only after the fit of the mechanism, which may
        # take minutes.
        check_delta(self.delta)
        if self.epsilon is not None:
            check_epsilon(self.epsilon)
        self.custom_schedule()
        check_mechanism_fields(self)
        fields.set_fields(self, {"mechanism_options": checked_mechanism_options(self)})
        check_target_fields(self)
        takes_budget = "budget" in SCHEMAS[self.schema].settings
        fields.require(self, "budget", needs="schema=budget", present=takes_budget)
        check_fields_of_streams(self)
        check_selection_fields(self)
        self.selection()
        self.scheme()
        check_sampling_fields(self, default_schema=PlanConfig.schema)
        if self.budget is None or self.min_sep is not None:
            self.participation()

    @property
    def adds_noise(self) -> bool:
        """Whether the run adds noise and needs a noise seed."""
        return any(getattr(self, name) for name in TARGETS)

    def target(self) -> Target:
        """Returns the privacy target as the dict that `calibrate` takes; an empty dict if the
        config sets a noise multiplier instead.
        """
        if self.true_positive_rate is not None:
            return {"true_positive_rate": parse_rates(self.true_positive_rate)}
        target: Target = {"epsilon": self.epsilon, "advantage": self.advantage}
        return target if any(target.values()) else {}

    def scheme(self) -> Sampling | None:
        """Returns the sampling scheme for the claimed cohort size, or None without sampling. Fields
        that follow from the mechanism, such as the number of partitions, may still be unset.
        """
        if self.sampling is None:
            return None
        min_sep = self.min_sep if takes(self.sampling, "min_sep") else None
        return scheme_class(self.sampling).configured(
            population=self.population,
            cohort_size=self.claimed_cohort or self.cohort_size,
            partitions=self.partitions,
            min_sep=min_sep,
        )

    def participation(self) -> Participation:
        """Returns the participation of clients for which the mechanism is fitted.

        With schema=budget this is the min_sep participation that the budget covers. With sampling
        it is a fixed order, in which every client takes part once in each pass over the population.
        """
        scheme = self.scheme()
        if scheme is not None:
            rounds_per_epoch = min(self.rounds, scheme.population // scheme.cohort_size)
            return Participation(rounds=self.rounds, schema="fixed_epoch", min_sep=rounds_per_epoch)
        return SCHEMAS[self.schema].for_fit(
            rounds=self.rounds,
            min_sep=self.min_sep,
            max_participations=self.max_participations,
        )

    def budget_with(self, mechanism: Mechanism) -> Budget | None:
        """Returns the participation budget of each client under a mechanism; None unless
        schema=budget.
        """
        check_mechanism(mechanism)
        if not SCHEMAS[self.schema].needs_encoder:
            return None
        if self.budget is None:
            return Budget.of(mechanism, self.participation())
        participation = Budgeted(rounds=self.rounds, budget=self.budget)
        pace = self.min_sep or self.rounds
        return Budget(mechanism=mechanism, participation=participation, pace=pace)

    def quantile_clipping(self) -> QuantileClipping | None:
        """Returns the settings of adaptive clipping; None for a constant clip norm."""
        if self.clip_quantile is None:
            return None
        return QuantileClipping(
            quantile=self.clip_quantile,
            share=self.clip_share,
            every=self.clip_every,
            learning_rate=self.clip_learning_rate,
        )

    def selection(self) -> TrialCount | None:
        """Returns the number of trials of the private selection; None for a single run."""
        if self.mean_trials is None:
            return None
        return TrialCount(
            mean_trials=self.mean_trials,
            distribution=self.trial_distribution,
            shape=self.trial_shape,
        )

    def fit_workload(self) -> workloads.Workload:
        """Returns the workload whose error the fit of the mechanism minimises. By default it is
        prefix sums, as in the banded paper (Sec. 6).
        """
        schedule = None if self.workload == "identity" else self.custom_schedule()
        rates = None if schedule is None else schedule.learning_rates()
        momentum = self.workload_momentum
        return workloads.by_name(
            self.workload, self.rounds, momentum=momentum, learning_rates=rates
        )

    def custom_schedule(self, peak: float = 1.0) -> CustomSchedule | None:
        """Returns the learning rates that the field `learning_rate_schedule` sets, with the given
        peak rate; None if the field is not set.
        """
        if self.learning_rate_schedule is None:
            return None
        return CustomSchedule(rounds=self.rounds, peak=peak, shares=self.learning_rate_schedule)

    def fit(self, *, show_progress: bool = False) -> Mechanism:
        """Fits the mechanism for these settings, or loads it if the field `mechanism` names a file.

        A fit for thousands of rounds takes seconds to minutes, unless its result is cached on disk.
        """
        show_progress = checks.boolean("show_progress", show_progress)
        if self.mechanism is not None:
            mechanism = load_mechanism(self.mechanism)
            self._check_rounds(mechanism)
            return mechanism
        participation = self.participation()
        family_name = "identity" if self.family == "none" else self.family
        family = FAMILIES[family_name]
        options: dict[str, Any] = dict(self.mechanism_options)
        for name in OPTIONS_WITH_FIELDS:
            option_value = getattr(self, name)
            if option_value is not None:
                options[name] = option_value
        if "equal_norms" in family.options:
            # The fit assumes as many participations as min_sep allows. A smaller limit on
            # participations only lowers the sensitivity of the fitted mechanism.
            participation = dataclasses.replace(
                participation,
                max_participations=None,  # type: ignore[arg-type]
            )
        if family.proves_gap:
            options["tolerance"] = 1e-3
        with interruptible_fits(), progress_line(family_name, show_progress) as progress:
            return fit(
                self.fit_workload(), participation, family=family_name, progress=progress, **options
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
        """Returns the plan with the least noise that meets the config's privacy target.

        Args:
          mechanism: the mechanism of the plan; by default the one that `fit` returns.

        Raises:
          TypeError, ValueError: two fields contradict each other, or no noise meets the target.
            The former errors come before the calibration, which can take minutes.
        """
        if mechanism is None:
            mechanism = self.fit()
        target = self.target()
        if not target:
            return self.plan_with(mechanism, self.noise_multiplier or 0.0)
        selection = self.selection()
        noise_multiplier = unamplified_noise_multiplier(self.delta, target, selection)
        plan = self.plan_with(mechanism, noise_multiplier)
        if plan.sampling is None:
            return plan
        calibrated_plan = calibrate(
            mechanism,
            None,
            delta=self.delta,
            clip_norm=self.clip_norm,
            sampling=plan.sampling,
            selection=selection,
            **target,
        )
        return self.plan_with(mechanism, calibrated_plan.noise_multiplier)

    def plan_with(self, mechanism: Mechanism, noise_multiplier: float) -> Plan:
        """Returns the plan with a given noise multiplier, ignoring the config's privacy target."""
        self._check_rounds(mechanism)
        scheme = self.scheme()
        budget = self.budget_with(mechanism)
        participation: Participation | None = None
        if budget is not None:
            participation = budget.participation
            check_affords_each_round(budget.participation, column_norm(mechanism))
        elif scheme is None:
            participation = self.participation()
        private_metrics = None
        if self.private_metrics:
            private_metrics = PrivateMetrics(
                share=self.private_metrics, largest_loss=self.largest_loss
            )
        plan = Plan(
            mechanism=mechanism,
            participation=participation,  # type: ignore[arg-type]
            noise_multiplier=noise_multiplier,
            clip_norm=self.clip_norm,
            delta=self.delta,
            sampling=scheme,
            quantile_clipping=self.quantile_clipping(),
            private_metrics=private_metrics,
            selection=self.selection(),
        )
        if self.claimed_cohort is not None:
            plan = plan.simulating(simulated=self.cohort_size, claimed=self.claimed_cohort)
        _ = plan.stddev  # Raises ValueError if float32 cannot hold the noise.
        return plan

    @classmethod
    def of(cls, plan: Plan) -> "PlanConfig":
        """Returns a config that describes a plan made in Python, and that reads the plan's
        mechanism from the file mechanism.npz.
        """
        return PlanConfig(min_sep=1, noise_multiplier=0.0).pinned_to(plan)

    def pinned_to(self, plan: Plan, mechanism: str = "mechanism.npz") -> "PlanConfig":
        """Returns a copy of this config with all numbers of `plan`, so that nothing has to be
        fitted or calibrated to make the plan again.

        Args:
          plan: a plan of this config, or one that was made in Python.
          mechanism: the file from which the copy reads the plan's mechanism.
        """
        check_plan(plan)
        value_by_field = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(PlanConfig)
        }
        # Fields that a plan determines are reset to their defaults. The ones that this plan uses
        # are then set from it.
        for name in determined_fields(value_by_field):
            del value_by_field[name]
        return PlanConfig(**value_by_field | fields_of_plan(plan, mechanism))

    def flat(self) -> dict[str, Any]:
        """Returns all values of the config in one dict, by the names that config files use.

        Options of the mechanism stand beside the fields, under their own names. Options of a
        training task have names of the form task_option.NAME.
        """
        value_by_field = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self)
        }
        return with_flat_options(value_by_field)

    def flags(self, *, leave_out: tuple[str, ...] = (), always: tuple[str, ...] = ()) -> list[str]:
        """Returns the command-line options that make this config, such as ["--rounds 8"]. Fields at
        their default are left out.

        Args:
          leave_out: fields that get no option.
          always: fields that get an option even at their default.
        """
        default_by_field = {field.name: field.default for field in dataclasses.fields(self)}
        return flags_of(self.flat(), default_by_field, leave_out=leave_out, always=always)

    def to_json(self) -> str:
        """Returns the fields as indented JSON, in the format of the config file of a run folder."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads a config from the JSON text that `to_json` wrote.

        Raises:
          ValueError: the text is not JSON, or has values that `from_mapping` refuses.
        """
        return cls.from_mapping(read_json(text), "JSON")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], origin: str) -> Self:
        """Returns the config whose fields have the values of a mapping.

        Args:
          values: as `dataclasses.asdict` or `with_flat_options` return them; missing fields have
            their default.
          origin: names the source of the values in errors, such as "JSON".

        Raises:
          ValueError: unknown field, wrong type or value out of range.
        """
        return config_from_values(cls, values, origin)
