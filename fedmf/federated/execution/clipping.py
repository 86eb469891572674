"""Zeroing and clipping of one record: pure, exact about the bound, and fast, because it runs once
for every client of every round.
"""

import math
from typing import Any, NamedTuple

import tensorflow as tf

# Entries whose squares are summed in the record's own precision; the sums of so many are added up
# in float64.
_CHUNK = 32

# How much less than clip_norm a record is scaled to, so that no rounding lifts it over clip_norm.
# Proof, with u = 2^-24 for float32 and n entries in all (float64 leaves: the same with u = 2^-53):
# - q, the computed sum of K squares: each square is off by a factor 1 + u at most, and each of the
#   K - 1 additions by another, in whatever order they are made. All terms are non-negative, so the
#   true sum is at most q (1 + K u), to first order, and the true norm of the chunk at most
#   sqrt(q) (1 + K/2 u). Chunks are added up in float64, and the root is taken there.
# - Numbers below 2^-126 may count as 0: the sum of squares lacks 2 n 2^-126 at most. The quick way
#   is taken only where the norm that is compared with is at least 1e-15 sqrt(n), of whose square
#   that is a part of 3e-8.
# - The factor is rounded to float32 (u), and so is the product with each entry (u).
# In all (32/2 + 2) u + 1.5e-8 = 1.09e-6 of the norm. The careful way rounds in float64
# and once to float32.
ROUNDING_MARGIN = 1.5e-6
_LEAST_NORM_OF_AN_ENTRY = 1e-15


class Clipped(NamedTuple):
    """A clipped record: its leaves in the dtypes of `clip_dtype`, and two int32 scalars that are 0
    or 1.
    """

    record: Any
    clipped: Any
    zeroed: Any


def clip_dtype(dtype: tf.DType) -> tf.DType:
    """The dtype in which records with such a leaf are clipped: half precision is held as float32.

    Rounding a clipped record to half precision could lift its norm.

    >>> [clip_dtype(dtype).name for dtype in (tf.bfloat16, tf.float32, tf.float64)]
    ['float32', 'float32', 'float64']
    """
    return tf.float32 if dtype in (tf.float16, tf.bfloat16) else dtype


def zero_and_clip(record: Any, *, clip_norm: Any, zeroing_norm: Any) -> Clipped:
    """Zeroing, then clipping to clip_norm in L2 over all leaves together.

    For every input the result's norm is at most clip_norm.

    The updates are zeroed and then clipped in the multi-epoch paper, Sec. 5; the clipping is
    DP-FedAvg's flat clipping.

    Args:
      record: structure of float tensors, float16, bfloat16, float32 or float64,
        of fully defined shapes.
      clip_norm: positive float64 scalar.
      zeroing_norm: positive float64 scalar, or infinity; a record with an entry above it in
        absolute value counts as zero. So does one with a NaN or an infinity, always.

    Returns:
      The record, unchanged to the bit where its norm is at most (1 - ROUNDING_MARGIN) clip_norm and
      it is not zeroed (but half precision comes back as float32); `clipped` and `zeroed` are never
      both 1.

    Example:
      >>> clipped = zero_and_clip(
      ...     {"a": tf.constant([30.0, 40.0]), "b": tf.zeros([0])}, clip_norm=0.5,
      ...     zeroing_norm=100.0
      ... )
      >>> clipped.record["a"].numpy().round(3), int(clipped.clipped), int(clipped.zeroed)
      (array([0.3, 0.4], dtype=float32), 1, 0)
    """
    leaves = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(record)]
    leaves = [tf.cast(leaf, clip_dtype(leaf.dtype)) for leaf in leaves]
    clip, limit = tf.cast(clip_norm, tf.float64), tf.cast(zeroing_norm, tf.float64)
    target = clip * (1 - ROUNDING_MARGIN)
    norm = _norm(leaves)
    least = _LEAST_NORM_OF_AN_ENTRY * math.sqrt(sum(leaf.shape.num_elements() for leaf in leaves))
    # A NaN, an infinity or an overflow of a square makes the norm infinite or a NaN, and both
    # comparisons fail for it.
    quick = (norm < math.inf) & (tf.minimum(clip, limit) >= least)
    kept, clipped, zeroed = tf.cond(
        quick,
        lambda: _quickly(leaves, norm, target, limit),
        lambda: _carefully(leaves, target, limit),
    )
    return Clipped(
        tf.nest.pack_sequence_as(record, kept),
        tf.cast(clipped, tf.int32),
        tf.cast(zeroed, tf.int32),
    )


