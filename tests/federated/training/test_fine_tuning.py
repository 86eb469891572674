"""Fine-tuning by client: metrics before and after it, and the clients that are left out.

The training is that of clients in a round. Tests in tests/federated/client_training compare it with
Keras.
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
from fedmf.training.fine_tuning import learning_rates
from fedmf.training.fine_tuning_data import sample_clients, split_for_search, split_in_halves
from tests.federated.client_training.conftest import work_of
from tests.federated.small_runs import config, train
from tests.federated.small_task import task_of_arrays
from tests.refusals import refusal

CLIENTS = 9
WIDTH = 4
# Every update of the run would be clipped and scaled. Fine-tuning bounds each step, and two steps
# go farther than the clip norm.
SETTINGS = {
    "rounds": 2, "clip_norm": 0.15, "client_learning_rate": 30.0, "client_batches": 1,
    "server_optimizer": "scaled-adam",
}  # fmt: skip
RATE = 3.0  # The default is a tenth.


def classes_of_clients():
    """Returns a task whose first two clients have one class each, and the third one example."""
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
def trained_run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs") / "run", config(**SETTINGS), classes_of_clients())


def halves_of_clients(run, config):
    """Returns (epochs, other half) of the clients with at least two examples."""
    pairs = [split_in_halves(run.task, config, client_id) for client_id in run.task.client_ids]
    return [(epochs, other_half) for epochs, other_half in pairs if count(other_half)]


def fine_tuning_config(run, **changes):
    """Returns the config of fine-tuning, which is over full epochs."""
    return dataclasses.replace(run.config, client_batches=None, **changes)


def losses_by_hand(run, config, split=None):
    """Returns the mean losses of each client before and after training.

    Updates are neither clipped nor scaled.
    """
    config = dataclasses.replace(config, client_learning_rate=RATE)
    work = work_of(run.task, config, max_step_norm=config.clip_norm)
    scales = [np.ones_like(weight) for weight in run.weights]
    broadcast = Broadcast(run.weights, ClientParams(math.inf, math.inf, scales))
    model = run.model()
    losses = []
    for client, other_half in halves_of_clients(run, config):
        [client_sum] = work.sums(broadcast, [[client]])
        x, y = split or other_half
        for update in ([0.0, 0.0], client_sum.values):
            model.set_weights(
                [w - weight_update for w, weight_update in zip(run.weights, update, strict=True)]
            )
            losses.append(float(run.task.loss(y[:, None], model(x))))
    return np.reshape(losses, (-1, 2))


@pytest.mark.slow
def test_losses_equal_those_of_training_by_hand(trained_run):
    """The runs have Ditto's objective and two epochs; clipping would leave nothing to see."""
    metric = trained_run.evaluate_fine_tuned(2, proximal_strength=2.0)["metrics"]["loss"]
    expected = losses_by_hand(
        trained_run, fine_tuning_config(trained_run, client_epochs=2, proximal_strength=2.0)
    )
    losses_before, losses_after = expected.T
    assert np.abs(losses_after - losses_before).mean() > 0.01
    for name, values in {
        "before": losses_before,
        "after": losses_after,
        "change": losses_after - losses_before,
    }.items():
        assert metric[name]["mean"] == pytest.approx(values.mean(), rel=1e-4)
        deciles = np.quantile(values, np.arange(1, 10) / 10)
        np.testing.assert_allclose(metric[name]["deciles"], deciles, rtol=1e-4, atol=1e-6)
    # Controls: without the term, and without the last epoch.
    for changes in ({"client_epochs": 2}, {"proximal_strength": 2.0}):
        other_losses = losses_by_hand(trained_run, fine_tuning_config(trained_run, **changes))
        assert metric["after"]["mean"] != pytest.approx(other_losses[:, 1].mean(), rel=1e-3)


