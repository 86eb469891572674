"""Examples of all clients in arrays, with the client id of each example."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedmf.identifiers import client_array
from fedmf.training.example_checks import check_examples
from fedmf.training.examples import Examples, Weighted, count, digest, take, with_unit_weights

# Kinds of numpy dtypes that client ids may have: booleans, numbers, texts and times.
_KINDS_OF_IDS = "biufSUMm"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PooledExamples:
    """Checked examples of all clients, and what a task takes from them.

    Attributes:
      examples: (x, y) of all clients, in the order of the arrays.
      describe_example: index of an example -> its description in an error, which names the client.
      task_attributes: the attributes of a `Task` that follow from the arrays alone.
      defaults: defaults of attributes that the caller may set.
    """

    examples: Examples
    describe_example: Callable[[int], str]
    task_attributes: Mapping[str, Any]
    defaults: Mapping[str, Any]


def pooled_examples(
    *, x: Any, y: Any, client_ids: Any, splits: Mapping[str, Examples], sample_weight: Any
) -> PooledExamples:
    """Checks the examples of all clients and of the splits, and assigns each example to its client.

    Args:
      x, y, client_ids, sample_weight: as in `Task.from_arrays`.
      splits: (x, y) of "validation" and "test".

    Raises:
      TypeError, ValueError: as `Task.from_arrays` does.
    """
    id_array = client_array("client_ids", client_ids)

    def describe_example(example: int) -> str:
        return f"{example}, of client {id_array.ravel().tolist()[example]!r}"

    labels = y if sample_weight is None else Weighted(y, sample_weight)
    examples = check_examples((x, labels), "x and y", describe_example)
    if id_array.shape != (count(examples),):
        raise ValueError(
            f"client_ids has the shape {id_array.shape} and x and y hold {count(examples)} "
            "examples: give each example an id"
        )
    # The bytes of an array of objects are memory addresses and not values.
    if id_array.dtype.kind not in _KINDS_OF_IDS:
        id_array = np.array([str(client_id) for client_id in id_array])
    unique_ids, client_indices = np.unique(id_array, return_inverse=True)
    order_by_client = np.argsort(client_indices, kind="stable")
    client_bounds = np.searchsorted(client_indices[order_by_client], np.arange(len(unique_ids) + 1))
    index_by_id = {str(client_id): i for i, client_id in enumerate(unique_ids)}
    evaluation_splits = {
        name: check_examples(split, f"the {name} split") for name, split in splits.items()
    }
    if sample_weight is not None:
        evaluation_splits = {
            name: with_unit_weights(split) for name, split in evaluation_splits.items()
        }

    def client_examples(client_id: str) -> Examples:
        client_index = index_by_id[client_id]
        return take(
            examples, order_by_client[client_bounds[client_index] : client_bounds[client_index + 1]]
        )

    return PooledExamples(
        examples=examples,
        describe_example=describe_example,
        task_attributes={
            "client_ids": tuple(index_by_id),
            "client_examples": client_examples,
            "evaluation_examples": evaluation_splits.__getitem__,
        },
        defaults={
            "description": f"{id_array.size} examples of {len(unique_ids)} clients",
            "data_version": digest(examples, id_array, *evaluation_splits.values()),
        },
    )
