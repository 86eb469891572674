"""The cohort in groups of clients, whose clipped updates are summed one by one before the groups' sums are.

Groups are a function of the run and not of who computes them: a run has the same bits on one machine and on any number of workers.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
# Clients of a group at least (from 8 a round on), and groups of a round at most: a group costs a sum of the model's size, in memory and on
# the network.
LEAST_CLIENTS, MOST_GROUPS = 4, 64
# Clients times examples of a batch times parameters, at least: of small models many clients cost no more than a call.
LEAST_PRODUCTS = 2**25


class GroupSum(NamedTuple):
    """What comes of a group's clients.

    Attributes:
      total: `QuerySample`, the sum of their clipped updates, and counts.
      loss: the sum over all examples of the loss before each step.
      examples: on how many they trained.
      not_finite: clients whose examples are not finite. They count as zeroed in `total`.
    """

    total: Any
    loss: float
    examples: int
    not_finite: int


def group_size(cohort_size: int, batch_size: int, parameters: int) -> int:
    """Clients of a group, for the planned cohort, the task's batches and the model's trainable parameters.

    The number of groups is even where it can be, so that two workers end together.

    >>> [group_size(clients, 16, 4_050_748) for clients in (10, 100, 1000)], group_size(500, 1, 550_570)
    ([5, 5, 16], 60)
    """
    groups = min(MOST_GROUPS, max(2, cohort_size // (2 * LEAST_CLIENTS) * 2))
    return max(-(-cohort_size // groups), LEAST_PRODUCTS // (batch_size * parameters))


def in_groups(clients: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The clients in their order, `size` at a time.

    >>> list(in_groups([1, 2, 3], 2))
    [[1, 2], [3]]
    """
    return (clients[start : start + size] for start in range(0, len(clients), size))
