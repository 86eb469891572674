"""The identity of a task, which consists of its client ids, batch size, class weights, and the
program that computes updates. A run is resumed only with the same identity, config and plan, unless
the caller accepts another program.

The guarantee does not depend on it, because a committed release is never computed again. But curves
would mean nothing if half of a run had been computed by another program.
"""

import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedmf.training.class_weights import class_weight_table
from fedmf.training.examples import digest
from fedmf.training.task import Task

_CHANGE_TEXTS = {
    "data_version": "on other data: data_version={current!r} (the run has {recorded!r})",
    "batch_size": "with batch_size={current} (the run has {recorded})",
    "class_weight": "with class_weight={current} (the run has {recorded})",
    "client_ids": "with different client_ids, or in another order",
}
# Maximal length of a fingerprint's text in an error message.
_MAX_CHARACTERS = 300


def task_identity(task: Task, program: Mapping[str, str]) -> dict[str, Any]:
    """Returns a task's identity, which a resumed run must have.

    Args:
      task: task of the run.
      program: fingerprint of the task's learner.

    Returns:
      {"batch_size": int, "client_ids": digest, "class_weight": weight of each class or None,
      "data_version": text, "program": fingerprint}. It is written to a private file only: a digest
      of clients' examples would confirm to an attacker which examples they are.
    """
    class_weight = None
    if task.class_weight is not None:
        class_weight = class_weight_table(task.class_weight).tolist()
    return {
        "batch_size": task.batch_size,
        "client_ids": digest(np.array([str(client) for client in task.client_ids])),
        "class_weight": class_weight,
        "data_version": task.data_version,
        "program": _checked_program(task, program),
    }


def _checked_program(task: Task, program: Any) -> dict[str, str]:
    """Checks the fingerprint that a learner returned, and returns it as a dict.

    Raises:
      TypeError: it is no dict of texts, which the run's folder holds.
    """
    learner_name = type(task.learner).__name__
    hint = "return a dict of texts, such as a digest of each array"
    if not isinstance(program, Mapping):
        raise TypeError(
            f"fingerprint of {learner_name}, the learner of task {task.name!r}, returned a "
            f"{type(program).__name__}: {hint}"
        )
    for name, text in program.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise TypeError(
                f"fingerprint of {learner_name}, the learner of task {task.name!r}, returned "
                f"{reprlib.repr(name)}: {reprlib.repr(text)}: {hint}"
            )
    return dict(program)


def identity_difference(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> str | None:
    """Compares a task's identity with the recorded one, except for the program. Returns the first
    difference; None if there is none.

    Args:
      recorded: `task_identity` when the run was begun.
      current: `task_identity` now.
    """
    for name, text in _CHANGE_TEXTS.items():
        if recorded.get(name) != current[name]:
            return text.format(current=current[name], recorded=recorded.get(name))
    return None


def program_difference(recorded: Mapping[str, str], current: Mapping[str, str]) -> str | None:
    """Returns the first difference between the fingerprints of two programs; None if they are
    equal.

    >>> program_difference({"loss": "mse", "layer 0": "Dense 3"}, {"loss": "mse"})
    'layer 0 is missing (the run has Dense 3)'
    """
    for name in {**recorded, **current}:
        recorded_text = recorded.get(name)
        current_text = current.get(name)
        if recorded_text == current_text:
            continue
        if current_text is None:
            return f"{name} is missing (the run has {_shorten(recorded_text)})"
        if recorded_text is None:
            return f"{name} is {_shorten(current_text)} (the run has none)"
        if name.endswith("weights"):
            return f"the {name} differ"
        return f"{name} is {_shorten(current_text)} (the run has {_shorten(recorded_text)})"
    return None


def _shorten(text: str | None) -> str:
    """Returns the beginning of a long text, for an error message."""
    full_text = str(text)
    if len(full_text) <= _MAX_CHARACTERS:
        return full_text
    return full_text[:_MAX_CHARACTERS] + "..."
