"""Per-example DP-SGD with correlated noise in Keras: every step adds its own row, and an example moves a step by its share."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

import fedmf
from fedmf import federated
from tests.federated.plans import noise_of_sums, plan_of

pytestmark = pytest.mark.tensorflow

LEGACY = tf.keras.optimizers.legacy
EACH = tf.keras.losses.MeanSquaredError(reduction=tf.keras.losses.Reduction.NONE)
FEATURES, BATCH, STEPS = 3, 4, 6


def make_plan(rounds=STEPS, **changes):
    epochs = fedmf.Participation(rounds=rounds, schema="fixed_epoch", min_sep=3, max_participations=rounds // 3)
    return plan_of(fedmf.fit(fedmf.prefix_sum(rounds), epochs, family="banded"), participation=epochs, **changes)


def make_model(trainable=True):
    """A second layer that is not trainable leaves the first one's weights, whose gradients are those of `without_gradients`."""
    dense = tf.keras.layers.Dense(2, use_bias=False, kernel_initializer="zeros", input_shape=[FEATURES])
    return tf.keras.Sequential([dense, tf.keras.layers.Dense(1, kernel_initializer="ones", trainable=trainable)])


def optimizer_of(model, plan=None, **options):
    values = {"batch_size": BATCH, "noise_seed": 5, "learning_rate": 1.0}
    return federated.keras_optimizer(plan or make_plan(), model.trainable_variables, **(values | options))


class Weights(tf.keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.seen = [self.flat()]

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(self.flat())

    def flat(self):
        return np.concatenate([np.ravel(w) for w in self.model.get_weights()])


def fit(model, optimizer, x, y, epochs=2, **options):
    weights = Weights()
    model.compile(optimizer, EACH, **options)
    model.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0, callbacks=[weights])
    return np.array(weights.seen)


def without_gradients(count):
    """The first layer's inputs are 0, and the second one's error is 0."""
    return np.zeros([count, FEATURES], np.float32), np.zeros([count, 1], np.float32)


def compiled_model(*, extra=(), plan=None, **options):
    model = tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=[FEATURES]), *extra, tf.keras.layers.Dense(1)])
    model.compile(optimizer_of(model, plan), EACH, **options)
    return model


@pytest.mark.parametrize("eagerly", [False, True])
def test_every_step_of_fit_adds_its_own_row_of_the_plan(eagerly):
    model, size = make_model(trainable=False), 2 * FEATURES
    optimizer = optimizer_of(model)
    # Three steps an epoch, the last one of half a batch, which is divided by the same number.
    seen = fit(model, optimizer, *without_gradients(10), run_eagerly=eagerly)[:, :size]
    expected = noise_of_sums(make_plan(), size, 5) / BATCH
    np.testing.assert_allclose(-np.diff(seen, axis=0), expected, rtol=0, atol=1e-5)
    metrics = optimizer.metrics()
    assert [metrics[name] for name in ("rounds_done", "clients", "clip_fraction", "zeroed")] == [STEPS, 2, 0.0, 0]


