"""Import of a user's text as a data file: rows, users, sentences, and failures."""

import json
import os
import subprocess
import sys
import time

import duckdb
import pytest

from fedmf.tasks import example_proto
from fedmf.tasks.row_table import ImportOptions
from fedmf.tasks.stackoverflow import data, describe_file, import_text, text_import
from fedmf.tasks.stackoverflow.sentences import split_sentences
from tests.cli.program import fedmf, printed_by, refused
from tests.refusals import refusal
from tests.tasks.data_files import records, sentences


def by_user(path):
    return {user: texts for (_, user), texts in sentences(path).items()}


def many_rows(users=20):
    """Rows enough that no split is empty."""
    return [(f"crowd{i}", "One sentence. Another one.") for i in range(users)]


def write_csv(path, rows, header="user,text"):
    quoted = ['"' + text.replace('"', '""') + '"' for row in rows for text in row]
    lines = [f"{user},{text}" for user, text in zip(quoted[::2], quoted[1::2], strict=True)]
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def write_parquet(path, query):
    with duckdb.connect() as db:
        db.execute(f"COPY ({query}) TO '{path}'")


@pytest.fixture
def table(tmp_path):
    return write_csv(tmp_path / "posts.csv", many_rows())


def run_import(path, out=None, **options):
    out = out or path.with_name("corpus.sqlite")
    overwrite = options.pop("overwrite", False)
    split = ImportOptions(**options)
    return import_text(path, out, split, overwrite=overwrite, progress=False), out


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("It's (well-known), isn’t it?", ["it's ( well-known ) , isn't it ?"]),
        ("One. Two! Three?  Four", ["one .", "two !", "three ?", "four"]),
        ('He said "Go!" Then left.', ['he said " go ! "', "then left ."]),
        ("A title\r\n\r\nits text", ["a title", "its text"]),
        ("x &lt; 3.5 &amp;&amp; y", ["x < 3 . 5 & & y"]),
        ("see https://a.org/b?c=1. or www.b.de/", ["see <url> .", "or <url>"]),
        ("Stra\u00dfe nai\u0308ve", ["stra\u00dfe na\u00efve"]),
        ("हिन्दी में 👍", ["हिन्दी में 👍"]),
        ("a\x00b \u200b", ["a b"]),
        (" \n\t ", []),
    ],
)
def test_text_is_split_into_sentences(text, sentences):
    assert split_sentences(text) == sentences


def test_the_three_formats_give_the_same_file(tmp_path):
    rows = [*many_rows(), ("ann", 'Said "no".\nTwice, äöü'), ("7", "a, b")]
    csv, jsonl, parquet = paths = [tmp_path / name for name in ("a.csv", "b.jsonl", "c.parquet")]
    write_csv(csv, rows)
    lines = [{"x": [1], "text": text, "user": 7 if user == "7" else user} for user, text in rows]
    jsonl.write_text("".join(json.dumps(line) + "\n" for line in lines))
    read_query = f"read_csv('{csv}', header = true, all_varchar = true)"
    write_parquet(parquet, f'SELECT "user", text FROM {read_query}')
    file_contents = []
    for path in paths:
        summary, out_path = run_import(path, path.with_suffix(".sqlite"))
        assert (summary.rows, summary.rows_without_user, summary.rows_without_text) == (22, 0, 0)
        file_contents.append(sentences(out_path))
    assert file_contents[0] == file_contents[1] == file_contents[2]
    assert by_user(out_path)["ann"] == ['said " no " .', "twice , äöü"]
    assert summary.users == {
        split: sum(s == split for s, _ in file_contents[0]) for split in data.SPLITS
    }
    assert sum(summary.sentences.values()) == sum(map(len, file_contents[0].values())) == 43


def test_the_file_is_what_tffs_loader_and_ours_expect(table):
    summary, out_path = run_import(table)
    description = describe_file(out_path)
    assert description["origin"] == "imported text"
    assert {
        split: description["splits"][split]["clients"] for split in data.SPLITS
    } == summary.users
    # TFF's parser needs these features.
    features = {
        tuple(sorted(example_proto.decode_example(record))) for *_, record in records(out_path)
    }
    assert features == {("creation_date", "score", "tags", "title", "tokens", "type")}
    corpus = data.open_corpus(out_path)
    num_by_client = {}
    for split in data.SPLITS:
        num_by_client |= {(split, user): n for user, n in corpus.client_sizes(split).items()}
    assert num_by_client == {key: len(texts) for key, texts in sentences(out_path).items()}


def test_rows_without_user_or_text_are_counted_and_left_out(tmp_path):
    rows = [("", "nobody's"), ("\u200b", "nobody's"), ("ann", ""), ("bob", " \n"), ("eve", "hi")]
    summary, out_path = run_import(
        write_csv(tmp_path / "rows.csv", [*many_rows(), *rows, ("", "")])
    )
    assert (summary.rows, summary.rows_without_user, summary.rows_without_text) == (26, 3, 2)
    # A user with one row is a user.
    assert by_user(out_path).keys() & {"", "ann", "bob", "eve"} == {"eve"}
    lines = [{"user": user, "text": text} for user, text in many_rows()]
    lines += [{"user": "crowd1", "text": None}, {"user": "a", "text": {}}]
    lines += [{"user": None, "text": "x"}, {"text": "x"}, {"user": ["a"], "text": "x"}]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary, _ = run_import(path, overwrite=True)
    assert (summary.rows, summary.rows_without_user, summary.rows_without_text) == (25, 3, 2)


