"""Noise of trees: the recurrence over the last finished nodes, and its float32 check."""

import dataclasses

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from fedmf.mechanisms import BLTMechanism, NoiseStream, TreeMechanism
from fedmf.noise.blocks import (
    block_form,
    growing_blocks,
    with_small_first_states,
    without_unread_sums,
)
from fedmf.noise.float32_check import check_float32
from fedmf.noise.graph_strategies import graph_strategy
from fedmf.noise.host_strategies import choose_host_strategy
from fedmf.noise.tree import COMPLETIONS, DECODERS, TreeNoise
from tests.refusals import refusal

TREES = st.builds(
    TreeNoise,
    rounds_per_tree=st.integers(1, 40),
    num_trees=st.integers(1, 3),
    decoder=st.sampled_from(DECODERS),
    completion=st.sampled_from(COMPLETIONS),
)
LONG_TREES = pytest.mark.parametrize(
    "trees",
    [
        TreeNoise(rounds_per_tree=1_000_000, decoder="online"),
        TreeNoise(rounds_per_tree=1000, num_trees=1000, decoder="online", completion="optimal"),
        TreeNoise(rounds_per_tree=1_000_000, decoder="full"),
    ],
    ids=str,
)


def lower_factor(N):
    """Returns the lower-triangular L of positive diagonal with L L^T = N N^T."""
    return scipy.linalg.cholesky(N @ N.T, lower=True)


def causal_stream(trees):
    return NoiseStream(rounds=trees.rounds, sources=trees.rounds, tree=trees)


@given(trees=TREES)
@settings(max_examples=40, deadline=None)
def test_one_draw_a_round_makes_noise_of_the_distribution_of_the_dense_rows(trees):
    N = trees.matrix()
    assert N.shape == (trees.rounds, trees.num_nodes)
    assert_allclose(N @ trees.node_sums(np.eye(trees.rounds)), np.eye(trees.rounds), atol=1e-10)
    stream = NoiseStream(rounds=trees.rounds, sources=trees.num_nodes, tree=trees).causal()
    rows = np.stack(list(stream.rows(np.eye(trees.rounds).__getitem__)))
    assert_allclose(rows, lower_factor(N), atol=1e-10)
    assert stream.width <= trees.rounds_per_tree.bit_length()
    assert_allclose(trees.draws_of(rows), np.eye(trees.rounds), atol=1e-10)


@given(trees=TREES, longest=st.integers(1, 20))
@settings(max_examples=25, deadline=None)
def test_blocks_of_rounds_make_the_same_rows(trees, longest):
    bounds = growing_blocks(trees.rounds, longest)
    form = block_form(causal_stream(trees), bounds=bounds)
    small_form = without_unread_sums(form, trees)
    for each_form in (form, small_form, with_small_first_states(small_form)):
        assert_allclose(each_form.noising(), trees.causal_matrix(), atol=1e-10)


@given(trees=TREES)
@settings(max_examples=40, deadline=None)
def test_rounds_of_one_kind_have_equal_coefficients(trees):
    round_kinds = trees.round_kinds()
    deviations, weights = trees.coefficients(0, trees.rounds)
    for kind in np.unique(round_kinds):
        rounds = np.flatnonzero(round_kinds == kind)
        assert np.ptp(deviations[rounds]) == 0.0
        assert np.ptp(weights[rounds], axis=0).max(initial=0.0) == 0.0


@LONG_TREES
def test_late_blocks_of_a_long_run_are_those_of_steps(trees):
    start = 786_432 - 16
    block = trees.block(start, start + 32)
    inputs = np.random.default_rng(0).standard_normal((32 + trees.width, 3))
    sums = inputs[32:]
    rows = []
    for i in range(32):
        row, sums = trees.step(start + i, inputs[i], sums)
        rows.append(row)
    assert_allclose(block @ inputs, np.concatenate([np.stack(rows), sums]), atol=1e-9)


@pytest.mark.parametrize("num_trees", [1, 1000])
def test_the_full_decoder_of_a_long_run_has_the_density_of_its_nodes(num_trees):
    # N N^T = (C^T C)^-1: the squared draws of rows x add up to those of the nodes' sums of x.
    trees = TreeNoise(rounds_per_tree=200_000 // num_trees, num_trees=num_trees)
    rows = np.random.default_rng(1).standard_normal((trees.rounds, 1))
    draws = trees.draws_of(rows)
    assert_allclose(np.sum(draws**2), np.sum(trees.node_sums(rows) ** 2), rtol=1e-9)


def test_the_online_decoder_of_a_million_rounds_repeats_that_of_its_first_nodes():
    trees = TreeNoise(rounds_per_tree=1_000_000, decoder="online")
    first_deviations, first_weights = trees.coefficients(0, 1023)
    for start in (1024, 524_288, 999_424 - 1024):
        deviations, weights = trees.coefficients(start, start + 1023)
        assert np.array_equal(deviations, first_deviations)
        assert np.array_equal(weights, first_weights)


def test_a_float32_check_of_a_tree_sees_a_wrong_block():
    """Negative control: a change of one coefficient in 16 blocks is seen."""
    trees = TreeNoise(rounds_per_tree=256, decoder="full")
    form = block_form(causal_stream(trees), bounds=growing_blocks(256, 16))
    check_float32(causal_stream(trees), form)

    def wrong_matrix(b):
        matrix = form.matrix(b).copy()
        matrix[0, 0] *= 1.01
        return matrix

    wrong_form = dataclasses.replace(form, matrix=wrong_matrix)
    with refusal("too ill-conditioned for float32"):
        check_float32(causal_stream(trees), wrong_form)


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_cost_of_a_round_is_at_most_twice_that_of_blt(decoder):
    blt = BLTMechanism(
        rounds=4000, decays=[0.99, 0.9, 0.6, 0.2], inverse_decays=[0.95, 0.8, 0.4, 0.1]
    )
    tree = TreeMechanism(rounds=4000, decoder=decoder)
    costs = [
        choose_host_strategy(mechanism.stream().causal(), 4_050_000, name="recurrent").cost
        for mechanism in (tree, blt)
    ]
    assert costs[0] <= 2.0 * costs[1]


def test_a_graph_holds_a_matrix_for_each_level_of_an_online_tree():
    stream = TreeMechanism(rounds=1_000_000, decoder="online").stream()
    assert graph_strategy(stream, 1000).width == 19
    assert not graph_strategy(stream, 4_000_000).possible  # Its state takes 300 MB.
    full_stream = TreeMechanism(rounds=1_000_000, decoder="full").stream()
    assert not graph_strategy(full_stream, 1000).possible
