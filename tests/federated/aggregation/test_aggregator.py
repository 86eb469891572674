"""The aggregator inside TFF's own processes."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fedmf
from fedmf import federated
from fedmf.federated.noise.source import gaussian_source
from fedmf.mechanisms import IdentityMechanism
from tests.mechanisms.registry import every_form

pytestmark = pytest.mark.tensorflow

TYPE = tff.to_type(collections.OrderedDict(w=tff.TensorType(np.float32, [2, 3]), b=tff.TensorType(np.float32, [])))
ZERO = collections.OrderedDict(w=np.zeros([2, 3], np.float32), b=np.float32(0))
SIZE = 7


def make_plan(mechanism, noise_multiplier=0.7, clip_norm=0.5):
    rounds = mechanism.rounds
    participation = fedmf.Participation(rounds=rounds, schema="min_sep", min_sep=min(3, rounds))
    return fedmf.Plan(
        mechanism=mechanism,
        participation=participation,
        noise_multiplier=noise_multiplier,
        clip_norm=clip_norm,
        delta=1e-6,
    )


def flat(result):
    return np.concatenate([np.ravel(leaf) for leaf in tf.nest.flatten(result)])


def run(process, rounds, updates=(ZERO, ZERO), state=None):
    state = process.initialize() if state is None else state
    rows = []
    for _ in range(rounds):
        output = process.next(state, list(updates))
        state = output.state
        rows.append(flat(output.result))
    return np.array(rows), state


@every_form
def test_zero_updates_come_out_as_the_plans_noise_row_for_row(build):
    rounds, clients = 35, 4
    mechanism = build(rounds)
    plan = make_plan(mechanism)
    process = federated.dp_aggregator(plan, clients_per_round=clients, noise_seed=11).create(TYPE)
    out, _ = run(process, rounds)
    N, draw = mechanism.stream().causal().as_contraction().contraction, gaussian_source(11, SIZE)
    Z = plan.noise_multiplier * plan.sensitivity.value * plan.clip_norm
    Z = Z * np.stack([draw(i).numpy() for i in range(N.shape[1])]).astype(np.float64)
    scale = np.abs(N).sum(axis=1).max() * np.abs(Z).max() / clients
    np.testing.assert_allclose(out, N @ Z / clients, rtol=0, atol=1e-6 * scale)


def test_as_a_weighted_factory_every_client_has_the_same_weight():
    plan = make_plan(IdentityMechanism(rounds=2))
    factory = lambda: federated.dp_aggregator(plan, clients_per_round=2, noise_seed=2)  # noqa: E731
    updates = [collections.OrderedDict(w=np.full([2, 3], x, np.float32), b=np.float32(0)) for x in (0.01, 0.05)]
    expected = factory().create(TYPE)
    expected = expected.next(expected.initialize(), updates).result
    weighted = tff.aggregators.as_weighted_aggregator(factory()).create(TYPE, tff.to_type(np.float32))
    found = weighted.next(weighted.initialize(), updates, [np.float32(1), np.float32(100)]).result
    np.testing.assert_array_equal(flat(found), flat(expected))


def test_resumed_process_gives_the_same_noise():
    plan = make_plan(fedmf.fit(fedmf.prefix_sum(35), fedmf.Participation(rounds=35, schema="single"), family="tree"))
    make = lambda: federated.dp_aggregator(plan, clients_per_round=1, noise_seed=2).create(TYPE)  # noqa: E731
    whole, _ = run(make(), 35)
    first, state = run(make(), 33)
    kept = tf.nest.map_structure(np.array, state)
    rest, _ = run(make(), 2, state=kept)
    np.testing.assert_array_equal(np.concatenate([first, rest]), whole)


def test_clips_zeroes_sums_and_divides_by_the_fixed_number():
    plan = make_plan(IdentityMechanism(rounds=2), 0.0)
    process = federated.dp_aggregator(plan, clients_per_round=10, noise_seed=2).create(TYPE)

    def update(value):
        return collections.OrderedDict(w=np.zeros([2, 3], np.float32), b=np.float32(value))

    out, _ = run(process, 1, [update(v) for v in (0.25, 3.0, 99.0, 101.0, np.nan, -np.inf)])
    assert out[0, :6].tolist() == [0] * 6 or out[0, 1:].tolist() == [0] * 6
    assert np.abs(out[0]).max() == pytest.approx((0.25 + 0.5 + 0.5) / 10, rel=3e-6)


def test_a_simulated_cohort_scales_the_noise_and_nothing_else():
    mechanism = IdentityMechanism(rounds=3)
    plan = make_plan(mechanism)
    simulated = plan.simulating(simulated=4, claimed=40)
    whole, _ = run(federated.dp_aggregator(plan, clients_per_round=40, noise_seed=1).create(TYPE), 3)
    small, _ = run(federated.dp_aggregator(simulated, clients_per_round=4, noise_seed=1).create(TYPE), 3)
    np.testing.assert_allclose(small, whole, rtol=1e-6)
    with pytest.raises(ValueError, match="clients_per_round=5 but the plan simulates 4"):
        federated.dp_aggregator(simulated, clients_per_round=5, noise_seed=1)


def keras_model_fn():
    inputs = tf.keras.Input([2])
    outputs = tf.keras.layers.Dense(1, kernel_initializer="zeros")(inputs)
    return tff.learning.models.from_keras_model(
        tf.keras.Model(inputs, outputs),
        loss=tf.keras.losses.MeanSquaredError(),
        input_spec=(tf.TensorSpec([None, 2]), tf.TensorSpec([None, 1])),
    )


def client_data(seed):
    x = np.random.default_rng(seed).normal(size=(8, 2)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x @ np.array([[1.0], [-2.0]], np.float32))).batch(4)


def fed_avg(noise_multiplier):
    mechanism = fedmf.fit(
        fedmf.prefix_sum(30), fedmf.Participation(rounds=30, schema="min_sep", min_sep=3), family="banded"
    )
    plan = make_plan(mechanism, noise_multiplier, clip_norm=1.0)
    return tff.learning.algorithms.build_unweighted_fed_avg(
        model_fn=keras_model_fn,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
        model_aggregator=federated.dp_aggregator(plan, clients_per_round=3, noise_seed=4),
    )


def test_inside_build_unweighted_fed_avg_unchanged():
    process = fed_avg(0.0)
    state = process.initialize()
    losses = []
    for _ in range(20):
        output = process.next(state, [client_data(i) for i in range(3)])
        state = output.state
        losses.append(float(output.metrics["client_work"]["train"]["loss"]))
    assert losses[-1] < 0.05 * losses[0]
    metrics = output.metrics["aggregator"]["dp_query_metrics"]
    assert set(metrics) == {"rounds_done", "noise_stddev", "clients", "clip_fraction", "zeroed"}
    assert (metrics["rounds_done"], metrics["clients"]) == (20, 3)

    noisy = fed_avg(1.0)
    first = noisy.next(noisy.initialize(), [client_data(i) for i in range(3)])
    clean = process.next(process.initialize(), [client_data(i) for i in range(3)])
    noise = [flat(p.get_model_weights(o.state).trainable) for p, o in ((noisy, first), (process, clean))]
    expected = gaussian_source(4, 3)(0).numpy()
    # Round 0 of a banded mechanism is z_0 / C[0, 0]; the sum is the plan's, whatever the model.
    ratio = (noise[0] - noise[1]) / expected
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_results_have_the_dtypes_and_shapes_of_the_updates(dtype):
    plan = make_plan(IdentityMechanism(rounds=2), 0.0)
    kind = tf.as_dtype(dtype).as_numpy_dtype
    value_type = tff.to_type([(kind, [3]), (np.float32, []), (kind, [2, 0])])
    process = federated.dp_aggregator(plan, clients_per_round=1, noise_seed=1).create(value_type)
    assert process.next.type_signature.result.result.member == value_type
    out = process.next(
        process.initialize(), [[np.array([3, 4, 0], kind), np.float32(0), np.zeros([2, 0], kind)]]
    ).result
    np.testing.assert_allclose(np.asarray(out[0], np.float64), [0.3, 0.4, 0], rtol=2.0**-8)
    assert [np.shape(leaf) for leaf in out] == [(3,), (), (2, 0)]


@pytest.mark.parametrize("noise_seed", ["os", 3])
def test_each_process_of_a_factory_has_noise_of_its_own_and_the_key_in_its_state(noise_seed):
    """Two parts of one model with the same noise would give away the difference of their updates."""
    plan = make_plan(IdentityMechanism(rounds=4))
    make = lambda: federated.dp_aggregator(plan, clients_per_round=1, noise_seed=noise_seed)  # noqa: E731
    factory = make()
    one, other = factory.create(TYPE), factory.create(TYPE)
    first, state = run(one, 2)
    assert not np.isclose(first, run(other, 2)[0]).any()
    # Negative control: the first process of another factory has the noise of the seed, where that is a number.
    assert np.array_equal(run(make().create(TYPE), 2)[0], first) == (noise_seed != "os")
    # A restored state goes on with its own key, in whatever process.
    np.testing.assert_array_equal(run(other, 2, state=state)[0], run(one, 2, state=state)[0])


def test_adaptive_norms_are_refused_with_the_reason():
    mechanism = IdentityMechanism(rounds=4)
    adaptive = tff.aggregators.PrivateQuantileEstimationProcess.no_noise(0.1, 0.5, 0.2)
    with pytest.raises(TypeError, match="the guarantee assumes one for the whole run, not an adaptive one"):
        make_plan(mechanism, clip_norm=adaptive)
    with pytest.raises(TypeError, match="which the guarantee does not cover"):
        federated.dp_aggregator(make_plan(mechanism), clients_per_round=2, noise_seed=1, zeroing_norm=adaptive)


def test_refusals_name_the_argument():
    plan = make_plan(IdentityMechanism(rounds=4))
    with pytest.raises(TypeError, match="plan=None must be a fedmf.Plan"):
        federated.dp_aggregator(None, clients_per_round=3, noise_seed=1)
    with pytest.raises(ValueError, match="clients_per_round=0"):
        federated.dp_aggregator(plan, clients_per_round=0, noise_seed=1)
    with pytest.raises(TypeError, match="clients_per_round=2.5"):
        federated.dp_aggregator(plan, clients_per_round=2.5, noise_seed=1)
    with pytest.raises(TypeError, match="noise_seed is a str, not an int") as refused:
        federated.dp_aggregator(plan, clients_per_round=2, noise_seed="8675309")
    assert "8675309" not in str(refused.value)  # a mistyped secret
    with pytest.raises(ValueError, match="noise_seed is negative") as refused:
        federated.dp_aggregator(plan, clients_per_round=2, noise_seed=-8675309)
    assert "8675309" not in str(refused.value)
    with pytest.raises(ValueError, match="zeroing_norm=-1"):
        federated.dp_aggregator(plan, clients_per_round=2, noise_seed=1, zeroing_norm=-1)
