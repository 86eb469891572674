"""Participation logs: the same counts as in memory, and a sentence for every damaged file."""

import json
import re
import subprocess
import sys

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmf import tables
from fedmf.audits import log
from fedmf.audits.guarantee import audit_log
from fedmf.audits.log_file import LogForm
from fedmf.participation.stats import ParticipationStats
from tests.mechanisms.schemas import separated
from tests.privacy.plans import plan
from tests.refusals import refusal

ROWS = [("ann", 0), ("bob", 1), ("cem", 1), ("ann", 4), ("bob", 3), ("ann", 7)]


def plan_of(min_sep):
    """Returns a plan with a minimum separation."""
    return plan(separated(12, min_sep))


def write_csv(path, rows, header="client,round"):
    """Writes rows as CSV."""
    path.write_text(
        "".join(f"{','.join(map(str, row))}\n" for row in [header.split(","), *rows]),
        encoding="utf-8",
    )
    return path


def write_parquet(path, query):
    """Writes the result of a query as Parquet."""
    with duckdb.connect() as database:
        database.execute(f"COPY ({query}) TO '{path}' (FORMAT parquet)")
    return path


FORM = {"client_column", "round_column", "first_round", "duplicates"}


def read_log(path, **options):
    """Returns the description of a log and the statistics of its rounds."""
    log_form = LogForm(**{name: options.pop(name) for name in FORM & {*options}})
    with log.sorted_log(path, form=log_form, **options) as sorted_rows:
        stats = ParticipationStats.of_clients(
            sorted_rows.clients(), cohort_sizes=sorted_rows.cohort_sizes()
        )
        return sorted_rows.description, stats


def is_same(first_stats, second_stats):
    """Returns whether two statistics are equal, except for empty rounds at the end."""
    n = max(first_stats.rounds, second_stats.rounds)
    cohort_sizes = [
        np.pad(stats.cohort_sizes, (0, n - stats.rounds)) for stats in (first_stats, second_stats)
    ]
    distributions = [
        (dict(stats.histogram), dict(stats.separations), stats.longest_span)
        for stats in (first_stats, second_stats)
    ]
    return np.array_equal(*cohort_sizes) and distributions[0] == distributions[1]


