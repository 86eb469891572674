"""Clients whose examples a round cannot take: what is said of them."""

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
    """Warns of a round whose clients were all zeroed, and once in a process of examples that are
    not finite: a run that stopped for a client would tell of its examples.
    """

    def __init__(self) -> None:
        self._told = False

    def on_round(self, training: Training, row: Row) -> None:
        """See `Callback`."""
        if row["clients"] and row.get("zeroed") == row["clients"]:
            warnings.warn(_ALL_ZEROED.format(training.config.zeroing_norm), stacklevel=4)
        if not training.not_finite or self._told:
            return
        self._told = True
        for _, found in _examples_of(training):
            if isinstance(found, NotFinite):
                warnings.warn(
                    f"round {row['round']}: {found}; its update is zeroed, now and whenever it "
                    "takes part",
                    stacklevel=4,
                )
                return


def misfit(training: Training) -> ValueError | None:
    """The error of a round in which a client's examples do not fit the model, such as a label that
    it has no output for; None where all fit.
    """
    weights, task, t = training.weights(), training.task, training.done
    for client_id, examples in _examples_of(training):
        try:
            if not isinstance(examples, NotFinite) and count(examples):
                training.evaluator.on(weights, examples)
        except task.learner.errors as error:
            return ValueError(
                f"round {t} cannot train client {client_id!r} of task {task.name!r}: "
                f"{task.learner.misfit_reason(error)}; make the model's outputs and all labels "
                f"fit, and start a new run ({t} rounds are saved in {training.folder.path})"
            )
    return None


def _examples_of(training: Training) -> Iterator[tuple[Any, Examples | NotFinite]]:
    for client in training.cohort:
        client_id = training.task.client_ids[client]
        try:
            yield client_id, training.task.examples_of(client_id)
        except NotFinite as error:
            yield client_id, error
