"""Logs from elsewhere: the same counts as in memory, and one sentence for everything that is no log."""

import subprocess
import sys

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmf.audits import log
from fedmf.audits.log import read_log
from fedmf.participation.ledger import ParticipationLedger
from fedmf.participation.schema import Participation
from fedmf.participation.stats import ParticipationPattern
from tests.oracles import allowed_sets

ROWS = [("ann", 0), ("bob", 1), ("cem", 1), ("ann", 4), ("bob", 3), ("ann", 7)]


def write(path, rows, header="client,round"):
    path.write_text("".join(f"{','.join(map(str, row))}\n" for row in [header.split(","), *rows]), encoding="utf-8")
    return path


def parquet(path, query):
    with duckdb.connect() as database:
        database.execute(f"COPY ({query}) TO '{path}' (FORMAT parquet)")
    return path


def same(one, other):
    """Whether two patterns are equal, rounds without anyone at the end of either aside."""
    n = max(one.rounds, other.rounds)
    sizes = [np.pad(p.cohort_sizes, (0, n - p.rounds)) for p in (one, other)]
    rest = [(p.clients, p.max_participations, dict(p.separations), p.longest_span) for p in (one, other)]
    return np.array_equal(*sizes) and rest[0] == rest[1]


class TestPattern:
    @settings(deadline=None)
    @given(
        st.lists(st.sets(st.integers(0, 5), max_size=4), min_size=1, max_size=8),
        st.sampled_from(["single", "min_sep", "fixed_epoch", "every_round"]),
        st.integers(1, 8),
        st.integers(1, 8),
    )
    def test_of_a_ledger(self, cohorts, schema, b, k):
        ledger = ParticipationLedger(cohort_size=2, cohorts=[np.array(sorted(c), np.int64) for c in cohorts])
        pattern = ParticipationPattern.of_pairs(ledger.pairs(), rounds=len(ledger))
        assert pattern.observed(2) == ledger.observed()
        n = len(cohorts)
        limits = {}
        if schema in ("min_sep", "fixed_epoch"):
            b = min(b, n)
            limits = {"min_sep": b, "max_participations": min(k, -(-n // b))}
        participation = Participation(rounds=n, schema=schema, **limits)
        rounds = ledger.rounds_of_clients().values()
        # From the words of the schemas, client by client.
        allowed = set(allowed_sets(participation))
        assert pattern.keeps_to(participation) == all(tuple(taken) in allowed for taken in rounds)
        if pattern.participations:
            within = pattern.within(participation)
            assert all(within.allows(taken) for taken in rounds)
            if pattern.keeps_to(participation):
                assert within.max_participations <= participation.max_participations

    def test_an_epoch_that_was_missed_counts(self):
        # Rounds 0 and 8 of an order of 4 rounds: two participations, and yet a window of three epochs.
        pattern = ParticipationPattern.of_pairs(np.array([[0, 1], [8, 1]]), rounds=12)
        planned = Participation(rounds=12, schema="fixed_epoch", min_sep=4)
        assert pattern.max_participations == 2
        assert pattern.within(planned).max_participations == 3


class TestReading:
    @settings(deadline=None, max_examples=15)
    @given(
        st.sets(st.tuples(st.integers(0, 6), st.integers(0, 9)), min_size=1, max_size=40),
        st.booleans(),
        st.integers(0, 1),
    )
    def test_the_same_as_in_memory(self, tmp_path_factory, pairs, texts, first_round):
        folder = tmp_path_factory.mktemp("logs")
        rows = [(f"device {client}" if texts else client, t + first_round) for client, t in pairs]
        log = read_log(write(folder / "log.csv", rows), rounds=10, first_round=first_round)
        expected = ParticipationPattern.of_pairs(np.array([(t, client) for client, t in pairs]), rounds=10)
        assert same(log.pattern, expected)
        assert (log.rows, log.duplicates) == (len(pairs), 0)
        listed = ", ".join(f"({client!r}, {t})" for client, t in rows)
        path = parquet(folder / "log.parquet", f"FROM (VALUES {listed}) AS rows(client, round)")
        assert same(read_log(path, rounds=10, first_round=first_round).pattern, expected)

    def test_other_columns_and_names(self, tmp_path):
        rows = [(f'"a,""{t}"', client, t) for client, t in ROWS]
        path = write(tmp_path / "log.csv", rows, header="note,device id,t")
        log = read_log(path, rounds=8, client_column="device id", round_column="t")
        assert (log.pattern.clients, log.pattern.min_separation, log.pattern.max_participations) == (3, 2, 3)
        assert log.pattern.cohort_sizes.tolist() == [1, 2, 0, 1, 1, 0, 0, 1]
        assert log.name == "log.csv"

    def test_whole_numbers_until_a_text_comes(self, tmp_path):
        # After those that are looked at to choose the kind: the whole file is read again as texts.
        rows = [(client, 0) for client in range(2000)] + [("x", 1), (7, 2)]
        log = read_log(write(tmp_path / "log.csv", rows), rounds=3)
        assert (log.pattern.clients, dict(log.pattern.separations)) == (2001, {2: 1})

    def test_a_byte_order_mark(self, tmp_path):
        path = tmp_path / "log.csv"
        path.write_bytes(b"\xef\xbb\xbfclient,round\r\n7,0\r\n7,3\r\n")
        assert read_log(path, rounds=4).pattern.min_separation == 3

    def test_duplicates_counted_once(self, tmp_path):
        path = write(tmp_path / "log.csv", [*ROWS, ("bob", 3), ("bob", 3), ("cem", 1)])
        log = read_log(path, rounds=8, duplicates="once")
        assert (log.rows, log.duplicates) == (9, 3)
        assert same(log.pattern, read_log(write(tmp_path / "once.csv", ROWS), rounds=8).pattern)

    def test_little_memory_gives_the_same(self, tmp_path):
        # Two million rows are more than the sort may hold at 256 MB only in part; what counts is that the results agree.
        path = parquet(
            tmp_path / "log.parquet",
            "SELECT (r % 20) * 10000 + i AS client, r AS round FROM range(200) a(r), range(10000) b(i)",
        )
        log = read_log(path, rounds=200, memory=256 * 10**6)
        assert (log.pattern.clients, dict(log.pattern.separations)) == (200_000, {20: 1_800_000})
        assert (log.pattern.max_participations, log.pattern.longest_span) == (10, 180)

    def test_nothing_is_left_behind(self, tmp_path):
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        read_log(write(tmp_path / "log.csv", ROWS), rounds=8, folder=scratch)
        with pytest.raises(ValueError, match="line 2"):
            read_log(write(tmp_path / "bad.csv", [("ann", "x")]), rounds=8, folder=scratch)
        assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("raised", "error", "words"),
    [
        (RuntimeError("Query interrupted"), KeyboardInterrupt, None),
        (duckdb.OutOfMemoryException("no block"), ValueError, "memory=1000000000 bytes do not suffice"),
        (duckdb.IOException("disk full\nsecond line"), OSError, r"temporary files \(disk full\): name a folder"),
    ],
)
def test_what_ends_a_sort(tmp_path, monkeypatch, raised, error, words):
    def end(*_, **__):
        raise raised

    monkeypatch.setattr(log, "_pattern", end)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(error, match=words):
        read_log(write(tmp_path / "log.csv", ROWS), rounds=8, folder=scratch)
    assert list(scratch.iterdir()) == []


@pytest.mark.slow
def test_memory_is_bounded(tmp_path):
    # 12 million rows in 256 MB. As int64 pairs with the two arrays of a sort they would take 480 MB beside the process itself.
    query = "SELECT (r % 200) * 6000 + i AS client, r AS round FROM range(2000) a(r), range(6000) b(i)"
    path = parquet(tmp_path / "log.parquet", query)
    program = (
        "import resource, sys; from fedmf.audits.log import read_log; "
        "base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; "
        "log = read_log(sys.argv[1], rounds=2000, memory=256 * 10**6); "
        "print(log.rows, log.pattern.clients, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    rows, clients, kilobytes = map(int, done.stdout.split())
    assert (rows, clients) == (12_000_000, 1_200_000)
    assert 1000 * kilobytes < 256e6 + 200e6


CSV = "client,round\nann,0\nbob,1\n"
REFUSED = {
    "empty": ("", "is empty"),
    "header only": ("client,round\n", "holds no participation"),
    "another header": ("device,t\nann,0\n", "no column 'client' among 'device', 't'"),
    "a column twice": ("client,round,client\nann,0,ann\n", "several columns 'client'"),
    "no header": ("ann,0\nbob,1\n", "no column 'client' among 'ann', '0'"),
    "negative": (CSV + "cem,-1\n", "line 4 of log .* has round '-1'"),
    "no whole number": (CSV + "cem,1.5\n", "line 4 of log .* has round '1.5'"),
    "exponent": (CSV + "cem,1e0\n", "line 4 of log .* has round '1e0'"),
    "blank before a round": (CSV + "cem, 1\n", "line 4 of log .* has round ' 1'"),
    "beyond the run": (CSV + "cem,8\n", "line 4 of log .* has round '8': .* from 0 to 7 .* first_round=1"),
    "far beyond": (CSV + "cem,99999999999999999999\n", "has round '99999999999999999999'"),
    "no round": (CSV + "cem,\n", "line 4 of log .* has no round"),
    "no client": (CSV + ",3\n", "line 4 of log .* has no client"),
    "blank client": (CSV + " ann,3\n", "line 4 of log .* has client ' ann' with blanks around it"),
    "half a row": (CSV + "cem\n", "line 4 of log .* has 1 of 2 columns"),
    "half a row and no line end": (CSV + "ce", "no line end"),
    "half a round": (CSV + "cem,1", "no line end"),
    "too many columns": (CSV + "cem,1,2\n", "line 4 of log .* has 3 of 2 columns"),
    "an open quote": (CSV + '"cem,1\n', "line 4 of log .* is not CSV"),
    "twice": (CSV + "ann,0\n", "1 rows twice, such as client 'ann' in round 0, lines 2 and 4: .*duplicates=\"once\""),
    "not text": (b"\x00\x01\x02\xff" * 9, "neither Parquet nor CSV"),
    "another encoding": (
        b"client,round\n" + "çem".encode("latin-1") + b",1\n",
        "line 2 of log .* is not text in UTF-8",
    ),
    "another encoding, far down": (
        b"client,round\n" + b"ann,1\n" * 30_000 + "çem".encode("latin-1") + b",1\n" + b"bob,1\n" * 9,
        "line 30002 of log .* is not text in UTF-8",
    ),
    "cut-off Parquet": (b"PAR1" + b"\x15" * 50, "without its end"),
    "broken Parquet": (b"PAR1" + b"\x15" * 50 + b"PAR1", "damaged Parquet"),
}


@pytest.mark.parametrize("content", REFUSED)
def test_refused_in_one_sentence(tmp_path, content):
    data, words = REFUSED[content]
    path = tmp_path / "log.csv"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(ValueError, match=words) as found:
        read_log(path, rounds=8)
    assert "\n" not in str(found.value)
    assert str(path) in str(found.value)


PARQUET = {
    "null round": ("(1, 0), (2, NULL)", "row 1 .* has no round"),
    "null client": ("(1, 0), (NULL, 3)", "row 1 .* has no client"),
    "fraction": ("(1, 0.5)", "column 'round' of type DECIMAL"),
    "text round": ("(1, '0')", "column 'round' of type VARCHAR"),
    "negative": ("(1, 0), (2, -3)", "row 1 .* has round '-3'"),
    "beyond": ("(1, 0), (2, 8)", "row 1 .* has round '8'"),
    "client of another kind": ("(1.5::DOUBLE, 0)", "column 'client' of type DOUBLE"),
    "blanks": ("('ann', 0), ('ann ', 3)", "row 1 .* with blanks around it"),
    "no client text": ("('ann', 0), ('', 3)", "row 1 .* has no client"),
    "twice": ("('ann', 0), ('ann', 0)", "1 rows twice, such as client 'ann' in round 0"),
}


@pytest.mark.parametrize("content", PARQUET)
def test_parquet_refused_in_one_sentence(tmp_path, content):
    values, words = PARQUET[content]
    path = parquet(tmp_path / "log.parquet", f"FROM (VALUES {values}) AS rows(client, round)")
    with pytest.raises(ValueError, match=words) as found:
        read_log(path, rounds=8)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"rounds": 0}, ValueError, "rounds=0"),
        ({"rounds": 2.5}, TypeError, "rounds=2.5"),
        ({"first_round": -1}, ValueError, "first_round=-1"),
        ({"duplicates": "sum"}, ValueError, "duplicates='sum'"),
        ({"memory": 1000}, ValueError, "memory=1000"),
        ({"client_column": "round"}, ValueError, "both 'round'"),
    ],
)
def test_arguments(tmp_path, change, error, words):
    path = write(tmp_path / "log.csv", ROWS)
    with pytest.raises(error, match=words):
        read_log(path, **({"rounds": 8} | change))


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.csv does not exist"):
        read_log(tmp_path / "none.csv", rounds=8)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_name_is_no_pattern(tmp_path, kind):
    """DuckDB reads every file that a path matches; the log that is named is the one that is read."""
    plain, named = tmp_path / f"log1.{kind}", tmp_path / f"log[1].{kind}"
    if kind == "csv":
        write(plain, [("bob", 0)])
        write(named, [("ann", t) for t in range(4)])
    else:
        parquet(plain, "SELECT 'bob' AS client, 0 AS round")
        parquet(tmp_path / "made.parquet", "SELECT 'ann' AS client, range AS round FROM range(4)").rename(named)
    assert read_log(named, rounds=8).pattern.max_participations == 4


@pytest.mark.parametrize("end", ["\t", "\x0b", "\u200b", "\u00a0", "\u2009"])
def test_ends_that_nobody_sees_are_refused_with_their_line(tmp_path, end):
    with pytest.raises(ValueError, match="line 3 of log .* one client must be written in one way"):
        read_log(write(tmp_path / "log.csv", [("ann", 0), (f"ann{end}", 1)]), rounds=8)
    with pytest.raises(ValueError, match="row 0 .* one client must be written in one way"):
        read_log(parquet(tmp_path / "log.parquet", f"SELECT 'ann{end}' AS client, 1 AS round"), rounds=8)
