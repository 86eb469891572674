"""The folder of a run: written safely, read by reports and audits.

run/
  config.json          TrainConfig
  plan.json            `describe.summary` of the plan, task description, versions
  statement.md         the privacy statement
  mechanism.npz        the fitted mechanism
  metrics.jsonl        one row a round; the same bits for the same seeds; mode 0600
  timings.jsonl        seconds of every round; not reproducible, hence apart; mode 0600
  metrics.csv          the rows of metrics.jsonl as a flat table, once it is finished; mode 0600
  participation.csv    (round, client), written at every checkpoint; mode 0600
  selected.csv         beside it where selected clients failed to report: everybody who was selected
  final_statement.md, final_statement.json  the privacy statement of the finished run; mode 0600
  result.json          test metrics, achieved guarantee, SHA-256 of the files of
                       `fedmf.runs.digests`; mode 0600
  model.npz            the final weights
  initial_model.npz    the weights that a run with initial_model started from
  clients.json, fine_tuned.json  metrics over training clients, of `fedmf evaluate --by-client` and
                       `--fine-tune`; mode 0600
  tensorboard/         the metrics as events, if wanted; mode 0700
  checkpoints/         round-000020.ckpt: everything a resume needs
  private_metrics.jsonl  the releases of private metrics, each once, whatever a resume does again
  stopped_by_data      where what the run showed decided that it stopped, such as training losses
                       or a validation: after how many rounds
  rounds_done          after a crash: how many rounds were done before it, also those that the
                       resumed run does again
  private/noise_seed   secret; do not publish
  private/identity.json  digests of what a resume must not change: files above, model, loss and the
                       first clients' examples
  private/canaries.npz with canaries: their coins, and what was released along their directions; as
                       secret until the audit
"""

import contextlib
import dataclasses
import functools
import hashlib
import os
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
    write_atomically,
)
from fedmf.mechanisms import Mechanism, load_mechanism
from fedmf.participation.ledger import GrowingCsv, ParticipationLedger
from fedmf.runs.checkpoint import Checkpoint
from fedmf.runs.config import TrainConfig
from fedmf.runs.digests import AUDITED, RELEASED, digests, sha256
from fedmf.runs.metric_table import columns, metrics_csv
from fedmf.runs.reading import read_object, read_rows, read_weights, rows_of

_KEPT_CHECKPOINTS = 2
CANARIES = "private/canaries.npz"
IDENTITY = "private/identity.json"
# What noise and updates follow from.
_BOUND = ("config.json", "plan.json", "mechanism.npz", "private/noise_seed")
# What a run writes beside its folders and config.json.
_WRITTEN = (
    "plan.json statement.md mechanism.npz metrics.jsonl private_metrics.jsonl metrics.csv "
    "timings.jsonl participation.csv selected.csv result.json model.npz initial_model.npz "
    "vocabulary.json clients.json fine_tuned.json tensorboard final_statement.md "
    "final_statement.json stopped_by_data rounds_done"
).split()


