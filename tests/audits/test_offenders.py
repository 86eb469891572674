"""What single clients cost: each its own rounds, whatever the others do; and who broke the plan."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedmf
from fedmf.audits.guarantee import audit_ledger, audit_log
from fedmf.mechanisms import (
    BandedMechanism,
    DenseMechanism,
    IdentityMechanism,
    ToeplitzMechanism,
    own_rounds,
)
from fedmf.mechanisms.budget import Budget, costs
from fedmf.mechanisms.own_rounds import OwnRounds, gram_diagonals, spent_squared
from fedmf.participation.clients import ClientRounds
from fedmf.participation.schema import Participation
from fedmf.privacy.sampling import CyclicPoisson
from tests.mechanisms.registry import every_mechanism
from tests.mechanisms.schemas import epochs, separated, single
from tests.oracles import attained_by_sets
from tests.privacy.plans import ledger_of, plan, two_bands

N = 9
# Every client may come in any round.
records = st.lists(st.sets(st.integers(0, N - 1), min_size=1), min_size=1, max_size=5)
participations = st.one_of(
    st.builds(separated, st.just(N), st.integers(1, N)),
    st.builds(epochs, st.just(N), st.integers(1, N)),
    st.sampled_from([single(N), Participation(rounds=N, schema="every_round")]),
)


def cohorts_of(taken):
    return [[client for client, rounds in enumerate(taken) if t in rounds] for t in range(N)]


def sums(C, rounds):
    """The root of the sum of |X_st|."""
    X = np.abs(C.T @ C)
    return np.sqrt(X[np.ix_(sorted(rounds), sorted(rounds))].sum())


@every_mechanism
@settings(max_examples=12, deadline=None)
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
        assert audit.offenders is None
        assert audit.epsilon <= planned.epsilon
        return
    assert audit.offenders.clients == len(broke)
    assert sorted(one.client for one in audit.offenders.first) == broke
    for one in audit.offenders.first:
        assert one.rounds == tuple(sorted(taken[one.client]))
        holds(one.achieved, [one.client])
    others = [c for c in range(len(taken)) if c not in broke]
    assert (audit.offenders.others is None) == (not others)
    if others:
        holds(audit.offenders.others, others)


def test_the_oracle_is_exact_for_signed_encoders_too():
    # The negative control of the bounds above: rounds whose |X| sum no updates attain.
    C = np.eye(3) - 0.45 * np.eye(3, k=-1)
    attained = attained_by_sets(C, [(0, 1, 2)], np.random.default_rng(0))
    assert attained == pytest.approx(sums(C, (0, 1, 2)))  # a tree of signs can be turned
    C = np.array([[1.0, -0.5, -0.5], [0.0, 1.0, -0.5], [0.0, 0.0, 1.0]])
    assert attained_by_sets(C, [(0, 1, 2)], np.random.default_rng(0)) < 0.99 * sums(C, (0, 1, 2))


@every_mechanism
def test_the_diagonals_of_the_gram_matrix(build):
    mechanism = build(N)
    X, diagonals = mechanism.encoder().T @ mechanism.encoder(), gram_diagonals(mechanism)
    expected = np.zeros((N, N))
    for d in range(N):
        expected[d, : N - d] = np.diagonal(X, d)
    np.testing.assert_allclose(diagonals, expected[: len(diagonals)], rtol=1e-12, atol=1e-13)
    assert np.abs(expected[len(diagonals) :]).max(initial=0.0) == 0.0


def test_the_diagonals_of_a_banded_encoder_of_many_rounds(monkeypatch):
    rows = np.random.default_rng(1).standard_normal((12, 4))
    rows[np.arange(12)[:, None] < np.arange(4)] = 0.0
    rows[:, 0] = 2.0
    dense = gram_diagonals(BandedMechanism(diagonals=rows))
    monkeypatch.setattr(own_rounds, "_MAX_DENSE_ROUNDS", 11)
    np.testing.assert_allclose(
        gram_diagonals(BandedMechanism(diagonals=rows)), dense, rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize("share", [0.0, 1 / 36, np.inf], ids=["products", "both", "pairs"])
@pytest.mark.parametrize("bands", [1, 5, 30])
def test_what_clients_spend_is_the_sum_over_their_rounds(monkeypatch, bands, share):
    monkeypatch.setattr(own_rounds, "_PAIRS_OF_A_PRODUCT", share)
    monkeypatch.setattr(own_rounds, "_CLIENTS_AT_ONCE", 3)
    rng = np.random.default_rng(5)
    below = np.subtract.outer(np.arange(30), np.arange(30))
    matrix = np.where((below > 0) & (below < bands), rng.standard_normal((30, 30)), 0.0) + np.eye(
        30
    )
    mechanism = DenseMechanism(matrix=matrix)
    X = costs(mechanism)
    taken = [np.flatnonzero(rng.random(30) < p) for p in rng.uniform(0.1, 1.0, 20)] + [
        np.array([2]),
        np.arange(30),
    ]
    taken = [rounds for rounds in taken if len(rounds)]
    starts = np.cumsum([0, *map(len, taken[:-1])])
    clients = ClientRounds(rounds=np.concatenate(taken).astype(np.int32), starts=starts)
    expected = [X[np.ix_(rounds, rounds)].sum() for rounds in taken]
    diagonals = np.abs(gram_diagonals(mechanism))
    assert len(diagonals) == bands
    np.testing.assert_allclose(spent_squared(diagonals, clients), expected, rtol=1e-13)
    nobody = ClientRounds(rounds=np.zeros(0, int), starts=np.zeros(0, int))
    assert len(spent_squared(diagonals, nobody)) == 0


class TestToeplitzEncodersOfManyRounds:
    """Where X would take gigabytes, clients are bounded by their own counts."""

    def test_bounds_are_upper_and_of_single_clients(self, monkeypatch):
        mechanism = ToeplitzMechanism(rounds=40, coefficients=0.8 ** np.arange(40))
        taken = [[0, 10, 20, 30], [5, 6], [7]]
        clients = ClientRounds(rounds=np.concatenate(taken), starts=np.array([0, 4, 6]))
        exact = OwnRounds(mechanism).squared(clients)
        with_others = OwnRounds(mechanism, [38, 39]).squared_with_besides(clients, exact)
        monkeypatch.setattr(own_rounds, "_MAX_TOEPLITZ_ENTRIES", 100)
        own = OwnRounds(mechanism)
        assert not own.exact
        bounds = own.squared(clients)
        assert (bounds >= exact * (1 - 1e-12)).all()
        # The first client has the very rounds that are worst of its counts; the second has not the
        # number of the first.
        np.testing.assert_allclose(bounds[0], exact[0], rtol=1e-12)
        assert bounds[1] < 1.1 * exact[1]
        assert (
            OwnRounds(mechanism, [38, 39]).squared_with_besides(clients, bounds) >= with_others
        ).all()
        audit = audit_ledger(ledger_of([[0], [0], [1]], None), plan(separated(40, 10), mechanism))
        assert not audit.achieved.sensitivity.exact
        assert audit.offenders.clients == 1


def offender_and_others(tmp_path, mechanism, participation, offender, unrecorded=0, **options):
    """A log in which client "bad" takes part in these rounds, and others one after the other; the
    ledger of the same.
    """
    n, b = participation.rounds, participation.min_sep
    rows = [(t, f"c{t % b}") for t in range(n - unrecorded)] + [(t, "bad") for t in offender]
    log = tmp_path / "log.csv"
    log.write_text("round,client\n" + "".join(f"{t},{client}\n" for t, client in rows))
    return audit_log(log, plan(participation, mechanism, **options))


def test_one_offender_does_not_cost_everybody(tmp_path):
    mechanism = fedmf.fit(
        fedmf.prefix_sum(40), separated(40, 8), family="toeplitz", coefficients="sqrt"
    )
    C = mechanism.encoder()
    audit = offender_and_others(tmp_path, mechanism, separated(40, 8), [1, 3, 16])
    own, honest = (
        np.linalg.norm(C[:, rounds].sum(axis=1)) for rounds in ([1, 3, 16], range(0, 40, 8))
    )
    assert own < honest  # as often as the others, of whom nobody came too soon
    assert audit.achieved.sensitivity.value == pytest.approx(honest, rel=1e-12)
    (bad,) = audit.offenders.first
    assert (bad.client, bad.rounds) == ("bad", (1, 3, 16))
    assert bad.achieved.sensitivity.value == pytest.approx(own, rel=1e-12)
    # The smallest separation of one with the largest number of another, as if a client had both.
    assert audit.achieved.sensitivity.value < 0.8 * np.linalg.norm(C[:, :10:2].sum(axis=1))


def test_of_many_offenders_the_ten_with_the_weakest_guarantees_are_named():
    taken = [range(0, 12, 12 - c) if c < 11 else range(c - 10) for c in range(20)]
    cohorts = [[client for client, rounds in enumerate(taken) if t in rounds] for t in range(12)]
    audit = audit_ledger(ledger_of(cohorts, None), plan(single(12)))
    counts = {client: len(rounds) for client, rounds in enumerate(taken)}
    broke = [client for client, count in counts.items() if count > 1]
    assert audit.offenders.clients == len(broke) > 10
    named = audit.offenders.first
    assert [len(one.rounds) for one in named] == sorted((counts[c] for c in broke), reverse=True)[
        :10
    ]
    assert all(
        one.achieved.sensitivity.value == pytest.approx(np.sqrt(len(one.rounds))) for one in named
    )


class TestRoundsWithoutARecord:
    def test_count_for_every_client_after_a_broken_plan(self, tmp_path):
        mechanism = fedmf.fit(
            fedmf.prefix_sum(40), separated(40, 8), family="toeplitz", coefficients="sqrt"
        )
        C = mechanism.encoder()
        audit = offender_and_others(tmp_path, mechanism, separated(40, 8), [1, 3, 16], unrecorded=3)
        (bad,) = audit.offenders.first
        assert bad.rounds == (1, 3, 16)
        own = np.linalg.norm(C[:, [1, 3, 16, 37, 38, 39]].sum(axis=1))
        honest = max(
            np.linalg.norm(C[:, [*range(c, 37, 8), 37, 38, 39]].sum(axis=1)) for c in range(8)
        )
        assert bad.achieved.sensitivity.value == pytest.approx(own, rel=1e-12)
        assert audit.offenders.others.sensitivity.value == pytest.approx(honest, rel=1e-12)
        assert audit.achieved.sensitivity.value == pytest.approx(honest, rel=1e-12)
        every_round = fedmf.sensitivity(
            mechanism, Participation(rounds=40, schema="every_round")
        ).value
        assert honest < 0.5 * every_round

    def test_with_signs_too(self, tmp_path):
        mechanism = ToeplitzMechanism(rounds=12, coefficients=[1.5, -0.5, 0.25, 0.5, -0.125])
        audit = offender_and_others(tmp_path, mechanism, separated(12, 4), [1, 2], unrecorded=2)
        rng, C = np.random.default_rng(0), mechanism.encoder()
        attained = attained_by_sets(C, [(1, 2, 10, 11)], rng)
        assert audit.offenders.first[0].achieved.sensitivity.value >= attained * (1 - 1e-9)
        assert audit.offenders.first[0].achieved.sensitivity.value <= sums(C, (1, 2, 10, 11)) * (
            1 + 1e-12
        )


class TestBudgets:
    def test_a_log_is_audited_like_a_ledger(self, tmp_path):
        mechanism = ToeplitzMechanism(rounds=8, coefficients=0.7 ** np.arange(8))
        budget = Budget.of(mechanism, separated(8, 4)).participation
        cohorts = [[1], [1, 2], [1], [], [], [2], [], [3]]
        ledger = ledger_of(cohorts, None)
        log = tmp_path / "log.csv"
        log.write_text(ledger.to_csv())
        of_ledger, of_log = (
            audit_ledger(ledger, plan(budget, mechanism)),
            audit_log(log, plan(budget, mechanism)),
        )
        assert json.loads(
            json.dumps(of_log.values() | {"offenders": None})
        ) == of_ledger.values() | {"offenders": None}
        assert of_log.most_spent == of_ledger.most_spent
        (bad,) = of_log.offenders.first
        assert (bad.client, bad.rounds) == ("1", (0, 1, 2))
        C = mechanism.encoder()
        assert of_log.achieved.sensitivity.value == pytest.approx(
            np.linalg.norm(C[:, :3].sum(axis=1)), rel=1e-12
        )
        assert of_log.offenders.others.sensitivity.value == pytest.approx(
            np.linalg.norm(C[:, [1, 5]].sum(axis=1)), rel=1e-12
        )

    def test_the_participation_alone_names_nobody(self):
        mechanism = IdentityMechanism(rounds=8)
        budget = Budget.of(mechanism, separated(8, 4)).participation
        with pytest.raises(ValueError, match="fedmf.audit_ledger"):
            ledger_of([[1]]).noncompliant(budget)


def test_with_sampling_nothing_rests_on_chance_once_a_client_left_its_part():
    mechanism = two_bands(16)
    scheme = CyclicPoisson(population=400, cohort_size=10, partitions=2)
    planned = plan(None, mechanism, sampling=scheme, noise_multiplier=4.0)
    cohorts = [[t % 4] for t in range(16)]
    assert audit_ledger(ledger_of(cohorts, None), planned).amplified_epsilon is not None
    cohorts[3] = [3, 0]  # of part 0
    audit = audit_ledger(ledger_of(cohorts, None), planned)
    assert audit.amplified_epsilon is None
    assert [(one.client, one.rounds) for one in audit.offenders.first] == [(0, (0, 3, 4, 8, 12))]
    C = mechanism.encoder()
    assert audit.offenders.others.sensitivity.value == pytest.approx(
        np.linalg.norm(C[:, [1, 5, 9, 13]].sum(axis=1))
    )
    own = np.linalg.norm(C[:, [0, 3, 4, 8, 12]].sum(axis=1))
    assert audit.achieved.sensitivity.value == pytest.approx(own, rel=1e-12)


def test_in_text_json_and_statement():
    planned = plan(separated(12, 4), two_bands(12))
    audit = audit_ledger(ledger_of([[t % 4, 100 + t % 6] for t in range(12)], None), planned)
    assert audit.offenders is None
    assert audit.values()["offenders"] is None
    audit = audit_ledger(ledger_of([[t % 4, 100] for t in range(12)], None), planned)
    values = json.loads(json.dumps(audit.values(), allow_nan=False))
    assert values["offenders"] == audit.statement_values()["offenders"]
    (bad,) = values["offenders"]["first"]
    assert (values["offenders"]["clients"], bad["client"], bad["rounds"]) == (
        1,
        100,
        list(range(12)),
    )
    assert bad["epsilon"] == values["epsilon_achieved"] > values["epsilon_planned"]
    assert values["offenders"]["others"]["epsilon"] <= values["epsilon_planned"]
    text = " ".join(audit.statement().split())
    assert "1 client broke the plan, at its own cost only" in text
    assert "- 100: rounds 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11; (epsilon =" in text
    without_noise = audit_ledger(
        ledger_of([[0], [0]]), plan(separated(12, 4), two_bands(12), noise_multiplier=0)
    )
    assert (
        json.loads(json.dumps(without_noise.values(), allow_nan=False))["offenders"]["first"][0][
            "epsilon"
        ]
        is None
    )
    assert "- 0: rounds 0, 1" in without_noise.statement()
    assert without_noise.values()["offenders"]["others"] is None  # nobody else took part


def test_marked_clients_are_named_without_a_contradiction():
    ledger = fedmf.ParticipationLedger(cohort_size=None)
    for t in range(12):
        ledger.append(np.array([t % 4, 100]), noncompliant=np.array([100]))
    audit = audit_ledger(ledger, plan(separated(12, 4), two_bands(12)))
    assert audit.contradictions == ()
    assert [one.client for one in audit.offenders.first] == [100]
    assert audit.offenders.others.epsilon == audit.epsilon
    assert "1 client broke the plan" in " ".join(audit.statement().split())


@pytest.mark.parametrize("unrecorded", [[1], [5, 4], [4, 4], [N]])
def test_rounds_without_a_record_come_after_the_ledger(unrecorded):
    planned = plan(separated(N, 2), ToeplitzMechanism(rounds=N, coefficients=np.array([1.0, 0.5])))
    with pytest.raises(ValueError, match="must be increasing rounds from 3 to 8"):
        audit_ledger(ledger_of([[0], [1], [0]], None), planned, unrecorded=unrecorded)
