"""Forecast of a private selection. The first rounds of a run are trained and deleted, to measure
the time of a trial, and to see whether trials can be trained as those before.
"""

import dataclasses
import math
import pathlib
import shutil
import time

from fedmf.privacy.plan import Plan
from fedmf.runs.folder import Run
from fedmf.sweeps import run as driver
from fedmf.sweeps.folder import writing
from fedmf.sweeps.runs import prepare, run_folder
from fedmf.sweeps.selection_space import CommonFacts, SelectionSpace, TaskFacts, plan_of

_FIRST_ROUNDS = "first_rounds"
# Number of rounds that are trained, to estimate the time of a trial.
_NUM_FIRST_ROUNDS = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast:
    """Guarantee and estimated cost of a private selection before its draw.

    Attributes:
      plan: plan of each trial, whose epsilon is that of the selection.
      quantiles: name of a quantile -> number of trials, as `TrialCount.quantiles`.
      seconds: name of a quantile -> time, about; None if it is not known.
      score: the value by which trials are compared, in words.
      common: facts that all trials must have in common; None if nothing was trained.
    """

    plan: Plan
    quantiles: dict[str, int]
    seconds: dict[str, float] | None
    score: str
    common: CommonFacts | None


def selection_forecast(
    out: pathlib.Path, space: SelectionSpace, options: driver.SweepOptions | None
) -> Forecast:
    """Returns the guarantee and the estimated cost of a private selection before its draw.

    The first rounds of a run are trained and thrown away, to measure their time and to see whether
    trials can begin.

    Args:
      out: folder of the selection.
      space: settings of the trials.
      options: options of the sweep; None to train nothing.

    Raises:
      ValueError: a run cannot begin, or its validation loss may depend on training clients.
    """
    quantiles = space.trials.quantiles()
    seconds = None
    common = None
    if options is not None:
        trial_seconds, common = train_first_rounds(out, space, options)
        seconds = {
            name: math.ceil(count / options.jobs) * trial_seconds
            for name, count in quantiles.items()
        }
    return Forecast(
        plan=plan_of(space.runs[0].config),
        quantiles=quantiles,
        seconds=seconds,
        score=space.score,
        common=common,
    )


def train_first_rounds(
    out: pathlib.Path, space: SelectionSpace, options: driver.SweepOptions
) -> tuple[float, CommonFacts]:
    """Trains the first rounds of a run of each task, and returns the estimated seconds of a trial,
    and the facts that all trials must have in common.

    Nothing of the rounds is kept.
    """
    folder = out / "private" / _FIRST_ROUNDS
    shutil.rmtree(folder, ignore_errors=True)
    config_by_name = {str(i): config for i, config in enumerate(space.single_runs())}
    trial_seconds = 0.0
    first_runs = []
    try:
        with writing(folder):
            for name, config in config_by_name.items():
                prepare(folder, name, config, "os")
        for name, config in config_by_name.items():
            failures: dict[str, driver.Failure] = {}
            start_time = time.perf_counter()
            num_rounds = min(_NUM_FIRST_ROUNDS, config.rounds)
            arguments = ["--stop-after", str(num_rounds)]
            for _ in driver.iter_finished_runs(folder, iter([name]), options, failures, arguments):
                pass
            if name in failures:
                raise _cannot_begin(failures[name])
            elapsed_seconds = time.perf_counter() - start_time
            first_run = Run.load(run_folder(folder, name))
            first_runs.append(first_run)
            round_seconds = [row["seconds"] for row in first_run.timings]
            further_rounds = config.rounds - num_rounds
            seconds = elapsed_seconds + further_rounds * min(round_seconds)
            trial_seconds = max(trial_seconds, seconds)
        space.check_tasks([TaskFacts.of(first_run) for first_run in first_runs])
        return trial_seconds, CommonFacts.of(first_runs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _cannot_begin(failure: driver.Failure) -> ValueError:
    """Returns the error of first rounds that failed. It repeats no text of an error in training,
    which may contain data.
    """
    reason = "train one setting with `fedmf train` to see why"
    if failure.status == driver.BAD_ARGUMENTS:
        reason = failure.reason
    return ValueError(
        f"the first rounds of a trial cannot be trained, so that this command draws nothing and "
        f"no trial counts as failed: {reason}"
    )
