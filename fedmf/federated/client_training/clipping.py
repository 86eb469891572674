"""Clipping of a record, which is the update of one client, in TensorFlow.

The function is pure, and the record that it returns never exceeds the clip norm, whatever the
input. `fedmf.server.clipping` has the numpy reference that it is tested against, and the proof.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from fedmf.server.clipping import FLOAT32_CHUNK, FLOAT32_LEAST_NORM, FLOAT32_MARGIN


class ClippedRecord(NamedTuple):
    """A record after zeroing and clipping.

    Attributes:
      record: the structure of the record; its leaves have the dtypes of `clip_dtype`.
      clipped, zeroed: int32 scalars, 0 or 1.
    """

    record: Any
    clipped: tf.Tensor
    zeroed: tf.Tensor


class _Decision(NamedTuple):
    """The leaves of a record after zeroing or clipping, and flags that say whether it was zeroed or
    clipped.
    """

    leaves: list[tf.Tensor]
    is_clipped: tf.Tensor
    is_zeroed: tf.Tensor


def clip_dtype(dtype: tf.DType) -> tf.DType:
    """Returns the dtype in which a tensor of this dtype is clipped.

    It is float32 for half precision, because rounding a clipped record to half precision could lift
    its norm. Other dtypes do not change.

    >>> [clip_dtype(dtype).name for dtype in (tf.bfloat16, tf.float32, tf.float64)]
    ['float32', 'float32', 'float64']
    """
    return tf.float32 if dtype in (tf.float16, tf.bfloat16) else dtype


def zero_and_clip(record: Any, *, clip_norm: Any, zeroing_norm: Any) -> ClippedRecord:
    """Sets a record to zero if it has too large an entry, or else clips its L2 norm to clip_norm.

    The norm is that of all leaves together; in the result it is at most clip_norm for every
    input. The multi-epoch paper, Sec. 5, zeroes updates and then clips them; the clipping is the
    flat clipping of DP-FedAvg.

    Args:
      record: structure of float tensors, float16, bfloat16, float32 or float64,
        of fully defined shapes.
      clip_norm: positive float64 scalar.
      zeroing_norm: positive float64 scalar, or infinity; a record with an entry above it in
        absolute value counts as zero. So does one with a NaN or an infinity, always.

    Returns:
      The record, unchanged to the bit where its norm is at most (1 - FLOAT32_MARGIN) clip_norm and
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
    clip_norm = tf.cast(clip_norm, tf.float64)
    zeroing_norm = tf.cast(zeroing_norm, tf.float64)
    target_norm = clip_norm * (1 - FLOAT32_MARGIN)
    record_norm = _norm(leaves)
    num_entries = sum(leaf.shape.num_elements() for leaf in leaves)
    least_norm = FLOAT32_LEAST_NORM * math.sqrt(num_entries)
    # If an entry is NaN or infinite, or if its square overflows, the norm is NaN or infinite and
    # norm < inf is false.
    is_within_margin = (record_norm < math.inf) & (
        tf.minimum(clip_norm, zeroing_norm) >= least_norm
    )
    decision: _Decision = tf.cond(
        is_within_margin,
        lambda: _clip_by_norm(leaves, record_norm, target_norm, zeroing_norm),
        lambda: _clip_in_float64(leaves, target_norm, zeroing_norm),
    )
    return ClippedRecord(
        tf.nest.pack_sequence_as(record, decision.leaves),
        tf.cast(decision.is_clipped, tf.int32),
        tf.cast(decision.is_zeroed, tf.int32),
    )


def _norm(leaves: list[tf.Tensor]) -> tf.Tensor:
    """Computes the L2 norm of all leaves together, a float64 scalar.

    It is infinite or NaN when an entry is, or when a square overflows.
    """
    squared_norm = tf.constant(0.0, tf.float64)
    for leaf in leaves:
        flat_entries = tf.reshape(leaf, [-1])
        num_chunked = flat_entries.shape[0] // FLOAT32_CHUNK * FLOAT32_CHUNK
        chunks = tf.reshape(flat_entries[:num_chunked], [-1, FLOAT32_CHUNK])
        remaining_entries = flat_entries[None, num_chunked:]
        for block in (chunks, remaining_entries):
            if block.shape.num_elements():
                # TensorFlow's kernel for a norm is not used here, because it does not exist under
                # XLA.
                chunk_sums = tf.reduce_sum(tf.square(block), axis=1)
                squared_norm += tf.reduce_sum(tf.cast(chunk_sums, tf.float64))
    return tf.sqrt(squared_norm)


