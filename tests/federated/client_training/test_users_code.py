"""AutoGraph rewrites a user's `if` and `for` on tensors in graphs, and skips fedmf's own code."""

import pytest
import tensorflow as tf

from fedmf.training.evaluation import Evaluator
from tests.federated.small_runs import checked_fingerprint, config, start_of
from tests.federated.small_task import LENGTH, small_task

CROSS_ENTROPY = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def branched(x, scale=1.0):
    """Returns x, by an `if` and a `for` on tensors."""
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


def build_model(seed):
    model = small_task().build_model(seed)
    return tf.keras.Sequential([tf.keras.Input((LENGTH,), dtype=tf.int32), *model.layers, Layer()])


@pytest.mark.parametrize("loss", [of_function, Loss()])
def test_control_flow_on_tensors_is_the_same_in_a_graph(loss):
    task = small_task(loss=loss, build_model=build_model, metrics=lambda: [Accuracy("accuracy")])
    checked_fingerprint(task, config())  # This call trains on a batch.
    evaluator = Evaluator(task, config())
    in_graph = evaluator(start_of(task), "test")
    tf.config.run_functions_eagerly(True)
    try:
        assert in_graph == pytest.approx(evaluator(start_of(task), "test"))
    finally:
        tf.config.run_functions_eagerly(False)


def test_code_that_autograph_does_not_rewrite_is_refused_by_tensorflow():
    """Negative control of the test above."""
    as_it_stands = tf.autograph.experimental.do_not_convert(branched)
    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
        tf.function(lambda x: as_it_stands(x))(tf.constant(1.0))
