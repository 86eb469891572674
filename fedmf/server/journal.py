"""The journal of a server or a run: the only code that commits a round.

private/
  rounds.jsonl          a row for each round that was committed: who took part, counts; mode 0600
  journal/000012.npz    the newest of 12 committed rounds: its row, its release, and what the steps
                        after it need; digests of the rows before, and of the files that noise and
                        sums follow from; mode 0600

Between a round's noise and its commit runs only this library's arithmetic, and nothing of a round
is shown before. A round is committed by making its numbered file, which can be done once: a
committed release is never computed again, and one that was not committed has been seen by nobody.

The row of the newest round is in its numbered file, and joins rounds.jsonl before the next round is
committed, with the record of what was computed from its release. The digests of the bound files are
taken of what this process wrote or read, and compared before every commit: what somebody edits
meanwhile is refused, and never signed.
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
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

JOURNAL = "private/journal"
ROWS = "private/rounds.jsonl"
_CHANGED = (
    "the {owner}'s folder {path} was moved, replaced, closed or gone on with elsewhere: nothing "
    "was released; open it again where it is, in one process"
)
_EDITED = (
    "{name} of the {owner}'s folder {path} changed while it was in use: nothing was released; put "
    "back the {owner}'s own file and {go_on}, or begin a new {owner}, with another seed"
)
_DAMAGED = (
    "{path} is damaged or not of this {owner} ({cause}): without its own newest file no round can "
    "be released safely, so begin a new {owner}, with another seed"
)
_TRIES = 10
_RECORD = b', "record": '
# What the disk or the machine says, and may not say the next time.
_PASSING = (
    *(errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN),
    *(errno.ESTALE, errno.ETIMEDOUT, errno.EACCES, errno.EPERM),
)
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Owner:
    """Whose rounds a journal has, in the words of its errors.

    Attributes:
      noun: "server" or "run".
      go_on: what its user does once a file was put back.
    """

    noun: str
    go_on: str


SERVER = Owner(noun="server", go_on="call release() again")
RUN = Owner(noun="run", go_on="resume it with resume=True")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Committed:
    """What a journal has of the past.

    Attributes:
      rows: of all rounds, as they were committed; those before the newest with their records.
      arrays: of the newest round; empty before the first.
      lines: the rows as text.
    """

    rows: list[dict[str, Any]]
    arrays: dict[str, np.ndarray]
    lines: list[bytes] = dataclasses.field(default_factory=list)

    def record_lines(self) -> list[bytes]:
        """Returns the records of all rounds but the newest, as lines of JSON."""
        # Inside of a text a quotation mark is escaped: the bytes are those of the key.
        return [line.split(_RECORD, 1)[1][:-2] + b"\n" for line in self.lines[:-1]]


class Journal:
    """Commits rounds in a folder that is locked.

    Args:
      path: of the folder.
      folder_lock: its lock, which `commit` needs.
      bound: names of the files that noise and sums follow from.
      owner: whose rounds they are.
      read_bound: reads of a bound file what its digest is taken of.
    """

    def __init__(
        self,
        path: pathlib.Path,
        folder_lock: FolderLock,
        bound: Sequence[str],
        owner: Owner,
        *,
        read_bound: Callable[[pathlib.Path], bytes] = pathlib.Path.read_bytes,
    ) -> None:
        self.path = path
        self._lock = folder_lock
        self._bound = tuple(bound)
        self._owner = owner
        self._read_bound = read_bound
        self._rows = AppendedFile(path / ROWS)
        self._header: dict[str, Any] = {}
        self._digest_by_name: dict[str, str] = {}
        self._stamp_by_name: dict[str, Stamp] = {}
        self._record: dict[str, Any] | None = None

    @property
    def rounds(self) -> int:
        """Rounds that were committed."""
        return int(self._header["rounds"])

    def begin(self, contents: Mapping[str, bytes]) -> None:
        """Makes the journal before round 0.

        Args:
          contents: of the bound files, by their names.

        Raises:
          ValueError: another process has committed a round here.
          OSError: it cannot be written.
        """
        self._digest_by_name = {name: _sha256(contents[name]) for name in self._bound}
        make_folder(self._folder)
        if self.has_rounds():
            raise self._changed()
        self._file(0).unlink(missing_ok=True)  # of a process that was killed before round 0
        self._rows.begin()
        self._header = self._header_after(0, "")
        self._write(0, self._header, {})
        sync_folder(self._folder)

    def has_rounds(self) -> bool:
        """Whether a round was committed in this folder."""
        return self._newest_number() > 0

    def read(self, contents: Mapping[str, bytes]) -> Committed:
        """Reads what was committed.

        Args:
          contents: of the bound files as they are now, by their names.

        Raises:
          ValueError: a file is damaged, missing, or of another server or run.
        """
        self._digest_by_name = {name: _sha256(contents[name]) for name in self._bound}
        number = self._newest_number()
        path = self._file(max(number, 0))
        with self.undamaged(path):
            check_archive(path)
            with np.load(path, allow_pickle=False) as entries:
                header = json.loads(entries["header"].item())
                arrays = {name: entries[name] for name in entries.files if name != "header"}
            if header["rounds"] != number:
                raise ValueError(f"it is of {header['rounds']} rounds")
            if header["files"] != self._digest_by_name:
                raise ValueError(f"it was written with other files {', '.join(self._bound)}")
        with self.undamaged(self.path / ROWS):
            lines = self._restored_lines(header)
            rows = msgspec.json.Decoder(dict[str, Any]).decode_lines(b"".join(lines))
        # What is read here is handed out: no power failure may take it back.
        sync_folder(self._folder)
        self._header = header
        self._remove_older()
        return Committed(rows=rows, arrays=arrays, lines=lines)

    def _restored_lines(self, header: Mapping[str, Any]) -> list[bytes]:
        """Returns the rows of all rounds as text, and removes what is behind them."""
        content = (self.path / ROWS).read_bytes()
        past = content[: header["end"]]
        if _sha256(past) != header["digest"]:
            raise ValueError("it is not the record that the newest round was committed with")
        # What is behind joined for a commit that was not done, and a power failure leaves anything
        # of it. Whole rows of later rounds show that the journal is an older one.
        for line in self._rows.restore(past).splitlines(keepends=True):
            later = round_of(line)
            if line.endswith(b"\n") and later is not None and later >= header["rounds"]:
                raise ValueError(
                    f"{later + 1} rounds were committed, and the journal's newest file is of "
                    f"{header['rounds']}"
                )
        self._flush_rows()
        return [*past.splitlines(keepends=True), *header["row"].encode().splitlines(keepends=True)]

    def commit(self, t: int, row: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Makes round t a committed one; survives a crash at any point, and may be called again
        with the same arguments after an error.

        Args:
          t: the round.
          row: what is kept of it for ever; JSON.
          arrays: what the steps after it need, until the next round is committed.

        Raises:
          ValueError: the folder or one of its files is not the one that this process left.
          OSError: it could not be written.
        """
        if self.rounds == t + 1:  # an interrupt came when all was done
            return
        self._join_newest_row()
        text = strict_json.dumps({"round": t, **row}) + "\n"
        after = self._header_after(t + 1, text)
        self.check_place()
        number = self._newest_number()
        if number == t + 1 and self._header_of(number) == after:  # an interrupt came behind it
            self._end_commit(after)
            return
        if number != t:
            raise self._changed()
        if self._header_of(t) != self._header:
            raise self.edited(f"{JOURNAL}/{self._file(t).name}")
        self.check_files()
        try:
            self._rows.check()
            self._rows.flush(sync=True)
        except FileWasEdited:
            raise self.edited(ROWS) from None
        self._write(t + 1, after, arrays)
        self.check_place()
        if self._newest_number() != t + 1:
            raise self._changed()
        self._end_commit(after)

    def end_round(self, record: Mapping[str, Any] | None = None) -> None:
        """Adds the newest round's row to the rows, where a journal from a backup is told by it.

        Args:
          record: what was computed from the round's release. A power failure before the next commit
            may lose it, and it is computed again.
        """
        self._record = None if record is None else dict(record)
        self._join_newest_row()
        self._flush_rows()

    def _flush_rows(self) -> None:
        """Writes the rows, unless another process may be writing them, too."""
        if self._lock.is_exclusive:
            with contextlib.suppress(OSError, FileWasEdited):  # the next commit does the same
                self._rows.flush()

    def _join_newest_row(self) -> None:
        """Adds the newest round's row to the rows, once."""
        text = self._header["row"]
        if not text or self._rows.end != self._header["end"]:
            return
        if self._record is not None:
            # As one more entry of the object.
            record = strict_json.dumps(self._record)
            text = f"{text[:-2]}{_RECORD.decode()}{record}}}\n"
        self._rows.append(text.encode())

    def _end_commit(self, after: dict[str, Any]) -> None:
        """Makes the newest file one that no power failure takes back, and counts its round.

        It may be called again after an interrupt.
        """
        # Before anybody sees it: a name that a power failure takes back would make the round one
        # that was never released.
        sync_folder(self._folder)
        self._header, self._record = after, None
        self._remove_older()

    def _remove_older(self) -> None:
        """Removes files of earlier rounds, so that without the newest none is released again; and
        what killed processes left of theirs.
        """
        with contextlib.suppress(OSError):
            for path in self._folder.iterdir():
                is_earlier = path.stem.isdecimal() and int(path.stem) < self.rounds
                is_rest = path.suffix == ".part" and self._lock.is_exclusive
                if is_earlier or is_rest:
                    path.unlink()

    def _header_after(self, rounds: int, row: str) -> dict[str, Any]:
        """Returns the header of the file that makes so many rounds committed ones."""
        return {
            "rounds": rounds,
            "end": self._rows.end,
            "digest": self._rows.digest(),
            "row": row,
            "files": self._digest_by_name,
        }

    def check_files(self) -> None:
        """Refuses bound files that are not the ones of `begin` or `read`.

        Raises:
          ValueError: one was edited, replaced or removed.
        """
        for name, digest in self._digest_by_name.items():
            try:
                stamp = stamp_of(self.path / name)
                if stamp == self._stamp_by_name.get(name):
                    continue
                is_same = _sha256(self._read_bound(self.path / name)) == digest
            except OSError:
                is_same = False
            if not is_same:
                raise self.edited(name)
            self._stamp_by_name[name] = stamp

    def check_place(self) -> None:
        """Refuses another folder than the locked one in its place.

        Raises:
          ValueError: the folder is closed, moved or of the process that this was forked from.
        """
        if self._lock.descriptor is None:
            raise self._changed()
        ours = os.fstat(self._lock.descriptor)
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            raise self._changed() from None
        if (ours.st_dev, ours.st_ino) != (there.st_dev, there.st_ino):
            raise self._changed()

    @property
    def _folder(self) -> pathlib.Path:
        return self.path / JOURNAL

    def _file(self, rounds: int) -> pathlib.Path:
        return self._folder / f"{rounds:06d}.npz"

    def _newest_number(self) -> int:
        return newest_number(self.path)

    def _header_of(self, rounds: int) -> Any:
        """Returns the header of a numbered file.

        Raises:
          ValueError: it is damaged.
        """
        try:
            with np.load(self._file(rounds), allow_pickle=False) as entries:
                return json.loads(entries["header"].item())
        except OSError:  # which may be over the next time
            raise
        except READ_ERRORS:
            raise self.edited(f"{JOURNAL}/{self._file(rounds).name}") from None

    def _write(
        self, rounds: int, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> None:
        entries = {"header": np.array(json.dumps(header)), **arrays}
        path = self._file(rounds)

        def write(out: Any) -> None:
            np.savez(out, **entries)

        try:
            write_exclusively(path, write, mode=0o600)
        except FileExistsError:
            raise self._changed() from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if not self._lock.is_exclusive:
                raise OSError(
                    error.errno,
                    "the file system has neither links nor locks, so that two processes could "
                    "commit one round: name a folder on a local disk",
                    str(path),
                ) from error
            # Nobody else writes here while this process has the lock.
            write_atomically(path, write, mode=0o600)

    @contextlib.contextmanager
    def undamaged(self, path: pathlib.Path) -> Iterator[None]:
        """Raises ValueError where the file turns out to be damaged or not of this owner."""
        try:
            yield
        except (checks.TooLargeForMemory, MemoryError):
            raise  # nothing is damaged
        except READ_ERRORS as error:
            if isinstance(error, OSError) and error.errno in _PASSING:
                raise
            cause = type(error).__name__
            if str(error):
                cause = str(error).splitlines()[0]
            noun = self._owner.noun
            raise ValueError(_DAMAGED.format(path=path, owner=noun, cause=cause)) from None

    def _changed(self) -> ValueError:
        return ValueError(_CHANGED.format(owner=self._owner.noun, path=self.path))

    def edited(self, name: str) -> ValueError:
        """Returns the error for a file of the folder that somebody changed."""
        owner = self._owner
        text = _EDITED.format(name=name, owner=owner.noun, path=self.path, go_on=owner.go_on)
        return ValueError(text)


def newest_number(path: pathlib.Path) -> int:
    """Returns the committed rounds of a folder by the names in its journal; -1 without a file."""
    try:
        names = os.listdir(path / JOURNAL)
    except (FileNotFoundError, NotADirectoryError):
        return -1
    stems = [name.removesuffix(".npz") for name in names if name.endswith(".npz")]
    return max((int(stem) for stem in stems if stem.isdecimal()), default=-1)


def bound_digests(path: pathlib.Path) -> dict[str, str]:
    """Returns the digests, by name, of the files that a folder's journal was written with.

    Raises:
      READ_ERRORS of fedmf.mechanisms.storage: the journal is missing or damaged.
    """
    with _newest_file(path) as entries:
        header = json.loads(entries["header"].item())
    return dict(header["files"])


def committed_rows(path: pathlib.Path) -> list[dict[str, Any]]:
    """Returns the rows of all rounds of a folder, in which rounds may be committed meanwhile.

    Raises:
      READ_ERRORS of fedmf.mechanisms.storage: the journal is missing or damaged.
    """
    with _newest_file(path) as entries:
        header = json.loads(entries["header"].item())
    with open(path / ROWS, "rb") as file:
        past = file.read(header["end"])
    if _sha256(past) != header["digest"]:
        raise ValueError(f"{ROWS} is not the record that the newest round was committed with")
    return msgspec.json.Decoder(dict[str, Any]).decode_lines(past + header["row"].encode())


def newest_of(path: pathlib.Path) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Returns the row of a folder's newest round, in a list, and its arrays; no row before the
    first.

    Raises:
      READ_ERRORS of fedmf.mechanisms.storage: the journal is missing or damaged.
    """
    with _newest_file(path) as entries:
        header = json.loads(entries["header"].item())
        arrays = {name: entries[name] for name in entries.files if name != "header"}
    rows = [json.loads(line) for line in header["row"].splitlines()]
    return rows, arrays


def _newest_file(path: pathlib.Path) -> Any:
    """Opens the newest file of a journal, also while rounds are committed there."""
    for _ in range(_TRIES):
        newest = path / JOURNAL / f"{max(newest_number(path), 0):06d}.npz"
        # Another process may have removed it since.
        with contextlib.suppress(FileNotFoundError):
            return np.load(newest, allow_pickle=False)
    raise FileNotFoundError(f"{path / JOURNAL} has no file")


def checked_arrays(name: str, value: Any) -> list[np.ndarray]:
    """Returns read-only copies of arrays that a journal can keep.

    Raises:
      TypeError: `value` is no list of arrays of numbers or texts.
    """
    hint = "give a list of arrays, such as the model's weights"
    arrays = []
    for i, entry in enumerate(checks.entries(name, value, hint=hint)):
        array = np.array(entry)
        if array.dtype.kind not in "biufcSU":
            raise TypeError(f"{name}[{i}] is of dtype {array.dtype}: {hint}, in a dtype of numpy")
        array.setflags(write=False)
        arrays.append(array)
    return arrays


def round_of(line: bytes) -> int | None:
    """Returns the round of a row; None where the line is no row."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    t = row.get("round") if isinstance(row, dict) else None
    return t if isinstance(t, int) else None


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
