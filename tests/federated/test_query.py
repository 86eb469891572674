"""The DPQuery: what reaches the sum, and what is refused."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_privacy as tfp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tensorflow_privacy.privacy.dp_query import test_utils

import fedmf
from fedmf import federated

pytestmark = pytest.mark.tensorflow
ROUNDS = 5


def make_plan(family="banded", clip_norm=1.0, noise_multiplier=1.0):
    participation = fedmf.Participation(rounds=ROUNDS, schema="min_sep", min_sep=2)
    mechanism = fedmf.fit(fedmf.prefix_sum(ROUNDS), participation, family=family)
    return fedmf.Plan(
        mechanism=mechanism,
        participation=participation,
        noise_multiplier=noise_multiplier,
        clip_norm=clip_norm,
        delta=1e-6,
    )


def make_query(clip_norm=1.0, zeroing_norm=100.0, specs=None):
    specs = {"a": tf.TensorSpec([2, 3]), "b": tf.TensorSpec([])} if specs is None else specs
    return federated.MatrixFactorizationQuery(
        make_plan(clip_norm=clip_norm), specs, noise_seed=1, zeroing_norm=zeroing_norm
    )


def preprocess(query, record):
    params = query.derive_sample_params(query.initial_global_state())
    return tf.nest.map_structure(lambda t: t.numpy(), query.preprocess_record(params, record))


def norm(record):
    return np.sqrt(sum(np.sum(np.square(leaf.astype(np.float64))) for leaf in tf.nest.flatten(record)))


anything = hnp.arrays(np.float32, (7,), elements=st.floats(width=32, allow_nan=True, allow_infinity=True))


@settings(deadline=None, max_examples=300)
@given(values=anything, clip_norm=st.sampled_from([1e-3, 0.5, 1.0, 30.0]), zeroing=st.sampled_from([None, 1e-2, 100.0]))
def test_nothing_moves_the_sum_by_more_than_the_clip_norm(values, clip_norm, zeroing):
    record = {"a": tf.constant(values[:6].reshape(2, 3)), "b": tf.constant(values[6])}
    clipped = preprocess(make_query(clip_norm, zeroing), record)
    assert norm(clipped) <= clip_norm  # in float64, without a tolerance
    if not np.isfinite(values).all() or (zeroing is not None and np.abs(values).max() > np.float32(zeroing)):
        assert norm(clipped) == 0
    elif norm(record := tf.nest.map_structure(lambda t: t.numpy(), record)) <= clip_norm * (1 - 2e-6):
        # Unchanged to the bit, but that TensorFlow may take numbers below float32's normal range for 0.
        vanished = (np.abs(record["a"]) < np.finfo(np.float32).tiny) & (clipped["a"] == 0)
        np.testing.assert_array_equal(clipped["a"], np.where(vanished, 0, record["a"]))
    elif norm(record) > 1e-30:
        # The direction is kept, and of the clip norm all but the rounding margin; entries below float32's range may vanish.
        scale = clip_norm * (1 - 1e-6) / norm(record)
        np.testing.assert_allclose(clipped["a"], record["a"].astype(np.float64) * scale, rtol=1e-6, atol=1e-37)


def test_zeroing_comes_before_clipping():
    record = {"a": tf.fill([2, 3], 0.0), "b": tf.constant(101.0)}
    assert norm(preprocess(make_query(zeroing_norm=100.0), record)) == 0
    assert norm(preprocess(make_query(zeroing_norm=102.0), record)) == pytest.approx(1.0, rel=2e-6)
    assert norm(preprocess(make_query(zeroing_norm=None), record)) == pytest.approx(1.0, rel=2e-6)


def test_calls_are_pure_and_deterministic():
    query = make_query()
    zero = query.initial_sample_state()
    state = query.initial_global_state()
    once, after, _ = query.get_noised_result(zero, state)
    twice, _, _ = query.get_noised_result(zero, state)
    tf.nest.map_structure(lambda a, b: np.testing.assert_array_equal(a, b), once, twice)
    other, _, _ = query.get_noised_result(zero, after)
    assert not np.allclose(once["a"], other["a"])
    assert int(query.derive_metrics(after)["rounds_done"]) == 1


def test_leaves_do_not_share_noise():
    specs = [tf.TensorSpec([4]), tf.TensorSpec([4])]
    query = make_query(specs=specs)
    (one, other), _, _ = query.get_noised_result(query.initial_sample_state(), query.initial_global_state())
    assert not np.isclose(one, other).any()


def test_works_where_tensorflow_privacy_expects_a_query():
    query = make_query(specs=tf.TensorSpec([3]))
    result, state = test_utils.run_query(query, [tf.constant([3.0, 0, 0]), tf.constant([0.0, 0.5, 0])])
    noise, _, _ = query.get_noised_result(tf.zeros([3]), query.initial_global_state())
    np.testing.assert_allclose(result - noise, [1, 0.5, 0], atol=1e-5)
    assert isinstance(query, tfp.DPQuery)
    assert int(state.next_round) == 1


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"plan": 3}, TypeError, "plan=3 must be a fedmf.Plan"),
        ({"noise_seed": None}, TypeError, "noise_seed=None"),
        ({"noise_seed": -1}, ValueError, "noise_seed=-1"),
        ({"noise_seed": True}, TypeError, "noise_seed=True"),
        ({"zeroing_norm": 0.0}, ValueError, "zeroing_norm=0.0"),
        ({"zeroing_norm": float("nan")}, ValueError, "zeroing_norm=nan"),
        ({"record_specs": tf.TensorSpec([2], tf.int32)}, TypeError, "float32 or float64"),
        ({"record_specs": tf.TensorSpec([2], tf.float16)}, TypeError, "half precision"),
        ({"record_specs": tf.TensorSpec([None])}, TypeError, "fully defined shape"),
    ],
)
def test_refusals_name_the_argument(change, error, words):
    arguments = {"plan": make_plan(), "record_specs": tf.TensorSpec([2]), "noise_seed": 1} | change
    plan, specs = arguments.pop("plan"), arguments.pop("record_specs")
    with pytest.raises(error, match=words):
        federated.MatrixFactorizationQuery(plan, specs, **arguments)
