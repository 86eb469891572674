"""A state of the noise is accepted by a query of the plan that made it, and by no other.

Another plan could read noise in it that was released before.
"""

import numpy as np
import pytest
import scipy.linalg
import tensorflow as tf

from fedmf import Participation, QuantileClipping, federated, fit, prefix_sum
from fedmf.mechanisms import IdentityMechanism, NoiseStream, TreeMechanism
from fedmf.noise.blocks import block_form, equal_blocks
from fedmf.noise.graph_strategies import GRAPH_STRATEGIES
from fedmf.server.following import Scaling
from tests.federated.plans import plan_of

SIZE = 9


def banded(rounds=40, bands=2, family="banded"):
    return fit(
        prefix_sum(rounds),
        Participation(rounds=rounds, schema="single"),
        family=family,
        bands=bands,
    )


BANDED = banded()


def query_of(mechanism=BANDED, strategy=None, size=SIZE, zeroing_norm=None, divisor=1, **changes):
    options = {"noise_strategy": strategy, "zeroing_norm": zeroing_norm, "divisor": divisor}
    plan = plan_of(mechanism, **changes)
    return federated.MatrixFactorizationQuery(plan, tf.TensorSpec([size]), noise_seed=1, **options)


def after_one_round(query):
    """Returns the state after round 0, marked as if a row were handed in for round 1."""
    _, state = step_of(query)(query.initial_global_state())
    return state._replace(noise=state.noise._replace(made_for=state.noise.next_round))


def assert_refused(query, state, match):
    with pytest.raises(tf.errors.InvalidArgumentError, match=match):
        step_of(query).python_function(state)


def step_of(query, **options):
    """Returns a function of a state to the result of a round without clients and the next state."""
    zero_state = query.initial_sample_state()
    return tf.function(lambda state: query.get_noised_result(zero_state, state)[:2], **options)


@pytest.mark.parametrize(
    "change",
    [
        {"strategy": "precomputed"},
        {"mechanism": banded(family="toeplitz")},
        {"noise_multiplier": 3.0},
        {"clip_norm": 2.0},
        {"noise_multiplier": 0.35, "clip_norm": 1.0},
    ],
    ids=["strategy", "mechanism", "noise multiplier", "clip norm", "both, of one scale"],
)
def test_a_state_of_another_plan_or_query_is_refused(change):
    """A round that is repeated with another scale gives the update away: r = x + s n and R = x +
    S n leave x = (S r - s R) / (S - s).
    """
    state = after_one_round(query_of())
    other_query = query_of(**change)
    assert state.noise.rows.shape == other_query.initial_global_state().noise.rows.shape
    assert_refused(other_query, state, "of another mechanism, noise scale, clip norm, model")


def test_rows_of_another_shape_are_refused_in_every_graph():
    """A tf.function knows the shape of its state when it is traced, and compares no plans then."""
    state = after_one_round(query_of())
    other_query = query_of(banded(bands=4))
    assert_refused(other_query, state, "of another mechanism")
    for options in ({}, {"jit_compile": True}):
        # AutoGraph wraps the sentence in words of its own.
        with pytest.raises(ValueError, match="of another mechanism, noise scale, clip norm"):
            step_of(other_query, **options)(state)


def test_without_the_fingerprint_noise_would_repeat_under_another_plan():
    """Negative control of the test above."""
    query = query_of()
    other_query = query_of(noise_multiplier=3.0)
    state = after_one_round(query)
    fingerprint = other_query.initial_global_state().noise.mechanism
    forged_state = state._replace(noise=state.noise._replace(mechanism=fingerprint))
    repeated_noise, _ = step_of(other_query)(forged_state)
    noise, _ = step_of(query)(state)
    scaled_noise = other_query.plan.stddev / query.plan.stddev * noise
    np.testing.assert_allclose(repeated_noise, scaled_noise, rtol=1e-5, atol=1e-6)


def test_a_state_of_another_adaptive_clip_norm_is_refused():
    query, other_query = (
        query_of(divisor=4, quantile_clipping=QuantileClipping(quantile=quantile))
        for quantile in (0.5, 0.6)
    )
    assert_refused(other_query, query.initial_global_state(), "another mechanism, noise scale")


