"""Checks of a study's runs before any of them trains, and an estimate of their cost.

The checks are those that `federated.train` makes before its first round.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fedmf import tasks
from fedmf.mechanisms import Mechanism
from fedmf.reports.text import duration
from fedmf.runs.config import TrainConfig

# No check of this module reads these fields, which a configuration checks itself. So runs that
# differ only in them are checked once.
_UNCHECKED_FIELDS: dict[str, Any] = {
    "server_learning_rate": 1.0,
    "client_learning_rate": 1.0,
    "server_momentum": 0.0,
    "seed": 0,
}


def check_runs(
    configs: Mapping[str, TrainConfig], folder: pathlib.Path, write_mechanisms: Callable[[], None]
) -> None:
    """Checks that every run of a study can train with the clients of the real data.

    The checks are of the task, model, cohorts, mechanism and plan, and of the disk space for the
    run's noise.

    Args:
      configs: name -> configuration.
      folder: folder of the sweep, which must have room.
      write_mechanisms: writes the files of family=file. It is called after the check of all
        cohorts, since fits may take minutes.

    Raises:
      ValueError: names the first run that cannot train, and the number of those that cannot.
    """
    from fedmf.federated.task import Task
    from fedmf.training.checked_task import CheckedTask
    from fedmf.training.execution.base import RunOptions
    from fedmf.training.run_setup import new_run, run_controller
    from fedmf.training.task import SPLITS

    names_by_config: dict[TrainConfig, list[str]] = {}
    for name, config in configs.items():
        checked_config = dataclasses.replace(config, **_UNCHECKED_FIELDS)
        names_by_config.setdefault(checked_config, []).append(name)
    task_by_key: dict[str, CheckedTask] = {}
    mechanism_by_key: dict[tuple[Any, ...], Mechanism] = {}

    def task_of(config: TrainConfig) -> CheckedTask:
        """Returns the checked task of a run. Runs with the same data share it."""
        task_key = json.dumps([config.task, config.data, dict(config.task_options)])
        if task_key not in task_by_key:
            task = tasks.task_from_config(config, progress=False)
            assert isinstance(task, Task)
            # Nothing is trained here, so one model of each task suffices. The runs of a study read
            # the same clients first, so the examples of clients are cached.
            task = dataclasses.replace(
                task,
                build_model=functools.cache(task.build_model),
                client_examples=functools.lru_cache(2000)(task.client_examples),
            )
            # The size of the test split is checked when the task is made. Reading StackOverflow's
            # 16 million test sentences here would take hours.
            task_by_key[task_key] = CheckedTask.of(task, config, splits=SPLITS[:1])
        return task_by_key[task_key]

    def check_cohorts(config: TrainConfig) -> None:
        """Raises an error if the run's cohorts cannot be sampled."""
        checked_task = task_of(config)
        if config.sampling is None:
            run_controller(checked_task.num_clients, config)
        check_population(config, checked_task.num_clients)

    def check_plan(config: TrainConfig) -> None:
        """Raises an error if the run cannot begin with its plan."""
        task_key = (
            config.family,
            config.mechanism,
            config.bands,
            config.decoder,
            tuple(config.mechanism_options.items()),
            config.participation(),
        )
        if task_key not in mechanism_by_key:
            mechanism_by_key[task_key] = config.fit()
        new_run(
            task_of(config),
            config,
            folder,
            0,
            config.plan(mechanism_by_key[task_key]),
            RunOptions(test=False, progress=False),
        )

    _check_all(check_cohorts, names_by_config)
    write_mechanisms()
    _check_all(check_plan, names_by_config)


