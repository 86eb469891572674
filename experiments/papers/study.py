"""Studies, which are named grids of training runs with the lines of a figure, settings to tune, and
seeds.

A study trains its runs in the folder of a sweep. The settings of a line are tuned on the validation
set with seed 1000. The best setting trains again with seeds 1001, 1002, ..., and only these runs
are reported. `fedmf report` reads the folder, and the same command resumes an interrupted study.
"""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedmf.experiments.papers import provenance, study_check
from fedmf.experiments.papers.item import ITEMS, Outcome, Request
from fedmf.experiments.papers.study_check import Cost
from fedmf.experiments.papers.study_grid import TUNING_SEED, Grid, Study
from fedmf.files import make_folder
from fedmf.mechanisms import Mechanism
from fedmf.privacy.statement import mechanism_digest
from fedmf.reports.groups import final_metric, simulation_note
from fedmf.reports.text import duration
from fedmf.runs.config import TrainConfig
from fedmf.runs.folder import Run
from fedmf.sweeps import folder as sweep_folder
from fedmf.sweeps import run as sweep
from fedmf.sweeps.results import validation_of
from fedmf.sweeps.runs import run_folder

# Suffix of the names of runs that serve to choose settings.
_TUNING_SUFFIX = f"seed={TUNING_SEED}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """Result of one line of a figure at one privacy target.

    Attributes:
      line: name of the line.
      target: epsilon, or the noise multiplier if the study fixes that; None without noise.
      epsilon: the plan's epsilon; infinite without noise.
      best: the tuned configuration.
      runs: runs of the best setting with the reported seeds, in order.
      tried: runs by which the setting was chosen, and after them the runs of the other settings
        with the reported seeds, if the study trains these. It is empty if there was only one
        setting.
    """

    line: str
    target: float | None
    epsilon: float
    best: TrainConfig
    runs: tuple[Run, ...]
    tried: tuple[Run, ...]

    @property
    def test(self) -> np.ndarray:
        """Headline metric of the task on the test set, float64 (seeds,). It is 0 if the model is
        not finite.
        """
        test_values = [final_metric(run, "test") for run in self.runs]
        return np.array([0.0 if x is None or not math.isfinite(x) else x for x in test_values])


Judge = Callable[[Sequence[Score], Any], Outcome]


def trained(grid: Grid, *names: str) -> Callable[[Judge], Judge]:
    """Returns a decorator for the function that judges the scores for these items of the catalogue.

    The function takes the scores of the study and its size.
    """

    def declare(judge: Judge) -> Judge:
        """Registers the function as the judge of the items."""
        for name in names:
            ITEMS[name] = dataclasses.replace(
                ITEMS[name],
                state="trained at reduced scale",
                why="At scale small it trains a small model on data made for it; scale full takes "
                "the real file in --data.",
                make=functools.partial(judged, grid, judge),
                study=grid,
            )
        return judge

    return declare


def judged(grid: Grid, judge: Judge, request: Request) -> Outcome:
    """Trains the missing runs of a study, and judges its scores."""
    study = grid(request.scale)
    grid_size = grid.sizes[request.scale]
    scores = run_study(study, request)
    sentence_limit = request.test_sentences
    reductions = []
    if sentence_limit:
        reductions.append(f"the first {sentence_limit:,} test sentences")
    if request.scale != "full":
        run_by_path = {run.path: run for score in scores for run in (*score.tried, *score.runs)}
        training_seconds = sum(float((run.result or {})["seconds"]) for run in run_by_path.values())
        cost_text = (
            f"{len(run_by_path)} runs, which trained for {duration(training_seconds)} in all"
        )
        reductions = [study.reduced, *reductions, cost_text]
    return dataclasses.replace(
        judge(scores, grid_size),
        reduced="; ".join(reductions),
        seeds=(TUNING_SEED, *study.reported_seeds),
        training_commits=provenance.training_commits(_folder(study, request)),
        note=simulation_note([run for score in scores for run in score.runs]),
    )


class Key(NamedTuple):
    """Line of a figure at one privacy target."""

    line: str
    target: float | None


Targets = Mapping[Key, Mapping[str, TrainConfig]]


def run_study(study: Study, request: Request) -> list[Score]:
    """Trains the missing runs of a study, and returns a score for every line and target, in order.

    No run begins before all have passed the checks that training makes before its first round. The
    tuning runs are not evaluated on the test split.

    Raises:
      ValueError: scale "full" without data; a run that cannot train; or a run failed.
    """
    out, targets = _prepared(study, request)
    check = functools.cache(functools.partial(_check, study, out, targets))
    tuning_runs = _trained(out, _tuned(targets), request, check, test=False)
    best_names = {key: _best(settings, tuning_runs, study) for key, settings in targets.items()}
    repeats: dict[str, TrainConfig] = {}
    for key, settings in targets.items():
        reported_names = list(settings) if study.repeats_every_setting else [best_names[key]]
        for name in reported_names:
            repeats |= _repeats(study, name, settings[name])
    run_by_name = _trained(out, repeats, request, check, test=True)
    scores = []
    for key, settings in targets.items():
        best_name = best_names[key]
        best_runs = tuple(
            run_by_name[name] for name in _repeats(study, best_name, settings[best_name])
        )
        other_runs = [tuning_runs[name] for name in settings if name in tuning_runs]
        for name, config in settings.items():
            if study.repeats_every_setting and name != best_name:
                other_runs += [run_by_name[repeat] for repeat in _repeats(study, name, config)]
        config = settings[best_name]
        # The target epsilon is taken if there is one, because the plan's epsilon is below it by a
        # rounding error.
        epsilon = config.epsilon or best_runs[0].plan["epsilon"] or math.inf
        scores.append(
            Score(
                line=key.line,
                target=key.target,
                epsilon=epsilon,
                best=config,
                runs=best_runs,
                tried=tuple(other_runs),
            )
        )
    return scores


def _best(settings: Mapping[str, TrainConfig], tuning_runs: Mapping[str, Run], study: Study) -> str:
    """Returns the name of the setting with the best validation metric."""
    if len(settings) == 1:
        return next(iter(settings))
    return max(settings, key=lambda name: _tuning_score(tuning_runs[name], study))


def _repeats(study: Study, name: str, config: TrainConfig) -> dict[str, TrainConfig]:
    """Returns the runs of a setting with the seeds that are reported, given its tuning run."""
    name_stem = name.removesuffix(_TUNING_SUFFIX)
    return {
        f"{name_stem}seed={seed}": dataclasses.replace(config, seed=seed)
        for seed in study.reported_seeds
    }


def finished(study: Study, request: Request) -> Iterator[tuple[str, TrainConfig, list[Run]]]:
    """Yields the line, configuration and finished runs of each setting that has any, and trains
    nothing.

    The runs are those of TUNING_SEED and of the seeds that are reported.
    """
    study_folder = _folder(study, request)
    for line, name, config in study.configs(request.data or pathlib.Path("data"), study_folder):
        run_names = [name, *_repeats(study, name, config)]
        finished_names = [
            name for name in run_names if sweep_folder.state(study_folder, name) == "finished"
        ]
        if finished_names:
            yield (
                line,
                config,
                [Run.load(run_folder(study_folder, name)) for name in finished_names],
            )


def dry_run(study: Study, request: Request) -> Cost:
    """Makes the checks of `run_study` without training, and returns what training will cost.

    The fitted mechanisms and the synthetic data are stored for the later runs.

    Raises:
      ValueError: scale "full" without data; or a run that cannot train.
    """
    out, targets = _prepared(study, request)
    _check(study, out, targets)
    return _cost(study, request, targets)


def cost_of(study: Study, request: Request) -> Cost:
    """Returns the cost of a study's runs, estimated from the speed of finished runs if there are
    any.
    """
    return _cost(study, request, _targets(study, request, request.data or pathlib.Path("data")))


def _cost(study: Study, request: Request, targets: Targets) -> Cost:
    """Returns the cost of the runs for these targets."""
    reported_settings = [next(iter(settings.values())) for settings in targets.values()]
    if study.repeats_every_setting:
        reported_settings = list(_all_configs(targets).values())
    return study_check.cost(
        list(_tuned(targets).values()),
        reported_settings * study.repeats,
        folder=_folder(study, request),
        jobs=request.jobs,
    )


def _folder(study: Study, request: Request) -> pathlib.Path:
    """Returns the folder of the study's sweep of runs."""
    return request.folder.absolute().parent / "sweeps" / f"{study.name}-{request.scale}"


