"""What a run is of besides config and plan: model and loss, clients, and the examples
of the first cohort.

A resume does rounds again with the same noise. With other updates the difference of the two
releases would be free of it. So all that the updates follow from is in private/identity.json before
round 0, and is compared whenever the run goes on.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedmf.cohorts.controller import ParticipationController, PoolRanDryWarning
from fedmf.federated.task import Task
from fedmf.training import examples as of_examples

_DIFFERS = {
    "batch_size": "batch_size={now} (the run has {kept})",
    "class_weight": "class_weight={now} (the run has {kept})",
    "model": "another model or loss, which do not compute what the run's did",
    "initial_weights": "another initial model: build_model must give the same "
    "weights for the same seed",
    "client_ids": "other client_ids, or in another order",
}


def task_identity(
    task: Task, model: Mapping[str, str], controller: ParticipationController, *, resumed: bool
) -> dict[str, Any]:
    """Digests of what the run's updates follow from.

    Args:
      task: of the run.
      model: what `check_model` gives.
      controller: of the run, before its first round.
      resumed: read the clients in another order than the run did,
        which examples must not depend on.

    Returns:
      "model" and "initial_weights", hexadecimal; "batch_size"; "client_ids", hexadecimal;
      "class_weight", of each class, or None;
      "first_cohort", a digest of the examples of each of `first_clients`.

    Raises:
      ValueError: a client's examples are others when they are read again.
    """
    clients = first_clients(task, controller)
    in_turn = clients[::-1] if resumed else clients
    first, again = ({client: _digest_of(task, client) for client in in_turn} for _ in range(2))
    for client in clients:
        if first[client] != again[client]:
            raise ValueError(
                f"client {client!r} of task {task.name!r} has other examples when they are read "
                "again, and a resume would put the same noise on other updates: client_examples "
                "and preprocess must be pure, so leave out shuffles (fedmf shuffles), or seed them "
                "and what else is random by the client"
            )
    return {
        **model,
        "batch_size": task.batch_size,
        "client_ids": of_examples.digest(np.array([str(client) for client in task.client_ids])),
        "class_weight": None
        if task.class_weight is None
        else of_examples.class_table(task.class_weight).tolist(),
        "first_cohort": [first[client] for client in clients],
    }


def first_clients(task: Task, controller: ParticipationController) -> list[str]:
    """The clients of round 0, or as many others where it has none.

    Args:
      task: of the run.
      controller: of the run, before its first round.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PoolRanDryWarning)  # the loop asks again
        cohort = controller.cohort(0).tolist()
    # Canaries have the indices behind the clients'.
    clients = [task.client_ids[client] for client in cohort if client < len(task.client_ids)]
    return clients or list(task.client_ids[: controller.cohort_size])


def difference(
    kept: Mapping[str, Any], now: Mapping[str, Any], clients: Sequence[str]
) -> str | None:
    """How what a run goes on with is not what it was begun with; None if it is.

    Args:
      kept, now: of `task_identity`; without initial weights where these do not matter.
      clients: of `first_clients`.
    """
    for name, words in _DIFFERS.items():
        if name in now and kept.get(name) != now[name]:
            return "with " + words.format(now=now[name], kept=kept.get(name))
    if kept.get("first_cohort") == now["first_cohort"]:
        return None
    examples = zip(clients, kept.get("first_cohort") or (), now["first_cohort"], strict=False)
    changed = next(
        (repr(client) for client, before, after in examples if before != after),
        "of the first cohort",
    )
    return (
        f"on other data: client {changed} has other examples than when the run was begun (they "
        "must be the same in every process, also "
        "where a set is put in an order or a generator is seeded)"
    )


def _digest_of(task: Task, client: str) -> str:
    try:
        return of_examples.digest(task.examples_of(client))
    except of_examples.NotFinite:  # the run zeroes its updates
        return "not finite"
