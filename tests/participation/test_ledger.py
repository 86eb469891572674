"""ParticipationLedger: statistics, CSV text, files, and the planned and the compliant ledger."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmf.participation.ledger import ParticipationLedger
from tests.privacy.plans import ledger_of
from tests.refusals import refusal

# Rounds of few clients: the same client comes often.
cohorts = st.lists(st.lists(st.integers(0, 6), max_size=4, unique=True), max_size=12)


def figures_of(stats):
    """Returns the figures of participation statistics that `brute_force` computes too."""
    return stats.summary() | {
        "histogram": dict(stats.histogram),
        "separations": dict(stats.separations),
        "span": stats.longest_span,
        "sizes": stats.cohort_sizes.tolist(),
    }


def brute_force(rounds, cohort_size):
    """Returns the figures of cohorts from their definitions, client by client."""
    rounds_by_client = {}
    for t, cohort in enumerate(rounds):
        for client in cohort:
            rounds_by_client.setdefault(client, []).append(t)
    gaps = []
    for client_rounds in rounds_by_client.values():
        gaps.extend(
            next_round - previous_round
            for previous_round, next_round in itertools.pairwise(client_rounds)
        )
    counts = [len(client_rounds) for client_rounds in rounds_by_client.values()]
    spans = [client_rounds[-1] - client_rounds[0] for client_rounds in rounds_by_client.values()]
    return {
        "rounds": len(rounds),
        "participations": sum(counts),
        "clients": len(rounds_by_client),
        "max_participations": max(counts, default=0),
        "min_separation": min(gaps, default=None),
        "short_rounds": sum(len(cohort) < cohort_size for cohort in rounds),
        "histogram": {k: counts.count(k) for k in sorted(set(counts))},
        "separations": {gap: gaps.count(gap) for gap in sorted(set(gaps))},
        "span": max(spans, default=0),
        "sizes": [len(cohort) for cohort in rounds],
    }


@given(cohorts, st.integers(1, 4))
def test_observed_statistics_equal_those_of_a_brute_force_count(rounds, cohort_size):
    assert figures_of(ledger_of(rounds, cohort_size).observed()) == brute_force(rounds, cohort_size)


def test_the_brute_force_count_depends_on_the_rounds_of_clients():
    # Moving one participation by one round changes the oracle's figures: totals alone would not
    # pass.
    assert brute_force([[0], [], [0]], 1) != brute_force([[0], [0], []], 1)


def test_clients_with_indices_beyond_32_bits_are_distinct():
    rounds = [[0, 2**32 - 1], [2**32, 5], [2**32, 0]]
    assert figures_of(ledger_of(rounds, 3).observed()) == brute_force(rounds, 3)


@given(cohorts)
def test_from_csv_restores_the_ledger_of_to_csv(rounds):
    ledger = ledger_of(rounds, 3)
    restored_ledger = ParticipationLedger.from_csv(
        ledger.to_csv(), rounds=len(rounds), cohort_size=3
    )
    assert [restored_ledger.cohort(t).tolist() for t in range(len(restored_ledger))] == rounds
    assert restored_ledger.to_csv() == ledger.to_csv()


@pytest.mark.parametrize(
    "text",
    [
        b"round,client\n0,7\n2,9\n",
        b"\xef\xbb\xbfround,client\r\n0,7\r\n2,9\r\n",
        b"round,client\r\n0,7\n2,9\r\n",
        b"round,client\r0,7\r2,9\r",
    ],
)
def test_from_csv_reads_files_with_any_line_ends(tmp_path, text):
    path = tmp_path / "participation.csv"
    path.write_bytes(text)
    for source in (path, str(path), text.decode("utf-8-sig")):
        ledger = ParticipationLedger.from_csv(source, rounds=3, cohort_size=1)
        assert [ledger.cohort(t).tolist() for t in range(3)] == [[7], [], [9]]


def test_from_csv_raises_for_a_missing_file():
    with pytest.raises(FileNotFoundError, match="absent"):
        ParticipationLedger.from_csv("absent.csv", rounds=3, cohort_size=1)


def test_from_csv_reads_rows_in_any_order_and_large_client_indices():
    text = "round,client\n2,7\n0,1000000000000000000\n2,3\n"
    ledger = ParticipationLedger.from_csv(text, rounds=4, cohort_size=2)
    assert [ledger.cohort(t).tolist() for t in range(4)] == [[10**18], [], [7, 3], []]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "header round,client"),
        ("client,round\n0,1\n", "header round,client"),
        ("round,client\n0,1\n1,2", "the last line has no line end"),
        ("round,client\n0,5\n0,5\n", "must list different"),
        *(
            (f"round,client\n0,5\n{row}\n", f"row 2, .*{words}")
            for row, words in {
                "3": "is not round,client",
                "1e0,2": "the round is not written as a whole number",
                "4,1": "the round is beyond the run: rounds are 0 to 3",
                "1,-2": "the client is not a whole number",
                "1,2.0": "the client is not a whole number",
                "1,9223372036854775808": "the client is not a whole number",
                '"1,2': "the round is not a number",
                "1,": "the client is missing",
                "1,2\u200b": "the client has invisible characters",
            }.items()
        ),
    ],
)
def test_from_csv_refuses_damaged_text(text, words):
    with refusal(words):
        ParticipationLedger.from_csv(text, rounds=4, cohort_size=2)


class TestSelectedAndCohort:
    def ledger(self):
        ledger = ParticipationLedger(cohort_size=3)
        ledger.append(np.array([4, 1]), selected=np.array([4, 2, 1]))
        ledger.append(np.array([2, 3]), selected=np.array([3, 2]), noncompliant=np.array([2]))
        ledger.append(np.array([2]), selected=np.array([2, 5, 6]), noncompliant=np.array([2, 6]))
        return ledger

    def test_a_ledger_holds_selected_clients_and_cohorts(self):
        ledger = self.ledger()
        cohorts_by_round = [[4, 1], [2, 3], [2]]
        selected_clients = [[4, 2, 1], [3, 2], [2, 5, 6]]
        assert [ledger.cohort(t).tolist() for t in range(3)] == cohorts_by_round
        assert [ledger.selected(t).tolist() for t in range(3)] == selected_clients
        assert figures_of(ledger.observed()) == brute_force(cohorts_by_round, 3)
        assert figures_of(ledger.planned().observed()) == brute_force(selected_clients, 3)
        assert ledger.to_csv() == "round,client\n0,4\n0,1\n1,2\n1,3\n2,2\n"

    def test_compliant_excludes_noncompliant_clients(self):
        ledger = self.ledger()
        assert ledger.noncompliant().tolist() == [2, 6]
        compliant_ledger = ledger.compliant()
        assert [compliant_ledger.cohort(t).tolist() for t in range(3)] == [[4, 1], [3], []]
        assert [compliant_ledger.selected(t).tolist() for t in range(3)] == [[4, 1], [3], [5]]
        # In round 2 client 5 was selected, and nobody took part.
        assert compliant_ledger.observed().short_rounds == 1
        assert len(compliant_ledger.noncompliant()) == 0

    @pytest.mark.parametrize(("rounds", "noncompliant"), [(0, []), (2, [2]), (9, [2, 6])])
    def test_first_returns_the_first_rounds(self, rounds, noncompliant):
        whole_ledger = self.ledger()
        first_rounds = whole_ledger.first(rounds)
        assert len(first_rounds) == min(rounds, 3)
        for t in range(len(first_rounds)):
            assert first_rounds.selected(t).tolist() == whole_ledger.selected(t).tolist()
        assert first_rounds.noncompliant().tolist() == noncompliant

    def test_a_varying_cohort_is_short_if_a_selected_client_is_missing(self):
        ledger = ledger_of([[1], []], None)
        ledger.append(np.array([1]), selected=np.array([1, 2]))
        assert ledger.observed().short_rounds == 1


class TestSave:
    """Files of `save` and `to_csv`."""

    def test_load_restores_everything_that_save_wrote(self, tmp_path):
        ledger = ParticipationLedger(cohort_size=3)
        ledger.append(np.array([4, 1]), selected=np.array([1, 4, 7]), noncompliant=np.array([4]))
        ledger.append(np.array([], np.int64), selected=np.array([2**62]))
        ledger.append(np.array([], np.int64))
        path = tmp_path / "ledger.json"
        ledger.save(path)
        restored_ledger = ParticipationLedger.load(str(path))
        assert (len(restored_ledger), restored_ledger.cohort_size) == (3, 3)
        for t in range(3):
            np.testing.assert_array_equal(restored_ledger.cohort(t), ledger.cohort(t))
            np.testing.assert_array_equal(restored_ledger.selected(t), ledger.selected(t))
        np.testing.assert_array_equal(restored_ledger.noncompliant(), [4])
        assert restored_ledger.observed().summary() == ledger.observed().summary()
        assert path.stat().st_mode & 0o077 == 0
        ParticipationLedger(cohort_size=None).save(path)
        assert ParticipationLedger.load(path).cohort_size is None

    @pytest.mark.parametrize(
        "content",
        [
            "",
            "round,client\n0,1\n",
            '{"format": "fedmf ledger 1", "cohort_size": 2, "rounds": [[[1], [1]]]}',
            '{"format": "fedmf ledger 1", "cohort_size": 2, "rounds": [[[1], [2], []]]}',
            '{"format": "fedmf ledger 1", "cohort_size": 2, "rounds": [[[-1], [-1], []]]}',
            '{"format": "fedmf ledger 1", "cohort_size": 2, "rounds": [[[1e30], [1], []]]}',
            '{"format": "fedmf ledger 1", "cohort_size": 2, "rounds": [[[9e18], [1], []]]',
            '{"format": "fedmf ledger 9", "cohort_size": 2, "rounds": []}',
        ],
    )
    def test_load_refuses_damaged_files(self, content, tmp_path):
        path = tmp_path / "ledger.json"
        path.write_text(content)
        with refusal(f"path='{path}' holds no whole ledger"):
            ParticipationLedger.load(path)

    @pytest.mark.parametrize("path", [None, 3, ""])
    def test_save_and_load_refuse_arguments_that_are_not_paths(self, path):
        for call in (ParticipationLedger(cohort_size=1).save, ParticipationLedger.load):
            with refusal(f"path={path!r} is no path: name a file", TypeError):
                call(path)

    def test_to_csv_writes_a_file(self, tmp_path):
        ledger = ParticipationLedger(cohort_size=1, cohorts=[np.array([3])])
        assert ledger.to_csv(tmp_path / "ledger.csv") == "round,client\n0,3\n"
        restored_ledger = ParticipationLedger.from_csv(
            tmp_path / "ledger.csv", rounds=1, cohort_size=1
        )
        np.testing.assert_array_equal(restored_ledger.cohort(0), [3])
