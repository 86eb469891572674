"""`ClientWork`: trains a round's clients and sums the clipped updates of each group."""

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
    """The training of a round's clients. Sums are deterministic: the same broadcast and groups give
    bitwise identical sums.
    """

    @abc.abstractmethod
    def explain(self) -> str:
        """Returns a sentence on the kind of client work, and why it was chosen."""

    @abc.abstractmethod
    def sums(self, sent: Broadcast, groups: Iterable[Sequence[ClientData]]) -> Iterator[ClippedSum]:
        """Yields the sum of the clipped updates of each group's clients, added in their order.

        An update is a descent direction: the weights before a client's training minus those after
        it.

        Args:
          sent: broadcast of the round.
          groups: groups of the cohort's clients.
        """


def cores() -> int:
    """Returns the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def with_finite_examples(group: Sequence[ClientData]) -> list[Epochs]:
    """Returns the epochs of the clients whose examples are finite."""
    return [client.epochs for client in group if client.epochs]


def group_sum(
    group: Sequence[ClientData],
    values: list[np.ndarray],
    *,
    clipped: int,
    zeroed: int,
    loss_sum: float,
) -> ClippedSum:
    """Returns the result of a group, which counts clients without finite examples as zeroed.

    Args:
      group: clients of the group.
      values: sum of the clipped updates.
      clipped, zeroed: numbers of clipped and of zeroed clients among those with finite examples.
      loss_sum: loss of these clients before each step, summed over examples.
    """
    not_finite = sum(not client.epochs for client in group)
    return ClippedSum(
        values=values,
        clients=len(group),
        clipped=clipped,
        zeroed=zeroed + not_finite,
        not_finite=not_finite,
        loss_sum=loss_sum,
        examples=sum(count(epoch) for client in group for epoch in client.epochs),
    )
