"""Records of the rounds of a run. Each round is committed in the journal, and then written to
readable files.

The readable files metrics.jsonl, participation.csv and selected.csv follow from the journal. Rows
that are missing after a crash are written when the run is resumed.
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
# Files that determine noise and updates. The journal has their digests.
BOUND = ("config.json", "plan.json", "mechanism.npz", "private/noise_seed", IDENTITY)
_HEADER = "round,client\n"
# Names of a round's arrays in the journal begin with these prefixes.
_BEFORE = "before."
_RELEASE = "release."


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CommittedRound:
    """The data of a round that are committed before anything of the round is shown.

    Attributes:
      t: the round.
      clients: indices of the clients that took part, int64.
      selected: indices of the clients that were selected, int64.
      numbers: counts, losses and public scales of the round.
      private: private metrics of the round; None without them.
      canaries: products of the release with the canaries' directions; empty without canaries.
      release: arrays of the release that the server's step needs.
      before: arrays of the state before the step that it needs: weights and optimizer state.
      program: fingerprint of the program that computes this and later rounds, if it differs from
        that of the earlier rounds; None otherwise.
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
        """Returns the round without its arrays, as a JSON object for the journal."""
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
        """Returns the arrays of the round by the names under which the journal stores them."""
        return with_numbers(_BEFORE, self.before) | with_numbers(_RELEASE, self.release)

    def record(self) -> dict[str, Any]:
        """Returns the part of the round's row in metrics.jsonl that the commit determines."""
        record: dict[str, Any] = {"round": self.t, "clients": len(self.clients)}
        record |= {name: self.numbers[name] for name in self.numbers if name != "not_finite"}
        if self.private is not None:
            record["private"] = dict(self.private)
        return record

    @classmethod
    def of(cls, committed: Committed) -> "CommittedRound":
        """Returns the newest round among those read from a journal.

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
    """Returns the indices of the clients that were selected for a round, from its row in the
    journal.
    """
    return np.array(row.get("selected", row["clients"]), np.int64)


def newest_round(path: pathlib.Path) -> CommittedRound | None:
    """Returns the newest committed round of a run folder; None before the first commit.

    Another process may be training in the folder.

    Raises:
      ValueError: the journal is damaged.
    """
    try:
        journal_rows, arrays = newest_of(path)
    except READ_ERRORS as error:
        raise ValueError(
            f"{path / JOURNAL} is damaged ({error}): put back the run's own"
        ) from error
    if not journal_rows:
        return None
    return CommittedRound.of(Committed(rows=journal_rows, arrays=arrays))


def journal_cohorts(path: pathlib.Path) -> list[np.ndarray]:
    """Returns the clients that took part in each committed round, as the journal of a run folder
    records them.

    Raises:
      ValueError: the journal is damaged, or participation.csv does not agree with it.
    """
    try:
        # participation.csv is read before the journal, because a process that trains this run
        # meanwhile commits a round before it writes the round's rows.
        content = b""
        if (path / "participation.csv").exists():
            content = (path / "participation.csv").read_bytes()
        journal_rows = committed_rows(path)
    except READ_ERRORS as error:
        raise ValueError(
            f"{path / JOURNAL} is damaged ({error}): put back the run's own"
        ) from error
    csv_texts = [_csv_rows(row["round"], row["clients"]) for row in journal_rows]
    # participation.csv may lack rows after a power failure. If it has more rows than the journal,
    # the journal is an older copy of itself.
    if not _csv(csv_texts).startswith(content):
        raise ValueError(
            f"{path / 'participation.csv'} does not agree with the run's journal: put back the "
            "run's own, or remove it and resume the run"
        )
    return [np.array(row["clients"], np.int64) for row in journal_rows]


class RunRounds:
    """The journal of a run in a locked folder, and readable files that are written from it.

    Attributes:
      committed: the committed rounds, after `read`; empty for a new run.

    Args:
      path: path of the run folder.
      folder_lock: lock of the folder.
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
        """Creates the journal before round 0.

        Args:
          config_text: text of config.json, which is written afterwards.
          identity: `task_identity` of the task.
        """
        identity_text = strict_json.dumps(identity, indent=2) + "\n"
        write_atomically(self.path / IDENTITY, identity_text, mode=0o600)
        content_by_name = {"config.json": config_text.encode()}
        for name in BOUND:
            if name != "config.json":
                content_by_name[name] = bound_content(self.path / name)
        self._journal.begin(content_by_name)
        self._restore_readable_files(self.committed)
        self._flush()

    def read(self) -> None:
        """Reads the committed rounds, and adds rows that the readable files lack after a crash.

        The newest row of `committed` has its record if metrics.jsonl has it.

        Raises:
          ValueError: a file is damaged or edited, or belongs to another run.
        """
        content_by_name = {name: bound_content(self.path / name) for name in BOUND}
        committed = self._journal.read(content_by_name)
        try:
            later_lines = self._restore_readable_files(committed)
        except FileWasEdited as error:
            raise ValueError(
                f"cannot resume {self.path}: {error}; put back its own, or remove it, and it is "
                "written again"
            ) from None
        for line in later_lines.splitlines(keepends=True):
            self._take_record(line, committed)
        self._flush()
        self.committed = committed

    def sync(self) -> None:
        """Writes the readable files to disk durably, so that they survive a power failure."""
        self._flush(sync=True)

    def forget_committed(self) -> None:
        """Frees the memory that the committed rounds take."""
        self.committed = Committed(rows=[], arrays={})

    def _flush(self, *, sync: bool = False) -> None:
        """Writes all appended rows to the readable files.

        Raises:
          ValueError: a file was edited during the run.
        """
        for file in self._readable_files():
            try:
                file.flush(sync=sync)
            except FileWasEdited as error:
                raise self._edited_error(error) from None

    def _readable_files(self) -> list[AppendedFile]:
        """Returns the readable files, with selected.csv only if the run has one."""
        readable_files = [self._metrics, self._participation]
        if self._has_selections:
            readable_files.append(self._selected)
        return readable_files

    def _edited_error(self, error: FileWasEdited) -> ValueError:
        """Returns the error for a readable file that was edited during the run."""
        return ValueError(
            f"{self.path}: {error} during the run; its rounds are committed: put back its own, or "
            "remove it, and resume the run, which writes it again"
        )

    def _restore_readable_files(self, committed: Committed) -> bytes:
        """Completes the readable files with the rows of all committed rounds. Returns the lines
        that follow these rows in metrics.jsonl.

        Raises:
          FileWasEdited: a file has other rows.
        """
        rows = committed.rows
        later_lines = self._metrics.restore(b"".join(committed.record_lines()))
        participation_texts = [_csv_rows(row["round"], row["clients"]) for row in rows]
        later_rows = self._participation.restore(_csv(participation_texts))
        newest_round = max(_rounds_of(later_rows), default=-1)
        if newest_round >= len(rows):
            raise self._backup_error("participation.csv", newest_round, len(rows))
        self._has_selections = any("selected" in row for row in rows)
        if self._has_selections:
            selection_texts = [_csv_rows(row["round"], selected_of(row).tolist()) for row in rows]
            self._selected.restore(_csv(selection_texts))
        return later_lines

    def _take_record(self, line: bytes, committed: Committed) -> None:
        """Uses a line of metrics.jsonl as the record of the newest round, if it agrees with the
        commit. Otherwise the record is computed again.

        Raises:
          ValueError: the line is of a round that the journal does not have.
        """
        rows = committed.rows
        t = round_of(line)
        if t is None or not line.endswith(b"\n"):
            return
        if t >= len(rows):
            raise self._backup_error("metrics.jsonl", t, len(rows))
        record = json.loads(line)
        committed_values = strict_json.null_nonfinite(CommittedRound.of(committed).record())
        is_equal = all(record.get(name) == value for name, value in committed_values.items())
        if t == len(rows) - 1 and "record" not in rows[t] and is_equal:
            rows[t]["record"] = record
            self._journal.end_round(record)
            self._metrics.append(line)

    def _backup_error(self, name: str, t: int, rounds: int) -> ValueError:
        """Returns the error for a file that has round t, although the journal has only `rounds`
        rounds.
        """
        return ValueError(
            f"cannot resume {self.path}: {name} has round {t}, and the newest of the journal is "
            f"round {rounds - 1}: the journal was restored from a backup, and a resume would "
            "release rounds again with the same noise; start a new folder"
        )

    def commit(self, committed: CommittedRound) -> None:
        """Commits a round, and then writes the clients that took part to the readable files.

        Raises:
          ValueError: the folder or a file in it was changed since this process wrote it.
          OSError: there is no space on the disk. Files that lack rows of a committed round are
            completed at a resume.
        """
        self._journal.commit(committed.t, committed.row(), committed.arrays())
        clients = committed.clients.tolist()
        selected_ids = committed.selected.tolist()
        if len(selected_ids) > len(clients) and not self._has_selections:
            self._has_selections = True
            # In all earlier rounds every selected client took part, so selected.csv begins with the
            # rows of participation.csv.
            try:
                self._participation.check()
            except FileWasEdited as error:
                raise self._edited_error(error) from None
            self._selected.restore((self.path / "participation.csv").read_bytes())
        if self._has_selections:
            self._selected.append(_csv_rows(committed.t, selected_ids).encode())
        self._participation.append(_csv_rows(committed.t, clients).encode())
        self._flush()

    def add_record(self, record: Mapping[str, Any]) -> None:
        """Writes the record of the newest round, whose values were computed from its release.

        Raises:
          OSError: there is no space on the disk.
        """
        self._metrics.append((strict_json.dumps(record) + "\n").encode())
        self._flush()
        self._journal.end_round(record)

    def digest_by_name(self) -> dict[str, str]:
        """Returns the digests of the readable files by name, of the contents that this process
        wrote.
        """
        return {file.path.name: file.digest() for file in self._readable_files()}


