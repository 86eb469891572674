"""A metric is undefined on some examples, where Keras gives a number in any case."""

import numpy as np
import pytest
import tensorflow as tf

from fedmf.federated.evaluation import is_defined

metrics = tf.keras.metrics
# Labels and predictions of a client.
CLIENTS = {
    "both": ([0.0, 1.0, 1.0], [0.3, 0.6, 0.4]),
    "positives": ([1.0, 1.0], [0.3, 0.6]),
    "negatives": ([0.0, 0.0], [0.3, 0.6]),
    "none predicted": ([1.0, 0.0], [0.1, 0.2]),
    "true negatives": ([0.0, 0.0], [0.1, 0.2]),
}
BOTH_CLASSES = {"both", "none predicted"}


class Masked(metrics.Mean):
    """The fraction of right predictions among the labels 0."""

    def update_state(self, labels, outputs, sample_weight=None):
        return super().update_state(
            tf.cast(outputs < 0.5, tf.float32), tf.cast(labels == 0, tf.float32)
        )


class Quotient(metrics.Metric):
    """A metric that is NaN without positive labels."""

    def update_state(self, labels, outputs, sample_weight=None):
        self.value = tf.reduce_sum(labels * outputs) / tf.reduce_sum(labels)

    def result(self):
        return self.value


def defined(metric):
    for name, (labels, outputs) in CLIENTS.items():
        metric.reset_state()
        metric.update_state(np.float32(labels)[:, None], np.float32(outputs)[:, None])
        if is_defined(metric):
            yield name


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (
            [
                metrics.AUC(multi_label=True, num_labels=1),
                metrics.RecallAtPrecision(0.5),
                metrics.R2Score(),
            ],
            BOTH_CLASSES,
        ),
        ([metrics.Recall(), Quotient()], {*BOTH_CLASSES, "positives"}),
        ([metrics.Precision()], {"both", "positives", "negatives"}),
        ([metrics.F1Score(average="micro", threshold=0.5)], {*CLIENTS} - {"true negatives"}),
        ([Masked()], {*CLIENTS} - {"positives"}),
        ([metrics.BinaryAccuracy(), metrics.FalsePositives()], {*CLIENTS}),
    ],
)
def test_a_metric_is_defined_on_examples_that_determine_it(metrics, expected):
    assert {metric.name: {*defined(metric)} for metric in metrics} == {
        metric.name: expected for metric in metrics
    }
