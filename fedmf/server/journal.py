"""The journal of a server or a run, in which each round is committed. No other code commits a
round.

private/
  rounds.jsonl          a row for each round that was committed: who took part, counts; mode 0600
  journal/000012.npz    the newest of 12 committed rounds: its row, its release, and what the steps
                        after it need; digests of the rows before, and of the files that noise and
                        sums follow from; mode 0600

Between a round's noise and its commit only this library's arithmetic runs, and nothing of the round
is shown. A round is committed by creating its numbered file, which can be done once: a committed
release is never computed again, and nobody has seen a release that was not committed.

The row of the newest round is in its numbered file. It joins rounds.jsonl before the next round is
committed, with the round's row of metrics.jsonl, which is computed from the release. The journal
keeps digests of bound files, of their contents as this process wrote or read them. It compares them
before every commit, so that a file which somebody edits meanwhile is refused and never signed.
"""

import contextlib
import dataclasses
import errno
import json
import os
import pathlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from fedmf import checks, strict_json
from fedmf.files import (
    FolderLock,
    check_archive,
    make_folder,
    sync_folder,
    write_atomically,
    write_exclusively,
)
from fedmf.mechanisms.storage import READ_ERRORS
from fedmf.server.appended_file import AppendedFile, FileWasEdited, Stamp, stamp_of
from fedmf.server.folder_kind import FolderKind
from fedmf.server.journal_reading import (
    JOURNAL,
    ROWS,
    arrays_of,
    hex_digest,
    newest_number,
    round_of,
)

_METRICS_KEY = b', "metrics_row": '
# Numbers of the errors of the disk or the machine that may be gone at the next attempt.
_TRANSIENT_ERRORS = (
    *(errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN),
    *(errno.ESTALE, errno.ETIMEDOUT, errno.EACCES, errno.EPERM),
)
_NO_LINK_ERRORS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Committed:
    """The committed rounds, as they are read from a journal.

    Attributes:
      rows: the journal's rows of all rounds. A run's rows have the entry "metrics_row", which only
        the newest may lack.
      arrays: arrays of the newest round; empty before the first.
      lines: the rows as text.
    """

    rows: list[dict[str, Any]]
    arrays: dict[str, np.ndarray]
    lines: list[bytes] = dataclasses.field(default_factory=list)

    def metrics_lines(self) -> list[bytes]:
        """Returns the metrics rows as lines of JSON, of all rounds that have one."""
        # JSON escapes quotation marks inside a text, so these bytes occur only where a row has this
        # key.
        metrics_rows = [line for line in self.lines if _METRICS_KEY in line]
        return [line.split(_METRICS_KEY, 1)[1][:-2] + b"\n" for line in metrics_rows]

    def numbered_arrays(self, prefix: str) -> list[np.ndarray]:
        """Returns the arrays that `with_numbers` stored under this prefix.

        Raises:
          KeyError: one is missing.
        """
        num_arrays = sum(name.startswith(prefix) for name in self.arrays)
        return [self.arrays[f"{prefix}{i}"] for i in range(num_arrays)]


