"""Weights of examples and of classes: their sources, their effect on clipping and on evaluation.

test_as_keras.py has the tests of the updates.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from fedmf import federated
from fedmf.training.evaluation import Evaluator
from fedmf.training.examples import NotFinite, split_weights
from tests.federated.client_training.test_as_keras import (
    BATCH,
    BOTH,
    CLASSES,
    FEATURES,
    LABELS,
    NEXT,
    OWNERS,
    SIZES,
    WEIGHTS,
    cohort_of,
    crossentropy,
    dense,
    settings,
)
from tests.federated.small_runs import assert_close, config
from tests.federated.small_task import task_of_arrays
from tests.refusals import refusal

layers = tf.keras.layers
ONE_HOT = (LABELS[:, None] == np.arange(3)).astype(np.float32)


def task_of(x=FEATURES, y=LABELS, model=dense, loss=None, weights=BOTH, **changes):
    values = {"loss": loss or crossentropy(), "client_ids": OWNERS, "batch_size": BATCH}
    return task_of_arrays(x, y, model, **values | weights | changes)


def test_a_loss_function_receives_the_weights(sums_of):
    """With weights of mean 1, the loss of Keras is the weighted mean."""

    def weighted_mean(labels, outputs, weights):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)
        return tf.reduce_sum(weights * losses) / tf.reduce_sum(weights)

    sums = []
    for loss, scale in ((weighted_mean, 7.0), (crossentropy(), 1.0)):
        weights = np.arange(1.0, 5.0) * 0.4 * scale
        task = task_of(
            FEATURES[:4], LABELS[:4], dense, loss, {"sample_weight": weights},
            client_ids=np.zeros(4, int),
        )  # fmt: skip
        sums.append(sums_of(task, settings(), 0)(cohort_of(task)))
    assert_close(sums[0].values, sums[1].values, atol=2e-6)
    assert sums[0].loss_sum == pytest.approx(sums[1].loss_sum)


@pytest.mark.parametrize("small", [0, pytest.param(10_000, marks=pytest.mark.slow)])
def test_an_update_is_clipped_whatever_the_weights(small, sums_of):
    """The last client's weights are large, and then so large that its update overflows."""
    summed = sums_of(task_of(), settings(clip_norm=0.5), small)
    *other_clients, last_client = cohort_of(task_of())
    epoch = last_client.epochs[0]
    for weight, zeroed in ((1e2, 0), (1e30, 1)):
        huge = (epoch[0], epoch[1]._replace(weights=np.full(SIZES[-1], weight, np.float32)))
        with_it, without = (summed(cohort) for cohort in ([*other_clients, [huge]], other_clients))
        assert int(with_it.zeroed) == zeroed
        influence = [
            sum_with - sum_without
            for sum_with, sum_without in zip(with_it.values, without.values, strict=True)
        ]
        norm = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in influence))
        assert norm <= 0.5
        assert (norm > 0.49) is not zeroed


def test_evaluation_counts_each_example_once():
    task = task_of()
    unweighted_task = task_of(weights={})
    weights = [variable.numpy() for variable in task.build_model(3).trainable_variables]
    expected = Evaluator(unweighted_task, settings())(weights, "test")
    assert Evaluator(task, settings())(weights, "test") == expected
    weighted_metrics, plain_metrics = (
        Evaluator(some_task, settings()).on(weights, some_task.examples_of("3"))
        for some_task in (task, unweighted_task)
    )
    assert weighted_metrics == plain_metrics
    task.learner.check(task, settings(private_metrics=0.1))


def functions(sample_weight, **changes):
    """Returns the same task, made from functions."""
    unweighted_task = task_of(weights={})
    return dataclasses.replace(unweighted_task, sample_weight=sample_weight, **changes)


def weights_of(name):
    return WEIGHTS[int(name) == OWNERS]


