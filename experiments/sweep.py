"""`fedmf sweep`: the runs of a grid, each a `fedmf train` of its own, several at a time; then a table, a figure and a report of all.

A run that dies takes no other with it, and one that is finished is never trained again. The sweep's folder:

  runs/NAME/     a run folder each
  logs/NAME.txt  what the run said on standard error
  results.csv    a row for every finished run
  figure.png     validation over a rate or a privacy target; best.png: the best settings over what was compared
  report/        `fedmf report` of the finished runs
"""

import contextlib
import dataclasses
import functools
import hashlib
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedmf.experiments import sweep_figures, sweep_grid, sweep_results
from fedmf.files import write_atomically
from fedmf.mechanisms import load_mechanism
from fedmf.privacy.statement import mechanism_digest
from fedmf.reports import write_report
from fedmf.runs.config import TrainConfig, config_from_mapping, read_config_file
from fedmf.runs.folder import Run
from fedmf.terminal.progress_bar import bar

# What trains one run, without its arguments.
PROGRAM = (sys.executable, "-c", "from fedmf.cli import main; main()")
_POLL_SECONDS = 0.5
_BAD_ARGUMENTS = 2  # exit status of `fedmf train` for inputs that no run can begin with


class StoppedSweep(Exception):
    """Ctrl-C has ended a sweep; its runs have saved what they had."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a run could not be finished.

    Attributes:
      status: what `fedmf sweep` ends with: 2 where no run could begin with these inputs, else 1.
      reason: what the run said last.
    """

    status: int
    reason: str


def in_folder(out: pathlib.Path, configs: Mapping[str, TrainConfig]) -> dict[str, TrainConfig]:
    """The runs of a sweep, by the names that they have in its folder; where the data lies may have changed.

    Raises:
      ValueError: the folder holds a run that differs in what neither name says, or whose mechanism was another in a file of the same
        name; or execution is tff-remote.
    """
    held = {}
    for path in sorted((out / "runs").glob("*/config.json")):
        held[path.parent.name] = config_from_mapping(read_config_file(path), str(path))
    found = {}
    for name, config in configs.items():
        if config.execution == "tff-remote":
            raise ValueError(
                "execution=tff-remote has workers that runs cannot share: use `fedmf train` for it, or another execution"
            )
        same = [there for there, other in held.items() if dataclasses.replace(other, data=config.data) == config]
        for there, other in held.items():
            if name not in same or there == name:
                _check_beside(out, name, config, there, other)
        # A run that an earlier command named otherwise, such as seed 0 before seeds varied, is not trained twice.
        found[name if name in same or not same else same[0]] = config
    return found


def _check_beside(out: pathlib.Path, name: str, config: TrainConfig, there: str, other: TrainConfig) -> None:
    """Refuses a run beside another one of the folder that is not of the same sweep."""
    said = set() if name == there else sweep_grid.named(name) | sweep_grid.named(there)
    for field in dataclasses.fields(config):
        mine, others = getattr(config, field.name), getattr(other, field.name)
        if field.name in {"data", *said} or mine == others or not sweep_grid.taken(field.name, config, other):
            continue
        raise ValueError(
            f"{run_folder(out, there)} holds a run with {field.name}={others}, and this sweep has {field.name}={mine}: name another folder "
            f"in --out, or give the options of the sweep that is there, or vary {field.name}"
        )
    if config.mechanism is None or config.mechanism != other.mechanism:
        return
    kept, given = run_folder(out, there) / "mechanism.npz", pathlib.Path(config.mechanism)
    if (
        kept.exists()
        and given.exists()
        and _digest_of(kept, kept.stat().st_mtime_ns) != _digest_of(given, given.stat().st_mtime_ns)
    ):
        raise ValueError(
            f"mechanism={config.mechanism} is not the one that {run_folder(out, there)} was trained with: give the new one another name"
        )


@functools.lru_cache(maxsize=1024)
def _digest_of(path: pathlib.Path, written: int) -> str:
    del written  # tells a file from another one that was there before
    return mechanism_digest(load_mechanism(path))


