"""Fine-tuning by client: what is measured before and after it, and who is left out.

The training is that of clients in a round, which tests/federated/execution compares with Keras.
"""

import dataclasses
import math
import types
import warnings

import numpy as np
import pytest
import tensorflow as tf

from fedmf.server.messages import ClientParams
from fedmf.training import fine_tuning
from fedmf.training.client_work import Broadcast
from fedmf.training.examples import NotFinite, count
from fedmf.training.fine_tuning import halves, learning_rates, quarters, sample
from tests.federated.execution.conftest import work_of
from tests.federated.small_runs import config, train
from tests.federated.small_task import task_of_arrays
from tests.refusals import refusal

CLIENTS, WIDTH = 9, 4
# Every update would be clipped, and scaled; of fine-tuning each step is, and
# two of them go farther than the norm.
SETTINGS = {
    "rounds": 2, "clip_norm": 0.15, "client_learning_rate": 30.0, "client_batches": 1,
    "server_optimizer": "scaled-adam",
}  # fmt: skip
RATE = 3.0  # the default, a tenth


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


def divided(run, config):
    """(epochs, other half) of the clients with two examples at least."""
    pairs = [halves(run.task, config, client_id) for client_id in run.task.client_ids]
    return [(epochs, other) for epochs, other in pairs if count(other)]


def tuned(run, **changes):
    """The config of fine-tuning, which is over whole epochs."""
    return dataclasses.replace(run.config, client_batches=None, **changes)


def losses_by_hand(run, config, split=None):
    """Mean losses of each client before and after training whose updates are neither clipped nor
    scaled.
    """
    config = dataclasses.replace(config, client_learning_rate=RATE)
    work = work_of(run.task, config, max_step_norm=config.clip_norm)
    scales = [np.ones_like(weight) for weight in run.weights]
    sent = Broadcast(run.weights, ClientParams(math.inf, math.inf, scales))
    model, found = run.model(), []
    for client, other in divided(run, config):
        [part] = work.sums(sent, [[client]])
        x, y = split or other
        for update in ([0.0, 0.0], part.values):
            model.set_weights([w - u for w, u in zip(run.weights, update, strict=True)])
            found.append(float(run.task.loss(y[:, None], model(x))))
    return np.reshape(found, (-1, 2))


@pytest.mark.slow
def test_losses_before_and_after_training(run):
    """With Ditto's objective, and two epochs; clipped, nothing would change."""
    found = run.evaluate_fine_tuned(2, proximal_strength=2.0)["metrics"]["loss"]
    expected = losses_by_hand(run, tuned(run, client_epochs=2, proximal_strength=2.0))
    before, after = expected.T
    assert np.abs(after - before).mean() > 0.01
    for name, values in {"before": before, "after": after, "change": after - before}.items():
        assert found[name]["mean"] == pytest.approx(values.mean(), rel=1e-4)
        deciles = np.quantile(values, np.arange(1, 10) / 10)
        np.testing.assert_allclose(found[name]["deciles"], deciles, rtol=1e-4, atol=1e-6)
    # Controls: without the term, and without the last epoch.
    for changes in ({"client_epochs": 2}, {"proximal_strength": 2.0}):
        other = losses_by_hand(run, tuned(run, **changes))
        assert found["after"]["mean"] != pytest.approx(other[:, 1].mean(), rel=1e-3)


def test_halves_are_disjoint_and_follow_from_the_seed_and_the_id(run):
    task, settings = run.task, tuned(run, client_epochs=2)

    def rows(array):
        return sorted(map(tuple, array))

    for client_id in task.client_ids:
        client, (other, _) = halves(task, settings, client_id)
        first, again = client.epochs
        assert rows(first[0]) == rows(again[0])
        assert len(first[0]) - len(other) in (0, 1)
        assert rows([*first[0], *other]) == rows(task.examples_of(client_id)[0])
    last = task.client_ids[-1]
    shuffled = dataclasses.replace(task, client_ids=task.client_ids[::-1])
    (client, other), (again, same) = (halves(each, settings, last) for each in (shuffled, task))
    np.testing.assert_equal((client.epochs, other), (again.epochs, same))
    assert client.seed == again.seed
    # 11 examples have 462 pairs of halves: 5 seeds have the same with probability 462^-4.
    seeds = [dataclasses.replace(settings, seed=seed) for seed in range(5)]
    assert len({str(rows(halves(task, each, last)[1][0])) for each in seeds}) > 1


