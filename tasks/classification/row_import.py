"""Import of a table of users, labels and numbers or texts as a data file of labelled rows.

The file is in TFF's SQLite format. Its additional table `import_record` has one row, the JSON of a
`data.ImportRecord`. Its means, standard deviations and classes are those of the training rows,
without noise.
"""

import collections
import dataclasses
import itertools
import operator
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedmf import tables
from fedmf.files import expanded
from fedmf.tasks import data_file, example_proto
from fedmf.tasks.classification.data import ImportRecord
from fedmf.tasks.row_table import (
    ImportOptions,
    TableImport,
    duckdb_errors,
    fetched_rows,
    open_import,
)
from fedmf.tasks.stackoverflow.sentences import split_sentences

# Most classes of a classification. A column with more values is taken for numbers or ids.
_MOST_CLASSES = 1000
# Largest absolute value of a number, whose square must be far from the largest float.
_LARGEST_NUMBER = 1e100


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportSummary:
    """Numbers of rows, users and classes that were imported or left out.

    Attributes:
      path: the data file.
      rows: number of rows of the table.
      rows_without_user, rows_without_label, rows_without_time: rows left out since this is missing.
      rows_without_value: rows left out since a number is missing, or the text has no word or sign.
      rows_with_unknown_label: rows left out since no training row has their label.
      lookalike_users: users whose ids came in several spellings that look the same, each counted
        as one user.
      users, examples: numbers by split. A user may be in two splits of a division in time.
      one_class_users: training users whose training rows have one class.
      classes: number of training rows of each class.
      notes: a sentence on each thing that the author of the table should know.
    """

    path: str
    rows: int
    rows_without_user: int
    rows_without_label: int
    rows_without_time: int
    rows_without_value: int
    rows_with_unknown_label: int
    lookalike_users: int
    users: dict[str, int]
    examples: dict[str, int]
    one_class_users: int
    classes: dict[str, int]
    notes: list[str] = dataclasses.field(default_factory=list)


def import_rows(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: ImportOptions,
    *,
    overwrite: bool = False,
    progress: bool = True,
) -> ImportSummary:
    """Writes a data file of labelled rows, for the task `classification`.

    A row is one example of one user, and a user may have any number of rows in any order. Labels
    are texts; numbers are finite. Arguments are those of `open_import`.

    Returns:
      The counts.

    Raises:
      FileNotFoundError, TypeError, ValueError: one sentence that names the argument, or the file
        and what is wrong in it.
    """
    path = expanded(path)
    if options.label_column is None:
        raise ValueError("`label_column` is missing: name the column of labels")
    with open_import(
        path,
        out,
        options,
        application_id=data_file.LABELLED,
        overwrite=overwrite,
        progress=progress,
    ) as table:
        labelled_rows = _LabelledRows(path, table, options)
        with duckdb_errors(path):
            missing_rows = labelled_rows.parse()
            unknown_labels = labelled_rows.divide()
            classes = labelled_rows.classes()
            record = labelled_rows.record(list(classes))
            users, examples = labelled_rows.write(record)
            one_class_users = labelled_rows.num_one_class_users()
    summary = ImportSummary(
        path=str(expanded(out)),
        rows=table.rows,
        rows_without_user=table.rows_without_user,
        rows_without_label=missing_rows["label"],
        rows_without_time=missing_rows["time"],
        rows_without_value=missing_rows["value"],
        rows_with_unknown_label=sum(unknown_labels.values()),
        lookalike_users=table.lookalike_users,
        users=users,
        examples=examples,
        one_class_users=one_class_users,
        classes=classes,
    )
    return dataclasses.replace(summary, notes=_notes(summary, record, [*unknown_labels]))


