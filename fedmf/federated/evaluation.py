"""Metrics of a model on a split of the data.

And whether a metric is defined on the examples that it has seen: Keras gives 0 for the AUC of one
class, and for a mean of nothing.
"""

import collections
import concurrent.futures
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.federated.execution.records import specs_of
from fedmf.federated.loss import batch_loss, is_mean, keras_mask
from fedmf.federated.model_functions import ModelFunctions, tensor_specs
from fedmf.federated.tensorflow_import import check_eager
from fedmf.federated.tff_models import Outputs, TffModel
from fedmf.training.client_work import cores
from fedmf.training.examples import Examples, count, split_weights, take
from fedmf.training.learner import ClientSettings, Evaluation

# Larger outputs the C library gets from the system each time, page by page: a fifth of the time
# with 256 examples of 20 words among 10,000.
MAX_BATCH_EXAMPLES, MAX_OUTPUT_BYTES = 256, 2**25
# What Keras's layers leave on their outputs, for its losses and metrics.
_LEFT = ("_keras_mask", "_keras_logits")
# Its crossentropies look for these operations, too, and take the input of one in place of a
# probability that is rounded to 0.
_OF_LOGITS = {"Softmax": tf.nn.softmax, "Sigmoid": tf.sigmoid}


def update_metric(metric: tf.keras.metrics.Metric, labels: Any, outputs: Any) -> None:
    """Counts a batch as `Model.evaluate` does: without what is masked in the outputs, and each
    example once, whatever its weight in the loss.

    A label for each example and a model with one output: without an axis that such labels lack,
    Keras's metrics would take one mean of the batch, and a short batch would count
    as much as any other.
    """
    (labels, _), mask = split_weights(labels), keras_mask(outputs)
    if (
        tf.is_tensor(labels)
        and tf.is_tensor(outputs)
        and labels.shape.rank == 1
        and outputs.shape[1:] == [1]
    ):
        labels = labels[:, tf.newaxis]
    metric.update_state(labels, outputs, **({} if mask is None else {"sample_weight": mask}))