def _largest_entry(leaves: list[tf.Tensor]) -> tf.Tensor:
    """Computes the largest absolute value of all entries, a float64 scalar; leaves are finite."""
    # The extreme values are used to find the largest magnitude, because tf.abs would first write
    # the absolute values of all entries.
    largest_magnitudes = [tf.constant(0.0, tf.float64)]
    for leaf in leaves:
        if leaf.shape.num_elements():
            largest_magnitudes.append(tf.cast(tf.reduce_max(leaf), tf.float64))
            largest_magnitudes.append(tf.cast(-tf.reduce_min(leaf), tf.float64))
    # For a record of zeros this maximum may be -0.0. It is made 0.0 by tf.abs, because entries are
    # divided by it.
    return tf.abs(tf.reduce_max(largest_magnitudes))


def _zeros_or_scaled(
    is_zeroed: tf.Tensor,
    is_clipped: tf.Tensor,
    leaves: list[tf.Tensor],
    scaled: Callable[[], list[tf.Tensor]],
) -> list[tf.Tensor]:
    """Returns zeros if the record is zeroed, `scaled()` if it is clipped, else the leaves.

    The zeros are not a product with 0, because 0 times NaN is NaN.
    """
    return tf.cond(
        is_zeroed,
        lambda: [tf.zeros_like(leaf) for leaf in leaves],
        lambda: tf.cond(is_clipped, scaled, lambda: [tf.identity(leaf) for leaf in leaves]),
    )


def _clip_by_norm(
    leaves: list[tf.Tensor], norm: tf.Tensor, target_norm: tf.Tensor, zeroing_norm: tf.Tensor
) -> _Decision:
    """Clips a record to clip_norm, given its norm with a relative error below FLOAT32_MARGIN."""
    # No entry is larger than the norm. So the entries need not be searched for one above
    # zeroing_norm if the norm is far below it.
    is_zeroed = tf.cond(
        norm <= zeroing_norm / 2,
        lambda: tf.constant(False),
        lambda: _largest_entry(leaves) > zeroing_norm,
    )
    is_clipped = ~is_zeroed & (norm > target_norm)
    clip_factor = target_norm / norm

    def scaled() -> list[tf.Tensor]:
        return [leaf * tf.cast(clip_factor, leaf.dtype) for leaf in leaves]

    return _Decision(_zeros_or_scaled(is_zeroed, is_clipped, leaves, scaled), is_clipped, is_zeroed)


def _clip_in_float64(
    leaves: list[tf.Tensor], target_norm: tf.Tensor, zeroing_norm: tf.Tensor
) -> _Decision:
    """Clips a record of any size, in float64 and after division by its largest entry.

    So no square overflows or underflows. This is slower than `_clip_by_norm`.
    """
    is_finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(leaf)) for leaf in leaves])
    largest_entry = _largest_entry(leaves)
    is_zeroed = ~(is_finite & (largest_entry <= zeroing_norm))
    relative_leaves = [
        tf.math.divide_no_nan(tf.cast(leaf, tf.float64), largest_entry) for leaf in leaves
    ]
    relative_norm = _norm(relative_leaves)
    is_clipped = ~is_zeroed & (relative_norm > 0) & (relative_norm > target_norm / largest_entry)
    clip_factor = target_norm / relative_norm

    def scaled() -> list[tf.Tensor]:
        leaf_pairs = zip(relative_leaves, leaves, strict=True)
        return [tf.cast(relative * clip_factor, leaf.dtype) for relative, leaf in leaf_pairs]

    return _Decision(_zeros_or_scaled(is_zeroed, is_clipped, leaves, scaled), is_clipped, is_zeroed)
