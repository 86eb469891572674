"""A model's arrays in Flower's messages, and the file that keeps them between rounds."""

import itertools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict

from fedmf.files import check_archive, write_atomically
from fedmf.flower.strategy_state import Packed, Path

Model = Mapping[str, np.ndarray]


def as_record(model: Model) -> ArrayRecord:
    """The arrays as Flower sends them."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in model.items()})


def shapes_of(model: Model) -> dict[str, tuple[int, ...]]:
    """Shape of each array, by name."""
    return {name: array.shape for name, array in model.items()}


def in_order(model: Model, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns the model with its arrays in the order of `names`; as it is where it has others."""
    return {name: model[name] for name in (names if set(names) == set(model) else model)}


def fitted(model: Model, shapes: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    """Returns the model with its arrays in an order of these shapes; as it is where none is."""
    remaining = dict(model)
    ordered: dict[str, np.ndarray] = {}
    for shape in shapes:
        for name, array in remaining.items():
            if array.shape == tuple(shape):
                ordered[name] = remaining.pop(name)
                break
    return dict(model) if remaining else ordered


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


def record_of(metrics: dict[str, Any] | None) -> MetricRecord | None:
    """Returns private metrics as Flower has them: the deviation of "loss" is "loss_stddev"."""
    if metrics is None:
        return None
    deviations = {f"{name}_stddev": value for name, value in metrics["stddev"].items()}
    numbers = metrics | deviations
    return MetricRecord({name: x for name, x in numbers.items() if isinstance(x, float)})


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


class SavedRound(NamedTuple):
    """What model.npz keeps of the round under way.

    Attributes:
      round: t.
      model: arrays by name, before the round.
      before: the wrapped strategy's state before it made the round's messages.
      after: what making the messages changed in it.
    """

    round: int
    model: dict[str, np.ndarray]
    before: dict[Path, Packed]
    after: dict[Path, Packed]


def write_model(path: pathlib.Path, saved: SavedRound) -> None:
    """Writes the model and the strategy's state in one step; mode 0600."""
    arrays = list(saved.model.values())
    states: dict[str, list[Any]] = {"before": [], "after": []}
    for name, state in (("before", saved.before), ("after", saved.after)):
        for attribute, packed in state.items():
            states[name].append([attribute, packed.tree, len(packed.arrays)])
            arrays += packed.arrays
    header = json.dumps({"round": saved.round, "names": list(saved.model), **states})
    content = {"header": np.array(header)} | {str(i): array for i, array in enumerate(arrays)}
    write_atomically(path, lambda out: np.savez(out, **content), mode=0o600)


def read_model(path: pathlib.Path) -> SavedRound:
    """Returns what `write_model` wrote.

    Raises:
      ValueError: it is missing or damaged.
    """
    try:
        check_archive(path)
        with np.load(path, allow_pickle=False) as content:
            header = json.loads(content["header"].item())
            arrays = iter([content[str(i)] for i in range(len(content.files) - 1)])
        model = {name: next(arrays) for name in header["names"]}
        states: list[dict[Path, Packed]] = []
        for name in ("before", "after"):
            states.append({})
            for attribute, tree, count in header[name]:
                packed = Packed(tree, list(itertools.islice(arrays, count)))
                states[-1][tuple(attribute)] = packed
        return SavedRound(int(header["round"]), model, *states)
    except Exception as error:
        raise ValueError(
            f"{path} is missing or damaged ({error}): put back its own newest file, or train "
            "another model with a folder and a guarantee of its own"
        ) from error
