"""The folder of a server or a run while one process has locked it. It begins, reads and commits;
all that differs between the two kinds is in their `FolderKind`.

A folder has, in the order of writing:
  bound files          what noise and sums follow from; the journal has their digests
  private/             secrets and the journal; mode 0700
  readable files       lines that follow from the journal; without rows before round 0
  the config file      written last; with it the folder holds a server or a run

Each round is committed in the journal, and then the readable files get its lines. They are checked
before the next commit. Lines that a crash or a full disk kept from them are written at the next
commit, or when the folder is read.
"""

import contextlib
import os
import pathlib
import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedmf import strict_json
from fedmf.files import FolderLock, lock, make_folder, sync_names, write_atomically
from fedmf.server.appended_file import AppendedFile, FileWasEdited
from fedmf.server.folder_kind import FolderKind, ReadableFile
from fedmf.server.journal import Committed, Journal
from fedmf.server.journal_reading import JOURNAL, committed_rounds, round_of


def check_begun(path: pathlib.Path, kind: FolderKind) -> None:
    """Checks that a folder holds a server or a run of this kind.

    Raises:
      ValueError: it holds none, or one that was stopped before round 0.
    """
    if (path / kind.config_name).is_file():
        return
    if (path / "private").is_dir() and not committed_rounds(path):
        raise ValueError(
            f"{path} holds no {kind.noun} yet: one was stopped there before round 0 (no "
            f"{kind.config_name}); {kind.way_to_begin}"
        )
    raise ValueError(
        f"{path} holds no {kind.noun} to resume or to read (no {kind.config_name}): name the "
        f"folder of a {kind.noun}, or begin one there"
    )


def check_new(path: pathlib.Path, kind: FolderKind) -> None:
    """Checks that a server or a run may begin in a folder, where it overwrites nothing. The folder
    need not exist.

    Raises:
      ValueError: it holds one already, or files that stand in the way.
      OSError: it cannot be read.
    """
    if (path / kind.config_name).exists():
        raise ValueError(
            f"{path} already holds a {kind.noun}: {kind.way_to_resume}, or name another folder"
        )
    obstacle_names = _obstacles(path, kind)
    if obstacle_names:
        raise ValueError(
            f"{path} has a {obstacle_names[0]} and no {kind.config_name}: begin a {kind.noun} in a "
            "new folder, or empty this one, so that nothing is overwritten"
        )


def _obstacles(path: pathlib.Path, kind: FolderKind) -> list[str]:
    """Returns the names of files because of which nothing new may begin in a folder."""
    all_names: list[str] = []
    if path.exists():
        # Unfinished files are ignored, because they may be left from a process that was killed.
        all_names = sorted(name for name in os.listdir(path) if not name.endswith(".part"))
    refused_names = set(kind.later_files)
    # A server or run that was stopped before round 0 leaves some of its files beside this folder.
    if not (path / JOURNAL).is_dir():
        refused_names.update(kind.first_files, (file.name for file in kind.readable_files))
        refused_names.add(kind.metrics_name or "")
    obstacle_names = [name for name in all_names if name in refused_names]
    if not kind.allows_other_files:
        expected_names = {
            "private",
            *kind.first_files,
            *(file.name for file in kind.readable_files),
        }
        obstacle_names += [name for name in all_names if name not in expected_names]
    if committed_rounds(path):
        obstacle_names.append(JOURNAL)
    if kind.metrics_name in all_names and (path / kind.metrics_name).stat().st_size:
        obstacle_names.append(kind.metrics_name)
    return obstacle_names


class _UnwrittenLines(NamedTuple):
    """Lines of one round that are added to the readable files after the round is committed.

    Attributes:
      t: the round.
      journal_row: row of the round in the journal.
      starts: the byte of each readable file at which its lines begin.
    """

    t: int
    journal_row: Mapping[str, Any]
    starts: list[int]


