"""Fine-tuning by client: the training that Keras does by hand, and who is left out."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

from fedmf.federated.examples import NotFinite, count
from fedmf.federated.training.fine_tuning import halves, sample
from tests.federated.small_runs import config, small_task, train
from tests.federated.small_task import task_of_arrays
from tests.refusals import refusal

CLIENTS, WIDTH = 9, 4
# Every update would be clipped, and scaled.
SETTINGS = {
    "rounds": 2, "clip_norm": 1e-3, "client_learning_rate": 0.3, "client_momentum": 0.5,
    "client_batches": 1, "server_optimizer": "scaled-adam",
}  # fmt: skip


def classes_of_clients():
    """The first two clients have one class each, the third has an example."""
    rng = np.random.default_rng(1)
    owner = np.repeat(np.arange(CLIENTS), [7, 8, 1, 6, 7, 8, 9, 10, 11])
    x = rng.normal(size=(len(owner), WIDTH)).astype(np.float32)
    y = (x @ rng.normal(size=WIDTH) + rng.normal(size=CLIENTS)[owner] > 0).astype(np.int32)
    y[owner < 2] = owner[owner < 2]
    return task_of_arrays(
        x, y,
        lambda: tf.keras.Sequential(
            [tf.keras.Input((WIDTH,)), tf.keras.layers.Dense(1, activation="sigmoid")]
        ),
        client_ids=owner, loss=tf.keras.losses.BinaryCrossentropy(),
        metrics=lambda: [
            tf.keras.metrics.BinaryAccuracy("accuracy"), tf.keras.metrics.AUC(name="auc")
        ],
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs") / "run", config(**SETTINGS), classes_of_clients())


def divided(run, epochs):
    """(epochs, other half) of the clients with two examples at least."""
    settings = dataclasses.replace(run.config, client_epochs=epochs, client_batches=None)
    pairs = [halves(run.task, settings, client_id) for client_id in run.task.client_ids]
    return [(epochs, other) for epochs, other in pairs if count(other)]


def losses_by_hand(run, pairs, strength=0.0):
    """Mean losses before and after training in Keras."""
    loss, found = tf.keras.losses.BinaryCrossentropy(), []
    for epochs, (x, y) in pairs:
        model = run.model()
        first = [tf.constant(v) for v in model.trainable_variables]
        before = float(loss(y[:, None], model(x)))
        optimizer = tf.keras.optimizers.SGD(
            run.config.client_learning_rate, run.config.client_momentum
        )
        size = run.task.batch_size
        for xs, ys in epochs:
            for rows in (slice(start, start + size) for start in range(0, len(ys), size)):
                with tf.GradientTape() as tape:
                    distance = sum(
                        tf.reduce_sum((v - s) ** 2)
                        for v, s in zip(model.trainable_variables, first, strict=True)
                    )
                    total = loss(ys[rows, None], model(xs[rows])) + strength / 2 * distance
                gradients = tape.gradient(total, model.trainable_variables)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        found.append((before, float(loss(y[:, None], model(x)))))
    return np.array(found)


@pytest.mark.slow
def test_the_clients_train_as_in_keras(run):
    """With Ditto's objective, and two epochs; clipped, nothing would change."""
    pairs, strength = divided(run, 2), 2.0
    found = run.evaluate_fine_tuned(2, proximal_strength=strength)["metrics"]["loss"]
    expected = losses_by_hand(run, pairs, strength)
    assert np.abs(expected[:, 1] - expected[:, 0]).mean() > 0.02
    columns = {"before": expected[:, 0], "after": expected[:, 1]}
    columns["change"] = columns["after"] - columns["before"]
    for name, values in columns.items():
        assert found[name]["mean"] == pytest.approx(values.mean(), rel=1e-4)
        deciles = np.quantile(values, np.arange(1, 10) / 10)
        np.testing.assert_allclose(found[name]["deciles"], deciles, rtol=1e-4, atol=1e-6)
    # Controls: without the term, and without the last epoch.
    for epochs, term in ((2, 0.0), (1, strength)):
        other = losses_by_hand(run, [(each[:epochs], rest) for each, rest in pairs], term)
        assert found["after"]["mean"] != pytest.approx(other[:, 1].mean(), rel=1e-3)


def test_halves_are_disjoint_and_follow_from_the_seed_and_the_id(run):
    task, settings = run.task, dataclasses.replace(run.config, client_epochs=2, client_batches=None)

    def rows(array):
        return [tuple(row) for row in array]

    for client_id in task.client_ids:
        epochs, (other, _) = halves(task, settings, client_id)
        trained = rows(epochs[0][0])
        assert sorted(rows(epochs[1][0])) == sorted(trained)
        assert len(trained) - len(other) in (0, 1)
        assert sorted(trained + rows(other)) == sorted(rows(task.examples_of(client_id)[0]))
    last = task.client_ids[-1]
    shuffled = dataclasses.replace(task, client_ids=task.client_ids[::-1])
    again = halves(shuffled, settings, last)
    np.testing.assert_equal(again, halves(task, settings, last))
    # 11 examples have 462 pairs of halves: 5 seeds have the same with probability 462^-4.
    seeds = [dataclasses.replace(settings, seed=seed) for seed in range(5)]
    assert len({tuple(rows(halves(task, each, last)[1][0])) for each in seeds}) > 1


