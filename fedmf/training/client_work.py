"""The interface of code that trains a round's clients and sums the clipped updates of each group of
clients.
"""

import abc
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fedmf.server.messages import ClientParams, ClippedSum
from fedmf.training.examples import ClientData, Epochs, count


class Broadcast(NamedTuple):
    """The weights and parameters that the server sends to the clients of a round.

    Attributes:
      weights: weights of the global model.
      params: parameters by which updates are scaled, zeroed and clipped; its scales are arrays in
        the shapes of the weights, or empty.
    """

    weights: Sequence[np.ndarray]
    params: ClientParams


class ClientWork(abc.ABC):
    """Interface of code that trains a round's clients. It is deterministic: the same broadcast and
    groups give bitwise identical sums.

    Attributes:
      has_one_group: whether the clients of a round are one group, as on a GPU, where a sum is moved
        to the processor and checked once a round.
    """

    has_one_group: bool = False

    @abc.abstractmethod
    def explain(self) -> str:
        """Returns a sentence that names the kind of client work and says why it was chosen."""

    @abc.abstractmethod
    def sums(self, sent: Broadcast, groups: Iterable[Sequence[ClientData]]) -> Iterator[ClippedSum]:
        """Trains the clients of each group, and yields the sum of their clipped updates, added in
        the clients' order.

        An update has TFF's sign, the opposite of a FunctionLearner's: the weights before a client's
        training minus those after it.

        Args:
          sent: broadcast of the round. Its arrays are copies, and each client begins with their
            values: the round is refused if they were written to.
          groups: groups of the cohort's clients.
        """


def sums_of_copies(
    work: ClientWork, sent: Broadcast, groups: Iterable[Sequence[ClientData]]
) -> Iterator[ClippedSum]:
    """Yields the results of `ClientWork.sums`, which gets a copy of the broadcast. So client work
    cannot write to the server's arrays.

    Raises:
      ValueError: after the last group, if client work wrote to the copy. Then clients began with
        weights that depend on the examples of clients that trained before.
    """
    sent_copy = _copied(sent)
    yield from work.sums(sent_copy, groups)
    for name, arrays, originals in (
        ("weights", sent_copy.weights, sent.weights),
        ("scales", sent_copy.params.scales, sent.params.scales),
    ):
        if not _has_same_values(arrays, originals):
            raise ValueError(
                f"client work wrote to the {name} that it was sent, so that clients began with "
                "what other clients' examples made of them; the round was not committed: let each "
                "client train a copy (`weight.copy()`, and torch.tensor in place of from_numpy)"
            )


def _copied(sent: Broadcast) -> Broadcast:
    """Returns a copy of a broadcast, whose arrays are copies as well."""
    scales: Sequence[np.ndarray] = [np.array(scale) for scale in sent.params.scales] or ()
    copied_weights = [np.array(weight) for weight in sent.weights]
    return Broadcast(copied_weights, sent.params._replace(scales=scales))


def _has_same_values(arrays: Sequence[np.ndarray], originals: Sequence[np.ndarray]) -> bool:
    """Returns whether two lists of arrays have equal values. A NaN equals a NaN."""
    return len(arrays) == len(originals) and all(
        np.array_equal(array, original) or np.array_equal(array, original, equal_nan=True)
        for array, original in zip(arrays, originals, strict=True)
    )


def cores() -> int:
    """Returns the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def with_finite_examples(group: Sequence[ClientData]) -> list[Epochs]:
    """Returns the epochs of those clients of a group whose examples are finite."""
    return [client.epochs for client in group if client.epochs]


def group_sum(
    group: Sequence[ClientData],
    values: list[np.ndarray],
    *,
    clipped: int,
    zeroed: int,
    loss_sum: float,
) -> ClippedSum:
    """Returns the result of a group of clients, which has the sum of their clipped updates and
    counts. Clients whose examples are not finite count as zeroed.

    Args:
      group: clients of the group.
      values: sum of the clipped updates.
      clipped, zeroed: numbers of clipped and of zeroed clients among those with finite examples.
      loss_sum: loss of these clients before each step, summed over examples.
    """
    num_not_finite = sum(not client.epochs for client in group)
    return ClippedSum(
        values=values,
        clients=len(group),
        clipped=clipped,
        zeroed=zeroed + num_not_finite,
        not_finite=num_not_finite,
        loss_sum=loss_sum,
        examples=sum(count(epoch) for client in group for epoch in client.epochs),
    )


def merge_sums(first: ClippedSum, second: ClippedSum) -> ClippedSum:
    """Adds the sums of two sets of clients, and returns the sum over both sets."""
    merged_values = [a + b for a, b in zip(first.values, second.values, strict=True)]
    return ClippedSum(
        values=merged_values,
        clients=first.clients + second.clients,
        clipped=first.clipped + second.clipped,
        zeroed=first.zeroed + second.zeroed,
        not_finite=first.not_finite + second.not_finite,
        loss_sum=first.loss_sum + second.loss_sum,
        examples=first.examples + second.examples,
    )
