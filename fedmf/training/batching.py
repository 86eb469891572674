"""Batches for vectorised client work, which trains several clients at once. The examples of all
clients lie end to end in one array, and each batch holds examples of one client.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedmf import nest
from fedmf.training.examples import Epochs, count


class Batches(NamedTuple):
    """The batches of all clients, in the order of clients, epochs and examples. Each field is an
    int32 array (batches,).

    Attributes:
      client: index of the batch's client.
      epoch: index of the epoch among those of its client.
      number: index of the batch in its epoch.
      start: first row of the batch.
      size: number of rows of the batch, at least one; the last batch of an epoch may be smaller.
    """

    client: np.ndarray
    epoch: np.ndarray
    number: np.ndarray
    start: np.ndarray
    size: np.ndarray


class Steps(NamedTuple):
    """Training steps of vectorised clients, in each of which several clients train on one batch
    each. All batches of a step have the same number of rows, and belong to different clients.

    Attributes:
      start: int32 (steps, clients), first row of each client's batch; 0 without a batch.
      has_batch: bool (steps, clients), whether the client has a batch in the step.
      size: int32 (steps,), number of rows of each batch of the step.
    """

    start: np.ndarray
    has_batch: np.ndarray
    size: np.ndarray


def concatenated_epochs(clients: Sequence[Epochs]) -> list[np.ndarray]:
    """Returns the arrays of inputs and labels of all clients, each concatenated along the first
    axis.

    At least one client must have an epoch.
    """
    epoch_leaves = (nest.flatten(epoch) for epochs in clients for epoch in epochs)
    return [np.concatenate(arrays) for arrays in zip(*epoch_leaves, strict=True)]


def list_batches(clients: Sequence[Epochs], batch_size: int) -> Batches:
    """Returns the batches of all clients, one client after the other.

    >>> three_examples, one_example = ((np.zeros(n), np.zeros(n)) for n in (3, 1))
    >>> batches = list_batches([[three_examples, three_examples], [one_example]], 2)
    >>> batches.client.tolist(), batches.start.tolist(), batches.size.tolist()
    ([0, 0, 0, 0, 1], [0, 2, 3, 5, 6], [2, 1, 2, 1, 1])
    """
    num_examples = np.array(
        [count(epoch_number) for epochs in clients for epoch_number in epochs], np.int64
    )
    client_of_epoch = np.repeat(np.arange(len(clients)), [len(epochs) for epochs in clients])
    epoch_number = np.array(
        [number for epochs in clients for number in range(len(epochs))], np.int64
    )
    num_batches = -(-num_examples // batch_size)
    first_batch_of_epoch = np.cumsum(num_batches) - num_batches
    first_row_of_epoch = np.cumsum(num_examples) - num_examples
    batch_number = np.arange(num_batches.sum()) - np.repeat(first_batch_of_epoch, num_batches)
    start_row = np.repeat(first_row_of_epoch, num_batches) + batch_number * batch_size
    num_rows_left = np.repeat(num_examples, num_batches) - batch_number * batch_size
    return Batches(
        client=np.repeat(client_of_epoch, num_batches).astype(np.int32),
        epoch=np.repeat(epoch_number, num_batches).astype(np.int32),
        number=batch_number.astype(np.int32),
        start=start_row.astype(np.int32),
        size=np.minimum(num_rows_left, batch_size).astype(np.int32),
    )


def order_steps(batches: Batches, num_clients: int) -> Steps:
    """Arranges the batches of all clients in few training steps, each with at most one batch of a
    client. In each epoch, step i takes each client's full batch number i. After these steps, each
    further step takes the smaller batches of one size.

    >>> three_examples, one_example = ((np.zeros(n), np.zeros(n)) for n in (3, 1))
    >>> steps = order_steps(list_batches([[three_examples, three_examples], [one_example]], 2), 2)
    >>> steps.start.tolist(), steps.size.tolist()
    ([[0, 0], [2, 6], [3, 0], [5, 0]], [2, 1, 2, 1])
    >>> steps.has_batch.tolist()
    [[True, False], [True, True], [True, False], [True, False]]
    """
    client, epoch, number, start, size = (column.astype(np.int64) for column in batches)
    is_full = size == size.max(initial=0)
    # The stride exceeds every batch number and every batch size. So different pairs of an epoch and
    # a batch number, or of an epoch and a batch size, get different keys.
    key_stride = 1 + max(number.max(initial=0), size.max(initial=0))
    full_key = 2 * epoch * key_stride + number
    small_key = (2 * epoch + 1) * key_stride + size
    step_key = np.where(is_full, full_key, small_key)
    keys, step = np.unique(step_key, return_inverse=True)
    step_start = np.zeros((len(keys), num_clients), np.int32)
    has_batch = np.zeros((len(keys), num_clients), bool)
    step_size = np.zeros(len(keys), np.int32)
    step_start[step, client] = start
    has_batch[step, client] = True
    step_size[step] = size
    return Steps(start=step_start, has_batch=has_batch, size=step_size)