def _prepared(study: Study, request: Request) -> tuple[pathlib.Path, Targets]:
    """Makes the sweep's folder, and returns it with the settings of every line and target."""
    study_folder = _folder(study, request)
    make_folder(study_folder)
    return study_folder, _targets(study, request, _data(study, request, study_folder))


def _targets(study: Study, request: Request, data: pathlib.Path) -> Targets:
    """Returns the settings of every line and target."""
    if request.test_sentences is not None:
        fixed_fields = {**study.fixed, "task_option.test_sentences": request.test_sentences}
        study = dataclasses.replace(study, fixed=fixed_fields)
    targets: dict[Key, dict[str, TrainConfig]] = {}
    for line, name, config in study.configs(data, _folder(study, request)):
        privacy_target = config.noise_multiplier if config.epsilon is None else config.epsilon
        targets.setdefault(Key(line, privacy_target), {})[name] = config
    return targets


def _all_configs(targets: Targets) -> dict[str, TrainConfig]:
    """Returns a mapping from run name to configuration, for all targets."""
    configs: dict[str, TrainConfig] = {}
    for settings in targets.values():
        configs.update(settings)
    return configs


def _tuned(targets: Targets) -> dict[str, TrainConfig]:
    """Returns the runs of those targets that have several settings to choose from."""
    return _all_configs({key: settings for key, settings in targets.items() if len(settings) > 1})


