"""Space of the settings from which the trials of a private selection are drawn, and what all trials
have in common.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedmf.privacy.config import PlanConfig
from fedmf.privacy.flat_config import TARGETS
from fedmf.privacy.plan import Plan, per_query_noise_multiplier
from fedmf.privacy.same_plan import TOLERANCE
from fedmf.privacy.statement import version_changes
from fedmf.privacy.trial_count import TrialCount
from fedmf.runs.config import TrainConfig
from fedmf.runs.folder import Run
from fedmf.runs.reading import read_object
from fedmf.runs.rounds import IDENTITY
from fedmf.sweeps import grid
from fedmf.sweeps.grid import Range
from fedmf.sweeps.search import Space
from fedmf.training.identity import program_difference
from fedmf.training.task_checks import OTHERS

# Fields that no private selection varies, with the reasons.
_NOT_VARIED = {
    "claimed_cohort": "trials of a simulated cohort have less noise",
    "initial_model": "the statement names the data of one initial model",
    "task": "the losses of several tasks cannot be compared",
    "data": "the losses on several data sets cannot be compared",
    "mean_trials": "there is one number of trials",
    "trial_distribution": "there is one number of trials",
    "trial_shape": "there is one number of trials",
}
_PRIVATE_SCORE = "the last private loss"
_VALIDATION_SCORE = "the validation loss"


class TaskFacts(NamedTuple):
    """Facts about the task of a run that must be the same in all trials.

    Attributes:
      name: name of the task.
      clients: number of clients.
      client_ids: digest of the client ids.
      data_version: version of the data.
      validation_clients: attribute of the task.
    """

    name: str
    clients: int
    client_ids: str
    data_version: str
    validation_clients: str

    @staticmethod
    def of(run: Run) -> "TaskFacts":
        """Returns the facts that the folder of a run records."""
        identity = read_object(run.path / IDENTITY)
        task_record = run.plan["task"]
        return TaskFacts(
            name=task_record["name"],
            clients=task_record["clients"],
            client_ids=identity["client_ids"],
            data_version=identity["data_version"],
            validation_clients=task_record["validation_clients"],
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommonFacts:
    """Facts that all trials of a private selection have in common, because the number of trials
    that count must not depend on when they were trained.

    Attributes:
      task: facts about the task.
      programs: fingerprints of the programs that compute the updates, one for each task and its
        options.
      versions: name of a package -> its version.
    """

    task: TaskFacts
    programs: list[dict[str, str]]
    versions: dict[str, str]

    @staticmethod
    def of(first_runs: Sequence[Run]) -> "CommonFacts":
        """Returns the facts that the first rounds of one run of each task record."""
        return CommonFacts(
            task=TaskFacts.of(first_runs[0]),
            programs=[read_object(run.path / IDENTITY)["program"] for run in first_runs],
            versions=first_runs[0].plan["versions"],
        )

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> "CommonFacts":
        """Returns the facts that `dataclasses.asdict` has turned into plain JSON types."""
        return CommonFacts(**{**record, "task": TaskFacts(*record["task"])})

    def change_from(self, recorded: "CommonFacts") -> str | None:
        """Returns the first difference from recorded facts, in words; None if there is none."""
        version_text = version_changes(recorded.versions)
        if version_text:
            return f"other packages, {version_text}"
        for name, recorded_value in recorded.task._asdict().items():
            if getattr(self.task, name) != recorded_value:
                return f"another {name} of the task"
        for recorded_program, program in zip(recorded.programs, self.programs, strict=True):
            difference = program_difference(recorded_program, program)
            if difference is not None:
                return f"another program, where {difference}"
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectionSpace:
    """Settings of the trials of a private selection, and the number of trials.

    Attributes:
      fixed: fixed fields as in `grid.sweep_configs`, with mean_trials.
      varied: field -> values, or a range. A trial draws one run of the grid uniformly, and numbers
        from ranges log-uniformly if the low end is positive, else uniformly.

    Raises:
      ValueError: `Space` refuses the settings, a field cannot vary or be fixed, or the settings do
        not have one privacy curve and one kind of score.
    """

    fixed: Mapping[str, Any]
    varied: Mapping[str, list[Any] | Range]

    def __post_init__(self) -> None:
        for name, reason in _NOT_VARIED.items():
            if name in self.varied:
                raise ValueError(
                    f"{name} cannot vary in a private selection, because {reason}: give one value"
                )
        if self.fixed.get("mean_trials") is None:
            raise ValueError(
                "`mean_trials` is missing: give the mean number of trials of the private "
                "selection, such as 10"
            )
        if "seed" in self.fixed:
            raise ValueError(
                f"seed={self.fixed['seed']} in a private selection, each of whose trials draws its "
                "own: leave it out"
            )
        corner_configs = list(Space(fixed=self.fixed, varied=self.varied).corners().values())
        check_one_privacy_curve(corner_configs, list(self.varied))
        if len({config.private_metrics > 0 for config in corner_configs}) > 1:
            raise ValueError(
                "`private_metrics` is 0 in some settings and not in others, whose scores cannot be "
                "compared: give all settings some, or none"
            )

    @functools.cached_property
    def runs(self) -> list[grid.SweepRun]:
        """The runs of a grid that has all listed values, and the low end of each range."""
        values_by_field: dict[str, list[Any]] = {}
        for name, values in self.varied.items():
            values_by_field[name] = [values.low] if isinstance(values, Range) else values
        return grid.sweep_runs(self.fixed, values_by_field)

    @functools.cached_property
    def trials(self) -> TrialCount:
        """The distribution of the number of trials."""
        trials = self.runs[0].config.selection()
        assert trials is not None
        return trials

    @property
    def score(self) -> str:
        """The value by which trials are compared, in words."""
        has_metrics = self.runs[0].config.private_metrics > 0
        return _PRIVATE_SCORE if has_metrics else _VALIDATION_SCORE

    def record(self) -> dict[str, Any]:
        """Returns all settings in plain JSON types, for comparison with a recorded space."""
        settings = dict(self.fixed)
        for name, values in self.varied.items():
            settings[name] = values
            if isinstance(values, Range):
                settings[name] = f"{values.low}:{values.high}"
        return settings

    def single_runs(self) -> list[TrainConfig]:
        """Returns one configuration for each task and its options, as that of a single run. A range
        of an option has both ends.
        """
        config_by_task: dict[str, TrainConfig] = {}
        for config in Space(fixed=self.fixed, varied=self.varied).corners().values():
            task_key = repr((config.task, sorted(config.task_options.items())))
            single_config = dataclasses.replace(
                config,
                mean_trials=None,
                trial_distribution=PlanConfig.trial_distribution,
                trial_shape=PlanConfig.trial_shape,
            )
            config_by_task.setdefault(task_key, single_config)
        return list(config_by_task.values())

    def may_score(self, facts: TaskFacts) -> bool:
        """Returns whether the score of a trial depends on no training client beyond what the
        trial's guarantee covers.
        """
        return self.score == _PRIVATE_SCORE or facts.validation_clients == OTHERS

    def check_tasks(self, facts_of_tasks: Sequence[TaskFacts]) -> None:
        """Raises ValueError unless all settings have the same clients and data, and scores that
        depend on no training client beyond what a trial's guarantee covers.
        """
        first_facts = facts_of_tasks[0]
        if any(facts != first_facts for facts in facts_of_tasks):
            raise ValueError(
                "the settings have different clients or data, and private selection protects the "
                "same clients in all trials: give one value of the task's options on which they "
                "depend"
            )
        if self.may_score(first_facts):
            return
        raise ValueError(
            f"task {first_facts.name} does not declare that no training client is in its "
            "validation split, so that the validation loss cannot choose: give `private_metrics`, "
            'such as 0.02, or declare validation_clients="others" in your own task if it is so'
        )


def check_one_privacy_curve(configs: list[TrainConfig], varied: list[str]) -> None:
    """Raises ValueError unless all settings have one privacy curve.

    Without client sampling it follows from the noise multiplier, and with it from the scheme, the
    number of rounds, the bands and the noise.

    Args:
      configs: the settings.
      varied: names of the fields in which they differ.
    """
    curves = [_privacy_curve(config) for config in configs]
    for curve in curves:
        differing_names = [
            name
            for name in {**curves[0], **curve}
            if _differs(curve.get(name), curves[0].get(name))
        ]
        if differing_names:
            varied_names = [name for name in varied if name in PlanConfig.__dataclass_fields__]
            named = [name for name in differing_names if name in varied] or varied_names
            raise ValueError(
                f"the settings differ in {' and '.join(named)}, on which a trial's guarantee "
                "depends, and private selection needs one privacy curve for all: vary other options"
            )


def _privacy_curve(config: TrainConfig) -> dict[str, Any]:
    """Returns the values by name from which the privacy curve of a trial follows."""
    names = (*TARGETS, "delta", "sampling", "claimed_cohort")
    curve = {name: getattr(config, name) for name in names}
    if config.claimed_cohort is not None:
        # The noise is scaled by cohort_size / claimed_cohort.
        curve["cohort_size"] = config.cohort_size
    if config.sampling is None:
        return curve
    plan = plan_of(config)
    curve |= {
        "population": config.population,
        "cohort_size": config.cohort_size,
        "partitions": config.partitions,
        "min_sep": config.min_sep,
        "rounds": config.rounds,
        "bands": plan.mechanism.bands,
        "scheme": plan.sampling,
        "noise": plan.noise_multiplier,
        "query_noise": per_query_noise_multiplier(plan),
    }
    return curve


def plan_of(config: TrainConfig) -> Plan:
    """Returns the plan of a trial with clip norm 1. Many settings have the same plan but for the
    clip norm, and its calibration may take minutes.
    """
    value_by_field = {
        field.name: getattr(config, field.name) for field in dataclasses.fields(PlanConfig)
    }
    return _plan_of(PlanConfig(**value_by_field | {"clip_norm": 1.0}).to_json())


@functools.lru_cache(maxsize=64)
def _plan_of(plan_config: str) -> Plan:
    """Returns the plan of a configuration in JSON."""
    return PlanConfig.from_json(plan_config).plan()


def _differs(value: Any, other_value: Any) -> bool:
    """Returns whether two values differ, numbers by more than rounding."""
    if isinstance(value, float) and isinstance(other_value, float):
        return abs(value - other_value) > TOLERANCE * abs(other_value)
    return bool(value != other_value)
