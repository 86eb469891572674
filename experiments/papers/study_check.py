"""The checks of a study's runs before the first one trains: those that `federated.train` makes
before its first round. And what the runs cost.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fedmf import tasks
from fedmf.mechanisms import Mechanism
from fedmf.reports.text import duration
from fedmf.runs.config import TrainConfig

if TYPE_CHECKING:
    pass

# A configuration has checked its own values. No other check looks at these, so that runs which
# differ in them alone are checked as one.
_LOOKED_AT_BY_NONE: dict[str, Any] = {
    "server_learning_rate": 1.0,
    "client_learning_rate": 1.0,
    "server_momentum": 0.0,
    "seed": 0,
}


def check_runs(
    configs: Mapping[str, TrainConfig], folder: pathlib.Path, write_mechanisms: Callable[[], None]
) -> None:
    """Checks every run with the real data's clients: task, model, cohorts, mechanism, plan, and
    room for its noise.

    Args:
      configs: name -> configuration.
      folder: of the sweep, which has to have room.
      write_mechanisms: writes the files of family=file. It is called once all cohorts can be drawn:
        fits may take minutes.

    Raises:
      ValueError: naming the first run that cannot train, and how many cannot.
    """
    from fedmf.federated.task import Task
    from fedmf.training.checked_task import CheckedTask
    from fedmf.training.execution.base import RunOptions
    from fedmf.training.run_setup import new_run, run_controller
    from fedmf.training.task import SPLITS

    alike: dict[TrainConfig, list[str]] = {}
    for name, config in configs.items():
        alike.setdefault(dataclasses.replace(config, **_LOOKED_AT_BY_NONE), []).append(name)
    made: dict[str, CheckedTask] = {}
    fitted: dict[tuple[Any, ...], Mechanism] = {}

    def task_of(config: TrainConfig) -> CheckedTask:
        key = json.dumps([config.task, config.data, dict(config.task_options)])
        if key not in made:
            task = tasks.task_from_config(config, progress=False)
            assert isinstance(task, Task)
            # Nothing here trains the model, so that one of each task will do. Runs of one grid look
            # at the same clients first.
            task = dataclasses.replace(
                task,
                build_model=functools.cache(task.build_model),
                client_examples=functools.lru_cache(2000)(task.client_examples),
            )
            # The test split is counted when the task is made; reading StackOverflow's 16 million
            # sentences would take hours.
            made[key] = CheckedTask.of(task, config, splits=SPLITS[:1])
        return made[key]

    def draw(config: TrainConfig) -> None:
        checked = task_of(config)
        if config.sampling is None:
            run_controller(checked.num_clients, config)

    def plan(config: TrainConfig) -> None:
        key = (
            config.family,
            config.mechanism,
            config.bands,
            config.decoder,
            tuple(config.mechanism_options.items()),
            config.participation(),
        )
        if key not in fitted:
            fitted[key] = config.fit()
        new_run(
            task_of(config),
            config,
            folder,
            0,
            config.plan(fitted[key]),
            RunOptions(test=False, progress=False),
        )

    _of_all(draw, alike)
    write_mechanisms()
    _of_all(plan, alike)


def _of_all(
    check: Callable[[TrainConfig], None], alike: Mapping[TrainConfig, Sequence[str]]
) -> None:
    failures: dict[str, str] = {}
    for config, names in alike.items():
        try:
            check(config)
        except (TypeError, ValueError, OSError) as error:
            failures |= dict.fromkeys(names, str(error))
    if failures:
        name, reason = next(iter(failures.items()))
        total = sum(map(len, alike.values()))
        raise ValueError(
            f"{len(failures)} of {total} settings cannot train, the first, {name}: "
            f"{reason}; none has begun"
        )


class Speed(NamedTuple):
    """Of a task with the published model on two cores: clients trained and examples evaluated in a
    second; sizes of its splits.
    """

    clients: float
    examples: float
    validation: int
    test: int


# StackOverflow's as measured with all of its users' 64 sentences or so, between 7 and 15 clients on
# different machines. CIFAR-10's from processor time, 3.2 s for the 500 images of a step; its
# evaluation, 1% of a run, is an estimate. Of the 16,586,035 sentences of StackOverflow's test split
# 10,000 validate.
SPEEDS = {
    "stackoverflow_nwp": Speed(clients=11.0, examples=920.0, validation=10_000, test=16_576_035),
    "cifar10": Speed(clients=300.0, examples=1000.0, validation=5_000, test=5_000),
}
_FEWEST_ROUNDS = 10  # that a speed is measured by


class RunCost(NamedTuple):
    """Of a run: clients that it trains, summed over rounds, and examples that it evaluates, on the
    validation split in training and of those that are reported on the test split.
    """

    clients: int
    examples: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """Of a study.

    Attributes:
      tuning, repeats: runs of seed 0, and of the seeds that are reported, at most.
      clients_per_second, examples_per_second: how fast.
      measured: whether by runs of the study on this machine, or on two cores elsewhere.
    """

    tuning: tuple[RunCost, ...]
    repeats: tuple[RunCost, ...]
    clients_per_second: float
    examples_per_second: float
    measured: bool

    @property
    def clients(self) -> int:
        """Trained in all runs, summed over rounds."""
        return sum(run.clients for run in (*self.tuning, *self.repeats))

    @property
    def examples(self) -> int:
        """Evaluated in all runs."""
        return sum(run.examples for run in (*self.tuning, *self.repeats))

    @property
    def seconds(self) -> float:
        """How long all runs take, one after the other."""
        return self.seconds_on(1)

    def seconds_on(self, workers: int) -> float:
        """How long all runs take on so many machines like this one, each run on one of them: those
        that are reported begin when those that tune are done, and none is shorter than its longest.
        """
        seconds = 0.0
        for runs in (self.tuning, self.repeats):
            each = [
                run.clients / self.clients_per_second + run.examples / self.examples_per_second
                for run in runs
            ]
            seconds += max(sum(each) / workers, max(each, default=0.0))
        return seconds

    def __str__(self) -> str:
        days = self.seconds / 86_400
        time = f"{days:,.0f} days" if days >= 2 else duration(self.seconds)
        where = (
            "measured by the runs there are" if self.measured else "not measured here: of two cores"
        )
        return (
            f"{len(self.tuning)} runs to tune and {len(self.repeats)} to report train "
            f"{self.clients:,} clients and evaluate {self.examples:,} "
            f"examples: about {time} at {round(self.clients_per_second, 1):g} and "
            f"{round(self.examples_per_second):,} a second ({where})"
        )


def cost(
    tuning: Sequence[TrainConfig],
    repeats: Sequence[TrainConfig],
    *,
    folder: pathlib.Path,
    jobs: int = 1,
) -> Cost:
    """What these runs cost with the published models.

    Args:
      tuning: of the runs that leave out the test split.
      repeats: of the others.
      folder: of the sweep, whose runs are timed.
      jobs: runs at a time.
    """
    speed = SPEEDS[str((*tuning, *repeats)[0].task)]
    measured = clients_per_second(folder)
    # A machine that trains clients faster evaluates faster.
    factor = 1.0 if measured is None else measured * jobs / speed.clients

    def of_run(config: TrainConfig, *, test: bool) -> RunCost:
        # Every so many rounds, after the last, and for the result
        validations = -(-config.rounds // config.evaluate_every) + 1
        examples = validations * int(
            config.task_options.get("validation_sentences", speed.validation)
        )
        if test:
            examples += min(speed.test, config.task_options.get("test_sentences") or speed.test)
        return RunCost(config.rounds * config.cohort_size, examples)

    return Cost(
        tuning=tuple(of_run(config, test=False) for config in tuning),
        repeats=tuple(of_run(config, test=True) for config in repeats),
        clients_per_second=speed.clients * factor,
        examples_per_second=speed.examples * factor,
        measured=measured is not None,
    )


def clients_per_second(folder: pathlib.Path) -> float | None:
    """Clients that one run of a sweep trains in a second, of the rounds without validation; None
    where few are done.
    """
    clients = 0.0
    seconds = 0.0
    rounds = 0
    for timings in (folder / "runs").glob("*/timings.jsonl"):
        rows = zip(_rows(timings.with_name("metrics.jsonl")), _rows(timings), strict=False)
        for row, timing in list(rows)[1:]:  # TensorFlow traces its graphs in the first
            if "validation" not in row:
                clients += row["clients"]
                seconds += timing["seconds"]
                rounds += 1
    return clients / seconds if rounds >= _FEWEST_ROUNDS and seconds else None


def _rows(path: pathlib.Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in path.read_text().splitlines(keepends=True)
        if line.endswith("\n")
    ]
