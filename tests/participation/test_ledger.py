import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmf.participation.ledger import Observed, ParticipationLedger, _parsed, _parsed_row_by_row

# Rounds of few clients, so that the same client comes often.
cohorts = st.lists(st.lists(st.integers(0, 6), max_size=4, unique=True), max_size=12)


def ledger_of(rounds, cohort_size=3):
    return ParticipationLedger(cohort_size=cohort_size, cohorts=[np.array(c, np.int64) for c in rounds])


def brute_force(rounds, cohort_size):
    """Every pair of rounds of every client, one by one."""
    takes = [(t, client) for t, cohort in enumerate(rounds) for client in cohort]
    separations = [abs(t - s) for t, a in takes for s, b in takes if a == b and t != s]
    return Observed(
        rounds=len(rounds),
        participations=len(takes),
        clients=len({client for _, client in takes}),
        max_participations=max((sum(c == client for _, c in takes) for _, client in takes), default=0),
        min_separation=min(separations, default=None),
        short_rounds=sum(len(cohort) < cohort_size for cohort in rounds),
    )


@given(cohorts, st.integers(1, 4))
def test_observed_is_what_counting_finds(rounds, cohort_size):
    assert ledger_of(rounds, cohort_size).observed() == brute_force(rounds, cohort_size)


def test_the_oracle_tells_ledgers_apart():
    # Moving one participation by one round changes what the oracle sees: it cannot pass by looking at totals only.
    assert brute_force([[0], [], [0]], 1) != brute_force([[0], [0], []], 1)


@given(cohorts)
def test_csv_round_trip(rounds):
    ledger = ledger_of(rounds)
    again = ParticipationLedger.from_csv(ledger.to_csv(), rounds=len(rounds), cohort_size=3)
    assert [again.cohort(t).tolist() for t in range(len(again))] == rounds
    assert again.observed() == ledger.observed()
    assert again.to_csv() == ledger.to_csv()


@given(cohorts)
def test_histogram(rounds):
    clients = [client for cohort in rounds for client in cohort]
    counts = [clients.count(client) for client in set(clients)]
    expected = {times: counts.count(times) for times in sorted(set(counts))}
    assert list(ledger_of(rounds).histogram().items()) == list(expected.items())


@given(cohorts, st.integers(1, 4))
def test_shares_make_no_difference(rounds, at_once):
    # Large ledgers are counted share by share; here after every few pairs.
    ledger = ledger_of(rounds)
    whole = ledger.observed(), ledger.histogram()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedmf.participation.ledger._PAIRS_AT_ONCE", at_once)
        assert (ledger.observed(), ledger.histogram()) == whole


@given(cohorts)
def test_rounds_of_clients(rounds):
    found = ledger_of(rounds).rounds_of_clients()
    clients = {client for cohort in rounds for client in cohort}
    assert found == {c: [t for t, cohort in enumerate(rounds) if c in cohort] for c in clients}


@pytest.mark.parametrize(
    ("row", "shown"),
    {
        "one number": ("3", "3"),
        "three numbers": ("0,1,2", "0,1,2"),
        "negative round": ("-1,2", "-1,2"),
        "negative client": ("1,-2", "1,-2"),
        "not a number": ("1,x", "1,x"),
        "fraction": ("1,2.0", "1,2.0"),
        "blank line": ("", "''"),
        "spaces": ("1, 2", "1, 2"),
        "round too late": ("4,1", "4,1"),
        "superscript digit": ("1,²", "1,²"),
        "digits of another script": ("1,٣", "1,٣"),
        "beyond int64": ("1,9223372036854775808", "9223372036854775808"),
        "hundreds of digits": ("1," + "9" * 500, "1,999"),
        "pair twice": ("0,5", "0,5"),
        "open quote": ('"1,2', "1,2"),
        "field beyond the csv module": ("1," + "9" * 200_000, "field larger"),
    }.values(),
)
def test_a_bad_row_is_named(row, shown):
    text = f"round,client\n0,5\n{row}\n"
    with pytest.raises(ValueError, match="line [0-9]+ of the ledger") as caught:
        ParticipationLedger.from_csv(text, rounds=4, cohort_size=2)
    message = str(caught.value)
    assert shown in message
    assert "\n" not in message.replace("\\n", "")
    assert len(message) < 300
    assert "to_csv" in message


@pytest.mark.parametrize("text", ["", "client,round\n0,1\n", "0,1\n", "round,client,time\n"])
def test_another_header(text):
    with pytest.raises(ValueError, match="header round,client"):
        ParticipationLedger.from_csv(text, rounds=4, cohort_size=2)


@pytest.mark.parametrize(
    ("cohort", "kind", "words"),
    [
        ([1, 1], ValueError, r"cohort=\[1, 1\] must list different"),
        ([-1], ValueError, r"cohort=\[-1\] must list different, non-negative"),
        ([[1, 2]], ValueError, "cohort="),
        ([0.9], TypeError, "float64 entries"),
        (["1"], TypeError, "entries: pass client indices"),
        ([True], TypeError, "bool entries"),
    ],
)
def test_a_cohort_is_different_clients(cohort, kind, words):
    ledger = ledger_of([[0]])
    with pytest.raises(kind, match=words):
        ledger.append(np.array(cohort))
    assert len(ledger) == 1


def test_entries_cannot_be_changed_afterwards():
    cohort = np.array([1, 2])
    ledger = ParticipationLedger(cohort_size=2, cohorts=[cohort])
    cohort[0] = 7
    assert ledger.cohort(0).tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        ledger.cohort(0)[0] = 7


