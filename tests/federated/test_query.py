"""The DPQuery: what reaches the sum, and what is refused."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_privacy as tfp
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
    return tf.nest.map_structure(lambda t: t.numpy(), query.preprocess_record(params, record).record)


def norm(record):
    return np.sqrt(sum(np.sum(np.square(leaf.astype(np.float64))) for leaf in tf.nest.flatten(record)))


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
    noise, _, _ = query.get_noised_result(query.initial_sample_state(), query.initial_global_state())
    np.testing.assert_allclose(result - noise, [1, 0.5, 0], atol=1e-5)
    assert isinstance(query, tfp.DPQuery)
    assert int(state.noise.next_round) == 1


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"plan": 3}, TypeError, "plan=3 must be a fedmf.Plan"),
        ({"noise_seed": None}, ValueError, "noise_seed=None"),
        ({"noise_seed": -1}, ValueError, "noise_seed=-1"),
        ({"noise_seed": True}, TypeError, "noise_seed=True"),
        ({"zeroing_norm": 0.0}, ValueError, "zeroing_norm=0.0"),
        ({"zeroing_norm": float("nan")}, ValueError, "zeroing_norm=nan"),
        ({"record_specs": tf.TensorSpec([2], tf.int32)}, TypeError, "float32 or float64"),
        ({"record_specs": {}}, ValueError, "has no entries"),
        ({"record_specs": [tf.TensorSpec([0])]}, ValueError, "has no entries"),
        ({"divisor": 0}, ValueError, "divisor=0"),
        ({"entry_rounding": 0.9}, ValueError, "leaves nothing of clip_norm=1.0"),
        ({"entry_rounding": -1e-9}, ValueError, "entry_rounding=-1e-09"),
        ({"plan": make_plan(clip_norm=1e-21)}, ValueError, "plan.clip_norm=1e-21"),
        ({"record_specs": tf.TensorSpec([None])}, TypeError, "fully defined shape"),
    ],
)
def test_refusals_name_the_argument(change, error, words):
    arguments = {"plan": make_plan(), "record_specs": tf.TensorSpec([2]), "noise_seed": 1} | change
    plan, specs = arguments.pop("plan"), arguments.pop("record_specs")
    with pytest.raises(error, match=words):
        federated.MatrixFactorizationQuery(plan, specs, **arguments)
