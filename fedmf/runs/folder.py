"""The folder of a run, with its files. `RunFolder` writes it atomically, and `Run` has its
contents. What it shares with the folder of a server is in `fedmf.server.journal_folder`.

run/
  config.json          TrainConfig
  plan.json            `describe.plan_summary` of the plan, task description, versions
  statement.md         the privacy statement
  mechanism.npz        the fitted mechanism
  metrics.jsonl        one row for each round, reproducible to the bit; mode 0600
  timings.jsonl        seconds of each round, which are not reproducible; mode 0600
  metrics.csv          the rows of metrics.jsonl as a flat table, of a finished run; mode 0600
  participation.csv    (round, client), written after each commit; mode 0600
  selected.csv         the selected clients of each round, if some failed to report; mode 0600
  final_statement.md, final_statement.json  the privacy statement of the finished run; mode 0600
  result.json          test metrics, achieved guarantee, SHA-256 of the files of
                       `fedmf.runs.digests`; mode 0600
  model.npz            the final weights
  initial_model.npz    the initial weights of a run with initial_model
  clients.json, fine_tuned.json  metrics over training clients, of `fedmf evaluate --by-client` and
                       `--fine-tune`; mode 0600
  tensorboard/         the metrics as events, if requested; mode 0700
  trackers.json        ids of the tracked runs in experiment trackers; mode 0600
  stopped_by_data      number of rounds after which the run was stopped, if the decision depended on
                       its results, such as training losses or a validation
  private/noise_seed   secret; do not publish
  private/identity.json  `task_identity`, which a resumed run must have: client ids, model and loss
  private/journal/, private/rounds.jsonl  the committed rounds, see `fedmf.runs.rounds`
  private/canaries.npz with canaries: their coins, and the releases along their directions; secret
                       until the audit
"""

import contextlib
import dataclasses
import functools
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedmf import checks, fields, strict_json
from fedmf.files import (
    append_privately,
    checked_path,
    write_atomically,
)
from fedmf.mechanisms import Mechanism, load_mechanism
from fedmf.runs.config import TrainConfig
from fedmf.runs.digests import AUDITED, RELEASED, digests, sha256
from fedmf.runs.metric_table import columns, metrics_csv
from fedmf.runs.reading import read_object, read_rows, read_weights
from fedmf.runs.rounds import IDENTITY, RUN, CommittedRound, changed_bound_files, plan_content
from fedmf.server.journal import Committed
from fedmf.server.journal_folder import JournalFolder, check_begun
from fedmf.server.journal_reading import committed_rounds

CANARIES = "private/canaries.npz"
_SEED = "private/noise_seed"
_BEFORE_ROUND_0 = "config.json plan.json mechanism.npz statement.md vocabulary.json".split()


