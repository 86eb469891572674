"""Clients side by side, each on one thread: those of any model, by automatic differentiation, and
those of a task's compiled epoch.
"""

import collections
import concurrent.futures
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.federated.execution.client_work import (
    Broadcast,
    ClientWork,
    broadcast_spec,
    client_optimizer,
    gradients,
    group_sum,
    trained,
)
from fedmf.federated.execution.records import QuerySample, Records
from fedmf.federated.loss import batch_loss, minimised
from fedmf.federated.task import CompiledEpoch, Task
from fedmf.runs.config import TrainConfig
from fedmf.terminal import interrupts
from fedmf.training.examples import Epochs
from fedmf.training.execution.client_data import batches, end_to_end
from fedmf.training.execution.groups import GroupSum

# What the server sent and a client's epochs -> its clipped update, and its loss before each step
# summed over examples. One client at a time.
OneClient = Callable[[Broadcast, Epochs], tuple[QuerySample, float]]


class ClientsInThreads(ClientWork):
    """As many clients at a time as there are threads; updates are added in the cohort's order.

    Args:
      make: makes what trains a client, for each thread when it has its first.
      records: of the updates.
      threads: clients at a time.
      reason: why they train so, in words.
    """

    def __init__(
        self, make: Callable[[], OneClient], records: Records, threads: int, reason: str
    ) -> None:
        self._reason, self._threads = reason, threads
        self._make, self._making, self._own = make, threading.Lock(), threading.local()
        self._shapes = [tuple(spec.shape) for spec in records.flat_specs]
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, "client")
        self._ahead = threads + 1  # one waits for its turn

    def _train(self, sent: Broadcast, epochs: Epochs) -> tuple[QuerySample, float]:
        if not hasattr(self._own, "client"):
            with self._making:  # TensorFlow traces one function after the other
                self._own.client = self._make()
        found: tuple[QuerySample, float] = self._own.client(sent, epochs)
        return found

    def explain(self) -> str:
        """See `ClientWork.explain`."""
        return f"one client a thread, {self._threads} at a time: {self._reason}"

    def sums(self, sent: Broadcast, groups: Iterable[Sequence[Epochs]]) -> Iterator[GroupSum]:
        """See `ClientWork.sums`. Clients of the next groups begin where threads are free."""
        groups = list(groups)
        clients = itertools.chain.from_iterable(map(trained, groups))
        waiting = collections.deque[concurrent.futures.Future[tuple[QuerySample, float]]]()
        try:
            for group in groups:
                record, counts, loss = [np.zeros(s) for s in self._shapes], np.zeros(3, int), 0.0
                for _ in trained(group):
                    for epochs in itertools.islice(clients, self._ahead - len(waiting)):
                        waiting.append(self._pool.submit(self._train, sent, epochs))
                    sample, of_client = waiting.popleft().result()
                    for total, part in zip(record, sample.record, strict=True):
                        total += part.numpy()
                    counts += [int(count) for count in sample[1:]]
                    loss += of_client
                    interrupts.check()
                yield group_sum(group, QuerySample(record, *counts.astype(np.int32)), loss)
        finally:
            # After an error: no client of this round is in the way of the next one's.
            concurrent.futures.wait([job for job in waiting if not job.cancel()])