def _check(study: Study, out: pathlib.Path, targets: Targets) -> None:
    """Makes for all runs the checks that training makes before round 0.

    The quick checks come first. Then the files of the mechanisms are written, which the other
    checks read.
    """

    def write_mechanisms() -> None:
        """Fits and writes the mechanisms that have no file yet."""
        for stem in study.stems():
            mechanism_path = out / f"{stem}.npz"
            if not mechanism_path.exists():
                study.mechanisms[stem]().save(mechanism_path)

    config_by_name = _all_configs(targets)
    sweep_folder.in_folder(out, config_by_name)
    study_check.check_runs(config_by_name, out, write_mechanisms)


def _tuning_score(run: Run, study: Study) -> float:
    """Returns the validation metric by which settings are chosen, or -inf if the model diverged."""
    validation_score = validation_of(run, study.smoothed_over)
    return validation_score if math.isfinite(validation_score) else -math.inf


def check_data(request: Request) -> None:
    """Raises a ValueError if scale full, the papers' size, is asked for without a real data
    file, or if there is no file of that name.
    """
    if request.data is not None and not request.data.exists():
        raise ValueError(
            f"there is no file {request.data}: name the real file in --data; docs/full_scale.md "
            "says where to get it"
        )
    if request.scale == "full" and request.data is None:
        raise ValueError(
            "data is missing: scale full trains on the real file: name it in --data "
            "(docs/full_scale.md says where to get it), or take --scale small"
        )


def _data(study: Study, request: Request, out: pathlib.Path) -> pathlib.Path:
    """Returns the path of the real data file, or of the synthetic substitute, which is written
    once.
    """
    check_data(request)
    if request.data is not None:
        return request.data
    suffix, write = study.data
    data_path = out / f"data{suffix}"
    if not data_path.exists():
        write(data_path)
    return data_path


def _trained(
    out: pathlib.Path,
    configs: Mapping[str, TrainConfig],
    request: Request,
    check: Callable[[], None],
    *,
    test: bool,
) -> dict[str, Run]:
    """Trains the unfinished runs, and returns the finished run of each name.

    Runs of the same mechanism share one object of it.

    `check` is called if a run has to train. With `test` runs are evaluated on the test split.
    """
    if not configs:
        return {}
    folder_by_run = dict(zip(configs, sweep_folder.in_folder(out, configs), strict=True))
    if any(
        sweep_folder.state(out, folder_name) != "finished" for folder_name in folder_by_run.values()
    ):
        check()
        provenance.add_training_commit(out)
    sweep_options = sweep.SweepOptions(
        noise_seed="os",
        jobs=request.jobs,
        cluster=request.cluster,
        test=test,
        progress=request.scale != "tiny",
    )
    for name, failure in sweep.train_all(out, configs, sweep_options).items():
        raise ValueError(f"run {name} in {out} failed: {failure.reason}")
    # Mechanisms are read once for each digest, because many runs have the same one, and a dense
    # mechanism takes 34 MB.
    mechanism_by_digest: dict[str, Mechanism] = {}
    runs: dict[str, Run] = {}
    for name, folder_name in folder_by_run.items():
        run = Run.load(run_folder(out, folder_name))
        fitted_digest = mechanism_digest(run.mechanism)
        shared_mechanism = mechanism_by_digest.setdefault(fitted_digest, run.mechanism)
        runs[name] = dataclasses.replace(run, mechanism=shared_mechanism)
    return runs
