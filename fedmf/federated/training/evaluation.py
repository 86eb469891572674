"""Metrics of a model on a split of the data."""

import collections
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.federated.task import Task
from fedmf.runs.config import TrainConfig

# Larger outputs the C library gets from the system each time, page by page: a fifth of the time with 256 examples of 20 words among 10,000.
MAX_BATCH_EXAMPLES, MAX_OUTPUT_BYTES = 256, 2**25


class Evaluator:
    """Metrics of weights on a split: {name: float}."""

    def __init__(self, task: Task, config: TrainConfig) -> None:
        self._task = task
        self._model = task.build_model(config.seed)
        self._step = tf.function(self._batch, reduce_retracing=True)
        self._batch_size = 0

    def _batch(self, x: Any, y: Any) -> Any:
        ones = tf.ones([tf.shape(x)[0]], tf.float32)
        sums = self._task.metrics(y, self._model(x, training=False), ones)
        return {name: tf.stack([tf.cast(v, tf.float32) for v in pair]) for name, pair in sums.items()}

    def _affordable(self, x: np.ndarray) -> int:
        """Examples of a batch, a power of two."""
        outputs = tf.nest.flatten(self._model(tf.constant(x[:1]), training=False)) if len(x) else []
        each = max(1, sum(output.dtype.size * int(tf.size(output)) for output in outputs))
        return min(MAX_BATCH_EXAMPLES, 1 << max(0, (MAX_OUTPUT_BYTES // each).bit_length() - 1))

    def __call__(self, weights: list[np.ndarray], split: str) -> dict[str, float]:
        """Evaluates on "validation" or "test"."""
        for variable, weight in zip(self._model.trainable_variables, weights, strict=True):
            variable.assign(weight)
        x, y = self._task.checked(self._task.evaluation_examples(split), f"the {split} split")
        totals: dict[str, np.ndarray] = collections.defaultdict(lambda: np.zeros(2))
        self._batch_size = self._batch_size or self._affordable(x)
        for start in range(0, len(x), self._batch_size):
            batch = slice(start, start + self._batch_size)
            for name, pair in self._step(tf.constant(x[batch]), tf.constant(y[batch])).items():
                totals[name] += pair.numpy()
        return {name: float(pair[0] / pair[1]) if pair[1] else 0.0 for name, pair in totals.items()}