def run_sweep(
    out: pathlib.Path,
    configs: Mapping[str, TrainConfig],
    *,
    noise_seed: int | str,
    jobs: int = 1,
    threads: int | None = None,
    progress: bool = False,
    smoothed_over: int = 0,
) -> dict[str, Any]:
    """`train_all`, and results.csv, the figures and report/ of the finished runs in the folder, those of earlier commands too.

    Args and Raises: those of `train_all`. `smoothed_over` is of `sweep_results.validation_of`, by which the best settings are chosen.

    Returns:
      {"report": path, "results": path, "best": a row for everything compared, "together": what all begun runs promise as one, "text": both
      for people, "failed": run -> `Failure`}; None and empty where no run is finished.
    """
    configs = in_folder(out, configs)
    failed = train_all(out, configs, noise_seed=noise_seed, jobs=jobs, threads=threads, progress=progress)
    found: dict[str, Any] = {"report": None, "results": None, "best": [], "together": "", "text": ""}
    # Those of earlier commands count as well, and those that are not finished: they trained on the same clients.
    others = sorted(path.name for path in (out / "runs").iterdir() if path.name not in configs)
    begun = [Run.load(run_folder(out, name)) for name in (*configs, *others) if _has_trained(out, name)]
    runs = [run for run in begun if run.result is not None]
    if runs:
        write_atomically(out / "results.csv", sweep_results.results_csv(runs, smoothed_over))
        for name, drawn in (
            ("figure.png", sweep_figures.validation_figure(runs, smoothed_over)),
            ("best.png", sweep_figures.best_figure(runs, smoothed_over)),
        ):
            if drawn is not None:
                write_atomically(out / name, drawn)
        found["report"] = str(write_report(runs, out / "report", title=f"fedmf sweep {out.name}"))
        found["results"] = str(out / "results.csv")
        found["best"] = [dataclasses.asdict(best) for best in sweep_results.best_settings(runs, smoothed_over)]
        found["together"] = sweep_results.together(begun)
        found["text"] = f"{sweep_results.best_table(runs, smoothed_over)}\n{found['together']}\nopen {found['report']}"
    return found | {"failed": {name: dataclasses.asdict(failure) for name, failure in failed.items()}}


def run_folder(out: pathlib.Path, name: str) -> pathlib.Path:
    """Of the run of this name."""
    return out / "runs" / name


def state(out: pathlib.Path, name: str) -> str:
    """ "finished", "not begun", or how many rounds are done."""
    folder = run_folder(out, name)
    if (folder / "result.json").exists():
        return "finished"
    if not (folder / "config.json").exists():
        return "not begun"
    done = _rounds_done(folder)
    return f"{done} round{'' if done == 1 else 's'} done"


def _has_trained(out: pathlib.Path, name: str) -> bool:
    return state(out, name) == "finished" or _rounds_done(run_folder(out, name)) > 0


