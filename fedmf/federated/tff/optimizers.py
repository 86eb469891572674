"""Optimizers of clients and server for TFF, as a run's config describes them.

TFF itself has no SGD with momentum and a schedule of learning rates.
"""

import collections
from typing import Any

import tensorflow as tf

from fedmf import checks
from fedmf.federated.tff import tff
from fedmf.runs.config import TrainConfig


class ScheduledSGDM(tff.learning.optimizers.Optimizer):
    """SGD with momentum and a learning rate for each round, as a TFF server optimizer.

    In round t with gradient g: v <- momentum * v + g; w <- w - learning_rates[t] * v.

    It is the FedSGDM server step of the banded paper's App. I, a post-processing of the privatised
    updates because it depends on no data.

    Args:
      learning_rates: float (rounds,), positive; see `fedmf.WarmupCooldown`.
      momentum: in [0, 1); the papers use 0.95.

    Raises:
      TypeError: an argument has another type.
      ValueError: a learning rate is not positive and finite, or momentum is not in [0, 1).

    >>> optimizer = ScheduledSGDM([1.0, 0.5], momentum=0.5)
    >>> weights = tf.constant([1.0])
    >>> state = optimizer.initialize(tf.TensorSpec([1], tf.float32))
    >>> for _ in range(2):
    ...     state, weights = optimizer.next(state, weights, tf.constant([1.0]))
    >>> weights.numpy()
    array([-0.75], dtype=float32)
    """

    def __init__(self, learning_rates: Any, *, momentum: float = 0.95) -> None:
        self._rates = checks.finite_array("learning_rates", learning_rates, ndim=1)
        if self._rates.min() <= 0:
            raise ValueError(
                f"learning_rates={learning_rates!r} must be one finite "
                "positive rate for every round"
            )
        hint = "choose a number in [0, 1), 0 for plain SGD"
        self._momentum = checks.positive("momentum", momentum, hint, below=1, allow_zero=True)

    def initialize(self, specs: Any) -> Any:
        """Returns the optimizer's state before round 0, for weights of these specs."""
        zero_velocity = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), specs)
        return collections.OrderedDict(round=tf.constant(0, tf.int32), velocity=zero_velocity)

    def next(self, state: Any, weights: Any, gradients: Any) -> tuple[Any, Any]:
        """Returns the state and the weights after a step.

        Rounds after the last round use the learning rate of the last round.
        """
        t = tf.minimum(state["round"], len(self._rates) - 1)
        learning_rate = tf.constant(self._rates, tf.float32)[t]
        next_velocity = tf.nest.map_structure(
            lambda v, g: tf.cast(self._momentum, v.dtype) * v + g, state["velocity"], gradients
        )
        weights = tf.nest.map_structure(
            lambda w, v: w - tf.cast(learning_rate, w.dtype) * v, weights, next_velocity
        )
        return collections.OrderedDict(round=state["round"] + 1, velocity=next_velocity), weights


def tff_server_optimizer(config: TrainConfig) -> tff.learning.optimizers.Optimizer:
    """Returns the server's optimizer, with the learning-rate schedule of the run's config.

    It sees privatised updates only, so that the guarantee is the same for every optimizer.
    """
    rates = config.server_schedule().learning_rates()
    server_rule = config.server_rule
    if server_rule == "sgd":
        return ScheduledSGDM(rates, momentum=config.server_momentum)
    builder_arguments = {"epsilon": config.server_epsilon}
    if server_rule != "adagrad":
        builder_arguments["beta_1"] = config.server_momentum
    optimizer = _ADAPTIVE_BUILDERS[server_rule](float(rates[0]), **builder_arguments)
    # The index is limited to the last round, because TFF also asks for the learning rate of one
    # more round.
    return tff.learning.optimizers.schedule_learning_rate(
        optimizer, lambda t: tf.constant(rates, tf.float32)[tf.minimum(t, len(rates) - 1)]
    )


class Proximal(tff.learning.optimizers.Optimizer):
    """An optimizer that adds FedProx's proximal term to the gradients of another optimizer.

    The term is strength * (weights - weights before the first step).

    Li et al., Federated Optimization in Heterogeneous Networks, Eq. 2. TFF 0.87's
    build_unweighted_fed_prox adds the term with the other sign, which drives clients apart.

    >>> optimizer = Proximal(tff.learning.optimizers.build_sgdm(0.5), 0.1)
    >>> weights = [tf.constant([1.0])]
    >>> state = optimizer.initialize([tf.TensorSpec([1], tf.float32)])
    >>> for _ in range(2):
    ...     state, weights = optimizer.next(state, weights, [tf.constant([1.0])])
    >>> weights[0].numpy().round(4)
    array([0.025], dtype=float32)
    """

    def __init__(self, optimizer: tff.learning.optimizers.Optimizer, strength: float) -> None:
        self._optimizer = optimizer
        self._strength = strength

    def initialize(self, specs: Any) -> Any:
        """Returns the optimizer's state before the first step, in which the weights are unknown."""
        zero_weights = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), specs)
        return collections.OrderedDict(
            begun=tf.constant(False), start=zero_weights, inner=self._optimizer.initialize(specs)
        )

    def next(self, state: Any, weights: Any, gradients: Any) -> tuple[Any, Any]:
        """Returns the state and the weights after a step."""
        start_weights = tf.nest.map_structure(
            lambda s, w: tf.where(state["begun"], s, w), state["start"], weights
        )
        gradients = tf.nest.map_structure(
            lambda g, w, s: tf.convert_to_tensor(g) + tf.cast(self._strength, w.dtype) * (w - s),
            gradients,
            weights,
            start_weights,
        )
        inner, weights = self._optimizer.next(state["inner"], weights, gradients)
        return collections.OrderedDict(
            begun=tf.constant(True), start=start_weights, inner=inner
        ), weights


def tff_client_optimizer(config: TrainConfig) -> tff.learning.optimizers.Optimizer:
    """Returns the clients' optimizer; each client starts it anew in each round."""
    if config.client_optimizer == "sgd":
        optimizer = tff.learning.optimizers.build_sgdm(
            config.client_learning_rate, config.client_momentum or None
        )
    else:
        optimizer = _ADAPTIVE_BUILDERS[config.client_optimizer](config.client_learning_rate)
    if not config.proximal_strength:
        return optimizer
    return Proximal(optimizer, config.proximal_strength)


_ADAPTIVE_BUILDERS = {
    "adam": tff.learning.optimizers.build_adam,
    "adagrad": tff.learning.optimizers.build_adagrad,
    "yogi": tff.learning.optimizers.build_yogi,
}
