"""Client work of the fast execution: a local epoch for each client, whose clipped updates are summed in the cohort's order."""

import abc
import collections
import concurrent.futures
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.federated.aggregation.query import MatrixFactorizationQuery
from fedmf.federated.task import CompiledEpoch, Examples, Task
from fedmf.runs.config import TrainConfig
from fedmf.terminal import interrupts


class ClientWork(abc.ABC):
    """The clients of a round. The same weights and cohort give the same sum, bit for bit."""

    @abc.abstractmethod
    def add(self, weights: Sequence[Any], total: Any, cohort: Sequence[Examples]) -> tuple[Any, float]:
        """Adds the clipped updates of the cohort's clients to `total`, in their order.

        Args:
          weights: of the global model.
          total: the query's sample state.
          cohort: each client's examples, (x, y) int32 (m, length).

        Returns:
          The sum, and the sum over all examples of the loss before each step.
        """


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class AutodiffClients(ClientWork):
    """For any Keras model: one tf.function that trains a client and adds its update; one client after the other."""

    def __init__(self, task: Task, config: TrainConfig, query: MatrixFactorizationQuery, specs: Sequence[Any]) -> None:
        self._task, self._query = task, query
        self._rate = config.client_learning_rate
        self._model = task.build_model(config.seed)
        batches = tf.TensorSpec([None, task.batch_size, config.sequence_length], tf.int32)
        real = tf.TensorSpec([None, task.batch_size], tf.float32)
        self._client = tf.function(self._train, input_signature=[list(specs), _specs_of(query), batches, batches, real])

    def add(self, weights: Sequence[Any], total: Any, cohort: Sequence[Examples]) -> tuple[Any, float]:
        """See `ClientWork.add`."""
        loss = 0.0
        for x, y in cohort:
            interrupts.check()
            total, client_loss = self._client(list(weights), total, *_in_batches(x, y, self._task.batch_size))
            loss += float(client_loss)
        return total, loss

    def _train(self, weights: Any, total: Any, xs: Any, ys: Any, real: Any) -> Any:
        """One local epoch of SGD; adds the clipped update to `total`. The loss is summed over examples before each step."""
        variables = self._model.trainable_variables
        for variable, weight in zip(variables, weights, strict=True):
            variable.assign(weight)
        loss_sum = tf.constant(0.0)
        rate = tf.constant(self._rate, tf.float32)
        for i in tf.range(tf.shape(xs)[0]):
            with tf.GradientTape() as tape:
                loss = self._task.loss(ys[i], self._model(xs[i], training=True), real[i])
            gradients = tape.gradient(loss, variables)
            for variable, gradient in zip(variables, gradients, strict=True):
                variable.assign_sub(rate * tf.convert_to_tensor(gradient))
            loss_sum += loss * tf.reduce_sum(real[i])
        # TFF's sign: the "gradient" the server descends is weights before minus weights after.
        update = [w - v for v, w in zip(variables, weights, strict=True)]
        return _accumulate(self._query, total, update), loss_sum


class CompiledClients(ClientWork):
    """For a task with a `compiled_epoch`: clients train side by side, each on one thread; updates are added in the cohort's order."""

    def __init__(
        self,
        epoch: CompiledEpoch,
        config: TrainConfig,
        query: MatrixFactorizationQuery,
        specs: Sequence[Any],
        threads: int | None,
    ) -> None:
        self._epoch, self._rate = epoch, config.client_learning_rate
        self._threads = cores() if threads is None else threads
        self._pool = concurrent.futures.ThreadPoolExecutor(self._threads, "client")
        # One update for each client in training, and one that waits for its turn.
        self._updates = [_Update(specs) for _ in range(self._threads + 1)]
        self._sum = tf.function(
            lambda total, update: _accumulate(query, total, update), input_signature=[_specs_of(query), list(specs)]
        )

    def add(self, weights: Sequence[Any], total: Any, cohort: Sequence[Examples]) -> tuple[Any, float]:
        """See `ClientWork.add`."""
        weights = [np.ascontiguousarray(w) for w in weights]
        free, waiting = list(self._updates), collections.deque[tuple[Any, _Update]]()
        clients, loss = iter(cohort), 0.0
        try:
            for _ in cohort:
                while free and (examples := next(clients, None)) is not None:
                    x, y = (np.ascontiguousarray(part) for part in examples)
                    update = free.pop()
                    waiting.append((self._pool.submit(self._epoch, weights, x, y, self._rate, update.arrays), update))
                job, update = waiting.popleft()
                loss += job.result()
                total = self._sum(total, update.tensors)
                free.append(update)
                interrupts.check()
        finally:
            # After an error: no client of this round writes into an update of the next.
            concurrent.futures.wait([job for job, _ in waiting if not job.cancel()])
        return total, loss


class _Update:
    """One client's update as arrays to be written, and the same memory as tensors."""

    def __init__(self, specs: Sequence[Any]) -> None:
        # TensorFlow shares memory that begins on a cache line.
        self.arrays = [aligned_buffer(spec.shape.num_elements()).reshape(spec.shape) for spec in specs]
        self.tensors = [tf.experimental.dlpack.from_dlpack(array.__dlpack__()) for array in self.arrays]


def aligned_buffer(floats: int) -> np.ndarray:
    """Zeros, float32 (floats,), that begin on a cache line."""
    line = 64
    buffer = np.zeros(floats + line // 4, np.float32)
    start = -buffer.ctypes.data % line // 4
    return buffer[start : start + floats]


def _specs_of(query: MatrixFactorizationQuery) -> Any:
    return tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), query.initial_sample_state())


def _accumulate(query: MatrixFactorizationQuery, total: Any, update: Any) -> Any:
    params = query.derive_sample_params(query.initial_global_state())
    return query.accumulate_record(params, total, update)


def _in_batches(x: np.ndarray, y: np.ndarray, batch_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Batches of equal shape: the last one is filled with zeros, and `real` (batches, batch_size) is 0 there."""
    count, length = x.shape
    batches = -(-count // batch_size)
    fill = ((0, batches * batch_size - count), (0, 0))
    shape = (batches, batch_size, length)
    real = (np.arange(batches * batch_size) < count).astype(np.float32).reshape(batches, batch_size)
    return np.pad(x, fill).reshape(shape), np.pad(y, fill).reshape(shape), real
