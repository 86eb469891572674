"""Conversion of a client's tf.data.Dataset into numpy arrays of examples."""

from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.training import examples as of_examples

# A dataset of unknown length may have no end, so at most MAX_EXAMPLES examples and MAX_BYTES bytes
# are read. MAX_EXAMPLES is 256 times as many as the papers take of a client.
MAX_EXAMPLES = 256 * 256
MAX_BYTES = 1 << 30
_BOUND_HINT = "give repeat() a number, or end it with take(n)"


def read_examples(examples: Any, client_id: str) -> Any:
    """Returns the examples of a client as (x, y) or, if they have weights, as (x, `Weighted`).

    Args:
      examples: a tf.data.Dataset of single examples, or unchecked arrays.
      client_id: named in errors.

    Raises:
      TypeError: the elements are not single examples of one shape.
      ValueError: the dataset has no end.
    """
    if isinstance(examples, tf.data.Dataset):
        examples = _arrays(examples, client_id)
    if isinstance(examples, tuple) and len(examples) == 3:
        x, labels, weights = examples
        return x, of_examples.Weighted(labels, weights)
    return examples


def _arrays(examples: tf.data.Dataset, client_id: str) -> Any:
    """Returns all examples of a dataset as arrays, in the structure of its elements."""
    element_spec = examples.element_spec
    is_pair = isinstance(element_spec, tuple) and len(element_spec) in (2, 3)
    has_shapes = all(
        isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined()
        for spec in tf.nest.flatten(element_spec)
    )
    if not (is_pair and has_shapes):
        raise TypeError(
            f"preprocess gives elements {element_spec}: map to single examples (x, y), or (x, y, "
            "weight), of one shape, padded and not batched"
        )
    num_elements = examples.cardinality().numpy()
    if num_elements == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            f"preprocess gives client {client_id!r} a dataset without an end: {_BOUND_HINT}"
        )
    has_unknown_length = num_elements == tf.data.UNKNOWN_CARDINALITY
    no_examples = tf.nest.map_structure(
        lambda spec: np.empty([0, *spec.shape], spec.dtype.as_numpy_dtype), element_spec
    )
    example_chunks = [no_examples]
    num_examples = 0
    num_bytes = 0
    for chunk in examples.batch(1024).as_numpy_iterator():
        example_chunks.append(chunk)
        num_examples += of_examples.count(chunk)
        num_bytes += sum(array.nbytes for array in tf.nest.flatten(chunk))
        is_too_large = num_examples > MAX_EXAMPLES or num_bytes > MAX_BYTES
        if has_unknown_length and is_too_large:
            raise ValueError(
                f"preprocess gives client {client_id!r} at least {num_examples} examples of "
                f"{num_bytes / 1e9:.2g} GB, and tf.data does not know whether they end: "
                f"{_BOUND_HINT}"
            )
    return of_examples.concatenate(example_chunks)