def _notes(summary: ImportSummary, record: ImportRecord, unknown_labels: list[str]) -> list[str]:
    """Returns a sentence on each thing that the author of a table should know."""
    statistics_text = "classes" if record.is_text else "classes, means and standard deviations"
    notes = [
        f"{summary.users['train']} users train; the {statistics_text} are those of their training "
        "rows without noise, which no guarantee covers: they are not private"
    ]
    value_text = "word in the text" if record.is_text else "number in one of the columns"
    for value, num_rows in (
        ("user", summary.rows_without_user),
        (f"label in the column {record.label_column!r}", summary.rows_without_label),
        ("time", summary.rows_without_time),
        (value_text, summary.rows_without_value),
    ):
        if num_rows:
            notes.append(f"{num_rows} of {summary.rows} rows are left out, as they have no {value}")
    if unknown_labels:
        notes.append(
            f"{summary.rows_with_unknown_label} of {summary.rows} rows are left out, as no "
            f"training row has their label, such as {unknown_labels[0]!r}"
        )
    if summary.one_class_users:
        notes.append(
            f"{summary.one_class_users} of {summary.users['train']} training users have training "
            "rows of one class only, towards which their updates draw the model"
        )
    notes += [
        f"the column {record.columns[i]!r} is constant in the training rows and counts as 0"
        for i, deviation in enumerate(record.deviations)
        if deviation == 0
    ]
    return notes


