"""Block forms reproduce the causal noising matrix, with small states for structured mechanisms."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from fedmf.mechanisms import NoiseStream, TreeMechanism
from fedmf.noise.blocks import (
    MAX_DEVIATION,
    block_form,
    deviation,
    equal_blocks,
    growing_blocks,
    with_small_first_states,
)
from tests.mechanisms.registry import every_mechanism
from tests.mechanisms.schemas import fitted, single
from tests.noise.test_buffers import random_buffers


@every_mechanism
@pytest.mark.parametrize("rounds", [1, 37])
def test_a_causal_stream_has_the_same_covariance(build, rounds):
    """Checks that L is a lower-triangular factor of N N^T (Denisov et al. 2022, Prop. 2.2)."""
    N = build(rounds).noising()
    L = build(rounds).stream().causal().as_contraction().contraction
    assert not np.triu(L, 1).any()
    assert np.diag(L).min() > 0
    assert_allclose(L @ L.T, N @ N.T, rtol=0, atol=1e-11 * np.abs(N @ N.T).max())


@every_mechanism
@pytest.mark.parametrize(("rounds", "length"), [(1, 1), (12, 1), (37, 5), (36, 64)])
def test_equal_blocks_reproduce_the_noising_matrix(build, rounds, length):
    stream = build(rounds).stream()
    form = block_form(stream, bounds=equal_blocks(rounds, length))
    N = stream.causal().as_contraction().contraction
    assert deviation(form.noising(), N) <= MAX_DEVIATION
    assert form.width < max(rounds, 4)  # Buffers have a state even for one round.
    assert form.num_blocks == -(-rounds // min(length, rounds))


@every_mechanism
def test_growing_blocks_with_small_first_states_reproduce_the_noising_matrix(build):
    stream = build(37).stream()
    bounds = growing_blocks(37, 16)
    assert bounds == (0, 1, 2, 4, 8, 16, 32, 37)
    form = block_form(stream, bounds=bounds)
    small_form = with_small_first_states(form)
    N = stream.causal().as_contraction().contraction
    assert deviation(small_form.noising(), N) <= MAX_DEVIATION
    if not form.is_rolling:
        assert (
            small_form.matrix(1).shape[1] <= 2
        )  # The block has one draw, and the state another one.


@pytest.mark.parametrize(("window", "sums"), [(1, 0), (1, 3), (4, 0), (4, 2)])
def test_blocks_reproduce_buffers_of_any_shape(window, sums):
    buffers = random_buffers(5, 30, window, sums)
    stream = NoiseStream(rounds=30, sources=30, buffers=buffers)
    for length in (1, 7):
        form = block_form(stream, bounds=equal_blocks(30, length))
        assert form.width == window - 1 + sums
        assert_allclose(
            form.noising(), buffers.matrix(), rtol=0, atol=1e-12 * np.abs(buffers.matrix()).max()
        )


@pytest.mark.parametrize(
    ("family", "options", "max_width"),
    [
        ("tree", {"decoder": "full"}, 9),
        ("fft", {}, 30),
        ("toeplitz", {"coefficients": "sqrt"}, 20),
        ("blt", {"buffers": 4}, 4),
        ("low_rank", {"bands": 4, "rank": 4}, 8),
    ],
)
def test_structured_mechanisms_have_small_states(family, options, max_width):
    rounds = 256
    mechanism = fitted(single(rounds), family, **options)
    form = block_form(mechanism.stream(), bounds=equal_blocks(rounds, 8), max_width=max_width)
    assert form is not None
    assert form.width <= max_width


def test_matrices_without_structure_are_not_compressed():
    noise = np.tril(np.random.default_rng(0).uniform(0.1, 1.0, (64, 64))) + np.eye(64)
    stream = NoiseStream(rounds=64, sources=64, contraction=noise)
    assert block_form(stream, bounds=equal_blocks(64, 8), max_width=20) is None
    assert block_form(stream, bounds=equal_blocks(64, 8)).width > 20
    banded_mechanism = fitted(single(9), "banded", bands=4)
    assert block_form(banded_mechanism.stream(), bounds=equal_blocks(9, 2), max_width=2) is None
    assert block_form(banded_mechanism.stream(), bounds=equal_blocks(9, 2), max_width=3).width == 3


def test_a_less_accurate_matrix_exceeds_the_deviation():
    """Negative control: such a matrix fails the check of block_form."""
    N = TreeMechanism(rounds=64, decoder="full").stream().causal().as_contraction().contraction
    form = block_form(NoiseStream(rounds=64, sources=64, contraction=N), bounds=equal_blocks(64, 8))
    form_noising = form.noising()
    assert deviation(form_noising, N) <= MAX_DEVIATION
    assert deviation(np.float64(np.float16(form_noising)), N) > MAX_DEVIATION
    assert deviation(1.000001 * form_noising, N) > MAX_DEVIATION


def test_the_deviation_bounds_the_growth_of_the_sensitivity():
    """Tests sens(C') <= sens(C) / (1 - ||C E||) for C' = (N + E)^-1, with large E."""
    rng = np.random.default_rng(4)
    num_bounded = 0
    for _ in range(20):
        N = np.tril(rng.normal(size=(12, 12))) + 4 * np.eye(12)
        E = np.tril(rng.normal(size=(12, 12))) * rng.uniform(0, 0.1)
        bound = deviation(N + E, N)
        if bound >= 1:
            continue
        num_bounded += 1
        u = rng.choice([0.0, 1.0, -1.0], size=(12, 200))
        norms = np.linalg.norm(np.linalg.inv(N) @ u, axis=0)
        changed_norms = np.linalg.norm(np.linalg.inv(N + E) @ u, axis=0)
        assert (changed_norms <= norms / (1 - bound) * (1 + 1e-12)).all()
    assert num_bounded
