"""`fedmf sweep`: the runs of a grid, each a `fedmf train`, several at a time; then a table, a
figure and a report of all.

A run that dies takes no other run with it, and one that is finished is never trained again. The
sweep's folder, for its owner alone:

  runs/NAME/     a run folder each
  logs/NAME.txt  what the run said on standard error
  private/       noise seeds of the runs
  results.csv    a row for every finished run
  figure.png     validation over a rate or a privacy target
  best.png       the best settings over what was compared
  report/        `fedmf report` of the finished runs
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import os
import pathlib
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fedmf.files import expanded, make_folder, write_atomically
from fedmf.mechanisms import load_mechanism
from fedmf.privacy.statement import mechanism_digest
from fedmf.reports import write_report
from fedmf.reports.labels import field_names
from fedmf.runs.config import TrainConfig, read_config_file
from fedmf.runs.folder import Run, RunFolder
from fedmf.sweeps import figures, grid, halving, results
from fedmf.sweeps.runs import ClusterRuns, LocalRuns, Runs, log_file, prepare, run_folder
from fedmf.terminal import interrupts
from fedmf.terminal.progress_bar import bar

_POLL_SECONDS = 0.5
BAD_ARGUMENTS = 2  # exit status of `fedmf train` for inputs that no run can begin with


class StoppedSweep(interrupts.Interrupted):
    """Ctrl-C has ended a sweep; its runs have saved what they had."""


class Failure(NamedTuple):
    """Why a run could not be finished: its last words, and the exit status for `fedmf sweep`, which
    is 2 for inputs that no run takes.
    """

    status: int
    reason: str


def state(out: pathlib.Path, name: str) -> str:
    """ "finished", "not begun", or how many rounds are done."""
    folder = run_folder(out, name)
    if (folder / "result.json").exists():
        return "finished"
    if not (folder / "config.json").exists():
        return "not begun"
    done = _num_rounds(folder)
    return f"{done} round{'' if done == 1 else 's'} done"


def _num_rounds(folder: pathlib.Path) -> int:
    metrics = folder / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def in_folder(out: pathlib.Path, configs: Mapping[str, TrainConfig]) -> dict[str, TrainConfig]:
    """The runs of a sweep, by the names that they have in its folder; where the data lies may have
    changed.

    Raises:
      ValueError: the folder holds a run that differs in what neither name says, or whose mechanism
        was another in a file of the same name.
    """
    present = {
        path.parent.name: TrainConfig.from_mapping(read_config_file(path), str(path))
        for path in sorted((out / "runs").glob("*/config.json"))
    }
    names = {}
    for name, config in configs.items():
        same = [
            other
            for other, there in present.items()
            if dataclasses.replace(there, data=config.data) == config
        ]
        for other, there in present.items():
            if name not in same or other == name:
                _check_beside(name, config, run_folder(out, other), there)
        # A run that an earlier command named otherwise, such as seed 0 before seeds varied, is not
        # trained twice.
        names[name if name in same or not same else same[0]] = config
    return names


def _check_beside(name: str, config: TrainConfig, folder: pathlib.Path, there: TrainConfig) -> None:
    """Refuses a run beside another one of the folder that is not of the same sweep."""
    may_differ = (
        {"data"} if name == folder.name else {"data"} | grid.named(name) | grid.named(folder.name)
    )
    for field in field_names([config, there]):
        mine = config.flat().get(field)
        theirs = there.flat().get(field)
        if field not in may_differ and mine != theirs and grid.taken(field, config, there):
            raise ValueError(
                f"{folder} holds a run with {field}={theirs}, and this sweep has {field}={mine}: "
                "name another folder, "
                f"or give the options of the sweep that is there, or vary {field}"
            )
    files = (
        [] if config.mechanism is None else [folder / "mechanism.npz", expanded(config.mechanism)]
    )
    if files and config.mechanism == there.mechanism and all(file.exists() for file in files):
        trained, current = (_digest_of(file, file.stat().st_mtime_ns) for file in files)
        if trained != current:
            raise ValueError(
                f"mechanism={config.mechanism} is not the one that {folder} was trained with: give "
                "the new one another name"
            )


@functools.lru_cache(maxsize=1024)
def _digest_of(path: pathlib.Path, modified: int) -> str:
    del modified  # tells a file from another one that was there before
    return mechanism_digest(load_mechanism(path))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """How the runs of a sweep train.

    Attributes:
      noise_seed: "os" draws one for every new run; from a number every configuration gets another
        one, the same in every sweep.
      halving: stop the worse half of the settings at some rounds; see `fedmf.sweeps.halving`.
      progress: draw a bar of all rounds, and say what each run reached, on standard error.
      jobs: runs at a time.
      threads: most threads of one run; by default the processors are divided among the jobs, and on
        a cluster those of a job.
      cluster: address of a Ray cluster; None for processes of this machine.
      cpus_per_job: processors of a cluster that one run takes.
      test: evaluate on the test split at the end of a run.
    """

    noise_seed: int | str
    halving: bool = False
    progress: bool = False
    jobs: int = 1
    threads: int | None = None
    cluster: str | None = None
    cpus_per_job: int = 1
    test: bool = True

    def seed_of(self, config: TrainConfig) -> int | str:
        """A noise seed, never the same for two configurations: runs on the same data must not share
        noise.
        """
        if self.noise_seed == "os":
            return "os"
        identity = f"{self.noise_seed}\n{dataclasses.replace(config, data=None).to_json()}"
        return int.from_bytes(hashlib.sha256(identity.encode()).digest()[:16], "big")

    @contextlib.contextmanager
    def runs(self, out: pathlib.Path, more: Sequence[str]) -> Iterator[Runs]:
        """The runs of a sweep, with more options of `fedmf train`."""
        more = [*more, *([] if self.test else ["--no-test"])]
        if self.cluster is None:
            affinity = getattr(os, "sched_getaffinity", None)
            processors = len(affinity(0)) if affinity else os.cpu_count() or 1
            threads = self.threads or max(1, processors // self.jobs)
            yield LocalRuns(out, ["--threads", str(threads), *more])
            return
        from fedmf.training.execution.cluster import check_address, connected

        check_address(self.cluster, "fast")
        options = ["--threads", str(self.threads or self.cpus_per_job), *more]
        with connected(self.cluster, None) as cluster:
            yield ClusterRuns(cluster, out, options, self.cpus_per_job)


def run_sweep(
    out: pathlib.Path,
    configs: Mapping[str, TrainConfig],
    training: Training,
    *,
    smoothed_over: int = 0,
) -> dict[str, Any]:
    """`train_all`, and results.csv, the figures and report/ of the finished runs in the folder,
    those of earlier commands too.

    Args and Raises: those of `train_all`. `smoothed_over` is that of `results.validation_of`, by
    which the best settings are chosen.

    Returns:
      {"report": path, "results": path, "best": a row for everything compared, "together": what all
      begun runs promise as one, "text": both for people, "failed": run -> `Failure`}; None and
      empty where no run is finished.
    """
    configs = in_folder(out, configs)
    failures = train_all(out, configs, training)
    return summary(
        out, configs, failures, smoothed_over=smoothed_over, chosen_by="Halving" * training.halving
    )


def summary(
    out: pathlib.Path,
    names: Iterable[str],
    failures: Mapping[str, Failure],
    *,
    smoothed_over: int = 0,
    searched: Sequence[str] = (),
    chosen_by: str = "",
) -> dict[str, Any]:
    """What `run_sweep` leaves and returns.

    Args:
      out: the sweep's folder.
      names: the runs that come first.
      failures: of `train_all`.
      smoothed_over: see `run_sweep`.
      searched: the fields that a search chose the values of.
      chosen_by: what looked at results while runs were trained, such as "Halving".
    """
    failed = {name: failure._asdict() for name, failure in failures.items()}
    names = list(names)
    # Those of earlier commands count as well.
    others = sorted(path.name for path in (out / "runs").iterdir() if path.name not in names)
    begun = begun_runs(run_folder(out, name) for name in (*names, *others))
    runs = [run for run in begun if run.result is not None]
    if not runs:
        nothing: dict[str, Any] = {
            "report": None,
            "results": None,
            "best": [],
            "together": "",
            "text": "",
        }
        return nothing | {"failed": failed}
    stopped = results.stopped_by_data(begun)
    for name, content in (
        ("results.csv", results.results_csv(runs, smoothed_over, stopped=stopped)),
        ("figure.png", figures.validation_figure(runs, smoothed_over, searched, stopped=stopped)),
        ("best.png", figures.best_figure(runs, smoothed_over, searched, stopped=stopped)),
    ):
        if content is not None:
            write_atomically(out / name, content, mode=0o600)
    report = write_report(runs, out / "report", title=f"fedmf sweep {out.name}")
    together = results.together(begun)
    if chosen_by:
        together += halving.uncovered_note(begun, chosen_by)
    best = results.best_settings(runs, smoothed_over, searched, stopped=stopped)
    table = results.best_table(runs, smoothed_over, searched, stopped=stopped)
    return {
        "report": str(report),
        "results": str(out / "results.csv"),
        "best": [dataclasses.asdict(one) for one in best],
        "together": together,
        "text": f"{table}\n{together}\nopen {report}",
        "failed": failed,
    }


def begun_runs(folders: Iterable[pathlib.Path]) -> list[Run]:
    """The runs that have released a round: finished, stopped, or cut by a crash, they have all
    trained on the clients.
    """
    return [
        Run.load(folder)
        for folder in folders
        if (folder / "result.json").exists() or RunFolder(folder).has_released()
    ]


def train_all(
    out: pathlib.Path, configs: Mapping[str, TrainConfig], training: Training
) -> dict[str, Failure]:
    """Trains what is not finished, and goes on with what was interrupted.

    Args:
      out: the sweep's folder; made if needed.
      configs: name -> configuration.
      training: how, and where.

    Returns:
      Run -> why it failed; the others are finished, or stopped by halving. After one that could not
      begin, none is begun.

    Raises:
      ValueError: see `in_folder`; or the folder cannot be written to.
      StoppedSweep: Ctrl-C; every run that was training has saved its rounds.
    """
    configs = in_folder(out, configs)
    with writing(out):
        for name, config in configs.items():
            prepare(out, name, config, training.seed_of(config))

    def done(*names: str) -> int:
        return sum(_num_rounds(run_folder(out, name)) for name in names or configs)

    total = sum(config.rounds for config in configs.values())
    if training.halving:
        total = halving.expected_rounds(configs)
    failures: dict[str, Failure] = {}
    with bar(
        total=max(total, done()),
        initial=done(),
        unit="round",
        desc="sweep",
        disable=not training.progress,
    ) as shown:

        def train(names: Iterable[str], *options: str) -> None:
            able = _until_one_cannot_begin(names, failures)
            for name in trained(out, able, training, failures, options):
                shown.update(done() - shown.n)
                if name and training.progress:
                    shown.write(f"{name}: {outcome(out, name, failures)}", file=sys.stderr)

        going_on = dict(configs)
        if training.halving:
            rungs_of = {name: halving.rungs(config) for name, config in configs.items()}
            for rung in sorted(set().union(*rungs_of.values())):
                compared = [name for name in going_on if rung in rungs_of[name]]
                train([name for name in compared if done(name) < rung], "--stop-after", str(rung))
                names = halving.runs_going_on(out, going_on, rung)
                for name in going_on.keys() - set(names):
                    if done(name) and state(out, name) != "finished":
                        # Validations decided on its end, which is not that of a shorter plan.
                        RunFolder(run_folder(out, name)).mark_stopped_by_data(done(name))
                going_on = {name: configs[name] for name in names}
                rounds_stopped = sum(done(name) for name in configs if name not in going_on)
                rounds_expected = halving.expected_rounds(going_on, after=rung)
                shown.total = max(done(), rounds_stopped + rounds_expected)
                shown.refresh()
        train(name for name in going_on if state(out, name) != "finished" and name not in failures)
    return failures


def outcome(out: pathlib.Path, name: str, failures: Mapping[str, Failure]) -> str:
    """What became of a run that is over."""
    failure = failures.get(name)
    return f"failed: {failure.reason}" if failure else state(out, name)


@contextlib.contextmanager
def writing(out: pathlib.Path) -> Iterator[None]:
    """Makes the folder of a sweep, and says what to do where that or the block cannot write."""
    try:
        for part in ("runs", "logs"):
            make_folder(out / part)
        yield
    except OSError as error:
        raise ValueError(
            f"cannot write to folder {out} ({error.strerror}): name a folder you may write to"
        ) from error


def _until_one_cannot_begin(names: Iterable[str], failures: Mapping[str, Failure]) -> Iterator[str]:
    for name in names:
        if any(failure.status == BAD_ARGUMENTS for failure in failures.values()):
            return  # most likely the others cannot either
        yield name


def trained(
    out: pathlib.Path,
    names: Iterator[str],
    training: Training,
    failures: dict[str, Failure],
    options: Sequence[str] = (),
) -> Iterator[str]:
    """Trains prepared runs, some at a time, and enters those that fail in `failures`.

    The next name is asked for when there is room for its run.

    Yields the name of each run that is over, and "" while they train.
    """
    first = next(names, None)
    if first is None:
        return
    names = itertools.chain([first], names)
    with training.runs(out, options) as runs, _stopped_together(runs):
        while True:
            while runs.under_way() < training.jobs and (name := next(names, None)) is not None:
                runs.begin(name)
            if not runs.under_way():
                return
            time.sleep(_POLL_SECONDS)
            yield ""
            for name, status in runs.finished():
                if status:
                    bad = status == BAD_ARGUMENTS
                    failures[name] = Failure(status if bad else 1, _reason(out, name, status))
                yield name


@contextlib.contextmanager
def _stopped_together(runs: Runs) -> Iterator[None]:
    """Passes Ctrl-C on to the runs, and raises StoppedSweep when every run has saved; a second
    Ctrl-C ends them at once.
    """
    try:
        yield
    except KeyboardInterrupt:
        stopped = runs.under_way()
        runs.stop()
        stopped_runs = f"{stopped} run{' is' if stopped == 1 else 's are'} stopped and saved"
        raise StoppedSweep(
            f"interrupted: {stopped_runs}: give the same command again to go on"
        ) from None
    finally:
        runs.end()


def _reason(out: pathlib.Path, name: str, status: int) -> str:
    log = log_file(out, name)
    if status < 0:
        memory = " (was there enough memory?)" if -status == signal.SIGKILL else ""
        return f"ended by signal {-status}{memory}; see {log}"
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    if lines:
        return lines[-1].removeprefix("fedmf: ").removeprefix("error: ")
    return f"exit status {status}; see {log}"
