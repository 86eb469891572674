"""Server SGD with momentum under a learning-rate schedule, as a tff.learning optimizer (TFF's own build_sgdm takes no schedule)."""

import collections
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.federated.tff import tff


class ScheduledSGDM(tff.learning.optimizers.Optimizer):
    """Momentum v <- momentum * v + g; w <- w - learning_rates[t] * v in round t.

    The FedSGDM server step of the banded paper's App. I; data-independent, hence post-processing of the privatised updates.

    Args:
      learning_rates: float (rounds,), positive; see `fedmf.WarmupCooldown`.
      momentum: in [0, 1); the papers use 0.95.

    Raises:
      ValueError: naming the argument and its value.

    >>> optimizer = ScheduledSGDM([1.0, 0.5], momentum=0.5)
    >>> weights = tf.constant([1.0])
    >>> state = optimizer.initialize(tf.TensorSpec([1], tf.float32))
    >>> for _ in range(2):
    ...     state, weights = optimizer.next(state, weights, tf.constant([1.0]))
    >>> weights.numpy()
    array([-0.75], dtype=float32)
    """

    def __init__(self, learning_rates: Any, *, momentum: float = 0.95) -> None:
        rates = np.asarray(learning_rates, np.float64)
        if rates.ndim != 1 or not len(rates) or not np.all(np.isfinite(rates)) or not np.all(rates > 0):
            raise ValueError(f"learning_rates={learning_rates!r} must be one finite positive rate for every round")
        if not (np.isfinite(momentum) and 0 <= momentum < 1):
            raise ValueError(f"momentum={momentum!r} must be in [0, 1)")
        self._rates = rates
        self._momentum = float(momentum)

    def initialize(self, specs: Any) -> Any:
        """Round 0 and zero momentum for weights of these specs."""
        velocity = tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), specs)
        return collections.OrderedDict(round=tf.constant(0, tf.int32), velocity=velocity)

    def next(self, state: Any, weights: Any, gradients: Any) -> tuple[Any, Any]:
        """One step; pure. Past the last round the last rate is kept."""
        t = tf.minimum(state["round"], len(self._rates) - 1)
        rate = tf.constant(self._rates, tf.float32)[t]
        velocity = tf.nest.map_structure(
            lambda v, g: tf.cast(self._momentum, v.dtype) * v + g, state["velocity"], gradients
        )
        weights = tf.nest.map_structure(lambda w, v: w - tf.cast(rate, w.dtype) * v, weights, velocity)
        return collections.OrderedDict(round=state["round"] + 1, velocity=velocity), weights