def with_numbers(prefix: str, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Returns a dict of arrays with the names prefix0, prefix1, ..., under which a journal stores
    them.
    """
    return {f"{prefix}{i}": array for i, array in enumerate(arrays)}


class Journal:
    """A journal in a locked folder, which commits the rounds of a server or a run and reads them
    again.

    Args:
      path: path of the folder.
      folder_lock: lock of the folder, which `commit` needs.
      kind: kind of the folder, with the names of its bound files.
    """

    def __init__(self, path: pathlib.Path, folder_lock: FolderLock, kind: FolderKind) -> None:
        self.path = path
        self._lock = folder_lock
        self._kind = kind
        self._rows = AppendedFile(path / ROWS)
        self._header: dict[str, Any] = {}
        self._digest_by_name: dict[str, str] = {}
        self._stamp_by_name: dict[str, Stamp] = {}
        self._metrics_row: dict[str, Any] | None = None
        self._process_token = secrets.token_hex(8)

    @property
    def rounds(self) -> int:
        """The number of committed rounds."""
        return int(self._header["rounds"])

    def begin(self, contents: Mapping[str, bytes]) -> None:
        """Creates an empty journal before round 0.

        Args:
          contents: contents of the bound files, by name.

        Raises:
          ValueError: another process has committed a round here.
          OSError: it cannot be written.
        """
        self._digest_by_name = {name: hex_digest(contents[name]) for name in self._kind.bound}
        make_folder(self._folder)
        if self.has_rounds():
            raise self._kind.moved_error(self.path)
        # The file of rows may exist already, if an earlier process was killed before round 0.
        self._file(0).unlink(missing_ok=True)
        self._rows.begin()
        self._header = self._next_header(0, "")
        self._write(0, self._header, {})
        sync_folder(self._folder)

    def has_rounds(self) -> bool:
        """Returns whether any round has been committed in this folder."""
        return newest_number(self.path) > 0

    def is_newest(self) -> bool:
        """Returns whether no other process has committed a round since this one did."""
        return newest_number(self.path) == self.rounds

    def read(self, contents: Mapping[str, bytes]) -> Committed:
        """Reads the committed rounds from the folder.

        Args:
          contents: contents of the bound files as they are now, by name.

        Raises:
          ValueError: a file is damaged, missing, or of another server or run.
        """
        self._digest_by_name = {name: hex_digest(contents[name]) for name in self._kind.bound}
        num_rounds = newest_number(self.path)
        newest_path = self._file(max(num_rounds, 0))
        with self.undamaged(newest_path):
            check_archive(newest_path)
            with np.load(newest_path, allow_pickle=False) as archive_entries:
                newest_header = json.loads(archive_entries["header"].item())
                arrays = arrays_of(archive_entries)
            if newest_header["rounds"] != num_rounds:
                raise ValueError(f"it is of {newest_header['rounds']} rounds")
            recorded_digests = dict(newest_header["files"])
        changed_names = [
            name
            for name, digest in self._digest_by_name.items()
            if recorded_digests.get(name) != digest
        ]
        if changed_names:
            raise self._kind.changed_error(changed_names)
        with self.undamaged(self.path / ROWS):
            row_lines = self._restored_lines(newest_header)
            journal_rows = msgspec.json.Decoder(dict[str, Any]).decode_lines(b"".join(row_lines))
        # The caller may publish the rounds that were read, so a power failure must not undo their
        # commit.
        sync_folder(self._folder)
        self._header = newest_header
        if self._metrics_row is not None:
            self._append_newest_row()
        self._flush_rows()
        self._remove_older_files()
        return Committed(rows=journal_rows, arrays=arrays, lines=row_lines)

    def _restored_lines(self, header: Mapping[str, Any]) -> list[bytes]:
        """Returns the rows of all rounds as lines of text, and removes bytes that follow them in
        rounds.jsonl.

        Raises:
          ValueError: the rows are not those that the newest round was committed with.
        """
        file_content = (self.path / ROWS).read_bytes()
        earlier_rows = file_content[: header["end"]]
        if hex_digest(earlier_rows) != header["digest"]:
            raise ValueError("it is not the record that the newest round was committed with")
        newest_line = header["newest_row"].encode()
        # A power failure may leave any part of the rows after the committed ones. If whole rows of
        # later rounds follow, the journal was replaced by an older backup.
        for line in self._rows.restore(earlier_rows).splitlines(keepends=True):
            later_round = round_of(line)
            if not line.endswith(b"\n") or later_round is None:
                continue
            if later_round >= header["rounds"]:
                raise ValueError(
                    f"{later_round + 1} rounds were committed, and the journal's newest file is of "
                    f"{header['rounds']}"
                )
            if newest_line and line.startswith(newest_line[:-2] + _METRICS_KEY):
                self._metrics_row = json.loads(line)["metrics_row"]
                newest_line = line
        return [*earlier_rows.splitlines(keepends=True), *newest_line.splitlines(keepends=True)]

    def commit(
        self, t: int, journal_row: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> None:
        """Commits round t. A crash at any point leaves the round either committed or not. After an
        error the call may be repeated with the same arguments.

        Args:
          t: the round.
          journal_row: JSON that is kept for ever.
          arrays: arrays for the steps after the commit, kept until the next round is committed.

        Raises:
          ValueError: the folder or one of its files is not the one that this process left.
          OSError: it could not be written.
        """
        # The round is committed already, because an earlier call was interrupted after its commit.
        if self.rounds == t + 1:
            return
        self._append_newest_row()
        row_text = strict_json.dumps({"round": t, **journal_row}) + "\n"
        next_header = self._next_header(t + 1, row_text)
        self.check_place()
        num_rounds = newest_number(self.path)
        if num_rounds == t + 1 and self._header_of(num_rounds) == next_header:
            # A numbered file of this round exists already, because an earlier call was interrupted
            # after creating it.
            self._end_commit(next_header)
            return
        if num_rounds != t:
            raise self._kind.moved_error(self.path)
        if self._header_of(t) != self._header:
            raise self.edited(f"{JOURNAL}/{self._file(t).name}")
        self.check_files()
        try:
            self._rows.check()
            self._rows.flush(sync=True)
        except FileWasEdited:
            raise self.edited(ROWS) from None
        self._write(t + 1, next_header, arrays)
        self.check_place()
        if newest_number(self.path) != t + 1:
            raise self._kind.moved_error(self.path)
        self._end_commit(next_header)

    def end_round(self, metrics_row: Mapping[str, Any] | None = None) -> None:
        """Appends the row of the newest round to rounds.jsonl. If the journal is put back from a
        backup later, this row shows it.

        Args:
          metrics_row: the round's row of metrics.jsonl, with values computed from its release. A
            power failure before the next commit may lose it, and then it is computed again.
        """
        self._metrics_row = None if metrics_row is None else dict(metrics_row)
        self._append_newest_row()
        self._flush_rows()

    def _flush_rows(self) -> None:
        """Writes pending rows to rounds.jsonl, unless another process may be writing there too."""
        if self._lock.is_exclusive:
            # If this write of rows fails, the next commit repeats it.
            with contextlib.suppress(OSError, FileWasEdited):
                self._rows.flush()

    def _append_newest_row(self) -> None:
        """Appends the row of the newest round to the rows to be written, unless it is among them
        already.
        """
        row_text = self._header["newest_row"]
        if not row_text or self._rows.end != self._header["end"]:
            return
        if self._metrics_row is not None:
            # The metrics become the last entry of the JSON object of the round's row.
            metrics_text = strict_json.dumps(self._metrics_row)
            row_text = f"{row_text[:-2]}{_METRICS_KEY.decode()}{metrics_text}}}\n"
        self._rows.append(row_text.encode())

    def _end_commit(self, next_header: dict[str, Any]) -> None:
        """Syncs the folder, so that no power failure undoes the newest commit, and counts its
        round.

        It may be called again after an interrupt.
        """
        # Without this sync, a power failure could undo the creation of the file after somebody has
        # seen its release. The round would then be released a second time, with the same noise.
        sync_folder(self._folder)
        self._header = next_header
        self._metrics_row = None
        self._remove_older_files()

    def _remove_older_files(self) -> None:
        """Removes the files of earlier rounds, and unfinished files that killed processes left.

        If somebody removes the newest file later, no earlier one is there to resume from.
        """
        with contextlib.suppress(OSError):
            for path in self._folder.iterdir():
                is_earlier = path.stem.isdecimal() and int(path.stem) < self.rounds
                is_unfinished = path.suffix == ".part" and self._lock.is_exclusive
                if is_earlier or is_unfinished:
                    path.unlink()

    def _next_header(self, rounds: int, row_text: str) -> dict[str, Any]:
        """Returns the header of the file that commits round `rounds` - 1, including the row of that
        round.
        """
        return {
            "rounds": rounds,
            "end": self._rows.end,
            "digest": self._rows.digest(),
            "newest_row": row_text,
            "files": self._digest_by_name,
            # If two processes commit one round without locks, each recognises its own file by this
            # token, even if their rows are equal.
            "process": self._process_token,
        }

    def check_files(self) -> None:
        """Raises ValueError if a bound file has changed since `begin` or `read`. Bound files are
        those that determine noise and sums.

        Raises:
          ValueError: one was edited, replaced or removed.
        """
        for name, digest in self._digest_by_name.items():
            try:
                stamp = stamp_of(self.path / name)
                if stamp == self._stamp_by_name.get(name):
                    continue
                is_unchanged = hex_digest(self._kind.bound_content(self.path / name)) == digest
            except OSError:
                is_unchanged = False
            if not is_unchanged:
                raise self.edited(name)
            self._stamp_by_name[name] = stamp

    def check_place(self) -> None:
        """Raises ValueError if the path no longer leads to the folder that this process has locked.

        Raises:
          ValueError: the folder is closed, moved or of the process that this was forked from.
        """
        if self._lock.descriptor is None:
            raise self._kind.moved_error(self.path)
        locked_folder = os.fstat(self._lock.descriptor)
        try:
            folder_at_path = os.stat(self.path)
        except FileNotFoundError:
            raise self._kind.moved_error(self.path) from None
        if not os.path.samestat(locked_folder, folder_at_path):
            raise self._kind.moved_error(self.path)

    @property
    def _folder(self) -> pathlib.Path:
        """The folder that has the numbered files."""
        return self.path / JOURNAL

    def _file(self, rounds: int) -> pathlib.Path:
        """Returns the path of the numbered file for this number of committed rounds."""
        return self._folder / f"{rounds:06d}.npz"

    def _header_of(self, rounds: int) -> Any:
        """Returns the header of the numbered file for this number of committed rounds.

        Raises:
          ValueError: it is damaged.
        """
        try:
            with np.load(self._file(rounds), allow_pickle=False) as entries:
                return json.loads(entries["header"].item())
        except OSError:
            # An error of the disk does not mean that the file is damaged, so it is passed on.
            raise
        except READ_ERRORS:
            raise self.edited(f"{JOURNAL}/{self._file(rounds).name}") from None

    def _write(
        self, rounds: int, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> None:
        """Creates the numbered file for this number of committed rounds.

        Raises:
          ValueError: it exists.
          OSError: it could not be written, or another process might write it as well.
        """
        archive_entries = {"header": np.array(json.dumps(header)), **arrays}
        new_path = self._file(rounds)

        def write(out: Any) -> None:
            np.savez(out, **archive_entries)

        try:
            write_exclusively(new_path, write, mode=0o600)
        except FileExistsError:
            raise self._kind.moved_error(self.path) from None
        except OSError as error:
            if error.errno not in _NO_LINK_ERRORS:
                raise
            if not self._lock.is_exclusive:
                raise OSError(
                    error.errno,
                    "the file system has neither links nor locks, so that two processes could "
                    "commit one round: name a folder on a local disk",
                    str(new_path),
                ) from error
            # No other process writes to the folder while this one holds its lock.
            write_atomically(new_path, write, mode=0o600)

    @contextlib.contextmanager
    def undamaged(self, path: pathlib.Path) -> Iterator[None]:
        """Raises ValueError if the block, which reads the file, finds it damaged or foreign."""
        try:
            yield
        except (checks.TooLargeForMemory, MemoryError):
            # A lack of memory does not mean that the file is damaged, so the error is passed on.
            raise
        except READ_ERRORS as error:
            if isinstance(error, OSError) and error.errno in _TRANSIENT_ERRORS:
                raise
            raise self._kind.damaged_error(path, error) from None

    def edited(self, name: str) -> ValueError:
        """Returns the error for a file of the folder that was edited while in use."""
        return self._kind.edited_error(self.path, name)


def checked_arrays(name: str, value: Any) -> list[np.ndarray]:
    """Checks that a journal can store these arrays, and returns read-only copies.

    Raises:
      TypeError: `value` is no list of arrays of numbers or texts.
    """
    hint = "give a list of arrays, such as the model's weights"
    read_only_arrays = []
    for i, entry in enumerate(checks.entries(name, value, hint=hint)):
        array_copy = np.array(entry)
        if array_copy.dtype.kind not in "biufcSU":
            raise TypeError(
                f"{name}[{i}] is of dtype {array_copy.dtype}: {hint}, in a dtype of numpy"
            )
        array_copy.setflags(write=False)
        read_only_arrays.append(array_copy)
    return read_only_arrays