class TestLargeClients:
    far = (2**32 - 1, 2**32, 10**18 - 1)

    def test_kept_as_they_are(self):
        ledger = ledger_of([self.far, self.far[:2], [3]])
        assert ledger.cohort(0).tolist() == list(self.far)
        assert ledger.cohort(2).dtype == np.int64
        assert ledger.observed() == brute_force([self.far, self.far[:2], [3]], 3)
        assert ledger.rounds_of_clients()[2**32] == [0, 1]
        again = ParticipationLedger.from_csv(ledger.to_csv(), rounds=3, cohort_size=3)
        assert again.pairs().tolist() == ledger.pairs().tolist()

    def test_four_bytes_where_they_do(self):
        ledger = ledger_of([[0, 2**32 - 1]])
        assert ledger._cohorts[0].dtype == np.uint32


class TestPlannedAndAchieved:
    def ledger(self):
        ledger = ParticipationLedger(cohort_size=3)
        ledger.append(np.array([4, 1]), selected=np.array([4, 2, 1]))
        ledger.append(np.array([2, 3]), selected=np.array([3, 2]), noncompliant=np.array([2]))
        ledger.append(np.array([2]), selected=np.array([2, 5, 6]), noncompliant=np.array([2, 6]))
        return ledger

    def test_both_are_kept(self):
        ledger = self.ledger()
        assert [ledger.cohort(t).tolist() for t in range(3)] == [[4, 1], [2, 3], [2]]
        assert [ledger.selected(t).tolist() for t in range(3)] == [[4, 2, 1], [2, 3], [2, 5, 6]]
        assert ledger.observed() == brute_force([[4, 1], [2, 3], [2]], 3)
        assert ledger.planned().observed() == brute_force([[4, 2, 1], [2, 3], [2, 5, 6]], 3)
        assert ledger.to_csv() == "round,client\n0,4\n0,1\n1,2\n1,3\n2,2\n"

    def test_without_the_disobedient(self):
        ledger = self.ledger()
        assert ledger.noncompliant().tolist() == [2, 6]
        rest = ledger.well_behaved()
        assert [rest.cohort(t).tolist() for t in range(3)] == [[4, 1], [3], []]
        assert [rest.selected(t).tolist() for t in range(3)] == [[4, 1], [3], [5]]
        assert rest.observed().short_rounds == 1  # round 2, in which 5 was selected and nobody came
        assert len(rest.noncompliant()) == 0

    @pytest.mark.parametrize("rounds", [0, 1, 2, 3, 9])
    def test_the_first_rounds(self, rounds):
        first = self.ledger().first(rounds)
        assert len(first) == min(rounds, 3)
        assert [first.selected(t).tolist() for t in range(len(first))] == [[4, 2, 1], [2, 3], [2, 5, 6]][:rounds]
        assert first.noncompliant().tolist() == [[], [], [2], [2, 6], [2, 6]][min(rounds, 3)]
        assert first.cohort_size == 3
        first.append(np.array([9]))
        assert len(self.ledger()) == 3

    def test_who_takes_part_was_selected(self):
        ledger = self.ledger()
        with pytest.raises(ValueError, match="cohort of round 3 has client 8, who is not in selected"):
            ledger.append(np.array([1, 8]), selected=np.array([1, 7]))
        with pytest.raises(ValueError, match=r"selected=\[1, 1\] must list different"):
            ledger.append(np.array([1]), selected=np.array([1, 1]))
        assert len(ledger) == 3

    def test_sizes_that_vary_by_design(self):
        ledger = ParticipationLedger(cohort_size=None, cohorts=[np.array([1]), np.zeros(0, np.int64)])
        ledger.append(np.array([1]), selected=np.array([1, 2]))
        assert ledger.observed().short_rounds == 1
        assert ParticipationLedger.from_csv(ledger.to_csv(), rounds=3, cohort_size=None).observed().short_rounds == 0


class TestQuickParsing:
    """Files as to_csv writes them are parsed in blocks; everything else row by row, with the same answer."""

    def both(self, text, rounds=9):
        quick = _parsed(text, rounds)
        slow = _parsed_row_by_row(text, rounds)
        return None if quick is None else [c.tolist() for c in quick], [c.tolist() for c in slow]

    @given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 10**18 - 1)), unique=True), st.integers(30, 60))
    def test_the_same(self, rows, at_once):
        # The rows in any order, in blocks of a few lines.
        text = "round,client\n" + "".join(f"{t},{client}\n" for t, client in rows)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fedmf.participation.ledger._TEXT_AT_ONCE", at_once)
            quick, slow = self.both(text)
        assert quick == slow

    @pytest.mark.parametrize("body", ['"0",1\n', "0,1", "0,1\r\n"])
    def test_what_only_the_csv_module_reads(self, body):
        quick, slow = self.both("round,client\n" + body)
        assert quick is None
        assert slow[0] == [1]

    @pytest.mark.parametrize("body", ["0,1\n0,1\n", "9,1\n", "0, 1\n", "0,1,2\n", "\n", "0,1\n,\n"])
    def test_what_is_refused_is_left_to_the_other(self, body):
        assert _parsed("round,client\n" + body, 9) is None


def test_600_000_participations_there_and_back():
    rng = np.random.default_rng(1)
    ledger = ParticipationLedger(cohort_size=3000, cohorts=[rng.choice(10**7, 3000, replace=False) for _ in range(200)])
    text = ledger.to_csv()
    again = ParticipationLedger.from_csv(text, rounds=200, cohort_size=3000)
    assert (again.pairs() == ledger.pairs()).all()
    assert again.observed() == ledger.observed()
    assert sum(times * clients for times, clients in ledger.histogram().items()) == 600_000
