"""A client's update equals that of Keras's `train_on_batch` on the client's examples.

The tests cover models, losses, weights of examples and of classes, and every kind of client work.
"""

import pickle

import cloudpickle
import numpy as np
import pytest
import tensorflow as tf

from fedmf.training.batching import list_batches, order_steps
from fedmf.training.client_data import client_data
from fedmf.training.evaluation import Evaluator
from fedmf.training.examples import ClientData
from fedmf.training.execution.base import RunOptions
from fedmf.training.execution.choice import build_execution
from tests.federated.small_runs import assert_close, config
from tests.federated.small_task import task_of_arrays
from tests.refusals import refusal

layers = tf.keras.layers
losses = tf.keras.losses

BATCH = 4
RATE = 0.05
SIZES = (3, 4, 1, 9)  # One client fills its batch.
OWNERS = np.repeat(np.arange(len(SIZES)), SIZES)
RNG = np.random.default_rng(1)
FEATURES = RNG.normal(size=(len(OWNERS), 5)).astype(np.float32)
LABELS = RNG.integers(0, 3, len(OWNERS))
WORDS = RNG.integers(1, 9, (len(OWNERS), 6)).astype(np.uint8)
PADDED = np.where(np.arange(6) < RNG.integers(2, 7, (len(OWNERS), 1)), WORDS, 0)
NEXT = RNG.integers(0, 3, WORDS.shape)
TABLE = {"z": PADDED, "a": FEATURES}  # The keys are not sorted.
# Some examples do not count, a batch of the third client among them.
WEIGHTS = np.where(OWNERS == 2, 0.0, RNG.choice([0.0, 0.5, 3.0], len(OWNERS), p=[0.2, 0.4, 0.4]))
CLASSES = {0: 1.0, 1: 4.0, 2: 0.25}
SAMPLE = {"sample_weight": WEIGHTS}
BOTH = SAMPLE | {"class_weight": CLASSES}


class BatchMean(layers.Layer):
    """A layer that mixes the rows of a batch, and has a loss of its own."""

    def call(self, x):
        self.add_loss(0.3 * tf.reduce_sum(tf.square(x)))
        return x - tf.reduce_mean(x, axis=0) + tf.reduce_max(x)


class Tripled(losses.Loss):
    """A loss class with a `__call__` of its own, an attribute of its own, and one value for a
    batch.
    """

    def __init__(self):
        super().__init__()
        self.factor = 3.0

    def __call__(self, y_true, y_pred, sample_weight=None):
        return self.factor * super().__call__(y_true, y_pred, sample_weight)

    def call(self, y_true, y_pred):
        return tf.reduce_mean(tf.abs(y_true - y_pred)) + tf.reduce_max(y_pred)


def dense(outputs=3, *middle):
    return tf.keras.Sequential(
        [tf.keras.Input((5,)), layers.Dense(4, "relu"), *middle, layers.Dense(outputs)]
    )


def pooled():
    """Returns a model that divides by the number of words; zeros alone have no gradient."""
    embedding = layers.Embedding(9, 4, mask_zero=True, input_length=6)
    return tf.keras.Sequential([embedding, layers.GlobalAveragePooling1D(), layers.Dense(3)])


def sequences():
    """Returns a model with inputs in a dict, a mask, and a regulariser of activities."""
    word_input = tf.keras.Input((6,), name="z")
    feature_input = tf.keras.Input((5,), name="a")
    regularised = layers.Dense(4, activity_regularizer="l2", kernel_regularizer="l2")(feature_input)
    hidden_layer = layers.Dense(4)(layers.Embedding(9, 4, mask_zero=True)(word_input))
    hidden_layer = layers.Add()([hidden_layer, layers.RepeatVector(6)(regularised)])
    return tf.keras.Model({"z": word_input, "a": feature_input}, layers.Dense(3)(hidden_layer))


def masked():
    return tf.keras.Sequential([layers.Embedding(9, 4, mask_zero=True), layers.Dense(3)])


def two_outputs():
    features = tf.keras.Input((5,))
    return tf.keras.Model(
        features, {"q": layers.Dense(1)(features), "b": layers.Dense(1)(features)}
    )


def crossentropy(**options):
    return losses.SparseCategoricalCrossentropy(from_logits=True, **options)