def test_every_user_is_in_a_split_that_a_command_reads():
    splits = {ImportOptions().split_of(f"user {i}") for i in range(1000)}
    assert splits == {"train", "test"}


def test_users_are_split_by_a_keyed_hash(tmp_path):
    shares = {"heldout_users": 0.1, "test_users": 0.3}
    users = [f"user {i}" for i in range(20_000)]
    splits, other_splits = (
        [ImportOptions(seed=seed, **shares).split_of(user) for user in users] for seed in (0, 1)
    )
    assert splits != other_splits
    for split, share in (("heldout", 0.1), ("test", 0.3), ("train", 0.6)):
        assert abs(splits.count(split) / 20_000 - share) < 6 * (share * (1 - share) / 20_000) ** 0.5
    path = write_csv(tmp_path / "rows.csv", [(user, "hi") for user in users[:300]])
    assert sentences(run_import(path, **shares)[1]).keys() == {
        *zip(splits[:300], users, strict=False)
    }


# tests/audits/test_log.py has the tables that are refused; this test shows that they are checked
# here.
@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("latin.csv", "user,text\nann,caf\u00e9\n".encode("latin-1"), ["line 2 of", "UTF-8"]),
        ("nobody.csv", b"user,text\n,\n,x\nann,\n", ["no row with a user and a text", "3 rows"]),
        ("columns.csv", b"author,body\nann,hi\n", ["no column 'user'", "user_column"]),
        ("columns.jsonl", b'{"user": 1, "body": "x"}\n', ["no column 'text'", "text_column"]),
        ("number.jsonl", b'{"user": 1.0, "text": "x"}\n', ["row 1 of", "the user 1.0"]),
        ("one.csv", b"user,text\nann,hi\n", ["has 1 users", "test_users=0.35"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_files_that_cannot_be_imported_are_refused(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    with refusal(None, naming=[path, *words]):
        run_import(path)
    assert os.listdir(tmp_path) == [name]


def test_parquet_columns_that_are_no_text_are_named(tmp_path):
    path = tmp_path / "rows.parquet"
    write_parquet(path, "SELECT 1 AS \"user\", ['a'] AS text")
    with refusal(r"column 'text' of type VARCHAR\[\]: write it as texts"):
        run_import(path)


@pytest.mark.parametrize(
    ("out", "options", "words"),
    [
        (
            "other.sqlite",
            {"text_column": "user"},
            "`user_column` and `text_column` are both 'user'",
        ),
        ("other.sqlite", {"test_users": 1.0}, "test_users=1.0"),
        ("other.sqlite", {"test_users": 0.5, "heldout_users": 0.5}, "leave nobody to train on"),
        ("other.sqlite", {"seed": -1}, "seed=-1"),
        ("posts.csv", {"overwrite": True}, "is the file that is read"),
        ("corpus.sqlite", {}, "exists already"),
    ],
)
def test_bad_arguments_are_named(table, out, options, words):
    table.with_name("corpus.sqlite").write_text("kept")
    content_before = table.read_bytes()
    with refusal(words):
        run_import(table, table.with_name(out), **options)
    assert table.read_bytes() == content_before
    assert sorted(os.listdir(table.parent)) == ["corpus.sqlite", "posts.csv"]


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, MemoryError, OSError(28, "No space left on device")]
)
def test_a_failed_import_leaves_no_file(table, monkeypatch, error):
    finished_rows = []

    def fail(text):
        finished_rows.append(text)
        if len(finished_rows) > 5:
            raise error
        return split_sentences(text)

    monkeypatch.setattr(text_import, "split_sentences", fail)
    with pytest.raises((KeyboardInterrupt, MemoryError, ValueError)):
        run_import(table)
    assert os.listdir(table.parent) == ["posts.csv"]


def test_a_killed_import_leaves_no_file_and_the_next_one_cleans_up(tmp_path):
    path = tmp_path / "rows.csv"
    out_path = tmp_path / "corpus.sqlite"
    text = "Hello there, this is a text. How are you? I am fine, thanks for asking me."
    write_csv(path, [(str(i % 997), f"{i} {text}") for i in range(50_000)])
    program = (
        "import sys; from fedmf.tasks.stackoverflow import import_text; "
        "import_text(sys.argv[1], sys.argv[2], progress=False)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, path, out_path], stderr=subprocess.DEVNULL
    )
    partial = tmp_path / f".corpus.sqlite.{process.pid}.partial"
    deadline = time.monotonic() + 120
    while not (partial.exists() and partial.stat().st_size > 100_000):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not out_path.exists()
    assert len(os.listdir(tmp_path)) == 3  # The import has a database and a folder of its sort.
    run_import(write_csv(tmp_path / "few.csv", many_rows()))
    assert sorted(os.listdir(tmp_path)) == ["corpus.sqlite", "few.csv", "rows.csv"]


def test_data_import_writes_a_corpus_and_overwrites_on_request(table):
    out_path = table.with_name("corpus.sqlite")
    import_command = f"data import {table} --out {out_path} --quiet"
    assert "users.train" in fedmf(import_command).stdout
    printed_values = printed_by(f"{import_command} --overwrite")
    assert (printed_values["path"], printed_values["rows"]) == (str(out_path), 20)
    assert sum(printed_values["users"].values()) == 20
    refused(import_command, "corpus.sqlite", "--overwrite")
