"""Warnings and errors for clients with invalid examples."""

import warnings
from collections.abc import Iterator
from typing import Any

from fedmf.training.callbacks import Callback, Row
from fedmf.training.examples import Examples, NotFinite, count
from fedmf.training.under_way import Training

_ALL_ZEROED = (
    "every client of a round was zeroed, and the model got noise alone: no update is finite, or "
    "none has all entries within zeroing_norm={}; raise it, or lower `client_learning_rate`"
)


class ZeroedClients(Callback):
    """A callback that warns of rounds in which all clients were zeroed, and once of clients whose
    examples are not finite.

    It does not stop the run, because a stop would reveal that a client took part.
    """

    def __init__(self) -> None:
        self._has_warned = False

    def on_round(self, training: Training, row: Row) -> None:
        """Warns if all clients of the round were zeroed, or if a client's examples are not
        finite.
        """
        if row["clients"] and row.get("zeroed") == row["clients"]:
            warnings.warn(_ALL_ZEROED.format(training.config.zeroing_norm), stacklevel=4)
        if not training.not_finite or self._has_warned:
            return
        self._has_warned = True
        for _, examples in _examples_of_cohort(training):
            if isinstance(examples, NotFinite):
                warnings.warn(
                    f"round {row['round']}: {examples}; its update is zeroed in every round in "
                    "which it takes part",
                    stacklevel=4,
                )
                return


def misfit_error(training: Training) -> ValueError | None:
    """Returns the error for the first client of the cohort whose examples do not fit the model,
    such as a label without an output. None if all examples fit.
    """
    newest_weights = training.weights()
    task = training.task
    t = training.done
    for client_id, examples in _examples_of_cohort(training):
        try:
            if not isinstance(examples, NotFinite) and count(examples):
                training.evaluator.on(newest_weights, examples)
        except task.learner.errors as error:
            return ValueError(
                f"round {t} cannot train client {client_id!r} of task {task.name!r}: "
                f"{task.learner.misfit_reason(error)}; make the model's outputs and all labels "
                f"fit, and start a new run ({t} rounds are saved in {training.folder.path})"
            )
    return None


def _examples_of_cohort(training: Training) -> Iterator[tuple[Any, Examples | NotFinite]]:
    """Yields the id of each client in the newest cohort with the client's examples, or with the
    error of reading them.
    """
    for client in training.cohort:
        client_id = training.task.client_ids[client]
        try:
            yield client_id, training.task.examples_of(client_id)
        except NotFinite as error:
            yield client_id, error
