"""Scaling, clipping and summing of clients' updates as tensors."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from fedmf.federated.client_training.clipping import clip_dtype, zero_and_clip
from fedmf.server.messages import ClientParams

_RECORD_DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)


class QuerySample(NamedTuple):
    """A clipped record or a sum of clipped records, with counts of clients.

    A record is the update of one client.

    Attributes:
      record: structure of the record, in float64: a sum in float32 would lose the digits of one
        client's update beside those of many clients.
      clients, clipped, zeroed: int32 (); the numbers of records in the sum, of clipped ones among
        them, and of zeroed ones.
    """

    record: Any
    clients: tf.Tensor
    clipped: tf.Tensor
    zeroed: tf.Tensor


def specs_of(structure: Any) -> Any:
    """Returns a structure with a tf.TensorSpec in place of each tensor."""
    return tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), structure)


def _in_dtype(leaf: Any, spec: tf.TensorSpec) -> tf.Tensor:
    """Converts a leaf of a record to a tensor of the spec's dtype, if no precision is lost.

    Floats of lower precision are cast, and numbers that are no tensor yet are converted.
    """
    if not tf.is_tensor(leaf) and np.asarray(leaf).dtype.kind in "fiub":
        return tf.convert_to_tensor(leaf, spec.dtype)
    leaf = tf.convert_to_tensor(leaf)
    is_narrower = leaf.dtype.is_floating and leaf.dtype.size < spec.dtype.size
    if leaf.dtype != spec.dtype and not is_narrower:
        raise TypeError(
            f"the record has a leaf of dtype {leaf.dtype.name} where the query was made for "
            f"{spec.dtype.name}: cast it, or make the query for that dtype"
        )
    return tf.cast(leaf, spec.dtype)


class Records:
    """Clipping and summing of records (updates of clients) of one structure.

    All methods are pure functions.

    Args:
      record_specs: structure of tf.TensorSpec (or anything with shape and dtype) of one record.

    Attributes:
      specs: record_specs as tf.TensorSpec.
      flat_specs: list of the leaves of `specs`.
      sizes: number of entries of each leaf.
      size: number of entries of the record.

    Raises:
      TypeError, ValueError: the leaves are no floats of fully defined shapes, or have no entry.
    """

    def __init__(self, record_specs: Any) -> None:
        for leaf in tf.nest.flatten(record_specs):
            is_class = isinstance(leaf, type)
            if is_class or not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
                raise TypeError(
                    f"record_specs has a leaf {leaf!r}: use tf.TensorSpec, or "
                    "anything with shape and dtype"
                )
        self.specs = specs_of(record_specs)
        self.flat_specs = tf.nest.flatten(self.specs)
        for leaf in self.flat_specs:
            if not leaf.shape.is_fully_defined() or leaf.dtype not in _RECORD_DTYPES:
                raise TypeError(
                    f"record_specs has a leaf {leaf}: use float16, bfloat16, float32 or float64 "
                    "tensors of fully defined shape"
                )
        self.sizes = [leaf.shape.num_elements() for leaf in self.flat_specs]
        self.size = sum(self.sizes)
        if not self.size:
            raise ValueError(
                f"record_specs={record_specs!r} has no entries: there is nothing to add noise to"
            )

    def zero(self, template: Any = None) -> QuerySample:
        """Returns the sum of no records, which is zeros in the structure of `template`, by default
        `specs`.

        Raises:
          ValueError: the template has other shapes than `specs`.
        """
        template = self.specs if template is None else template
        self._check_shapes("template", template)
        zero_leaves = [tf.zeros(leaf.shape, tf.float64) for leaf in self.flat_specs]
        zero_count = tf.constant(0, tf.int32)
        return QuerySample(
            tf.nest.pack_sequence_as(template, zero_leaves),
            clients=zero_count,
            clipped=zero_count,
            zeroed=zero_count,
        )

    # AutoGraph is off, because it would take seconds in each process, and there is no Python
    # control flow to convert.
    @tf.autograph.experimental.do_not_convert
    def clipped(self, params: ClientParams, record: Any) -> QuerySample:
        """Scales a record, and then zeroes it or clips its L2 norm to clip_norm.

        The norm is over all leaves together, and never exceeds clip_norm in the result.

        Raises:
          ValueError: the record has other shapes than the specs.
          TypeError: a tensor has a dtype that does not fit into the leaf's without loss.
        """
        self._check_shapes("record", record)
        # If a shape is unknown while the graph is traced, tf.ensure_shape checks it when the graph
        # runs.
        record_leaves = [
            tf.ensure_shape(_in_dtype(leaf, spec), spec.shape)
            for leaf, spec in zip(tf.nest.flatten(record), self.flat_specs, strict=True)
        ]
        clip_norm, zeroing_norm, scales = params
        if scales:
            # Half precision is cast to float32 before scaling and clipping, so that the clipped
            # record is never rounded to half precision.
            record_leaves = [tf.cast(leaf, clip_dtype(leaf.dtype)) for leaf in record_leaves]
            record_leaves = [
                leaf * tf.cast(scale, leaf.dtype)
                for leaf, scale in zip(record_leaves, scales, strict=True)
            ]
        record = tf.nest.pack_sequence_as(record, record_leaves)
        clipped_record = zero_and_clip(record, clip_norm=clip_norm, zeroing_norm=zeroing_norm)
        float64_record = tf.nest.map_structure(
            lambda leaf: tf.cast(leaf, tf.float64), clipped_record.record
        )
        return QuerySample(
            float64_record,
            clients=tf.constant(1, tf.int32),
            clipped=clipped_record.clipped,
            zeroed=clipped_record.zeroed,
        )

    def added(self, params: ClientParams, total: QuerySample, record: Any) -> QuerySample:
        """Clips a record, and returns the sum with this record added."""
        return tf.nest.map_structure(tf.add, total, self.clipped(params, record))

    def _check_shapes(self, name: str, structure: Any) -> None:
        """Raises ValueError unless a structure has the shapes of the specs."""
        leaf_shapes = []
        for leaf in tf.nest.flatten(structure):
            shape = leaf.shape if hasattr(leaf, "shape") else np.shape(leaf)
            leaf_shapes.append(tf.TensorShape(shape))
        shape_pairs = zip(leaf_shapes, self.flat_specs, strict=False)
        has_same_shapes = len(leaf_shapes) == len(self.flat_specs) and all(
            shape.is_compatible_with(spec.shape) for shape, spec in shape_pairs
        )
        if not has_same_shapes:
            raise ValueError(
                f"the {name} has leaves of shapes {leaf_shapes}, not those that the query was made "
                f"for ({self.specs}): pass a {name} of those"
            )