def test_each_example_moves_a_step_by_at_most_its_share():
    model = make_model()
    optimizer = optimizer_of(model, make_plan(noise_multiplier=0.0), zeroing_norm=1e6)
    x, y = without_gradients(3)
    y[:, 0] = [1e3, 1e-2, 1e9]  # gradients -2e3, -2e-2 and, zeroed, -2e9 in the last bias alone
    seen = fit(model, optimizer, x, y, epochs=1)
    np.testing.assert_allclose(seen[1] - seen[0], [0] * 8 + [(0.5 + 0.02) / BATCH], rtol=1e-5, atol=1e-7)
    assert optimizer.metrics()["zeroed"] == 1
    assert optimizer.metrics()["clip_fraction"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("eagerly", [False, True])
def test_a_larger_batch_than_planned_is_refused(eagerly):
    """With it an example would come back after fewer steps; the plan cannot see how many examples there are."""
    model = compiled_model(run_eagerly=eagerly)
    model.fit(*without_gradients(BATCH), batch_size=BATCH, verbose=0)
    before = model.get_weights()
    with pytest.raises(tf.errors.InvalidArgumentError, match="more examples than batch_size=4"):
        model.fit(*without_gradients(BATCH + 1), batch_size=2 * BATCH, verbose=0)
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_gradients_that_are_neither_clipped_nor_noised_are_refused_every_time():
    model, (x, y) = compiled_model(), without_gradients(BATCH)
    optimizer, variables = model.optimizer, model.trainable_variables

    def step(private):
        with tf.GradientTape(persistent=True) as tape:
            losses = EACH(y + 1, model(x))
        if private:
            optimizer.minimize(losses, variables, tape=tape)
            return
        gradients = tape.gradient(losses, variables)
        with pytest.raises(ValueError, match="neither clipped nor noised: call optimizer.minimize"):
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

    for private in (False, True, False, True, False):
        before = model.get_weights()
        step(private)
        assert any((a != b).any() for a, b in zip(before, model.get_weights(), strict=True)) == private
    assert optimizer.metrics()["rounds_done"] == 2
    with pytest.raises(ValueError, match="neither clipped nor noised"):
        optimizer.apply_gradients([])
    # Those of minimize count once.
    with tf.GradientTape(persistent=True) as tape:
        losses = EACH(y + 1, model(x))
    private = optimizer._compute_gradients(losses, variables, tape=tape)
    optimizer.apply_gradients(private)
    with pytest.raises(ValueError, match="neither clipped nor noised"):
        optimizer.apply_gradients(private)


def test_batch_normalisation_is_refused_where_it_is_seen():
    with pytest.raises(ValueError, match="batch_normalization.*mixes the examples of a batch"):
        compiled_model(extra=[tf.keras.layers.BatchNormalization()])
    hidden = compiled_model(extra=[tf.keras.layers.BatchNormalization(name="scale")])
    with pytest.raises(ValueError, match="scale/AssignMovingAvg.* is a part of batch normalisation"):
        hidden.fit(*without_gradients(BATCH), batch_size=BATCH, verbose=0)
    with pytest.raises(ValueError, match="'scale/moving_mean:0' is a part of batch normalisation"):
        federated.keras_fit(hidden, *without_gradients(12), epochs=1, shuffle_seed=1)
    compiled_model(extra=[tf.keras.layers.LayerNormalization()]).fit(*without_gradients(4), batch_size=4, verbose=0)


def test_keras_fit_follows_the_plan():
    """Every example takes part once in three steps, in the same order in each epoch."""
    model, passed = compiled_model(), {}
    x, y = without_gradients(10)
    x[:, 0] = np.arange(10)
    fit_of_keras = model.fit
    model.fit = lambda x, y, **options: passed.update(x=x, y=y, **options) or fit_of_keras(x, y, **options)
    orders = []
    for _ in range(2):
        federated.keras_fit(model, x, y, epochs=1, shuffle_seed=1, verbose=0)
        orders.append(passed["x"][:, 0].tolist())
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == list(range(10)) != orders[0]
    assert (passed["shuffle"], passed["batch_size"]) == (False, BATCH)
    assert model.optimizer.metrics()["rounds_done"] == 6
    with pytest.raises(ValueError, match="3 times, which the plan does not allow"):
        federated.keras_fit(model, x, y, epochs=1, shuffle_seed=1, verbose=0)


@pytest.mark.parametrize(
    ("examples", "epochs", "allowed"), [(10, 2, True), (12, 2, True), (5, 2, False), (5, 1, True), (10, 3, False)]
)
def test_keras_fit_refuses_what_the_plan_does_not_allow(examples, epochs, allowed):
    """The plan is for two participations, exactly three steps apart."""
    model = compiled_model()
    model.fit = lambda *data, **options: "trained"
    refused = contextlib.nullcontext() if allowed else pytest.raises(ValueError, match="which the plan does not allow")
    with refused:
        assert federated.keras_fit(model, *without_gradients(examples), epochs=epochs, shuffle_seed=1) == "trained"


def test_keras_fit_refuses_what_it_cannot_follow():
    model, data = compiled_model(), without_gradients(12)
    for error, words, options in (
        (TypeError, "shuffle=True: the plan decides", {"shuffle": True}),
        (TypeError, "batch_size=4", {"batch_size": 4}),
        (TypeError, "sample_weight is not shuffled", {"sample_weight": np.ones(3)}),
        (ValueError, "epochs=0", {"epochs": 0}),
        (ValueError, "shuffle_seed=-1", {"shuffle_seed": -1}),
    ):
        with pytest.raises(error, match=words):
            federated.keras_fit(model, *data, **({"epochs": 1, "shuffle_seed": 1} | options))
    with pytest.raises(ValueError, match=r"x and y have \[8, 12\] examples"):
        federated.keras_fit(model, data[0], data[1][:8], epochs=1, shuffle_seed=1)
    sampling = fedmf.CyclicPoisson(population=120, cohort_size=BATCH)
    every = fedmf.Participation(rounds=STEPS, schema="every_round")
    identity = fedmf.fit(fedmf.prefix_sum(STEPS), every, family="identity")
    sampled = fedmf.calibrate(identity, every, epsilon=8.0, delta=1e-6, sampling=sampling)
    with pytest.raises(ValueError, match="fixed order: use a plan without sampling"):
        federated.keras_fit(compiled_model(plan=sampled), *data, epochs=1, shuffle_seed=1)
    model.compile("sgd", EACH)
    with pytest.raises(TypeError, match="compile it with federated.keras_optimizer"):
        federated.keras_fit(model, *data, epochs=1, shuffle_seed=1)


def test_compiled_by_xla_it_trains_and_a_larger_batch_gives_nan():
    """XLA has no norm of TensorFlow's on CPU, and drops checks: what one would have stopped is NaN."""
    model = compiled_model(jit_compile=True)
    model.fit(*without_gradients(BATCH), batch_size=BATCH, verbose=0)
    assert all(np.isfinite(w).all() for w in model.get_weights())
    assert model.optimizer.metrics()["rounds_done"] == 1
    model.fit(*without_gradients(BATCH + 1), batch_size=BATCH + 1, verbose=0)
    assert all(np.isnan(w).all() for w in model.get_weights())


@pytest.mark.slow
def test_a_restored_checkpoint_goes_on_with_the_next_row(tmp_path):
    def train(seed, epochs, restored=None):
        model = make_model(trainable=False)
        optimizer = optimizer_of(model, noise_seed=seed, momentum=0.9)
        checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
        if restored is not None:
            checkpoint.restore(restored)
        return fit(model, optimizer, *without_gradients(12), epochs=epochs), checkpoint

    whole, _ = train(7, 2)
    first, checkpoint = train(7, 1)
    # The seed of the new optimiser does not matter: the key is in the checkpoint, also of a seed that nobody knows.
    second, _ = train("os", 1, restored=checkpoint.save(str(tmp_path / "state")))
    np.testing.assert_array_equal(np.concatenate([first, second[1:]]), whole)


@pytest.mark.slow
def test_adam_trains_and_stops_after_the_last_round():
    model = make_model()
    x = np.random.default_rng(0).standard_normal([12, FEATURES]).astype(np.float32)
    y = x @ np.array([[1.0], [-2.0], [0.5]], np.float32)
    plan = make_plan(rounds=60, noise_multiplier=1e-3, clip_norm=10.0)
    optimizer = optimizer_of(model, plan, noise_seed="os", optimizer_class=LEGACY.Adam, learning_rate=0.1)
    fit(model, optimizer, x, y, epochs=20)
    assert np.mean((model.predict(x, verbose=0) - y) ** 2) < 0.1 * np.mean(y**2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="planned for rounds=60"):
        fit(model, optimizer, x, y, epochs=1)


@pytest.mark.slow
def test_what_is_published_does_not_hold_the_key(tmp_path):
    model = make_model()
    optimizer = optimizer_of(model)
    fit(model, optimizer, *without_gradients(4), epochs=1)
    for name in ("model.keras", "model.h5"):
        with pytest.raises(NotImplementedError, match="would hold the key of its noise"):
            model.save(tmp_path / name)
    key = optimizer._global_state.noise.key.numpy()
    model.save(tmp_path / "whole.h5", include_optimizer=False)
    model.save_weights(tmp_path / "weights.h5")
    model.save_weights(tmp_path / "with_the_optimiser")
    # The control: a checkpoint of TensorFlow's does hold it.
    found = {path.name: key.tobytes() in path.read_bytes() for path in tmp_path.iterdir()}
    assert [name for name, holds in found.items() if holds] == ["with_the_optimiser.data-00000-of-00001"]


@pytest.mark.parametrize(
    ("error", "words", "options"),
    [
        (ValueError, "batch_size=0", {"batch_size": 0}),
        (TypeError, "optimizer_class=.*legacy", {"optimizer_class": tf.keras.optimizers.SGD}),
        (TypeError, "num_microbatches=2", {"num_microbatches": 2}),
        (TypeError, "noise_strategy='precomputed'", {"noise_strategy": "precomputed"}),
    ],
)
def test_refusals_say_what_to_do(error, words, options):
    with pytest.raises(error, match=words):
        optimizer_of(make_model(), **options)


def test_devices_and_losses_that_cannot_work_are_refused():
    model = make_model()
    with (
        tf.distribute.MirroredStrategy(["/cpu:0"]).scope(),
        pytest.raises(ValueError, match="strategies are not supported"),
    ):
        optimizer_of(model)
    model.compile(optimizer_of(model), tf.keras.losses.MeanSquaredError())
    with pytest.raises(ValueError, match="Reduction.NONE"):
        model.fit(*without_gradients(4), verbose=0)


@pytest.fixture
def policy(request):
    before = tf.keras.mixed_precision.global_policy()
    tf.keras.mixed_precision.set_global_policy(request.param)
    yield
    tf.keras.mixed_precision.set_global_policy(before)


@pytest.mark.parametrize(("policy", "wrapped"), [("mixed_float16", False), ("float32", True)], indirect=["policy"])
def test_mixed_precision_that_scales_the_loss_is_refused(policy, wrapped):
    """Keras would scale the clipped gradient down by as much as the loss was scaled up, and the model would stand still."""
    model = make_model()
    optimizer = optimizer_of(model)
    model.compile(tf.keras.mixed_precision.LossScaleOptimizer(optimizer) if wrapped else optimizer, EACH)
    with pytest.raises(ValueError, match="loss scaling, as of the mixed_float16 policy, is not supported"):
        model.fit(*without_gradients(BATCH), batch_size=BATCH, verbose=0)


@pytest.mark.parametrize("policy", ["mixed_bfloat16"], indirect=True)
def test_mixed_precision_without_scaling_trains(policy):
    model = make_model()
    seen = fit(model, optimizer_of(model), *without_gradients(BATCH), epochs=1)
    assert np.abs(np.diff(seen, axis=0)).max() > 0.01
