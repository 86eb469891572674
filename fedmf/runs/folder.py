"""The folder of a run: written safely, read by reports and audits.

run/
  config.json          TrainConfig
  plan.json            `describe.plan_summary` of the plan, task description, versions
  statement.md         the privacy statement
  mechanism.npz        the fitted mechanism
  metrics.jsonl        one row a round; the same bits for the same seeds; mode 0600
  timings.jsonl        seconds of every round; not reproducible, hence apart; mode 0600
  metrics.csv          the rows of metrics.jsonl as a flat table, once it is finished; mode 0600
  participation.csv    (round, client), written after every commit; mode 0600
  selected.csv         beside it where selected clients failed to report: everybody who was selected
  final_statement.md, final_statement.json  the privacy statement of the finished run; mode 0600
  result.json          test metrics, achieved guarantee, SHA-256 of the files of
                       `fedmf.runs.digests`; mode 0600
  model.npz            the final weights
  initial_model.npz    the weights that a run with initial_model started from
  clients.json, fine_tuned.json  metrics over training clients, of `fedmf evaluate --by-client` and
                       `--fine-tune`; mode 0600
  tensorboard/         the metrics as events, if wanted; mode 0700
  stopped_by_data      where what the run showed decided that it stopped, such as training losses
                       or a validation: after how many rounds
  private/noise_seed   secret; do not publish
  private/identity.json  what a resume must have again: client ids, model and loss
  private/journal/, private/rounds.jsonl  the committed rounds, see `fedmf.runs.rounds`
  private/canaries.npz with canaries: their coins, and what was released along their directions; as
                       secret until the audit
"""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedmf import checks, fields, strict_json
from fedmf.files import (
    append_privately,
    checked_path,
    lock,
    make_folder,
    sync_names,
    write_atomically,
)
from fedmf.mechanisms import Mechanism, load_mechanism
from fedmf.runs.config import TrainConfig
from fedmf.runs.digests import AUDITED, RELEASED, digests, sha256
from fedmf.runs.metric_table import columns, metrics_csv
from fedmf.runs.reading import read_object, read_rows, read_weights
from fedmf.runs.rounds import IDENTITY, RunRounds, changed_bound_files
from fedmf.server.journal import make_private_folder
from fedmf.server.journal_reading import JOURNAL, newest_number

CANARIES = "private/canaries.npz"
_BEFORE_ROUND_0 = "config.json plan.json mechanism.npz statement.md vocabulary.json".split()
# What a run writes beside its folders and config.json.
_WRITTEN = (
    "plan.json statement.md mechanism.npz metrics.jsonl metrics.csv "
    "timings.jsonl participation.csv selected.csv result.json model.npz initial_model.npz "
    "vocabulary.json clients.json fine_tuned.json tensorboard final_statement.md "
    "final_statement.json stopped_by_data"
).split()


