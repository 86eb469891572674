"""Import of a user's labelled rows as a data file: rows, splits, statistics, and refusals."""

import datetime
import json

import duckdb
import numpy as np
import pytest

from fedmf.tasks import example_proto
from fedmf.tasks.classification import describe, import_rows
from fedmf.tasks.data_file import is_labelled
from fedmf.tasks.row_table import ImportOptions
from tests.cli.program import fedmf, printed_by, refused
from tests.refusals import refusal
from tests.tasks.data_files import records

NUMBERS = {"label_column": "label", "number_columns": "x"}
TEXTS = {"label_column": "label"}
TIMES = NUMBERS | {"time_column": "t"}


def many_rows(users=20):
    """Rows enough that no split is empty: two of each user, with both classes."""
    return [(f"u{i:02}", "ab"[j], 10 * i + j) for i in range(users) for j in range(2)]


def csv_text(rows, header="user,label,x"):
    return "\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n"


def run_import(path, content=None, **options):
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    out_path = path.with_name("rows.sqlite")
    options = ImportOptions(**(NUMBERS | options))
    return import_rows(path, out_path, options, overwrite=True, progress=False), out_path


def imported_rows(path):
    """Returns (split, user) -> (label, number or text) of each example, in file order."""
    rows = {}
    for split, user, record in records(path):
        example = example_proto.decode_example(record)
        value = example.get("text", b"").decode()
        if "numbers" in example:
            (value,) = np.frombuffer(example["numbers"], "<f8")
        rows.setdefault((split, user), []).append((example["label"].decode(), value))
    return rows


def test_the_three_formats_give_the_same_file(tmp_path):
    rows = many_rows()
    query = f"SELECT * FROM read_csv('{tmp_path / 'a.csv'}', header = true)"
    (tmp_path / "a.csv").write_text(csv_text(rows))
    lines = [dict(zip(("user", "label", "x"), row, strict=True)) for row in rows]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with duckdb.connect() as db:
        db.execute(f"COPY ({query}) TO '{tmp_path / 'c.parquet'}'")
    contents = [
        run_import(tmp_path / name)[1].read_bytes() for name in ("a.csv", "b.jsonl", "c.parquet")
    ]
    assert contents[0] == contents[1] == contents[2]


