"""Runs of a sweep, in processes of this machine or on a Ray cluster whose machines share the
sweep's folder.
"""

import os
import pathlib
import signal
import time
from typing import TYPE_CHECKING, Any

from fedmf.files import append_privately, make_folder, write_atomically
from fedmf.runs.config import TrainConfig, read_config_file
from fedmf.sweeps import job

if TYPE_CHECKING:
    from fedmf.training.execution.cluster import Cluster

_POLL_SECONDS = 0.5


def run_folder(out: pathlib.Path, name: str) -> pathlib.Path:
    """Returns the folder of one run of a sweep."""
    return out / "runs" / name


def log_file(out: pathlib.Path, name: str) -> pathlib.Path:
    """Returns the path of the file with a run's standard error."""
    return out / "logs" / f"{name}.txt"


def prepare(out: pathlib.Path, name: str, config: TrainConfig, noise_seed: int | str) -> None:
    """Writes the files that a run needs to begin, which are its configuration and a private file
    with its noise seed.

    The seed reaches another machine only through the shared folder.
    """
    config_path = out / "logs" / f"{name}.json"
    seed_path = out / "private" / f"{name}.seed"
    for path in (config_path, seed_path):
        make_folder(path.parent)
    write_atomically(config_path, config.to_json())
    write_atomically(seed_path, str(noise_seed), mode=0o600)


def request(out: pathlib.Path, name: str, options: list[str]) -> dict[str, Any]:
    """Returns the arguments of `job.Job.begin` with which a run begins or resumes."""
    folder_of_run = run_folder(out, name)
    config_path = out / "logs" / f"{name}.json"
    train_arguments = ["train", "--quiet", "--out", str(folder_of_run), *options]
    if (folder_of_run / "config.json").exists():
        data_path = TrainConfig.from_mapping(read_config_file(config_path), str(config_path)).data
        train_arguments.append("--resume")
        if data_path is not None:
            train_arguments += ["--data", data_path]
    else:
        train_arguments += [
            "--config",
            str(config_path),
            "--noise-seed",
            (out / "private" / f"{name}.seed").read_text(),
        ]
    return {"arguments": train_arguments, "log": str(log_file(out, name))}


class LocalRuns:
    """Runs in worker processes of this machine.

    Args:
      out: the sweep's folder.
      options: additional arguments of `fedmf train`.
      shares_processes: whether a process trains one run after another, in place of a single one.
    """

    def __init__(
        self, out: pathlib.Path, options: list[str], *, shares_processes: bool = True
    ) -> None:
        self._out = out
        self._options = options
        self._shares_processes = shares_processes
        self._running: dict[str, job.Job] = {}
        self._idle: list[job.Job] = []

    def begin(self, name: str) -> None:
        """Begins or resumes a prepared run."""
        self._running[name] = self._idle.pop() if self._idle else job.Job(job.PROGRAM)
        self._running[name].begin(**request(self._out, name, self._options))

    def finished(self) -> list[tuple[str, int]]:
        """Returns the runs that have ended since the last call, with their exit statuses.

        A status is negative if the process died of that signal.
        """
        statuses = {name: running.status() for name, running in self._running.items()}
        ended_statuses = [(name, status) for name, status in statuses.items() if status is not None]
        for name, _ in ended_statuses:
            idle_job = self._running.pop(name)
            if not self._shares_processes:
                idle_job.end()
            elif idle_job.process.poll() is None:
                self._idle.append(idle_job)
        return ended_statuses

    def under_way(self) -> int:
        """Returns the number of runs that have not ended."""
        return len(self._running)

    def stop(self) -> None:
        """Asks all runs to save their rounds, and waits until they have."""
        for running in self._running.values():
            running.process.send_signal(signal.SIGINT)
        for running in self._running.values():
            running.process.wait()

    def end(self) -> None:
        """Kills all worker processes."""
        for process_job in (*self._running.values(), *self._idle):
            process_job.end()


class ClusterRuns:
    """Runs on the machines of a Ray cluster.

    A run whose machine is lost resumes elsewhere, from its journal in the shared folder.

    Args:
      cluster: a connected cluster.
      out: the sweep's folder, at the same path on all machines.
      options: additional arguments of `fedmf train`.
      cpus: number of processors of a run.

    Raises:
      ValueError: no machine has so many processors.
    """

    def __init__(
        self, cluster: "Cluster", out: pathlib.Path, options: list[str], cpus: int
    ) -> None:
        if cluster.max_cpus() < cpus:
            raise ValueError(
                f"cpus_per_job={cpus}: the largest machine of cluster {cluster.address} has "
                f"{cluster.max_cpus()} processors, ask for fewer"
            )
        self._cluster = cluster
        self._out = out.absolute()
        self._options = options
        self._train = cluster.function("fedmf.sweeps.runs:train_there", cpus)
        self._running: dict[str, Any] = {}

    def begin(self, name: str) -> None:
        """Begins or resumes a prepared run on a machine of the cluster."""
        self._running[name] = self._train(str(self._out), name, self._options)

    def finished(self) -> list[tuple[str, int]]:
        """Returns the runs that have ended since the last call, with their exit statuses."""
        ended_names = [name for name, call in self._running.items() if self._cluster.finished(call)]
        return [(name, self._status(name, self._running.pop(name))) for name in ended_names]

    def _status(self, name: str, call: Any) -> int:
        """Returns the exit status of a run that has ended. If its worker was lost, the log gets the
        error.
        """
        try:
            return int(self._cluster.value(call))
        except Exception as error:
            with append_privately(log_file(self._out, name)) as log:
                print(f"fedmf: error: {error}", file=log)
            return 1

    def under_way(self) -> int:
        """Returns the number of runs that have not ended."""
        return len(self._running)

    def stop(self) -> None:
        """Asks all runs to save their rounds, and waits until they have."""
        for call in self._running.values():
            self._cluster.cancel(call, force=False)
        for call in self._running.values():
            while not self._cluster.finished(call, _POLL_SECONDS):
                pass

    def end(self) -> None:
        """Kills all runs on the cluster."""
        for call in self._running.values():
            self._cluster.cancel(call, force=True)


Runs = LocalRuns | ClusterRuns


def train_there(out: str, name: str, options: list[str]) -> int:
    """Trains a run in a new process on a cluster's machine, and returns its exit status."""
    sweep_folder = pathlib.Path(out)
    if not sweep_folder.is_dir():
        raise FileNotFoundError(
            f"{os.uname().nodename} has no folder {out}: the machines of a sweep share its folder, "
            "at the same path"
        )
    run_job = job.Job(job.PROGRAM)
    try:
        run_job.begin(**request(sweep_folder, name, options))
        while (status := run_job.status()) is None:
            time.sleep(_POLL_SECONDS)
        return status
    except (
        KeyboardInterrupt
    ):  # Ray raises KeyboardInterrupt in this call when the sweep stops the run.
        run_job.process.send_signal(signal.SIGINT)
        return run_job.process.wait()
    finally:
        run_job.end()