class TestReading:
    @settings(max_examples=15)
    @given(
        st.sets(st.tuples(st.integers(0, 6), st.integers(0, 9)), min_size=1, max_size=40),
        st.booleans(),
        st.integers(0, 1),
    )
    @pytest.mark.slow
    def test_counts_equal_those_in_memory(self, tmp_path_factory, pairs, texts, first_round):
        folder = tmp_path_factory.mktemp("logs")
        rows = [(f"device {client}" if texts else client, t + first_round) for client, t in pairs]
        log, stats = read_log(
            write_csv(folder / "log.csv", rows), rounds=10, first_round=first_round
        )
        expected = ParticipationStats.of_cohorts(
            [
                np.array([client for client, t in pairs if t == round_number], int)
                for round_number in range(10)
            ]
        )
        assert is_same(stats, expected)
        assert (log.rows, log.duplicates) == (len(pairs), 0)
        sql_rows = ", ".join(f"({client!r}, {t})" for client, t in rows)
        jsonl_path = folder / "log.jsonl"
        jsonl_path.write_text(
            "".join(json.dumps({"round": t, "client": client}) + "\n" for client, t in rows)
        )
        for path in (
            write_parquet(
                folder / "log.parquet", f"FROM (VALUES {sql_rows}) AS rows(client, round)"
            ),
            jsonl_path,
        ):
            assert is_same(read_log(path, rounds=10, first_round=first_round)[1], expected)

    def test_columns_may_have_other_names(self, tmp_path):
        rows = [(f'"a,""{t}"', client, t) for client, t in ROWS]
        path = write_csv(tmp_path / "log.csv", rows, header="note,device id,t")
        log, stats = read_log(path, rounds=8, client_column="device id", round_column="t")
        assert (stats.clients, stats.min_separation, stats.max_participations) == (3, 2, 3)
        assert stats.cohort_sizes.tolist() == [1, 2, 0, 1, 1, 0, 0, 1]
        assert log.name == "log.csv"

    def test_byte_order_mark_is_skipped(self, tmp_path):
        path = tmp_path / "log.csv"
        path.write_bytes(b"\xef\xbb\xbfclient,round\r\n7,0\r\n7,3\r\n")
        assert read_log(path, rounds=4)[1].min_separation == 3

    @pytest.mark.parametrize(
        "text",
        [
            b"client,round\r\nann,1\r\nbob,2\nann,3\r\n",
            b"client,round\nann,1\nbob,2\r\nann,3\r\n",
            b"client,round\nann,1\rbob,2\n\r\nann,3\n",
            b"client,round\rann,1\rbob,2\rann,3\r",
        ],
    )
    def test_all_kinds_of_line_ends_are_read(self, tmp_path, monkeypatch, text):
        path = tmp_path / "log.csv"
        path.write_bytes(text)
        # A piece of the file may end between the two characters of one line end.
        for chunk in (1 << 24, 5, 1):
            monkeypatch.setattr(tables, "_CHUNK_BYTES", chunk)
            description, stats = read_log(path, rounds=4)
            assert (stats.clients, stats.separations, stats.cohort_sizes.tolist()) == (
                2,
                {2: 1},
                [0, 1, 1, 1],
            )
            assert (description.size, description.rows) == (len(text), 3)

    def test_whole_json_numbers_and_texts_of_them_are_one_client(self, tmp_path):
        path = tmp_path / "log.jsonl"
        client_ids = [1, "1", 12345678901234567890123, -3]
        path.write_text(
            "".join(
                json.dumps({"client": client, "round": t}) + "\n"
                for t, client in enumerate(client_ids)
            )
        )
        assert read_log(path, rounds=4)[1].histogram == {1: 2, 2: 1}

    def test_duplicates_are_counted_once(self, tmp_path):
        path = write_csv(tmp_path / "log.csv", [*ROWS, ("bob", 3), ("bob", 3), ("cem", 1)])
        log, stats = read_log(path, rounds=8, duplicates="once")
        assert (log.rows, log.duplicates) == (9, 3)
        assert is_same(stats, read_log(write_csv(tmp_path / "once.csv", ROWS), rounds=8)[1])


@pytest.mark.parametrize(
    ("raised", "error", "words"),
    [
        (RuntimeError("Query interrupted"), KeyboardInterrupt, None),
        (
            duckdb.OutOfMemoryException("no block"),
            ValueError,
            "memory=1000000000 bytes do not suffice",
        ),
        (
            duckdb.IOException("disk full\nsecond line"),
            OSError,
            r"temporary files \(disk full\): name a folder",
        ),
    ],
)
def test_failed_sort_raises_and_leaves_no_files(tmp_path, monkeypatch, raised, error, words):
    def end(*_, **__):
        raise raised

    monkeypatch.setattr(tables, "scan_file", end)
    scratch_folder = tmp_path / "scratch"
    scratch_folder.mkdir()
    with pytest.raises(error, match=words):
        read_log(write_csv(tmp_path / "log.csv", ROWS), rounds=8, folder=scratch_folder)
    assert list(scratch_folder.iterdir()) == []


@pytest.mark.slow
def test_memory_is_bounded(tmp_path):
    # 12 million rows in 256 MB. As int64 pairs with the two arrays of a sort they would take 480 MB
    # beside the process itself.
    query = (
        "SELECT (r % 200) * 6000 + i AS client, r AS round FROM range(2000) a(r), range(6000) b(i)"
    )
    path = write_parquet(tmp_path / "log.parquet", query)
    program = (
        "import resource, sys, fedmf; apart = fedmf.Participation(rounds=2000, schema='min_sep', "
        "min_sep=200); mechanism = fedmf.fit(fedmf.prefix_sum(2000), apart, family='toeplitz', "
        "coefficients='sqrt'); plan = fedmf.Plan(mechanism=mechanism, participation=apart, "
        "noise_multiplier=1.0, clip_norm=1.0, delta=1e-6); base = "
        "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; audit = fedmf.audit_log(sys.argv[1], "
        "plan, memory=256 * 10**6); print(audit.log.rows, audit.observed.clients, "
        "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base)"
    )
    completed_process = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    rows, clients, kilobytes = map(int, completed_process.stdout.split())
    assert (rows, clients) == (12_000_000, 1_200_000)
    assert 1000 * kilobytes < 256e6 + 200e6


