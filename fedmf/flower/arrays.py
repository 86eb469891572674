"""Conversion of models and metrics between numpy and Flower's messages."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

Model = Mapping[str, np.ndarray]


def as_record(model: Model) -> ArrayRecord:
    """Converts a model, which is a dict of numpy arrays, to an ArrayRecord of Flower."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in model.items()})


def copy_of(arrays: ArrayRecord) -> ArrayRecord:
    """Returns a copy of an ArrayRecord that can be changed without changing the original. The
    arrays' bytes are shared.
    """
    array_copies = (Array(a.dtype, a.shape, a.stype, a.data) for a in arrays.values())
    return ArrayRecord(dict(zip(arrays, array_copies, strict=True)))


def is_model(arrays: ArrayRecord, model: Model) -> bool:
    """Returns whether an ArrayRecord holds exactly the arrays of a model, bitwise identical."""
    if set(arrays) != set(model):
        return False
    array_pairs = [(arrays[name].numpy(), array) for name, array in model.items()]
    return all(
        sent.dtype == array.dtype
        and sent.shape == array.shape
        and sent.tobytes() == array.tobytes()
        for sent, array in array_pairs
    )


def shapes_of(model: Model) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each array of a model, by name."""
    return {name: array.shape for name, array in model.items()}


def in_order(model: Model, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns the model with its arrays in the order of `names`, or unchanged if its arrays have
    other names.
    """
    if set(names) != set(model):
        return dict(model)
    return {name: model[name] for name in names}


def fitted(model: Model, shapes: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    """Returns the model with its arrays in an order that gives these shapes, or unchanged if no
    order does.
    """
    remaining_arrays = dict(model)
    ordered: dict[str, np.ndarray] = {}
    for shape in shapes:
        for name, array in remaining_arrays.items():
            if array.shape == tuple(shape):
                ordered[name] = remaining_arrays.pop(name)
                break
    return dict(model) if remaining_arrays else ordered


def floats(arrays: ArrayRecord) -> dict[str, np.ndarray]:
    """Converts an ArrayRecord to a model, which is a dict of float arrays by name.

    Raises:
      ValueError: one is no array of floats.
    """
    model_arrays = {name: array.numpy() for name, array in arrays.items()}
    for name, array in model_arrays.items():
        if array.dtype.kind != "f":
            raise ValueError(
                f"arrays[{name!r}] holds {array.dtype} entries, which no clip bounds: leave "
                "counters such as num_batches_tracked out of the message, and keep them on the "
                "clients"
            )
    return model_arrays


def metrics_of(content: RecordDict) -> dict[str, float] | None:
    """Returns "accuracy" and "loss" from a client's reply, of the first record that has both as
    numbers. None if no record has.

    Raises:
      Exception: as of `update_of`.
    """
    for record in content.metric_records.values():
        value_by_name = {name: record.get(name) for name in ("accuracy", "loss")}
        if all(isinstance(value, int | float) for value in value_by_name.values()):
            return {name: float(value) for name, value in value_by_name.items()}
    return None


def record_of(metrics: dict[str, Any] | None) -> MetricRecord | None:
    """Converts private metrics to a MetricRecord of Flower. Standard deviations get names such as
    "loss_stddev".
    """
    if metrics is None:
        return None
    deviation_by_name = {f"{name}_stddev": value for name, value in metrics["stddev"].items()}
    metric_by_name = metrics | deviation_by_name
    return MetricRecord({name: x for name, x in metric_by_name.items() if isinstance(x, float)})


def update_of(content: RecordDict, model: Model) -> list[np.ndarray]:
    """Returns a client's update, its reply minus the model, as float64 arrays in the model's order.

    Raises:
      Exception: the reply has other arrays than the model; of any type where its bytes are no
        arrays.
    """
    if len(content.array_records) != 1:
        raise ValueError(f"{len(content.array_records)} ArrayRecords and not one")
    [record] = content.array_records.values()
    if set(record) != set(model):
        raise ValueError(f"arrays of the names {sorted(record)} and not {sorted(model)}")
    update_arrays = []
    for name, sent in model.items():
        if tuple(record[name].shape) != sent.shape:
            raise ValueError(f"{name!r} has shape {record[name].shape} and not {sent.shape}")
        replied_array = record[name].numpy()
        if replied_array.shape != sent.shape or replied_array.dtype.kind != "f":
            raise ValueError(
                f"{name!r} holds {replied_array.dtype} entries of shape {replied_array.shape}"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            update_arrays.append(replied_array.astype(np.float64) - sent)
    return update_arrays