def check_population(config: TrainConfig, num_clients: int) -> None:
    """Checks that the data has as many training clients as a run claims.

    A run that simulates a larger cohort trains fewer clients than it claims, so that its own
    cohorts can be sampled from a file with too few clients.

    Raises:
      ValueError: there are fewer; the message has both numbers.
    """
    cohort_size = config.claimed_cohort or config.cohort_size
    participation = config.participation()
    # Cohorts of `min_sep` consecutive rounds have no client in common, and no client takes part in
    # more than `max_participations` rounds.
    needed_for_separation = cohort_size * participation.min_sep
    needed_for_rounds = -(-cohort_size * config.rounds // participation.max_participations)
    needed_clients = max(config.population or 0, needed_for_separation, needed_for_rounds)
    if num_clients < needed_clients:
        raise ValueError(
            f"the data has {num_clients:,} training clients and the claim needs "
            f"{needed_clients:,}: name the paper's data in --data"
        )


def _check_all(
    check: Callable[[TrainConfig], None], names_by_config: Mapping[TrainConfig, Sequence[str]]
) -> None:
    """Makes one check for all configurations, and raises a single error for all that fail."""
    failures: dict[str, str] = {}
    for config, names in names_by_config.items():
        try:
            check(config)
        except (TypeError, ValueError, OSError) as error:
            failures |= dict.fromkeys(names, str(error))
    if failures:
        name, reason = next(iter(failures.items()))
        num_settings = sum(map(len, names_by_config.values()))
        raise ValueError(
            f"{len(failures)} of {num_settings} settings cannot train, the first, {name}: "
            f"{reason}; none has begun"
        )


class Speed(NamedTuple):
    """Speed at which two cores train and evaluate the published model of a task, and sizes of the
    task's splits.

    `clients` and `examples` are the clients trained and the examples evaluated in a second.
    """

    clients: float
    examples: float
    validation: int
    test: int


# StackOverflow: the speed was measured with all sentences of its users, about 64, and lay between 7
# and 15 clients a second on different machines. Of the 16,586,035 sentences of the test split,
# 10,000 are for validation. CIFAR-10: the speed follows from 3.2 s of processor time for the 500
# images of a step. Evaluation takes 1% of a run, so its speed is an estimate.
SPEEDS = {
    "stackoverflow_nwp": Speed(clients=11.0, examples=920.0, validation=10_000, test=16_576_035),
    "cifar10": Speed(clients=300.0, examples=1000.0, validation=5_000, test=5_000),
}
# Smallest number of rounds from which the speed of training is measured.
_LEAST_ROUNDS = 10


class RunCost(NamedTuple):
    """Cost of one run.

    `clients` is the number of clients that the run trains, summed over rounds. `examples` is the
    number that it evaluates on the validation split, and on the test split if it is reported.
    """

    clients: int
    examples: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of all runs of a study.

    Attributes:
      tuning, repeats: runs that choose settings, and runs of the seeds that are reported, at most.
      clients_per_second, examples_per_second: speed of training and of evaluation.
      measured: whether the speed was measured by runs of the study on this machine, or on two cores
        elsewhere.
    """

    tuning: tuple[RunCost, ...]
    repeats: tuple[RunCost, ...]
    clients_per_second: float
    examples_per_second: float
    measured: bool

    @property
    def clients(self) -> int:
        """Number of clients trained in all runs, summed over rounds."""
        return sum(run.clients for run in (*self.tuning, *self.repeats))

    @property
    def examples(self) -> int:
        """Number of examples evaluated in all runs."""
        return sum(run.examples for run in (*self.tuning, *self.repeats))

    @property
    def seconds(self) -> float:
        """Time that all runs take one after the other, in seconds."""
        return self.seconds_on(1)

    def seconds_on(self, workers: int) -> float:
        """Returns the time that all runs take on `workers` machines like this one, each run on one
        machine.

        Runs that are reported begin when all runs that tune are finished. Either phase takes at
        least as long as its longest run.
        """
        total_seconds = 0.0
        for runs in (self.tuning, self.repeats):
            run_seconds = [
                run.clients / self.clients_per_second + run.examples / self.examples_per_second
                for run in runs
            ]
            total_seconds += max(sum(run_seconds) / workers, max(run_seconds, default=0.0))
        return total_seconds

    def __str__(self) -> str:
        num_days = self.seconds / 86_400
        time_text = f"{num_days:,.0f} days" if num_days >= 2 else duration(self.seconds)
        origin_text = "not measured here: of two cores"
        if self.measured:
            origin_text = "measured by the runs there are"
        return (
            f"{len(self.tuning)} runs to tune and {len(self.repeats)} to report train "
            f"{self.clients:,} clients and evaluate {self.examples:,} "
            f"examples: about {time_text} at {round(self.clients_per_second, 1):g} and "
            f"{round(self.examples_per_second):,} a second ({origin_text})"
        )


def cost(
    tuning: Sequence[TrainConfig],
    repeats: Sequence[TrainConfig],
    *,
    folder: pathlib.Path,
    jobs: int = 1,
) -> Cost:
    """Estimates the cost of runs with the published models.

    Args:
      tuning: configurations of the runs that are not evaluated on the test split.
      repeats: configurations of the other runs.
      folder: folder of the sweep, whose finished runs give the speed.
      jobs: number of runs at a time.
    """
    speed = SPEEDS[str((*tuning, *repeats)[0].task)]
    measured_speed = clients_per_second(folder)
    # If training is faster or slower by some factor than on the machine where SPEEDS were measured,
    # evaluation is assumed to be so by the same factor.
    speed_factor = 1.0 if measured_speed is None else measured_speed * jobs / speed.clients

    def run_cost(config: TrainConfig, *, test: bool) -> RunCost:
        """Returns the cost of one run."""
        # A run is validated every `evaluate_every` rounds, once after the last round, and once more
        # for the result.
        num_validations = -(-config.rounds // config.evaluate_every) + 1
        num_examples = num_validations * int(
            config.task_options.get("validation_sentences", speed.validation)
        )
        if test:
            num_examples += min(speed.test, config.task_options.get("test_sentences") or speed.test)
        return RunCost(config.rounds * config.cohort_size, num_examples)

    return Cost(
        tuning=tuple(run_cost(config, test=False) for config in tuning),
        repeats=tuple(run_cost(config, test=True) for config in repeats),
        clients_per_second=speed.clients * speed_factor,
        examples_per_second=speed.examples * speed_factor,
        measured=measured_speed is not None,
    )


def clients_per_second(folder: pathlib.Path) -> float | None:
    """Measures how many clients a run of the sweep trains in a second, or returns None after few
    rounds.

    Rounds with a validation do not count.
    """
    num_clients = 0.0
    num_seconds = 0.0
    num_rounds = 0
    for timings in (folder / "runs").glob("*/timings.jsonl"):
        round_rows = zip(_rows(timings.with_name("metrics.jsonl")), _rows(timings), strict=False)
        # The first round is left out, because TensorFlow traces its graphs in it.
        for row, timing in list(round_rows)[1:]:
            if "validation" not in row:
                num_clients += row["clients"]
                num_seconds += timing["seconds"]
                num_rounds += 1
    return num_clients / num_seconds if num_rounds >= _LEAST_ROUNDS and num_seconds else None


def _rows(path: pathlib.Path) -> list[dict[str, Any]]:
    """Reads the complete rows of a JSON lines file."""
    text_lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in text_lines if line.endswith("\n")]
