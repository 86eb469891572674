"""Tasks with a VariableModel or FunctionalModel of TFF, which has its own loss and metrics."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from fedmf.federated.tff import tff
from tests.federated.small_runs import (
    assert_close,
    assert_same_model,
    checked_fingerprint,
    config,
    train,
)
from tests.federated.small_task import LENGTH, small_task
from tests.refusals import refusal

models = tff.learning.models


def spec(named=False):
    x, y = (tf.TensorSpec([None, LENGTH], tf.int32) for _ in range(2))
    return collections.OrderedDict(x=x, y=y) if named else (x, y)


def accuracy():
    return tf.keras.metrics.SparseCategoricalAccuracy("accuracy")


def from_keras(seed):
    return models.from_keras_model(
        small_task().build_model(seed),
        loss=small_task().loss,
        metrics=[accuracy()],
        input_spec=spec(),
    )


class ByHand(models.VariableModel):
    """A VariableModel without Keras, which reports no loss and no number of examples, and takes a
    dict.
    """

    def __init__(self, start):
        self.weights = [tf.Variable(weight) for weight in start]
        self.seen = tf.Variable([0.0, 0.0], trainable=False, name="seen")

    trainable_variables = property(lambda self: self.weights)
    non_trainable_variables = property(lambda self: [])
    local_variables = property(lambda self: [self.seen])
    input_spec = property(lambda self: spec(named=True))

    def logits(self, x):
        return tf.nn.embedding_lookup(self.weights[0], x) @ self.weights[1] + self.weights[2]

    def forward_pass(self, batch_input, training=True):
        logits = self.logits(batch_input["x"])
        y = batch_input["y"]
        is_right = tf.cast(tf.argmax(logits, -1, tf.int32) == y, tf.float32)
        if tf.size(y) == 0:  # AutoGraph rewrites this condition.
            is_right = -is_right
        self.seen.assign_add([tf.reduce_sum(is_right), tf.cast(tf.size(is_right), tf.float32)])
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        return models.BatchOutput(loss, logits, tf.shape(y)[0])

    @tf.function
    def predict_on_batch(self, batch_input, training=True):
        return self.logits(batch_input)

    def report_local_unfinalized_metrics(self):
        return collections.OrderedDict(
            accuracy=self.seen.read_value(), counts=self.seen.read_value()
        )

    def metric_finalizers(self):
        return collections.OrderedDict(
            accuracy=tf.function(lambda s: s[0] / s[1]), counts=tf.function(lambda s: s)
        )

    @tf.function
    def reset_metrics(self):
        self.seen.assign([0.0, 0.0])


def functional(seed):
    @tf.function
    def predict(weights, x, training):
        (table, dense_weights), _ = weights
        return (
            tf.nn.embedding_lookup(table, x) @ dense_weights["1 kernel"] + dense_weights["2 bias"]
        )

    # The loss is of the whole batch, as in TFF's example.
    def loss(output, label, sample_weight=None):
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(label, output))

    table, kernel, bias = small_task().build_model(seed).get_weights()
    return models.FunctionalModel(
        initial_weights=((table, {"1 kernel": kernel, "2 bias": bias}), ()),
        predict_on_batch_fn=predict,
        loss_fn=loss,
        metrics_fns=tff.learning.metrics.create_functional_metric_fns(
            collections.OrderedDict(accuracy=accuracy)
        ),
        input_spec=spec(),
    )


def task_of(build_model):
    return small_task(build_model=build_model, loss=None, metrics=None)


def by_hand(model=ByHand):
    """Returns a task whose model TFF builds in a graph, where Keras has no values."""
    starts = {seed: small_task().build_model(seed).get_weights() for seed in (0, 3)}
    return task_of(lambda seed: model(starts[seed]))


def functional_task():
    models_by_seed = {seed: functional(seed) for seed in (0, 3)}
    return task_of(models_by_seed.__getitem__)


TASKS = {
    "from_keras_model": lambda: task_of(from_keras),
    "by hand": by_hand,
    "functional": functional_task,
}


SETTINGS = {"client_epochs": 2, "client_momentum": 0.5}
METRICS = ("accuracy", "loss")


def metrics_of(run):
    """Returns the metrics of the result, and means over clients."""
    fine_tuned_loss = run.evaluate_fine_tuned(1)["metrics"]["loss"]
    result = run.result
    return {
        "clients": run.evaluate_clients()["mean"],
        **{when: fine_tuned_loss[when]["mean"] for when in ("before", "after")},
        **{f"{split} {n}": result[split][n] for split in ("validation", "test") for n in METRICS},
    }


@pytest.fixture(scope="module")
def keras(tmp_path_factory):
    run = train(tmp_path_factory.mktemp("keras") / "run", config(**SETTINGS))
    return run, metrics_of(run)


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, "fast") for name in TASKS), ("by hand", "tff")],
)
@pytest.mark.slow
def test_a_tff_model_trains_as_its_keras_model(name, kind, keras, tmp_path):
    run = train(tmp_path / kind, config(kind, **SETTINGS), TASKS[name]())
    assert_same_model([keras[0], run], small_task().build_model(3).get_weights())
    assert run.plan["task"]["headline_metric"] == "accuracy"
    with refusal("Model of TFF"):
        run.model()
    if kind == "fast":
        assert metrics_of(run) == pytest.approx(keras[1], rel=1e-4)


class Remembers(ByHand):
    """A model whose loss depends on earlier batches, also of other clients."""

    def forward_pass(self, batch_input, training=True):
        output = super().forward_pass(batch_input, training)
        return output._replace(loss=output.loss * (1 + self.seen[0]))


@pytest.mark.usefixtures("clients_in_turn")
@pytest.mark.slow
def test_variables_carry_no_data_from_client_to_client(tmp_path):
    """Without noise a client's update is the same, whichever clients came before."""
    start = small_task().build_model(3).get_weights()

    def sum_of(clients):
        no_noise = {
            "rounds": 1,
            "min_sep": 1,
            "family": "none",
            "noise_multiplier": None,
            "clip_norm": 100.0,
        }
        settings = config(cohort_size=len(clients), client_learning_rate=0.1, **no_noise)
        some_task = dataclasses.replace(
            by_hand(Remembers), client_ids=[f"client {i}" for i in clients]
        )
        run = train(tmp_path / repr(clients), settings, some_task)
        return [
            len(clients) * (weight - start_weight)
            for weight, start_weight in zip(run.weights, start, strict=True)
        ]

    sum_of_both = sum_of([3, 4])
    first_sum = sum_of([3])
    second_sum = sum_of([4])
    assert all(np.abs(total).max() > 1e-3 for total in sum_of_both)
    assert_close(sum_of_both, map(np.add, first_sum, second_sum), rtol=1e-4, atol=1e-6)