class RunFolder:
    """Write access to the folder of one run.

    It keeps digests of what it wrote, or compared with what the run was begun with: result.json
    signs those, and never a file that somebody edited while the run went on.
    """

    def __init__(self, path: str | pathlib.Path) -> None:
        self.path = checked_path("folder", path, hint="name the folder of a run")
        self._digest_by_name: dict[str, str] = {}
        self._rounds: RunRounds | None = None

    @staticmethod
    def create(path: str | pathlib.Path) -> "RunFolder":
        """Makes the folder.

        Raises:
          ValueError: it holds a run already, the remains of one, or other files of these names; or
            it cannot be written to.
        """
        folder = RunFolder(path)
        try:
            if (folder.path / "config.json").exists():
                raise ValueError(
                    f"{folder.path} already holds a run: resume it with resume=True, "
                    "or name another folder"
                )
            # A run that was stopped at once leaves its private folder, and no result or round.
            names = ("result.json",) if (folder.path / "private").exists() else _WRITTEN
            left = [folder.path / name for name in names if (folder.path / name).exists()]
            if folder.committed_rounds():
                left.append(folder.path / JOURNAL)
            metrics = folder.path / "metrics.jsonl"
            if metrics.exists() and metrics.stat().st_size and metrics not in left:
                left.append(metrics)
            if (folder.path / "server.json").exists():
                left.append(folder.path / "server.json")
            if left:
                name = left[0].relative_to(folder.path)
                raise ValueError(
                    f"{folder.path} has a {name} and no config.json: a new run would overwrite it; "
                    "name another folder, or empty this one"
                )
            make_private_folder(folder.path)
            write_atomically(folder.path / "metrics.jsonl", "", mode=0o600)
        except OSError as error:
            raise folder._cannot_write(error) from error
        return folder

    def _cannot_write(self, error: OSError) -> ValueError:
        return ValueError(
            f"cannot write to folder {self.path} ({error.strerror}): name a folder you may write to"
        )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Holds a lock on the folder, which is made if it is missing.

        A process that dies leaves no lock behind.

        Raises:
          ValueError: another process holds it, or the folder cannot be made.
        """
        try:
            make_folder(self.path)
            folder_lock = lock(self.path)
        except OSError as error:
            raise self._cannot_write(error) from error
        if folder_lock is None:
            raise ValueError(
                f"another process trains in {self.path}: wait for it, stop it and resume with "
                "resume=True, or name another folder"
            )
        self._rounds = RunRounds(self.path, folder_lock)
        try:
            yield
        finally:
            self._rounds = None
            folder_lock.release()

    @staticmethod
    def open(path: str | pathlib.Path) -> "RunFolder":
        """The folder of an existing run.

        Raises:
          ValueError: there is no run in it.
        """
        folder = RunFolder(path)
        if not (folder.path / "config.json").is_file():
            if (folder.path / "private").is_dir() and not folder.committed_rounds():
                raise ValueError(
                    f"{folder.path} holds no run yet: one was stopped there before it began (no "
                    "config.json); give its command again, without resume=True"
                )
            raise ValueError(
                f"{folder.path} holds no run to resume or to read (no config.json): name the "
                "folder of a run, or start one there"
            )
        return folder

    @property
    def rounds(self) -> RunRounds:
        """The committed rounds, inside `locked`."""
        assert self._rounds is not None, "a run's rounds are committed in a locked folder"
        return self._rounds

    def begin(self, config: TrainConfig, identity: Mapping[str, Any]) -> None:
        """Makes the journal, and then writes config.json, which makes the folder a run.

        All other files of before round 0 are there.
        """
        text = config.to_json()
        self.rounds.begin(text, identity)
        write_atomically(self.path / "config.json", text)
        sync_names(self.path)
        self._count_digests()

    def _count_digests(self) -> None:
        """Takes the digests of what is there before round 0, which result.json signs."""
        for name in _BEFORE_ROUND_0:
            if (self.path / name).exists():
                self._digest_by_name[name] = sha256((self.path / name).read_bytes())

    def identity(self) -> dict[str, Any]:
        """What `begin` was given.

        Raises:
          ValueError: a file that the journal binds is not the one that the run was begun with, or
            the journal is missing or damaged.
        """
        try:
            changed = changed_bound_files(self.path)
        except ValueError as error:
            raise ValueError(f"cannot resume {self.path}: {error}") from error
        if changed:
            raise ValueError(
                f"cannot resume {self.path}: {', '.join(changed)} changed since the run was begun: "
                "put back its own, or start a new folder"
            )
        return read_object(self.path / IDENTITY)

    def note_programs(self, first_rounds: Sequence[int]) -> None:
        """Writes into plan.json the first round of each program that computed some."""
        plan = read_object(self.path / "plan.json")
        if plan.get("programs", [0]) == list(first_rounds):
            return
        self.write_json("plan", plan | {"programs": list(first_rounds)})
        self._digest_by_name["plan.json"] = sha256((self.path / "plan.json").read_bytes())

    def committed_rounds(self) -> int:
        """Rounds that were committed, by the name of the journal's newest file; 0 without one."""
        return max(newest_number(self.path), 0)

    def has_released(self) -> bool:
        """Whether a round was released; of a copy without a journal by metrics.jsonl."""
        return self.committed_rounds() > 0 or bool(read_rows(self.path / "metrics.jsonl"))

    def read_rounds(self) -> None:
        """Reads what was committed; see `RunRounds.read`."""
        self.rounds.read()
        self._count_digests()
        path = self.path / "timings.jsonl"
        content = path.read_bytes() if path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:  # a killed process left half a line
            write_atomically(path, whole, mode=0o600)

    def mark_stopped_by_data(self, rounds_done: int) -> None:
        """Keeps that what the run showed decided to stop it after so many rounds."""
        write_atomically(self.path / "stopped_by_data", f"{rounds_done}\n", mode=0o600)

    def was_stopped_by_data(self) -> bool:
        """Whether what the run showed ever decided to stop it."""
        return (self.path / "stopped_by_data").exists()

    def add_timing(self, t: int, seconds: float) -> None:
        """Adds a row to timings.jsonl."""
        with append_privately(self.path / "timings.jsonl") as out:
            out.write(strict_json.dumps({"round": t, "seconds": round(seconds, 4)}) + "\n")

    def write_weights(self, name: str, weights: Sequence[np.ndarray]) -> None:
        """Writes name.npz.

        Words, which Keras gives as Python objects, become bytes, which NumPy reads without pickle.
        """
        arrays = {
            f"weight_{i}": np.asarray(weight, np.bytes_) if weight.dtype == object else weight
            for i, weight in enumerate(weights)
        }
        path = self.path / f"{name}.npz"
        write_atomically(path, lambda out: np.savez(out, **arrays))
        self._digest_by_name[path.name] = sha256(path.read_bytes())

    def write_canaries(self, evidence: Mapping[str, np.ndarray]) -> None:
        """Writes private/canaries.npz."""
        write_atomically(self.path / CANARIES, lambda out: np.savez(out, **evidence), mode=0o600)

    def initial_weights(self) -> list[np.ndarray] | None:
        """All weights of the model that the run started from; None of a run that drew its own."""
        path = self.path / "initial_model.npz"
        return read_weights(path) if path.exists() else None

    def initial_model_digest(self) -> str | None:
        """SHA-256 of the file of `initial_weights`, or None."""
        path = self.path / "initial_model.npz"
        return sha256(path.read_bytes()) if path.exists() else None

    def write_table(self) -> None:
        """Writes metrics.csv."""
        rows = read_rows(self.path / "metrics.jsonl")
        write_atomically(self.path / "metrics.csv", metrics_csv({self.path.name: rows}), mode=0o600)

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Writes name.json atomically.

        Only its owner can read it, but for the plan. A result ends with the digests of the files
        that it sums up.
        """
        if name == "result":
            written = {name: self._digest_by_name.get(name) for name in (*AUDITED, *RELEASED)}
            own = {name: digest for name, digest in written.items() if digest is not None}
            if self._rounds is not None:
                self._rounds.sync()
                own |= self._rounds.digest_by_name()
            content = content | {"sha256": digests(self.path) | own}
        text = strict_json.dumps(content, indent=2) + "\n"
        write_atomically(self.path / f"{name}.json", text, mode=0o644 if name == "plan" else 0o600)


def _rows(name: str, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise TypeError(f"{name} is no list of rows: give a dict for each round")
    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run(fields.Checked):
    """A run as reports see it.

    Attributes:
      path: its folder.
      config: its TrainConfig.
      plan: `describe.plan_summary` of the plan, with "task", "versions" and "rmse" beside it.
      metrics: rows of metrics.jsonl: {"round": t, "clients": c, "examples": e, "train_loss": x,
        "validation": {...} or absent}.
      timings: rows of timings.jsonl: {"round": t, "seconds": s}.
      statement: Markdown.
      mechanism: of mechanism.npz.
      result: result.json, or None while the run is not finished.
      clients, fine_tuned: clients.json and fine_tuned.json, `TrainedRun.evaluate_clients` and
        `evaluate_fine_tuned` of the finished run, or None where they were not measured.
    """

    path: pathlib.Path = fields.validated(checked_path)
    config: TrainConfig = fields.validated(fields.instance(TrainConfig))
    plan: dict[str, Any] = fields.validated(fields.instance(dict))
    metrics: list[dict[str, Any]] = fields.validated(_rows)
    timings: list[dict[str, Any]] = fields.validated(_rows)
    statement: str = fields.validated(fields.plain_text)
    mechanism: Mechanism = fields.validated(fields.instance(Mechanism))
    result: dict[str, Any] | None = fields.validated(fields.instance(dict))
    clients: dict[str, Any] | None = fields.validated(fields.instance(dict), None)
    fine_tuned: dict[str, Any] | None = fields.validated(fields.instance(dict), None)

    @functools.cached_property
    def noising(self) -> np.ndarray:
        """N of the mechanism, float64 (rounds, m); ValueError where it has too many
        rounds for that.
        """
        return self.mechanism.noising()

    def table(self) -> dict[str, list[Any]]:
        """The metrics as columns, {"round": [...], "train_loss": [...], "validation_accuracy":
        [...], ...}, for pandas.DataFrame.

        NaN stands for rounds without a validation.
        """
        return columns(self.metrics)

    @property
    def ended_after(self) -> int | None:
        """Rounds of a finished run that ended at an epsilon, before its plan did; None of every
        other run.

        Raises:
          ValueError: result.json says something else.
        """
        rounds = None if self.result is None else self.result.get("ended_after")
        if rounds is not None and (type(rounds) is not int or not 1 <= rounds < self.config.rounds):
            raise ValueError(
                f"{self.path / 'result.json'} has ended_after={rounds!r}: put "
                "the run's own file back"
            )
        return rounds

    @property
    def weights(self) -> list[np.ndarray]:
        """The trained weights of a finished run, float32, in the order
        of the model's trainable variables.

        Raises:
          ValueError: the run is not finished, or its model.npz is damaged or missing.
        """
        if self.result is None:
            raise ValueError(
                f"run {self.path} is not finished, and has no final weights: resume it"
            )
        return read_weights(self.path / "model.npz")

    @staticmethod
    def load(path: str | pathlib.Path) -> "Run":
        """Reads a run folder, finished or not.

        Raises:
          ValueError: the folder holds no run, a file of it is damaged, or its mechanism does not
            fit into memory; names the path.
        """
        path = checked_path("path", path, hint="name the folder of a run")
        folder = RunFolder.open(path).path
        try:
            return Run(
                path=folder,
                config=TrainConfig.from_mapping(
                    read_object(folder / "config.json"), str(folder / "config.json")
                ),
                plan=read_object(folder / "plan.json"),
                metrics=read_rows(folder / "metrics.jsonl"),
                timings=read_rows(folder / "timings.jsonl", skips_damaged=True),
                statement=(folder / "statement.md").read_text(encoding="utf-8"),
                mechanism=load_mechanism(folder / "mechanism.npz"),
                **{
                    name: read_object(file) if (file := folder / f"{name}.json").exists() else None
                    for name in ("result", "clients", "fine_tuned")
                },
            )
        except checks.TooLargeForMemory:
            raise  # the run is whole
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(
                f"run folder {folder} is incomplete or damaged ({' '.join(str(error).split())}): "
                "run it again in another folder"
            ) from error
