"""Pure functions that compute a round's release from its clipped sum, and the next clip norm and
scales from releases. They work on numpy arrays and on tensors.

A state depends on releases alone. `xp` is numpy, or tensorflow for tensors.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedmf.privacy.plan import Plan, bit_stddev
from fedmf.privacy.quantile_clipping import MOST_CHANGE, QuantileClipping
from fedmf.server.following import LARGEST_ROOT, ClipState, Scaling, ScalingState


def noise_stddev(plan: Plan, clip: ClipState | tuple[()], xp: Any = np) -> Any:
    """Returns the standard deviation of the noise in a round's sum, a float32 scalar.

    It is proportional to the clip norm. Where that adapts, the sum is in effect divided by it
    before noise of a fixed scale is added, and multiplied by it again.
    """
    stddev = np.float32(plan.stddev)
    if not clip:
        return stddev
    return stddev * _cast(xp, clip.norm / plan.clip_norm, np.float32)


def released_bits(plan: Plan, clients: Any, clipped: Any, noise: Any, xp: Any = np) -> Any:
    """Returns the noisy sum, over clients, of the clipping bits minus 1/2, a float32 scalar. The
    bit b_i is 1 if the update of client i is within the clip norm, and 0 if it is longer.

    Args:
      plan: plan that has the scale of this noise.
      clients, clipped: counts of updates in the round's sum.
      noise: the last entry of the round's noise vector, float32 ().
    """
    centred_count = _cast(xp, clients, np.float32) / np.float32(2) - _cast(xp, clipped, np.float32)
    return centred_count + np.float32(bit_stddev(plan)) * noise


def noisy_mean(clipped_sum: Any, noise: Any, divisor: Any, xp: Any = np) -> Any:
    """Returns (clipped_sum + noise) / divisor as float32. The sum is computed in float64 and
    rounded once.

    The noise has no digits below those of float32, and this rounding removes such digits of the
    sum.

    Args:
      clipped_sum: float64.
      noise: float32, in the same shape, at the scale of the release.
      divisor: the fixed number of clients.
    """
    return _cast(xp, (clipped_sum + _cast(xp, noise, np.float64)) / divisor, np.float32)


def initial_clip(clip_norm: float, xp: Any = np) -> ClipState:
    """Returns the state of the adaptive clip norm before round 0."""
    initial_norm = _cast(xp, np.float64(clip_norm), np.float64)
    zero = _cast(xp, np.float32(0), np.float32)
    return ClipState(initial_norm, initial_norm, zero, zero)


def clip_after(
    clipping: QuantileClipping,
    first: float,
    state: ClipState,
    bits: Any,
    clients: float,
    t: Any,
    xp: Any = np,
) -> ClipState:
    """Returns the state of the adaptive clip norm after round t.

    Args:
      clipping: the plan's rule for adapting the clip norm.
      first: the clip norm of round 0; later ones stay within a factor of a million of it.
      state: state before round t.
      bits: noisy sum that `released_bits` returned.
      clients: the fixed number of clients a round.
      t: the round.

    >>> clipping = QuantileClipping(quantile=0.5, every=1, learning_rate=1.0)
    >>> float(clip_after(clipping, 1.0, initial_clip(1.0), 2.0, 10, 0).norm.round(4))
    0.8187
    """
    bits = _cast(xp, bits, np.float32)
    num_within = state.within + bits / np.float32(clients) + np.float32(0.5)
    released_share = _clip(
        xp, num_within / np.float32(clipping.every), np.float32(0), np.float32(1)
    )
    # Large learning rates overflow to infinity here, and `_clip` then bounds the result.
    with np.errstate(over="ignore"):
        clip_norm_factor = xp.exp(
            -clipping.learning_rate * (_cast(xp, released_share, np.float64) - clipping.quantile)
        )
        next_norm = _clip(
            xp, state.norm * clip_norm_factor, first / MOST_CHANGE, first * MOST_CHANGE
        )
    is_due = xp.equal((t + 1) % clipping.every, 0)
    # The noisy sum of bits is NaN if the noise is NaN, as in a graph before its noise is handed in.
    # The clip norm must not become NaN then.
    new_norm = xp.where(is_due & (next_norm < np.inf), next_norm, state.norm)
    return ClipState(new_norm, state.norm, bits, xp.where(is_due, np.float32(0), num_within))


def initial_scaling(shapes: Sequence[Any], xp: Any = np) -> ScalingState:
    """Returns the state of the update scales before round 0. Its scales are arrays of ones in these
    shapes.
    """
    zero_moment = [xp.zeros(shape, np.float32) for shape in shapes]
    unit_scales = [xp.ones(shape, np.float32) for shape in shapes]
    return ScalingState(zero_moment, unit_scales, xp.zeros([2], np.float32))


def scaling_after(
    scaling: Scaling, state: ScalingState, mean: Sequence[Any], t: Any, xp: Any = np
) -> ScalingState:
    """Returns the state of the update scales after round t.

    Args:
      scaling: scaling of the run.
      state: state before round t; its moment and scales are lists of arrays, as `mean`.
      mean: the release of round t, in the units of updates: float32 arrays.
      t: the round.

    >>> state = ScalingState([np.zeros(2)], [np.ones(2)], np.zeros(2, np.float32))
    >>> scaling = Scaling(rule="adagrad", epsilon=1.0)
    >>> state = scaling_after(scaling, state, [np.array([7.0, 1.0], np.float32)], 0)
    >>> # (sqrt(25) + 1) / (7 + 1) and (sqrt(25) + 1) / (1 + 1)
    >>> state.scales[0], state.drifts.round(3)
    (array([0.75, 3.  ]), array([0.   , 1.099]))
    """
    next_moment = [_next_moment(scaling, v, g, xp) for v, g in zip(state.moment, mean, strict=True)]
    next_scales = _cond(
        xp,
        # Tensors are compared by `xp.equal`, because `==` would compare the identities of two
        # tensors in a TFF graph, and not their values.
        xp.equal((t + 1) % scaling.every, 0),
        lambda: _scales_of(scaling, next_moment, xp),
        lambda: list(state.scales),
    )
    leaf_drifts = [
        _largest(xp, xp.abs(_log(xp, new_scale / old_scale)))
        for new_scale, old_scale in zip(next_scales, state.scales, strict=True)
    ]
    drifts = xp.stack([state.drifts[1], _largest(xp, xp.stack(leaf_drifts))])
    return ScalingState(next_moment, next_scales, drifts)


def _next_moment(scaling: Scaling, v: Any, mean: Any, xp: Any) -> Any:
    """Returns the second moment of one array after a release."""
    squared_mean = xp.square(_clip(xp, mean, np.float32(-LARGEST_ROOT), np.float32(LARGEST_ROOT)))
    if scaling.rule == "adagrad":
        return xp.minimum(v + squared_mean, np.float32(LARGEST_ROOT**2))
    # The second moment must not become negative by rounding, because its square root is taken.
    return xp.maximum(v + np.float32(1 - scaling.decay) * (squared_mean - v), np.float32(0))


def _scales_of(scaling: Scaling, moment: Sequence[Any], xp: Any) -> list[Any]:
    """Returns the scales (rms(v) + epsilon) / (sqrt(v) + epsilon) for each array v of the second
    moment, where rms is taken over all arrays.
    """
    num_entries = sum(int(np.prod(v.shape)) for v in moment)
    sum_of_moments = sum(_total(xp, v) for v in moment)
    root_mean_square = _cast(xp, xp.sqrt(sum_of_moments / max(num_entries, 1)), np.float32)
    epsilon = np.float32(scaling.epsilon)
    return [(root_mean_square + epsilon) / (xp.sqrt(v) + epsilon) for v in moment]


def _cast(xp: Any, value: Any, dtype: Any) -> Any:
    """Casts a value to this dtype, with numpy or TensorFlow."""
    if xp is np:
        return np.asarray(value).astype(dtype)
    return xp.cast(value, dtype)


def _clip(xp: Any, value: Any, low: Any, high: Any) -> Any:
    """Clips a value to the range from `low` to `high`."""
    if xp is np:
        return np.clip(value, low, high)
    return xp.clip_by_value(value, low, high)


def _log(xp: Any, value: Any) -> Any:
    """Returns the natural logarithm of an array or tensor."""
    if xp is np:
        return np.log(value)
    return xp.math.log(value)


def _total(xp: Any, array: Any) -> Any:
    """Returns the sum of all entries, computed in float64."""
    if xp is np:
        return np.sum(array, dtype=np.float64)
    return xp.reduce_sum(xp.cast(array, np.float64))


def _largest(xp: Any, array: Any) -> Any:
    """Returns the largest of the entries, which are non-negative; 0 for an empty array."""
    if xp is np:
        return np.max(array, initial=0)
    return xp.reduce_max(xp.concat([[0.0], xp.reshape(array, [-1])], axis=0))


def _cond(xp: Any, condition: Any, if_true: Callable[[], Any], if_false: Callable[[], Any]) -> Any:
    """Returns if_true() or if_false(), depending on a condition that may be a tensor."""
    if xp is np:
        return if_true() if condition else if_false()
    return xp.cond(condition, if_true, if_false)