class _LabelledRows:
    """Steps of an import, whose tables in DuckDB are `source_rows`, `parsed_rows` (which have all
    values) and `examples` (which are divided into splits).
    """

    def __init__(self, path: pathlib.Path, table: TableImport, options: ImportOptions) -> None:
        self.path = path
        self.table = table
        self.options = options
        self.db = table.db
        self.source_names = [f"value_{i}" for i in range(len(options.columns()) - 1)]
        self.number_names = [f"number_{i}" for i in range(len(options.numbers))]
        self.db.create_function("tokens_of", _tokens, ["VARCHAR"], "VARCHAR")
        self.db.create_function("split_of", options.split_of, ["VARCHAR"], "VARCHAR")

    def parse(self) -> dict[str, int]:
        """Parses labels, times, numbers and texts, and returns the number of rows without each."""
        has_times = self.options.time_column is not None
        value_names = self.source_names[1 + has_times :]
        parsed = {"label": f"nullif(trim({tables.visible_text_sql(self.source_names[0])}), '')"}
        missing = {"label": "label IS NULL", "time": "false", "value": "tokens IS NULL"}
        if has_times:
            parsed["time"] = self._time_sql(self.source_names[1])
            missing["time"] = "time IS NULL"
        if self.options.numbers:
            for i, source_name in enumerate(value_names):
                parsed[self.number_names[i]] = self._number_sql(source_name, i)
            missing["value"] = " OR ".join(f"{n} IS NULL" for n in self.number_names)
        else:
            parsed["tokens"] = f"nullif(tokens_of(coalesce({value_names[0]}, '')), '')"
        parsed_sql = ", ".join(f"{sql} AS {name}" for name, sql in parsed.items())
        self.db.execute(
            f"CREATE TABLE parsed_rows AS SELECT client, rowid AS number, {parsed_sql} "
            "FROM source_rows WHERE client IS NOT NULL"
        )
        num_missing = {}
        for reason, condition in missing.items():
            [(num_rows,)] = self.db.execute(
                f"SELECT count(*) FROM parsed_rows WHERE {condition}"
            ).fetchall()
            self.db.execute(f"DELETE FROM parsed_rows WHERE {condition}")
            num_missing[reason] = num_rows
        return num_missing

    def _number_sql(self, source_name: str, index: int) -> str:
        """Returns the SQL expression of a number, NULL if it is missing, and refuses a column with
        other values.
        """
        value_sql = f"lower(trim({source_name}))"
        number_sql = (
            f"CASE {value_sql} WHEN 'true' THEN 1.0 WHEN 'false' THEN 0.0 WHEN '' THEN NULL WHEN "
            f"'nan' THEN NULL ELSE try_cast({value_sql} AS DOUBLE) END"
        )
        is_missing = f"{source_name} IS NULL OR {value_sql} IN ('', 'nan')"
        is_number = f"coalesce(abs({number_sql}) <= {_LARGEST_NUMBER}, false)"
        self._refuse(
            source_name,
            f"NOT ({is_missing}) AND NOT {is_number}",
            f"in the column {self.options.numbers[index]!r}, which is no number between "
            f"-{_LARGEST_NUMBER:g} and {_LARGEST_NUMBER:g}: write a missing number as an empty "
            "value, and a category as the label or as columns of 0 and 1",
        )
        return number_sql

    def _time_sql(self, source_name: str) -> str:
        """Returns the SQL expression of a time, NULL if it is missing, and refuses a column with
        other values. Times are all numbers, or all dates.
        """
        value_sql = f"trim({source_name})"
        is_missing = f"{source_name} IS NULL OR lower({value_sql}) IN ('', 'nan', 'nat')"
        [(num_times, num_numbers)] = self.db.execute(
            f"SELECT count(*), count(try_cast({value_sql} AS DOUBLE)) FROM source_rows WHERE "
            f"NOT ({is_missing})"
        ).fetchall()
        time_type = "DOUBLE" if 2 * num_numbers > num_times else "TIMESTAMPTZ"
        # Times without a zone are ordered as in UTC, where no hour occurs twice.
        self.db.execute("SET TimeZone = 'UTC'")
        time_sql = f"try_cast({value_sql} AS {time_type})"
        self._refuse(
            source_name,
            f"NOT ({is_missing}) AND {time_sql} IS NULL",
            f"in the column {self.options.time_column!r}, which is no time like the others: write "
            "all times as numbers, or all as 2026-11-29 or 2026-11-29 14:00:00",
        )
        return f"CASE WHEN NOT ({is_missing}) THEN {time_sql} END"

    def _refuse(self, source_name: str, condition: str, fault: str) -> None:
        """Raises an error if a row with a user fulfils a condition."""
        faulty_row = self.db.execute(
            f"SELECT rowid + 1, {source_name} FROM source_rows WHERE client IS NOT NULL AND "
            f"({condition}) ORDER BY rowid LIMIT 1"
        ).fetchone()
        if faulty_row is not None:
            row_number, value = faulty_row
            raise ValueError(f"row {row_number} of {self.path} has {value[:80]!r} {fault}")

    def divide(self) -> dict[str, int]:
        """Divides the rows into splits, and leaves out those whose label no training row has.

        Returns the number of rows left out by label.
        """
        split_sql = "split_of(client)"
        if self.options.time_column is not None:
            # Without the small number, a fraction such as 0.29 of 100 rows would be 28 rows.
            split_sql = (
                "CASE WHEN split_of(client) = 'train' AND count(*) OVER (PARTITION BY client) - "
                "row_number() OVER (PARTITION BY client ORDER BY time, number) < "
                f"floor({self.options.test_rows!r} * count(*) OVER (PARTITION BY client) + 1e-9) "
                "THEN 'test' ELSE split_of(client) END"
            )
        self.db.execute(f"CREATE TABLE examples AS SELECT *, {split_sql} AS split FROM parsed_rows")
        is_unknown = "label NOT IN (SELECT label FROM examples WHERE split = 'train')"
        unknown_labels = self.db.execute(
            f"SELECT label, count(*) FROM examples WHERE {is_unknown} GROUP BY label ORDER BY label"
        ).fetchall()
        self.db.execute(f"DELETE FROM examples WHERE {is_unknown}")
        return dict(unknown_labels)

    def classes(self) -> dict[str, int]:
        """Returns the number of training rows of each class, after checking that there are two
        classes at least.
        """
        class_rows = self.db.execute(
            "SELECT label, count(*) FROM examples WHERE split = 'train' GROUP BY label ORDER BY "
            f"label LIMIT {_MOST_CLASSES + 1}"
        ).fetchall()
        classes = dict(class_rows)
        label_text = f"the column {self.options.label_column!r} of {self.path}"
        if not classes:
            raise ValueError(
                f"{self.path} has no training row with a user and all values among its "
                f"{self.table.rows} rows: bring more rows, or change `seed`"
            )
        if len(classes) == 1:
            raise ValueError(
                f"{label_text} has one class, {next(iter(classes))!r}, in the training rows: name "
                "a column with two classes at least"
            )
        if len(classes) > _MOST_CLASSES:
            raise ValueError(
                f"{label_text} has more than {_MOST_CLASSES} values in the training rows, which "
                "are no classes: name another column, or write fewer classes"
            )
        label_by_number: dict[float, str] = {}
        for label in classes:
            try:
                number = float(label)
            except ValueError:
                continue
            if number in label_by_number:
                raise ValueError(
                    f"{label_text} has the labels {label_by_number[number]!r} and {label!r}, which "
                    "are the same number: write each class in one way"
                )
            label_by_number[number] = label
        return classes

    def record(self, classes: list[str]) -> ImportRecord:
        """Returns the record of the import, with the statistics of the training rows."""
        means = []
        deviations = []
        for name in self.number_names:
            # The order makes the rounding of the sums, and so the data file, reproducible.
            numbers = self.db.execute(
                f"SELECT {name} FROM examples WHERE split = 'train' ORDER BY client, number"
            ).fetchnumpy()[name]
            if numbers.min() == numbers.max():
                # Rounding would give equal numbers another mean, and a deviation above 0.
                means.append(float(numbers[0]))
                deviations.append(0.0)
            else:
                means.append(float(numbers.mean()))
                deviations.append(float(numbers.std()))
        columns = self.options.numbers or [self.options.text_column]
        return ImportRecord(
            columns=columns,
            is_text=not self.options.numbers,
            label_column=str(self.options.label_column),
            is_split_in_time=self.options.time_column is not None,
            classes=classes,
            means=means,
            deviations=deviations,
        )

    def num_one_class_users(self) -> int:
        """Returns the number of training users whose training rows have one class."""
        [(num_users,)] = self.db.execute(
            "SELECT count(*) FROM (SELECT client FROM examples WHERE split = 'train' GROUP BY "
            "client HAVING count(DISTINCT label) = 1)"
        ).fetchall()
        return int(num_users)

    def write(self, record: ImportRecord) -> tuple[dict[str, int], dict[str, int]]:
        """Writes the record and the examples into the data file.

        Returns the numbers of users and of examples by split.
        """
        users = collections.Counter[str]()
        examples = collections.Counter[str]()
        order_sql = "client, number"
        if record.is_split_in_time:
            order_sql = "client, time, number"
        value_sql = ", ".join(self.number_names or ["tokens"])
        rows = fetched_rows(
            self.db, f"SELECT client, split, label, {value_sql} FROM examples ORDER BY {order_sql}"
        )
        for (user, split), user_rows in itertools.groupby(rows, key=operator.itemgetter(0, 1)):
            users[split] += 1
            examples[split] += data_file.write_client(
                self.table.file, user, split, self._records(user_rows)
            )
        if users["test"] < 2:
            argument = "test_rows" if record.is_split_in_time else "test_users"
            raise ValueError(
                f"{self.path} has {users['test']} users in the test split, but validation and test "
                f"need one each: bring more users and rows, or change "
                f"{argument}={getattr(self.options, argument)} or seed={self.options.seed}"
            )
        record.write(self.table.file)
        return _by_split(users), _by_split(examples)

    def _records(self, rows: Iterator[tuple[Any, ...]]) -> Iterator[bytes]:
        """Yields the serialized examples of a user's rows."""
        for _, _, label, *values in rows:
            self.table.bar.update()
            features = {"label": label.encode()}
            if self.options.numbers:
                features["numbers"] = np.array(values, "<f8").tobytes()
            else:
                features["text"] = values[0].encode()
            yield example_proto.encode_example(features)


def _by_split(counter: collections.Counter[str]) -> dict[str, int]:
    """Returns the count of each split."""
    return {split: counter[split] for split in data_file.SPLITS}


def _tokens(text: str) -> str:
    """Returns the words and signs of a text, separated by blanks."""
    return " ".join(split_sentences(text))
