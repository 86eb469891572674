"""A model's arrays in Flower's messages, and the file that keeps them between rounds."""

import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from fedmf.files import check_archive, write_atomically

Model = Mapping[str, np.ndarray]
# Kinds of entries that a file without pickles holds.
_NUMBERS = "fiubc"


def as_record(model: Model) -> ArrayRecord:
    """The arrays as Flower sends them."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in model.items()})


def shapes_of(model: Model) -> dict[str, tuple[int, ...]]:
    """Shape of each array, by name."""
    return {name: array.shape for name, array in model.items()}


def floats(arrays: ArrayRecord) -> dict[str, np.ndarray]:
    """The model's arrays by name.

    Raises:
      ValueError: one is no array of floats.
    """
    model = {name: array.numpy() for name, array in arrays.items()}
    for name, array in model.items():
        if array.dtype.kind != "f":
            raise ValueError(
                f"arrays[{name!r}] holds {array.dtype} entries, which no clip bounds: leave "
                "counters such as num_batches_tracked out of the message, and keep them on the "
                "clients"
            )
    return model


def metrics_of(content: RecordDict) -> dict[str, float] | None:
    """A client's "accuracy" and "loss", of the first record that has both as numbers; None without.

    Raises:
      Exception: as of `update_of`.
    """
    for record in content.metric_records.values():
        said = {name: record.get(name) for name in ("accuracy", "loss")}
        if all(isinstance(value, int | float) for value in said.values()):
            return {name: float(value) for name, value in said.items()}
    return None


def update_of(content: RecordDict, model: Model) -> list[np.ndarray]:
    """Reply minus model, float64, in the model's order.

    Raises:
      Exception: a reply that has not the model's arrays, of any kind where its bytes are not what
        they claim.
    """
    if len(content.array_records) != 1:
        raise ValueError(f"{len(content.array_records)} ArrayRecords and not one")
    [record] = content.array_records.values()
    if set(record) != set(model):
        raise ValueError(f"arrays of the names {sorted(record)} and not {sorted(model)}")
    update = []
    for name, before in model.items():
        if tuple(record[name].shape) != before.shape:
            raise ValueError(f"{name!r} has shape {record[name].shape} and not {before.shape}")
        after = record[name].numpy()
        if after.shape != before.shape or after.dtype.kind != "f":
            raise ValueError(f"{name!r} holds {after.dtype} entries of shape {after.shape}")
        with np.errstate(over="ignore", invalid="ignore"):
            update.append(after.astype(np.float64) - before)
    return update


# How an attribute of the wrapped strategy is made again from its arrays.
_KINDS: dict[str, Callable[[dict[str, np.ndarray]], Any]] = {
    "record": as_record,
    "dict": dict,
    "list": lambda entries: list(entries.values()),
}


def _arrays_of(strategy: Strategy) -> list[tuple[str, str, dict[str, np.ndarray]]]:
    """The attributes of a strategy that are arrays by name or in a row, such as its momentum."""
    found = []
    for name, value in vars(strategy).items():
        if isinstance(value, ArrayRecord):
            kind, entries = "record", {key: array.numpy() for key, array in value.items()}
        elif isinstance(value, dict):
            kind, entries = "dict", value
        elif isinstance(value, list):
            kind, entries = "list", {str(i): array for i, array in enumerate(value)}
        else:
            continue
        numbers = all(
            isinstance(key, str)
            and isinstance(array, np.ndarray | np.generic)
            and array.dtype.kind in _NUMBERS
            for key, array in entries.items()
        )
        if entries and numbers:
            found.append((name, kind, entries))
    return found


def write_model(path: pathlib.Path, t: int, model: Model, strategy: Strategy) -> None:
    """Keeps the model of round t, and the strategy's own arrays, in one step; mode 0600."""
    flat, own = list(model.values()), []
    for name, kind, entries in _arrays_of(strategy):
        own.append([name, kind, list(entries)])
        flat += entries.values()
    header = json.dumps({"round": t, "names": list(model), "strategy": own})
    content = {"header": np.array(header)} | {str(i): array for i, array in enumerate(flat)}
    write_atomically(path, lambda out: np.savez(out, **content), mode=0o600)


def read_model(path: pathlib.Path, strategy: Strategy) -> tuple[int, dict[str, np.ndarray]]:
    """The round and the model of `write_model`; the strategy gets its own arrays back.

    Raises:
      ValueError: it is missing or damaged.
    """
    try:
        check_archive(path)
        with np.load(path, allow_pickle=False) as content:
            header = json.loads(content["header"].item())
            flat = iter([content[str(i)] for i in range(len(content.files) - 1)])
        model = {name: next(flat) for name in header["names"]}
        own = {
            name: _KINDS[kind]({key: next(flat) for key in keys})
            for name, kind, keys in header["strategy"]
        }
        t = int(header["round"])
    except Exception as error:
        raise ValueError(
            f"{path} is missing or damaged ({error}): put back its own newest file, or train "
            "another model with a folder and a guarantee of its own"
        ) from error
    vars(strategy).update(own)
    return t, model