def test_metrics_that_are_undefined_are_left_out_and_counted(run):
    found = run.evaluate_fine_tuned(1)
    labels = [set(y) for _, (_, y) in divided(run, tuned(run))]
    both = labels.count({0, 1})
    assert 0 < both <= len(labels) - 2
    auc, accuracy = found["metrics"]["auc"], found["metrics"]["accuracy"]
    assert (auc["clients"], auc["clients_undefined"]) == (both, len(labels) - both)
    assert (accuracy["clients"], accuracy["clients_undefined"]) == (CLIENTS - 1, 0)
    assert (found["clients"], found["population"]) == (CLIENTS - 1, CLIENTS)
    assert found["left_out"]["too_few_examples"] == 1
    # A metric that is defined nowhere has no mean.
    ids = run.task.client_ids[:2]
    alone = dataclasses.replace(run, task=dataclasses.replace(run.task, client_ids=ids))
    found = alone.evaluate_fine_tuned(1)["metrics"]["auc"]
    assert found == {"clients": 0, "clients_undefined": 2, "clients_not_finite": 0}


def test_clients_that_are_not_finite_are_left_out_and_counted(run):
    ids = run.task.client_ids

    def examples(client_id):
        if client_id == ids[0]:
            raise NotFinite("NaN")
        x, y = run.task.client_examples(client_id)
        return x, np.full_like(y, 2) if client_id == ids[1] else y

    def loss(labels, outputs, weights):
        """NaN where there is a label 2."""
        return tf.where(tf.reduce_any(labels == 2), math.nan, 1.0) * tf.reduce_mean(outputs)

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


def test_infinite_losses_are_distinguished_from_undefined_ones(run):
    """Of the client with a label 2 the examples define no loss. Of another one the personal model
    has an output of 0 for its label, an infinite loss.
    """
    ids = run.task.client_ids

    def examples(client_id):
        x, y = run.task.client_examples(client_id)
        return x, np.full_like(y, 2) if client_id == ids[1] else y

    def loss(labels, outputs, weights):
        """NaN where there is a label 2, infinite where a weight is, by its output."""
        undefined = tf.where(tf.reduce_any(labels == 2), math.nan, 1.0)
        return undefined * tf.reduce_mean(tf.where(tf.reduce_any(outputs > 0), 1.0, math.inf))

    def diverged_after(self, work, pairs):
        """The weights of one client in two are such that its outputs are 0."""
        for number, _ in enumerate(pairs):
            yield [w * 0 - (1e6 * (w.ndim == 1)) if number % 2 else w for w in run.weights]

    task = dataclasses.replace(run.task, client_examples=examples, loss=loss, metrics=lambda: [])
    clients = len(divided(run, tuned(run)))
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        patch.setattr(fine_tuning._Tuning, "_trained", diverged_after)
        found = dataclasses.replace(run, task=task).evaluate_fine_tuned(1)["metrics"]["loss"]
    assert found["clients"] + found["clients_undefined"] + found["clients_not_finite"] == clients
    assert found["clients_undefined"] == 1
    assert found["clients_not_finite"] in (clients // 2, clients // 2 - 1)
    assert math.isfinite(found["after"]["mean"])
    words = " ".join(str(warning.message) for warning in caught)
    assert f"loss of {found['clients_not_finite']} clients" in words
    assert "its mean went from 1 to inf" in words


def test_every_client_of_a_split_begins_with_the_metric_of_the_run(run):
    found = run.evaluate_fine_tuned(1, split="validation")
    before, after = losses_by_hand(run, tuned(run), run.task.split("validation")).T
    everywhere = pytest.approx(before[0])
    assert found["metrics"]["loss"]["before"] == {"mean": everywhere, "deciles": [everywhere] * 9}
    assert found["metrics"]["loss"]["after"]["mean"] == pytest.approx(after.mean(), rel=1e-4)
    assert found["measured_on"] == "validation"


def test_a_sample_of_clients_is_fine_tuned(run):
    found = run.evaluate_fine_tuned(1, clients=4)
    assert found["clients"] + sum(found["left_out"].values()) == 4
    drawn = sample(run.task, 4, seed=0)
    assert drawn == sorted(set(drawn)) == sample(run.task, 4, seed=0)
    # Of the 126 samples 20 seeds draw the same with probability 126^-19.
    assert len({tuple(sample(run.task, 4, seed)) for seed in range(20)}) > 1
    assert sample(run.task, 1000, seed=0) == list(run.task.client_ids)


def test_a_rate_is_chosen_on_examples_outside_of_all_results(run):
    task, settings = run.task, tuned(run, client_epochs=2)

    def rows(*arrays):
        return sorted(map(tuple, np.concatenate(arrays)))

    for client_id in task.client_ids:
        client, (other, _) = halves(task, settings, client_id)
        first = client.epochs[0][0]
        client, (validated_on, _) = quarters(task, settings, client_id)
        (trained_on, _), (again, _) = client.epochs
        assert rows(trained_on) == rows(again)
        assert rows(trained_on, validated_on) == rows(first)
        assert rows(first, other) == rows(task.examples_of(client_id)[0])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [0.3]),
        (2, [2.0]),
        ("search", [0.03, 0.09, 0.3, 0.9]),
        ([1.0, 0.5, 1.0], [0.5, 1.0]),
    ],
)
def test_the_default_is_a_tenth_of_the_run_s_rate(value, expected):
    assert learning_rates(value, config(client_learning_rate=3.0)) == pytest.approx(expected)


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, [], [0.1, 0], "0.1", "found"])
def test_invalid_learning_rates_are_refused(value):
    with refusal("learning_rate=", (TypeError, ValueError)):
        learning_rates(value, config())