def test_halves_are_disjoint_and_follow_from_the_seed_and_the_id(trained_run):
    task = trained_run.task
    settings = fine_tuning_config(trained_run, client_epochs=2)

    def rows(array):
        return sorted(map(tuple, array))

    for client_id in task.client_ids:
        client, (other_half, _) = split_in_halves(task, settings, client_id)
        first_epoch, second_epoch = client.epochs
        assert rows(first_epoch[0]) == rows(second_epoch[0])
        assert len(first_epoch[0]) - len(other_half) in (0, 1)
        assert rows([*first_epoch[0], *other_half]) == rows(task.examples_of(client_id)[0])
    last_id = task.client_ids[-1]
    shuffled = dataclasses.replace(task, client_ids=task.client_ids[::-1])
    (client, other_half), (second_epoch, same_half) = (
        split_in_halves(each_item, settings, last_id) for each_item in (shuffled, task)
    )
    np.testing.assert_equal((client.epochs, other_half), (second_epoch.epochs, same_half))
    assert client.seed == second_epoch.seed
    # 11 examples have 462 pairs of halves: 5 seeds have the same with probability 462^-4.
    seeds = [dataclasses.replace(settings, seed=seed) for seed in range(5)]
    assert (
        len({str(rows(split_in_halves(task, each_item, last_id)[1][0])) for each_item in seeds}) > 1
    )


def test_metrics_that_are_undefined_are_left_out_and_counted(trained_run):
    result = trained_run.evaluate_fine_tuned(1)
    labels = [
        set(y) for _, (_, y) in halves_of_clients(trained_run, fine_tuning_config(trained_run))
    ]
    num_with_both_classes = labels.count({0, 1})
    assert 0 < num_with_both_classes <= len(labels) - 2
    auc = result["metrics"]["auc"]
    accuracy = result["metrics"]["accuracy"]
    assert (auc["clients"], auc["clients_undefined"]) == (
        num_with_both_classes,
        len(labels) - num_with_both_classes,
    )
    assert (accuracy["clients"], accuracy["clients_undefined"]) == (CLIENTS - 1, 0)
    assert (result["clients"], result["population"]) == (CLIENTS - 1, CLIENTS)
    assert result["left_out"]["too_few_examples"] == 1
    # A metric that is defined nowhere has no mean.
    ids = trained_run.task.client_ids[:2]
    two_clients = dataclasses.replace(
        trained_run, task=dataclasses.replace(trained_run.task, client_ids=ids)
    )
    result = two_clients.evaluate_fine_tuned(1)["metrics"]["auc"]
    assert result == {"clients": 0, "clients_undefined": 2, "clients_not_finite": 0}


def test_clients_that_are_not_finite_are_left_out_and_counted(trained_run):
    ids = trained_run.task.client_ids

    def examples(client_id):
        if client_id == ids[0]:
            raise NotFinite("NaN")
        x, y = trained_run.task.client_examples(client_id)
        return x, np.full_like(y, 2) if client_id == ids[1] else y

    def loss(labels, outputs, weights):
        """Returns NaN if a label is 2."""
        return tf.where(tf.reduce_any(labels == 2), math.nan, 1.0) * tf.reduce_mean(outputs)

    task = dataclasses.replace(trained_run.task, client_examples=examples, loss=loss)
    result = dataclasses.replace(trained_run, task=task).evaluate_fine_tuned(1)
    assert result["left_out"] == {
        "too_few_examples": 1, "examples_not_finite": 1, "training_not_finite": 1
    }  # fmt: skip
    assert result["clients"] == CLIENTS - 3
    assert math.isfinite(result["metrics"]["loss"]["after"]["mean"])
    with refusal("clients=1"):
        one_client_task = dataclasses.replace(task, client_ids=ids[:1])
        dataclasses.replace(trained_run, task=one_client_task).evaluate_fine_tuned(1)