def test_a_state_of_another_zeroing_or_scaling_is_refused():
    """A repeated round with another zeroing norm or scaling has other updates under its noise."""
    plain_query = query_of()
    adam, slower = (
        plain_query.with_scaling(Scaling(rule="adam", every=update_interval))
        for update_interval in (1, 2)
    )
    for query, other_query in (
        (plain_query, query_of(zeroing_norm=1.0)),
        (plain_query, query_of(divisor=2)),
        (plain_query, plain_query.with_entry_rounding(1e-9)),
        (adam, slower),
    ):
        state = query.initial_global_state()
        assert_refused(other_query, state, "another `zeroing_norm`, scaling, secure_sum")


def test_a_state_of_another_model_size_is_refused():
    """A state of independent noise has no rows, whose shape would show the size of the model."""
    query, other_query = (query_of(IdentityMechanism(rounds=4), size=size) for size in (4, 6))
    state = query.initial_global_state()
    with pytest.raises(tf.errors.InvalidArgumentError, match="model size"):
        step_of(other_query)(state)
    # XLA drops the check.
    result, _ = step_of(other_query, jit_compile=True)(state)
    assert np.isnan(result).all()


@pytest.mark.parametrize("options", [{}, {"jit_compile": True}])
def test_a_state_of_the_same_plan_from_another_processor_is_accepted(options):
    same_query = query_of(noise_multiplier=0.7 + 1e-13)
    result, next_state = step_of(same_query, **options)(after_one_round(query_of()))
    assert np.isfinite(result).all()
    assert next_state.noise.next_round == 2


@pytest.mark.parametrize("strategy", GRAPH_STRATEGIES)
def test_a_compiled_result_past_the_last_round_is_nan(strategy):
    query = query_of(banded(8, 4), strategy)
    state = query.initial_global_state()
    step = step_of(query, jit_compile=True)
    for t in range(12):
        rows = state.noise.rows
        if strategy == "precomputed":
            rows = rows + 1.0
        noise = state.noise._replace(made_for=tf.constant(t), rows=rows)
        result, state = step(state._replace(noise=noise))
        assert np.isfinite(result).all() == (t < 8), t
        assert np.isnan(result).all() == (t >= 8), t


def turned(svd, seed):
    """Returns another decomposition of the same matrices.

    It chooses signs, and a basis for equal singular values, at random.
    """
    rng = np.random.default_rng(seed)

    def random_svd(*arguments, **options):
        left_vectors, values, right_vectors = svd(*arguments, **options)
        start = 0
        for end in range(1, len(values) + 1):
            if end == len(values) or values[end] < (1 - 1e-9) * values[start]:
                turn, _ = np.linalg.qr(rng.standard_normal((end - start, end - start)))
                turn *= rng.choice([-1.0, 1.0])
                left_vectors[:, start:end] = left_vectors[:, start:end] @ turn.T
                right_vectors[start:end] = turn @ right_vectors[start:end]
                start = end
        return left_vectors, values, right_vectors

    return random_svd


def echo(rounds):
    """Returns a stream that repeats the draw of round t - 8: all singular values are equal."""
    return NoiseStream(
        rounds=rounds, sources=rounds, contraction=np.eye(rounds) + np.eye(rounds, k=-8)
    )


def change_by_another_decomposition(stream, length, monkeypatch, seed):
    """Returns the largest change of an entry of the blocks by another decomposition."""
    form = block_form(stream, bounds=equal_blocks(stream.rounds, length))
    with monkeypatch.context() as patch:
        patch.setattr(scipy.linalg, "svd", turned(scipy.linalg.svd, seed))
        other_form = block_form(stream, bounds=equal_blocks(stream.rounds, length))
    assert other_form.width == form.width
    return max(np.abs(other_form.matrix(b) - form.matrix(b)).max() for b in range(form.num_blocks))


def compressible_stream(rounds):
    """Returns the stream of a matrix that is that of a tree."""
    return TreeMechanism(rounds=rounds, decoder="online").stream().causal().as_contraction()


@pytest.mark.parametrize(
    ("stream", "length"),
    [(echo(64), 1), (echo(200), 16), (compressible_stream(100), 3)],
)
def test_rows_of_a_state_do_not_depend_on_the_matrix_decomposition(stream, length, monkeypatch):
    for seed in range(3):
        assert change_by_another_decomposition(stream, length, monkeypatch, seed) < 1e-11


def test_without_the_canonical_rotation_rows_depend_on_the_decomposition(monkeypatch):
    """Negative control of the test above."""
    monkeypatch.setattr(
        "fedmf.noise.blocks._canonical_rotation", lambda values, right: np.eye(len(values))
    )
    assert change_by_another_decomposition(echo(64), 1, monkeypatch, 0) > 0.1
