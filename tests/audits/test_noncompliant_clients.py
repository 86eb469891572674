"""Sensitivities to single clients, each by its own rounds, and the clients that break the plan."""

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
from fedmf.privacy.gaussian import gaussian_epsilon
from fedmf.privacy.plan import unamplified_epsilon
from fedmf.privacy.source_tail import GRAPH_END, HOST_END, check_tail
from fedmf.privacy.systems import Subject
from tests.mechanisms.registry import MECHANISMS, every_mechanism
from tests.mechanisms.schemas import epochs, every_round, separated, single
from tests.oracles import attained_by_sets
from tests.privacy.plans import ledger_of, plan, two_bands
from tests.refusals import refusal

N = 9
# Every client may take part in any round.
records = st.lists(st.sets(st.integers(0, N - 1), min_size=1), min_size=1, max_size=5)
participations = st.one_of(
    st.builds(separated, st.just(N), st.integers(1, N)),
    st.builds(epochs, st.just(N), st.integers(1, N)),
    st.sampled_from([single(N), every_round(N)]),
)


def cohorts_of(client_rounds):
    """Returns the cohorts of clients with these rounds."""
    return [
        [client for client, rounds in enumerate(client_rounds) if t in rounds] for t in range(N)
    ]


def sums(C, rounds):
    """Returns the root of the sum of |X_st| over a client's rounds."""
    X = np.abs(C.T @ C)
    return np.sqrt(X[np.ix_(sorted(rounds), sorted(rounds))].sum())


@every_mechanism
@settings(max_examples=12)
@given(taken=records, participation=participations)
def test_the_guarantee_is_that_of_the_worst_single_client(build, taken, participation):
    mechanism = build(N)
    rng = np.random.default_rng(0)
    C = mechanism.encoder()
    tested_plan = plan(participation, mechanism)
    audit = audit_ledger(ledger_of(cohorts_of(taken), None), tested_plan)

    def holds(achieved, clients):
        """Checks that a guarantee is between an attained value and the sum of |X| of one client.

        It is also at most that of the plan, if the plan allows all these clients.
        """
        bound_value = achieved.sensitivity.value
        # Where two maxima are near, the ascent takes thousands of sweeps to converge.
        attained_value = max(
            attained_by_sets(C, [tuple(sorted(taken[c]))], rng, sweeps=5000) for c in clients
        )
        all_allowed = all(participation.allows(taken[c]) for c in clients)
        assert bound_value >= attained_value * (1 - 1e-9)
        assert bound_value <= max(sums(C, taken[c]) for c in clients) * (1 + 1e-12)
        assert not all_allowed or bound_value <= tested_plan.sensitivity.value
        if achieved.sensitivity is not tested_plan.sensitivity and achieved.sensitivity.exact:
            assert bound_value <= attained_value * (1 + 1e-6)
        assert achieved.noise_multiplier == pytest.approx(
            2.0 * tested_plan.sensitivity.value / bound_value, rel=1e-12
        )

    holds(audit.achieved, range(len(taken)))
    noncompliant_clients = [c for c, rounds in enumerate(taken) if not participation.allows(rounds)]
    assert bool(audit.contradictions) == bool(noncompliant_clients)
    if not noncompliant_clients:
        assert audit.noncompliant_clients is None
        assert audit.epsilon <= tested_plan.epsilon
        return
    assert audit.noncompliant_clients.clients == len(noncompliant_clients)
    assert (
        sorted(client.client for client in audit.noncompliant_clients.first) == noncompliant_clients
    )
    for client in audit.noncompliant_clients.first:
        assert client.rounds == tuple(sorted(taken[client.client]))
        holds(client.achieved, [client.client])
    compliant_clients = [c for c in range(len(taken)) if c not in noncompliant_clients]
    assert (audit.noncompliant_clients.others is None) == (not compliant_clients)
    if compliant_clients:
        holds(audit.noncompliant_clients.others, compliant_clients)


