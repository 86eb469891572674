"""A named grid of training runs: lines of a figure, what is tuned, seeds. It trains in a sweep's
folder.

The settings of a line are tuned on the validation set with seed 0, and the best goes on with seeds
1, 2, ..., which alone are reported. `fedmf report` reads the folder, and the same command goes on
in it.
"""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedmf.experiments.papers import study_check
from fedmf.experiments.papers.item import ITEMS, Outcome, Request, Scale
from fedmf.experiments.papers.study_check import Cost
from fedmf.files import make_folder
from fedmf.mechanisms import Mechanism
from fedmf.privacy.flat_config import families_taking
from fedmf.privacy.statement import mechanism_digest
from fedmf.reports.groups import final_metric, simulation_note
from fedmf.reports.text import duration
from fedmf.runs.config import TrainConfig
from fedmf.runs.folder import Run
from fedmf.sweeps import run as sweep
from fedmf.sweeps.grid import sweep_configs
from fedmf.sweeps.results import validation_of
from fedmf.sweeps.runs import run_folder

Fields = dict[str, Any]
_SEED_0 = "seed=0"  # how the name of a run that tunes ends


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """A grid.

    Attributes:
      name: of its sweep's folder, which figures of the same runs share.
      fixed: field of `TrainConfig` -> the value of every run.
      parts: (line of the figure, field -> value, or all that are tried) of the rest. A line may
        have several parts. `mechanism` has a key of `mechanisms`.
      repeats: seeds that are reported.
      data: writes a synthetic substitute to a path with this suffix, where no real file is given.
      reduced: what is smaller than in the paper.
      smoothed_over: rounds at the end whose validations are averaged to tune by.
      mechanisms: name -> what makes the file of family=file.
    """

    name: str
    fixed: Mapping[str, Any]
    parts: Sequence[tuple[str, Fields]]
    repeats: int
    data: tuple[str, Callable[[pathlib.Path], object]]
    reduced: str
    smoothed_over: int = 0
    mechanisms: Mapping[str, Callable[[], Mechanism]] = dataclasses.field(default_factory=dict)

    def configs(
        self, data: pathlib.Path, folder: pathlib.Path
    ) -> Iterator[tuple[str, str, TrainConfig]]:
        """(line, name of the run, its configuration), of every run with seed 0; lines may share a
        run.
        """
        fixed = {**self.fixed, "data": str(data)}
        for line, part in self.parts:
            fields = {name: v if isinstance(v, list | tuple) else [v] for name, v in part.items()}
            if "mechanism" in fields:
                fields["mechanism"] = [str(folder / f"{stem}.npz") for stem in fields["mechanism"]]
            families = set(fields.get("family", [fixed.get("family")]))
            own = {
                name: value
                for name, value in fixed.items()
                if name not in fields and families & set(families_taking(name))
            }
            for name, config in sweep_configs(own, {**fields, "seed": [0]}).items():
                yield line, name, config

    def stems(self) -> list[str]:
        """Names of the mechanisms that the parts use."""
        return list(dict.fromkeys(p["mechanism"] for _, p in self.parts if "mechanism" in p))


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """A study at every scale.

    Attributes:
      make: size -> study.
      sizes: scale -> size.
    """

    make: Callable[[Any], Study]
    sizes: Mapping[Scale, Any]

    def __call__(self, scale: Scale) -> Study:
        """The study at a scale."""
        return self.make(self.sizes[scale])


