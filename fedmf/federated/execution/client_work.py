"""What client work on TensorFlow shares: tensors of what the server sends, and the clients'
optimizers.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from fedmf.federated.execution.records import Records
from fedmf.server.messages import ClientParams
from fedmf.server.update_rules import Optimizer, OptimizerState
from fedmf.training.client_work import Broadcast
from fedmf.training.learner import ClientSettings


class TensorBroadcast(NamedTuple):
    """A `Broadcast` of tensors.

    Attributes:
      weights: of the global model.
      params: of the round.
    """

    weights: Sequence[Any]
    params: ClientParams

    @staticmethod
    def of(sent: Broadcast) -> "TensorBroadcast":
        """Returns the broadcast as tensors."""
        return TensorBroadcast(
            [tf.constant(weight) for weight in sent.weights], tensor_params(sent.params)
        )


def tensor_params(params: ClientParams) -> ClientParams:
    """Returns the parameters as tensors; without a `Scaling` there are no scales."""
    clip_norm, zeroing_norm = (tf.constant(norm, tf.float64) for norm in params[:2])
    return ClientParams(clip_norm, zeroing_norm, [tf.constant(s) for s in params.scales] or ())


@dataclasses.dataclass(frozen=True, kw_only=True)
class BoundedSteps:
    """An optimizer that shortens each step to a bound in L2 norm, over all arrays of a client.

    Attributes:
      optimizer: on tensors. Its momentum and moments are those of the whole gradients.
      largest_step: the bound, positive.

    >>> bounded = BoundedSteps(optimizer=Optimizer(xp=tf), largest_step=1.0)
    >>> weights = [tf.constant([0.0, 0.0])]
    >>> _, after = bounded.next(bounded.initial(weights), weights, [tf.constant([30.0, 40.0])], 0.1)
    >>> after[0].numpy().round(3)
    array([-0.6, -0.8], dtype=float32)
    """

    optimizer: Optimizer
    largest_step: float

    def initial(self, weights: Sequence[Any]) -> OptimizerState:
        """See `Optimizer.initial`."""
        return self.optimizer.initial(weights)

    def next(
        self, state: OptimizerState, weights: Sequence[Any], gradients: Sequence[Any], rate: Any
    ) -> tuple[OptimizerState, list[Any]]:
        """See `Optimizer.next`."""
        state, after = self.optimizer.next(state, weights, gradients, rate)
        steps = [w - before for w, before in zip(after, weights, strict=True)]
        # Of clients side by side the first axis counts clients.
        first_axis = state.step.shape.rank
        norm = tf.sqrt(
            tf.add_n(
                [
                    tf.reduce_sum(
                        tf.square(tf.cast(step, tf.float64)),
                        axis=list(range(first_axis, step.shape.rank)),
                    )
                    for step in steps
                ]
            )
        )
        factor = tf.minimum(tf.constant(1.0, tf.float64), self.largest_step / norm)
        bounded = [
            before + self.optimizer.scalar_like(factor, step) * step
            for before, step in zip(weights, steps, strict=True)
        ]
        return state, bounded


def client_optimizer(settings: ClientSettings) -> Optimizer | BoundedSteps:
    """Returns the clients' optimizer, on tensors; it begins anew with every client and round.

    The adaptive ones have TFF's defaults. With a finite `max_step_norm` its steps are bounded.
    """
    rule = settings.optimizer
    optimizer = Optimizer(
        rule=rule,
        momentum=settings.momentum if rule == "sgd" else 0.9,
        epsilon=1e-3 if rule == "yogi" else 1e-7,
        proximal=settings.proximal_strength,
        xp=tf,
    )
    if math.isinf(settings.max_step_norm):
        return optimizer
    return BoundedSteps(optimizer=optimizer, largest_step=settings.max_step_norm)


def broadcast_spec(records: Records, settings: ClientSettings) -> TensorBroadcast:
    """Returns the tensor specs of what the server sends to a run's clients."""
    number, specs = tf.TensorSpec([], tf.float64), records.flat_specs
    scales = [tf.TensorSpec(spec.shape, tf.float32) for spec in specs] if settings.is_scaled else ()
    return TensorBroadcast(list(specs), ClientParams(number, number, scales))


def gradients(tape: Any, loss: Any, weights: Any) -> Any:
    """Of the loss by the weights, in their shapes; zeros where it does not depend on them."""
    found = tape.gradient(loss, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    for gradient, weight in zip(found, weights, strict=True):
        if not isinstance(gradient, tf.IndexedSlices):
            gradient.set_shape(weight.shape)  # of a gradient of one's own it may be unknown
    return found
