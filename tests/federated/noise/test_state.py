"""The state of the noise is gone on with as it was made, or not at all: what another reads in it may be noise that was released before."""

import dataclasses

import numpy as np
import pytest
import scipy.linalg
import tensorflow as tf

from fedmf import Participation, Plan, federated, fit, prefix_sum
from fedmf.mechanisms import NoiseStream, TreeMechanism
from fedmf.noise.blocks import block_form
from fedmf.noise.strategies import GRAPH_STRATEGIES

pytestmark = pytest.mark.tensorflow
SIZE = 9
OTHERS = "of another mechanism, noise scale, clip norm or noise_strategy"


def plan_of(mechanism):
    once = Participation(rounds=mechanism.rounds, schema="single")
    return Plan(mechanism=mechanism, participation=once, noise_multiplier=1.0, clip_norm=1.0, delta=1e-6)


def banded(rounds=40, bands=33):
    return fit(prefix_sum(rounds), Participation(rounds=rounds, schema="single"), family="banded", bands=bands)


def query_of(mechanism, strategy=None):
    return federated.MatrixFactorizationQuery(
        plan_of(mechanism), tf.TensorSpec([SIZE]), noise_seed=1, noise_strategy=strategy
    )


def results(query, state, count, step=None):
    zero, out = query.initial_sample_state(), []
    step = (lambda state: query.get_noised_result(zero, state)[:2]) if step is None else step
    for _ in range(count):
        result, state = step(state)
        out.append(result.numpy())
    return np.array(out), state


def compiled(query):
    zero = query.initial_sample_state()
    return tf.function(lambda state: query.get_noised_result(zero, state)[:2], jit_compile=True)


def test_another_strategy_does_not_go_on():
    """Two bands: both strategies keep one row. "precomputed" would release the one of the last round again."""
    began, goes_on = query_of(banded(bands=2)), query_of(banded(bands=2), "precomputed")
    released, state = results(began, began.initial_global_state(), 3)
    assert goes_on._noise.state_rows == began._noise.state_rows == 1
    state = state._replace(noise=state.noise._replace(made_for=state.noise.next_round))
    with pytest.raises(tf.errors.InvalidArgumentError, match=OTHERS):
        results(goes_on, state, 1)
    # XLA drops such checks.
    late, _ = results(goes_on, state, 1, compiled(goes_on))
    assert np.isnan(late).all()
    row, _ = results(began, state, 1, compiled(began))
    assert np.isfinite(row).all()
    # Negative control: without its mark the state would be read, and a round's noise released again, to the bit.
    wrong = state._replace(noise=state.noise._replace(mechanism=goes_on.initial_global_state().noise.mechanism))
    repeated, _ = results(goes_on, wrong, 1)
    np.testing.assert_array_equal(repeated[0], released[-1])


def test_another_mechanism_does_not_go_on():
    began, goes_on = query_of(banded(bands=5)), query_of(fit_toeplitz())
    assert began._noise.strategy == goes_on._noise.strategy == "recurrent"
    assert began._noise.state_rows == goes_on._noise.state_rows
    _, state = results(began, began.initial_global_state(), 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match=OTHERS):
        results(goes_on, state, 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match=OTHERS):
        results(
            goes_on, state, 1, tf.function(lambda s: goes_on.get_noised_result(goes_on.initial_sample_state(), s)[:2])
        )


@pytest.mark.parametrize(
    "change", [{"noise_multiplier": 3.0}, {"clip_norm": 2.0}, {"noise_multiplier": 0.5, "clip_norm": 2.0}]
)
def test_another_scale_of_the_noise_does_not_go_on(change):
    """A round that is done again with it gives the update away: releases r = x + s n, R = x + S n leave x = (S r - s R) / (S - s)."""
    plan = dataclasses.replace(plan_of(banded(bands=5)), noise_multiplier=1.0, clip_norm=1.0)
    specs = tf.TensorSpec([SIZE], tf.float32)
    began = federated.MatrixFactorizationQuery(plan, specs, noise_seed=1)
    other = federated.MatrixFactorizationQuery(dataclasses.replace(plan, **change), specs, noise_seed=2)
    again = federated.MatrixFactorizationQuery(
        dataclasses.replace(plan, noise_multiplier=1.0 + 1e-13), specs, noise_seed=2
    )
    _, state = results(began, began.initial_global_state(), 3)
    results(again, state, 1)  # as another processor calibrates it
    with pytest.raises(tf.errors.InvalidArgumentError, match=OTHERS):
        results(other, state, 1)
    # Negative control: with the mark of its own it would go on, with the same noise.
    mark = other.initial_global_state().noise.mechanism
    seen, _ = results(began, state, 1)
    repeated, _ = results(other, state._replace(noise=state.noise._replace(mechanism=mark)), 1)
    ratio = other.plan.stddev / plan.stddev
    np.testing.assert_allclose(repeated, ratio * np.asarray(seen), rtol=1e-5, atol=1e-6)
    noise = federated.HostNoise(plan, SIZE, noise_seed=1)
    handed = federated.MatrixFactorizationQuery(other.plan, specs, noise_seed=1, noise_strategy="precomputed")
    with pytest.raises(ValueError, match="another plan"):
        noise.hand_in(handed.initial_global_state())