def _norm(leaves: list[Any]) -> Any:
    """The L2 norm over all leaves, float64; infinite or NaN when an entry is,
    or a square overflows.
    """
    squared = tf.constant(0.0, tf.float64)
    for leaf in leaves:
        entries = tf.reshape(leaf, [-1])
        whole = entries.shape[0] // _CHUNK * _CHUNK
        for part in (tf.reshape(entries[:whole], [-1, _CHUNK]), entries[None, whole:]):
            if part.shape.num_elements():
                # Not TensorFlow's norm, which is one kernel but has none under XLA.
                squared += tf.reduce_sum(
                    tf.cast(tf.reduce_sum(tf.square(part), axis=1), tf.float64)
                )
    return tf.sqrt(squared)


def _largest(leaves: list[Any]) -> Any:
    """The largest absolute value of finite leaves, float64."""
    # The ends of the range and not the absolute values: those would have to be written down first.
    ends = [
        end
        for leaf in leaves
        if leaf.shape.num_elements()
        for end in (tf.reduce_max(leaf), -tf.reduce_min(leaf))
    ]
    # abs: a record of zeros has the end -0.0, by which numbers are divided.
    return tf.abs(
        tf.reduce_max([tf.constant(0.0, tf.float64), *(tf.cast(end, tf.float64) for end in ends)])
    )


def _chosen(zeroed: Any, clipped: Any, leaves: list[Any], scaled: Any) -> list[Any]:
    """Zeros, or `scaled()`, or the leaves as they are.

    Never a product with 0, which keeps a NaN.
    """
    return tf.cond(
        zeroed,
        lambda: [tf.zeros_like(leaf) for leaf in leaves],
        lambda: tf.cond(clipped, scaled, lambda: [tf.identity(leaf) for leaf in leaves]),
    )


def _quickly(leaves: list[Any], norm: Any, target: Any, limit: Any) -> tuple[list[Any], Any, Any]:
    """For a norm that is trusted to within ROUNDING_MARGIN."""
    # No entry is larger than the norm, so that most records need not be searched for one
    # above the limit.
    zeroed = tf.cond(
        norm <= limit / 2, lambda: tf.constant(False), lambda: _largest(leaves) > limit
    )
    clipped = ~zeroed & (norm > target)
    factor = target / norm
    return (
        _chosen(
            zeroed, clipped, leaves, lambda: [leaf * tf.cast(factor, leaf.dtype) for leaf in leaves]
        ),
        clipped,
        zeroed,
    )


def _carefully(leaves: list[Any], target: Any, limit: Any) -> tuple[list[Any], Any, Any]:
    """For everything else: in float64, relative to the largest entry, so that no square overflows
    or vanishes.
    """
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(leaf)) for leaf in leaves])
    largest = _largest(leaves)
    zeroed = ~(finite & (largest <= limit))
    relative = [tf.math.divide_no_nan(tf.cast(leaf, tf.float64), largest) for leaf in leaves]
    norm = _norm(relative)
    clipped = ~zeroed & (norm > 0) & (norm > target / largest)
    factor = target / norm
    return (
        _chosen(
            zeroed,
            clipped,
            leaves,
            lambda: [
                tf.cast(part * factor, leaf.dtype)
                for part, leaf in zip(relative, leaves, strict=True)
            ],
        ),
        clipped,
        zeroed,
    )