def test_metrics_that_are_undefined_are_left_out_and_counted(run):
    found = run.evaluate_fine_tuned(1)
    pairs = divided(run, 1)
    both = sum(len(set(y)) == 2 for _, (_, y) in pairs)
    assert 0 < both <= len(pairs) - 2
    auc, accuracy = found["metrics"]["auc"], found["metrics"]["accuracy"]
    assert (auc["clients"], auc["clients_undefined"]) == (both, len(pairs) - both)
    assert (accuracy["clients"], accuracy["clients_undefined"]) == (CLIENTS - 1, 0)
    assert (found["clients"], found["population"]) == (CLIENTS - 1, CLIENTS)
    assert found["left_out"]["too_few_examples"] == 1


def test_a_metric_that_is_defined_nowhere_has_no_mean(run):
    x, y = run.task.split("test")
    task = task_of_arrays(
        x, y, lambda: run.task.build_model(0), client_ids=y,
        loss=run.task.loss, metrics=run.task.metrics,
    )  # fmt: skip
    found = dataclasses.replace(run, task=task).evaluate_fine_tuned(1)["metrics"]["auc"]
    assert found == {"clients": 0, "clients_undefined": 2}


def test_clients_that_are_not_finite_are_left_out_and_counted(run):
    ids = run.task.client_ids

    def examples(client_id):
        if client_id == ids[0]:
            raise NotFinite("NaN")
        x, y = run.task.client_examples(client_id)
        return x, np.full_like(y, 2) if client_id == ids[1] else y

    def loss(labels, outputs, weights):
        """NaN where there is a label 2."""
        likelihood = tf.where(tf.cast(labels, tf.bool), outputs[:, 0], 1 - outputs[:, 0])
        sign = tf.where(tf.reduce_any(labels == 2), math.nan, -1.0)
        return sign * tf.reduce_mean(tf.math.log(likelihood))

    task = dataclasses.replace(run.task, client_examples=examples, loss=loss)
    found = dataclasses.replace(run, task=task).evaluate_fine_tuned(1)
    assert found["left_out"] == {
        "too_few_examples": 1, "examples_not_finite": 1, "training_not_finite": 1
    }  # fmt: skip
    assert found["clients"] == CLIENTS - 3
    assert math.isfinite(found["metrics"]["loss"]["after"]["mean"])
    with refusal("clients=1"):
        alone = dataclasses.replace(task, client_ids=ids[:1])
        dataclasses.replace(run, task=alone).evaluate_fine_tuned(1)


def test_on_a_split_every_client_begins_with_the_run_s_metric(run):
    found = run.evaluate_fine_tuned(1, split="validation")
    split = run.task.split("validation")
    before, after = losses_by_hand(run, [(epochs, split) for epochs, _ in divided(run, 1)]).T
    everywhere = pytest.approx(before[0])
    assert found["metrics"]["loss"]["before"] == {"mean": everywhere, "deciles": [everywhere] * 9}
    assert found["metrics"]["loss"]["after"]["mean"] == pytest.approx(after.mean(), rel=1e-4)
    assert found["measured_on"] == "validation"


def test_a_sample_of_clients(run):
    found = run.evaluate_fine_tuned(1, clients=4)
    assert found["clients"] + sum(found["left_out"].values()) == 4
    drawn = sample(run.task, 4, seed=0)
    assert drawn == sample(run.task, 4, seed=0)
    assert len(set(drawn)) == 4
    assert set(drawn) <= set(run.task.client_ids)
    # Of the 126 samples 20 seeds draw the same with probability 126^-19.
    assert len({tuple(sample(run.task, 4, seed)) for seed in range(20)}) > 1
    assert sample(run.task, 1000, seed=0) == list(run.task.client_ids)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"epochs": 0}, "epochs=0"),
        ({"epochs": 1, "clients": 0}, "clients=0"),
        ({"epochs": 1, "split": "train"}, "split='train'"),
        ({"epochs": 1, "proximal_strength": -1.0}, "proximal_strength=-1"),
    ],
)
def test_what_is_refused(run, arguments, words):
    with refusal(words):
        run.evaluate_fine_tuned(**arguments)


@pytest.mark.slow
def test_a_compiled_epoch_trains_what_keras_trains(tmp_path):
    """A made-up compiled epoch, which says that it was called."""
    calls = []

    def epoch(weights, x, y, rate, update):
        calls.append(len(y))
        for array in update:
            array[:] = 0.25
        return 0.0

    task = small_task(compiled_epoch=lambda: epoch)
    run = train(tmp_path / "run", config(rounds=2))
    found = dataclasses.replace(run, task=task).evaluate_fine_tuned(1)
    assert len(calls) == found["clients"]
    model = run.model()
    for variable in model.trainable_variables:
        variable.assign_sub(tf.fill(variable.shape, 0.25))
    others = [halves(run.task, run.config, name)[1] for name in run.task.client_ids]
    expected = [float(run.task.loss(y, model(x))) for x, y in others if len(y)]
    assert found["metrics"]["loss"]["after"]["mean"] == pytest.approx(np.mean(expected), rel=1e-4)
