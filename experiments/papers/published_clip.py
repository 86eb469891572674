"""The published clip, for multi-epoch Table 2: an update whose norm float32 cannot hold becomes
NaN, and the model with it.

The library clips otherwise: it bounds every update. Here a model of NaN tells that some client's
update was huge, which no noise hides. Runs with this clip have no guarantee,
and their folders say so.
"""

from collections.abc import Callable
from typing import Any

from fedmf.experiments import sweep_job

NO_GUARANTEE = (
    "# No privacy statement\n\nThis run clips as the published experiments did, for multi-epoch "
    "Table 2. An update whose norm float32 "
    "cannot hold makes NaN of the model, which tells of that update: there is no guarantee.\n"
)
# A process of a sweep whose runs have this clip.
PROGRAM = (
    *sweep_job.PROGRAM[:-1],
    f"from {__name__} import install; install(); {sweep_job.PROGRAM[-1]}",
)


def zero_and_clip(record: Any, *, clip_norm: Any, zeroing_norm: Any) -> Any:
    """In place of `clipping.zero_and_clip`: what TFF and TensorFlow Privacy made
    of a client's update.

    TFF's client work sends zeros for an update that is not finite. Its zeroing_factory replaces one
    with an entry above the norm, too. TensorFlow Privacy's queries then clip by
    tf.clip_by_global_norm, which makes NaN of all entries where their norm is infinite.
    """
    import tensorflow as tf

    from fedmf.federated.aggregation.clipping import Clipped

    leaves = tf.nest.flatten(record)
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(leaf)) for leaf in leaves])
    largest = tf.reduce_max([tf.reduce_max(tf.abs(leaf)) for leaf in leaves])
    zeroed = ~finite | (largest > tf.cast(zeroing_norm, largest.dtype))
    leaves = [tf.where(zeroed, tf.zeros_like(leaf), leaf) for leaf in leaves]
    leaves, norm = tf.clip_by_global_norm(leaves, tf.cast(clip_norm, tf.float32))
    clipped = norm > tf.cast(clip_norm, norm.dtype)
    return Clipped(
        tf.nest.pack_sequence_as(record, leaves),
        tf.cast(clipped, tf.int32),
        tf.cast(zeroed, tf.int32),
    )


def install(patch: Callable[[Any, str, Any], None] = setattr) -> None:
    """Gives all training of this process the published clip, and its run folders a statement that
    there is no guarantee.
    """
    from fedmf.federated.aggregation import query
    from fedmf.federated.execution import in_process
    from fedmf.federated.training import loop, run_setup

    patch(query, "zero_and_clip", zero_and_clip)
    # NaN is what these runs are about
    patch(in_process, "checked", lambda parts, sizes, **bounds: parts)
    patch(run_setup, "markdown", lambda values: NO_GUARANTEE)
    patch(loop, "write_final_statement", lambda folder, audit: None)
