"""Command of a sweep, which trains the runs of a grid, several at a time, and writes a table,
figures and a report of them.

A run that dies ends no other run, and a finished run is never trained again. Only its owner can
read the sweep's folder:

  runs/NAME/     the folder of each run
  logs/NAME.txt  standard error of the run
  private/       noise seeds of the runs
  results.csv    a row for every finished run
  figure.png     validation over a rate or a privacy target
  best.png       the best settings over what was compared
  report/        `fedmf report` of the finished runs
"""

import contextlib
import dataclasses
import hashlib
import itertools
import os
import pathlib
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fedmf.files import write_atomically
from fedmf.reports import write_report_of_best
from fedmf.runs.config import TrainConfig
from fedmf.runs.folder import Run, RunFolder
from fedmf.sweeps import differences, figures, halving, results, total_budget
from fedmf.sweeps.folder import begun_runs, in_folder, num_rounds_done, state, writing
from fedmf.sweeps.runs import ClusterRuns, LocalRuns, Runs, log_file, prepare, run_folder
from fedmf.sweeps.total_budget import TotalBudget, total_epsilon_of
from fedmf.terminal import interrupts
from fedmf.terminal.progress_bar import bar

_POLL_SECONDS = 0.5
# Result of a sweep without finished runs.
_RESULT_WITHOUT_RUNS: dict[str, Any] = {
    "report": None,
    "results": None,
    "best": [],
    "differences": [],
    "together": "",
    "text": "",
}
# Exit status of `fedmf train` if its arguments are invalid, so that the run cannot begin.
BAD_ARGUMENTS = 2


class StoppedSweep(interrupts.Interrupted):
    """Error that is raised if Ctrl-C has ended a sweep, after its runs have saved their rounds."""


