"""The rounds of a run: each is committed in the journal, and then written for readers.

metrics.jsonl, participation.csv and selected.csv follow from the journal. What a crash kept from
them is written when the run is resumed.
"""

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedmf import strict_json
from fedmf.files import FolderLock, write_atomically
from fedmf.mechanisms.storage import READ_ERRORS
from fedmf.runs.digests import sha256
from fedmf.server.appended_file import AppendedFile, FileWasEdited
from fedmf.server.journal import RUN, Committed, Journal, with_numbers
from fedmf.server.journal_reading import (
    JOURNAL,
    bound_digests,
    committed_rows,
    newest_of,
    round_of,
)

IDENTITY = "private/identity.json"
# What noise and updates follow from.
BOUND = ("config.json", "plan.json", "mechanism.npz", "private/noise_seed", IDENTITY)
_HEADER = "round,client\n"
_BEFORE, _RELEASE = "before.", "release."


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CommittedRound:
    """What is committed of a round, before anybody sees anything of it.

    Attributes:
      t: the round.
      clients: those that took part, int64.
      selected: those that were selected, int64.
      numbers: counts, losses and public scales of the round.
      private: its private metrics; None without them.
      canaries: products of the release with the canaries' directions; empty without canaries.
      release: arrays that the server's step needs of the release.
      before: arrays that it needs of before the step: weights and optimizer state.
      program: what computes this round and those after it, where that is another program than that
        of the rounds before.
    """

    t: int
    clients: np.ndarray
    selected: np.ndarray
    numbers: Mapping[str, Any]
    private: Mapping[str, Any] | None = None
    canaries: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
    release: Sequence[np.ndarray] = ()
    before: Sequence[np.ndarray] = ()
    program: Mapping[str, Any] | None = None

    def row(self) -> dict[str, Any]:
        """Returns what is kept of the round for ever, as JSON."""
        row: dict[str, Any] = {"clients": self.clients.tolist()}
        if len(self.selected) > len(self.clients):
            row["selected"] = self.selected.tolist()
        row["numbers"] = dict(self.numbers)
        if self.private is not None:
            row["private"] = dict(self.private)
        if len(self.canaries):
            row["canaries"] = self.canaries.tolist()
        if self.program is not None:
            row["program"] = dict(self.program)
        return row

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the arrays by the names that they have in the journal."""
        return with_numbers(_BEFORE, self.before) | with_numbers(_RELEASE, self.release)

    def record(self) -> dict[str, Any]:
        """Returns the part of the round's row of metrics.jsonl that was committed."""
        record: dict[str, Any] = {"round": self.t, "clients": len(self.clients)}
        record |= {name: self.numbers[name] for name in self.numbers if name != "not_finite"}
        if self.private is not None:
            record["private"] = dict(self.private)
        return record

    @classmethod
    def of(cls, committed: Committed) -> "CommittedRound":
        """Returns the newest round of a journal.

        Raises:
          KeyError: an array or an entry of its row is missing.
        """
        row = committed.rows[-1]
        return cls(
            t=row["round"],
            clients=np.array(row["clients"], np.int64),
            selected=selected_of(row),
            numbers=row["numbers"],
            private=row.get("private"),
            canaries=np.array(row.get("canaries", ()), np.float64),
            release=committed.numbered_arrays(_RELEASE),
            before=committed.numbered_arrays(_BEFORE),
            program=row.get("program"),
        )


def selected_of(row: Mapping[str, Any]) -> np.ndarray:
    """Returns the clients that were selected for the round of a row."""
    return np.array(row.get("selected", row["clients"]), np.int64)


def newest_round(path: pathlib.Path) -> CommittedRound | None:
    """Returns the newest committed round of a run's folder, which may be training; None before the
    first.

    Raises:
      ValueError: the journal is damaged.
    """
    try:
        rows, arrays = newest_of(path)
    except READ_ERRORS as error:
        raise ValueError(
            f"{path / JOURNAL} is damaged ({error}): put back the run's own"
        ) from error
    return CommittedRound.of(Committed(rows=rows, arrays=arrays)) if rows else None


