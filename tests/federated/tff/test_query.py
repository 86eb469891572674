"""The DPQuery: clipping, sum, noise, state, and refused arguments."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_privacy as tfp
from tensorflow_privacy.privacy.dp_query import nested_query, test_utils

from fedmf import QuantileClipping, federated
from tests.federated.plans import noise_of_sums, plan_of
from tests.mechanisms.registry import MECHANISMS
from tests.refusals import refusal

ROUNDS = 5


def make_query(specs=None, *, noise_multiplier=1.0, zeroing_norm=100.0, noise_seed=1, **options):
    specs = {"a": tf.TensorSpec([2, 3]), "b": tf.TensorSpec([])} if specs is None else specs
    plan = plan_of(MECHANISMS["banded"](ROUNDS), clip_norm=1.0, noise_multiplier=noise_multiplier)
    return federated.MatrixFactorizationQuery(
        plan, specs, noise_seed=noise_seed, zeroing_norm=zeroing_norm, **options
    )


def preprocess(query, record):
    return query.preprocess_record(query.derive_sample_params(query.initial_global_state()), record)


def add_up(query, records, sample=None):
    sample = query.initial_sample_state() if sample is None else sample
    params = query.derive_sample_params(query.initial_global_state())
    for record in records:
        sample = query.accumulate_record(params, sample, record)
    return sample


def leaves(record, function=lambda leaf: leaf.dtype):
    return [function(leaf) for leaf in tf.nest.flatten(record)]


def flat(record):
    return np.concatenate(leaves(record, np.ravel)).astype(np.float64)


def rows(query, size, seed=1):
    return noise_of_sums(query.plan, size, seed)


# TensorFlow Privacy's expectations of a query: its documentation of DPQuery, the tests of its own
# queries, and its wrappers.

STRUCTURES = {
    "tensor": tf.TensorSpec([3]),
    "list": [tf.TensorSpec([3]), tf.TensorSpec([])],
    "nested": (
        tf.TensorSpec([0]),
        collections.OrderedDict(
            x=[tf.TensorSpec([2, 2], tf.float64)], y=tf.TensorSpec([3], tf.bfloat16)
        ),
    ),
}


def filled(specs, value):
    return tf.nest.map_structure(
        lambda spec: tf.cast(tf.fill(spec.shape, value), spec.dtype), specs
    )


@pytest.mark.parametrize(
    ("kind", "in_graph"), [*((kind, False) for kind in STRUCTURES), ("nested", True)]
)
def test_sum_and_noise_are_those_of_tensorflow_privacy(kind, in_graph):
    """The result is the clipped sum plus row t of N Z.

    Denisov et al. 2022, Alg. 1; banded paper, Alg. 1.
    """
    specs = STRUCTURES[kind]
    query = make_query(specs)
    size = flat(filled(specs, 0.0)).size

    def one_round(state):
        return test_utils.run_query(
            query, [filled(specs, value) for value in (0.25, -0.125, 7.0)], state
        )

    one_round = tf.function(one_round) if in_graph else one_round
    state = query.initial_global_state()
    largest_entry = 1 / np.sqrt(size)
    total = min(0.25, largest_entry) - min(0.125, largest_entry) + largest_entry
    half_precision_step = 2.0**-8 if tf.bfloat16 in leaves(specs) else 0
    for t in range(ROUNDS):
        result, state = one_round(state)
        tf.nest.assert_same_structure(result, specs)
        assert leaves(result) == leaves(specs)
        assert leaves(result, np.shape) == leaves(specs, lambda spec: tuple(spec.shape))
        expected = total + rows(query, size)[t]
        np.testing.assert_allclose(flat(result), expected, rtol=half_precision_step, atol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="planned for rounds=5"):
        one_round(state)


@pytest.mark.parametrize("specs", STRUCTURES.values(), ids=STRUCTURES.keys())
def test_sample_states_merge_and_take_templates(specs):
    query = make_query(specs)
    records = [filled(specs, value) for value in (0.2, 3.0, np.nan)]
    expected = add_up(query, records)
    merged = query.merge_sample_states(add_up(query, records[:1]), add_up(query, records[1:]))
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), merged, expected
    )
    assert (int(expected.clients), int(expected.zeroed)) == (3, 1)
    zero_state = query.initial_sample_state()
    for template in (specs, filled(specs, 1.0)):
        sample = query.initial_sample_state(template)
        tf.nest.map_structure(np.testing.assert_array_equal, sample, zero_state)
        assert leaves(sample) == leaves(zero_state)


def test_the_global_state_is_a_structure_of_tensors_and_params_do_not_contain_it():
    query = make_query()
    state = query.initial_global_state()
    copied_state = tf.nest.map_structure(tf.identity, state)
    _, next_state, event = query.get_noised_result(query.initial_sample_state(), copied_state)
    assert type(next_state) is type(copied_state) is type(state)
    assert leaves(next_state) == leaves(state)
    assert leaves(next_state, np.shape) == leaves(state, np.shape)
    assert query.derive_sample_params(next_state) == (1.0, 100.0, ())
    # One event for the whole run; those of rounds do not compose.
    assert type(event).__name__ == "UnsupportedDpEvent"


def test_the_query_works_inside_queries_of_tensorflow_privacy():
    query = make_query(tf.TensorSpec([2]))
    pair_query = make_query([tf.TensorSpec([])] * 2, noise_seed=2)
    queries = {"a": tfp.NormalizedQuery(query, denominator=4.0), "b": pair_query}
    nested = nested_query.NestedSumQuery(queries)
    record = {"a": tf.constant([3.0, 4.0]), "b": [tf.constant(0.1), tf.constant(0.2)]}
    result, state = test_utils.run_query(nested, [record])
    expected = ([0.6, 0.8] + rows(query, 2)[0]) / 4, [0.1, 0.2] + rows(pair_query, 2, seed=2)[0]
    np.testing.assert_allclose([*result.values()], expected, atol=1e-5)
    assert int(nested.derive_metrics(state)["b/rounds_released"]) == 1


def test_a_restart_which_would_repeat_the_noise_is_refused():
    with refusal("reset_state"):
        tfp.RestartQuery(make_query(), tfp.restart_query.PeriodicRoundRestartIndicator(period=2))


def test_metrics_are_those_of_the_last_round():
    query = make_query(tf.TensorSpec([2]))
    state = query.initial_global_state()
    for t, values in enumerate(([0.1, 5.0, 5.0, np.inf], [], [101.0, 0.0])):
        _, state, _ = query.get_noised_result(
            add_up(query, [tf.constant([v, 0.0]) for v in values]), state
        )
        metrics = {name: value.numpy() for name, value in query.derive_metrics(state).items()}
        assert metrics == {
            "rounds_released": t + 1,
            "noise_stddev": pytest.approx(query.plan.stddev),
            "clients": len(values),
            "clip_fraction": (0.5, 0.0, 0.0)[t],
            "zeroed": (1, 0, 1)[t],
        }
    public_metrics = make_query(count_metrics=False).derive_metrics(state)
    assert set(public_metrics) == {"rounds_released", "noise_stddev"}


def test_an_update_beside_many_moves_the_sum_by_its_own_value():
    """In float32 the update changes the rounding of later sums, and moves them by several times as
    much.
    """
    query = make_query(tf.TensorSpec([1]), noise_multiplier=0.0)
    large_sum = add_up(query, [tf.constant([1.0])])
    for _ in range(14):
        large_sum = query.merge_sample_states(large_sum, large_sum)
    # Half a step of float32 at 2^14.
    update = 1e-3
    other_updates = [2.0**-10] * 64

    def total(updates):
        return add_up(query, [tf.constant([value]) for value in updates], large_sum).record.numpy()[
            0
        ]

    assert total([update, *other_updates]) - total(other_updates) == pytest.approx(update, rel=1e-6)
    float32_sums = np.cumsum([2**14, update, *other_updates], dtype=np.float32)
    assert (
        float32_sums[-1] - np.cumsum([2**14, *other_updates], dtype=np.float32)[-1] > 1.5 * update
    )


def test_an_update_rounded_by_entry_rounding_is_no_longer_than_the_clip_norm():
    grid = 1e-3
    size = 400
    values = tf.constant(np.random.default_rng(0).uniform(0.5, 0.51, size), tf.float32)
    # Rounding away from 0, by a whole step at most.
    query = make_query(tf.TensorSpec([size]))
    norm_with_rounding, norm_without_rounding = (
        np.linalg.norm(np.ceil(preprocess(some_query, values).record / grid) * grid)
        for some_query in (query.with_entry_rounding(grid), query)
    )
    assert norm_with_rounding <= 1 < norm_without_rounding
    with refusal("entry_rounding=0.9 .*clip_norm=1.0"):
        query.with_entry_rounding(0.9)


def test_no_representation_shows_the_noise_seed():
    query = make_query(noise_seed=98765432123456789)
    assert "98765432123456789" not in repr(query) + repr(vars(query))


def test_a_state_that_is_a_constant_of_a_graph_is_refused():
    query = make_query()
    state = query.initial_global_state()
    zero_state = query.initial_sample_state()

    def closed_over(constant):
        return tf.function(lambda: query.get_noised_result(zero_state, constant)[0])

    for constant in (state, tf.nest.map_structure(np.asarray, state)):
        with pytest.raises(ValueError, match="every call would add the same noise"):
            closed_over(constant)()
    variables = tf.nest.map_structure(lambda leaf: tf.Variable(leaf, trainable=False), state)

    @tf.function
    def step():
        result, next_state, _ = query.get_noised_result(zero_state, variables)
        tf.nest.map_structure(lambda variable, value: variable.assign(value), variables, next_state)
        return result

    results = np.stack([flat(step()) for _ in range(ROUNDS)])
    np.testing.assert_allclose(results, rows(query, 7), atol=1e-5)


@pytest.mark.parametrize(
    ("record", "match"),
    [
        ({"a": tf.zeros([2, 3])}, "not those that the query was made for"),
        ({"a": tf.zeros([3, 2]), "b": tf.constant(0.0)}, "not those that the query was made for"),
        *(
            ({"a": array, "b": tf.constant(0.0)}, f"{kind} .* float32")
            for kind, array in {
                "complex64": np.ones([2, 3], np.complex64),
                "string": np.ones([2, 3], str),
                "int32": tf.ones([2, 3], tf.int32),
            }.items()
        ),
        ({"a": tf.zeros([2, 3]), "b": tf.constant(0.0, tf.float64)}, "float64 .* float32"),
    ],
)
def test_records_of_other_shapes_or_dtypes_are_refused(record, match):
    query = make_query()
    for use_record in (lambda: preprocess(query, record), lambda: add_up(query, [record])):
        with refusal(match, (TypeError, ValueError)):
            use_record()


@pytest.mark.parametrize(
    ("dtype", "spec_dtype"), [(tf.bfloat16, tf.float32), (tf.float32, tf.float64)]
)
def test_records_of_narrower_dtypes_are_widened(dtype, spec_dtype):
    record = tf.constant([0.5, 0.25], dtype)
    for value in (record, tf.Variable(record), record.numpy(), np.array([0.5, 0.25])):
        clipped_record = preprocess(make_query(tf.TensorSpec([2], spec_dtype)), value).record
        np.testing.assert_array_equal(clipped_record, [0.5, 0.25])


BANDED = plan_of(MECHANISMS["banded"](ROUNDS))
SIMULATING = BANDED.simulating(simulated=10, claimed=1000)
ADAPTIVE = plan_of(BANDED.mechanism, quantile_clipping=QuantileClipping())


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"record_specs": tf.TensorSpec([2], tf.int32)}, TypeError, "float32 or float64"),
        ({"record_specs": tf.TensorSpec([None])}, TypeError, "fully defined shape"),
        ({"record_specs": {}}, ValueError, "has no entries"),
        ({"record_specs": [1.0]}, TypeError, "record_specs has a leaf 1.0"),
        ({"record_specs": [tf.TensorSpec([0])]}, ValueError, "has no entries"),
        ({"divisor": 0}, ValueError, "divisor=0"),
        ({"plan": plan_of(BANDED.mechanism, clip_norm=1e-21)}, ValueError, "plan.clip_norm=1e-21"),
        ({"plan": SIMULATING, "divisor": 11}, ValueError, "divisor=11 .* 10 .* 1000"),
        ({"plan": ADAPTIVE}, ValueError, "fixed number of records"),
    ],
)
def test_refusals_name_the_argument(change, error, match):
    arguments = {"plan": BANDED, "record_specs": tf.TensorSpec([2]), "noise_seed": 1} | change
    with refusal(match, error):
        federated.MatrixFactorizationQuery(
            arguments.pop("plan"), arguments.pop("record_specs"), **arguments
        )


def test_no_digit_of_a_float64_sum_is_finer_than_the_noise():
    """Noise in float32 has no digits below its rounding, and would not hide those of the sum."""

    def released(victim):
        query = make_query(tf.TensorSpec([4], tf.float64), noise_seed=3)
        state = query.initial_global_state()
        sample = add_up(query, np.array([[0.1, 0.2, 0.3, 0.4], victim]))
        return query.get_noised_result(sample, state)[0].numpy()

    result = released([1e-9, 3e-10, -2e-10, 1e-10])
    assert result.dtype == np.float64
    # The result of the division by 1 is a float32 number, whoever took part.
    np.testing.assert_array_equal(result, result.astype(np.float32))
    np.testing.assert_array_equal(result, released([0.0, 0.0, 0.0, 0.0]))