class RunFolder:
    """The folder of a run, with methods that write its files. What it has in common with the folder
    of a server is in `JournalFolder`, and available inside `locked`.

    It stores the digests of the files that it wrote, or checked when the run was resumed.
    result.json records these digests, so that it never covers a file that was edited meanwhile.

    Attributes:
      committed: the committed rounds, after `read_rounds`; empty for a new run.
    """

    def __init__(self, path: str | pathlib.Path) -> None:
        self.path = checked_path("folder", path, hint="name the folder of a run")
        self._digest_by_name: dict[str, str] = {}
        self._locked: JournalFolder | None = None
        self.forget_committed()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the folder for this process inside the block. A folder that does not exist is
        created.

        The lock of a process ends with the process.

        Raises:
          ValueError: another process holds the lock, or the folder cannot be created.
        """
        journal_folder = JournalFolder(self.path, RUN)
        self._locked = journal_folder
        try:
            yield
        finally:
            self._locked = None
            journal_folder.close()

    @property
    def _journal_folder(self) -> JournalFolder:
        """The locked folder; available only inside `locked`."""
        assert self._locked is not None, "a run is begun, read and committed in a locked folder"
        return self._locked

    def prepare(self) -> None:
        """Checks that a new run may begin in this locked folder, and creates private/ there.

        Raises:
          ValueError: it holds a run, parts of one or other files of the same names.
        """
        self._journal_folder.prepare()

    @staticmethod
    def open(path: str | pathlib.Path) -> "RunFolder":
        """Returns the folder of an existing run.

        Raises:
          ValueError: the folder holds no run.
        """
        run_folder = RunFolder(path)
        check_begun(run_folder.path, RUN)
        return run_folder

    def begin(
        self,
        config: TrainConfig,
        plan: Mapping[str, Any],
        identity: Mapping[str, Any],
        noise_seed: int,
    ) -> None:
        """Creates the journal, and then writes config.json, which makes the folder a run.

        All other files of before round 0 must exist.

        Args:
          config: config of the run.
          plan: contents of plan.json.
          identity: `task_identity` of the task.
          noise_seed: secret seed of the noise.
        """
        text_by_name = {
            IDENTITY: strict_json.dumps(identity, indent=2) + "\n",
            _SEED: f"{noise_seed}\n",
            "config.json": config.to_json(),
        }
        self._journal_folder.begin(text_by_name, {"plan.json": plan_content(plan)})
        self._store_digests()

    def _store_digests(self) -> None:
        """Stores the digests of the files that exist before round 0, for result.json."""
        for name in _BEFORE_ROUND_0:
            if (self.path / name).exists():
                self._digest_by_name[name] = sha256((self.path / name).read_bytes())

    def identity(self) -> dict[str, Any]:
        """Returns the `task_identity` that was recorded when the run was begun.

        Raises:
          ValueError: a file whose digest is in the journal has changed since the run was begun, or
            the journal is missing or damaged.
        """
        try:
            changed_names = changed_bound_files(self.path)
            if changed_names:
                raise RUN.changed_error(changed_names)
        except ValueError as error:
            raise ValueError(f"cannot resume {self.path}: {error}") from error
        return read_object(self.path / IDENTITY)

    def note_programs(self, first_rounds: Sequence[int]) -> None:
        """Records round 0 in plan.json, and the rounds from which a changed program computed the
        run.
        """
        recorded_plan = read_object(self.path / "plan.json")
        if recorded_plan.get("programs", [0]) == list(first_rounds):
            return
        self.write_json("plan", recorded_plan | {"programs": list(first_rounds)})
        self._digest_by_name["plan.json"] = sha256((self.path / "plan.json").read_bytes())

    def committed_rounds(self) -> int:
        """Returns the number of committed rounds, by the name of the journal's newest file."""
        return committed_rounds(self.path)

    def has_released(self) -> bool:
        """Returns whether a round was released, which the journal or metrics.jsonl shows."""
        return self.committed_rounds() > 0 or bool(read_rows(self.path / "metrics.jsonl"))

    def read_rounds(self, run: "Run | None" = None, noise_seed: int | None = None) -> None:
        """Reads the committed rounds and completes the readable files, as `JournalFolder.read`
        does.

        Args:
          run: the run as the caller has read it, or None if the caller uses nothing of it. The
            journal's digests are compared with the plan and the config that it holds, since the
            files may have been edited and put back.
          noise_seed: the noise seed as the caller has read it, which is compared likewise; or None.

        Raises:
          ValueError: a file changed since the run was begun, or while it was read.
        """
        content_by_name = {}
        if noise_seed is not None:
            content_by_name[_SEED] = f"{noise_seed}\n".encode()
        if run is not None:
            config_content = (self.path / "config.json").read_bytes()
            config = TrainConfig.from_mapping(json.loads(config_content), "config.json")
            if config != run.config:
                raise RUN.changed_error(["config.json"])
            content_by_name |= {"config.json": config_content, "plan.json": plan_content(run.plan)}
        self.committed = self._journal_folder.read(content_by_name)
        self._store_digests()
        timings_path = self.path / "timings.jsonl"
        timings_content = timings_path.read_bytes() if timings_path.exists() else b""
        whole_lines = timings_content[: timings_content.rfind(b"\n") + 1]
        # A process that was killed may have left an incomplete last line.
        if whole_lines != timings_content:
            write_atomically(timings_path, whole_lines, mode=0o600)

    def forget_committed(self) -> None:
        """Frees the memory that the committed rounds take."""
        self.committed = Committed(rows=[], arrays={})

    def commit(self, committed: CommittedRound) -> None:
        """Commits a round, as `JournalFolder.commit` does."""
        self._journal_folder.commit(committed.t, committed.journal_row(), committed.arrays())

    def add_metrics_row(self, metrics_row: Mapping[str, Any]) -> None:
        """Writes the newest round's row of metrics.jsonl, which was computed from its release."""
        self._journal_folder.end_round(metrics_row)

    def mark_stopped_by_data(self, rounds_done: int) -> None:
        """Records that the run was stopped because of its results.

        Args:
          rounds_done: number of rounds after which it was stopped.
        """
        write_atomically(self.path / "stopped_by_data", f"{rounds_done}\n", mode=0o600)

    def was_stopped_by_data(self) -> bool:
        """Returns whether the run was ever stopped because of its results."""
        return (self.path / "stopped_by_data").exists()

    def add_timing(self, t: int, seconds: float) -> None:
        """Appends the duration of round t to timings.jsonl."""
        with append_privately(self.path / "timings.jsonl") as out:
            out.write(strict_json.dumps({"round": t, "seconds": round(seconds, 4)}) + "\n")

    def write_weights(self, name: str, weights: Sequence[np.ndarray]) -> None:
        """Writes a list of weight arrays as name.npz.

        Texts, which Keras returns as Python objects, are written as bytes, which numpy reads
        without pickle.
        """
        array_by_name = {
            f"weight_{i}": np.asarray(weight, np.bytes_) if weight.dtype == object else weight
            for i, weight in enumerate(weights)
        }
        weights_path = self.path / f"{name}.npz"
        write_atomically(weights_path, lambda out: np.savez(out, **array_by_name))
        self._digest_by_name[weights_path.name] = sha256(weights_path.read_bytes())

    def write_canaries(self, evidence: Mapping[str, np.ndarray]) -> None:
        """Writes the evidence of the run's canaries to private/canaries.npz."""
        write_atomically(self.path / CANARIES, lambda out: np.savez(out, **evidence), mode=0o600)

    def initial_weights(self) -> list[np.ndarray] | None:
        """Returns all weights of the run's initial model; None if the run began with the task's own
        weights.
        """
        model_path = self.path / "initial_model.npz"
        if not model_path.exists():
            return None
        return read_weights(model_path)

    def initial_model_digest(self) -> str | None:
        """Returns the SHA-256 digest of initial_model.npz; None if there is no such file."""
        model_path = self.path / "initial_model.npz"
        if not model_path.exists():
            return None
        return sha256(model_path.read_bytes())

    def write_table(self) -> None:
        """Writes metrics.csv from the rows of metrics.jsonl."""
        metric_rows = read_rows(self.path / "metrics.jsonl")
        write_atomically(
            self.path / "metrics.csv", metrics_csv({self.path.name: metric_rows}), mode=0o600
        )

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Writes name.json atomically.

        Only the owner can read it, except for plan.json. result.json gets the digests of the run's
        files.
        """
        if name == "result":
            content = content | {"sha256": self._file_digests()}
        json_text = strict_json.dumps(content, indent=2) + "\n"
        file_mode = 0o644 if name == "plan" else 0o600
        write_atomically(self.path / f"{name}.json", json_text, mode=file_mode)

    def _file_digests(self) -> dict[str, str]:
        """Returns the digests of the run's files. For files that this process wrote, they are
        digests of the contents that it wrote.
        """
        written_digests = {
            name: self._digest_by_name[name]
            for name in (*AUDITED, *RELEASED)
            if name in self._digest_by_name
        }
        if self._locked is not None:
            self._locked.sync()
            written_digests |= self._locked.digest_by_name()
        return digests(self.path) | written_digests


def _check_rows(name: str, value: Any) -> list[dict[str, Any]]:
    """Checks that a value is a list of dicts, and returns it."""
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise TypeError(f"{name} is no list of rows: give a dict for each round")
    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run(fields.Checked):
    """The contents of a run folder, for reports and audits.

    Attributes:
      path: path of the folder.
      config: config of the run.
      plan: contents of plan.json: `describe.plan_summary`, with "task", "versions" and "rmse".
      metrics: rows of metrics.jsonl: {"round": t, "clients": c, "examples": e, "train_loss": x,
        "validation": {...} or absent}.
      timings: rows of timings.jsonl: {"round": t, "seconds": s}.
      statement: the privacy statement, in Markdown.
      mechanism: mechanism of mechanism.npz.
      result: contents of result.json; None if the run is not finished.
      clients, fine_tuned: contents of clients.json and fine_tuned.json, the results of
        `TrainedRun.evaluate_clients` and `evaluate_fine_tuned`; None if they do not exist.
    """

    path: pathlib.Path = fields.validated(checked_path)
    config: TrainConfig = fields.validated(fields.instance(TrainConfig))
    plan: dict[str, Any] = fields.validated(fields.instance(dict))
    metrics: list[dict[str, Any]] = fields.validated(_check_rows)
    timings: list[dict[str, Any]] = fields.validated(_check_rows)
    statement: str = fields.validated(fields.plain_text)
    mechanism: Mechanism = fields.validated(fields.instance(Mechanism))
    result: dict[str, Any] | None = fields.validated(fields.instance(dict))
    clients: dict[str, Any] | None = fields.validated(fields.instance(dict), None)
    fine_tuned: dict[str, Any] | None = fields.validated(fields.instance(dict), None)

    @functools.cached_property
    def noising(self) -> np.ndarray:
        """The noise matrix of the mechanism, a float64 array with a row for each round.

        Raises:
          ValueError: the mechanism has too many rounds for that.
        """
        return self.mechanism.noising()

    def table(self) -> dict[str, list[Any]]:
        """Returns the metrics as columns for pandas.DataFrame. The columns have names such as
        "round", "train_loss" and "validation_accuracy".

        Rounds without a validation have NaN in its columns.
        """
        return columns(self.metrics)

    @property
    def data_version(self) -> str | None:
        """The version of the data that the run was begun with; None in a copy without private/.

        A version may be a digest of clients' examples, which would confirm to an attacker which
        examples they are. So no file that may be published has it.

        Raises:
          ValueError: private/identity.json is damaged.
        """
        identity_path = self.path / IDENTITY
        if not identity_path.exists():
            return None
        version: str = read_object(identity_path)["data_version"]
        return version

    @property
    def ended_after(self) -> int | None:
        """The number of rounds of a run that finished early because of `stop_at_epsilon`; None for
        any other run.

        Raises:
          ValueError: the value in result.json is invalid.
        """
        if self.result is None or self.result.get("ended_after") is None:
            return None
        num_rounds_run = self.result["ended_after"]
        if type(num_rounds_run) is not int or not 1 <= num_rounds_run < self.config.rounds:
            raise ValueError(
                f"{self.path / 'result.json'} has ended_after={num_rounds_run!r}: put back the "
                "run's own file"
            )
        return num_rounds_run

    @property
    def weights(self) -> list[np.ndarray]:
        """The trained weights of a finished run as float32 arrays, in the order of the model's
        trainable variables.

        Raises:
          ValueError: the run is not finished, or model.npz is damaged or missing.
        """
        if self.result is None:
            raise ValueError(
                f"run {self.path} is not finished, and has no final weights: resume it"
            )
        return read_weights(self.path / "model.npz")

    @staticmethod
    def load(path: str | pathlib.Path) -> "Run":
        """Reads the folder of a finished or unfinished run.

        Raises:
          ValueError: the folder holds no run, a file in it is damaged, or its mechanism does not
            fit into memory.
        """
        path = checked_path("path", path, hint="name the folder of a run")
        folder_path = RunFolder.open(path).path
        try:
            optional_contents = {}
            for name in ("result", "clients", "fine_tuned"):
                json_path = folder_path / f"{name}.json"
                optional_contents[name] = read_object(json_path) if json_path.exists() else None
            return Run(
                path=folder_path,
                config=TrainConfig.from_mapping(
                    read_object(folder_path / "config.json"), str(folder_path / "config.json")
                ),
                plan=read_object(folder_path / "plan.json"),
                metrics=read_rows(folder_path / "metrics.jsonl"),
                timings=read_rows(folder_path / "timings.jsonl", skips_damaged=True),
                statement=(folder_path / "statement.md").read_text(encoding="utf-8"),
                mechanism=load_mechanism(folder_path / "mechanism.npz"),
                **optional_contents,
            )
        except checks.TooLargeForMemory:
            # Too little memory does not mean that the run is damaged, so the error is passed on.
            raise
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(
                f"run folder {folder_path} is incomplete or damaged "
                f"({' '.join(str(error).split())}): "
                "run it again in another folder"
            ) from error