def test_infinite_losses_are_distinguished_from_undefined_ones(trained_run):
    """One client has a label 2, for which the loss is undefined.

    Another client's personal model has an output of 0 for its label, and an infinite loss.
    """
    ids = trained_run.task.client_ids

    def examples(client_id):
        x, y = trained_run.task.client_examples(client_id)
        return x, np.full_like(y, 2) if client_id == ids[1] else y

    def loss(labels, outputs, weights):
        """Returns NaN if a label is 2, and infinity if no output is positive."""
        undefined = tf.where(tf.reduce_any(labels == 2), math.nan, 1.0)
        return undefined * tf.reduce_mean(tf.where(tf.reduce_any(outputs > 0), 1.0, math.inf))

    def diverged_after(self, work, pairs):
        """Yields weights with which every second client has outputs of 0."""
        for number, _ in enumerate(pairs):
            yield [
                weight * 0 - (1e6 * (weight.ndim == 1)) if number % 2 else weight
                for weight in trained_run.weights
            ]

    task = dataclasses.replace(
        trained_run.task, client_examples=examples, loss=loss, metrics=lambda: []
    )
    num_clients = len(halves_of_clients(trained_run, fine_tuning_config(trained_run)))
    with (
        pytest.MonkeyPatch.context() as patch,
        warnings.catch_warnings(record=True) as caught_warnings,
    ):
        warnings.simplefilter("always")
        patch.setattr(fine_tuning._FineTuning, "_train", diverged_after)
        metric = dataclasses.replace(trained_run, task=task).evaluate_fine_tuned(1)["metrics"][
            "loss"
        ]
    assert (
        metric["clients"] + metric["clients_undefined"] + metric["clients_not_finite"]
        == num_clients
    )
    assert metric["clients_undefined"] == 1
    assert metric["clients_not_finite"] in (num_clients // 2, num_clients // 2 - 1)
    assert math.isfinite(metric["after"]["mean"])
    messages = " ".join(str(warning.message) for warning in caught_warnings)
    assert f"loss of {metric['clients_not_finite']} clients" in messages
    assert "its mean went from 1 to inf" in messages


def test_every_client_of_a_split_begins_with_the_metric_of_the_run(trained_run):
    result = trained_run.evaluate_fine_tuned(1, split="validation")
    losses_before, losses_after = losses_by_hand(
        trained_run, fine_tuning_config(trained_run), trained_run.task.split("validation")
    ).T
    same_loss = pytest.approx(losses_before[0])
    assert result["metrics"]["loss"]["before"] == {"mean": same_loss, "deciles": [same_loss] * 9}
    assert result["metrics"]["loss"]["after"]["mean"] == pytest.approx(
        losses_after.mean(), rel=1e-4
    )
    assert result["measured_on"] == "validation"


def test_a_sample_of_clients_is_fine_tuned(trained_run):
    result = trained_run.evaluate_fine_tuned(1, clients=4)
    assert result["clients"] + sum(result["left_out"].values()) == 4
    sampled_ids = sample_clients(trained_run.task, 4, seed=0)
    assert sampled_ids == sorted(set(sampled_ids)) == sample_clients(trained_run.task, 4, seed=0)
    # Of the 126 samples 20 seeds draw the same with probability 126^-19.
    assert len({tuple(sample_clients(trained_run.task, 4, seed)) for seed in range(20)}) > 1
    assert sample_clients(trained_run.task, 1000, seed=0) == list(trained_run.task.client_ids)


def test_a_rate_is_chosen_on_examples_outside_of_all_results(trained_run):
    task = trained_run.task
    settings = fine_tuning_config(trained_run, client_epochs=2)

    def rows(*arrays):
        return sorted(map(tuple, np.concatenate(arrays)))

    for client_id in task.client_ids:
        client, (other_half, _) = split_in_halves(task, settings, client_id)
        first_half = client.epochs[0][0]
        client, (validated_on, _) = split_for_search(task, settings, client_id)
        (trained_on, _), (second_epoch, _) = client.epochs
        assert rows(trained_on) == rows(second_epoch)
        assert rows(trained_on, validated_on) == rows(first_half)
        assert rows(first_half, other_half) == rows(task.examples_of(client_id)[0])


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
    ("losses", "expected_rate"),
    [
        ({0.1: 3.0, 1.0: 2.0, 10.0: 4.0}, 1.0),
        ({0.1: 3.0, 1.0: math.nan, 10.0: 4.0}, 0.1),
        ({0.1: math.nan, 1.0: math.inf}, 0.1),
        ({0.1: math.inf, 1.0: 9.0}, 1.0),
    ],
)
def test_the_rate_of_the_lowest_mean_loss_is_chosen(
    monkeypatch, trained_run, losses, expected_rate
):
    """The mean is over the 7 of 9 clients with enough examples and a finite first loss."""
    measurements = []

    def loss(self, weights, examples):
        if isinstance(weights, list):  # The losses are those of the run.
            return math.nan if len(measurements) == 0 and not measurements.append(None) else 1.0
        measurements.append(weights)
        return losses[weights] * len(examples[1])

    monkeypatch.setattr(fine_tuning._FineTuning, "_client_work", lambda self, rate: rate)
    monkeypatch.setattr(fine_tuning._FineTuning, "_loss", loss)
    monkeypatch.setattr(
        fine_tuning._FineTuning, "_train", lambda self, rate, pairs: [rate] * len(pairs)
    )
    bar = types.SimpleNamespace(update=lambda clients: None)
    tuning = fine_tuning._FineTuning(
        trained_run.task, fine_tuning_config(trained_run), trained_run.weights, bar
    )
    rate, searched = tuning.choose_rate(list(losses), trained_run.task.client_ids)
    assert rate == expected_rate
    sizes = [
        count(split_for_search(trained_run.task, fine_tuning_config(trained_run), client_id)[1])
        for client_id in trained_run.task.client_ids
    ]
    mean_size = np.mean([size for size in sizes if size][1:])
    expected = {f"{rate:g}": loss * mean_size for rate, loss in losses.items()}
    assert searched == pytest.approx(expected, nan_ok=True)
    assert measurements[1:] == [rate for rate in losses for _ in range(CLIENTS - 2)]


