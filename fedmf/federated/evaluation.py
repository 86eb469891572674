"""Evaluation of a model, which returns its metrics on a split of the data, and the names of
undefined metrics.

A metric is undefined where Keras gives a number without meaning, such as 0 for the AUC of examples
of one class or for a mean over no examples.
"""

import collections
import concurrent.futures
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from fedmf.federated.client_training.records import specs_of
from fedmf.federated.loss import batch_loss, is_mean, keras_mask
from fedmf.federated.model_functions import ModelFunctions, tensor_specs
from fedmf.federated.tensorflow_import import check_eager
from fedmf.federated.tff_models import Outputs, TffModel
from fedmf.training.client_work import cores
from fedmf.training.examples import Examples, count, split_weights, take
from fedmf.training.learner import ClientSettings, Evaluation

MAX_BATCH_EXAMPLES = 256
# Largest number of bytes for the outputs of one evaluation batch. Memory for larger arrays is
# requested from the system each time, which takes long.
MAX_OUTPUT_BYTES = 2**25
# Keras's layers set these attributes on their outputs, and Keras's losses and metrics read them.
_OUTPUT_ATTRIBUTES = ("_keras_mask", "_keras_logits")
# If the outputs are those of a softmax or a sigmoid, Keras's crossentropies compute with the
# logits, the operation's input, because a probability may be rounded to 0. This table has the
# function of each such operation.
_LOGIT_OPERATIONS = {"Softmax": tf.nn.softmax, "Sigmoid": tf.sigmoid}


def update_metric(metric: tf.keras.metrics.Metric, labels: Any, outputs: Any) -> None:
    """Updates a metric by the labels and outputs of a batch, as Keras's `Model.evaluate` does.

    Masked outputs do not count, and each example counts once, whatever its weight in the loss.

    Labels of one number an example get the axis that the outputs of a model with one output have:
    without it Keras's metrics would take one mean of the batch, and a short batch would count as
    much as a long one.
    """
    labels, _ = split_weights(labels)
    output_mask = keras_mask(outputs)
    are_tensors = tf.is_tensor(labels) and tf.is_tensor(outputs)
    if are_tensors and labels.shape.rank == 1 and outputs.shape[1:] == [1]:
        labels = labels[:, tf.newaxis]
    if output_mask is None:
        metric.update_state(labels, outputs)
    else:
        metric.update_state(labels, outputs, sample_weight=output_mask)


