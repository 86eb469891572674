"""What single clients cost: each its own rounds, whatever the others do; and who broke the plan."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import fedmf
from fedmf.audits.guarantee import audit_ledger, audit_log
from fedmf.mechanisms import (
    BandedMechanism,
    DenseMechanism,
    IdentityMechanism,
    ToeplitzMechanism,
    client_sensitivity,
)
from fedmf.mechanisms.budget import Budget, pair_costs
from fedmf.mechanisms.client_sensitivity import ClientSensitivity, gram_diagonals, spent_squared
from fedmf.participation.clients import ClientRounds
from tests.mechanisms.registry import MECHANISMS, every_mechanism
from tests.mechanisms.schemas import epochs, every_round, separated, single
from tests.oracles import attained_by_sets
from tests.privacy.plans import ledger_of, plan, two_bands
from tests.refusals import refusal

N = 9
# Every client may come in any round.
records = st.lists(st.sets(st.integers(0, N - 1), min_size=1), min_size=1, max_size=5)
participations = st.one_of(
    st.builds(separated, st.just(N), st.integers(1, N)),
    st.builds(epochs, st.just(N), st.integers(1, N)),
    st.sampled_from([single(N), every_round(N)]),
)


def cohorts_of(taken):
    return [[client for client, rounds in enumerate(taken) if t in rounds] for t in range(N)]


def sums(C, rounds):
    """The root of the sum of |X_st|."""
    X = np.abs(C.T @ C)
    return np.sqrt(X[np.ix_(sorted(rounds), sorted(rounds))].sum())


@every_mechanism
@settings(max_examples=12)
@given(taken=records, participation=participations)
def test_the_guarantee_is_that_of_the_worst_single_client(build, taken, participation):
    mechanism, rng = build(N), np.random.default_rng(0)
    C, planned = mechanism.encoder(), plan(participation, mechanism)
    audit = audit_ledger(ledger_of(cohorts_of(taken), None), planned)

    def holds(achieved, clients):
        """Never below what some updates of these clients attain, never above the sum of |X| of one
        of them, nor above the plan for all.
        """
        value = achieved.sensitivity.value
        attained = max(attained_by_sets(C, [tuple(sorted(taken[c]))], rng) for c in clients)
        kept = all(participation.allows(taken[c]) for c in clients)
        assert value >= attained * (1 - 1e-9)
        assert value <= max(sums(C, taken[c]) for c in clients) * (1 + 1e-12)
        assert not kept or value <= planned.sensitivity.value
        if achieved.sensitivity is not planned.sensitivity and achieved.sensitivity.exact:
            assert value <= attained * (1 + 1e-6)
        assert achieved.noise_multiplier == pytest.approx(
            2.0 * planned.sensitivity.value / value, rel=1e-12
        )

    holds(audit.achieved, range(len(taken)))
    broke = [c for c, rounds in enumerate(taken) if not participation.allows(rounds)]
    assert bool(audit.contradictions) == bool(broke)
    if not broke:
        assert audit.noncompliant_clients is None
        assert audit.epsilon <= planned.epsilon
        return
    assert audit.noncompliant_clients.clients == len(broke)
    assert sorted(one.client for one in audit.noncompliant_clients.first) == broke
    for one in audit.noncompliant_clients.first:
        assert one.rounds == tuple(sorted(taken[one.client]))
        holds(one.achieved, [one.client])
    others = [c for c in range(len(taken)) if c not in broke]
    assert (audit.noncompliant_clients.others is None) == (not others)
    if others:
        holds(audit.noncompliant_clients.others, others)


def test_the_oracle_finds_what_no_updates_attain():
    # The negative control of the bounds above: rounds whose |X| sum no updates attain.
    C = np.array([[1.0, -0.5, -0.5], [0.0, 1.0, -0.5], [0.0, 0.0, 1.0]])
    assert attained_by_sets(C, [(0, 1, 2)], np.random.default_rng(0)) < 0.99 * sums(C, (0, 1, 2))


@every_mechanism
def test_the_diagonals_of_the_gram_matrix(build):
    mechanism = build(N)
    X, diagonals = mechanism.encoder().T @ mechanism.encoder(), gram_diagonals(mechanism)
    expected = np.zeros((N, N))
    for d in range(N):
        expected[d, : N - d] = np.diagonal(X, d)
    assert_allclose(diagonals, expected[: len(diagonals)], rtol=1e-12, atol=1e-13)
    assert np.abs(expected[len(diagonals) :]).max(initial=0.0) == 0.0


def test_the_diagonals_of_a_banded_encoder_of_many_rounds():
    rows = MECHANISMS["banded, uneven"](5000).diagonals
    few, many = (gram_diagonals(BandedMechanism(diagonals=rows[:n])) for n in (1000, 5000))
    # Of the shorter run the last columns lack entries.
    assert_allclose(many[:, :990], few[:, :990], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("share", [0.0, 1 / 36, np.inf], ids=["products", "both", "pairs"])
@pytest.mark.parametrize("bands", [1, 5, 30])
def test_what_clients_spend_is_the_sum_over_their_rounds(monkeypatch, bands, share):
    monkeypatch.setattr(client_sensitivity, "_DENSE_PAIRS_FRACTION", share)
    monkeypatch.setattr(client_sensitivity, "_BLOCK_CLIENTS", 3)
    rng = np.random.default_rng(5)
    C = np.tril(np.triu(rng.standard_normal((30, 30)), 1 - bands), -1) + np.eye(30)
    mechanism = DenseMechanism(matrix=C)
    X, diagonals = pair_costs(mechanism), np.abs(gram_diagonals(mechanism))
    assert len(diagonals) == bands
    taken = [np.flatnonzero(rng.random(30) < p) for p in rng.uniform(0.2, 1.0, 20)]
    taken += [np.array([2]), np.arange(30)]
    starts = np.cumsum([0, *map(len, taken[:-1])])
    clients = ClientRounds(rounds=np.concatenate(taken).astype(np.int32), starts=starts)
    expected = [X[np.ix_(rounds, rounds)].sum() for rounds in taken]
    assert_allclose(spent_squared(diagonals, clients), expected, rtol=1e-13)
    nobody = ClientRounds(rounds=np.zeros(0, int), starts=np.zeros(0, int))
    assert len(spent_squared(diagonals, nobody)) == 0


class TestToeplitzEncodersOfManyRounds:
    """Where X would take gigabytes, clients are bounded by their own counts."""

    def test_bounds_are_upper_and_of_single_clients(self, monkeypatch):
        mechanism = ToeplitzMechanism(rounds=40, coefficients=0.8 ** np.arange(40))
        taken = [[0, 10, 20, 30], [5, 6], [7]]
        clients = ClientRounds(rounds=np.concatenate(taken), starts=np.array([0, 4, 6]))
        exact = ClientSensitivity(mechanism).squared(clients)
        with_others = ClientSensitivity(mechanism, [38, 39]).squared_with_extra_rounds(
            clients, exact
        )
        monkeypatch.setattr(client_sensitivity, "_MAX_TOEPLITZ_ENTRIES", 100)
        own = ClientSensitivity(mechanism)
        assert not own.exact
        bounds = own.squared(clients)
        assert (bounds >= exact * (1 - 1e-12)).all()
        # The first client has the very rounds that are worst of its counts; the second has not the
        # number of the first.
        assert_allclose(bounds[0], exact[0], rtol=1e-12)
        assert bounds[1] < 1.1 * exact[1]
        assert (
            ClientSensitivity(mechanism, [38, 39]).squared_with_extra_rounds(clients, bounds)
            >= with_others
        ).all()
        audit = audit_ledger(ledger_of([[0], [0], [1]], None), plan(separated(40, 10), mechanism))
        assert not audit.achieved.sensitivity.exact
        assert audit.noncompliant_clients.clients == 1


def test_of_many_offenders_the_ten_with_the_weakest_guarantees_are_named():
    counts = [2] * 11 + list(range(1, 10))
    cohorts = [[client for client, count in enumerate(counts) if t < count] for t in range(12)]
    offenders = audit_ledger(ledger_of(cohorts, None), plan(single(12))).noncompliant_clients
    assert offenders.clients == 19
    named = offenders.first
    assert [len(one.rounds) for one in named] == sorted(counts, reverse=True)[:10]
    assert all(
        one.achieved.sensitivity.value == pytest.approx(np.sqrt(len(one.rounds))) for one in named
    )


@pytest.mark.parametrize(
    "coefficients", [np.arange(1, 13) ** -0.5, [1.5, -0.5, 0.25, 0.5, -0.125]], ids=["", "signs"]
)
def test_rounds_without_a_record_count_for_every_client_after_a_broken_plan(tmp_path, coefficients):
    mechanism = ToeplitzMechanism(rounds=12, coefficients=coefficients)
    log = tmp_path / "log.csv"
    rows = [(t, f"c{t % 4}") for t in range(10)] + [(1, "bad"), (2, "bad")]
    log.write_text("round,client\n" + "".join(f"{t},{client}\n" for t, client in rows))
    audit = audit_log(log, plan(separated(12, 4), mechanism))
    C, rng = mechanism.encoder(), np.random.default_rng(0)
    (bad,) = audit.noncompliant_clients.first
    assert bad.rounds == (1, 2)
    for found, taken in (
        (bad.achieved, [(1, 2, 10, 11)]),
        (audit.noncompliant_clients.others, [(*range(c, 10, 4), 10, 11) for c in range(4)]),
    ):
        attained = attained_by_sets(C, taken, rng)
        most = max(sums(C, rounds) for rounds in taken)
        assert attained * (1 - 1e-9) <= found.sensitivity.value <= most * (1 + 1e-12)
    largest = max(
        bad.achieved.sensitivity.value, audit.noncompliant_clients.others.sensitivity.value
    )
    assert audit.achieved.sensitivity.value == largest


def test_with_sampling_nothing_rests_on_chance_once_a_client_left_its_part():
    scheme = fedmf.CyclicPoisson(population=400, cohort_size=10, partitions=2)
    planned = plan(None, two_bands(16), sampling=scheme, noise_multiplier=4.0)
    cohorts = [[t % 4] for t in range(16)]
    assert audit_ledger(ledger_of(cohorts, None), planned).amplified_epsilon is not None
    cohorts[3] = [3, 0]  # of part 0
    audit = audit_ledger(ledger_of(cohorts, None), planned)
    assert audit.amplified_epsilon is None
    assert [(one.client, one.rounds) for one in audit.noncompliant_clients.first] == [
        (0, (0, 3, 4, 8, 12))
    ]
    assert audit.noncompliant_clients.first[0].achieved.epsilon == audit.epsilon
    assert audit.noncompliant_clients.others.sensitivity.value < audit.achieved.sensitivity.value


def test_in_json_without_noise_or_others():
    """The golden statement of a log has an offender beside others."""
    silent = plan(separated(12, 4), two_bands(12), noise_multiplier=0)
    audit = audit_ledger(ledger_of([[100], [100]]), silent)
    values = json.loads(json.dumps(audit.values(), allow_nan=False))
    assert values["noncompliant_clients"] == audit.statement_values()["noncompliant_clients"]
    (bad,) = values["noncompliant_clients"]["first"]
    assert (values["noncompliant_clients"]["clients"], bad["client"], bad["rounds"]) == (
        1,
        100,
        [0, 1],
    )
    assert (
        values["epsilon_achieved"]
        is bad["epsilon"]
        is values["noncompliant_clients"]["others"]
        is None
    )
    assert "- 100: rounds 0, 1" in " ".join(audit.statement().split())


@pytest.mark.parametrize("unrecorded", [[1], [5, 4], [4, 4], [N]])
def test_rounds_without_a_record_come_after_the_ledger(unrecorded):
    with refusal("must be increasing rounds from 3 to 8"):
        audit_ledger(ledger_of([[0], [1], [0]], None), plan(single(N)), unrecorded=unrecorded)


def test_the_participation_of_a_budget_alone_names_nobody():
    budget = Budget.of(IdentityMechanism(rounds=8), separated(8, 4)).participation
    with refusal("fedmf.audit_ledger"):
        ledger_of([[1]]).noncompliant(budget)
