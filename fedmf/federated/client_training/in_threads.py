"""Training of one client at a time, by automatic differentiation or by a compiled epoch."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.federated.client_training.client_work import (
    TensorBroadcast,
    broadcast_spec,
    client_optimizer,
    gradients,
    tensor_params,
)
from fedmf.federated.client_training.records import QuerySample, Records
from fedmf.federated.loss import batch_loss, minimised
from fedmf.federated.model_functions import CompiledEpoch, ModelFunctions, tensor_specs
from fedmf.training.batching import concatenated_epochs, list_batches
from fedmf.training.client_work import Broadcast
from fedmf.training.examples import Epochs
from fedmf.training.execution.in_threads import ClientResult
from fedmf.training.learner import ClientSettings


class KerasClient:
    """A callable that trains one client of any Keras or TFF model by automatic differentiation.

    Each object has a model and a traced function of its own, so that threads share neither.
    """

    def __init__(
        self, functions: ModelFunctions, settings: ClientSettings, records: Records
    ) -> None:
        self._batch_size = settings.batch_size
        self._records = records
        self._loss = batch_loss(functions)
        self._optimizer = client_optimizer(settings)
        self._learning_rate = settings.learning_rate
        self._model = functions.build_model(settings.seed)
        self._batch_specs = tensor_specs(settings.spec)
        sent_spec = broadcast_spec(records, settings)
        ends_spec = tf.TensorSpec([None], tf.int32)
        self._traced_training = tf.function(
            self._train, input_signature=[sent_spec, *self._batch_specs, ends_spec]
        )
        self._sent: Broadcast | None = None
        self._tensors: TensorBroadcast | None = None
        # The training function is traced here, before its first call, because TensorFlow can trace
        # in only one thread at a time, and clients train in several threads.
        self._traced_training.get_concrete_function()

    def __call__(self, sent: Broadcast, clients: Sequence[Epochs]) -> ClientResult:
        """Trains one client on its epochs, and returns its clipped update and its loss."""
        [epochs] = clients
        x, y = tf.nest.pack_sequence_as(self._batch_specs, concatenated_epochs([epochs]))
        client_batches = list_batches([epochs], self._batch_size)
        batch_ends = client_batches.start + client_batches.size
        if sent is not self._sent:
            # The broadcast is new if this client is the first one that this thread trains in a
            # round.
            self._sent = sent
            self._tensors = TensorBroadcast.of(sent)
        clipped_sample, loss_sum = self._traced_training(self._tensors, x, y, batch_ends)
        return _client_result(clipped_sample, float(loss_sum))

    def _train(
        self, sent: TensorBroadcast, xs: Any, ys: Any, batch_ends: tf.Tensor
    ) -> tuple[QuerySample, tf.Tensor]:
        """Trains a client, and returns its clipped update and the sum of its losses.

        Each loss is that of a batch before the step, times the number of examples.

        Args:
          sent: weights and parameters of the round.
          xs, ys: inputs and labels of all epochs.
          batch_ends: row at which each batch ends.
        """
        weights, params = sent
        loss_sum = tf.constant(0.0)
        batch_start = tf.constant(0)
        trainable_variables = self._model.trainable_variables
        for variable, weight in zip(trainable_variables, weights, strict=True):
            variable.assign(weight)
        optimizer_state = self._optimizer.initial(list(weights))
        for end in batch_ends:
            rows = slice(batch_start, end)
            x, y = tf.nest.map_structure(lambda array, rows=rows: array[rows], (xs, ys))
            with tf.GradientTape() as tape:
                loss = self._loss(y, self._model(x, training=True))
                total_loss = minimised(loss, self._model.losses)
            gradient_list = gradients(tape, total_loss, trainable_variables)
            gradient_list = [tf.convert_to_tensor(gradient) for gradient in gradient_list]
            old_weights = [variable.read_value() for variable in trainable_variables]
            optimizer_state, new_weights = self._optimizer.next(
                optimizer_state, old_weights, gradient_list, self._learning_rate
            )
            for variable, weight in zip(trainable_variables, new_weights, strict=True):
                variable.assign(weight)
            loss_sum += loss * tf.cast(end - batch_start, tf.float32)
            batch_start = end
        # An update is the weights before training minus the weights after training, as in TFF, so
        # that the server descends along the update like along a gradient.
        update = [
            weight - variable for variable, weight in zip(trainable_variables, weights, strict=True)
        ]
        return self._records.clipped(params, update), loss_sum


class CompiledClient:
    """A callable that trains one client by the task's compiled epoch.

    Args:
      epoch: the task's compiled epoch.
      settings: the run's settings. With a bound on steps each batch is an epoch.
      records: clipped sums of the updates.
    """

    def __init__(self, epoch: CompiledEpoch, settings: ClientSettings, records: Records) -> None:
        self._epoch = epoch
        self._learning_rate = settings.learning_rate
        self._batch_size = settings.batch_size
        self._largest_step = settings.max_step_norm
        # The compiled epoch writes the update to numpy arrays, and TensorFlow reads the memory of
        # these arrays as tensors. Memory can be shared with numpy only if it begins on a cache
        # line.
        self._update_arrays = [
            aligned_buffer(spec.shape.num_elements()).reshape(spec.shape)
            for spec in records.flat_specs
        ]
        self._update_tensors = [
            tf.experimental.dlpack.from_dlpack(array.__dlpack__()) for array in self._update_arrays
        ]
        sent_spec = broadcast_spec(records, settings)
        self._traced_clipping = tf.function(
            records.clipped, input_signature=[sent_spec.params, sent_spec.weights]
        )
        # The clipping function is traced here, before its first call, because several threads will
        # call it.
        self._traced_clipping.get_concrete_function()

    def __call__(self, sent: Broadcast, clients: Sequence[Epochs]) -> ClientResult:
        """Trains one client for one epoch, and returns its clipped update and its loss."""
        [epochs] = clients
        weights = [np.ascontiguousarray(weight) for weight in sent.weights]
        x, y = (np.ascontiguousarray(array) for array in epochs[0])
        if math.isinf(self._largest_step):
            loss_sum = self._epoch(weights, x, y, self._learning_rate, self._update_arrays)
        else:
            loss_sum = self._train_in_bounded_steps(weights, x, y)
        clipped_sample = self._traced_clipping(tensor_params(sent.params), self._update_tensors)
        return _client_result(clipped_sample, loss_sum)

    def _train_in_bounded_steps(
        self, weights: Sequence[np.ndarray], x: np.ndarray, y: np.ndarray
    ) -> float:
        """Trains batch by batch with shortened steps, and returns the sum of the losses.

        The update is written to `_update_arrays`, as a whole epoch does.
        """
        loss_sum = 0.0
        new_weights = [weight.copy() for weight in weights]
        for start in range(0, len(y), self._batch_size):
            batch_rows = slice(start, start + self._batch_size)
            loss_sum += self._epoch(
                new_weights, x[batch_rows], y[batch_rows], self._learning_rate, self._update_arrays
            )
            squared_norm = sum(float(np.vdot(step, step)) for step in self._update_arrays)
            step_factor = np.float32(1.0)
            if squared_norm > self._largest_step**2:
                step_factor = np.float32(self._largest_step / math.sqrt(squared_norm))
            for weight, step in zip(new_weights, self._update_arrays, strict=True):
                weight -= step_factor * step
        for update, old, new in zip(self._update_arrays, weights, new_weights, strict=True):
            np.subtract(old, new, out=update)
        return loss_sum


def _client_result(sample: QuerySample, loss_sum: float) -> ClientResult:
    """Returns the result of one client from its clipped record and the sum of its losses."""
    return ClientResult(sample.record, int(sample.clipped), int(sample.zeroed), loss_sum)


def aligned_buffer(num_floats: int) -> np.ndarray:
    """Returns a float32 array of this many zeros whose memory begins on a cache line."""
    line_bytes = 64
    unaligned_buffer = np.zeros(num_floats + line_bytes // 4, np.float32)
    aligned_start = -unaligned_buffer.ctypes.data % line_bytes // 4
    return unaligned_buffer[aligned_start : aligned_start + num_floats]
