"""The record that the server commits with each release, so that the wrapped strategy's step can be
repeated after a crash.
"""

import hashlib
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedmf.flower.arrays import Model, fitted, in_order, shapes_of
from fedmf.flower.identity import check_same_names, check_same_run
from fedmf.flower.state import State
from fedmf.flower.values import bytes_of
from fedmf.privacy.plan import Plan
from fedmf.server.server import Server

_FORMAT = "fedmf flower 1"


class StepRecord(NamedTuple):
    """The model and the wrapped strategy's state before the strategy's step in a round.

    Attributes:
      t: the round.
      model: arrays by name, before the round.
      state: state of the strategy after it has made the round's messages.
    """

    t: int
    model: dict[str, np.ndarray]
    state: State

    def to_arrays(self) -> list[np.ndarray]:
        """Converts the record to arrays, which `Server.release` commits."""
        state_tree, state_arrays = self.state.to_arrays()
        record_arrays = [*self.model.values(), *state_arrays]
        record_header = {
            "format": _FORMAT,
            "round": self.t,
            "names": list(self.model),
            "state": state_tree,
            "digest": _digest_of(record_arrays),
        }
        return [np.frombuffer(json.dumps(record_header).encode(), np.uint8), *record_arrays]

    @classmethod
    def from_arrays(cls, arrays: Sequence[np.ndarray]) -> "StepRecord":
        """Restores a record from the arrays of `to_arrays`.

        Raises:
          ValueError: another program committed them, or somebody edited them.
        """
        try:
            record_header = json.loads(bytes(arrays[0]))
            is_own_format = record_header["format"] == _FORMAT
        except (IndexError, KeyError, TypeError, ValueError, RecursionError):
            is_own_format = False
        if not is_own_format:
            raise ValueError("its releases were not committed by this strategy")
        if record_header["digest"] != _digest_of(arrays[1:]):
            raise ValueError("the model or the strategy's state in its journal was edited")
        array_names = record_header["names"]
        model_arrays = dict(zip(array_names, arrays[1:], strict=False))
        strategy_state = State.from_arrays(
            record_header["state"], list(arrays[1 + len(array_names) :])
        )
        return cls(record_header["round"], model_arrays, strategy_state)


def _digest_of(arrays: Sequence[np.ndarray]) -> str:
    """Returns a digest of the contents, shapes and dtypes of arrays."""
    array_digest = hashlib.sha256()
    for array in arrays:
        array_digest.update(f"{array.dtype.str} {array.shape} ".encode())
        array_digest.update(bytes_of(array).data)
    return array_digest.hexdigest()


def read_record(server: Server, folder: pathlib.Path) -> StepRecord | None:
    """Returns the record that was committed with the newest release, or None before the first
    release.

    Raises:
      ValueError: another program used the server of this folder.
    """
    if not server.round:
        return None
    try:
        step_record = StepRecord.from_arrays(server.last_before)
        if step_record.t != server.round - 1:
            raise ValueError(f"the model in its journal is of round {step_record.t + 1}")
        return step_record
    except ValueError as error:
        raise ValueError(
            f"folder={str(folder)!r} cannot be resumed ({error}): give the folder of a run "
            "with fedmf.flower, or a new one"
        ) from None


def recovered(
    server: Server,
    folder: pathlib.Path,
    plan: Plan,
    settings: Mapping[str, Any],
    model: Model,
) -> tuple[dict[str, np.ndarray], StepRecord | None]:
    """Checks that a folder belongs to this run, and returns the model before the newest round and
    the record of that round's release.

    Args:
      server: server that was opened.
      folder: folder of the server.
      plan: plan of the program.
      settings: settings of the program.
      model: model of the program, with the names of the run's arrays.

    Raises:
      ValueError: the folder is of another run.
    """
    begun_settings = json.loads((folder / "server.json").read_text())["server"]
    step_record = read_record(server, folder)
    if step_record is None:
        model = fitted(model, begun_settings["shapes"])
    else:
        model = in_order(model, list(step_record.model))
    array_shapes = [list(shape) for shape in shapes_of(model).values()]
    check_same_run(
        folder, (server.plan, begun_settings), (plan, {"shapes": array_shapes, **settings})
    )
    if step_record is None:
        return dict(model), None
    check_same_names(folder, step_record.model, model)
    return step_record.model, step_record
