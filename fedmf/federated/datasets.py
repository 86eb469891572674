"""Examples of a client's tf.data.Dataset as arrays."""

from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.training import examples as of_examples

# A client's dataset of unknown length is read so far: 256 times the 256 examples that the papers
# take of a client, and what fits into the memory of any machine that trains.
MOST_EXAMPLES, MOST_BYTES = 256 * 256, 1 << 30
_BOUNDED = "give repeat() a number, or end it with take(n)"


def read_examples(examples: Any, client_id: str) -> Any:
    """What `preprocess` gives of a client as a pair: (x, y), or (x, `Weighted`) of (x, y, weight).

    Args:
      examples: a tf.data.Dataset of single ones, which is read; or arrays, unchecked.
      client_id: for errors.

    Raises:
      TypeError: elements of no shape, or other ones.
      ValueError: a dataset without an end.
    """
    if isinstance(examples, tf.data.Dataset):
        examples = _arrays(examples, client_id)
    if isinstance(examples, tuple) and len(examples) == 3:
        x, labels, weights = examples
        return x, of_examples.Weighted(labels, weights)
    return examples


def _arrays(examples: tf.data.Dataset, client_id: str) -> Any:
    element = examples.element_spec
    leaves = tf.nest.flatten(element)
    pair = isinstance(element, tuple) and len(element) in (2, 3)
    if not pair or not all(
        isinstance(part, tf.TensorSpec) and part.shape.is_fully_defined() for part in leaves
    ):
        raise TypeError(
            f"preprocess gives elements {element}: map to single examples (x, y), or (x, y, "
            "weight), of one shape, padded and not batched"
        )
    length = examples.cardinality().numpy()
    if length == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            f"preprocess gives client {client_id!r} a dataset without an end: {_BOUNDED}"
        )
    parts = [
        tf.nest.map_structure(
            lambda part: np.empty([0, *part.shape], part.dtype.as_numpy_dtype), element
        )
    ]
    number, size = 0, 0
    for part in examples.batch(1024).as_numpy_iterator():
        parts.append(part)
        number += of_examples.count(part)
        size += sum(array.nbytes for array in tf.nest.flatten(part))
        if length == tf.data.UNKNOWN_CARDINALITY and (number > MOST_EXAMPLES or size > MOST_BYTES):
            raise ValueError(
                f"preprocess gives client {client_id!r} {number} examples of {size / 1e9:.2g} GB "
                f"and more, and tf.data does not know whether they end: {_BOUNDED}"
            )
    return of_examples.concatenate(parts)