class KerasEvaluator:
    """`Evaluate` of a Keras or TFF model.

    Args:
      functions: of the task.
      settings: of the run.
    """

    def __init__(self, functions: ModelFunctions, settings: ClientSettings) -> None:
        check_eager()
        self._loss, self._is_mean = batch_loss(functions), is_mean(functions)
        self._batch_size_of_training = settings.batch_size
        self._model = functions.build_model(settings.seed)
        # With metrics of its own
        self._own = self._model if isinstance(self._model, TffModel) else None
        self._metrics = [] if functions.metrics is None else list(functions.metrics())
        # Float64: float32 stands still at 16 million counted words.
        self._mean_loss = tf.keras.metrics.Mean("loss", tf.float64)
        if all(metric.name != "loss" for metric in self._metrics):
            self._metrics.append(self._mean_loss)
        x, y = tensor_specs(settings.spec)
        if self._own is None:
            self._outputs = tf.function(self._of_batch, input_signature=[x])
            found = self._outputs.get_concrete_function().structured_outputs
            specs = specs_of(found)
        else:
            self._outputs, specs = lambda x: (x, {}), (x, {})
        self._count = tf.function(self._count_batch, input_signature=[y, *specs])
        self._ahead = cores()
        self._pool = concurrent.futures.ThreadPoolExecutor(self._ahead, "evaluation")
        self._batch_size = 0

    def _of_batch(self, x: Any) -> tuple[Any, dict[str, dict[int, Any]]]:
        """The outputs of a Keras model, and what they come with: of `_LEFT`, and inputs of
        `_OF_LOGITS`, by the output's place.
        """
        outputs = self._model(x, training=False)
        found: dict[str, dict[int, Any]] = {name: {} for name in (*_LEFT, *_OF_LOGITS)}
        for place, output in enumerate(tf.nest.flatten(outputs)):
            for name in _LEFT:
                value = getattr(output, name, None)
                if value is not None:
                    found[name][place] = value
            operation = getattr(output, "op", None)
            if operation is not None and operation.type in _OF_LOGITS:
                found[operation.type][place] = operation.inputs[0]
        return outputs, found

    def _count_batch(self, y: Any, outputs: Any, found: dict[str, dict[int, Any]]) -> None:
        flat = tf.nest.flatten(outputs)
        for name, function in _OF_LOGITS.items() if found else ():
            for place, logits in found[name].items():
                flat[place] = function(logits)
        for name in _LEFT if found else ():
            for place, value in found[name].items():
                setattr(flat[place], name, value)
        outputs = tf.nest.pack_sequence_as(outputs, flat)
        if self._own is not None:  # which counts its metrics while it computes
            outputs = self._own(outputs)
        for metric in self._metrics:
            if metric is self._mean_loss:
                metric.update_state(
                    self._loss(split_weights(y)[0], outputs),
                    sample_weight=tf.shape(tf.nest.flatten(y)[0])[0],
                )
            else:
                update_metric(metric, y, outputs)

    def _affordable(self, examples: Examples) -> int:
        """Examples of a batch: a power of two, or as in training where the loss depends on it."""
        if self._mean_loss in self._metrics and not self._is_mean:
            return self._batch_size_of_training
        first = tf.nest.map_structure(tf.constant, take(examples, slice(0, 1)))
        outputs = self._model(first[0], training=False)
        outputs = tf.nest.flatten(outputs.predictions if isinstance(outputs, Outputs) else outputs)
        each = max(1, sum(output.dtype.size * int(tf.size(output)) for output in outputs))
        return min(MAX_BATCH_EXAMPLES, 1 << max(0, (MAX_OUTPUT_BYTES // each).bit_length() - 1))

    def _count_next(self, waiting: collections.deque[Any]) -> None:
        y, outputs = waiting.popleft()
        self._count(y, *outputs.result())

    def __call__(self, weights: Sequence[np.ndarray], examples: Examples) -> Evaluation:
        """Returns the metrics of weights on examples. Of a TFF model's own metrics nothing is known
        to be undefined.
        """
        for variable, weight in zip(self._model.trainable_variables, weights, strict=True):
            variable.assign(weight)
        for metric in self._metrics:
            metric.reset_state()
        if self._own is not None:
            self._own.reset_metrics()
        self._batch_size = self._batch_size or self._affordable(examples)
        # Batches side by side, and counted in their order: an operation may have a single thread.
        waiting = collections.deque[Any]()
        for start in range(0, count(examples), self._batch_size):
            batch = take(examples, slice(start, start + self._batch_size))
            x, y = tf.nest.map_structure(tf.constant, batch)
            waiting.append((y, self._pool.submit(self._outputs, x)))
            if len(waiting) > self._ahead:
                self._count_next(waiting)
        while waiting:
            self._count_next(waiting)
        own = {} if self._own is None else self._own.metric_values()
        values = own | {metric.name: float(metric.result()) for metric in self._metrics}
        undefined = {metric.name for metric in self._metrics if not is_defined(metric)}
        return Evaluation(values, frozenset(undefined))


_keras = tf.keras.metrics
# AUC, and what is read off its curves.
_OF_A_CURVE = (
    _keras.AUC,
    _keras.PrecisionAtRecall,
    _keras.RecallAtPrecision,
    _keras.SensitivityAtSpecificity,
    _keras.SpecificityAtSensitivity,
)
# A variance below this share of the squares is rounding.
_ROUNDING = 1e-6


def is_defined(metric: Any) -> bool:
    """Whether the value of a tf.keras.metrics.Metric follows from what it has counted.

    False for NaN; for what is read off a curve, of examples of one class; for precision, recall and
    F scores that divide 0 by 0; for R2, of labels that are all equal; and for a mean, also of a
    subclass, over nothing.
    """
    if np.isnan(float(metric.result())):
        return False
    if isinstance(metric, _OF_A_CURVE):
        positives = _sum(metric, "true_positives", "false_negatives")
        negatives = _sum(metric, "true_negatives", "false_positives")
        return bool(np.all(positives > 0) and np.all(negatives > 0))
    if isinstance(metric, _keras.Precision):
        return bool(np.all(_sum(metric, "true_positives", "false_positives") > 0))
    if isinstance(metric, _keras.Recall):
        return bool(np.all(_sum(metric, "true_positives", "false_negatives") > 0))
    if isinstance(metric, _keras.FBetaScore):
        return bool(
            np.sum(_sum(metric, "true_positives", "false_positives", "false_negatives")) > 0
        )
    if isinstance(metric, _keras.R2Score):
        squares, total, examples = (
            np.asarray(v) for v in (metric.squared_sum, metric.sum, metric.count)
        )
        return bool(np.all(squares - total**2 / examples > _ROUNDING * squares))
    return not isinstance(metric, _keras.Mean) or float(metric.count) > 0


def _sum(metric: Any, *names: str) -> Any:
    return sum(np.asarray(getattr(metric, name)) for name in names)
