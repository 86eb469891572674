"""Data files that are refused, each in one sentence that names the file and the way out."""

import contextlib
import sqlite3

import pytest

from fedmf.tasks.stackoverflow import data, describe_file
from tests.refusals import refusal
from tests.tasks.data_files import execute

CHECKS = (data.open_corpus, describe_file)


def refused(path, error, *parts):
    for check in CHECKS:
        with refusal(None, error, naming=[path, *parts]):
            check(path)


@pytest.mark.parametrize(
    ("name", "content", "error", "words"),
    [
        ("none.sqlite", None, FileNotFoundError, "`fedmf data synth --clients N --out FILE`"),
        ("empty", b"", ValueError, "is truncated"),
        ("beginning", b"S", ValueError, "fedmf data synth"),
        ("stackoverflow.sqlite.lzma", b"\x5d\x00\x00" * 40, ValueError, "unlzma"),
        (".", None, ValueError, "Is a directory"),
    ],
)
def test_files_that_are_no_database_are_refused(tmp_path, name, content, error, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    refused(tmp_path / name, error, words)


@pytest.mark.parametrize("num_bytes", [10, 4_096, -1])
def test_truncated_files_are_refused(corpus_copy, num_bytes):
    whole_content = corpus_copy.read_bytes()
    corpus_copy.write_bytes(whole_content[:num_bytes])
    refused(corpus_copy, ValueError, "is truncated", "fedmf data synth")


def test_files_damaged_inside_are_refused(corpus_copy):
    content = bytearray(corpus_copy.read_bytes())
    content[100:4096] = b"\xff" * 3996
    corpus_copy.write_bytes(content)
    refused(corpus_copy, ValueError, "cannot be read", "fedmf data synth")


@pytest.fixture
def in_wal_mode(corpus_copy):
    """Sets the corpus to write-ahead mode, in which its header counts no changes."""
    execute(corpus_copy, "PRAGMA journal_mode=WAL")
    return corpus_copy


def updated_but_open(path):
    """Returns a connection that has changed the file and not written the change back."""
    writer = sqlite3.connect(path)
    writer.execute("UPDATE examples SET client_id = '1' WHERE client_id = '2'")
    writer.commit()
    return writer


def test_changes_in_a_log_beside_the_file_are_refused(in_wal_mode, tmp_path):
    version_before = data.version_of(in_wal_mode)
    with contextlib.closing(updated_but_open(in_wal_mode)) as writer:
        assert data.version_of(in_wal_mode) == version_before  # This is why the file is refused.
        refused(
            in_wal_mode,
            ValueError,
            "copy.sqlite-wal",
            "close its writer",
            "`PRAGMA journal_mode=DELETE`",
        )
        link = tmp_path / "link.sqlite"
        link.symlink_to(in_wal_mode)
        refused(link, ValueError, "copy.sqlite-wal")
        # After the write-back the header still does not show the changes, so that it is not enough.
        writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert data.version_of(in_wal_mode) == version_before
        refused(in_wal_mode, ValueError, "write-ahead mode", "`PRAGMA journal_mode=DELETE`")


def test_a_file_is_opened_after_it_left_write_ahead_mode(in_wal_mode, corpus_file):
    updated_but_open(in_wal_mode).close()
    refused(in_wal_mode, ValueError, "write-ahead mode")
    execute(in_wal_mode, "PRAGMA journal_mode=DELETE")
    assert data.open_corpus(in_wal_mode).path == in_wal_mode
    assert data.version_of(in_wal_mode) != data.version_of(corpus_file)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("DELETE FROM client_metadata WHERE split_name = 'train'", "has no train split"),
        ("DROP TABLE examples", "in a table 'examples'"),
        ("DROP TABLE client_metadata", "in a table 'client_metadata'"),
        (
            "ALTER TABLE examples RENAME COLUMN serialized_example_proto TO other",
            "has no column 'serialized_example_proto'",
        ),
        ("DELETE FROM examples", "holds no tf.train.Example"),
    ],
)
def test_files_of_another_format_are_refused(corpus_copy, statement, words):
    execute(corpus_copy, statement)
    refused(corpus_copy, ValueError, words, "fedmf data synth")


@pytest.mark.parametrize("record", ["x'ff'", "x'0a00'", "'text'", "NULL"])
def test_records_that_are_no_examples_are_refused(corpus_copy, record):
    for statement in (
        "DROP TABLE examples",
        "CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)",
        f"INSERT INTO examples VALUES ('train', '1', {record})",
    ):
        execute(corpus_copy, statement)
    refused(corpus_copy, ValueError, "fedmf data synth")


def test_names_with_odd_letters_are_opened_read_only(corpus_copy, tmp_path):
    odd = corpus_copy.rename(tmp_path / "a b%20?#'é.sqlite")
    odd.chmod(0o400)
    time_before = odd.stat().st_mtime_ns
    assert describe_file(odd)["splits"]["train"]["clients"] == 40
    assert odd.stat().st_mtime_ns == time_before


def test_files_of_other_programs_are_not_called_synthetic(corpus_copy):
    execute(corpus_copy, "PRAGMA application_id = 0")
    execute(corpus_copy, "DELETE FROM client_metadata WHERE split_name = 'heldout'")
    description = describe_file(corpus_copy)
    assert description["origin"] == "StackOverflow file"
    # A split may be without clients
    assert description["splits"]["heldout"] == {"clients": 0, "examples": 0}