# Inputs, labels, model, loss, weights.
KINDS = {
    "masked pooling, sum": (WORDS, LABELS, pooled, lambda: crossentropy(reduction="sum"), BOTH),
    "masked": (PADDED, NEXT, masked, crossentropy, SAMPLE),
    "masked, a class ignored": (
        TABLE, NEXT, sequences, lambda: crossentropy(ignore_class=1), SAMPLE
    ),
    "rows mixed, own losses": (FEATURES, LABELS, lambda: dense(3, BatchMean()), crossentropy, {}),
    "own class": (FEATURES, FEATURES[:, 0].astype(np.float64), lambda: dense(1), Tripled, {}),
    "two outputs": (
        FEATURES, {"q": FEATURES[:, 0], "b": FEATURES[:, 1]}, two_outputs, losses.Huber, SAMPLE
    ),
}  # fmt: skip


def task_of(x, y, model, loss, weights, **changes):
    values = {"loss": loss(), "client_ids": OWNERS, "batch_size": BATCH}
    return task_of_arrays(x, y, model, **values | weights | changes)


def settings(execution="fast", **changes):
    """Returns the config of one round without noise, zeroing and clipping.

    The server adds the mean update.
    """
    values = {
        "rounds": 1, "min_sep": 1, "family": "none", "noise_multiplier": None, "zeroing_norm": None,
        "clip_norm": 1e6, "cohort_size": len(SIZES), "client_learning_rate": RATE,
        "client_epochs": 2,
        "server_learning_rate": 1.0, "server_momentum": 0.0, "warmup": 0.0, "cooldown": 0.0,
    }  # fmt: skip
    return config(execution, **values | changes)


def cohort_of(task):
    clients = range(len(task.client_ids))
    return [client_data(task, settings(), 0, client) for client in clients]


def trained_by_keras(x, y, build, loss, weights):
    """Returns the sum of the updates by Keras, and the mean loss with the model's own losses.

    Keras receives the weights of examples and classes as fedmf does.
    """
    # Indices instead of inputs show the order of fedmf's batches.
    order = cohort_of(task_of(np.arange(len(OWNERS)), y, build, loss, {}))
    model = task_of(x, y, build, loss, {}).build_model(3)
    model.compile(tf.keras.optimizers.legacy.SGD(RATE), loss(), run_eagerly=True)
    initial_weights = model.get_weights()
    loss_sum = 0.0
    num_examples = 0
    total = [np.zeros_like(weight) for weight in initial_weights]
    sample_weight = weights.get("sample_weight")
    for client in order:
        model.set_weights(initial_weights)
        for indices, _ in client.epochs:
            for first_row in range(0, len(indices), BATCH):
                rows = indices[first_row : first_row + BATCH]
                batch_weight = None if sample_weight is None else sample_weight[rows]
                value = model.train_on_batch(
                    *tf.nest.map_structure(lambda array, rows=rows: array[rows], (x, y)),
                    sample_weight=batch_weight,
                    class_weight=weights.get("class_weight"),
                )
                loss_sum += np.ravel(value)[0] * len(rows)
                num_examples += len(rows)
        client_weights = zip(total, initial_weights, model.get_weights(), strict=True)
        total = [
            leaf + weight_before - weight_after
            for leaf, weight_before, weight_after in client_weights
        ]
    return total, loss_sum / num_examples


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_clients_train_as_in_keras_one_by_one_and_vectorised(kind, sums_of, vectorized_map_calls):
    """The tolerance 2e-6 is some roundings of float32; updates have entries of 0.001 and more."""
    *_, weights = KINDS[kind]
    task = task_of(*KINDS[kind])
    expected, mean = trained_by_keras(*KINDS[kind])
    assert min(np.abs(keras).max() for keras in expected) > 1e-3
    if weights is BOTH:  # This is the negative control.
        unweighted_sum, _ = trained_by_keras(*KINDS[kind][:-1], {})
        assert (
            max(
                np.abs(array - other_array).max()
                for array, other_array in zip(unweighted_sum, expected, strict=True)
            )
            > 1e-3
        )
    # Workers of a cluster get this task with the examples.
    elsewhere = pickle.loads(cloudpickle.dumps(task.learner.on_workers()))
    for learner, small_model_size in ((task.learner, 0), (elsewhere, 10_000)):
        cohort_sum = sums_of(task, settings(), small_model_size, learner=learner)(cohort_of(task))
        # TensorFlow has no vectorised form of Keras's operations for an ignored class.
        assert bool(vectorized_map_calls) is (small_model_size > 0 and "ignored" not in kind)
        assert int(cohort_sum.zeroed) == 0
        assert_close(cohort_sum.values, expected, atol=2e-6)
        if not task.build_model(3).losses:  # Keras adds these losses to the reported loss.
            assert cohort_sum.loss_sum / cohort_sum.examples == pytest.approx(mean, rel=1e-5)