def sized(sizes: Mapping[Any, Any], **own: Any) -> Callable[[Callable[[Any], Study]], Grid]:
    """A study at these sizes; `own` is what its scale small has otherwise."""
    small = dataclasses.replace(sizes["small"], **own)
    return lambda make: Grid(make, {**sizes, "small": small})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """What one line came to at one privacy target.

    Attributes:
      line: its name.
      target: epsilon or, where that is what the study fixes, the noise multiplier; None without
        noise.
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
        """The task's metric on the test set, float64 (seeds,); 0 of a model that is no longer
        finite.
        """
        found = [final_metric(run, "test") for run in self.runs]
        return np.array([0.0 if x is None or not math.isfinite(x) else x for x in found])


Judge = Callable[[Sequence[Score], Any], Outcome]


def trained(grid: Grid, *names: str) -> Callable[[Judge], Judge]:
    """Declares that a function makes these items of the catalogue of the scores of a grid and of
    its size.
    """

    def declare(judge: Judge) -> Judge:
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
    """Trains what is not trained yet, and judges it."""
    study = grid(request.scale)
    size = grid.sizes[request.scale]
    scores = run_study(study, request)
    limit = request.test_sentences
    less = []
    if limit:
        less.append(f"the first {limit:,} test sentences")
    if request.scale != "full":
        runs = {run.path: run for score in scores for run in (*score.tried, *score.runs)}
        seconds = sum(float((run.result or {})["seconds"]) for run in runs.values())
        cost = f"{len(runs)} runs, which trained for {duration(seconds)} in all"
        less = [study.reduced, *less, cost]
    return dataclasses.replace(
        judge(scores, size),
        reduced="; ".join(less),
        seeds=tuple(range(len(scores[0].runs) + 1)),
        note=simulation_note([run for score in scores for run in score.runs]),
    )


class Key(NamedTuple):
    """A line at a privacy target."""

    line: str
    target: float | None


Targets = Mapping[Key, Mapping[str, TrainConfig]]


def run_study(study: Study, request: Request) -> list[Score]:
    """Trains what is not trained yet; a score for every line and target, in the study's order.

    No run begins before all have passed the checks that training makes before its first round. Runs
    that tune leave out the test split.

    Raises:
      ValueError: scale "full" without data; a run that cannot train; or a run failed.
    """
    out, targets = _prepared(study, request)
    check = functools.cache(functools.partial(_check, study, out, targets))
    tuning = _trained(out, _tuned(targets), request, check, test=False)
    best: dict[Key, str] = {}
    repeats: dict[Key, dict[str, TrainConfig]] = {}
    for key, settings in targets.items():
        name = max(
            settings, key=lambda name: _merit(tuning[name], study) if name in tuning else 0.0
        )
        best[key] = name
        repeats[key] = {
            f"{name.removesuffix(_SEED_0)}seed={seed}": dataclasses.replace(
                settings[name], seed=seed
            )
            for seed in range(1, study.repeats + 1)
        }
    runs = _trained(out, _all(repeats), request, check, test=True)
    scores = []
    for key, names in repeats.items():
        settings = targets[key]
        own = tuple(runs[name] for name in names)
        config = settings[best[key]]
        # A plan's own is below its target by a rounding error, and another one's by another.
        epsilon = config.epsilon or own[0].plan["epsilon"] or math.inf
        tried = tuple(tuning[name] for name in settings if name in tuning)
        scores.append(Score(**key._asdict(), epsilon=epsilon, best=config, runs=own, tried=tried))
    return scores


def finished(study: Study, request: Request) -> Iterator[tuple[str, TrainConfig, list[Run]]]:
    """(line, setting, its finished runs: of seed 0, and of the seeds that are reported) of the
    settings that `run_study` has trained; it trains nothing.
    """
    out = _folder(study, request)
    for line, name, config in study.configs(request.data or pathlib.Path("data"), out):
        seeds = [f"{name.removesuffix(_SEED_0)}seed={i}" for i in range(study.repeats + 1)]
        done = [seed for seed in seeds if sweep.state(out, seed) == "finished"]
        if done:
            yield line, config, [Run.load(run_folder(out, seed)) for seed in done]


def dry_run(study: Study, request: Request) -> Cost:
    """The checks of `run_study`, and what it will cost.

    Trains nothing; fits and a synthetic substitute for the data stay, for the run.

    Raises:
      ValueError: scale "full" without data; or a run that cannot train.
    """
    out, targets = _prepared(study, request)
    _check(study, out, targets)
    return _cost(study, request, targets)


def cost_of(study: Study, request: Request) -> Cost:
    """What the runs of a study cost; at the speed of those in its folder, if there are any."""
    return _cost(study, request, _targets(study, request, request.data or pathlib.Path("data")))


def _cost(study: Study, request: Request, targets: Targets) -> Cost:
    return study_check.cost(
        list(_tuned(targets).values()),
        [next(iter(settings.values())) for settings in targets.values()] * study.repeats,
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
    targets: dict[Key, dict[str, TrainConfig]] = {}
    for line, name, config in study.configs(data, _folder(study, request)):
        target = config.noise_multiplier if config.epsilon is None else config.epsilon
        targets.setdefault(Key(line, target), {})[name] = config
    return targets


def _all(targets: Targets) -> dict[str, TrainConfig]:
    return {name: config for named in targets.values() for name, config in named.items()}


def _tuned(targets: Targets) -> dict[str, TrainConfig]:
    """The runs among which one is chosen."""
    return _all({key: settings for key, settings in targets.items() if len(settings) > 1})


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
            "data is missing: scale full trains on the real file, name it in --data, or take "
            "--scale small"
        )


def _data(study: Study, request: Request, out: pathlib.Path) -> pathlib.Path:
    """The real file, or the substitute, which is written once."""
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
    request: Request,
    check: Callable[[], None],
    *,
    test: bool,
) -> dict[str, Run]:
    """Returns the finished run of each name; runs of the same mechanism share one object of it.

    `check` is called if one has to train; `test` evaluates on the test split.
    """
    if not configs:
        return {}
    names = dict(zip(configs, sweep.in_folder(out, configs), strict=True))
    if any(sweep.state(out, there) != "finished" for there in names.values()):
        check()
    training = sweep.Training(
        noise_seed="os",
        jobs=request.jobs,
        cluster=request.cluster,
        test=test,
        progress=request.scale != "tiny",
    )
    for name, failure in sweep.train_all(out, configs, training).items():
        raise ValueError(f"run {name} in {out} failed: {failure.reason}")
    # Many runs have the same mechanism, of which a dense one takes 34 MB.
    mechanism_by_digest: dict[str, Mechanism] = {}
    runs: dict[str, Run] = {}
    for name, there in names.items():
        run = Run.load(run_folder(out, there))
        digest = mechanism_digest(run.mechanism)
        shared = mechanism_by_digest.setdefault(digest, run.mechanism)
        runs[name] = dataclasses.replace(run, mechanism=shared)
    return runs
