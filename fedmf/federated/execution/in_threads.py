"""Clients one by one: those of any model, by automatic differentiation, and those of a task's
compiled epoch.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.federated.execution.client_work import (
    TensorBroadcast,
    broadcast_spec,
    client_optimizer,
    gradients,
    tensor_params,
)
from fedmf.federated.execution.records import QuerySample, Records
from fedmf.federated.loss import batch_loss, minimised
from fedmf.federated.model_functions import CompiledEpoch, ModelFunctions, tensor_specs
from fedmf.training.batching import concatenated_epochs, list_batches
from fedmf.training.client_work import Broadcast
from fedmf.training.examples import Epochs
from fedmf.training.execution.in_threads import ClippedUpdate
from fedmf.training.learner import ClientSettings


class KerasClient:
    """`OneClient` of any model, which is its own, in a traced function of its own."""

    def __init__(
        self, functions: ModelFunctions, settings: ClientSettings, records: Records
    ) -> None:
        self._batch_size, self._records = settings.batch_size, records
        self._loss = batch_loss(functions)
        self._optimizer = client_optimizer(settings)
        self._rate = settings.learning_rate
        self._model = functions.build_model(settings.seed)
        self._structure = tensor_specs(settings.spec)
        sent, ends = broadcast_spec(records, settings), tf.TensorSpec([None], tf.int32)
        self._trained = tf.function(self._train, input_signature=[sent, *self._structure, ends])
        self._sent: Broadcast | None = None
        self._tensors: TensorBroadcast | None = None
        self._trained.get_concrete_function()  # traced here, where one thread is at a time

    def __call__(self, sent: Broadcast, epochs: Epochs) -> ClippedUpdate:
        """See `OneClient`."""
        x, y = tf.nest.pack_sequence_as(self._structure, concatenated_epochs([epochs]))
        found = list_batches([epochs], self._batch_size)
        if sent is not self._sent:  # of another round
            self._sent, self._tensors = sent, TensorBroadcast.of(sent)
        sample, loss = self._trained(self._tensors, x, y, found.start + found.size)
        return _clipped_update(sample, float(loss))

    def _train(self, sent: TensorBroadcast, xs: Any, ys: Any, ends: Any) -> tuple[QuerySample, Any]:
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
      settings: of the run. With a bound on steps each batch is an epoch.
      records: of the updates.
    """

    def __init__(self, epoch: CompiledEpoch, settings: ClientSettings, records: Records) -> None:
        self._epoch, self._rate, specs = epoch, settings.learning_rate, records.flat_specs
        self._batch_size = settings.batch_size
        self._largest_step = settings.max_step_norm
        # The update as arrays to be written, and the same memory as tensors: TensorFlow shares what
        # begins on a cache line.
        self._arrays = [
            aligned_buffer(spec.shape.num_elements()).reshape(spec.shape) for spec in specs
        ]
        self._tensors = [
            tf.experimental.dlpack.from_dlpack(array.__dlpack__()) for array in self._arrays
        ]
        weights, params = broadcast_spec(records, settings)
        self._clipped = tf.function(records.clipped, input_signature=[params, weights])
        self._clipped.get_concrete_function()  # see `KerasClient`

    def __call__(self, sent: Broadcast, epochs: Epochs) -> ClippedUpdate:
        """See `OneClient`."""
        weights = [np.ascontiguousarray(weight) for weight in sent.weights]
        x, y = (np.ascontiguousarray(part) for part in epochs[0])
        if math.isinf(self._largest_step):
            loss = self._epoch(weights, x, y, self._rate, self._arrays)
        else:
            loss = self._in_bounded_steps(weights, x, y)
        return _clipped_update(self._clipped(tensor_params(sent.params), self._tensors), loss)

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


def _clipped_update(sample: QuerySample, loss_sum: float) -> ClippedUpdate:
    """Returns the update that a graph clipped."""
    return ClippedUpdate(sample.record, int(sample.clipped), int(sample.zeroed), loss_sum)


def aligned_buffer(floats: int) -> np.ndarray:
    """Zeros, float32 (floats,), that begin on a cache line."""
    line = 64
    buffer = np.zeros(floats + line // 4, np.float32)
    start = -buffer.ctypes.data % line // 4
    return buffer[start : start + floats]
