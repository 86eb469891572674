"""What a user wrote may have `if` and `for` on tensors, which AutoGraph rewrites in graphs;
fedmf's own code it leaves alone.
"""

import numpy as np
import pytest
import tensorflow as tf

from fedmf.federated.loss import batch_loss, outputs_and_losses
from fedmf.federated.training.evaluation import update_metric
from tests.federated.small_task import CLASSES, LENGTH, small_task

CROSS_ENTROPY = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def branched(x, scale=1.0):
    """x, by an `if` and a `for` on tensors."""
    if tf.reduce_sum(x) > -1e9:
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


LABELS = tf.reshape(tf.range(2 * LENGTH), (2, LENGTH)) % CLASSES
OUTPUTS = tf.random.stateless_normal((2, LENGTH, CLASSES), seed=(0, 1))


def with_layer():
    model = small_task().build_model(3)
    return tf.keras.Sequential([tf.keras.Input((LENGTH,), dtype=tf.int32), *model.layers, Layer()])


def counted(metric, labels, outputs):
    update_metric(metric, labels, outputs)
    return metric.result()


CALLS = {
    "function": lambda: (batch_loss(small_task(loss=of_function)), LABELS, OUTPUTS),
    "loss": lambda: (batch_loss(small_task(loss=Loss())), LABELS, OUTPUTS),
    "layer": lambda: (lambda model, x: outputs_and_losses(model, x)[0], with_layer(), LABELS),
    "metric": lambda: (counted, Accuracy("accuracy"), LABELS, OUTPUTS),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_control_flow_on_tensors_is_the_same_in_a_graph(call):
    function, *arguments = call()
    outside = function(*arguments)
    function, *arguments = call()  # a metric that has counted nothing
    # What is traced itself is rewritten, even ours; what it calls is not
    in_graph = tf.function(lambda *given: function(*given))(*arguments)
    np.testing.assert_allclose(in_graph, outside, rtol=1e-5)
    assert abs(np.asarray(outside)).max() > 0


def test_what_is_called_as_it_stands_is_refused_by_tensorflow():
    """The control."""

    @tf.function
    def as_it_stands(labels, outputs):
        return tf.autograph.experimental.do_not_convert(of_function)(labels, outputs, None)

    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
        as_it_stands(LABELS, OUTPUTS)
