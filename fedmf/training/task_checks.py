"""Checks of the attributes of a `Task` when it is created."""

import collections
from collections.abc import Collection, Hashable, Iterable
from typing import Any

from fedmf import checks, fields
from fedmf.identifiers import check_clients
from fedmf.runs.vocabulary import RunVocabulary
from fedmf.training.learner import Learner

# Values of a task's attribute `validation_clients`.
OTHERS = "others"
UNKNOWN = "unknown"

_TEXT_ATTRIBUTES = (
    "description",
    "synthetic_clients",
    "headline_metric",
    "metric_note",
    "data_version",
)
# Names of the attributes of a task that are functions, with the numbers of their arguments and
# hints for error messages.
_FUNCTIONS = {
    "client_examples": (1, "pass a function: client id -> (x, y)"),
    "evaluation_examples": (1, 'pass a function: "validation" or "test" -> (x, y)'),
    "sample_weight": (1, "pass a function: client id -> weights, or use Task.from_arrays"),
}


def checked_attributes(task: Any) -> dict[str, Any]:
    """Checks all attributes of a task, and returns those that change their type, such as client ids
    as a tuple.

    Raises:
      TypeError, ValueError: an attribute is invalid.
    """
    task_name = fields.plain_text("name", task.name)
    if not task_name:
        raise ValueError("name='' is empty: give the task a short name, such as digits")
    for attribute in _TEXT_ATTRIBUTES:
        fields.plain_text(attribute, getattr(task, attribute))
    checks.one_of("validation_clients", task.validation_clients, (OTHERS, UNKNOWN))
    client_ids = _check_client_ids(f"client_ids of task {task_name!r}", task.client_ids)
    hint = "use a positive whole number"
    batch_size = task.batch_size
    batch_size = checks.integer("batch_size", batch_size, low=1, high=fields.MAX_COUNT, hint=hint)
    for attribute, (num_arguments, hint) in _FUNCTIONS.items():
        attribute_function = getattr(task, attribute)
        if attribute_function is not None or attribute != "sample_weight":
            checks.function(attribute, attribute_function, num_arguments=num_arguments, hint=hint)
    if not isinstance(task.learner, Learner):
        raise TypeError(
            f"learner of task {task_name!r} is a {type(task.learner).__name__}: pass a "
            "fedmf.training.Learner, such as training.FunctionLearner(...)"
        )
    if task.vocabulary is not None:
        fields.instance(RunVocabulary)("vocabulary", task.vocabulary)
    return {"client_ids": client_ids, "batch_size": batch_size}


def _check_client_ids(name: str, value: Any) -> tuple[Any, ...]:
    """Checks client ids, and returns them as a tuple. Missing, repeated and invalid ids raise an
    error.
    """
    client_ids = tuple(checks.entries(name, value, hint="give a list of ids"))
    if not client_ids:
        raise ValueError(f"{name} is empty: a task needs at least one training client")
    if not all(isinstance(client_id, Hashable) for client_id in client_ids):
        raise TypeError(f"{name} has arrays or lists: give one id for each client")
    check_clients(name, client_ids)
    [(repeated_id, times)] = collections.Counter(client_ids).most_common(1)
    if times > 1:
        raise ValueError(
            f"{name} has {repeated_id!r} more than once: the guarantee is for each client, so "
            "every one needs an id of its own"
        )
    return client_ids


def validation_clients_of(
    training_clients: Collection[Any], validation_clients: Iterable[Any]
) -> str:
    """Returns a task's `validation_clients`, given the clients of both splits.

    >>> validation_clients_of({"ann"}, ["bo"]), validation_clients_of({"ann"}, ["ann", "bo"])
    ('others', 'unknown')
    """
    return OTHERS if set(training_clients).isdisjoint(validation_clients) else UNKNOWN