class KerasEvaluator:
    """A function of weights and examples that evaluates a Keras or TFF model, an `Evaluate`.

    Args:
      functions: the task's functions.
      settings: the run's settings.
    """

    def __init__(self, functions: ModelFunctions, settings: ClientSettings) -> None:
        check_eager()
        self._loss = batch_loss(functions)
        self._is_mean_loss = is_mean(functions)
        self._training_batch_size = settings.batch_size
        self._model = functions.build_model(settings.seed)
        # A TFF model computes its own metrics, so the task has none if its model is one of TFF.
        self._tff_model = self._model if isinstance(self._model, TffModel) else None
        self._metrics = [] if functions.metrics is None else list(functions.metrics())
        # The mean loss is computed in float64, because a count of words in float32 would stop
        # growing at 16 million.
        self._mean_loss = tf.keras.metrics.Mean("loss", tf.float64)
        if all(metric.name != "loss" for metric in self._metrics):
            self._metrics.append(self._mean_loss)
        x_specs, y_specs = tensor_specs(settings.spec)
        self._compute_outputs: Callable[[Any], _BatchOutputs]
        if self._tff_model is None:
            traced_outputs = tf.function(self._keras_outputs, input_signature=[x_specs])
            output_specs = specs_of(traced_outputs.get_concrete_function().structured_outputs)
            self._compute_outputs = traced_outputs
        else:
            output_specs = _BatchOutputs(x_specs, {})
            self._compute_outputs = _uncomputed_outputs
        self._update_metrics = tf.function(
            self._update_metrics_by_batch, input_signature=[y_specs, *output_specs]
        )
        self._max_waiting = cores()
        self._pool = concurrent.futures.ThreadPoolExecutor(self._max_waiting, "evaluation")
        self._batch_size = 0

    def _keras_outputs(self, x: Any) -> "_BatchOutputs":
        """Computes the outputs of a Keras model, together with the attributes and logits that the
        metrics need.
        """
        outputs = self._model(x, training=False)
        annotations: dict[str, dict[int, tf.Tensor]] = {
            name: {} for name in (*_OUTPUT_ATTRIBUTES, *_LOGIT_OPERATIONS)
        }
        for index, output in enumerate(tf.nest.flatten(outputs)):
            for name in _OUTPUT_ATTRIBUTES:
                attribute_value = getattr(output, name, None)
                if attribute_value is not None:
                    annotations[name][index] = attribute_value
            output_operation = getattr(output, "op", None)
            if output_operation is not None and output_operation.type in _LOGIT_OPERATIONS:
                annotations[output_operation.type][index] = output_operation.inputs[0]
        return _BatchOutputs(outputs, annotations)

    def _update_metrics_by_batch(
        self, y: Any, outputs: Any, annotations: dict[str, dict[int, tf.Tensor]]
    ) -> None:
        """Updates all metrics by the labels and outputs of a batch."""
        if self._tff_model is None:
            outputs = _annotated(outputs, annotations)
        else:
            # Computing the outputs of a TFF model also updates the model's own metrics.
            outputs = self._tff_model(outputs)
        for metric in self._metrics:
            if metric is self._mean_loss:
                num_examples = tf.shape(tf.nest.flatten(y)[0])[0]
                metric.update_state(
                    self._loss(split_weights(y)[0], outputs), sample_weight=num_examples
                )
            else:
                update_metric(metric, y, outputs)

    def _affordable_batch_size(self, examples: Examples) -> int:
        """Returns a batch size for the evaluation, with outputs of at most MAX_OUTPUT_BYTES.

        It is a power of two. If the loss depends on the batch size, it is the batch size of
        training instead.
        """
        if self._mean_loss in self._metrics and not self._is_mean_loss:
            return self._training_batch_size
        x, _ = tf.nest.map_structure(tf.constant, take(examples, slice(0, 1)))
        outputs = self._model(x, training=False)
        if isinstance(outputs, Outputs):
            outputs = outputs.predictions
        output_bytes = sum(
            output.dtype.size * int(tf.size(output)) for output in tf.nest.flatten(outputs)
        )
        max_examples = MAX_OUTPUT_BYTES // max(1, output_bytes)
        return min(MAX_BATCH_EXAMPLES, 1 << max(0, max_examples.bit_length() - 1))

    def __call__(self, weights: Sequence[np.ndarray], examples: Examples) -> Evaluation:
        """Returns the metrics of the model with these weights on these examples.

        A TFF model's own metrics all count as defined.
        """
        for variable, weight in zip(self._model.trainable_variables, weights, strict=True):
            variable.assign(weight)
        for metric in self._metrics:
            metric.reset_state()
        if self._tff_model is not None:
            self._tff_model.reset_metrics()
        self._batch_size = self._batch_size or self._affordable_batch_size(examples)
        # The outputs of several batches are computed in parallel, because each operation of
        # TensorFlow may be limited to one thread. The metrics are updated batch by batch in order.
        pending_batches = collections.deque[tuple[Any, concurrent.futures.Future[_BatchOutputs]]]()
        for start in range(0, count(examples), self._batch_size):
            batch_examples = take(examples, slice(start, start + self._batch_size))
            x, y = tf.nest.map_structure(tf.constant, batch_examples)
            pending_batches.append((y, self._pool.submit(self._compute_outputs, x)))
            if len(pending_batches) > self._max_waiting:
                y, job = pending_batches.popleft()
                self._update_metrics(y, *job.result())
        for y, job in pending_batches:
            self._update_metrics(y, *job.result())
        metric_values = {} if self._tff_model is None else self._tff_model.metric_values()
        metric_values |= {metric.name: float(metric.result()) for metric in self._metrics}
        undefined_names = {metric.name for metric in self._metrics if not is_defined(metric)}
        return Evaluation(metric_values, frozenset(undefined_names))


