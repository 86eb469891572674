"""A trained run: its weights, model, metrics, and files for Keras."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

import fedmf
from fedmf import federated
from fedmf.training.examples import NotFinite
from tests.federated.small_runs import Crash, broken_off, config, small_task, train
from tests.refusals import refusal


def read(folder, task=None):
    return federated.TrainedRun.of(fedmf.Run.load(folder), task or small_task())


def test_the_model_has_the_run_s_weights_and_metrics(whole_run):
    model = whole_run.model()
    for weight, variable in zip(whole_run.weights, model.trainable_variables, strict=True):
        np.testing.assert_array_equal(weight, variable.numpy())
    assert whole_run.evaluate("test") == whole_run.result["test"]
    x, y = small_task().split("test")
    assert whole_run.evaluate("test")["accuracy"] == pytest.approx(
        (model(x).numpy().argmax(-1) == y).mean()
    )


def test_clients_are_evaluated_one_by_one(whole_run):
    """A client without examples and one whose examples are NaN are left out."""

    def examples(client_id):
        if client_id == "client 3":
            raise NotFinite("NaN")
        return small_task().client_examples(client_id)

    task = small_task(client_examples=examples)
    model = whole_run.model()
    client_examples = [
        small_task().examples_of(client) for client in task.client_ids if client[-2:] != " 3"
    ]
    accuracies = [(model(x).numpy().argmax(-1) == y).mean() for x, y in client_examples if len(y)]
    result = read(whole_run.path, task).evaluate_clients()
    counts = [result[f"clients{kind}"] for kind in ("", "_undefined", "_without_examples")]
    assert counts == [len(accuracies), 1, 11 - len(accuracies)]
    assert len(accuracies) < 11
    assert result["mean"] == pytest.approx(np.mean(accuracies))
    assert result["deciles"][4] == pytest.approx(np.median(accuracies))
    assert len(result["deciles"]) == 9


def test_clients_with_infinite_metrics_are_counted_separately(whole_run, monkeypatch):
    """The loss is undefined on one client's examples, and infinite on the other clients' for large
    weights.
    """

    def examples(client_id):
        x, y = small_task().client_examples(client_id)
        label = 1 if client_id == "client 3" else 0
        return x, np.full_like(y, label)

    def loss(labels, outputs, weights):
        is_undefined = tf.reduce_all(labels == 1)
        is_large = tf.reduce_max(tf.abs(outputs)) > 1e6
        large = tf.where(is_large, tf.constant(math.inf), 1.0)
        return tf.where(is_undefined, tf.constant(math.nan), large)

    task = small_task(client_examples=examples, loss=loss, headline_metric="loss")
    run = read(whole_run.path, task)

    def evaluated(factor):
        weights = [weight * factor for weight in whole_run.weights]
        monkeypatch.setattr(federated.TrainedRun, "weights", weights)
        return run.evaluate_clients()

    sound = evaluated(1.0)
    assert (sound["clients_undefined"], sound["clients_not_finite"]) == (1, 0)
    with refusal(f"not finite on the examples of {sound['clients']} of 12 clients"):
        evaluated(1e12)


@pytest.mark.parametrize("execution", ["fast", pytest.param("tff", marks=pytest.mark.slow)])
def test_an_unfinished_run_has_the_weights_of_its_newest_round(tmp_path, execution):
    unfinished_run = read(broken_off(tmp_path, 4, config(execution)))
    assert unfinished_run.num_rounds() == 4
    # Both validations are after the same round.
    assert unfinished_run.evaluate("validation") == unfinished_run.metrics[3]["validation"]


def test_a_run_without_a_round_or_of_another_model_is_refused(whole_run, tmp_path):

    def crash():
        raise Crash

    with pytest.raises(Crash):
        train(tmp_path, on_start=crash)
    with refusal("no model yet"):
        _ = read(tmp_path).weights
    other_task = dataclasses.replace(
        small_task(), build_model=lambda seed: tf.keras.Sequential([tf.keras.Input((5,))])
    )
    with refusal("use the task that the run was trained on"):
        read(whole_run.path, other_task).model()


@pytest.mark.slow
def test_export_fills_an_empty_folder_and_leaves_nothing_beside_it(whole_run, tmp_path):
    """test_initial_model.py starts from an exported file; tests/cli has the refusals."""
    (tmp_path / "model").mkdir()
    whole_run.export(tmp_path / "model")
    x, _ = small_task().split("test")
    loaded_model = tf.keras.models.load_model(tmp_path / "model")
    np.testing.assert_array_equal(loaded_model(x), whole_run.model()(x))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
