import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmf.ledger import Observed, ParticipationLedger

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
