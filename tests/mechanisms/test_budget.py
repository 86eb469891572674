"""Participation budgets: costs of rounds, sets of rounds that are allowed, and the sensitivity
bound.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedmf
from fedmf.mechanisms import DenseMechanism, IdentityMechanism, ToeplitzMechanism
from fedmf.mechanisms.budget import (
    Budget,
    max_rounds_per_client,
    pair_costs,
    spending_histogram,
)
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.participation.schema import Participation
from fedmf.participation.vector_bound import vector_sensitivity_bounds
from tests.mechanisms.registry import both_signs
from tests.mechanisms.schemas import epochs, every_round, fitted, separated, single
from tests.oracles import allowed_sets


def subsets(n):
    """Returns all non-empty sets of rounds below n, as tuples."""
    return itertools.chain.from_iterable(
        itertools.combinations(range(n), size) for size in range(1, n + 1)
    )


encoders = st.builds(both_signs, st.integers(1, 8), st.integers(0, 2**32 - 1))


def with_budget(mechanism, fraction):
    """Returns a budget between the cost of the dearest round and that of all rounds together."""
    X = pair_costs(mechanism)
    min_cost = X.diagonal().max()
    max_cost = X.sum()
    S = float(np.sqrt(min_cost + fraction * (max_cost - min_cost)))
    participation = Participation(rounds=len(X), schema="budget", budget=S)
    return Budget(mechanism=mechanism, participation=participation, pace=1)


def largest_within(budget, allows):
    """Returns the largest attained vector sensitivity over all sets that `allows` permits."""
    C = budget.mechanism.encoder()
    X = C.T @ C
    allowed_rounds = [round_set for round_set in map(list, subsets(len(X))) if allows(round_set)]
    maximal_sets = [
        round_set
        for round_set in allowed_rounds
        if not any(set(round_set) < set(larger) for larger in allowed_rounds)
    ]
    return max(
        np.sqrt(vector_sensitivity_bounds(X[np.ix_(round_set, round_set)])[0])
        for round_set in maximal_sets
    )


@given(encoders, st.floats(0.0, 1.0))
@settings(max_examples=40)
def test_no_vectors_of_any_allowed_rounds_exceed_the_sensitivity(mechanism, share):
    budget = with_budget(mechanism, share)
    claimed_sensitivity = sensitivity(budget.mechanism, budget.participation).value
    assert largest_within(budget, budget.allows) <= claimed_sensitivity * (1 + 1e-9)
    assert claimed_sensitivity <= budget.participation.budget * (1 + 2e-12)


def test_a_budget_of_signed_costs_would_be_exceeded():
    # Negative control: with signed costs, opposite contributions cancel in the cost and add up in
    # C x.
    budget = with_budget(DenseMechanism(matrix=np.eye(6) - 0.45 * np.eye(6, k=-1)), 0.2)
    claimed_sensitivity = sensitivity(budget.mechanism, budget.participation).value
    assert largest_within(budget, budget.allows) <= claimed_sensitivity * (1 + 1e-9)
    C = budget.mechanism.encoder()
    signed_costs = C.T @ C
    assert (
        largest_within(
            budget,
            lambda round_set: budget.participation.affords(
                signed_costs[np.ix_(round_set, round_set)].sum()
            ),
        )
        > 1.2 * claimed_sensitivity
    )


def test_spending_is_counted_in_tenths_of_the_budget():
    assert spending_histogram(2.0, np.array([0.0, 0.39, 0.4, 4.0])) == {
        f"{10 * i}-{10 * i + 10}%": {0: 2, 1: 1, 9: 1}.get(i, 0) for i in range(10)
    }


class TestSpecialCases:
    """Budgets that allow exactly the rounds of another schema."""

    def check_same_rounds(self, mechanism, participation, also=lambda rounds: True):
        budget = Budget.of(mechanism, participation)
        allowed_rounds = {
            tuple(round_set)
            for round_set in subsets(participation.rounds)
            if budget.allows(round_set) and also(round_set)
        }
        assert allowed_rounds == set(allowed_sets(participation))

    def test_a_large_cost_allows_a_single_participation(self):
        self.check_same_rounds(
            ToeplitzMechanism(rounds=7, coefficients=0.9 ** np.arange(7)), single(7)
        )

    @pytest.mark.parametrize("max_participations", [1, 2, 4])
    def test_equal_costs_allow_a_limited_number_of_participations(self, max_participations):
        any_rounds = separated(8, 1, max_participations)
        self.check_same_rounds(IdentityMechanism(rounds=8), any_rounds)

    @pytest.mark.parametrize(("b", "k"), [(2, 3), (3, 2), (4, 2)])
    def test_costs_of_few_bands_allow_separated_participations_and_epochs(self, b, k):
        # With bands <= b, rounds that far apart cost no more together than alone.
        mechanism = fitted(separated(8, b), "banded", bands=b)
        self.check_same_rounds(
            mechanism,
            separated(8, b, k),
            also=separated(8, b).allows,
        )
        self.check_same_rounds(mechanism, epochs(8, b), also=epochs(8, b).allows)


def test_rounds_outside_the_run_or_twice_are_not_allowed():
    budget = Budget.of(IdentityMechanism(rounds=4), separated(4, 1))
    assert budget.allows([3, 0])
    assert not budget.allows([0, 0])
    assert not budget.allows([4])
    assert not budget.allows([-1])
    assert not budget.allows([2**63])


@given(encoders, st.floats(0.0, 1.0))
@settings(max_examples=20)
def test_nobody_takes_part_more_often_than_the_bound(mechanism, share):
    budget = with_budget(mechanism, share)
    max_rounds = max(
        len(round_set)
        for round_set in subsets(budget.participation.rounds)
        if budget.allows(round_set)
    )
    assert 1 <= max_rounds <= max_rounds_per_client(budget.mechanism, budget.participation)


def test_a_large_budget_has_the_sensitivity_of_every_round():
    mechanism = IdentityMechanism(rounds=4)
    large_budget = Participation(rounds=4, schema="budget", budget=100.0)
    assert sensitivity(mechanism, large_budget) == sensitivity(mechanism, every_round(4))


def test_the_statement_of_rounds_without_clients_spends_nothing():
    mechanism = IdentityMechanism(rounds=2)
    budget = Budget.of(mechanism, Participation(rounds=2, schema="single"))
    plan = fedmf.calibrate(mechanism, budget.participation, epsilon=4.0, delta=1e-6)
    nobody = np.zeros(0, np.int64)
    ledger = fedmf.ParticipationLedger(cohort_size=2, cohorts=[nobody, nobody])
    audit = fedmf.audit_ledger(ledger, plan)
    assert audit.most_spent == 0.0
    assert "| at most 0 |" in " ".join(audit.statement().split())


def test_nobody_is_eligible_after_the_last_round():
    budget = Budget.of(IdentityMechanism(rounds=4), single(4))
    history = budget.new_history(2)
    assert budget.is_eligible(3, history, slice(0, 2)).all()
    for t in (4, 5, 100):
        assert not budget.is_eligible(t, history, slice(0, 2)).any()