class Hidden(Remembers):
    """A model that keeps its inputs in a variable that it does not list."""

    local_variables = property(lambda self: [])


def with_dropout(seed):
    layers = [*small_task().build_model(seed).layers, tf.keras.layers.Dropout(0.5)]
    model = tf.keras.Sequential([tf.keras.Input((LENGTH,), dtype=tf.int32), *layers])
    return models.from_keras_model(model, loss=small_task().loss, input_spec=spec())


def made_by_keras(seed):
    model = small_task().build_model(seed)
    loss = small_task().loss
    return models.functional_model_from_keras(model, loss, spec())


@pytest.mark.parametrize(
    ("task", "match"),
    [
        (lambda: by_hand(Hidden), "VariableModel that uses the variables seen:0"),
        (lambda: task_of(with_dropout), "draws random numbers in training"),
        (lambda: small_task(loss=None), "only one of loss and metrics"),
        (lambda: small_task(build_model=from_keras), "brings its own"),
        (lambda: task_of(small_task().build_model), "neither loss nor metrics"),
        (lambda: task_of(lambda seed: []), "gives a list"),
        (lambda: task_of(made_by_keras), "functional_model_from_keras"),
    ],
)
def test_tasks_that_do_not_fit_a_tff_model_are_refused(task, match):
    with refusal(f"(?s){match}", (TypeError, ValueError)):
        checked_fingerprint(task(), config())
