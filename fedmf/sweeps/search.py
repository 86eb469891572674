"""The search of a sweep: trial after trial, each asked of Optuna's TPE sampler (Bergstra et al.
2011) by what the trials before came to.

The runs' folders are all that is kept. The next trial follows from them alone, so that a search
that was stopped goes on as if it had not been.
"""

import dataclasses
import hashlib
import math
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from fedmf.privacy.flat_config import TARGETS
from fedmf.reports.text import metric_name
from fedmf.runs.config import TrainConfig, read_config_file
from fedmf.runs.folder import Run
from fedmf.runs.notes import smaller_is_better
from fedmf.sweeps import grid, results
from fedmf.sweeps import run as driver
from fedmf.sweeps.grid import Range
from fedmf.sweeps.runs import prepare, run_folder
from fedmf.terminal.progress_bar import bar

_DIGITS = 4  # of a float from a range
_ASKED_AGAIN = 100  # times for a setting that was not tried and can be trained
_NOT_SEARCHED = {
    **dict.fromkeys((*TARGETS, "delta"), "the weakest promise would be the best"),
    "seed": "the best one would be luck",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Space:
    """What a search chooses from.

    Attributes:
      fixed: as of `grid.sweep_configs`.
      varied: the same names -> values, or a range. From a range numbers are drawn log-uniformly
        where its low end is positive, else uniformly.

    Raises:
      ValueError: what `sweep_configs` refuses of the values and the ends of the ranges; a field
        that no search may choose.
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
        """The runs of the grid of all values and of the ends of the ranges."""
        ends = {
            name: [values.low, values.high] if isinstance(values, Range) else values
            for name, values in self.varied.items()
        }
        return grid.sweep_configs(self.fixed, ends)

    def chosen_in(self, run: str, config: TrainConfig) -> dict[str, Any] | None:
        """The varied fields that a run has, with its values; None for a run that the search could
        not have asked for.
        """
        said = dict(part.split("=", 1) for part in run.split(",") if "=" in part)
        chosen: dict[str, Any] = {}
        for name, values in self.varied.items():
            value = config.flat().get(name)
            texts = {grid.run_name({name: value}), f"{name}={said.get(name)}"}
            if isinstance(values, list):
                chosen.update((name, v) for v in values if grid.run_name({name: v}) in texts)
            elif value is None and name in said:  # an option at its family's default
                value = grid.typed_value(name, said[name])
            if isinstance(values, Range) and value in values:
                chosen[name] = value
        if "family" in self.varied and "family" not in chosen:
            return None
        needed = grid.applying(self.fixed, dict.fromkeys(self.varied) | chosen)
        chosen = {name: value for name, value in chosen.items() if name in needed}
        if set(chosen) != set(needed) & set(self.varied):
            return None
        try:
            made = grid.sweep_config(self.fixed, chosen)[1]
        except ValueError:  # with what is fixed now, the values do not go together
            return None
        return chosen if dataclasses.replace(made, data=config.data) == config else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """A run that was asked for.

    Attributes:
      chosen: varied field -> value.
      config: of the run.
      score: `results.score_of` the finished run, NaN where its model diverged; None before.
      failed: whether it could not be finished.
    """

    chosen: Mapping[str, Any]
    config: TrainConfig
    score: float | None = None
    failed: bool = False


def asked(out: pathlib.Path, space: Space) -> dict[str, Trial]:
    """The runs of a folder that the search asked for, or could have, by name; without scores."""
    files = {path.parent.name: path for path in (out / "runs").glob("*/config.json")}
    files |= {path.stem: path for path in map(_settings, (out / "logs").glob("*.txt"))}
    trials = {}
    for name, path in sorted(files.items()):
        if path.exists():
            config = TrainConfig.from_mapping(read_config_file(path), str(path))
            config = dataclasses.replace(config, data=space.fixed.get("data"))
            if (chosen := space.chosen_in(name, config)) is not None:
                trials[name] = Trial(chosen=chosen, config=config)
    return trials


def _settings(log: pathlib.Path) -> pathlib.Path:
    return log.parent / f"{log.name.removesuffix('.txt')}.json"


def next_trial(space: Space, trials: Mapping[str, Trial]) -> tuple[str, Trial] | None:
    """The name of another run, and its trial: the same for the same trials, in any order.

    Trials under way count as bad ones, so that the next is not beside them, and so do models that
    diverged. Failed trials count as none.

    Returns:
      None where no setting was found that is new and can be trained.

    Raises:
      ImportError: Optuna is not installed.
    """
    study, pruned = _study(space, trials)
    for _ in range(_ASKED_AGAIN):
        suggested = study.ask()
        chosen = _suggested(space, suggested)
        try:
            name, config = grid.sweep_config(space.fixed, chosen)
        except ValueError:  # fields that do not go together
            study.tell(suggested, state=pruned)
            continue
        if all(config != trial.config for trial in trials.values()):
            return name, Trial(chosen=chosen, config=config)
    return None


def _study(space: Space, trials: Mapping[str, Trial]) -> tuple[Any, Any]:
    """A study in memory that was told of the trials; and the state of its worst ones."""
    try:
        import optuna
    except ImportError:
        raise ImportError(
            "search=optuna needs Optuna, which is not installed: pip install 'fedmf[search]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    states = optuna.trial.TrialState
    # Made anew for each trial, the sampler needs another seed each time.
    sampler = optuna.samplers.TPESampler(seed=len(trials), constant_liar=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    distributions = {name: _distribution(name, values) for name, values in space.varied.items()}
    # Of many trials TPE gives older ones less weight. Digests are an order that no restart loses.
    for name in sorted(trials, key=lambda name: hashlib.sha256(name.encode()).digest()):
        trial = trials[name]
        if trial.failed:
            continue
        diverged = trial.score is not None and math.isnan(trial.score)
        told = states.RUNNING if trial.score is None else states.COMPLETE
        study.add_trial(
            optuna.trial.create_trial(
                state=states.PRUNED if diverged else told,
                value=None if diverged else trial.score,
                params={
                    field: grid.run_name({field: value})
                    if isinstance(space.varied[field], list)
                    else value
                    for field, value in trial.chosen.items()
                },
                distributions={field: distributions[field] for field in trial.chosen},
            )
        )
    return study, states.PRUNED


def _distribution(name: str, values: list[Any] | Range) -> Any:
    from optuna import distributions

    if isinstance(values, list):
        return distributions.CategoricalDistribution(_texts(name, values))
    if values.whole:
        return distributions.IntDistribution(int(values.low), int(values.high), log=values.low > 0)
    return distributions.FloatDistribution(values.low, values.high, log=values.low > 0)


def _texts(name: str, values: list[Any]) -> list[str]:
    """Values in a form that Optuna takes: as the names of runs say them."""
    return [grid.run_name({name: value}) for value in values]


def _suggested(space: Space, trial: Any) -> dict[str, Any]:
    """Values of the fields that the suggested family takes, in the order of the space."""
    chosen: dict[str, Any] = {}
    for name in sorted(space.varied, key=lambda name: name != "family"):  # it decides on others
        if name == "family" or name in grid.applying(space.fixed, {name: None} | chosen):
            chosen[name] = _drawn(name, space.varied[name], trial)
    return {name: chosen[name] for name in space.varied if name in chosen}


def _drawn(name: str, values: list[Any] | Range, trial: Any) -> Any:
    if isinstance(values, list):
        texts = _texts(name, values)
        return values[texts.index(trial.suggest_categorical(name, texts))]
    suggest = trial.suggest_int if values.whole else trial.suggest_float
    drawn = suggest(name, values.low, values.high, log=values.low > 0)
    if values.whole:
        return drawn
    return min(max(float(f"{drawn:.{_DIGITS}g}"), values.low), values.high)


def run_search(
    out: pathlib.Path,
    space: Space,
    trials: int,
    training: driver.Training,
    *,
    smoothed_over: int = 0,
) -> dict[str, Any]:
    """`train_trials`, and what `run_sweep` leaves of a grid.

    Returns:
      What `run_sweep` does, with "search" beside it: {"trials": how many there are, "by": what they
      were compared by, "best": name of the run, "value": of it}; None where no run is finished.
    """
    failures = train_trials(out, space, trials, training, smoothed_over=smoothed_over)
    names = list(asked(out, space))
    answer = driver.summary(
        out,
        names,
        failures,
        smoothed_over=smoothed_over,
        searched=list(space.varied),
        chosen_by="The search",
    )
    found: dict[str, Any] = {"trials": len(names), "by": None, "best": None, "value": None}
    runs = [Run.load(run_folder(out, name)) for name in names if _finished(out, name)]
    scores = {run.path.name: results.score_of(run, smoothed_over) for run in runs}
    sound = {name: score for name, score in scores.items() if not math.isnan(score)}
    if sound:
        headline = runs[0].plan["task"]["headline_metric"]
        kind = "private" if runs[0].config.private_metrics else "validation"
        best = max(sound, key=lambda name: sound[name])
        value = -sound[best] if smaller_is_better(headline) else sound[best]
        found |= {"by": f"{kind} {metric_name(headline)}", "best": best, "value": value}
        failed = sum(name in failures for name in names)
        without = f" ({failed} failed)" if failed else ""
        said = f"best of {len(names)} trials{without} by {found['by']}: {best} ({value:.4f})"
        answer["text"] = f"{said}\n{answer['text']}"
    if len(names) < trials and not failures:
        answer["text"] += f"\n{len(names)} trials and not {trials}: no other setting was found"
    return answer | {"search": found}


def train_trials(
    out: pathlib.Path,
    space: Space,
    trials: int,
    training: driver.Training,
    *,
    smoothed_over: int = 0,
) -> dict[str, driver.Failure]:
    """Asks for trials until the folder has so many, and trains them.

    Those that are not finished are trained first, failed ones too. A run of the folder that the
    search could have asked for, such as one of a grid, is a trial.

    Args:
      out: the sweep's folder; made if needed.
      space: what trials are chosen from.
      trials: how many there are at the end, those of earlier commands among them.
      training: how, and where.
      smoothed_over: of `results.score_of`.

    Returns:
      Run -> why it failed. The search goes on after it, unless inputs fit no run and none has
      begun.

    Raises:
      ValueError, StoppedSweep: see `driver.train_all`.
      ImportError: Optuna is not installed.
    """
    driver.in_folder(out, space.corners())
    known = asked(out, space)
    failures: dict[str, driver.Failure] = {}

    def ready(name: str) -> str:
        config = known[name].config
        with driver.writing(out):
            prepare(out, name, config, training.seed_of(config))
        return name

    def look() -> None:
        """Enters what became of trials since."""
        for name, trial in known.items():
            if name in failures:
                known[name] = dataclasses.replace(trial, failed=True)
            elif trial.score is None and _finished(out, name):
                score = results.score_of(Run.load(run_folder(out, name)), smoothed_over)
                known[name] = dataclasses.replace(trial, score=score)

    def names() -> Iterator[str]:
        yield from [ready(name) for name in known if not _finished(out, name)]
        while len(known) < trials:
            look()
            bad = any(failure.status == driver.BAD_ARGUMENTS for failure in failures.values())
            if bad and all(driver.state(out, name) == "not begun" for name in known):
                return  # most likely the others cannot begin either
            if (found := next_trial(space, known)) is None:
                return
            known[found[0]] = found[1]
            yield ready(found[0])

    with driver.writing(out):
        done = sum(_finished(out, name) for name in known)
    total = max(trials, len(known))
    hidden = not training.progress
    with bar(total=total, initial=done, unit="trial", desc="search", disable=hidden) as shown:
        for name in filter(None, driver.trained(out, names(), training, failures)):
            shown.update()
            if training.progress:
                shown.write(f"{name}: {driver.outcome(out, name, failures)}", file=sys.stderr)
    return failures


def _finished(out: pathlib.Path, name: str) -> bool:
    return driver.state(out, name) == "finished"
