"""`ClientWork`: trains the clients of a round, and sums their clipped updates group by group."""

import abc
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fedmf.server.messages import ClientParams, ClippedSum
from fedmf.training.examples import ClientData, Epochs, count


class Broadcast(NamedTuple):
    """What the server sends to the clients of a round.

    Attributes:
      weights: of the global model.
      params: of the round, by which updates are scaled, zeroed and clipped; its scales are arrays
        in the shapes of the weights, or empty.
    """

    weights: Sequence[np.ndarray]
    params: ClientParams


class ClientWork(abc.ABC):
    """The clients of a round. The same broadcast and groups give the same sums, bit for bit."""

    @abc.abstractmethod
    def explain(self) -> str:
        """Returns a sentence that says how the clients train, and why so."""

    @abc.abstractmethod
    def sums(self, sent: Broadcast, groups: Iterable[Sequence[ClientData]]) -> Iterator[ClippedSum]:
        """Yields the sum of the clipped updates of each group's clients, added in their order.

        An update is what the server descends: the weights before a client's training minus those
        after it.

        Args:
          sent: to the clients.
          groups: of the cohort.
        """


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
    """Returns the sum of a group; clients whose examples are not finite count as zeroed.

    Args:
      group: its clients.
      values: the sum of the clipped updates.
      clipped, zeroed: how many of the clients with finite examples were.
      loss_sum: their loss before each step, summed over examples.
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