FIRST = b'{"client": 1, "round": 0}\n'
CSV = b"client,round\nann,0\nbob,1\n"
# Content of a log -> words of the refusal; a Parquet file has the VALUES of client and round.
REFUSED = {
    b"": "is empty",
    b"client,round\n": "holds no participation",
    b"device,t\nann,0\n": "no column 'client' among 'device', 't'",
    b"client,round,client\nann,0,ann\n": "several columns 'client'",
    CSV + "cem,٣\n".encode(): "row 3 of log .*: the round is not a number",
    CSV + b"cem,x\nann,-1\n": r"row 3 of log .*: the round is not a number \(2 rows are "
    r"wrong, this is the first\)",
    CSV + b"cem,8\n": "round '8': the round is beyond the run: rounds are 0 to 7; .* first_round=1",
    CSV
    + b" ann,3\n": "row 3 of log .* client ' ann' .*: the client has blanks around it .U.0020.: "
    ".* without blanks around it",
    CSV + "\u3164,3\n".encode(): "row 3 of log .*: the client has no visible character .U.3164.",
    CSV + "ann\u200b,3\n".encode(): "row 3 of log .* the client has invisible .*U.200B",
    b'note,client,round\n"a\nb",ann,0\n\n"",bob,x\n': "row 2 of log .* round 'x'",
    CSV + b"cem\n": "line 4 of log .* another number of columns",
    CSV + b"cem,1": "no line end",
    CSV + b'"cem,1\n': "line 4 of log .* a quote that does not end",
    CSV + b"ann,0\n": "1 rows twice, such as client 'ann' in round 0: .*duplicates=\"once\"",
    b"\x00\x01\x02\xff" * 9: "neither CSV .* nor Parquet",
    b"client,round\n" + "çem,1\n".encode("latin-1"): "line 2 of log .* not in UTF-8",
    b"client,round\n"
    + b"ann,1\n" * 30_000
    + "çem,1\n".encode("latin-1")
    + b"bob,1\n" * 9: "line 30002 of log .* not in UTF-8",
    FIRST + b'{"client": 1, "round": 8}\n': "row 2 of log .* client '1' and round '8'",
    FIRST + b'{"client": 1, "rou\n': "line 2 of log .* not a JSON object",
    # One number in three spellings would be three clients; a repeated key is read in two ways.
    FIRST + b'{"client": 1e0, "round": 1}\n': "row 2 .* client 1.0, which is neither a text nor",
    FIRST + b'{"client": true, "round": 1}\n': "row 2 .* client true, which is neither a text nor",
    FIRST + b'{"client": 2, "round": 1.0}\n': "row 2 of log .* round 1.0, which is neither",
    FIRST + b'{"round": 1}\n': "row 2 of log .*: the client is missing",
    FIRST
    + b'{"cl\\u0069ent": 1, "round": 1, "client": 2}\n': "row 2 .* the key client more than once",
    b"PAR1" + b"\x15" * 50: "log .* cannot be read",
    "(1, 0), (NULL, 3)": "row 2 of log .* client None and round '3'",
    "(1, 0.5)": "row 1 of log .* round '0.5'",
    "(1::DOUBLE, 0), ('nan'::DOUBLE, 1)": "row 2 of log .*: the client is missing",
    "('ann\t', 0)": "row 1 of log .* the client has blanks .*U.0009",
}


@pytest.mark.parametrize(
    ("content", "words"), REFUSED.items(), ids=[repr(content)[-25:] for content in REFUSED]
)
def test_bad_logs_are_refused_in_one_sentence(tmp_path, content, words):
    path = tmp_path / "log"
    if isinstance(content, str):
        write_parquet(path, f"FROM (VALUES {content}) AS rows(client, round)")
    else:
        path.write_bytes(content)
    with refusal(words) as raised:
        read_log(path, rounds=8)
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_path_of_a_log_is_no_pattern(tmp_path, kind):
    """Tests that only the named log is read, though DuckDB reads every file that a path matches."""
    other_log = tmp_path / f"log1.{kind}"
    named_log = tmp_path / f"log[1].{kind}"
    if kind == "csv":
        write_csv(other_log, [("bob", 0)])
        write_csv(named_log, [("ann", t) for t in range(4)])
    else:
        write_parquet(other_log, "SELECT 'bob' AS client, 0 AS round")
        write_parquet(
            tmp_path / "made.parquet", "SELECT 'ann' AS client, range AS round FROM range(4)"
        ).rename(named_log)
    assert read_log(named_log, rounds=8)[1].max_participations == 4