class _BatchOutputs(NamedTuple):
    """The outputs of a model on a batch, with the annotations that Keras's metrics read.

    Attributes:
      outputs: of a Keras model; for a TFF model, which computes them later, its inputs.
      annotations: the attributes and logits that come with the outputs, by name and by index of the
        output. A graph would lose them.
    """

    outputs: Any
    annotations: dict[str, dict[int, tf.Tensor]]


def _uncomputed_outputs(x: Any) -> _BatchOutputs:
    """Returns the inputs of a batch in place of outputs, which a TFF model computes later from
    them.
    """
    return _BatchOutputs(x, {})


def _annotated(outputs: Any, annotations: dict[str, dict[int, tf.Tensor]]) -> Any:
    """Returns the outputs with Keras's attributes set again. If logits were kept, the outputs are
    computed from them.
    """
    output_leaves = tf.nest.flatten(outputs)
    for name, function in _LOGIT_OPERATIONS.items():
        for index, logits in annotations[name].items():
            output_leaves[index] = function(logits)
    for name in _OUTPUT_ATTRIBUTES:
        for index, value in annotations[name].items():
            setattr(output_leaves[index], name, value)
    return tf.nest.pack_sequence_as(outputs, output_leaves)


_keras = tf.keras.metrics
# AUC, and metrics at a point of a curve such as ROC, need examples of both classes.
_CURVE_METRICS = (
    _keras.AUC,
    _keras.PrecisionAtRecall,
    _keras.RecallAtPrecision,
    _keras.SensitivityAtSpecificity,
    _keras.SpecificityAtSensitivity,
)
# If the variance of the labels is below this fraction of their mean square, it counts as a rounding
# error, and the labels as all equal.
_ROUNDING = 1e-6


def is_defined(metric: tf.keras.metrics.Metric) -> bool:
    """Returns whether the value of a Keras metric has a meaning on the examples that it has seen.

    Undefined are NaN; metrics of a curve on examples of one class; precision, recall and F scores
    that divide 0 by 0; R2 of labels that are all equal; and a mean, or a subclass of it, over no
    examples.
    """
    if np.isnan(float(metric.result())):
        return False
    if isinstance(metric, _CURVE_METRICS):
        num_positives = _total_count(metric, "true_positives", "false_negatives")
        num_negatives = _total_count(metric, "true_negatives", "false_positives")
        return bool(np.all(num_positives > 0) and np.all(num_negatives > 0))
    if isinstance(metric, _keras.Precision):
        return bool(np.all(_total_count(metric, "true_positives", "false_positives") > 0))
    if isinstance(metric, _keras.Recall):
        return bool(np.all(_total_count(metric, "true_positives", "false_negatives") > 0))
    if isinstance(metric, _keras.FBetaScore):
        count_names = ("true_positives", "false_positives", "false_negatives")
        return bool(np.sum(_total_count(metric, *count_names)) > 0)
    if isinstance(metric, _keras.R2Score):
        squared_sum = np.asarray(metric.squared_sum)
        squared_deviations = squared_sum - np.asarray(metric.sum) ** 2 / np.asarray(metric.count)
        return bool(np.all(squared_deviations > _ROUNDING * squared_sum))
    return not isinstance(metric, _keras.Mean) or float(metric.count) > 0


def _total_count(metric: tf.keras.metrics.Metric, *names: str) -> Any:
    """Returns the sum of a metric's variables, such as `total` and `count`, by their names."""
    return sum(np.asarray(getattr(metric, name)) for name in names)
