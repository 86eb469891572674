"""What a client trains on in a round: its examples in the order of each epoch, or where a worker
finds them.
"""

from typing import NamedTuple

import numpy as np

from fedmf.federated.examples import Epochs, Examples, NotFinite, count, take
from fedmf.federated.task import Task
from fedmf.runs.config import TrainConfig


class ClientRound(NamedTuple):
    """A client of the cohort of round t, whose examples a worker reads."""

    t: int
    client: int


def client_epochs(task: Task, config: TrainConfig, t: int, client: int) -> Epochs:
    """What the client trains on in round t: a pure function of (config.seed, t, client).

    No epoch where its examples are not finite.
    """
    try:
        examples = task.examples_of(task.client_ids[client])
    except NotFinite:
        return []
    rng = np.random.default_rng(np.random.SeedSequence([config.seed, 2, t, client]))
    epochs: list[Examples] = []
    left = config.client_batches
    for _ in range(config.client_epochs):
        order = rng.permutation(count(examples))[: None if left is None else left * task.batch_size]
        epochs.append(take(examples, order))
        if left is not None:
            left -= -(-len(order) // task.batch_size)
    return epochs
