"""Reads and changes data files by plain SQL, independently of the loaders."""

import contextlib
import sqlite3

from fedmf.tasks import example_proto


def execute(path, statement, *parameters):
    """Executes and commits a statement, and returns its rows."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(statement, parameters).fetchall()


def records(path):
    """Returns (split, client, serialized example) in the order of the file."""
    return execute(
        path, "SELECT split_name, client_id, serialized_example_proto FROM examples ORDER BY rowid"
    )


def sentences(path):
    """Returns (split, client) -> sentences of the client, in the order of the file."""
    client_sentences = {}
    for split, client, record in records(path):
        text = example_proto.decode_example(record)["tokens"].decode()
        client_sentences.setdefault((split, client), []).append(text)
    return client_sentences