def test_weights_are_equal_from_arrays_functions_and_client_data(tff):
    x = {"pixels": FEATURES, "label": LABELS, "weight": WEIGHTS.astype(np.float32)}
    clients = {
        name: {key: field_values[int(name) == OWNERS] for key, field_values in x.items()}
        for name in "0123"
    }
    data = tff.simulation.datasets.TestClientData(clients)

    def elements(dataset):
        return dataset.map(lambda element: (element["pixels"], element["label"], element["weight"]))

    def of_client_data(preprocess, **changes):
        values = {n: getattr(task_of(), n) for n in ("name", "loss", "metrics", "batch_size")}
        return federated.Task.from_client_data(
            preprocess=preprocess, model=dense, train=data, validation=data,
            test=(FEATURES, LABELS), **values | changes,
        )  # fmt: skip

    arrays = task_of(weights={"sample_weight": WEIGHTS})
    tasks = [
        task_of(weights={"sample_weight": WEIGHTS.tolist()}),
        functions(weights_of),
        of_client_data(elements),
        of_client_data(lambda d: next(iter(elements(d).batch(9).as_numpy_iterator()))),
        of_client_data(lambda d: elements(d).map(lambda x, y, _: (x, y)), sample_weight=weights_of),
    ]
    for task in tasks:
        assert task.spec == arrays.spec
        assert tuple(task.client_ids) == arrays.client_ids
        for name in task.client_ids:
            examples = task.examples_of(name)
            expected = arrays.examples_of(name)
            assert examples[1].weights.dtype == np.float32
            tf.nest.map_structure(np.testing.assert_array_equal, examples, expected)
        for split in ("validation", "test"):
            assert set(task.split(split)[1].weights) == {1}
    twice = of_client_data(elements, sample_weight=weights_of)
    with refusal("client '0' of task 'arrays' has weights beside sample_weight"):
        twice.examples_of("0")


def test_a_class_of_the_splits_without_a_weight_is_refused():
    """The refusal holds also for a task that was made before its weights.

    A client with such a class is zeroed in its round, as one with NaN features
    (tests/federated/test_task.py).
    """
    task = dataclasses.replace(task_of(weights={}), class_weight={0: 1.0, 1: 1.0})
    with refusal("validation split .* hold class 2, .*class_weight ends at 1"):
        task.learner.check(task, config())
    with pytest.raises(NotFinite, match="client '0' of task .*hold class 2"):
        task.examples_of("0")
    with pytest.raises(NotFinite, match="client '1' of task .*hold nan"):
        functions(lambda name: np.full_like(weights_of(name), np.nan)).examples_of("1")


def test_class_weights_multiply_those_of_examples():
    expected = WEIGHTS * [CLASSES[label] for label in LABELS]
    for y in (LABELS, LABELS[:, None], LABELS.astype(np.float32), ONE_HOT):
        for name in "0123":
            _, weights = split_weights(task_of(y=y).examples_of(name)[1])
            np.testing.assert_array_equal(weights, expected[int(name) == OWNERS])


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"sample_weight": np.where(OWNERS == 2, -1, 1.0)}, "hold -1.0, .* 7, of client 2"),
        ({"sample_weight": np.where(OWNERS == 2, 1e39, 1.0)}, "hold inf, .* 7, of client 2"),
        ({"sample_weight": WEIGHTS[:, None]}, r"float64 \(17, 1\): give one real number"),
        ({"sample_weight": WEIGHTS[1:]}, r"\(17,\) .*sample_weight \(16,\)"),
        ({"sample_weight": WEIGHTS.astype(str)}, "sample weights .* <U"),
        ({"class_weight": {0: 1.0, 1: 1.0}}, "hold class 2, .* of client .*class_weight ends at 1"),
        ({"class_weight": {1: 1.0, 2: 1.0}}, r"class_weight=\{1.* other keys .* as in Keras"),
        ({"class_weight": CLASSES | {1: -1.0}}, r"class_weight\[1\]=-1.0"),
        ({"class_weight": [1.0, 2.0, 3.0]}, r"class_weight=\[.* no dict"),
        ({"class_weight": CLASSES, "y": NEXT}, r"class_weight needs .* int64 \(17, 6\)"),
        ({"class_weight": CLASSES, "y": {"q": LABELS}}, "class_weight needs .* not one array"),
    ],
)
def test_invalid_weights_are_refused_by_from_arrays(changes, match):
    with refusal(match, (TypeError, ValueError)):
        task_of(weights={}, **changes)


def spatial():
    return tf.keras.Sequential([tf.keras.Input((4, 4, 1)), layers.Conv2D(3, 1)])


@pytest.mark.parametrize(
    ("task", "match"),
    [
        (lambda: functions(weights_of, compiled_epoch=lambda: None), "beside a compiled_epoch"),
        (lambda: functions(weights_of, loss=None, metrics=None), "beside a TFF model"),
        (
            lambda: task_of(
                np.zeros((17, 4, 4, 1), np.float32), np.zeros((17, 4, 4), int), spatial,
                weights={"sample_weight": WEIGHTS},
            ),
            "give the task a function",
        ),
    ],
)  # fmt: skip
def test_tasks_that_cannot_use_weights_are_refused(task, match):
    with refusal(match, (TypeError, ValueError)):
        weighted_task = task()
        _ = weighted_task.spec
        weighted_task.learner.check(weighted_task, settings())
