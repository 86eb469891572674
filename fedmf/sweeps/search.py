"""Search of a sweep, in which Optuna's TPE sampler chooses each trial by the scores of earlier
trials. The sampler is that of Bergstra et al. 2011.

The search stores nothing but the runs' folders. The next trial follows from them alone, so that a
search that was stopped resumes as if it had not been.
"""

import dataclasses
import hashlib
import math
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from fedmf.privacy.flat_config import TARGETS
from fedmf.reports.seeds import ONE_SEED
from fedmf.reports.text import metric_name
from fedmf.runs.config import TrainConfig, read_config_file
from fedmf.runs.folder import Run
from fedmf.runs.notes import smaller_is_better
from fedmf.sweeps import folder as sweep_folder
from fedmf.sweeps import grid, results, total_budget
from fedmf.sweeps import run as driver
from fedmf.sweeps.grid import Range
from fedmf.sweeps.runs import prepare, run_folder
from fedmf.terminal.progress_bar import bar

# The search ends if this many suggestions in a row give no new setting that can be trained.
_MAX_SUGGESTIONS = 100
_NOT_SEARCHED = {
    **dict.fromkeys((*TARGETS, "delta"), "the weakest guarantee would be the best"),
    "seed": "the best one would be luck",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Space:
    """Space of the settings that a search chooses from.

    Attributes:
      fixed: fixed fields as in `grid.sweep_configs`.
      varied: field -> values, or a range. Numbers are drawn from a range log-uniformly if its low
        end is positive, else uniformly.

    Raises:
      ValueError: `sweep_configs` refuses the values or the ends of the ranges; or a field that no
        search may choose.
    """

    fixed: Mapping[str, Any]
    varied: Mapping[str, list[Any] | Range]

    def __post_init__(self) -> None:
        for name, why in _NOT_SEARCHED.items():
            if name in self.varied:
                raise ValueError(
                    f"{name} cannot vary in a search, because {why}: give one value, and for "
                    "several a search each"
                )
        self.corners()

    def corners(self) -> dict[str, TrainConfig]:
        """Returns the runs of a grid that has all listed values and both ends of each range."""
        values_by_field = {
            name: [values.low, values.high] if isinstance(values, Range) else values
            for name, values in self.varied.items()
        }
        return grid.sweep_configs(self.fixed, values_by_field)

    def chosen_in(self, run: str, config: TrainConfig) -> dict[str, Any] | None:
        """Returns a run's values of the varied fields, or None if the search cannot choose this
        run.
        """
        named_values = dict(entry.split("=", 1) for entry in run.split(",") if "=" in entry)
        chosen_values: dict[str, Any] = {}
        for name, values in self.varied.items():
            field_value = config.flat().get(name)
            value_texts = {grid.run_name({name: field_value}), f"{name}={named_values.get(name)}"}
            if isinstance(values, list):
                chosen_values.update(
                    (name, v) for v in values if grid.run_name({name: v}) in value_texts
                )
            # The run has no value of this option, which was left at the default of the mechanism
            # family.
            elif field_value is None and name in named_values:
                field_value = grid.typed_value(name, named_values[name])
            if isinstance(values, Range) and field_value in values:
                chosen_values[name] = field_value
        if "family" in self.varied and "family" not in chosen_values:
            return None
        needed_names = grid.applying(self.fixed, dict.fromkeys(self.varied) | chosen_values)
        chosen_values = {
            name: field_value for name, field_value in chosen_values.items() if name in needed_names
        }
        if set(chosen_values) != set(needed_names) & set(self.varied):
            return None
        try:
            _, chosen_config = grid.sweep_config(self.fixed, chosen_values)
        except ValueError:
            # The values in the run's name and the fixed fields make no valid configuration.
            return None
        is_same = dataclasses.replace(chosen_config, data=config.data) == config
        return chosen_values if is_same else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """Trial of a search, which is a run whose settings the search has chosen.

    Attributes:
      chosen: varied field -> value.
      config: configuration of the run.
      score: `results.score_of` the finished run, NaN if its model diverged; None before.
      failed: whether it could not be finished.
    """

    chosen: Mapping[str, Any]
    config: TrainConfig
    score: float | None = None
    failed: bool = False


def trials_in(out: pathlib.Path, space: Space) -> dict[str, Trial]:
    """Returns the runs in a folder that the search has chosen or could choose, as trials without
    scores.
    """
    config_paths = {path.parent.name: path for path in (out / "runs").glob("*/config.json")}
    config_paths |= {path.stem: path for path in map(_settings, (out / "logs").glob("*.txt"))}
    trial_by_name = {}
    for name, path in sorted(config_paths.items()):
        if path.exists():
            config = TrainConfig.from_mapping(read_config_file(path), str(path))
            config = dataclasses.replace(config, data=space.fixed.get("data"))
            chosen_values = space.chosen_in(name, config)
            if chosen_values is not None:
                trial_by_name[name] = Trial(chosen=chosen_values, config=config)
    return trial_by_name


def _settings(log: pathlib.Path) -> pathlib.Path:
    """Returns the path of a run's configuration file, which lies beside its log."""
    return log.parent / f"{log.name.removesuffix('.txt')}.json"


def next_trial(space: Space, trials: Mapping[str, Trial]) -> tuple[str, Trial] | None:
    """Chooses the settings of the next run, and returns its name and trial. The order of earlier
    trials does not matter.

    Trials that still train count as bad ones, so that the next trial is not close to them. Trials
    whose model diverged count as bad too. Failed trials are ignored.

    Returns:
      None if no setting was found that is new and can be trained.

    Raises:
      ImportError: Optuna is not installed.
    """
    study, pruned = _study(space, trials)
    for _ in range(_MAX_SUGGESTIONS):
        suggested_trial = study.ask()
        chosen_values = _suggested(space, suggested_trial)
        try:
            name, config = grid.sweep_config(space.fixed, chosen_values)
        except ValueError:
            # Optuna's suggested values and the fixed fields make no valid configuration.
            study.tell(suggested_trial, state=pruned)
            continue
        if all(config != trial.config for trial in trials.values()):
            return name, Trial(chosen=chosen_values, config=config)
    return None


def _study(space: Space, trials: Mapping[str, Trial]) -> tuple[Any, Any]:
    """Returns an Optuna study of the trials in memory, and the state that marks diverged trials."""
    try:
        import optuna
    except ImportError:
        raise ImportError(
            "search=optuna needs Optuna, which is not installed: pip install 'fedmf[search]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    trial_states = optuna.trial.TrialState
    # A new sampler is created for each trial, so each trial needs a different seed.
    sampler = optuna.samplers.TPESampler(seed=len(trials), constant_liar=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    distributions = {name: _distribution(name, values) for name, values in space.varied.items()}
    # If there are many trials, TPE gives less weight to older ones. Ordering the trials by a digest
    # makes the weights independent of when each trial was run.
    for name in sorted(trials, key=lambda name: hashlib.sha256(name.encode()).digest()):
        trial = trials[name]
        if trial.failed:
            continue
        has_diverged = trial.score is not None and math.isnan(trial.score)
        trial_state = trial_states.RUNNING if trial.score is None else trial_states.COMPLETE
        trial_score = trial.score
        if has_diverged:
            trial_state = trial_states.PRUNED
            trial_score = None
        trial_parameters = dict(trial.chosen)
        for field, value in trial.chosen.items():
            if isinstance(space.varied[field], list):
                trial_parameters[field] = grid.run_name({field: value})
        study.add_trial(
            optuna.trial.create_trial(
                state=trial_state,
                value=trial_score,
                params=trial_parameters,
                distributions={field: distributions[field] for field in trial.chosen},
            )
        )
    return study, trial_states.PRUNED


def _distribution(name: str, values: list[Any] | Range) -> Any:
    """Returns the Optuna distribution that a field is drawn from."""
    from optuna import distributions

    if isinstance(values, list):
        return distributions.CategoricalDistribution(_texts(name, values))
    if values.whole:
        return distributions.IntDistribution(int(values.low), int(values.high), log=values.low > 0)
    return distributions.FloatDistribution(values.low, values.high, log=values.low > 0)


def _texts(name: str, values: list[Any]) -> list[str]:
    """Returns values of a field as texts, which Optuna accepts as categories. They are spelled as
    in names of runs.
    """
    return [grid.run_name({name: value}) for value in values]


def _suggested(space: Space, trial: Any) -> dict[str, Any]:
    """Returns suggested values of the varied fields that the suggested family accepts."""
    chosen: dict[str, Any] = {}
    # The family is suggested first, since it decides which other fields apply.
    for name in sorted(space.varied, key=lambda name: name != "family"):
        if name == "family" or name in grid.applying(space.fixed, {name: None} | chosen):
            chosen[name] = _suggested_value(name, space.varied[name], trial)
    return {name: chosen[name] for name in space.varied if name in chosen}


def _suggested_value(name: str, values: list[Any] | Range, trial: Any) -> Any:
    """Returns the value of a field that Optuna suggests."""
    if isinstance(values, list):
        value_texts = _texts(name, values)
        return values[value_texts.index(trial.suggest_categorical(name, value_texts))]
    suggest = trial.suggest_int if values.whole else trial.suggest_float
    drawn_value = suggest(name, values.low, values.high, log=values.low > 0)
    if values.whole:
        return drawn_value
    return values.rounded(drawn_value)


def run_search(
    out: pathlib.Path,
    space: Space,
    trials: int,
    options: driver.SweepOptions,
    *,
    smoothed_over: int = 0,
) -> dict[str, Any]:
    """Trains the trials of a search, and writes the same files as `run_sweep`.

    Returns:
      The result of `run_sweep`, with "search" added: {"trials": number of trials, "by": metric that
      compares them, "best": name of the best run, "value": its metric}; None if no run is finished.
    """
    failures = train_trials(out, space, trials, options, smoothed_over=smoothed_over)
    trial_names = list(trials_in(out, space))
    sweep_result = driver.write_results(
        out,
        trial_names,
        failures,
        smoothed_over=smoothed_over,
        searched=list(space.varied),
        chosen_by="The search",
    )
    search: dict[str, Any] = {"trials": len(trial_names), "by": None, "best": None, "value": None}
    finished_runs = [
        Run.load(run_folder(out, name)) for name in trial_names if _finished(out, name)
    ]
    scores = {run.path.name: results.score_of(run, smoothed_over) for run in finished_runs}
    score_by_trial = {name: score for name, score in scores.items() if not math.isnan(score)}
    if score_by_trial:
        headline_metric = finished_runs[0].plan["task"]["headline_metric"]
        metric_kind = "private" if finished_runs[0].config.private_metrics else "validation"
        best_name = max(score_by_trial, key=lambda name: score_by_trial[name])
        best_value = (
            -score_by_trial[best_name]
            if smaller_is_better(headline_metric)
            else score_by_trial[best_name]
        )
        search |= {
            "by": f"{metric_kind} {metric_name(headline_metric)}",
            "best": best_name,
            "value": best_value,
        }
        num_failed = sum(name in failures for name in trial_names)
        trial_text = f"{len(trial_names)} trials"
        if num_failed:
            trial_text += f" ({num_failed} failed)"
        value_text = f"{best_value:.4f}; {ONE_SEED}"
        best_text = f"best of {trial_text} by {search['by']}: {best_name} ({value_text})"
        sweep_result["text"] = f"{best_text}\n{sweep_result['text']}"
    if len(trial_names) < trials and not failures:
        sweep_result["text"] += (
            f"\n{len(trial_names)} trials and not {trials}: no other setting was found"
        )
    return sweep_result | {"search": search}


def train_trials(
    out: pathlib.Path,
    space: Space,
    trials: int,
    options: driver.SweepOptions,
    *,
    smoothed_over: int = 0,
) -> dict[str, driver.Failure]:
    """Chooses and trains trials until the folder has `trials` of them.

    Unfinished trials are trained first, failed ones too. A run of the folder that the search can
    choose, such as one of a grid, is a trial.

    Args:
      out: the sweep's folder; made if needed.
      space: settings that trials are chosen from.
      trials: number of trials at the end, those of earlier commands included.
      options: options of the sweep.
      smoothed_over: see `results.score_of`.

    Returns:
      Run -> its failure. The search continues after it, unless inputs fit no run and none has
      begun.

    Raises:
      ValueError, StoppedSweep: see `driver.train_all`.
      ImportError: Optuna is not installed.
    """
    sweep_folder.in_folder(out, space.corners())
    trial_by_name = trials_in(out, space)
    failures: dict[str, driver.Failure] = {}

    def prepare_trial(name: str) -> str:
        """Writes the files that a trial begins with, and returns its name."""
        config = trial_by_name[name].config
        total_budget.reserve(out, {name: config})
        with sweep_folder.writing(out):
            prepare(out, name, config, options.seed_of(config))
        return name

    def update_trials() -> None:
        """Records the scores and failures of trials that have ended since the last call."""
        for name, trial in trial_by_name.items():
            if name in failures:
                trial_by_name[name] = dataclasses.replace(trial, failed=True)
            elif trial.score is None and _finished(out, name):
                trial_score = results.score_of(Run.load(run_folder(out, name)), smoothed_over)
                trial_by_name[name] = dataclasses.replace(trial, score=trial_score)

    def names() -> Iterator[str]:
        """Yields the names of the unfinished trials, and then of new ones."""
        unfinished_names = [name for name in trial_by_name if not _finished(out, name)]
        yield from map(prepare_trial, unfinished_names)
        while len(trial_by_name) < trials:
            update_trials()
            statuses = [failure.status for failure in failures.values()]
            trial_states = [sweep_folder.state(out, name) for name in trial_by_name]
            if driver.BAD_ARGUMENTS in statuses and set(trial_states) == {"not begun"}:
                return  # If one run could not begin, most likely no other run can.
            new_trial = next_trial(space, trial_by_name)
            if new_trial is None:
                return
            name, trial = new_trial
            trial_by_name[name] = trial
            yield prepare_trial(name)

    with sweep_folder.writing(out):
        num_finished = sum(_finished(out, name) for name in trial_by_name)
    with bar(
        total=max(trials, len(trial_by_name)),
        initial=num_finished,
        unit="trial",
        desc="search",
        disable=not options.progress,
    ) as progress:
        ended_names = driver.iter_finished_runs(out, names(), options, failures)
        for name in filter(None, ended_names):
            progress.update()
            if options.progress:
                progress.write(f"{name}: {driver.outcome(out, name, failures)}", file=sys.stderr)
    return failures


def _finished(out: pathlib.Path, name: str) -> bool:
    """Returns whether a run of the sweep is finished."""
    return sweep_folder.state(out, name) == "finished"