@pytest.mark.slow
def test_fast_and_tff_train_the_same():
    kind = KINDS["masked, a class ignored"]
    task = task_of(*kind)
    expected, _ = trained_by_keras(*kind)
    # One client has examples that are not finite, and another an update that is not finite.
    (x, y), *_ = cohort_of(task)[0].epochs
    infinite = ClientData([({"z": x["z"], "a": x["a"] * np.float32(1e38)}, y)])
    cohort = [*cohort_of(task), ClientData([]), infinite]
    rows = []
    for name in ("fast", "tff"):
        execution = build_execution(
            task, settings().plan(), settings(name), 9, options=RunOptions()
        )
        start = execution.init()
        row = execution.collect_release(start, cohort[:-1]).statistics
        release = execution.collect_release(start, cohort)
        assert release.statistics["zeroed"] == 2
        state = execution.step(start, release)
        change = map(np.subtract, execution.weights(start), execution.weights(state))
        assert_close(change, [keras / len(SIZES) for keras in expected], atol=1e-6)
        rows.append(row)
    assert rows[0] == pytest.approx(rows[1], rel=1e-5)
    assert (rows[0]["examples"], rows[0]["zeroed"], rows[0]["not_finite"]) == (2 * sum(SIZES), 1, 1)


@pytest.mark.parametrize("kind", ["masked, a class ignored", "own class"])
def test_evaluation_is_that_of_keras(kind):
    """The loss of a user's class depends on the batches, which are those of training."""
    x, y, _, loss, _ = KINDS[kind]
    metrics = tf.keras.metrics
    metric_class = (
        metrics.MeanAbsoluteError if kind == "own class" else metrics.SparseCategoricalAccuracy
    )
    task = task_of(*KINDS[kind], metrics=lambda: [metric_class("accuracy")])
    model = task.build_model(3)
    model.compile(loss=loss(), metrics=[metric_class("accuracy")])
    batch_size = BATCH if kind == "own class" else 256
    expected = model.evaluate(x, y, batch_size=batch_size, verbose=0)
    actual = Evaluator(task, settings())(
        [variable.numpy() for variable in model.trainable_variables], "test"
    )
    assert actual["accuracy"] == pytest.approx(expected[1])
    if not model.losses:  # Keras adds these losses to the reported loss.
        assert actual["loss"] == pytest.approx(expected[0], rel=1e-5)


class OnIndices(losses.Loss):
    """A loss that does not take the second axis that `Model.fit` would add to labels."""

    def call(self, y_true, y_pred):
        return tf.nn.sparse_softmax_cross_entropy_with_logits(y_true, y_pred)


def test_labels_of_tff_s_rank_are_accepted():
    task_of(FEATURES, LABELS, dense, OnIndices, {}).learner.check(
        task_of(FEATURES, LABELS, dense, OnIndices, {}), settings()
    )


@pytest.mark.parametrize(
    ("model", "loss", "match"),
    [
        (dense, lambda: crossentropy(reduction="none"), "reduction is 'none'"),
        (dense, lambda: losses.sparse_categorical_crossentropy, "^loss="),
        (dense, lambda: losses.MeanSquaredError, "^loss="),
        (two_outputs, crossentropy, "different structures"),
    ],
)
def test_weights_and_structures_that_keras_cannot_use_are_refused(model, loss, match):
    with refusal(match, (TypeError, ValueError)):
        task_of(FEATURES, LABELS, model, loss, {}).learner.check(
            task_of(FEATURES, LABELS, model, loss, {}), settings()
        )


def test_clients_of_equal_epochs_need_few_steps():
    """Full batches are trained together, and so are last batches of equal size."""
    cohort = [[(np.zeros(n), np.zeros(n))] * 2 for n in (4, 5, 9, 13)]
    assert order_steps(list_batches(cohort, 4), 4).size.tolist() == [4, 4, 4, 1, 4, 4, 4, 1]
