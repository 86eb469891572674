"""A client's update on its way into the sum, on tensors: scaled, zeroed, clipped, counted."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from fedmf.federated.execution.clipping import clip_dtype, zero_and_clip
from fedmf.server.messages import ClientParams

_RECORD_DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)


class QuerySample(NamedTuple):
    """A clipped record, or a sum of some.

    Attributes:
      record: structure of the record, in float64: a sum in float32 would lose what one client sends
        beside what many others do.
      clients, clipped, zeroed: int32 (); how many records this is the sum of, how many of them were
        clipped, and how many zeroed.
    """

    record: Any
    clients: Any
    clipped: Any
    zeroed: Any


def specs_of(structure: Any) -> Any:
    """Its tensors as tf.TensorSpec."""
    return tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), structure)


def _in_dtype(leaf: Any, spec: tf.TensorSpec) -> Any:
    """The leaf of a record as a tensor of the spec's dtype; half precision widens, and numbers that
    are no tensor yet are converted.
    """
    if not tf.is_tensor(leaf) and np.asarray(leaf).dtype.kind in "fiub":
        return tf.convert_to_tensor(leaf, spec.dtype)
    leaf = tf.convert_to_tensor(leaf)
    if leaf.dtype != spec.dtype and not (
        leaf.dtype.is_floating and leaf.dtype.size < spec.dtype.size
    ):
        raise TypeError(
            f"the record has a leaf of dtype {leaf.dtype.name} where the query was made for "
            f"{spec.dtype.name}: cast it, or make the query for that"
        )
    return tf.cast(leaf, spec.dtype)


class Records:
    """Records of one structure: the zero of their sums, and how each gets into one. Pure.

    Args:
      record_specs: structure of tf.TensorSpec (or anything with shape and dtype) of one record.

    Attributes:
      specs: of a record.
      flat_specs: its leaves.
      sizes: entries of each leaf.
      size: of the whole record.

    Raises:
      TypeError, ValueError: no floats of fully defined shapes, or no entry.
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
        """Zeros in the structure of `template`, by default of `specs`.

        Raises:
          ValueError: the template is of other shapes.
        """
        template = self.specs if template is None else template
        self._check_shapes("template", template)
        zeros = [tf.zeros(leaf.shape, tf.float64) for leaf in self.flat_specs]
        zero = tf.constant(0, tf.int32)
        return QuerySample(
            tf.nest.pack_sequence_as(template, zeros), clients=zero, clipped=zero, zeroed=zero
        )

    @tf.autograph.experimental.do_not_convert  # it would take each process seconds
    def clipped(self, params: ClientParams, record: Any) -> QuerySample:
        """Zeroing, then clipping to clip_norm in L2 over all leaves together.

        The result's norm never exceeds clip_norm.

        Raises:
          ValueError: the record is of other shapes than the specs.
          TypeError: it has a tensor of a dtype that does not fit into the leaf's without loss.
        """
        self._check_shapes("record", record)
        # A shape that is known only when the graph runs is checked there.
        leaves = [
            tf.ensure_shape(_in_dtype(leaf, spec), spec.shape)
            for leaf, spec in zip(tf.nest.flatten(record), self.flat_specs, strict=True)
        ]
        clip_norm, zeroing_norm, scales = params
        if scales:
            # Half precision widens first: clipping comes after all rounding.
            leaves = [tf.cast(leaf, clip_dtype(leaf.dtype)) for leaf in leaves]
            leaves = [
                leaf * tf.cast(scale, leaf.dtype)
                for leaf, scale in zip(leaves, scales, strict=True)
            ]
        record = tf.nest.pack_sequence_as(record, leaves)
        kept = zero_and_clip(record, clip_norm=clip_norm, zeroing_norm=zeroing_norm)
        one = tf.constant(1, tf.int32)
        wide = tf.nest.map_structure(lambda leaf: tf.cast(leaf, tf.float64), kept.record)
        return QuerySample(wide, clients=one, clipped=kept.clipped, zeroed=kept.zeroed)

    def added(self, params: ClientParams, total: QuerySample, record: Any) -> QuerySample:
        """The sum with one more record in it."""
        return tf.nest.map_structure(tf.add, total, self.clipped(params, record))

    def _check_shapes(self, name: str, structure: Any) -> None:
        leaves = tf.nest.flatten(structure)
        shapes = [
            tf.TensorShape(leaf.shape if hasattr(leaf, "shape") else np.shape(leaf))
            for leaf in leaves
        ]
        specs = self.flat_specs
        if len(shapes) != len(specs) or not all(
            shape.is_compatible_with(spec.shape) for shape, spec in zip(shapes, specs, strict=True)
        ):
            raise ValueError(
                f"the {name} has leaves of shapes {shapes}, not those that the query was "
                f"made for: {self.specs}"
            )