def journal_cohorts(path: pathlib.Path) -> list[np.ndarray]:
    """Returns who took part in each committed round of a run's folder.

    Raises:
      ValueError: the journal is damaged, or participation.csv is not what follows from it.
    """
    try:
        recorded = b""
        # Before the journal: a run that goes on commits a round before it stands there.
        if (path / "participation.csv").exists():
            recorded = (path / "participation.csv").read_bytes()
        rows = committed_rows(path)
    except READ_ERRORS as error:
        raise ValueError(
            f"{path / JOURNAL} is damaged ({error}): put back the run's own"
        ) from error
    texts = [_csv_rows(row["round"], row["clients"]) for row in rows]
    # A power failure may keep rows from participation.csv. Rows behind the journal's show that the
    # journal is an older one.
    if not _csv(texts).startswith(recorded):
        raise ValueError(
            f"{path / 'participation.csv'} is not what the run's journal has: put back its own, or "
            "remove it and resume the run"
        )
    return [np.array(row["clients"], np.int64) for row in rows]


class RunRounds:
    """The journal of a run in a locked folder, and the files that follow from it.

    Attributes:
      committed: what `read` found; nothing of a new run.

    Args:
      path: of the run's folder.
      folder_lock: its lock.
    """

    def __init__(self, path: pathlib.Path, folder_lock: FolderLock) -> None:
        self.path = path
        self._journal = Journal(path, folder_lock, BOUND, RUN, read_bound=bound_content)
        self._metrics = AppendedFile(path / "metrics.jsonl")
        self._participation = AppendedFile(path / "participation.csv")
        self._selected = AppendedFile(path / "selected.csv")
        self._has_selections = False
        self.committed = Committed(rows=[], arrays={})

    def begin(self, config_text: str, identity: Mapping[str, Any]) -> None:
        """Makes the journal before round 0.

        Args:
          config_text: of config.json, which is written afterwards.
          identity: what a resume must have again.
        """
        content = strict_json.dumps(identity, indent=2) + "\n"
        write_atomically(self.path / IDENTITY, content, mode=0o600)
        names = [name for name in BOUND if name != "config.json"]
        contents = {name: bound_content(self.path / name) for name in names}
        contents["config.json"] = config_text.encode()
        self._journal.begin(contents)
        self._restore_readers_files(self.committed)
        self._flush()

    def read(self) -> None:
        """Reads what was committed, and writes what a crash kept from the readers' files.

        The newest row has its record where metrics.jsonl has it.

        Raises:
          ValueError: a file is damaged, edited or not of this run.
        """
        contents = {name: bound_content(self.path / name) for name in BOUND}
        committed = self._journal.read(contents)
        try:
            rest = self._restore_readers_files(committed)
        except FileWasEdited as error:
            raise ValueError(
                f"cannot resume {self.path}: {error}; put back its own, or remove it, and it is "
                "written again"
            ) from None
        for line in rest.splitlines(keepends=True):
            self._take_record(line, committed)
        self._flush()
        self.committed = committed

    def sync(self) -> None:
        """Writes the readers' files so that no power failure takes them back."""
        self._flush(sync=True)

    def forget_committed(self) -> None:
        """Frees the memory of what `read` found."""
        self.committed = Committed(rows=[], arrays={})

    def _flush(self, *, sync: bool = False) -> None:
        files = [self._metrics, self._participation]
        if self._has_selections:
            files.append(self._selected)
        for file in files:
            try:
                file.flush(sync=sync)
            except FileWasEdited as error:
                raise self._edited(error) from None

    def _edited(self, error: FileWasEdited) -> ValueError:
        """Returns the error for a readers' file that somebody changed while the run went on."""
        return ValueError(
            f"{self.path}: {error} while the run went on; its rounds are committed: put back its "
            "own, or remove it, and resume the run, which writes it again"
        )

    def _restore_readers_files(self, committed: Committed) -> bytes:
        """Takes the rows of the readers' files, and returns what metrics.jsonl has behind them.

        Raises:
          FileWasEdited: one has other rows.
        """
        rows = committed.rows
        rest = self._metrics.restore(b"".join(committed.record_lines()))
        participation = [_csv_rows(row["round"], row["clients"]) for row in rows]
        later = _rounds_of(self._participation.restore(_csv(participation)))
        if later and max(later) >= len(rows):
            raise self._from_backup("participation.csv", max(later), len(rows))
        self._has_selections = any("selected" in row for row in rows)
        if self._has_selections:
            selected = [_csv_rows(row["round"], selected_of(row).tolist()) for row in rows]
            self._selected.restore(_csv(selected))
        return rest

    def _take_record(self, line: bytes, committed: Committed) -> None:
        """Takes the newest round's record from a line of metrics.jsonl, if it has what was
        committed; else it is computed again.

        Raises:
          ValueError: it is of a round that the journal does not have.
        """
        t, rows = round_of(line), committed.rows
        if t is None or not line.endswith(b"\n"):
            return
        if t >= len(rows):
            raise self._from_backup("metrics.jsonl", t, len(rows))
        record = json.loads(line)
        expected = strict_json.null_nonfinite(CommittedRound.of(committed).record())
        has_committed = all(record.get(name) == value for name, value in expected.items())
        if t == len(rows) - 1 and "record" not in rows[t] and has_committed:
            rows[t]["record"] = record
            self._journal.end_round(record)
            self._metrics.append(line)

    def _from_backup(self, name: str, t: int, rounds: int) -> ValueError:
        """Returns the error for a file with a round that the journal does not have."""
        return ValueError(
            f"cannot resume {self.path}: {name} has round {t}, and the newest of the journal is "
            f"round {rounds - 1}: the journal was put back from a backup, and going on would "
            "release rounds again with the same noise; start a new folder"
        )

    def commit(self, committed: CommittedRound) -> None:
        """Commits a round, and then writes who took part in it.

        Raises:
          ValueError: the folder or one of its files is not the one that this process left.
          OSError: there is no room. What is missing of a committed round is written at a resume.
        """
        self._journal.commit(committed.t, committed.row(), committed.arrays())
        clients, selected = committed.clients.tolist(), committed.selected.tolist()
        if len(selected) > len(clients) and not self._has_selections:
            self._has_selections = True
            # Before this round, those that were selected took part.
            try:
                self._participation.check()
            except FileWasEdited as error:
                raise self._edited(error) from None
            self._selected.restore((self.path / "participation.csv").read_bytes())
        if self._has_selections:
            self._selected.append(_csv_rows(committed.t, selected).encode())
        self._participation.append(_csv_rows(committed.t, clients).encode())
        self._flush()

    def add_record(self, record: Mapping[str, Any]) -> None:
        """Writes what was computed from the newest round's release.

        Raises:
          OSError: there is no room.
        """
        self._metrics.append((strict_json.dumps(record) + "\n").encode())
        self._flush()
        self._journal.end_round(record)

    def digest_by_name(self) -> dict[str, str]:
        """Returns the digests of the readers' files as this process wrote them."""
        files = [self._metrics, self._participation]
        if self._has_selections:
            files.append(self._selected)
        return {file.path.name: file.digest() for file in files}


