"""What a resumed run must have again beside its config and plan: client ids, batch size, class
weights, and the program that computes updates.

The guarantee needs none of it: a committed release is never computed again. Curves of a run of
which half was computed otherwise would mean nothing.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedmf.training.examples import class_weight_table, digest
from fedmf.training.task import Task

_DIFFERS = {
    "batch_size": "batch_size={now} (the run has {recorded})",
    "class_weight": "class_weight={now} (the run has {recorded})",
    "client_ids": "other client_ids, or in another order",
}
_LONGEST = 300  # characters of a configuration in an error


def task_identity(task: Task, program: Mapping[str, str]) -> dict[str, Any]:
    """Returns what a resume must have again.

    Args:
      task: of the run.
      program: the fingerprint of its model and loss.

    Returns:
      "batch_size"; "client_ids", hexadecimal; "class_weight", of each class, or None; "program".
    """
    class_weight = None
    if task.class_weight is not None:
        class_weight = class_weight_table(task.class_weight).tolist()
    return {
        "batch_size": task.batch_size,
        "client_ids": digest(np.array([str(client) for client in task.client_ids])),
        "class_weight": class_weight,
        "program": dict(program),
    }


def difference(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Returns how a task is not the one that a run was begun with, whatever its program; None if
    it is.

    Args:
      recorded, now: of `task_identity`.
    """
    for name, words in _DIFFERS.items():
        if recorded.get(name) != now[name]:
            return "with " + words.format(now=now[name], recorded=recorded.get(name))
    return None


def program_difference(recorded: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """Returns where two programs differ, by name; None where they do not.

    >>> program_difference({"loss": "mse", "layer 0": "Dense 3"}, {"loss": "mse"})
    'layer 0 is missing (the run has Dense 3)'
    """
    for name in {**recorded, **now}:
        before, after = recorded.get(name), now.get(name)
        if before == after:
            continue
        if after is None:
            return f"{name} is missing (the run has {_short(before)})"
        if before is None:
            return f"{name} is {_short(after)} (the run has none)"
        if name.endswith("weights"):
            return f"the {name} are others"
        return f"{name} is {_short(after)} (the run has {_short(before)})"
    return None


def _short(text: str | None) -> str:
    whole = str(text)
    return whole if len(whole) <= _LONGEST else whole[:_LONGEST] + "..."