def test_oracle_detects_sums_that_no_updates_attain():
    # The negative control of the bounds above: rounds whose |X| sum no updates attain.
    C = np.array([[1.0, -0.5, -0.5], [0.0, 1.0, -0.5], [0.0, 0.0, 1.0]])
    assert attained_by_sets(C, [(0, 1, 2)], np.random.default_rng(0)) < 0.99 * sums(C, (0, 1, 2))


@every_mechanism
def test_gram_diagonals_are_those_of_the_gram_matrix(build):
    mechanism = build(N)
    X = mechanism.encoder().T @ mechanism.encoder()
    diagonals = gram_diagonals(mechanism)
    expected = np.zeros((N, N))
    for d in range(N):
        expected[d, : N - d] = np.diagonal(X, d)
    assert_allclose(diagonals, expected[: len(diagonals)], rtol=1e-12, atol=1e-13)
    assert np.abs(expected[len(diagonals) :]).max(initial=0.0) == 0.0


def test_gram_diagonals_of_many_rounds_begin_with_those_of_fewer_rounds():
    rows = MECHANISMS["banded, uneven"](5000).diagonals
    short_diagonals, long_diagonals = (
        gram_diagonals(BandedMechanism(diagonals=rows[:n])) for n in (1000, 5000)
    )
    # The last columns of the shorter run lack entries.
    assert_allclose(long_diagonals[:, :990], short_diagonals[:, :990], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("share", [0.0, 1 / 36, np.inf], ids=["products", "both", "pairs"])
@pytest.mark.parametrize("bands", [1, 5, 30])
def test_what_clients_spend_is_the_sum_over_their_rounds(monkeypatch, bands, share):
    monkeypatch.setattr(client_sensitivity, "_DENSE_PAIRS_FRACTION", share)
    monkeypatch.setattr(client_sensitivity, "_BLOCK_CLIENTS", 3)
    rng = np.random.default_rng(5)
    C = np.tril(np.triu(rng.standard_normal((30, 30)), 1 - bands), -1) + np.eye(30)
    mechanism = DenseMechanism(matrix=C)
    X = pair_costs(mechanism)
    diagonals = np.abs(gram_diagonals(mechanism))
    assert len(diagonals) == bands
    client_rounds = [
        np.flatnonzero(rng.random(30) < participation_rate)
        for participation_rate in rng.uniform(0.2, 1.0, 20)
    ]
    client_rounds += [np.array([2]), np.arange(30)]
    starts = np.cumsum([0, *map(len, client_rounds[:-1])])
    clients = ClientRounds(rounds=np.concatenate(client_rounds).astype(np.int32), starts=starts)
    expected = [X[np.ix_(rounds, rounds)].sum() for rounds in client_rounds]
    assert_allclose(spent_squared(diagonals, clients), expected, rtol=1e-13)
    no_clients = ClientRounds(rounds=np.zeros(0, int), starts=np.zeros(0, int))
    assert len(spent_squared(diagonals, no_clients)) == 0


class TestToeplitzEncodersOfManyRounds:
    """Bounds by a client's own counts, if X would take gigabytes."""

    def test_bounds_are_upper_and_of_single_clients(self, monkeypatch):
        mechanism = ToeplitzMechanism(rounds=40, coefficients=0.8 ** np.arange(40))
        client_rounds = [[0, 10, 20, 30], [5, 6], [7]]
        clients = ClientRounds(rounds=np.concatenate(client_rounds), starts=np.array([0, 4, 6]))
        exact_squares = ClientSensitivity(mechanism).squared(clients)
        exact_with_later = ClientSensitivity(mechanism, [38, 39]).squared_with_extra_rounds(
            clients, exact_squares
        )
        monkeypatch.setattr(client_sensitivity, "_MAX_TOEPLITZ_ENTRIES", 100)
        bounded_rounds = ClientSensitivity(mechanism)
        assert not bounded_rounds.exact
        bounds = bounded_rounds.squared(clients)
        assert (bounds >= exact_squares * (1 - 1e-12)).all()
        # The first client has the worst rounds for its number of participations; the second client
        # has another number.
        assert_allclose(bounds[0], exact_squares[0], rtol=1e-12)
        assert bounds[1] < 1.1 * exact_squares[1]
        assert (
            ClientSensitivity(mechanism, [38, 39]).squared_with_extra_rounds(clients, bounds)
            >= exact_with_later
        ).all()
        audit = audit_ledger(ledger_of([[0], [0], [1]], None), plan(separated(40, 10), mechanism))
        assert not audit.achieved.sensitivity.exact
        assert audit.noncompliant_clients.clients == 1


def test_ten_noncompliant_clients_with_the_weakest_guarantees_are_listed():
    participation_counts = [2] * 11 + list(range(1, 10))
    cohorts = [
        [client for client, count in enumerate(participation_counts) if t < count]
        for t in range(12)
    ]
    noncompliant_clients = audit_ledger(
        ledger_of(cohorts, None), plan(single(12))
    ).noncompliant_clients
    assert noncompliant_clients.clients == 19
    listed_clients = noncompliant_clients.first
    assert [len(client.rounds) for client in listed_clients] == sorted(
        participation_counts, reverse=True
    )[:10]
    assert all(
        client.achieved.sensitivity.value == pytest.approx(np.sqrt(len(client.rounds)))
        for client in listed_clients
    )


@pytest.mark.parametrize(
    "coefficients", [np.arange(1, 13) ** -0.5, [1.5, -0.5, 0.25, 0.5, -0.125]], ids=["", "signs"]
)
def test_rounds_without_a_record_count_for_every_client_after_a_broken_plan(tmp_path, coefficients):
    mechanism = ToeplitzMechanism(rounds=12, coefficients=coefficients)
    log_path = tmp_path / "log.csv"
    rows = [(t, f"c{t % 4}") for t in range(10)] + [(1, "bad"), (2, "bad")]
    log_path.write_text("round,client\n" + "".join(f"{t},{client}\n" for t, client in rows))
    audit = audit_log(log_path, plan(separated(12, 4), mechanism))
    C = mechanism.encoder()
    rng = np.random.default_rng(0)
    (bad_client,) = audit.noncompliant_clients.first
    assert bad_client.rounds == (1, 2)
    for achieved_value, client_rounds in (
        (bad_client.achieved, [(1, 2, 10, 11)]),
        (
            audit.noncompliant_clients.others,
            [(*range(first_round, 10, 4), 10, 11) for first_round in range(4)],
        ),
    ):
        attained_value = attained_by_sets(C, client_rounds, rng)
        largest_sum = max(sums(C, rounds) for rounds in client_rounds)
        assert (
            attained_value * (1 - 1e-9)
            <= achieved_value.sensitivity.value
            <= largest_sum * (1 + 1e-12)
        )
    largest_sensitivity = max(
        bad_client.achieved.sensitivity.value, audit.noncompliant_clients.others.sensitivity.value
    )
    assert audit.achieved.sensitivity.value == largest_sensitivity


def test_no_amplification_once_a_client_left_its_partition():
    sampling_scheme = fedmf.CyclicPoisson(population=400, cohort_size=10, partitions=2)
    sampled_plan = plan(None, two_bands(16), sampling=sampling_scheme, noise_multiplier=4.0)
    cohorts = [[t % 4] for t in range(16)]
    assert audit_ledger(ledger_of(cohorts, None), sampled_plan).amplified_epsilon is not None
    cohorts[3] = [3, 0]  # of partition 0
    audit = audit_ledger(ledger_of(cohorts, None), sampled_plan)
    assert audit.amplified_epsilon is None
    assert [(client.client, client.rounds) for client in audit.noncompliant_clients.first] == [
        (0, (0, 3, 4, 8, 12))
    ]
    assert audit.noncompliant_clients.first[0].achieved.epsilon == audit.epsilon
    assert audit.noncompliant_clients.others.sensitivity.value < audit.achieved.sensitivity.value


def test_json_values_are_null_without_noise_or_other_clients():
    """Tests values that the golden statement of a log, with other clients, does not have."""
    noiseless_plan = plan(separated(12, 4), two_bands(12), noise_multiplier=0)
    audit = audit_ledger(ledger_of([[100], [100]]), noiseless_plan)
    values = json.loads(json.dumps(audit.values(), allow_nan=False))
    assert values["noncompliant_clients"] == audit.statement_values()["noncompliant_clients"]
    (bad_client,) = values["noncompliant_clients"]["first"]
    assert (
        values["noncompliant_clients"]["clients"],
        bad_client["client"],
        bad_client["rounds"],
    ) == (
        1,
        100,
        [0, 1],
    )
    assert (
        values["epsilon_achieved"]
        is bad_client["epsilon"]
        is values["noncompliant_clients"]["others"]
        is None
    )
    assert "- 100: rounds 0, 1" in " ".join(audit.statement().split())


@pytest.mark.parametrize("unrecorded", [[1], [5, 4], [4, 4], [N]])
def test_rounds_without_a_record_come_after_the_ledger(unrecorded):
    with refusal("must be increasing rounds from 3 to 8"):
        audit_ledger(ledger_of([[0], [1], [0]], None), plan(single(N)), unrecorded=unrecorded)


def test_ledger_refuses_the_participation_of_a_budget_alone():
    budget = Budget.of(IdentityMechanism(rounds=8), separated(8, 4)).participation
    with refusal("fedmf.audit_ledger"):
        ledger_of([[1]]).noncompliant(budget)


def audit_of_every_round(mechanism):
    """Returns the audit of a client in all rounds, of which the plan allows it one."""
    n = mechanism.rounds
    tested_plan = plan(single(n), mechanism, noise_multiplier=0.653)
    return audit_ledger(ledger_of([[0, 1]] + [[0]] * (n - 1), None), tested_plan)


def test_client_that_the_noise_reveals_has_no_epsilon():
    # The shift of the last row alone is longer than the noise may be.
    n = 64
    audit = audit_of_every_round(DenseMechanism(matrix=np.tril(np.ones((n, n)))))
    assert n / (0.653 * np.sqrt(n)) > HOST_END
    assert np.isfinite(unamplified_epsilon(audit.achieved.plan))
    assert audit.epsilon == audit.noncompliant_clients.first[0].achieved.epsilon == np.inf
    assert np.isfinite(audit.noncompliant_clients.others.epsilon)
    values = audit.statement_values()
    assert values["achieved"]["epsilon"] is None
    assert values["attack"]["epsilon"] is None
    assert [row["epsilon"] for row in values["group_privacy"]] == [None] * 3


def test_client_whose_rounds_have_rows_of_their_own_keeps_its_epsilon():
    audit = audit_of_every_round(IdentityMechanism(rounds=64))
    assert audit.epsilon == gaussian_epsilon(0.653 / 8, 1e-6)


def test_client_that_only_the_noise_of_a_graph_reveals_has_an_epsilon_only_on_the_host():
    """The generator of a ledger's system is not known."""
    n = 16
    audit = audit_of_every_round(DenseMechanism(matrix=np.tril(np.ones((n, n)))))
    check_tail(audit.planned, GRAPH_END)
    # The shift of the last row; the draws of a graph end less than 4 standard deviations after it.
    assert GRAPH_END - n / (0.653 * np.sqrt(n)) < 4 < 5 < HOST_END - n / (0.653 * np.sqrt(n))
    assert np.isfinite(audit.achieved.epsilon_in("server"))
    assert audit.epsilon == np.inf
    for system in ("ledger", "pipeline"):
        values = audit.statement_values(subject=Subject(system=system))
        clients = values["noncompliant_clients"]
        assert clients["others"]["epsilon"] is not None
        for guarantee in (values["achieved"], values["attack"], clients["first"][0]):
            assert guarantee["epsilon"] is None