def bound_content(path: pathlib.Path) -> bytes:
    """Returns what the journal binds of a file: all of it, but of plan.json the programs, which are
    noted there after a resume by another one.

    Raises:
      OSError: it cannot be read.
    """
    content = path.read_bytes()
    if path.name != "plan.json" or b'"programs"' not in content:
        return content
    try:
        plan = json.loads(content)
        plan.pop("programs", None)
    except (ValueError, AttributeError):  # as damaged as it is
        return content
    return (strict_json.dumps(plan, indent=2) + "\n").encode()


def changed_bound_files(path: pathlib.Path) -> list[str]:
    """Returns the bound files of a run's folder that are not those it was begun with.

    Raises:
      ValueError: the journal is missing or damaged.
    """
    try:
        digest_by_name = bound_digests(path)
        return [name for name in BOUND if digest_by_name[name] != _digest_of(path / name)]
    except READ_ERRORS as error:
        raise ValueError(
            f"{path / JOURNAL} is missing or damaged, so that nothing says what was released: put "
            "back the run's own, or start a new folder"
        ) from error


def _digest_of(path: pathlib.Path) -> str | None:
    try:
        return sha256(bound_content(path))
    except FileNotFoundError:
        return None


def _rounds_of(rows: bytes) -> list[int]:
    """Returns the rounds of whole rows of participation.csv, whatever else is there."""
    first = [line.split(b",")[0] for line in rows.splitlines(keepends=True) if line[-1:] == b"\n"]
    return [int(t) for t in first if t.isdigit()]


def _csv(rounds: Iterable[str]) -> bytes:
    return (_HEADER + "".join(rounds)).encode()


def _csv_rows(t: int, clients: Sequence[int]) -> str:
    return "".join(f"{t},{client}\n" for client in clients)
