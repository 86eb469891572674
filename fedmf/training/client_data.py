"""What a client trains on in a round: its examples in the order of each epoch, or where a worker
finds them.

And where the batches of clients begin and end, and in which order they are trained on.

A batch holds nothing but a client's examples.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedmf import nest
from fedmf.runs.config import TrainConfig
from fedmf.training.examples import ClientData, Epochs, Examples, NotFinite, count, take
from fedmf.training.task import Task


class ClientRound(NamedTuple):
    """A client of the cohort of round t, whose examples a worker reads."""

    t: int
    client: int


# Of generators: order of a client's examples, and what its training draws.
_ORDER, _TRAINING = 2, 6


def client_data(task: Task, config: TrainConfig, t: int, client: int) -> ClientData:
    """Returns what the client trains on in round t: a pure function of (config.seed, t, client).

    No epoch where its examples are not finite.
    """
    seed = (config.seed, _TRAINING, t, client)
    try:
        examples = task.examples_of(task.client_ids[client])
    except NotFinite:
        return ClientData([], seed)
    rng = np.random.default_rng([config.seed, _ORDER, t, client])
    return ClientData(shuffled_epochs(examples, config, task.batch_size, rng), seed)


def shuffled_epochs(
    examples: Examples, config: TrainConfig, batch_size: int, rng: np.random.Generator
) -> Epochs:
    """The epochs of the config over a client's examples, each in an order of its own."""
    epochs: list[Examples] = []
    left = config.client_batches
    for _ in range(config.client_epochs):
        order = rng.permutation(count(examples))[: None if left is None else left * batch_size]
        epochs.append(take(examples, order))
        if left is not None:
            left -= -(-len(order) // batch_size)
    return epochs


class Batches(NamedTuple):
    """Batches of clients whose examples lie end to end, epoch after epoch and client after client;
    int32 (batches,) each.

    Attributes:
      client: whose it is.
      epoch: of the client.
      number: of the batch in the epoch.
      start: its first row.
      size: its rows, at least one; the last batch of an epoch may have fewer than the others.
    """

    client: np.ndarray
    epoch: np.ndarray
    number: np.ndarray
    start: np.ndarray
    size: np.ndarray


class Steps(NamedTuple):
    """Batches in the order in which clients side by side train on them: those of a step have
    equally many rows, each of another client.

    Attributes:
      client, start: int32 (batches,), as of `Batches`.
      end: int32 (steps,), how many batches are over with each step.
      size: int32 (steps,), the rows of each of its batches.
      first: int32 (), in so many steps clients train on their first batch; each client's others
        come later.
    """

    client: np.ndarray
    start: np.ndarray
    end: np.ndarray
    size: np.ndarray
    first: np.ndarray


def end_to_end(clients: Sequence[Epochs]) -> list[np.ndarray]:
    """The leaves of inputs and labels of all clients, at least one with an epoch; the first axis
    counts rows.
    """
    epochs = (nest.flatten(epoch) for epochs in clients for epoch in epochs)
    return [np.concatenate(arrays) for arrays in zip(*epochs, strict=True)]


def batches(clients: Sequence[Epochs], size: int) -> Batches:
    """The clients' batches in their order, of `size` examples.

    >>> three, one = ((np.zeros(n), np.zeros(n)) for n in (3, 1))
    >>> found = batches([[three, three], [one]], 2)
    >>> found.client.tolist(), found.start.tolist(), found.size.tolist()
    ([0, 0, 0, 0, 1], [0, 2, 3, 5, 6], [2, 1, 2, 1, 1])
    """
    counts = np.array([count(epoch) for epochs in clients for epoch in epochs], np.int64)
    client = np.repeat(np.arange(len(clients)), [len(epochs) for epochs in clients])
    epoch = np.array([number for epochs in clients for number in range(len(epochs))], np.int64)
    each = -(-counts // size)  # batches of an epoch
    number = np.arange(each.sum()) - np.repeat(np.cumsum(each) - each, each)
    start = np.repeat(np.cumsum(counts) - counts, each) + number * size
    rows = np.minimum(np.repeat(counts, each) - number * size, size)
    columns = (np.repeat(client, each), np.repeat(epoch, each), number, start, rows)
    return Batches(*(column.astype(np.int32) for column in columns))


def steps(batches: Batches) -> Steps:
    """The batches side by side in few steps: each epoch's whole ones by their number, then its last
    ones by their rows.

    >>> three, one = ((np.zeros(n), np.zeros(n)) for n in (3, 1))
    >>> found = steps(batches([[three, three], [one]], 2))
    >>> found.client.tolist(), found.end.tolist(), found.size.tolist(), int(found.first)
    ([1, 0, 0, 0, 0], [1, 2, 3, 4, 5], [1, 2, 1, 2, 1], 2)
    """
    client, epoch, number, start, size = (column.astype(np.int64) for column in batches)
    whole = size == size.max(initial=0)
    most = 1 + max(number.max(initial=0), size.max(initial=0))
    key = most + np.where(whole, 2 * epoch * most + number, (2 * epoch + 1) * most + size)
    is_first = np.diff(client, prepend=-1) != 0
    key = np.where(is_first, size, key)
    order = np.argsort(key, kind="stable")
    _, firsts, counts = np.unique(key[order], return_index=True, return_counts=True)
    first = np.count_nonzero(is_first[order][firsts])
    columns = (client[order], start[order], np.cumsum(counts), size[order][firsts], np.array(first))
    return Steps(*(column.astype(np.int32) for column in columns))
