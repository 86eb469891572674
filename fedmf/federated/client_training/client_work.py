"""The server's broadcast as tensors, and the clients' optimizers, for training in TensorFlow."""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from fedmf.federated.client_training.records import Records
from fedmf.server.messages import ClientParams
from fedmf.server.update_rules import Optimizer, OptimizerState
from fedmf.training.client_work import Broadcast
from fedmf.training.learner import ClientSettings


class TensorBroadcast(NamedTuple):
    """The weights and parameters that the server sends to clients in a round, as tensors.

    Attributes:
      weights: weights of the global model.
      params: clip norm, zeroing norm and scales of the round.
    """

    weights: Sequence[tf.Tensor]
    params: ClientParams

    @staticmethod
    def of(sent: Broadcast) -> "TensorBroadcast":
        """Converts the arrays of a broadcast to tensors."""
        weight_tensors = [tf.constant(weight) for weight in sent.weights]
        return TensorBroadcast(weight_tensors, tensor_params(sent.params))


def tensor_params(params: ClientParams) -> ClientParams:
    """Converts clip norm, zeroing norm and scales to tensors; there may be no scales."""
    return ClientParams(
        clip_norm=tf.constant(params.clip_norm, tf.float64),
        zeroing_norm=tf.constant(params.zeroing_norm, tf.float64),
        scales=[tf.constant(scale) for scale in params.scales] or (),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BoundedSteps:
    """An optimizer that shortens each step of a client if its L2 norm exceeds a bound.

    The norm is that of all arrays of the client together.

    Attributes:
      optimizer: optimizer on tensors. Its momentum and moments are those of the full gradients.
      largest_step: bound on the norm of a step, positive.

    >>> bounded = BoundedSteps(optimizer=Optimizer(xp=tf), largest_step=1.0)
    >>> weights = [tf.constant([0.0, 0.0])]
    >>> _, after = bounded.next(bounded.initial(weights), weights, [tf.constant([30.0, 40.0])], 0.1)
    >>> after[0].numpy().round(3)
    array([-0.6, -0.8], dtype=float32)
    """

    optimizer: Optimizer
    largest_step: float

    def initial(self, weights: Sequence[tf.Tensor]) -> OptimizerState:
        """Returns the optimizer's state before the first step from these weights."""
        return self.optimizer.initial(weights)

    def next(
        self,
        state: OptimizerState,
        weights: Sequence[tf.Tensor],
        gradients: Sequence[tf.Tensor],
        rate: float,
    ) -> tuple[OptimizerState, list[tf.Tensor]]:
        """Returns the optimizer's state and the weights after one shortened step."""
        state, new_weights = self.optimizer.next(state, weights, gradients, rate)
        weight_steps = [new - old for new, old in zip(new_weights, weights, strict=True)]
        # In vectorised training the first axis of every array is for the clients. The step number
        # has no other axis, so its rank is the number of axes before the entries.
        num_client_axes = state.step.shape.rank
        squared_norms = []
        for step in weight_steps:
            entry_axes = list(range(num_client_axes, step.shape.rank))
            squared_entries = tf.square(tf.cast(step, tf.float64))
            squared_norms.append(tf.reduce_sum(squared_entries, axis=entry_axes))
        step_norm = tf.sqrt(tf.add_n(squared_norms))
        shortening_factor = tf.minimum(tf.constant(1.0, tf.float64), self.largest_step / step_norm)
        bounded_weights = [
            old + self.optimizer.scalar_like(shortening_factor, step) * step
            for old, step in zip(weights, weight_steps, strict=True)
        ]
        return state, bounded_weights


def client_optimizer(settings: ClientSettings) -> Optimizer | BoundedSteps:
    """Returns the clients' optimizer, which computes on tensors.

    The adaptive optimizers have TFF's default parameters. If `max_step_norm` is finite, each step
    is shortened to this norm.
    """
    optimizer_rule = settings.optimizer
    momentum = settings.momentum if optimizer_rule == "sgd" else 0.9
    epsilon = 1e-3 if optimizer_rule == "yogi" else 1e-7
    optimizer = Optimizer(
        rule=optimizer_rule,
        momentum=momentum,
        epsilon=epsilon,
        proximal=settings.proximal_strength,
        xp=tf,
    )
    if math.isinf(settings.max_step_norm):
        return optimizer
    return BoundedSteps(optimizer=optimizer, largest_step=settings.max_step_norm)


def broadcast_spec(records: Records, settings: ClientSettings) -> TensorBroadcast:
    """Returns the tensor specs of the weights and parameters that the server sends to clients."""
    scalar_spec = tf.TensorSpec([], tf.float64)
    weight_specs = list(records.flat_specs)
    scale_specs: Sequence[tf.TensorSpec] = ()
    if settings.is_scaled:
        scale_specs = [tf.TensorSpec(weight.shape, tf.float32) for weight in weight_specs]
    return TensorBroadcast(weight_specs, ClientParams(scalar_spec, scalar_spec, scale_specs))


def gradients(
    tape: tf.GradientTape, loss: tf.Tensor, weights: Sequence[tf.Tensor | tf.Variable]
) -> list[tf.Tensor | tf.IndexedSlices]:
    """Computes the gradients of the loss by the weights, in the shapes of the weights.

    The gradients of weights that the loss does not depend on are zeros.
    """
    gradient_list = tape.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    for gradient, weight in zip(gradient_list, weights, strict=True):
        if not isinstance(gradient, tf.IndexedSlices):
            # The gradient of a user's tf.custom_gradient may have an unknown shape.
            gradient.set_shape(weight.shape)
    return gradient_list