def test_a_path_that_is_no_text_is_refused(tmp_path):
    path = write_csv(tmp_path / "log\udcff.csv", [("ann", 0)])
    with refusal("has a path that is no UTF-8"):
        read_log(path, rounds=8)


ALIKE = {
    "joined and NFD": ("zo\u00e9", "zoe\u034f\u0301"),
    "at the end": ("anna", "anna\u3164"),
    "scripts": ("anna", "\u0430nna"),
    "no Latin letter": ("\u0430\u043d\u043d\u0430", "a\u043d\u043d\u0430"),
}


class TestLookalikes:
    @pytest.mark.parametrize("pair", ALIKE)
    def test_lookalikes_count_as_one_client_and_contradict_the_plan(self, tmp_path, pair):
        first_spelling, second_spelling = ALIKE[pair]
        plan = plan_of(min_sep=4)
        expected = audit_log(
            write_csv(
                tmp_path / "one.csv",
                [(first_spelling, 0), (first_spelling, 2), (first_spelling, 7)],
            ),
            plan,
        )
        rows = [(first_spelling, 0), (second_spelling, 2), (first_spelling, 7)]
        sql_rows = ", ".join(f"('{client}', {t})" for client, t in rows)
        for path in (
            write_csv(tmp_path / "log.csv", rows),
            write_parquet(
                tmp_path / "log.parquet", f"FROM (VALUES {sql_rows}) AS rows(client, round)"
            ),
        ):
            audit = audit_log(path, plan)
            assert (audit.epsilon, audit.observed.clients) == (expected.epsilon, 1)
            assert audit.contradictions[:-1] == expected.contradictions
            assert all(
                ascii(client) in audit.contradictions[-1]
                for client in (first_spelling, second_spelling)
            )

    def test_lookalikes_of_one_round_are_two_rows_of_one_client(self, tmp_path):
        path = write_csv(tmp_path / "log.csv", [("anna", 0), ("bob", 0), ("an\u200bna", 0)])
        with refusal("client 'anna' in round 0:"):
            read_log(path, rounds=1)
        assert read_log(path, rounds=1, duplicates="once")[1].cohort_sizes.tolist() == [2]

    def test_a_client_is_shown_as_the_log_writes_it(self, tmp_path):
        """Tests that an id is not shown as its skeleton, which mixes scripts."""
        anna = "\u0430\u043d\u043d\u0430"
        path = write_csv(tmp_path / "log.csv", [(anna, 0), ("bob", 1)])
        with log.sorted_log(path, rounds=8) as sorted_rows:
            assert {sorted_rows.client(row) for row in range(2)} == {anna, "bob"}
        twice_path = write_csv(tmp_path / "twice.csv", [(anna, 0), (anna, 0)])
        with refusal(re.escape(f"client {anna!a} in round 0:")):
            read_log(twice_path, rounds=1)


def test_rounds_behind_the_last_of_a_log_count_as_much_as_the_plan_allows(tmp_path):
    rows = [(f"client {t}", t) for t in range(3)]
    plan = plan_of(min_sep=4)
    path = write_csv(tmp_path / "log.csv", rows)
    audit = audit_log(path, plan)
    assert audit.epsilon == plan.epsilon
    assert audit.values()["not_in_the_record"].startswith("rounds 3 to 11 are not in the record")
    assert "Rounds 3 to 11" in " ".join(audit.statement().split())
    ended_audit = audit_log(path, plan, rounds_run=3)
    assert ended_audit.unrecorded is None
    assert ended_audit.epsilon < plan.epsilon
    with refusal("row 3 of log .* rounds are 0 to 1"):
        audit_log(path, plan, rounds_run=2)