class Failure(NamedTuple):
    """Failure of a run, with the last line of its log and the exit status for `fedmf sweep`.

    The exit status is 2 for inputs that no run can begin with.
    """

    status: int
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Options that say how the runs of a sweep train.

    Attributes:
      noise_seed: "os" draws a seed for every new run; from a number every configuration gets
        another seed, the same in every sweep.
      halving: stop the worse half of the settings at some rounds; see `fedmf.sweeps.halving`.
      progress: draw a bar of all rounds, and print the state of each finished run, on standard
        error.
      jobs: number of runs at a time.
      threads: largest number of threads of a run; by default the processors are divided among the
        jobs, and on a cluster those of a job.
      cluster: address of a Ray cluster; None for processes of this machine.
      cpus_per_job: processors of a cluster that one run takes.
      test: evaluate on the test split at the end of a run.
      shares_processes: train one run after another in a process, which starts TensorFlow once. On a
        cluster each run has a process of its own.
    """

    noise_seed: int | str
    halving: bool = False
    progress: bool = False
    jobs: int = 1
    threads: int | None = None
    cluster: str | None = None
    cpus_per_job: int = 1
    test: bool = True
    shares_processes: bool = True

    def seed_of(self, config: TrainConfig) -> int | str:
        """Returns the noise seed of a run.

        Two configurations never have the same seed, since runs on the same data must not share
        noise.
        """
        if self.noise_seed == "os":
            return "os"
        seed_input = f"{self.noise_seed}\n{dataclasses.replace(config, data=None).to_json()}"
        return int.from_bytes(hashlib.sha256(seed_input.encode()).digest()[:16], "big")

    @contextlib.contextmanager
    def runs(self, out: pathlib.Path, options: Sequence[str]) -> Iterator[Runs]:
        """Yields the object that trains the sweep's runs on this machine or a cluster, with
        additional arguments of `fedmf train`.
        """
        all_options = list(options)
        if not self.test:
            all_options.append("--no-test")
        if self.cluster is None:
            get_affinity = getattr(os, "sched_getaffinity", None)
            num_processors = len(get_affinity(0)) if get_affinity else os.cpu_count() or 1
            num_threads = self.threads or max(1, num_processors // self.jobs)
            yield LocalRuns(
                out,
                ["--threads", str(num_threads), *all_options],
                shares_processes=self.shares_processes,
            )
            return
        from fedmf.training.execution.cluster import check_address, connected

        check_address(self.cluster, "fast")
        num_threads = self.threads or self.cpus_per_job
        all_options = ["--threads", str(num_threads), *all_options]
        with connected(self.cluster, None) as cluster:
            yield ClusterRuns(cluster, out, all_options, self.cpus_per_job)


def run_sweep(
    out: pathlib.Path,
    configs: Mapping[str, TrainConfig],
    options: SweepOptions,
    *,
    smoothed_over: int = 0,
) -> dict[str, Any]:
    """Trains all runs of a grid, and writes results.csv, the figures and report/ of the finished
    runs.

    Finished runs of earlier commands in the folder count as well. Arguments and errors are those of
    `train_all`; `smoothed_over` is that of `results.validation_of`, by which the best settings are
    chosen.

    Returns:
      {"report": path, "results": path, "best": a row for each compared value, "differences": a row
      for each two mechanisms, "together": the guarantee of all begun runs together, "text": all for
      people, "failed": run -> `Failure`};
      None and empty if no run is finished.
    """
    configs = in_folder(out, configs)
    failure_by_run = train_all(out, configs, options)
    return write_results(
        out,
        configs,
        failure_by_run,
        smoothed_over=smoothed_over,
        chosen_by="Halving" if options.halving else "",
    )


def write_results(
    out: pathlib.Path,
    names: Iterable[str],
    failures: Mapping[str, Failure],
    *,
    smoothed_over: int = 0,
    searched: Sequence[str] = (),
    chosen_by: str = "",
) -> dict[str, Any]:
    """Writes the result files of a sweep (see `run_sweep`), and returns its result.

    Args:
      out: the sweep's folder.
      names: the runs that come first.
      failures: failures from `train_all`.
      smoothed_over: see `run_sweep`.
      searched: fields whose values a search chose.
      chosen_by: the method that used results while runs were trained, such as "Halving".
    """
    failure_by_name = {name: failure._asdict() for name, failure in failures.items()}
    names = list(names)
    # The joint guarantee also covers runs that earlier commands trained in this folder.
    folder_names = sorted(path.name for path in (out / "runs").iterdir())
    names += [name for name in folder_names if name not in names]
    begun_run_list = begun_runs(run_folder(out, name) for name in names)
    finished = [run for run in begun_run_list if run.result is not None]
    if not finished:
        return _RESULT_WITHOUT_RUNS | {"failed": failure_by_name}
    stopped = results.stopped_by_data(begun_run_list)
    _write_figures(out, finished, smoothed_over, searched, stopped)
    best_settings = results.best_settings(finished, smoothed_over, searched, stopped=stopped)
    mechanism_differences = differences.mechanism_differences(best_settings, smoothed_over)
    report_path = write_report_of_best(
        finished,
        out / "report",
        title=f"fedmf sweep {out.name}",
        best=differences.compared_settings(best_settings),
    )
    joint_guarantee = _joint_guarantee(out, begun_run_list, chosen_by)
    total_epsilon = total_epsilon_of(TotalBudget.of(out))
    headline_metric = finished[0].plan["task"]["headline_metric"]
    texts = [
        results.best_table(
            finished, smoothed_over, searched, stopped=stopped, total_epsilon=total_epsilon
        ),
        differences.differences_text(headline_metric, mechanism_differences),
        joint_guarantee,
        f"open {report_path}",
    ]
    return {
        "report": str(report_path),
        "results": str(out / "results.csv"),
        "best": [setting.to_json() for setting in best_settings],
        "differences": [row.to_json() for row in mechanism_differences],
        "together": joint_guarantee,
        "text": "\n".join(filter(None, texts)),
        "failed": failure_by_name,
    }


def _joint_guarantee(out: pathlib.Path, runs: Sequence[Run], chosen_by: str) -> str:
    """Describes the guarantee of all begun runs together, and what it does not cover."""
    joint_guarantee = results.together(runs)
    budget = TotalBudget.of(out)
    if budget is not None:
        joint_guarantee = f"{budget.in_words()} {joint_guarantee}"
    if chosen_by:
        joint_guarantee += halving.uncovered_note(runs, chosen_by)
    return joint_guarantee


def _write_figures(
    out: pathlib.Path,
    finished: Sequence[Run],
    smoothed_over: int,
    searched: Sequence[str],
    stopped: Sequence[Run],
) -> None:
    """Writes results.csv and the figures of a sweep's finished runs."""
    total_epsilon = total_epsilon_of(TotalBudget.of(out))
    results_text = results.results_csv(
        finished, smoothed_over, stopped=stopped, total_epsilon=total_epsilon
    )
    for name, content in (
        ("results.csv", results_text),
        (
            "figure.png",
            figures.validation_figure(finished, smoothed_over, searched, stopped=stopped),
        ),
        ("best.png", figures.best_figure(finished, smoothed_over, searched, stopped=stopped)),
    ):
        if content is not None:
            write_atomically(out / name, content, mode=0o600)


