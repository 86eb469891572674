"""Sensitivity of trees from their structure, compared with matrices and with all sets of rounds."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import fedmf
from fedmf.mechanisms import TreeMechanism, stamp
from fedmf.mechanisms.client_sensitivity import ClientSensitivity
from fedmf.noise.tree import TreeNoise
from fedmf.participation import separated_tree
from fedmf.participation.clients import ClientRounds
from fedmf.participation.schema import Participation
from fedmf.participation.tree_sensitivity import pair_counts, shared_counts, squared_counts
from tests.mechanisms.schemas import epochs, every_round, separated, single
from tests.oracles import maximal_sets

COMPLETIONS = st.sampled_from(("none", "optimal"))


def trees_of(rounds_per_tree, num_trees, completion):
    tree = TreeMechanism(rounds=rounds_per_tree, decoder="online", completion=completion)
    return stamp(tree, num_trees, decoder="restarted")


@st.composite
def plans(draw, most_rounds):
    """Draws trees and a participation of their rounds."""
    rounds_per_tree = draw(st.integers(1, most_rounds))
    num_trees = draw(st.integers(1, most_rounds // rounds_per_tree))
    n = rounds_per_tree * num_trees
    b = draw(st.integers(1, n))
    k = draw(st.integers(1, -(-n // b)))
    schema = draw(st.sampled_from(("min_sep", "fixed_epoch")))
    participation = Participation(rounds=n, schema=schema, min_sep=b, max_participations=k)
    return trees_of(rounds_per_tree, num_trees, draw(COMPLETIONS)), participation


def largest_sum(X, participation):
    return max(X[np.ix_(rounds, rounds)].sum() for rounds in maximal_sets(participation))


@given(plan=plans(most_rounds=12))
@settings(max_examples=60, deadline=None)
def test_it_is_that_of_all_sets_of_rounds(plan):
    mechanism, participation = plan
    C = mechanism.encoder()
    sensitivity = fedmf.sensitivity(mechanism, participation)
    assert sensitivity.exact
    assert_allclose(sensitivity.value**2, largest_sum(C.T @ C, participation), rtol=1e-12)


@given(plan=plans(most_rounds=512))
@settings(max_examples=40, deadline=None)
def test_it_is_exact_up_to_512_rounds_and_equal_to_that_of_the_matrix(plan):
    """Compares with the encoder as a matrix, whose sensitivity under min_sep is an upper bound."""
    mechanism, participation = plan
    sensitivity = fedmf.sensitivity(mechanism, participation)
    dense_sensitivity = fedmf.sensitivity(mechanism.encoder(), participation)
    assert sensitivity.exact
    assert sensitivity.value <= dense_sensitivity.value * (1 + 1e-12)
    if dense_sensitivity.exact:
        assert_allclose(sensitivity.value, dense_sensitivity.value, rtol=1e-12)


@given(plan=plans(most_rounds=12))
@settings(max_examples=30, deadline=None)
def test_bounds_are_not_below_the_exact_value(plan):
    mechanism, participation = plan
    trees = mechanism.binary_trees()
    n, b, k = (getattr(participation, name) for name in ("rounds", "min_sep", "max_participations"))
    C = mechanism.encoder()
    limits = Participation(rounds=n, schema="min_sep", min_sep=b, max_participations=k)
    exact_square = largest_sum(C.T @ C, limits)
    # Without any budget nothing is exact, and bounds begin at the smallest nodes.
    for bottom_budget in (0.0, 1e7):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(separated_tree, "_BOTTOM_BUDGET", bottom_budget)
            assert separated_tree._upper_bound(trees, b, k) >= exact_square - 1e-9
            patch.setattr(separated_tree, "_MAX_COUNTED_ROUNDS", 0)
            assert separated_tree._upper_bound(trees, b, k) >= exact_square - 1e-9


@given(plan=plans(most_rounds=12))
@settings(max_examples=30, deadline=None)
def test_prices_of_rounds_bound_the_sum_of_several_trees(plan):
    mechanism, participation = plan
    limits = (participation.min_sep, participation.max_participations)
    trees = mechanism.binary_trees()
    sums = separated_tree._SeparatedSums(trees, *limits, 1e9)
    table = sums.table_of_each_tree()
    exact_sum, is_exact = separated_tree._largest_sum_of_trees(table, trees, *limits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(separated_tree, "_CALL_COST", 1e9)
        priced_sum, _ = separated_tree._largest_sum_of_trees(table, trees, *limits)
    assert is_exact
    assert priced_sum >= exact_sum - 1e-9


@given(
    rounds_per_tree=st.integers(1, 40),
    num_trees=st.integers(1, 4),
    completion=COMPLETIONS,
    seed=st.integers(0, 99),
)
@settings(max_examples=30, deadline=None)
def test_clients_of_a_record_cost_what_the_matrix_says(
    rounds_per_tree, num_trees, completion, seed
):
    mechanism = trees_of(rounds_per_tree, num_trees, completion)
    n = mechanism.rounds
    C = mechanism.encoder()
    X = C.T @ C
    trees = mechanism.binary_trees()
    assert np.array_equal(pair_counts(trees, np.arange(n)), X)
    later_rounds = np.arange(n // 2, n)
    assert np.array_equal(shared_counts(trees, later_rounds), X[:, later_rounds].sum(axis=1))
    rng = np.random.default_rng(seed)
    takes_part = rng.random((5, n)) < 0.4
    takes_part[:, rng.integers(n)] = True
    clients = ClientRounds(
        rounds=np.nonzero(takes_part)[1],
        starts=np.append(0, np.cumsum(takes_part.sum(axis=1))[:-1]),
    )
    expected = np.einsum("ci,ij,cj->c", takes_part, X, takes_part)
    assert_allclose(ClientSensitivity(mechanism).squared(clients), expected)
    assert_allclose(squared_counts(trees, clients), expected)


N = 1_000_000


@pytest.mark.parametrize(
    ("num_trees", "participation", "expected", "margin"),
    [
        # A round is in a node of each of 20 levels of a tree of a million rounds.
        (1, single(N), 20**0.5, 0.0),
        (1000, single(N), 10**0.5, 0.0),
        # Every round is in the one before: sums of squared sizes of nodes.
        (1, every_round(N), sum((N >> level) * 4**level for level in range(20)) ** 0.5, 0.0),
        # A client in every tree of 1000 rounds, in 10 nodes of each.
        (1000, separated(N, 1000), 100.0, 0.0),
        (1000, epochs(N, 1000), 100.0, 0.0),
        (1, separated(N, 1024), 840.0155, 1e-6),
        # Lower bounds: windows of rounds exactly min_sep apart.
        (1, separated(N, 1000), 860.9123, 3e-3),
        (1, separated(N, 1000, 100), 207.2728, 3e-3),
        (10, separated(N, 342), 970.5504, 3e-3),
    ],
    ids=str,
)
def test_a_million_rounds_take_seconds_and_are_near_a_lower_bound(
    num_trees, participation, expected, margin
):
    trees = TreeNoise(rounds_per_tree=N // num_trees, num_trees=num_trees)
    began = time.process_time()
    value = participation.sensitivity(_OfTrees(trees)).value
    assert time.process_time() - began < 5.0
    assert expected * (1 - 1e-7) <= value <= expected * (1 + margin + 1e-7)


class _OfTrees:
    """An encoder that is known by its trees alone."""

    def __init__(self, trees):
        self.trees = trees
        self.rounds = trees.rounds

    def binary_trees(self):
        return self.trees


def climbed_sum(X, b, k, rng):
    """Returns the sum of X over a set of at most k rounds, b or more apart, that no move of one
    round raises.
    """
    n = len(X)
    rounds = []
    t = int(rng.integers(0, b))
    while t < n and len(rounds) < k:
        rounds.append(t)
        t += b + int(rng.integers(0, 1 + rng.integers(1, b + 1)))
    is_raised = True
    while is_raised:
        is_raised = False
        for i in rng.permutation(len(rounds)):
            low = rounds[i - 1] + b if i else 0
            high = rounds[i + 1] - b if i + 1 < len(rounds) else n - 1
            rest = np.array(rounds[:i] + rounds[i + 1 :], int)
            places = np.arange(low, high + 1)
            values = 2.0 * X[np.ix_(places, rest)].sum(axis=1) + np.diagonal(X)[places]
            best_place = int(places[values.argmax()])
            if values.max() > values[rounds[i] - low]:
                rounds[i] = best_place
                is_raised = True
    return X[np.ix_(rounds, rounds)].sum()


@given(
    b=st.integers(1, 100),
    completion=COMPLETIONS,
    num_trees=st.sampled_from((1, 2, 5, 8)),
    k=st.integers(1, 60),
)
@settings(max_examples=40, deadline=None)
def test_no_client_that_a_search_finds_at_200_rounds_exceeds_it(b, completion, num_trees, k):
    mechanism = trees_of(200 // num_trees, num_trees, completion)
    C = mechanism.encoder()
    X = C.T @ C
    k = min(k, -(-200 // b))
    value = fedmf.sensitivity(mechanism, separated(200, b, k)).value
    rng = np.random.default_rng(b)
    for _ in range(5):
        assert climbed_sum(X, b, k, rng) <= value**2 * (1 + 1e-12)
