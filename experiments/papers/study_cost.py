"""What a study at the papers' size costs: clients that train, examples that are
evaluated, and days.
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from fedmf.reports.text import duration
from fedmf.runs.config import TrainConfig


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """Of a study.

    Attributes:
      tuning, repeats: runs of seed 0, and of the seeds that are reported, at most.
      clients: trained in all of them, summed over rounds.
      examples: evaluated, on the validation split in training and on the test split
        after the repeats.
      clients_per_second, examples_per_second: how fast.
      measured: whether by runs of the study on this machine, or on two cores elsewhere.
    """

    tuning: int
    repeats: int
    clients: int
    examples: int
    clients_per_second: float
    examples_per_second: float
    measured: bool

    @property
    def seconds(self) -> float:
        """How long all runs take."""
        return self.clients / self.clients_per_second + self.examples / self.examples_per_second

    def __str__(self) -> str:
        days = self.seconds / 86_400
        time = f"{days:,.0f} days" if days >= 2 else duration(self.seconds)
        where = (
            "measured by the runs there are" if self.measured else "not measured here: of two cores"
        )
        return (
            f"{self.tuning} runs to tune and {self.repeats} to report train {self.clients:,} "
            f"clients and evaluate {self.examples:,} "
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
    validated = sum(
        # every so many rounds, after the last, and for the result
        (-(-config.rounds // config.evaluate_every) + 1)
        * int(config.task_options.get("validation_sentences", speed.validation))
        for config in (*tuning, *repeats)
    )
    tested = sum(
        min(speed.test, config.task_options.get("test_sentences") or speed.test)
        for config in repeats
    )
    return Cost(
        tuning=len(tuning),
        repeats=len(repeats),
        clients=sum(config.rounds * config.cohort_size for config in (*tuning, *repeats)),
        examples=validated + tested,
        clients_per_second=speed.clients * factor,
        examples_per_second=speed.examples * factor,
        measured=measured is not None,
    )


def clients_per_second(folder: pathlib.Path) -> float | None:
    """Clients that one run of a sweep trains in a second, of the rounds without validation; None
    where few are done.
    """
    clients, seconds, rounds = 0.0, 0.0, 0
    for timings in (folder / "runs").glob("*/timings.jsonl"):
        rows = zip(_rows(timings.with_name("metrics.jsonl")), _rows(timings), strict=False)
        for row, timing in list(rows)[1:]:  # TensorFlow traces its graphs in the first
            if "validation" not in row:
                clients, seconds, rounds = (
                    clients + row["clients"],
                    seconds + timing["seconds"],
                    rounds + 1,
                )
    return clients / seconds if rounds >= _FEWEST_ROUNDS and seconds else None


def _rows(path: pathlib.Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in path.read_text().splitlines(keepends=True)
        if line.endswith("\n")
    ]