def train_all(
    out: pathlib.Path, configs: Mapping[str, TrainConfig], options: SweepOptions
) -> dict[str, Failure]:
    """Trains all unfinished runs of a grid, and resumes those that were interrupted.

    Args:
      out: the sweep's folder; made if needed.
      configs: name -> configuration.
      options: options of the sweep.

    Returns:
      Run -> its failure; the other runs are finished, or stopped by halving. After a run that could
      not begin, no other begins.

    Raises:
      ValueError: see `in_folder` and `total_budget.reserve`; or the folder cannot be written to.
      StoppedSweep: Ctrl-C; every run that was training has saved its rounds.
    """
    configs = in_folder(out, configs)
    total_budget.reserve(out, configs)
    with writing(out):
        for name, config in configs.items():
            prepare(out, name, config, options.seed_of(config))

    def rounds_done(*names: str) -> int:
        """Returns the total number of rounds that these runs have done, by default of all runs."""
        return sum(num_rounds_done(run_folder(out, name)) for name in names or configs)

    total_rounds = sum(config.rounds for config in configs.values())
    if options.halving:
        total_rounds = halving.expected_rounds(configs)
    failures: dict[str, Failure] = {}
    with bar(
        total=max(total_rounds, rounds_done()),
        initial=rounds_done(),
        unit="round",
        desc="sweep",
        disable=not options.progress,
    ) as progress:

        def train(names: Iterable[str], *arguments: str) -> None:
            """Trains the runs with these names, with additional arguments of `fedmf train`."""
            can_begin = _until_one_cannot_begin(names, failures)
            for name in iter_finished_runs(out, can_begin, options, failures, arguments):
                progress.update(rounds_done() - progress.n)
                if name and options.progress:
                    progress.write(f"{name}: {outcome(out, name, failures)}", file=sys.stderr)

        remaining_configs = dict(configs)
        if options.halving:
            rungs_by_run = {name: halving.rungs(config) for name, config in configs.items()}
            for rung in sorted(set().union(*rungs_by_run.values())):
                compared_names = [name for name in remaining_configs if rung in rungs_by_run[name]]
                names_behind = [name for name in compared_names if rounds_done(name) < rung]
                train(names_behind, "--stop-after", str(rung))
                names = halving.runs_going_on(out, remaining_configs, rung)
                for name in remaining_configs.keys() - set(names):
                    if rounds_done(name) and state(out, name) != "finished":
                        # The folder records that validation metrics ended the run, since the number
                        # of its rounds then depends on data, unlike that of a plan.
                        RunFolder(run_folder(out, name)).mark_stopped_by_data(rounds_done(name))
                remaining_configs = {name: configs[name] for name in names}
                stopped_names = [name for name in configs if name not in remaining_configs]
                rounds_stopped = sum(rounds_done(name) for name in stopped_names)
                rounds_expected = halving.expected_rounds(remaining_configs, after=rung)
                progress.total = max(rounds_done(), rounds_stopped + rounds_expected)
                progress.refresh()
        unfinished_names = (name for name in remaining_configs if state(out, name) != "finished")
        train(name for name in unfinished_names if name not in failures)
    return failures


def outcome(out: pathlib.Path, name: str, failures: Mapping[str, Failure]) -> str:
    """Returns the outcome of a run that has ended, as text."""
    failure = failures.get(name)
    return f"failed: {failure.reason}" if failure else state(out, name)


def _until_one_cannot_begin(names: Iterable[str], failures: Mapping[str, Failure]) -> Iterator[str]:
    """Yields names of runs until a run could not begin, as then most likely no other run can."""
    for name in names:
        if any(failure.status == BAD_ARGUMENTS for failure in failures.values()):
            return
        yield name


def iter_finished_runs(
    out: pathlib.Path,
    names: Iterator[str],
    options: SweepOptions,
    failures: dict[str, Failure],
    arguments: Sequence[str] = (),
) -> Iterator[str]:
    """Trains prepared runs, several at a time, and records failed runs in `failures`.

    The next name is taken when its run can begin.

    Yields the name of each run that has ended, and "" while runs train.
    """
    first_name = next(names, None)
    if first_name is None:
        return
    names = itertools.chain([first_name], names)
    with options.runs(out, arguments) as runs, _stopped_together(runs):
        while True:
            while runs.under_way() < options.jobs:
                next_name = next(names, None)
                if next_name is None:
                    break
                runs.begin(next_name)
            if not runs.under_way():
                return
            time.sleep(_POLL_SECONDS)
            yield ""
            for name, status in runs.finished():
                if status:
                    exit_status = BAD_ARGUMENTS if status == BAD_ARGUMENTS else 1
                    failures[name] = Failure(exit_status, _reason(out, name, status))
                yield name


@contextlib.contextmanager
def _stopped_together(runs: Runs) -> Iterator[None]:
    """Stops the runs after Ctrl-C, and raises StoppedSweep when every run has saved its rounds.

    A second Ctrl-C ends the runs at once.
    """
    try:
        yield
    except KeyboardInterrupt:
        num_stopped = runs.under_way()
        runs.stop()
        stopped_runs = "1 run is" if num_stopped == 1 else f"{num_stopped} runs are"
        raise StoppedSweep(
            f"interrupted: {stopped_runs} stopped and saved: give the same command again to resume"
        ) from None
    finally:
        runs.end()


def _reason(out: pathlib.Path, name: str, status: int) -> str:
    """Returns why a run failed, from its log or the signal that ended it."""
    log_path = log_file(out, name)
    if status < 0:
        memory_hint = " (was there enough memory?)" if -status == signal.SIGKILL else ""
        return f"ended by signal {-status}{memory_hint}; see {log_path}"
    log_lines = [line for line in log_path.read_text(errors="replace").splitlines() if line.strip()]
    if log_lines:
        return log_lines[-1].removeprefix("fedmf: ").removeprefix("error: ")
    return f"exit status {status}; see {log_path}"