class KerasClient:
    """`OneClient` of any model, which is its own, in a traced function of its own."""

    def __init__(
        self, task: Task, config: TrainConfig, records: Records, largest_step: float
    ) -> None:
        self._batch_size, self._records, self._loss = task.batch_size, records, batch_loss(task)
        self._optimizer = client_optimizer(config, largest_step)
        self._rate = config.client_learning_rate
        self._model, self._structure = task.build_model(config.seed), task.tensor_specs
        sent, ends = broadcast_spec(records, config), tf.TensorSpec([None], tf.int32)
        self._trained = tf.function(self._train, input_signature=[sent, *task.tensor_specs, ends])
        self._trained.get_concrete_function()  # traced here, where one thread is at a time

    def __call__(self, sent: Broadcast, epochs: Epochs) -> tuple[QuerySample, float]:
        """See `OneClient`."""
        x, y = tf.nest.pack_sequence_as(self._structure, end_to_end([epochs]))
        found = batches([epochs], self._batch_size)
        sample, loss = self._trained(sent, x, y, found.start + found.size)
        return sample, float(loss)

    def _train(self, sent: Broadcast, xs: Any, ys: Any, ends: Any) -> tuple[QuerySample, Any]:
        """Args: inputs and labels of all epochs, and the row at which each batch ends."""
        weights, params = sent
        loss_sum, row = tf.constant(0.0), tf.constant(0)
        variables = self._model.trainable_variables
        for variable, weight in zip(variables, weights, strict=True):
            variable.assign(weight)
        state = self._optimizer.initial(list(weights))
        for end in ends:
            rows = slice(row, end)
            x, y = tf.nest.map_structure(lambda array, rows=rows: array[rows], (xs, ys))
            with tf.GradientTape() as tape:
                loss = self._loss(y, self._model(x, training=True))
                total_loss = minimised(loss, self._model.losses)
            found = [tf.convert_to_tensor(g) for g in gradients(tape, total_loss, variables)]
            before = [variable.read_value() for variable in variables]
            state, after = self._optimizer.next(state, before, found, self._rate)
            for variable, weight in zip(variables, after, strict=True):
                variable.assign(weight)
            loss_sum += loss * tf.cast(end - row, tf.float32)
            row = end
        # TFF's sign: the "gradient" the server descends is weights before minus weights after.
        update = [w - v for v, w in zip(variables, weights, strict=True)]
        return self._records.clipped(params, update), loss_sum


class CompiledClient:
    """`OneClient` of a task's compiled epoch.

    Args:
      epoch: of the task.
      config: of the run.
      records: of the updates.
      batch_size: of the task.
      largest_step: bound on the norm of a step, or infinity. With a bound each batch is an epoch.
    """

    def __init__(
        self,
        epoch: CompiledEpoch,
        config: TrainConfig,
        records: Records,
        batch_size: int,
        largest_step: float,
    ) -> None:
        self._epoch, self._rate, specs = epoch, config.client_learning_rate, records.flat_specs
        self._batch_size = batch_size
        self._largest_step = largest_step
        # The update as arrays to be written, and the same memory as tensors: TensorFlow shares what
        # begins on a cache line.
        self._arrays = [
            aligned_buffer(spec.shape.num_elements()).reshape(spec.shape) for spec in specs
        ]
        self._tensors = [
            tf.experimental.dlpack.from_dlpack(array.__dlpack__()) for array in self._arrays
        ]
        weights, params = broadcast_spec(records, config)
        self._clipped = tf.function(records.clipped, input_signature=[params, weights])
        self._clipped.get_concrete_function()  # see `KerasClient`

    def __call__(self, sent: Broadcast, epochs: Epochs) -> tuple[QuerySample, float]:
        """See `OneClient`."""
        weights = [np.ascontiguousarray(weight) for weight in sent.weights]
        x, y = (np.ascontiguousarray(part) for part in epochs[0])
        if math.isinf(self._largest_step):
            loss = self._epoch(weights, x, y, self._rate, self._arrays)
        else:
            loss = self._in_bounded_steps(weights, x, y)
        return self._clipped(sent.params, self._tensors), loss

    def _in_bounded_steps(self, weights: Sequence[np.ndarray], x: Any, y: Any) -> float:
        """Trains on batch after batch, and writes the update as an epoch does."""
        loss = 0.0
        current = [weight.copy() for weight in weights]
        for start in range(0, len(y), self._batch_size):
            rows = slice(start, start + self._batch_size)
            loss += self._epoch(current, x[rows], y[rows], self._rate, self._arrays)
            squared = sum(float(np.vdot(step, step)) for step in self._arrays)
            factor = np.float32(1.0)
            if squared > self._largest_step**2:
                factor = np.float32(self._largest_step / math.sqrt(squared))
            for weight, step in zip(current, self._arrays, strict=True):
                weight -= factor * step
        for update, before, after in zip(self._arrays, weights, current, strict=True):
            np.subtract(before, after, out=update)
        return loss


def aligned_buffer(floats: int) -> np.ndarray:
    """Zeros, float32 (floats,), that begin on a cache line."""
    line = 64
    buffer = np.zeros(floats + line // 4, np.float32)
    start = -buffer.ctypes.data % line // 4
    return buffer[start : start + floats]