@pytest.mark.parametrize(
    ("losses", "chosen"),
    [
        ({0.1: 3.0, 1.0: 2.0, 10.0: 4.0}, 1.0),
        ({0.1: 3.0, 1.0: math.nan, 10.0: 4.0}, 0.1),
        ({0.1: math.nan, 1.0: math.inf}, 0.1),
        ({0.1: math.inf, 1.0: 9.0}, 1.0),
    ],
)
def test_the_rate_of_the_lowest_mean_loss_is_chosen(monkeypatch, run, losses, chosen):
    """Of clients that have enough examples, before training with a finite loss: here 7 of 9."""
    measured = []

    def loss(self, weights, examples):
        if isinstance(weights, list):  # those of the run
            return math.nan if len(measured) == 0 and not measured.append(None) else 1.0
        measured.append(weights)
        return losses[weights] * len(examples[1])

    monkeypatch.setattr(fine_tuning._Tuning, "_work", lambda self, rate: rate)
    monkeypatch.setattr(fine_tuning._Tuning, "_loss", loss)
    monkeypatch.setattr(
        fine_tuning._Tuning, "_trained", lambda self, rate, pairs: [rate] * len(pairs)
    )
    bar = types.SimpleNamespace(update=lambda clients: None)
    tuning = fine_tuning._Tuning(run.task, tuned(run), run.weights, None, bar)
    rate, searched = tuning.choose_rate(list(losses), run.task.client_ids)
    assert rate == chosen
    sizes = [count(quarters(run.task, tuned(run), each)[1]) for each in run.task.client_ids]
    mean = np.mean([size for size in sizes if size][1:])
    expected = {f"{rate:g}": loss * mean for rate, loss in losses.items()}
    assert searched == pytest.approx(expected, nan_ok=True)
    assert measured[1:] == [rate for rate in losses for _ in range(CLIENTS - 2)]


@pytest.mark.parametrize(
    ("before", "after", "not_finite", "worse"),
    [
        ([1, 1, 1], [0.5, 0.5, 3.0], 0, "1 of 3"),  # the mean
        ([1, 1, 1], [1.1, 1.1, 0.1], 0, "2 of 3"),  # most
        ([1, 1, 1], [0.5, 0.5, math.inf], 0, "1 of 3"),
        ([1, 1, 1], [0.5, 0.5, 0.5], 4, "4 of 7"),
        ([1, math.nan], [0.9, math.nan], 0, None),  # not defined on a client's examples
        ([1, 1, 1], [1, 1, 1], 0, None),
    ],
)
def test_losses_that_become_worse_are_reported(before, after, not_finite, worse):
    pairs = [({"loss": a}, {"loss": b}) for a, b in zip(before, after, strict=True)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fine_tuning._warn_of_worse_losses(pairs, not_finite, 0.4, "test")
    assert [f"{worse} clients worse on test" in str(w.message) for w in caught] == [True] * (
        worse is not None
    )
    for warning in caught:
        assert "a smaller `learning_rate` than 0.4" in str(warning.message)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"epochs": 0}, "epochs=0"),
        ({"epochs": 1, "learning_rate": 0}, "learning_rate=0"),
        ({"epochs": 1, "clients": 0}, "clients=0"),
        ({"epochs": 1, "split": "train"}, "split='train'"),
        ({"epochs": 1, "proximal_strength": -1.0}, "proximal_strength=-1"),
    ],
)
def test_invalid_arguments_are_refused(run, arguments, words):
    with refusal(words):
        run.evaluate_fine_tuned(**arguments)


def test_a_compiled_epoch_is_used_if_it_exists(run):
    calls = []

    def epoch(weights, x, y, rate, update):
        calls.append(len(y))
        return 0.0

    task = dataclasses.replace(run.task, compiled_epoch=lambda: epoch)
    loss = dataclasses.replace(run, task=task).evaluate_fine_tuned(1)["metrics"]["loss"]
    batches = [-(-count(client.epochs[0]) // 4) for client, _ in divided(run, tuned(run))]
    assert len(calls) == sum(batches)  # each is an epoch, whose step is bounded
    assert loss["after"] == loss["before"]
