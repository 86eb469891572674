"""What a user wrote may have `if` and `for` on tensors, which AutoGraph rewrites in graphs;
fedmf's own code it leaves alone.
"""

import numpy as np
import pytest
import tensorflow as tf

from fedmf.federated.loss import batch_loss
from fedmf.federated.tensorflow_import import rewritten
from tests.federated.run_small import config
from tests.federated.small_runs import train
from tests.federated.small_task import CLASSES, LENGTH, small_task

CROSS_ENTROPY = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def branched(x, scale=1.0):
    """x, by an `if` and a `for` on tensors."""
    if tf.reduce_sum(x) > 1e9:
        scale = 2.0
    for _ in tf.range(tf.size(x) * 0 + 1):
        x = x * scale
    return x


def of_function(labels, outputs, weights):
    return tf.reduce_mean(branched(CROSS_ENTROPY(labels, outputs)))


class Loss(tf.keras.losses.Loss):
    def call(self, labels, outputs):
        return branched(tf.keras.losses.sparse_categorical_crossentropy(labels, outputs, True))


class Layer(tf.keras.layers.Layer):
    def call(self, x):
        return branched(x)


class Accuracy(tf.keras.metrics.SparseCategoricalAccuracy):
    def update_state(self, labels, outputs, sample_weight=None):
        return super().update_state(labels, branched(outputs), sample_weight)


def with_layer(seed):
    model = small_task().build_model(seed)
    return tf.keras.Sequential([tf.keras.Input((LENGTH,), dtype=tf.int32), *model.layers, Layer()])


CHANGES = {
    "function": {"loss": of_function},
    "loss": {"loss": Loss()},
    "layer": {"build_model": with_layer},
    "metric": {"metrics": lambda: [Accuracy("accuracy")]},
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return train(tmp_path_factory.mktemp("plain") / "run", config(rounds=2))


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_control_flow_on_tensors_trains_the_same(changes, plain, tmp_path):
    run = train(tmp_path / "run", config(rounds=2), small_task(**changes))
    for one, other in zip(run.weights, plain.weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert run.result["test"]["accuracy"] == plain.result["test"]["accuracy"]


def test_what_is_called_as_it_stands_is_refused_by_tensorflow():
    """The control."""
    labels, outputs = tf.zeros([2, LENGTH], tf.int32), tf.zeros([2, LENGTH, CLASSES])
    loss = batch_loss(small_task(loss=of_function))
    assert tf.function(loss)(labels, outputs) > 0

    @tf.function
    def as_it_stands(labels, outputs):
        return tf.autograph.experimental.do_not_convert(of_function)(labels, outputs, None)

    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
        as_it_stands(labels, outputs)
    assert rewritten(of_function)(labels, outputs, None) > 0  # and outside of graphs