@pytest.mark.parametrize(
    ("losses_before", "losses_after", "not_finite", "worse_clients"),
    [
        ([1, 1, 1], [0.5, 0.5, 3.0], 0, "1 of 3"),  # the mean
        ([1, 1, 1], [1.1, 1.1, 0.1], 0, "2 of 3"),  # most
        ([1, 1, 1], [0.5, 0.5, math.inf], 0, "1 of 3"),
        ([1, 1, 1], [0.5, 0.5, 0.5], 4, "4 of 7"),
        # The metric is undefined on one client's examples.
        ([1, math.nan], [0.9, math.nan], 0, None),
        ([1, 1, 1], [1, 1, 1], 0, None),
    ],
)
def test_losses_that_become_worse_are_reported(
    losses_before, losses_after, not_finite, worse_clients
):
    changes = [
        fine_tuning.Change({"loss": loss_before}, {"loss": loss_after})
        for loss_before, loss_after in zip(losses_before, losses_after, strict=True)
    ]
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        fine_tuning._warn_of_worse_losses(changes, not_finite, 0.4, "test")
    assert [
        f"{worse_clients} clients worse on test" in str(warning.message)
        for warning in caught_warnings
    ] == [True] * (worse_clients is not None)
    for warning in caught_warnings:
        assert "a smaller `learning_rate` than 0.4" in str(warning.message)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"epochs": 0}, "epochs=0"),
        ({"epochs": 1, "learning_rate": 0}, "learning_rate=0"),
        ({"epochs": 1, "clients": 0}, "clients=0"),
        ({"epochs": 1, "split": "train"}, "split='train'"),
        ({"epochs": 1, "proximal_strength": -1.0}, "proximal_strength=-1"),
    ],
)
def test_invalid_arguments_are_refused(trained_run, arguments, match):
    with refusal(match):
        trained_run.evaluate_fine_tuned(**arguments)


def test_a_compiled_epoch_is_used_if_it_exists(trained_run):
    calls = []

    def epoch(weights, x, y, rate, update):
        calls.append(len(y))
        return 0.0

    task = dataclasses.replace(trained_run.task, compiled_epoch=lambda: epoch)
    loss = dataclasses.replace(trained_run, task=task).evaluate_fine_tuned(1)["metrics"]["loss"]
    batches = [
        -(-count(client.epochs[0]) // 4)
        for client, _ in halves_of_clients(trained_run, fine_tuning_config(trained_run))
    ]
    assert len(calls) == sum(batches)  # Each epoch is one bounded step.
    assert loss["after"] == loss["before"]