def train_all(
    out: pathlib.Path,
    configs: Mapping[str, TrainConfig],
    *,
    noise_seed: int | str,
    jobs: int = 1,
    threads: int | None = None,
    progress: bool = False,
) -> dict[str, Failure]:
    """Trains what is not finished, and goes on with what was interrupted.

    Args:
      out: the sweep's folder; made if needed.
      configs: name -> configuration.
      noise_seed: "os" draws one for every new run; from a number every configuration gets another one, the same in every sweep.
      jobs: runs at a time.
      threads: most threads of one run; by default the processors are divided among the jobs.
      progress: draw a bar of all rounds, and say what each run reached, on standard error.

    Returns:
      Run -> why it failed; the others are finished. After one that could not begin, none is begun.

    Raises:
      ValueError: see `in_folder`; or the folder cannot be written to.
      StoppedSweep: Ctrl-C; every run that was training has saved its rounds.
    """
    configs = in_folder(out, configs)
    try:
        for part in ("runs", "logs"):
            (out / part).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write to folder {out} ({error.strerror}): name a folder you may write to") from error
    each = threads or max(1, _processors() // jobs)
    waiting = [name for name in configs if state(out, name) != "finished"]
    running: dict[str, subprocess.Popen[bytes]] = {}
    failures: dict[str, Failure] = {}
    shown = _Rounds(out, configs, enabled=progress)
    with shown, _stopped_together(running):
        while running or waiting:
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                running[name] = _begin(out, name, configs[name], noise_seed, each)
            time.sleep(_POLL_SECONDS)
            shown.update(tuple(running), sum(state(out, name) == "finished" for name in configs))
            for name in [name for name, process in running.items() if process.poll() is not None]:
                status = running.pop(name).returncode
                if status == 0:
                    shown.say(f"{name}: finished")
                    continue
                bad = status == _BAD_ARGUMENTS
                failures[name] = Failure(status=_BAD_ARGUMENTS if bad else 1, reason=_reason(out, name, status))
                shown.say(f"{name}: failed: {failures[name].reason}")
                if bad:  # most likely the others' as well
                    waiting.clear()
    return failures


def _begin(
    out: pathlib.Path, name: str, config: TrainConfig, noise_seed: int | str, threads: int
) -> "subprocess.Popen[bytes]":
    folder, logs = run_folder(out, name), out / "logs"
    arguments = ["train", "--quiet", "--out", str(folder), "--threads", str(threads)]
    if (folder / "config.json").exists():
        arguments += ["--resume"] + (["--data", config.data] if config.data is not None else [])
    else:
        asked = logs / f"{name}.json"
        write_atomically(asked, config.to_json())
        arguments += ["--config", str(asked), "--noise-seed", str(_seed_of(noise_seed, config))]
    with (logs / f"{name}.txt").open("ab") as log:
        # In a session of its own, so that a terminal's Ctrl-C reaches it once: from here.
        return subprocess.Popen(
            [*PROGRAM, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def _seed_of(noise_seed: int | str, config: TrainConfig) -> int | str:
    """Never the same for two configurations: runs on the same data must not share noise."""
    if noise_seed == "os":
        return "os"
    identity = dataclasses.replace(config, data=None).to_json()
    return int.from_bytes(hashlib.sha256(f"{noise_seed}\n{identity}".encode()).digest()[:16], "big")


@contextlib.contextmanager
def _stopped_together(running: dict[str, "subprocess.Popen[bytes]"]) -> Iterator[None]:
    """Ctrl-C inside is passed on, and raised as StoppedSweep when every run has saved; a second one ends them at once."""
    try:
        yield
    except KeyboardInterrupt:
        stopped = len(running)
        for process in running.values():
            process.send_signal(signal.SIGINT)
        for process in running.values():
            process.wait()
        raise StoppedSweep(f"{stopped} run{' is' if stopped == 1 else 's are'} stopped and saved") from None
    finally:
        for process in running.values():
            if process.poll() is None:
                process.kill()


def _reason(out: pathlib.Path, name: str, status: int) -> str:
    log = out / "logs" / f"{name}.txt"
    if status < 0:
        return (
            f"ended by signal {-status}{' (was there enough memory?)' if -status == signal.SIGKILL else ''}; see {log}"
        )
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("fedmf: ").removeprefix("error: ") if lines else f"exit status {status}; see {log}"


def _rounds_done(folder: pathlib.Path) -> int:
    with contextlib.suppress(OSError):
        return (folder / "metrics.jsonl").read_bytes().count(b"\n")
    return 0


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Rounds:
    """The bar of all rounds of all runs, read from their folders."""

    def __init__(self, out: pathlib.Path, configs: Mapping[str, TrainConfig], *, enabled: bool) -> None:
        self._out, self._configs, self._enabled = out, configs, enabled
        self._done = {name: _rounds_done(run_folder(out, name)) for name in configs}
        self._began, self._clients = time.monotonic(), 0
        total = sum(config.rounds for config in configs.values())
        self._bar = bar(total=total, initial=sum(self._done.values()), unit="round", desc="sweep", disable=not enabled)

    def __enter__(self) -> "_Rounds":
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def say(self, line: str) -> None:
        """Above the bar."""
        if self._enabled:
            self._bar.write(line, file=sys.stderr)

    def update(self, training: Sequence[str], finished: int) -> None:
        """Reads what these runs have done since; one that resumes begins at its last checkpoint, behind where it was."""
        for name in training:
            done = _rounds_done(run_folder(self._out, name))
            self._clients += max(0, done - self._done[name]) * self._configs[name].cohort_size
            self._done[name] = done
        speed = self._clients / (time.monotonic() - self._began)
        said = {"runs": f"{finished}/{len(self._configs)}", "clients/s": f"{speed:.1f}"}
        self._bar.set_postfix(said, refresh=False)
        self._bar.update(sum(self._done.values()) - self._bar.n)
