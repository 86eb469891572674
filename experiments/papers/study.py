"""A named grid of training runs: lines of a figure, what is tuned, seeds.

It trains through `experiments.sweep`, in a sweep's folder.

The settings of a line are tuned on the validation set with seed 0, and the best goes on with seeds
1, 2, ..., which alone are reported. `fedmf report` reads the folder, and the same command goes on
in it.
"""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from fedmf.experiments import sweep, sweep_job
from fedmf.experiments.papers import study_check, study_cost
from fedmf.experiments.papers.item import Request
from fedmf.experiments.papers.study_cost import Cost
from fedmf.experiments.sweep_grid import sweep_configs
from fedmf.experiments.sweep_results import validation_of
from fedmf.experiments.sweep_runs import run_folder
from fedmf.files import make_folder
from fedmf.mechanisms import Mechanism
from fedmf.privacy.flat_config import families_taking
from fedmf.reports.groups import final_metric
from fedmf.runs.config import TrainConfig
from fedmf.runs.folder import Run

_SEED_0 = "seed=0"  # how the name of a run that tunes ends


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """Runs of one line.

    Attributes:
      line: what the figure calls it. It may have several parts.
      fields: field of `TrainConfig` -> its values. `mechanism` holds keys of `Study.mechanisms`.
    """

    line: str
    fields: Mapping[str, Sequence[Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """A grid.

    Attributes:
      name: of its sweep's folder, which figures of the same runs share.
      fixed: field of `TrainConfig` -> the value of every run.
      parts: the rest.
      repeats: seeds that are reported.
      smoothed_over: rounds at the end whose validations are averaged to tune by.
      mechanisms: name -> what makes the file of family=file.
      data: writes a stand-in to a path with this suffix, where no real file is given.
      program: begins the processes that train.
    """

    name: str
    fixed: Mapping[str, Any]
    parts: Sequence[Part]
    repeats: int
    data: tuple[str, Callable[[pathlib.Path], object]]
    smoothed_over: int = 0
    mechanisms: Mapping[str, Callable[[], Mechanism]] = dataclasses.field(default_factory=dict)
    program: Sequence[str] = sweep_job.PROGRAM

    def configs(
        self, data: pathlib.Path, folder: pathlib.Path
    ) -> Iterator[tuple[str, str, TrainConfig]]:
        """(line, name of the run, its configuration), of every run with seed 0;
        lines may share a run.
        """
        fixed = {**self.fixed, "data": str(data)}
        for part in self.parts:
            fields = dict(part.fields)
            if "mechanism" in fields:
                fields["mechanism"] = [str(folder / f"{stem}.npz") for stem in fields["mechanism"]]
            families = fields.get("family", [fixed.get("family")])
            taken = {
                name: value
                for name, value in fixed.items()
                if set(families) & set(families_taking(name))
            }
            own = {name: value for name, value in taken.items() if name not in fields}
            for name, config in sweep_configs(own, {**fields, "seed": [0]}).items():
                yield part.line, name, config

    def stems(self) -> list[str]:
        """Names of the mechanisms that the parts use."""
        return list(
            dict.fromkeys(stem for part in self.parts for stem in part.fields.get("mechanism", ()))
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """What one line came to at one privacy target.

    Attributes:
      line: its name.
      target: epsilon or, where that is what the study fixes, the noise multiplier;
        None without noise.
      epsilon: of the plan; infinite without noise.
      best: the tuned configuration.
      runs: of seeds 1, 2, ..., in order.
      tried: the runs with seed 0; empty where there was one setting only.
    """

    line: str
    target: float | None
    epsilon: float
    best: TrainConfig
    runs: tuple[Run, ...]
    tried: tuple[Run, ...]

    @property
    def test(self) -> np.ndarray:
        """The task's metric on the test set, float64 (seeds,); 0 of a model
        that is no longer finite.
        """
        found = [final_metric(run, "test") for run in self.runs]
        return np.array([0.0 if x is None or not math.isfinite(x) else x for x in found])


Targets = Mapping[tuple[str, float | None], Mapping[str, TrainConfig]]


def run_study(study: Study, request: Request) -> list[Score]:
    """Trains what is not trained yet; a score for every line and target, in the study's order.

    No run begins before all have passed the checks that training makes before its first round. Runs
    that tune leave out the test split.

    Raises:
      ValueError: scale "full" without data; a run that cannot train; or a run failed.
    """
    out, targets = _prepared(study, request)
    check = functools.cache(functools.partial(_check, study, out, targets))
    tuned = {key: settings for key, settings in targets.items() if len(settings) > 1}
    tuning = _trained(out, _all(tuned), study, request, before=check, test=False)
    best: dict[tuple[str, float | None], str] = {}
    for key, settings in targets.items():
        best[key] = max(
            settings, key=lambda name: _merit(tuning[name], study) if name in tuning else 0.0
        )
    repeats = {
        key: {
            name.removesuffix(_SEED_0) + f"seed={seed}": dataclasses.replace(
                targets[key][name], seed=seed
            )
            for seed in range(1, study.repeats + 1)
        }
        for key, name in best.items()
    }
    runs = _trained(out, _all(repeats), study, request, before=check, test=True)
    return [
        Score(
            line=line,
            target=target,
            # A plan's own is below its target by a rounding error, and another one's by another.
            epsilon=targets[line, target][best[line, target]].epsilon
            or runs[next(iter(names))].plan["epsilon"]
            or math.inf,
            best=targets[line, target][best[line, target]],
            runs=tuple(runs[name] for name in names),
            tried=tuple(tuning[name] for name in targets[line, target] if name in tuning),
        )
        for (line, target), names in repeats.items()
    ]


def dry_run(study: Study, request: Request) -> Cost:
    """The checks of `run_study`, and what it will cost.

    Trains nothing; fits and a stand-in for the data stay, for the run.

    Raises:
      ValueError: scale "full" without data; or a run that cannot train.
    """
    out, targets = _prepared(study, request)
    _check(study, out, targets)
    return cost_of(study, request)


def cost_of(study: Study, request: Request) -> Cost:
    """What the runs of a study cost; at the speed of those in its folder, if there are any."""
    targets = _targets(study, request, request.data or pathlib.Path("data"))
    tuned = _all({key: settings for key, settings in targets.items() if len(settings) > 1})
    firsts = [next(iter(settings.values())) for settings in targets.values()]
    return study_cost.cost(
        list(tuned.values()),
        firsts * study.repeats,
        folder=_folder(study, request),
        jobs=request.jobs,
    )


def _folder(study: Study, request: Request) -> pathlib.Path:
    return request.folder.absolute().parent / "sweeps" / f"{study.name}-{request.scale}"


def _prepared(study: Study, request: Request) -> tuple[pathlib.Path, Targets]:
    """The sweep's folder, made if needed, and the settings for every line and target."""
    out = _folder(study, request)
    make_folder(out)
    return out, _targets(study, request, _data(study, request, out))


def _targets(study: Study, request: Request, data: pathlib.Path) -> Targets:
    if request.test_sentences is not None:
        fixed = {**study.fixed, "task_option.test_sentences": request.test_sentences}
        study = dataclasses.replace(study, fixed=fixed)
    targets: dict[tuple[str, float | None], dict[str, TrainConfig]] = {}
    for line, name, config in study.configs(data, _folder(study, request)):
        target = config.noise_multiplier if config.epsilon is None else config.epsilon
        targets.setdefault((line, target), {})[name] = config
    return targets


def _all(settings: Targets) -> dict[str, TrainConfig]:
    return {name: config for named in settings.values() for name, config in named.items()}


def _check(study: Study, out: pathlib.Path, targets: Targets) -> None:
    """Passes all runs through the checks before round 0; writes the mechanisms' files, which these
    read, after the quick ones.
    """

    def write_mechanisms() -> None:
        for stem in study.stems():
            if not (path := out / f"{stem}.npz").exists():
                study.mechanisms[stem]().save(path)

    configs = _all(targets)
    sweep.in_folder(out, configs)
    study_check.check_runs(configs, out, write_mechanisms)


def _merit(run: Run, study: Study) -> float:
    """The validation metric that settings are chosen by; a model that diverged is no best one."""
    value = validation_of(run, study.smoothed_over)
    return value if math.isfinite(value) else -math.inf


def check_data(request: Request) -> None:
    """Refuses training at the papers' size without the real file: ValueError."""
    if request.scale == "full" and request.data is None:
        raise ValueError(
            "data is missing: scale full trains on the real file, name it in "
            "--data, or take --scale small"
        )


def _data(study: Study, request: Request, out: pathlib.Path) -> pathlib.Path:
    """The real file, or the stand-in, which is written once."""
    check_data(request)
    if request.data is not None:
        return request.data
    suffix, write = study.data
    path = out / f"data{suffix}"
    if not path.exists():
        write(path)
    return path


def _trained(
    out: pathlib.Path,
    configs: Mapping[str, TrainConfig],
    study: Study,
    request: Request,
    *,
    before: Callable[[], None],
    test: bool,
) -> dict[str, Run]:
    """Name -> finished run.

    `before` is called if one has to train; `test` evaluates on the test split.
    """
    if not configs:
        return {}
    names = dict(zip(configs, sweep.in_folder(out, configs), strict=True))
    if any(sweep.state(out, there) != "finished" for there in names.values()):
        before()
    where: dict[str, Any] = {"jobs": request.jobs, "program": study.program, "test": test}
    failures = sweep.train_all(
        out, configs, noise_seed="os", progress=request.scale != "tiny", **where
    )
    if failures:
        name, failure = next(iter(failures.items()))
        raise ValueError(
            f"{len(failures)} of {len(configs)} runs in {out} failed, the first, "
            f"{name}: {failure.reason}"
        )
    return {
        name: _without_mechanism(Run.load(run_folder(out, there))) for name, there in names.items()
    }


def _without_mechanism(run: Run) -> Run:
    """The run without its matrix: those of hundreds of runs would fill the memory, and nothing here
    reads them.
    """
    return dataclasses.replace(run, mechanism=cast(Any, None))
