"""The base class of trackers. It decides which numbers and files of a run a tracker gets."""

import abc
import json
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any, ClassVar

from fedmf import checks, strict_json
from fedmf.files import write_atomically
from fedmf.reports import write_report
from fedmf.runs.folder import Run
from fedmf.training.callbacks import Callback, Row
from fedmf.training.under_way import Training

_TRACKED = "trackers.json"
# Files of a run that may be published.
_PUBLIC_FILES = ("config.json", "plan.json", "statement.md")
# Files that have exact functions of client data, for the owner of the run alone.
_OWNER_FILES = ("final_statement.md", "final_statement.json", "result.json")


class Tracker(Callback, abc.ABC):
    """Base class of callbacks that record a run in an experiment tracker.

    A tracker gets the config, the planned guarantee and the privacy statement at the start, the
    metrics of each round after the round is committed, and the results, the final statement and the
    report at the end. It gets nothing from the folder private/. A run that is resumed continues its
    tracked run.

    Exact metrics, which the guarantee does not cover, go only to a tracker on this machine, as do
    the files with such metrics: result, final statement and report.

    Args:
      covered_only: whether to leave out what the guarantee does not cover; None leaves it out if
        the tracker sends it to another machine.

    Raises:
      TypeError: covered_only is neither a bool nor None.
    """

    name: ClassVar[str]

    def __init__(self, *, covered_only: bool | None = None) -> None:
        if covered_only is not None:
            checks.boolean("covered_only", covered_only)
        self._covered_only = covered_only

    @abc.abstractmethod
    def is_local(self) -> bool:
        """Returns whether the tracked run stays on this machine."""

    @abc.abstractmethod
    def open(self, training: Training, run_id: str | None) -> str:
        """Opens a tracked run, and returns its id.

        Args:
          training: the run.
          run_id: id of the tracked run of a resumed run; None for a new one.
        """

    @abc.abstractmethod
    def log_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Records the parameters of the run."""

    @abc.abstractmethod
    def log_metrics(self, metrics: Mapping[str, float], t: int) -> None:
        """Records the metrics of round t."""

    @abc.abstractmethod
    def log_file(self, path: pathlib.Path, folder: str) -> None:
        """Records a file, in this folder of the tracked run; "" for its top folder."""

    @abc.abstractmethod
    def close(self, *, is_finished: bool) -> None:
        """Closes the tracked run."""

    def on_start(self, training: Training) -> None:
        """Opens the tracked run, and records the rounds that it lacks."""
        self._path = training.folder.path / _TRACKED
        entry = self._entries().get(self.name, {})
        self._run_id = self.open(training, entry.get("run_id"))
        self._rounds = 0
        if self._run_id == entry.get("run_id"):
            self._rounds = int(entry["rounds"])
        else:
            self._store_entry()
            plan = training.plan
            guarantee = {
                "plan.epsilon": plan.epsilon,
                "plan.delta": plan.delta,
                "plan.noise_multiplier": plan.noise_multiplier,
            }
            self.log_parameters(training.config.flat() | guarantee)
            self._log_files(training.folder.path, _PUBLIC_FILES)
        for row in training.recorded.metrics[self._rounds :]:
            self.on_round(training, row)

    def on_round(self, training: Training, row: Row) -> None:
        """Records the metrics of a round."""
        self.log_metrics(self._released(training.scalars(row)), row["round"])
        self._rounds = row["round"] + 1
        self._store_entry()

    def on_result(self, training: Training) -> None:
        """Records the results of a finished run, and closes the tracked run."""
        run = Run.load(training.folder.path)
        assert run.result is not None
        if not self._is_covered_only():
            result_metrics = {
                f"not_covered/test/{name}": value for name, value in run.result["test"].items()
            }
            if run.result["achieved"] is not None:
                result_metrics["achieved_epsilon"] = run.result["achieved"]["epsilon"]
            self.log_metrics(result_metrics, training.done - 1)
            self._log_files(run.path, _OWNER_FILES)
            with tempfile.TemporaryDirectory() as folder:
                write_report([run], folder, title=run.path.name)
                self.log_file(pathlib.Path(folder) / "report.html", "report")
        self.close(is_finished=True)

    def on_end(self, training: Training) -> None:
        """Closes the tracked run, unless `on_result` follows."""
        if training.done < training.last:
            self.close(is_finished=False)

    def _is_covered_only(self) -> bool:
        """Returns whether the tracker gets only what the guarantee covers."""
        if self._covered_only is None:
            return not self.is_local()
        return self._covered_only

    def _released(self, scalars: Mapping[str, float]) -> dict[str, float]:
        """Returns the metrics of a round that the tracker gets."""
        covered_only = self._is_covered_only()
        return {
            name: value
            for name, value in scalars.items()
            if name.startswith("covered/") or not covered_only
        }

    def _log_files(self, folder: pathlib.Path, names: tuple[str, ...]) -> None:
        """Records files of the run's folder."""
        for name in names:
            self.log_file(folder / name, "")

    def _entries(self) -> dict[str, Any]:
        """Returns the tracked runs of this run by the names of their trackers."""
        if not self._path.exists():
            return {}
        return dict(json.loads(self._path.read_bytes()))

    def _store_entry(self) -> None:
        """Writes the id of the tracked run, and how many rounds it has, to the run's folder."""
        entries = self._entries() | {self.name: {"run_id": self._run_id, "rounds": self._rounds}}
        write_atomically(self._path, strict_json.dumps(entries, indent=2) + "\n", mode=0o600)