def bound_content(path: pathlib.Path) -> bytes:
    """Returns the part of a file's content that its digest in the journal covers.

    It is the whole file, except for the "programs" of plan.json, which are added to it when another
    program resumes the run.

    Raises:
      OSError: the file cannot be read.
    """
    content = path.read_bytes()
    if path.name != "plan.json" or b'"programs"' not in content:
        return content
    try:
        plan = json.loads(content)
        plan.pop("programs", None)
    # A damaged file is digested as a whole, and its digest will differ from the recorded one.
    except (ValueError, AttributeError):
        return content
    return (strict_json.dumps(plan, indent=2) + "\n").encode()


def changed_bound_files(path: pathlib.Path) -> list[str]:
    """Returns the names of files that changed since the run was begun, among those that determine
    noise and updates.

    Raises:
      ValueError: the journal is missing or damaged.
    """
    try:
        digest_by_name = bound_digests(path)
        return [name for name in BOUND if digest_by_name[name] != _digest_of(path / name)]
    except READ_ERRORS as error:
        raise ValueError(
            f"{path / JOURNAL} is missing or damaged, so that the released rounds are unknown: put "
            "back the run's own, or start a new folder"
        ) from error


def _digest_of(path: pathlib.Path) -> str | None:
    """Returns the SHA-256 digest of a file's `bound_content`, the part of it that the journal
    covers; None if there is no file.
    """
    try:
        return sha256(bound_content(path))
    except FileNotFoundError:
        return None


def _rounds_of(rows: bytes) -> list[int]:
    """Returns the round numbers in lines of participation.csv. Lines that are not whole rows are
    ignored.
    """
    lines = [line for line in rows.splitlines(keepends=True) if line.endswith(b"\n")]
    first_cells = [line.split(b",")[0] for line in lines]
    return [int(cell) for cell in first_cells if cell.isdigit()]


def _csv(texts: Iterable[str]) -> bytes:
    """Returns a CSV file with these rows below the header."""
    return (_HEADER + "".join(texts)).encode()


def _csv_rows(t: int, clients: Sequence[int]) -> str:
    """Returns a CSV row (t, client) for each client of round t."""
    return "".join(f"{t},{client}\n" for client in clients)