def fit_toeplitz():
    return fit(prefix_sum(40), Participation(rounds=40, schema="single"), family="toeplitz", bands=5)


@pytest.mark.parametrize("strategy", GRAPH_STRATEGIES)
@pytest.mark.parametrize("mechanism", [banded(8, 4), TreeMechanism(rounds=8)], ids=["banded", "tree"])
def test_past_the_last_round_a_compiled_result_is_nan(strategy, mechanism):
    query = query_of(mechanism, strategy)
    state, step = query.initial_global_state(), compiled(query)
    for t in range(20):
        noise = state.noise._replace(made_for=tf.constant(t), rows=state.noise.rows + 1.0 * (strategy == "precomputed"))
        result, state = step(state._replace(noise=noise))
        assert np.isfinite(result).all() == (t < 8), t
        assert np.isnan(result).all() == (t >= 8), t


def turned(svd, seed):
    """Another decomposition of the same matrices: signs, and what equal singular values leave open, are decided at random."""
    rng = np.random.default_rng(seed)

    def other(*arguments, **options):
        left, values, right = svd(*arguments, **options)
        start = 0
        for end in range(1, len(values) + 1):
            if end == len(values) or values[end] < (1 - 1e-9) * values[start]:
                turn = np.linalg.qr(rng.standard_normal((end - start, end - start)))[0] * rng.choice([-1.0, 1.0])
                left[:, start:end], right[start:end] = left[:, start:end] @ turn.T, turn @ right[start:end]
                start = end
        return left, values, right

    return other


def echo(rounds):
    """Round t has the draw of round t - 8 once more: all singular values are equal."""
    return NoiseStream(rounds=rounds, sources=rounds, contraction=np.eye(rounds) + np.eye(rounds, k=-8))


def tree(rounds):
    return TreeMechanism(rounds=rounds).stream()


@pytest.mark.parametrize(("rounds", "length"), [(64, 1), (100, 3), (200, 16)])
@pytest.mark.parametrize("stream_of", [echo, tree])
def test_what_a_state_means_does_not_depend_on_the_decomposition(rounds, length, stream_of, monkeypatch):
    stream = stream_of(rounds)
    form = block_form(stream, length=length)
    for seed in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(scipy.linalg, "svd", turned(scipy.linalg.svd, seed))
            again = block_form(stream, length=length)
        assert again.width == form.width
        for b in range(form.blocks):
            np.testing.assert_allclose(again.matrix(b), form.matrix(b), rtol=0, atol=1e-11)


@pytest.mark.parametrize("stream_of", [echo, tree])
def test_without_settling_it_does_depend(stream_of, monkeypatch):
    """Negative control of the test above."""
    monkeypatch.setattr("fedmf.noise.blocks._settled", lambda values, right: np.eye(len(values)))
    stream = stream_of(64)
    form = block_form(stream, length=1)
    monkeypatch.setattr(scipy.linalg, "svd", turned(scipy.linalg.svd, 0))
    again = block_form(stream, length=1)
    assert max(np.abs(again.matrix(b) - form.matrix(b)).max() for b in range(64)) > 0.1


def test_a_snapshot_that_means_something_else_is_not_taken():
    plan = plan_of(TreeMechanism(rounds=250))
    noise = federated.HostNoise(plan, SIZE, noise_seed=1, strategy="recurrent")
    rounds = (170, 171, 249)
    expected = [noise.row(t) for t in rounds]
    noise.row(170)
    block, state = (np.array(leaf) for leaf in noise.snapshot())
    assert len(state) >= 2
    again = federated.HostNoise(plan, SIZE, noise_seed=1, strategy="recurrent")
    for wrong in (state[::-1], -state, state * np.float32(1.01), np.full_like(state, np.nan)):
        assert not again.restore([block, wrong])
        np.testing.assert_allclose([again.row(t) for t in rounds], expected, rtol=0, atol=1e-5)
    assert again.restore([block, state])
    np.testing.assert_array_equal([again.row(t) for t in rounds], expected)


def test_a_query_divides_by_the_cohort_that_the_plan_simulates():
    plan = plan_of(banded(8, 4)).simulating(simulated=10, claimed=1000)
    for divisor in (1.0, 10.0):
        federated.MatrixFactorizationQuery(plan, tf.TensorSpec([SIZE]), noise_seed=1, divisor=divisor)
    for divisor in (1000.0, 11.0):
        with pytest.raises(ValueError, match=rf"divisor={divisor:g} but the plan simulates 10 records .* for 1000"):
            federated.MatrixFactorizationQuery(plan, tf.TensorSpec([SIZE]), noise_seed=1, divisor=divisor)
    with pytest.raises(ValueError, match="simulates 10 records"):
        federated.keras_optimizer(plan, [tf.Variable([1.0])], batch_size=1000, noise_seed=1)
