"""Files of participation logs in CSV, JSON lines or Parquet, with a client and round per row."""

import dataclasses
import hashlib
import os
import pathlib
from typing import TYPE_CHECKING

from fedmf import fields, identifiers, tables

if TYPE_CHECKING:
    import duckdb

# An SQL expression for the client id after characters that look alike were replaced by the same
# character.
_SKELETON = tables.skeleton_sql("client")
# The same expression, but NULL if the client id is empty or has invisible characters at its ends.
_CHECKED_CLIENT = (
    f"CASE WHEN NOT regexp_matches(client, '^[\\p{{Cc}}\\p{{Cf}}\\pZ]|[\\p{{Cc}}\\p{{Cf}}\\pZ]$') "
    f"THEN nullif({_SKELETON}, '') END"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogForm(fields.Checked):
    """Names of the columns of a log, the number of its first round, and the rule for duplicates.

    Attributes:
      client_column, round_column: names of the columns.
      first_round: number of the run's first round; 1 if the log counts rounds from 1.
      duplicates: "once" counts several rows of one client in one round as one participation;
        "refuse" raises an error, since no plan covers two contributions to one round.

    Raises:
      TypeError, ValueError: an attribute of the wrong type or out of range.
    """

    client_column: str = fields.text("client", "Column of clients: whole numbers or texts.")
    round_column: str = fields.text("round", "Column of rounds.")
    first_round: int = fields.whole_number(0, "Number of the first round.", low=0)
    duplicates: str = fields.choice(
        "refuse", "Several rows of one client in one round.", lambda: ("refuse", "once")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.client_column == self.round_column:
            raise ValueError(
                f"`client_column` and `round_column` are both {self.client_column!r}: name the "
                "two columns of the log"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParticipationLog:
    """Description of a log file that was read, with its name, its hash and its numbers of rows.

    Attributes:
      name: of the file, without its folder.
      size: of the file in bytes.
      sha256: hash of the file's bytes, hexadecimal, which identifies the audited log.
      rows: number of rows, duplicates included.
      duplicates: number of rows that repeat the client and round of another row.
      lookalikes: two client ids that look alike to a reader and count as one client; None if there
        are none.
      form: columns of the log, and how its rows are counted.
      rounds_run: number of rounds after which the run ended, as given to the audit; None for all of
        the plan's.
    """

    name: str
    size: int
    sha256: str
    rows: int
    duplicates: int
    lookalikes: tuple[str, str] | None
    form: LogForm
    rounds_run: int | None = None


def _is_unicode(path: pathlib.Path) -> bool:
    """Returns whether a path can be encoded in UTF-8."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _quoted(value: object | None) -> str | None:
    """Returns the first 80 characters of a value in quotes for a message, or None if the value is
    None.
    """
    if value is None:
        return None
    return ascii(str(value)[:80])


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LogColumns:
    """SQL expressions that compute the columns of the table `log` from the view `source`.

    Attributes:
      client: id of the client, which is equal for texts that look alike; NULL if not valid.
      spelling: the client as it is written, if it differs from `client`.
      round: number of the round; NULL if not valid.
    """

    client: str
    spelling: str
    round: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogFile:
    """Log file whose rows are read into a DuckDB table named `log`."""

    path: pathlib.Path
    rounds: int
    form: LogForm

    @property
    def _last_round(self) -> int:
        """Number that the log gives to the last round of the run."""
        return self.form.first_round + self.rounds - 1

    def check_path(self) -> None:
        """Raises an error if DuckDB cannot open the file."""
        if not self.path.is_file():
            failure_reason = "is not a file" if self.path.exists() else "does not exist"
            raise FileNotFoundError(
                f"log {self.path} {failure_reason}: name a CSV, JSON lines or Parquet file of "
                "clients and rounds"
            )
        if not _is_unicode(self.path):
            raise ValueError(
                f"log {str(self.path)!a} has a path that is no UTF-8, which the database that "
                "reads logs cannot open: rename it"
            )

    def read(self, db: "duckdb.DuckDBPyConnection", scratch: str) -> ParticipationLog:
        """Reads the file into the sorted table `log`, and returns a description of the file."""
        stat_before = self.path.stat()
        # Rows may be stored in any order, because DuckDB would need more memory to keep their
        # order.
        db.execute("SET preserve_insertion_order = false")
        self._load(db, scratch)
        num_rows = self._num_rows(db)
        lookalikes = self._lookalikes(db)
        # The rows are sorted after they are read, because sorting while reading would take more
        # memory.
        db.execute(
            "CREATE TABLE sorted AS SELECT client, spelling, round FROM log ORDER BY client, round"
        )
        db.execute("DROP TABLE log")
        db.execute("ALTER TABLE sorted RENAME TO log")
        num_duplicates = self._drop_duplicates(db)
        with self.path.open("rb") as file:
            file_digest = hashlib.file_digest(file, "sha256").hexdigest()
        stat_after = self.path.stat()
        size_and_time = (stat_before.st_size, stat_before.st_mtime_ns)
        if size_and_time != (stat_after.st_size, stat_after.st_mtime_ns):
            raise ValueError(
                f"log {self.path} changed while it was read: audit a copy that nobody writes to"
            )
        db.execute("SET preserve_insertion_order = true")
        return ParticipationLog(
            name=self.path.name,
            size=stat_after.st_size,
            sha256=file_digest,
            rows=num_rows,
            duplicates=num_duplicates,
            lookalikes=lookalikes,
            form=self.form,
        )

    def _load(self, db: "duckdb.DuckDBPyConnection", scratch: str) -> None:
        """Reads the file into the table `log`, or raises an error for the first invalid row."""
        import duckdb

        try:
            log_columns = self._open_source(db, scratch)
            db.execute(
                f"CREATE TABLE log AS SELECT {log_columns.client} AS client, "
                f"{log_columns.spelling} AS spelling, {log_columns.round} AS round FROM source"
            )
        except (duckdb.OutOfMemoryException, duckdb.IOException):
            raise
        except duckdb.Error as error:
            raise ValueError(tables.describe_damage(f"log {self.path}", error)) from error
        num_invalid = db.execute(
            "SELECT count(*) FILTER (client IS NULL OR round IS NULL) FROM log"
        ).fetchall()[0][0]
        if num_invalid:
            db.execute("SET preserve_insertion_order = true")
            is_valid = f"{log_columns.client} IS NOT NULL AND {log_columns.round} IS NOT NULL"
            row, client, round_text, fault = db.execute(
                f"SELECT row, client, round, fault FROM source WHERE NOT ({is_valid}) "
                "ORDER BY row LIMIT 1"
            ).fetchall()[0]
            raise ValueError(self._fault(num_invalid, row, client, round_text, fault))

    def _open_source(self, db: "duckdb.DuckDBPyConnection", scratch: str) -> _LogColumns:
        """Creates the view `source` of the file, and returns SQL that checks its columns."""
        form = self.form
        source_columns = [
            ("client_column", form.client_column),
            ("round_column", form.round_column),
        ]
        source_relation = tables.scan_file(
            db, self.path, source_columns, scratch, ids=("client_column", "round_column")
        )
        self._check_end()
        client_column, round_column = source_relation.columns
        db.execute(
            f"CREATE VIEW source AS SELECT row_number() OVER () AS row, {client_column} AS client, "
            f"{round_column}::VARCHAR AS round, {source_relation.fault} AS fault "
            f"FROM {source_relation.table}"
        )
        round_expression = (
            "CASE WHEN regexp_full_match(round, '[0-9]{1,9}') THEN CAST(round AS INTEGER) END"
        )
        is_valid = (
            f"{round_expression} BETWEEN {form.first_round} AND {self._last_round} "
            "AND fault IS NULL"
        )
        checked_round = f"CASE WHEN {is_valid} THEN {round_expression} END"
        client_type = db.execute("DESCRIBE source").fetchall()[1][1]
        if client_type == "VARCHAR":
            spelling_expression = f"nullif(client, {_SKELETON})"
            return _LogColumns(
                client=_CHECKED_CLIENT, spelling=spelling_expression, round=checked_round
            )
        return _LogColumns(client="client", spelling="NULL", round=checked_round)

    def _num_rows(self, db: "duckdb.DuckDBPyConnection") -> int:
        """Returns the number of rows of the table `log`, and raises an error if it is empty."""
        num_rows: int = db.execute("SELECT count(*) FROM log").fetchall()[0][0]
        if not num_rows:
            raise ValueError(
                f"log {self.path} holds no participation: an audit needs the rows of a run"
            )
        return num_rows

    def _lookalikes(self, db: "duckdb.DuckDBPyConnection") -> tuple[str, str] | None:
        """Returns two spellings of client ids that count as one client; None if there are none."""
        return db.execute(
            """
            SELECT min(coalesce(spelling, client)) AS lowest,
              max(coalesce(spelling, client)) AS highest
            FROM log WHERE client IN (SELECT client FROM log WHERE spelling IS NOT NULL)
            GROUP BY client HAVING lowest <> highest ORDER BY lowest LIMIT 1"""
        ).fetchone()

    def _fault(
        self,
        num_invalid: int,
        row: int,
        client: object | None,
        round_text: str | None,
        fault: str | None,
    ) -> str:
        """Returns the error message for the first invalid row."""
        row_in_words = (
            f"row {row} of log {self.path} has {self.form.client_column} {_quoted(client)} and "
            f"{self.form.round_column} {_quoted(round_text)}"
        )
        count_in_words = ""
        if num_invalid > 1:
            count_in_words = f" ({num_invalid} rows are wrong, this is the first)"
        if fault is not None:
            return (
                f"{row_in_words}, and {fault[:200]}{count_in_words}: write each client and round "
                "once, as a text or a whole number"
            )
        client_text = None
        if client is not None:
            client_text = str(client)
        client_fault = identifiers.client_fault(client_text)
        if client_fault is not None:
            return f"{row_in_words}: the client {client_fault}{count_in_words}"
        first_round = self.form.first_round
        round_fault = identifiers.round_fault(round_text, first_round, self._last_round)
        first_round_hint = ""
        if first_round == 0 and round_text == str(self._last_round + 1):
            first_round_hint = "; where the log counts from 1, pass first_round=1"
        round_fault = round_fault or "is not a round"
        return f"{row_in_words}: the round {round_fault}{count_in_words}{first_round_hint}"

    def _check_end(self) -> None:
        """Raises an error if a text file ends within a line, as its last round may be cut off."""
        with self.path.open("rb") as file:
            is_parquet = file.read(4) == b"PAR1"
            file.seek(-1, os.SEEK_END)
            if not is_parquet and file.read() not in b"\r\n":
                raise ValueError(
                    f"the last line of log {self.path} has no line end, so that it may be cut off: "
                    "write the log again, or end the line if it is whole"
                )

    def _drop_duplicates(self, db: "duckdb.DuckDBPyConnection") -> int:
        """Drops rows that repeat the client and round of another row, and returns their number.

        Raises:
          ValueError: there are such rows, and the form refuses them.
        """
        num_repeated, client, round_number = db.execute(
            """
            SELECT count(*), any_value(client), any_value(round) FROM (
              SELECT client, round, client IS NOT DISTINCT FROM lag(client) OVER ()
                AND round = lag(round) OVER () AS is_repeated FROM log
            ) WHERE is_repeated"""
        ).fetchall()[0]
        if num_repeated and self.form.duplicates == "refuse":
            spelling = db.execute(
                "SELECT min(coalesce(spelling, client)) FROM log WHERE client = ? AND round = ?",
                [client, round_number],
            ).fetchall()[0][0]
            raise ValueError(
                f"log {self.path} has {num_repeated} rows twice, such as client "
                f"{str(spelling)[:80]!a} in round {round_number}: two contributions of one client "
                "to one round are covered by no plan; if every such row is one participation "
                'written twice, pass duplicates="once"'
            )
        if num_repeated:
            db.execute(
                "CREATE OR REPLACE TABLE log AS SELECT client, min(spelling) AS spelling, round "
                "FROM log GROUP BY client, round ORDER BY client, round"
            )
        return int(num_repeated)
