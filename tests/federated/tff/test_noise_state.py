"""The state of the noise is gone on with as it was made, or not at all: what another reads in it
may be noise that was released before.
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
    """The state, with a row handed in where that is its way."""
    _, state = step_of(query)(query.initial_global_state())
    return state._replace(noise=state.noise._replace(made_for=state.noise.next_round))


def refused(query, state, words):
    with pytest.raises(tf.errors.InvalidArgumentError, match=words):
        step_of(query).python_function(state)


def step_of(query, **options):
    zero = query.initial_sample_state()
    return tf.function(lambda state: query.get_noised_result(zero, state)[:2], **options)


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
    """A round that is done again with another scale gives the update away: r = x + s n and R = x +
    S n leave x = (S r - s R) / (S - s).
    """
    state, other = after_one_round(query_of()), query_of(**change)
    assert state.noise.rows.shape == other.initial_global_state().noise.rows.shape
    refused(other, state, "of another mechanism, noise scale, clip norm, model")


def test_rows_of_another_shape_are_refused_in_every_graph():
    """A tf.function knows the shape of its state when it is traced, and compares no plans then."""
    state, other = after_one_round(query_of()), query_of(banded(bands=4))
    refused(other, state, "of another mechanism")
    for options in ({}, {"jit_compile": True}):
        # AutoGraph wraps the sentence in words of its own.
        with pytest.raises(ValueError, match="of another mechanism, noise scale, clip norm"):
            step_of(other, **options)(state)


def test_without_the_fingerprint_noise_would_repeat_under_another_plan():
    """Negative control of the test above."""
    began, other = query_of(), query_of(noise_multiplier=3.0)
    state = after_one_round(began)
    mark = other.initial_global_state().noise.mechanism
    repeated, _ = step_of(other)(state._replace(noise=state.noise._replace(mechanism=mark)))
    seen, _ = step_of(began)(state)
    scaled = other.plan.stddev / began.plan.stddev * seen
    np.testing.assert_allclose(repeated, scaled, rtol=1e-5, atol=1e-6)


def test_a_state_of_another_adaptive_clip_norm_is_refused():
    began, other = (
        query_of(divisor=4, quantile_clipping=QuantileClipping(quantile=quantile))
        for quantile in (0.5, 0.6)
    )
    refused(other, began.initial_global_state(), "another mechanism, noise scale")


def test_a_state_of_another_zeroing_or_scaling_is_refused():
    """A round done again with another zeroing norm or scaling has other updates under its noise."""
    plain = query_of()
    adam, slower = (plain.with_scaling(Scaling(rule="adam", every=every)) for every in (1, 2))
    for began, other in (
        (plain, query_of(zeroing_norm=1.0)),
        (plain, query_of(divisor=2)),
        (plain, plain.with_entry_rounding(1e-9)),
        (adam, slower),
    ):
        refused(other, began.initial_global_state(), "another `zeroing_norm`, scaling, secure_sum")


def test_a_state_of_another_model_size_is_refused():
    """Of independent rows the state holds none, by whose shape a model would be told."""
    began, other = (query_of(IdentityMechanism(rounds=4), size=size) for size in (4, 6))
    state = began.initial_global_state()
    with pytest.raises(tf.errors.InvalidArgumentError, match="model size"):
        step_of(other)(state)
    # XLA would not check it.
    assert np.isnan(step_of(other, jit_compile=True)(state)[0]).all()


@pytest.mark.parametrize("options", [{}, {"jit_compile": True}])
def test_a_state_of_the_same_plan_from_another_processor_is_accepted(options):
    again = query_of(noise_multiplier=0.7 + 1e-13)
    row, after = step_of(again, **options)(after_one_round(query_of()))
    assert np.isfinite(row).all()
    assert after.noise.next_round == 2


@pytest.mark.parametrize("strategy", GRAPH_STRATEGIES)
def test_past_the_last_round_a_compiled_result_is_nan(strategy):
    query = query_of(banded(8, 4), strategy)
    state, step = query.initial_global_state(), step_of(query, jit_compile=True)
    for t in range(12):
        noise = state.noise._replace(
            made_for=tf.constant(t), rows=state.noise.rows + 1.0 * (strategy == "precomputed")
        )
        result, state = step(state._replace(noise=noise))
        assert np.isfinite(result).all() == (t < 8), t
        assert np.isnan(result).all() == (t >= 8), t


def turned(svd, seed):
    """Another decomposition of the same matrices: signs, and what equal singular values leave open,
    are decided at random.
    """
    rng = np.random.default_rng(seed)

    def other(*arguments, **options):
        left, values, right = svd(*arguments, **options)
        start = 0
        for end in range(1, len(values) + 1):
            if end == len(values) or values[end] < (1 - 1e-9) * values[start]:
                turn, _ = np.linalg.qr(rng.standard_normal((end - start, end - start)))
                turn *= rng.choice([-1.0, 1.0])
                left[:, start:end] = left[:, start:end] @ turn.T
                right[start:end] = turn @ right[start:end]
                start = end
        return left, values, right

    return other


def echo(rounds):
    """Round t has the draw of round t - 8 once more: all singular values are equal."""
    return NoiseStream(
        rounds=rounds, sources=rounds, contraction=np.eye(rounds) + np.eye(rounds, k=-8)
    )


def moved_by_another_decomposition(stream, length, monkeypatch, seed):
    """The most that an entry of the blocks differs."""
    form = block_form(stream, bounds=equal_blocks(stream.rounds, length))
    with monkeypatch.context() as patch:
        patch.setattr(scipy.linalg, "svd", turned(scipy.linalg.svd, seed))
        again = block_form(stream, bounds=equal_blocks(stream.rounds, length))
    assert again.width == form.width
    return max(np.abs(again.matrix(b) - form.matrix(b)).max() for b in range(form.num_blocks))


@pytest.mark.parametrize(
    ("stream", "length"),
    [(echo(64), 1), (echo(200), 16), (TreeMechanism(rounds=100, decoder="online").stream(), 3)],
)
def test_the_fingerprint_does_not_depend_on_the_matrix_decomposition(stream, length, monkeypatch):
    for seed in range(3):
        assert moved_by_another_decomposition(stream, length, monkeypatch, seed) < 1e-11


def test_without_rounding_the_fingerprint_depends_on_the_decomposition(monkeypatch):
    """Negative control of the test above."""
    monkeypatch.setattr(
        "fedmf.noise.blocks._canonical_rotation", lambda values, right: np.eye(len(values))
    )
    assert moved_by_another_decomposition(echo(64), 1, monkeypatch, 0) > 0.1