def test_the_statistics_are_those_of_training_rows(tmp_path):
    # Values of users who do not train are far away, so that they would change the statistics.
    options = ImportOptions(**NUMBERS)
    rows = [
        (user, label, x + 1000 * (options.split_of(user) != "train"))
        for user, label, x in many_rows()
    ]
    summary, out_path = run_import(tmp_path / "rows.csv", csv_text(rows))
    training = [x for user, _, x in rows if options.split_of(user) == "train"]
    description = describe(out_path)
    assert description["means"] == [np.mean(training)]
    assert description["deviations"] == [np.std(training)]
    assert description["classes"] == ["a", "b"]
    assert summary.classes == {"a": len(training) // 2, "b": len(training) // 2}
    assert {key: len(values) for key, values in imported_rows(out_path).items()} == {
        (options.split_of(user), user): 2 for user, *_ in rows
    }
    assert f"{summary.users['train']} users train" in summary.notes[0]
    assert "not private" in summary.notes[0]


def test_rows_that_are_left_out_are_counted_in_one_sentence_each(tmp_path):
    faulty = [("", "a", 1), ("u00", "", 1), ("u00", "a", ""), ("u00", "b", "NaN")]
    (unknown,) = [f"u{i:02}" for i in range(20) if ImportOptions().split_of(f"u{i:02}") == "test"][
        :1
    ]
    rows = [*many_rows(), *faulty, (unknown, "c", 1)]
    summary, out_path = run_import(tmp_path / "rows.csv", csv_text(rows))
    assert summary.rows == 45
    assert (summary.rows_without_user, summary.rows_without_label) == (1, 1)
    assert (summary.rows_without_value, summary.rows_with_unknown_label) == (2, 1)
    assert sum(summary.examples.values()) == 40
    assert describe(out_path)["classes"] == ["a", "b"]
    sentences = "\n".join(summary.notes)
    assert "1 of 45 rows are left out, as they have no user" in sentences
    assert "no label in the column 'label'" in sentences
    assert "2 of 45 rows are left out, as they have no number" in sentences
    assert "no training row has their label, such as 'c'" in sentences


def test_one_class_users_and_constant_columns_are_named(tmp_path):
    # The mean of these constants is not exactly 0.1 in floating point.
    rows = [(user, "ab"[i // 2 % 2], 0.1) for i, (user, *_) in enumerate(many_rows())]
    summary, out_path = run_import(tmp_path / "rows.csv", csv_text(rows))
    assert summary.one_class_users == summary.users["train"] > 0
    assert any(f"{summary.one_class_users} of" in note for note in summary.notes)
    assert any("'x' is constant" in note for note in summary.notes)
    description = describe(out_path)
    assert (description["means"], description["deviations"]) == ([0.1], [0.0])


TIME_KINDS = {
    "dates": lambda i: datetime.date(2026, 1, 1) + datetime.timedelta(days=i),
    "numbers": lambda i: i * 1.5,
    "ties in the order of the file": lambda i: 1,
    # The hour that daylight saving time repeats has an order only with its zones.
    "zones": lambda i: f"2026-10-25T02:{i:02}:00+0{2 - (i > 4)}:00",
}


@pytest.mark.parametrize("kind", TIME_KINDS)
def test_the_last_rows_of_each_user_are_for_test(tmp_path, kind):
    time_of = TIME_KINDS[kind]
    rows = [(f"u{i}", "ab"[t % 2], t, time_of(t)) for t in range(10) for i in range(4)]
    if kind != "ties in the order of the file":
        rows.reverse()
    content = csv_text(rows, "user,label,x,t")
    summary, out_path = run_import(tmp_path / "rows.csv", content, **TIMES, test_rows=0.29)
    assert summary.users == {"train": 4, "heldout": 0, "test": 4}
    for (split, _), examples in imported_rows(out_path).items():
        expected = range(8, 10) if split == "test" else range(8)
        assert [x for _, x in examples] == list(expected)
    assert describe(out_path)["is_split_in_time"]


def test_a_fraction_of_rows_is_not_rounded_below_its_decimal_value(tmp_path):
    rows = [(f"u{i}", "ab"[t % 2], t, t) for t in range(100) for i in range(2)]
    content = csv_text(rows, "user,label,x,t")
    summary, _ = run_import(tmp_path / "rows.csv", content, **TIMES, test_rows=0.29)
    assert 0.29 * 100 < 29
    assert summary.examples["test"] == 58


def test_texts_become_words_and_signs(tmp_path):
    rows = [(f"u{i}", "ab"[i % 2], '"Say ""no"".\nTwice, ÄÖ"') for i in range(20)]
    content = "\ufeff" + csv_text([*rows, ("u1", "a", " "), ("u1", "a", "")], "user,label,text")
    summary, out_path = run_import(tmp_path / "rows.csv", content, number_columns=None)
    assert summary.rows_without_value == 2
    assert {value for values in imported_rows(out_path).values() for _, value in values} == {
        'say " no " . twice , äö'
    }


@pytest.mark.parametrize("columns", ['"x, y",z', 'z,"x, y"'])
def test_names_of_columns_may_have_commas_and_blanks(tmp_path, columns):
    rows = [(f"u{i}", "ab"[i % 2], i, -i) for i in range(20)]
    content = csv_text(rows, 'user,my label,"x, y",z')
    options = {"number_columns": columns, "label_column": "my label"}
    summary, out_path = run_import(tmp_path / "rows.csv", content, **options)
    sign = 1 if columns.startswith('"') else -1
    assert np.sign(describe(out_path)["means"]).tolist() == [sign, -sign]
    assert summary.rows == 20


@pytest.mark.parametrize(
    "query",
    [
        "(i / 7)::DECIMAL(10, 3) AS x, i % 2 = 0 AS label",
        "i % 3 = 0 AS x, DATE '2026-01-01' + (i % 2)::INT AS label",
        "CASE WHEN i % 5 = 0 THEN 'nan'::DOUBLE ELSE i END AS x, (i % 2)::DOUBLE AS label",
        "i::HUGEINT AS x, CASE WHEN i % 2 = 0 THEN 'a' ELSE 'b' END::ENUM('a', 'b') AS label",
    ],
)
def test_columns_of_parquet_may_have_any_plain_type(tmp_path, query):
    with duckdb.connect() as db:
        db.execute(
            f"COPY (SELECT i % 30 AS user, {query} FROM range(60) t(i)) TO "
            f"'{tmp_path / 'rows.parquet'}'"
        )
    summary, _ = run_import(tmp_path / "rows.parquet")
    assert len(summary.classes) == 2


MANY = csv_text(many_rows())
TIMED = csv_text([(*row, i) for i, row in enumerate(many_rows())], "user,label,x,t")


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        (MANY + "u1,a,inf\n", {}, ["row 41 of", "'inf' in the column 'x'"]),
        (MANY + "u1,a,1e300\n", {}, ["'1e300'", "between -1e+100 and 1e+100"]),
        (MANY + "u1,a,1e999\n", {}, ["'1e999'"]),
        (MANY + "u1,a,red\n", {}, ["'red'", "columns of 0 and 1"]),
        (MANY, {"label_column": "z"}, ["no column 'z'", "label_column"]),
        ("user,label,x,x\n", {}, ["several columns 'x'", "number_columns"]),
        ("", {}, ["is empty"]),
        ("user,label,x\n", {}, ["no training row", "0 rows"]),
        (csv_text([("u", "ab"[i % 2], i) for i in range(9)]), {}, ["0 users in the test split"]),
        (csv_text([(f"u{i}", "a", i) for i in range(20)]), {}, ["has one class, 'a'"]),
        (
            csv_text([(f"u{i}", ["1", "1.0", "2"][i % 3], i) for i in range(40)]),
            {},
            ["'1' and '1.0'", "same number"],
        ),
        (
            csv_text([(f"u{i}", i / 7, i) for i in range(2000)]),
            {},
            ["more than 1000 values", "no classes"],
        ),
        (TIMED + "u1,a,1,yesterday\n", TIMES, ["row 41 of", "'yesterday'", "no time like"]),
        (
            csv_text([(f"u{i}", "ab"[i % 2], i, i) for i in range(20)], "user,label,x,t"),
            TIMES,
            ["0 users in the test split", "test_rows=0.2"],
        ),
    ],
)
def test_tables_that_cannot_be_imported_are_refused(tmp_path, content, options, words):
    path = tmp_path / "rows.csv"
    with refusal(None, naming=[path, *words]):
        run_import(path, content, **options)
    assert [entry.name for entry in tmp_path.iterdir()] == ["rows.csv"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"number_columns": "x"}, "number_columns=x needs `label_column`"),
        ({"time_column": "t"}, "time_column=t needs `label_column`"),
        (NUMBERS | {"number_columns": "x,label"}, "`label_column` and `number_columns` are both"),
        (NUMBERS | {"text_column": "body"}, "text_column=body needs an import without"),
        (NUMBERS | {"test_rows": 0.5}, "test_rows=0.5 needs `time_column`"),
        (TIMES | {"test_users": 0.5}, "test_users=0.5 needs an import without `time_column`"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, words):
    with refusal(words):
        ImportOptions(**options)


def test_the_command_imports_rows_and_prints_sentences(tmp_path):
    (tmp_path / "rows.csv").write_text(MANY)
    line = (
        f"data import {tmp_path / 'rows.csv'} --label-column label --number-columns x --quiet "
        f"--overwrite --out {tmp_path / 'rows.sqlite'}"
    )
    finished_process = fedmf(line)
    assert "users train; the classes, means and standard deviations" in finished_process.stderr
    assert "users.train" in finished_process.stdout
    values = printed_by(line)
    assert values["classes"].keys() == {"a", "b"}
    assert "users train" in values["notes"][0]
    description = printed_by(f"data info {tmp_path / 'rows.sqlite'}")
    assert description["task"] == "classification"
    assert description["splits"]["train"]["users"] == values["users"]["train"]
    assert is_labelled(tmp_path / "rows.sqlite")
    assert not is_labelled(tmp_path / "rows.csv")
    refused(f"{line} --text-column body", "--text-column body", "--number-columns")