class JournalFolder:
    """Write access to the folder of one server or run, until `close`. It is exclusive where the
    file system has locks.

    Args:
      path: path of the folder.
      kind: whether it is of a server or a run, with what follows from that.
      make: whether to make the folder if it does not exist.

    Raises:
      ValueError: another process has locked it, it cannot be opened or made, or its file system has
        no locks and the kind requires one.
    """

    def __init__(self, path: pathlib.Path, kind: FolderKind, *, make: bool = True) -> None:
        # The path is made absolute, because the process may change its working folder.
        self.path = path.absolute()
        self._kind = kind
        folder_lock = self._lock(make=make)
        self.close = weakref.finalize(self, folder_lock.release)
        self._journal = Journal(self.path, folder_lock, kind)
        self._lines = [AppendedFile(self.path / file.name) for file in kind.readable_files]
        self._is_begun = [file.starts_as is None for file in kind.readable_files]
        self._metrics: AppendedFile | None = None
        if kind.metrics_name is not None:
            self._metrics = AppendedFile(self.path / kind.metrics_name)
        self._unwritten: _UnwrittenLines | None = None

    def _lock(self, *, make: bool) -> FolderLock:
        """Returns the lock of the folder."""
        folder_kind = self._kind
        try:
            if make:
                make_folder(self.path)
            folder_lock = lock(self.path, requires_lock=folder_kind.requires_lock)
        except NotImplementedError:
            raise ValueError(
                f"{self.path} is on a file system without locks, where two {folder_kind.noun}s "
                "could use it at once: name a folder on a local disk"
            ) from None
        except (OSError, ValueError) as error:
            if make:
                raise self._unwritable_error(error) from None
            reason = getattr(error, "strerror", None) or error
            raise ValueError(
                f"cannot open folder {self.path} ({reason}): name the folder of a "
                f"{folder_kind.noun}"
            ) from None
        if folder_lock is None:
            raise ValueError(
                f"{self.path} is in use by another {folder_kind.noun}: wait for it or end it, and "
                f"{folder_kind.way_to_resume}, or name another folder"
            )
        return folder_lock

    def _unwritable_error(self, error: OSError | ValueError) -> ValueError:
        """Returns the error for a folder to which this process cannot write."""
        reason = getattr(error, "strerror", None) or error
        return ValueError(
            f"cannot write to folder {self.path} ({reason}): name a folder you may write to"
        )

    def prepare(self) -> None:
        """Checks that a new server or run may begin in this folder, and creates private/ there.

        Raises:
          ValueError: the folder holds one already, or files that it would overwrite, or cannot be
            written to.
        """
        try:
            check_new(self.path, self._kind)
            make_folder(self.path / "private")
            (self.path / "private").chmod(0o700)
            make_folder(self.path / JOURNAL)
        except OSError as error:
            raise self._unwritable_error(error) from error

    def begin(self, texts: Mapping[str, str], contents: Mapping[str, bytes] | None = None) -> None:
        """Creates the journal, and then the config file, whose existence says that the folder holds
        a server or a run. All other files of before round 0 must exist.

        Args:
          texts: texts of the config file and of other bound files that this call writes. All other
            bound files must exist.
          contents: contents of bound files that the caller has written. All others are read here.

        Raises:
          ValueError: another process has committed a round here.
          OSError: a file cannot be written.
        """
        folder_kind = self._kind
        # The digests are of the contents that were written, and not of the files, which somebody
        # may edit meanwhile.
        content_by_name = dict(contents or {})
        for name in folder_kind.bound:
            bound_path = self.path / name
            if name in content_by_name:
                continue
            if name not in texts:
                content_by_name[name] = folder_kind.bound_content(bound_path)
                continue
            content_by_name[name] = texts[name].encode()
            if name != folder_kind.config_name:
                write_atomically(bound_path, texts[name], mode=0o600)
        self._journal.begin(content_by_name)
        self._restore_readable_files(Committed(rows=[], arrays={}))
        self.sync()
        write_atomically(self.path / folder_kind.config_name, texts[folder_kind.config_name])
        sync_names(self.path)

    def read(self, contents: Mapping[str, bytes] | None = None) -> Committed:
        """Reads the committed rounds, and adds lines that the readable files lack after a crash.

        Args:
          contents: contents of bound files that the caller has read; the others are read here.

        Raises:
          ValueError: a file is damaged or edited, belongs to another server or run, or the journal
            was put back from a backup.
        """
        content_by_name = dict(contents or {})
        for name in self._kind.bound:
            if name not in content_by_name:
                with self.undamaged(name):
                    content_by_name[name] = self._kind.bound_content(self.path / name)
        committed_rounds = self._journal.read(content_by_name)
        self._restore_readable_files(committed_rounds)
        # If this write of missing lines fails, the next commit repeats it.
        with contextlib.suppress(OSError):
            self._flush()
        return committed_rounds

    def undamaged(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Raises ValueError if the block finds this file damaged."""
        return self._journal.undamaged(self.path / name)

    def commit(
        self, t: int, journal_row: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> None:
        """Commits round t, and then adds its lines to the readable files. A crash at any point
        leaves the round either committed or not. After an error the call may be repeated with the
        same arguments.

        Args:
          t: the round.
          journal_row: JSON that is kept for ever.
          arrays: arrays for the steps after the commit, kept until the next round is committed.

        Raises:
          ValueError: the folder or one of its files is not the one that this process left.
          OSError: it could not be written.
        """
        # An earlier call of `commit` may have been interrupted after it had committed the round.
        if self._journal.rounds == t:
            self._journal.check_place()
            self._check_readable_files()
            line_starts = [file.end for file in self._lines]
            self._unwritten = _UnwrittenLines(t, {"round": t, **journal_row}, line_starts)
        self._journal.commit(t, journal_row, arrays)
        # The release is committed, and no error from here on may keep it from the caller. Lines
        # that are missing now are written by the next `commit` or `read`.
        with contextlib.suppress(OSError, FileWasEdited):
            self._add_lines()
            self._flush()

    def end_round(self, metrics_row: Mapping[str, Any] | None = None) -> None:
        """Ends the newest committed round. If the journal is put back from a backup later, its row
        in rounds.jsonl shows it.

        Args:
          metrics_row: the round's row for the file of metrics; None for a kind without that file.
        """
        self._journal.end_round(metrics_row)
        if self._metrics is None or metrics_row is None:
            return
        self._metrics.append((strict_json.dumps(metrics_row) + "\n").encode())
        # If the write of the metrics fails, the next commit repeats it.
        with contextlib.suppress(OSError, FileWasEdited):
            self._metrics.flush()

    def sync(self) -> None:
        """Writes the readable files to the disk, so that they survive a power failure.

        Raises:
          ValueError: one was removed.
          OSError: one cannot be written.
        """
        try:
            self._flush(sync=True)
        except FileWasEdited as error:
            raise self._kind.removed_error(self.path, error.name) from None

    def digest_by_name(self) -> dict[str, str]:
        """Returns the digests of the readable files by name, of the contents that this process
        wrote.
        """
        return {file.path.name: file.digest() for file in self._begun_files()}

    def _begun_files(self) -> list[AppendedFile]:
        """Returns the readable files that were begun, and the file of metrics if there is one."""
        begun_files = [
            file for file, is_begun in zip(self._lines, self._is_begun, strict=True) if is_begun
        ]
        if self._metrics is not None:
            begun_files.append(self._metrics)
        return begun_files

    def _flush(self, *, sync: bool = False) -> None:
        """Writes all lines that the readable files lack."""
        for file in self._begun_files():
            file.flush(sync=sync)

    def _restore_readable_files(self, committed: Committed) -> None:
        """Sets the lines that the readable files must have, those of all committed rounds.

        Raises:
          ValueError: a file has other lines, or the journal was put back from a backup.
        """
        journal_rows = committed.rows
        if self._metrics is not None:
            self._restore(self._metrics, committed.metrics_lines(), len(journal_rows))
        for i, kind_of_file in enumerate(self._kind.readable_files):
            if kind_of_file.starts_as is not None:
                self._is_begun[i] = any(
                    kind_of_file.is_needed(journal_row) for journal_row in journal_rows
                )
            if self._is_begun[i]:
                lines_by_round = [
                    kind_of_file.lines_of(journal_row).encode() for journal_row in journal_rows
                ]
                self._restore(
                    self._lines[i], lines_by_round, len(journal_rows), kind_of_file.header
                )

    def _restore(
        self, file: AppendedFile, lines_by_round: list[bytes], num_rounds: int, header: str = ""
    ) -> None:
        """Sets the lines that a file must have, and checks the bytes that follow them.

        A power failure leaves any bytes there, and a kill the newest round's row of metrics, which
        is computed again. Whole lines of later rounds show a backup.

        Raises:
          ValueError: the file has other lines, or the journal was put back from a backup.
        """
        file_name = file.path.name
        try:
            extra_bytes = file.restore(header.encode() + b"".join(lines_by_round))
        except FileWasEdited:
            raise self._kind.edited_rows_error(self.path, file_name) from None
        for line in extra_bytes.splitlines(keepends=True):
            extra_round = round_of(line)
            if extra_round is None or not line.endswith(b"\n"):
                continue
            if extra_round >= num_rounds:
                raise self._kind.backup_error(self.path, file_name, extra_round, num_rounds)
            if extra_round < len(lines_by_round):
                raise self._kind.edited_rows_error(self.path, file_name)

    def _check_readable_files(self) -> None:
        """Checks that nobody changed a readable file, and writes lines that are missing.

        Raises:
          ValueError: one has changed since this process wrote it.
          OSError: one cannot be read or written.
        """
        try:
            for file in self._begun_files():
                file.check()
            self._add_lines()
            # Where locks do not work, another process may have committed the coming round. Then
            # this commit will be refused, and the other process's lines must stay.
            if self._journal.is_newest():
                self._flush()
        except FileWasEdited as error:
            raise self._kind.edited_error(self.path, error.name) from None

    def _add_lines(self) -> None:
        """Adds the lines of the newest committed round to the readable files, for the next flush.
        It adds them once, and may be called again after an interrupt.
        """
        unwritten_lines = self._unwritten
        if unwritten_lines is None or self._journal.rounds <= unwritten_lines.t:
            return
        for i, kind_of_file in enumerate(self._kind.readable_files):
            appended_file = self._lines[i]
            new_lines = kind_of_file.lines_of(unwritten_lines.journal_row).encode()
            if self._is_begun[i]:
                if appended_file.end == unwritten_lines.starts[i]:
                    appended_file.append(new_lines)
            elif kind_of_file.is_needed(unwritten_lines.journal_row):
                appended_file.restore(
                    self._earlier_lines(kind_of_file, unwritten_lines) + new_lines
                )
                self._is_begun[i] = True

    def _earlier_lines(self, kind_of_file: ReadableFile, unwritten: _UnwrittenLines) -> bytes:
        """Returns a readable file's lines for the rounds before it was needed, from the file of
        which it begins as a copy.
        """
        names = [file.name for file in self._kind.readable_files]
        source_index = names.index(str(kind_of_file.starts_as))
        source_content = self._lines[source_index].path.read_bytes()
        return source_content[: unwritten.starts[source_index]]