class RunFolder:
    """Write access to the folder of one run.

    It keeps digests of what it wrote, or compared with what the run was begun with: result.json
    signs those, and never a file that somebody edited while the run went on.
    """

    def __init__(self, path: str | pathlib.Path) -> None:
        self.path = checked_path("folder", path, hint="name the folder of a run")
        self._digest_by_name: dict[str, str] = {}
        self._csv_by_name = {name: GrowingCsv() for name in ("participation.csv", "selected.csv")}

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
            # A run that was stopped at once leaves its private folder, and no result or checkpoint.
            names = ("result.json",) if (folder.path / "private").exists() else _WRITTEN
            left = [
                folder.path / name for name in names if (folder.path / name).exists()
            ] + folder._checkpoints()
            if left:
                name = left[0].relative_to(folder.path)
                raise ValueError(
                    f"{folder.path} has a {name} and no config.json: a new run would overwrite it; "
                    "name another folder, or empty this one"
                )
            for part in ("checkpoints", "private"):
                make_folder(folder.path / part)
                (folder.path / part).chmod(0o700)
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
        try:
            yield
        finally:
            folder_lock.release()

    @staticmethod
    def open(path: str | pathlib.Path) -> "RunFolder":
        """The folder of an existing run.

        Raises:
          ValueError: there is no run in it.
        """
        folder = RunFolder(path)
        if not (folder.path / "config.json").is_file():
            if (folder.path / "private").is_dir() and not folder.saved_rounds():
                raise ValueError(
                    f"{folder.path} holds no run yet: one was stopped there before it began (no "
                    "config.json); give its command again, without resume=True"
                )
            raise ValueError(
                f"{folder.path} holds no run to resume or to read (no config.json): name the "
                "folder of a run, or start one there"
            )
        return folder

    def digest(self) -> str:
        """Hash of config, plan, mechanism and noise seed, which a resume must not change."""
        return sha256(b"\0".join((self.path / part).read_bytes() for part in _BOUND))

    def begin(self, config: TrainConfig, identity: Mapping[str, Any]) -> None:
        """Writes private/identity.json, and then config.json, which makes the folder a run.

        All other files of before round 0 are there.
        """
        text = config.to_json()
        files = {
            name: sha256((self.path / name).read_bytes())
            for name in _BOUND
            if name != "config.json"
        }
        files["config.json"] = sha256(text.encode())
        content = strict_json.dumps({"files": files, "run": identity}, indent=2) + "\n"
        write_atomically(self.path / IDENTITY, content, mode=0o600)
        write_atomically(self.path / "config.json", text)
        self._digest_by_name |= files
        for path in (self.path / "statement.md", self.path / "vocabulary.json"):
            if path.exists():
                self._digest_by_name[path.name] = sha256(path.read_bytes())

    def identity(self) -> dict[str, Any]:
        """What `begin` was given.

        Raises:
          ValueError: private/identity.json is missing or damaged, or a file that it names is not
            the one that the run was begun with.
        """
        try:
            content = read_object(self.path / IDENTITY)
            recorded, run = content["files"], content["run"]
            if not set(_BOUND) <= recorded.keys() or not isinstance(run, dict):
                raise TypeError("not as it was written")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"cannot resume {self.path}: {IDENTITY} is missing or damaged, so that nothing "
                "says what the run was begun with: put back its own, or start a new folder"
            ) from error
        changed = [
            name for name in _BOUND if recorded[name] != sha256((self.path / name).read_bytes())
        ]
        if changed:
            raise ValueError(
                f"cannot resume {self.path}: {', '.join(changed)} changed since the run was begun: "
                "put back its own, or start a new folder"
            )
        self._digest_by_name |= recorded
        return run

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Writes it, then drops all but the newest two."""
        folder = self.path / "checkpoints"
        make_folder(folder)  # somebody may have removed it to make room
        # First the rows that belong to the checkpoint: a resume from it does not write them again.
        for name in ("metrics.jsonl", "timings.jsonl"):
            if (self.path / name).exists():
                with open(self.path / name, "rb") as rows:
                    os.fsync(rows.fileno())
        self.write_record(checkpoint.ledger)
        write_atomically(
            folder / f"round-{checkpoint.rounds_done:06d}.ckpt", checkpoint.write, mode=0o600
        )
        # A writer that was killed leaves its temporary file, as large as a checkpoint.
        for old in [*self._checkpoints()[:-_KEPT_CHECKPOINTS], *folder.glob(".round-*.part")]:
            old.unlink()

    def write_record(self, ledger: ParticipationLedger) -> None:
        """Writes who took part, and who was selected where others were.

        It is as secret as a checkpoint, which holds the same: amplification by sampling rests on
        nobody knowing who took part.
        """
        cohorts = ledger.cohorts
        record = {"participation.csv": cohorts}
        selections = ledger.selections
        pairs = zip(selections, cohorts, strict=True)
        if any(len(selected) > len(cohort) for selected, cohort in pairs):
            record["selected.csv"] = selections
        for name, rounds in record.items():
            text = self._csv_by_name[name].text(rounds)
            write_atomically(self.path / name, text, mode=0o600)
            self._digest_by_name[name] = sha256(text.encode())

    def _checkpoints(self) -> list[pathlib.Path]:
        """Oldest first; by number, as names of seven digits sort before names of six."""
        paths = (self.path / "checkpoints").glob("round-*.ckpt")
        return sorted(
            (path for path in paths if path.stem[6:].isdecimal()),
            key=lambda path: int(path.stem[6:]),
        )

    def saved_rounds(self) -> int:
        """Rounds of the newest checkpoint, by its name; 0 before the first."""
        return max((int(path.stem[6:]) for path in self._checkpoints()), default=0)

    def load_checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint; None before the first.

        Raises:
          ValueError: it is damaged, or belongs to another run.
        """
        paths = self._checkpoints()
        if not paths:
            return None
        checkpoint = Checkpoint.read(paths[-1])
        if checkpoint.config_digest != self.digest():
            raise ValueError(
                f"checkpoint {paths[-1]} belongs to another run (its config, plan, mechanism or "
                "noise seed differs): move it out of the folder"
            )
        return checkpoint

    def mark_stopped_by_data(self, rounds_done: int) -> None:
        """Keeps that what the run showed decided to stop it after so many rounds."""
        write_atomically(self.path / "stopped_by_data", f"{rounds_done}\n", mode=0o600)

    def was_stopped_by_data(self) -> bool:
        """Whether what the run showed ever decided to stop it."""
        return (self.path / "stopped_by_data").exists()

    def rounds_ever_done(self) -> int:
        """Rounds whose results somebody may have seen: of the checkpoints, of the metrics, and of
        crashes before them.
        """
        seen = [row["round"] + 1 for row in read_rows(self.path / "metrics.jsonl")]
        return max([self.saved_rounds(), self.rounds_before_crashes(), *seen])

    def rounds_before_crashes(self) -> int:
        """The most rounds that were done when a crash took rows; 0 without one; ValueError where
        the file is damaged.
        """
        path = self.path / "rounds_done"
        text = path.read_text().strip() if path.exists() else "0"
        if not text.isdecimal():
            raise ValueError(
                f"{path} is damaged: it must hold a number of rounds; put the run's own file back"
            )
        return int(text)

    def truncate_rows(self, rounds_done: int) -> None:
        """Drops metric and timing rows of rounds that the resumed run will do again, and a
        half-written last line.

        Raises:
          ValueError: a line other than the last is not a row.
        """
        if (ever := self.rounds_ever_done()) > rounds_done:
            write_atomically(self.path / "rounds_done", f"{ever}\n")
        for name in ("metrics.jsonl", "timings.jsonl"):
            path = self.path / name
            if path.exists():
                lines = [line for line, row in rows_of(path) if row["round"] < rounds_done]
                write_atomically(path, "".join(line + "\n" for line in lines), mode=0o600)

    @contextlib.contextmanager
    def rows(self, name: str) -> Iterator[Any]:
        """Append to name.jsonl: yields a function that writes one row and flushes it."""
        path = self.path / f"{name}.jsonl"
        with append_privately(path) as out:
            digest = hashlib.sha256(path.read_bytes())

            def write(row: dict[str, Any]) -> None:
                line = strict_json.dumps(row) + "\n"
                out.write(line)
                out.flush()
                digest.update(line.encode())
                self._digest_by_name[path.name] = digest.hexdigest()

            yield write

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
      plan: `describe.summary` of the plan, with "task", "versions" and "rmse" beside it.
      metrics: rows of metrics.jsonl: {"round": t, "clients": c, "examples": e, "train_loss": x,
        "validation": {...} or absent}.
      timings: rows of timings.jsonl: {"round": t, "seconds": s}.
      statement: Markdown.
      mechanism: of mechanism.npz.
      result: result.json, or None while the run is not finished.
      clients, fine_tuned: clients.json and fine_tuned.json, `TrainedRun.evaluate_clients` and
        `evaluate_fine_tuned` of the finished run, or None where they were not measured.
    """

    path: pathlib.Path = fields.checked(checked_path)
    config: TrainConfig = fields.checked(fields.instance(TrainConfig))
    plan: dict[str, Any] = fields.checked(fields.instance(dict))
    metrics: list[dict[str, Any]] = fields.checked(_rows)
    timings: list[dict[str, Any]] = fields.checked(_rows)
    statement: str = fields.checked(fields.plain_text)
    mechanism: Mechanism = fields.checked(fields.instance(Mechanism))
    result: dict[str, Any] | None = fields.checked(fields.instance(dict))
    clients: dict[str, Any] | None = fields.checked(fields.instance(dict), None)
    fine_tuned: dict[str, Any] | None = fields.checked(fields.instance(dict), None)

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
                timings=read_rows(folder / "timings.jsonl"),
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
