"""What follows past releases, on tensors: `fedmf.server.following`, which has what it is."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fedmf.privacy.quantile_clipping import MOST_CHANGE, QuantileClipping
from fedmf.server.following import LARGEST_ROOT, ClipState, Scaling, ScalingState


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


def initial_scaling(specs: Sequence[Any]) -> ScalingState:
    """State before round 0: all scales are 1."""
    zeros, ones = ([make(spec.shape, tf.float32) for spec in specs] for make in (tf.zeros, tf.ones))
    return ScalingState(zeros, ones, tf.zeros([2]))


def scaling_after(
    scaling: Scaling, state: ScalingState, mean: Sequence[Any], t: Any
) -> ScalingState:
    """State after round t, in which `mean` was released: noisy, and in the units of updates.

    Args:
      scaling: of the run.
      state: before.
      mean: list of float32 tensors.
      t: the round.
    """
    moment = [_moved(scaling, v, _square(g)) for v, g in zip(state.moment, mean, strict=True)]
    scales = tf.cond(
        tf.equal((t + 1) % scaling.every, 0),
        lambda: _scales(scaling, moment),
        lambda: list(state.scales),
    )
    moved = [
        _largest(tf.abs(tf.math.log(s / old))) for s, old in zip(scales, state.scales, strict=True)
    ]
    return ScalingState(moment, scales, tf.stack([state.drifts[1], tf.reduce_max(moved)]))


def _moved(scaling: Scaling, v: Any, square: Any) -> Any:
    if scaling.rule == "adagrad":
        return tf.minimum(v + square, LARGEST_ROOT**2)
    # Rounding must not lead below 0, of which there is no root.
    return tf.maximum(v + (1 - scaling.decay) * (square - v), 0.0)


def _scales(scaling: Scaling, moment: Sequence[Any]) -> list[Any]:
    total = tf.add_n([tf.reduce_sum(tf.cast(v, tf.float64)) for v in moment])
    entries = sum(v.shape.num_elements() for v in moment)
    rms = tf.cast(tf.sqrt(total / entries), tf.float32)
    return [(rms + scaling.epsilon) / (tf.sqrt(v) + scaling.epsilon) for v in moment]


def _square(values: Any) -> Any:
    return tf.square(tf.clip_by_value(values, -LARGEST_ROOT, LARGEST_ROOT))


def _largest(values: Any) -> Any:
    return tf.reduce_max(tf.concat([[0.0], tf.reshape(values, [-1])], axis=0))
