"""The Gaussian source and the rows of N Z on tensors."""

import itertools

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from fedmf.federated.noise import MAX_STATE_ROWS, NoiseRows, NoiseState, gaussian_source
from fedmf.mechanisms import NoiseStream
from tests.mechanisms.registry import every_mechanism
from tests.mechanisms.test_buffers import random_buffers

pytestmark = pytest.mark.tensorflow


def rows_of(rows: NoiseRows, count: int, state: NoiseState | None = None) -> tuple[np.ndarray, NoiseState]:
    step = tf.function(rows.next)
    state = rows.initial_state() if state is None else state
    out = []
    for _ in range(count):
        row, state = step(state)
        out.append(row.numpy())
    return np.array(out), state


def strategies(stream):
    """All that can run this stream."""
    return ["blocks", *(form for form in ("recurrence", "buffers") if getattr(stream, form) is not None)]


def noise_rows(stream, size, strategy, seed=5):
    return NoiseRows(stream=stream, size=size, draw=gaussian_source(seed, size), strategy=strategy)


@every_mechanism
@pytest.mark.parametrize("rounds", [1, 9, 2 * MAX_STATE_ROWS + 3])
def test_rows_are_those_of_the_noising_matrix(build, rounds):
    mechanism, size = build(rounds), 6
    N, draw = mechanism.noising(), gaussian_source(5, size)
    Z = np.stack([draw(i).numpy() for i in range(N.shape[1])]).astype(np.float64)
    # float32 sums of at most rounds terms, each bounded by max |N Z| partial sums; the laws test N itself in float64.
    scale = np.abs(N).sum(axis=1, keepdims=True).max() * np.abs(Z).max()
    for strategy in strategies(mechanism.stream()):
        out, _ = rows_of(noise_rows(mechanism.stream(), size, strategy), rounds)
        np.testing.assert_allclose(out, N @ Z, rtol=0, atol=1e-6 * scale, err_msg=strategy)


@pytest.mark.parametrize(("window", "sums"), [(1, 0), (1, 3), (4, 0), (4, 2)])
def test_buffers_of_any_shape_are_run(window, sums):
    buffers = random_buffers(3, 40, window, sums)
    rows = NoiseRows(
        stream=NoiseStream(rounds=40, sources=40, buffers=buffers),
        size=40,
        draw=lambda i: tf.eye(40)[tf.minimum(i, 39)],
    )
    assert rows.strategy == "buffers"
    np.testing.assert_allclose(rows_of(rows, 40)[0], buffers.matrix(), rtol=1e-5, atol=1e-5)


@every_mechanism
def test_basis_vectors_write_out_the_noising_matrix(build):
    mechanism = build(11)
    N = mechanism.noising()
    basis = tf.eye(N.shape[1] + 16, N.shape[1])  # a block may draw past the last source, with coefficient zero
    rows = NoiseRows(stream=mechanism.stream(), size=N.shape[1], draw=lambda i: basis[i])
    np.testing.assert_allclose(rows_of(rows, 11)[0], N, rtol=2e-6, atol=2e-6)


@every_mechanism
def test_stopping_anywhere_changes_nothing(build):
    stream = build(40).stream()
    for strategy, stop in itertools.product(strategies(stream), (1, 31, 33)):
        rows = noise_rows(stream, 3, strategy)
        whole, _ = rows_of(rows, 40)
        first, state = rows_of(rows, stop)
        kept = NoiseState(*(np.asarray(part) for part in state))
        again = noise_rows(stream, 3, strategy)
        rest, _ = rows_of(again, 40 - stop, NoiseState(*(tf.constant(part) for part in kept)))
        np.testing.assert_array_equal(np.concatenate([first, rest]), whole)


@every_mechanism
def test_past_the_last_round_is_refused(build):
    rows = NoiseRows(stream=build(3).stream(), size=2, draw=gaussian_source(1, 2))
    _, state = rows_of(rows, 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="planned for rounds=3"):
        tf.function(rows.next)(state)


def test_a_model_of_any_size_keeps_few_rows():
    from fedmf.mechanisms import IdentityMechanism

    stream = IdentityMechanism(rounds=2052).stream().as_contraction()
    for size in (1, 10_000, 4_050_748, 10**9):
        rows = NoiseRows(stream=stream, size=size, draw=gaussian_source(1, 4))
        assert 1 <= rows.state_rows <= MAX_STATE_ROWS
        assert rows.state_rows == 1 or rows.state_rows * size * 4 <= 64 * 2**20


# A Kolmogorov-Smirnov test of 200,000 values: passes a standard normal with probability 1 - FALSE_POSITIVE. Its seeds are fixed, so it
# either always passes or always fails; the rate says how surprising a failure is.
FALSE_POSITIVE = 1e-6


def normal_enough(values: np.ndarray) -> bool:
    return scipy.stats.kstest(values, "norm").pvalue > FALSE_POSITIVE


def correlated(one: np.ndarray, other: np.ndarray) -> bool:
    return scipy.stats.pearsonr(one, other)[1] < FALSE_POSITIVE


def test_source_is_standard_normal_and_the_test_can_fail():
    values = gaussian_source(8, 200_000)(3).numpy()
    assert normal_enough(values)
    assert not normal_enough(1.03 * values)
    assert not normal_enough(values + 0.02)


def test_rows_seeds_and_coordinates_are_independent_and_the_test_can_fail():
    draw = gaussian_source(8, 200_000)
    row = draw(0).numpy()
    others = [draw(1), draw(2**31 - 1), gaussian_source(9, 200_000)(0), gaussian_source(8 + 2**64, 200_000)(0)]
    for other in others:
        assert not correlated(row, other.numpy())
    for lag in (1, 2, 3, 4, 8, 1024):
        assert not correlated(row[lag:], row[:-lag])
    assert correlated(row, row + 50 * draw(1).numpy())


def test_a_row_is_a_function_of_seed_and_index_alone():
    eager = gaussian_source(8, 1000)(7).numpy()
    np.testing.assert_array_equal(tf.function(gaussian_source(8, 1000))(tf.constant(7)).numpy(), eager)
    np.testing.assert_array_equal(gaussian_source(8, 5000)(7).numpy()[:1000], eager)
