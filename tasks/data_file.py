"""Writer of data files in TFF's SQLite format, which are written completely or not at all."""

import contextlib
import os
import pathlib
import shutil
import sqlite3
from collections.abc import Iterable, Iterator

from fedmf.files import append_privately, expanded, make_folder

SPLITS = ("train", "heldout", "test")
# An application id in the SQLite header marks where a file comes from, so that reports can tell
# synthetic and imported data from real data. TFF's loader ignores the id.
SYNTHETIC = 0x464D4653
IMPORTED = 0x464D4649
LABELLED = 0x464D464C
ORIGINS = {
    SYNTHETIC: "synthetic corpus",
    IMPORTED: "imported text",
    LABELLED: "imported rows with labels",
}


def is_labelled(path: str | os.PathLike[str]) -> bool:
    """Returns whether a file is a data file of labelled rows, from its SQLite header."""
    try:
        with open(expanded(path), "rb") as file:
            header_bytes = file.read(72)
    except OSError:
        return False
    return header_bytes.startswith(b"SQLite format 3\0") and (
        int.from_bytes(header_bytes[68:72], "big") == LABELLED
    )


def check_new(path: pathlib.Path, *, overwrite: bool) -> None:
    """Raises an error if the path is a folder, or an existing file that must not be replaced."""
    if path.is_dir() or (path.exists() and not overwrite):
        raise ValueError(f"{path} exists already: choose another file name or pass overwrite=True")


def unwritable(path: pathlib.Path, error: OSError) -> ValueError:
    """Returns an error that says that a file cannot be written."""
    return ValueError(
        f"cannot write {path}: {error.strerror or error}; choose a folder that "
        "exists and is writable"
    )


@contextlib.contextmanager
def create(
    path: pathlib.Path, application_id: int, *, overwrite: bool
) -> Iterator[sqlite3.Connection]:
    """Creates a new data file, and yields its connection for `write_client`.

    The file takes the name `path` only when the block ends without an error. Only its owner can
    read it, since it may hold texts that people wrote.

    A killed writer leaves hidden `.<name>.<process id>.partial` files, which the next writer of the
    same name removes.

    Args:
      path: the file to write; its folder must exist.
      application_id: `SYNTHETIC`, `IMPORTED` or `LABELLED`.
      overwrite: replace an existing file.

    Raises:
      ValueError: a folder, an existing file without `overwrite`, or a folder
        that cannot be written.
    """
    check_new(path, overwrite=overwrite)
    partial_path = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        _remove_partial_files(path)
        # The file is created here with private permissions, which SQLite keeps.
        append_privately(partial_path).close()
    except OSError as error:
        raise unwritable(path, error) from None
    connection = sqlite3.connect(partial_path)
    try:
        # The file needs no journal, because an unfinished file is deleted anyway.
        connection.executescript(
            f"""
            PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;
            PRAGMA application_id = {application_id};
            CREATE TABLE examples
              (split_name TEXT NOT NULL, client_id TEXT NOT NULL,
               serialized_example_proto BLOB NOT NULL);
            CREATE TABLE client_metadata
              (client_id TEXT NOT NULL, split_name TEXT NOT NULL, num_examples INTEGER NOT NULL);
            """
        )
        yield connection
        # This index serves both queries of TFF's loader, by client, and by client and split.
        connection.execute("CREATE INDEX index_examples_client ON examples (client_id, split_name)")
        connection.execute(
            "CREATE INDEX index_metadata_split ON client_metadata (split_name, client_id)"
        )
        connection.commit()
        connection.close()
        with partial_path.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(partial_path, path)
    except (sqlite3.Error, OSError) as error:
        raise ValueError(
            f"cannot write {path}: {error}; check the free space of its folder"
        ) from None
    finally:
        connection.close()
        partial_path.unlink(missing_ok=True)


@contextlib.contextmanager
def scratch_folder(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Makes a folder beside `path` for temporary files, and removes it at the end.

    Use it inside `create`: its next call removes the folders of killed processes.
    """
    scratch_path = path.with_name(f".{path.name}.scratch.{os.getpid()}.partial")
    try:
        make_folder(scratch_path)
        yield scratch_path
    finally:
        shutil.rmtree(scratch_path, ignore_errors=True)


def write_client(
    connection: sqlite3.Connection, client_id: str, split: str, records: Iterable[bytes]
) -> int:
    """Appends a client's serialized examples to a split, and returns the number of examples.

    A client without examples is left out.
    """
    record_rows = ((split, client_id, record) for record in records)
    num_records = connection.executemany(
        "INSERT INTO examples VALUES (?, ?, ?)", record_rows
    ).rowcount
    # SQLite reports -1 rows for an empty insertion, which must not be counted.
    if num_records > 0:
        connection.execute(
            "INSERT INTO client_metadata VALUES (?, ?, ?)", (client_id, split, num_records)
        )
    return max(num_records, 0)


def _remove_partial_files(path: pathlib.Path) -> None:
    """Removes partial files of a data file whose writing processes were killed, but not those of
    running processes.
    """
    partial_prefix = f".{path.name}."
    for partial in path.parent.iterdir():
        if not (partial.name.startswith(partial_prefix) and partial.name.endswith(".partial")):
            continue
        writer_pid = partial.name.split(".")[-2]
        try:
            os.kill(int(writer_pid), 0)
        except ProcessLookupError:
            if partial.is_dir():
                shutil.rmtree(partial, ignore_errors=True)
            else:
                partial.unlink(missing_ok=True)
        except (ValueError, PermissionError):
            continue
