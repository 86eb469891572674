"""The clip norm that follows a quantile, from round to round:
`fedmf.server.following` on tensors.
"""

from typing import Any

import tensorflow as tf

from fedmf.privacy.quantile_clipping import MOST_CHANGE, QuantileClipping
from fedmf.server.following import ClipState


def initial_clip(clip_norm: float) -> ClipState:
    """State before round 0."""
    norm, zero = tf.constant(clip_norm, tf.float64), tf.constant(0.0)
    return ClipState(norm, norm, zero, zero)


def clip_after(
    clipping: QuantileClipping, first: float, state: ClipState, bits: Any, part: Any, t: Any
) -> ClipState:
    """State after round t.

    Args:
      clipping: of the plan.
      first: the clip norm of round 0, which no later one is a million times as large
        or as small as.
      state: before.
      bits: float32 (), the released sum of b_i - 1/2.
      part: float32 (), `bits` divided by the fixed number of clients.
      t: the round.
    """
    within = state.within + part + 0.5
    mean = tf.clip_by_value(within / clipping.every, 0.0, 1.0)
    step = tf.exp(-clipping.learning_rate * tf.cast(mean - clipping.quantile, tf.float64))
    moved = tf.clip_by_value(state.norm * step, first / MOST_CHANGE, first * MOST_CHANGE)
    due = tf.equal((t + 1) % clipping.every, 0)
    norm = tf.where(due & tf.math.is_finite(moved), moved, state.norm)
    return ClipState(norm, state.norm, bits, tf.where(due, 0.0, within))
