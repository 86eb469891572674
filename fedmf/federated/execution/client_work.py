"""Client work of the fast execution: a local epoch for each client, whose clipped updates are summed in the cohort's order."""

import abc
import collections
import concurrent.futures
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.federated.aggregation.query import MatrixFactorizationQuery
from fedmf.federated.examples import Epochs, concatenated, count, in_batches
from fedmf.federated.task import CompiledEpoch, Task, mean_loss
from fedmf.federated.training.optimizers import client_optimizer
from fedmf.runs.config import TrainConfig
from fedmf.terminal import interrupts

# Examples times parameters of a group of clients: some tenths of a second on one core.
GROUP_PRODUCTS = 10**8
# Of the gradients of single examples that are held at once: 128 MiB.
GROUP_FLOATS = 2**25


class ClientWork(abc.ABC):
    """The clients of a round. The same weights and cohort give the same sum, bit for bit."""

    @abc.abstractmethod
    def add(self, weights: Sequence[Any], total: Any, cohort: Sequence[Epochs]) -> tuple[Any, float]:
        """Adds the clipped updates of the cohort's clients to `total`, in their order.

        Args:
          weights: of the global model.
          total: the query's sample state.
          cohort: each client's epochs.

        Returns:
          The sum, and the sum over all examples of the loss before each step.
        """


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class AutodiffClients(ClientWork):
    """For any Keras model: a tf.function that trains a group of clients, one after the other, and adds their updates.

    A group is as many clients as are worth a call: of small models a call costs more than its arithmetic.
    """

    def __init__(self, task: Task, config: TrainConfig, query: MatrixFactorizationQuery, specs: Sequence[Any]) -> None:
        self._batch_size, self._query, self._loss = task.batch_size, query, mean_loss(task)
        self._optimizer = client_optimizer(config)
        self._specs = list(specs)
        self._model = task.build_model(config.seed)
        parameters = sum(spec.shape.num_elements() for spec in specs)
        self._group_examples, self._group_gradients = GROUP_PRODUCTS // parameters, GROUP_FLOATS // parameters
        batches = tf.nest.map_structure(
            lambda spec: tf.TensorSpec([None, task.batch_size, *spec.shape[1:]], spec.dtype), task.spec
        )
        real, ends = tf.TensorSpec([None, task.batch_size], tf.float32), tf.TensorSpec([None], tf.int32)
        self._group = tf.function(self._train, input_signature=[list(specs), _specs_of(query), *batches, real, ends])
        self._single_gradients = tf.function(
            self._vectorised, input_signature=[list(specs), _specs_of(query), *batches]
        )

    def add(self, weights: Sequence[Any], total: Any, cohort: Sequence[Epochs]) -> tuple[Any, float]:
        """See `ClientWork.add`."""
        loss = 0.0
        single = self._batch_size == 1 and all(len(epochs) == 1 and count(epochs[0]) == 1 for epochs in cohort)
        for group in _groups(cohort, max(1, self._group_gradients) if single else self._group_examples):
            interrupts.check()
            batches, real = zip(
                *(in_batches(epoch, self._batch_size) for epochs in group for epoch in epochs), strict=True
            )
            if single:
                total, losses = self._single_gradients(list(weights), total, *concatenated(batches))
            else:
                in_epochs = np.cumsum([len(each) for each in real])
                ends = in_epochs[np.cumsum([len(epochs) for epochs in group]) - 1].astype(np.int32)
                total, losses = self._group(list(weights), total, *concatenated(batches), np.concatenate(real), ends)
            loss += float(losses)
        return total, loss

    def _train(self, weights: Any, total: Any, xs: Any, ys: Any, real: Any, ends: Any) -> Any:
        """Trains each client of the group; client c has the batches before ends[c]. Adds the clipped updates to `total`.

        Returns:
          The sum, and the loss before each step summed over examples.
        """
        loss_sum, batch = tf.constant(0.0), tf.constant(0)
        for end in ends:
            for variable, weight in zip(self._model.trainable_variables, weights, strict=True):
                variable.assign(weight)
            state = self._optimizer.initialize(self._specs)
            while batch < end:
                x, y = tf.nest.map_structure(lambda array, i=batch: array[i], (xs, ys))
                state, loss = self._step(state, x, y, real[batch])
                loss_sum += loss * tf.reduce_sum(real[batch])
                batch += 1
            # TFF's sign: the "gradient" the server descends is weights before minus weights after.
            update = [w - v for v, w in zip(self._model.trainable_variables, weights, strict=True)]
            total = _accumulate(self._query, total, update)
        return total, loss_sum

    def _vectorised(self, weights: Any, total: Any, xs: Any, ys: Any) -> Any:
        """`_train` for clients of one example each, whose gradients are taken side by side: privacy of single examples."""
        for variable, weight in zip(self._model.trainable_variables, weights, strict=True):
            variable.assign(weight)
        gradients, losses = tf.vectorized_map(
            lambda example: self._gradients(example[0], example[1], tf.ones([1])), (xs, ys)
        )
        state = self._optimizer.initialize(self._specs)
        for i in tf.range(tf.shape(losses)[0]):
            _, after = self._optimizer.next(state, weights, [gradient[i] for gradient in gradients])
            total = _accumulate(self._query, total, [w - a for w, a in zip(weights, after, strict=True)])
        return total, tf.reduce_sum(losses)

    def _step(self, state: Any, x: Any, y: Any, real: Any) -> Any:
        """One step of the client's optimizer; returns its state, and the loss before the step."""
        variables = self._model.trainable_variables
        gradients, loss = self._gradients(x, y, real)
        state, after = self._optimizer.next(state, [variable.read_value() for variable in variables], gradients)
        for variable, weight in zip(variables, after, strict=True):
            variable.assign(weight)
        return state, loss

    def _gradients(self, x: Any, y: Any, real: Any) -> Any:
        """Of a batch; and its loss."""
        variables = self._model.trainable_variables
        with tf.GradientTape() as tape:
            loss = self._loss(y, self._model(x, training=True), real)
            minimised = tf.add_n([loss, *self._model.losses])  # as TFF's and Keras's training add regularisers
        gradients = tape.gradient(minimised, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return [tf.convert_to_tensor(gradient) for gradient in gradients], loss


def _groups(cohort: Sequence[Epochs], examples: int) -> Iterator[list[Epochs]]:
    """The cohort in groups of at most so many examples, or of one client."""
    group: list[Epochs] = []
    held = 0
    for epochs in cohort:
        size = sum(map(count, epochs))
        if group and held + size > examples:
            yield group
            group, held = [], 0
        group.append(epochs)
        held += size
    if group:
        yield group


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

    def add(self, weights: Sequence[Any], total: Any, cohort: Sequence[Epochs]) -> tuple[Any, float]:
        """See `ClientWork.add`."""
        weights = [np.ascontiguousarray(w) for w in weights]
        free, waiting = list(self._updates), collections.deque[tuple[Any, _Update]]()
        clients, loss = iter(cohort), 0.0
        try:
            for _ in cohort:
                while free and (epochs := next(clients, None)) is not None:
                    x, y = (np.ascontiguousarray(part) for part in epochs[0])
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
