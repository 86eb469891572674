"""The cohort in groups of clients, whose clipped updates are summed one by one before the groups'
sums are.

Groups are a function of the run and not of who computes them: a run has the same bits on one
machine and on any number of workers.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

from fedmf.server.clipping import largest_norm

T = TypeVar("T")
# Clients of a group at least (from 8 a round on), and groups of a round at most: a group costs a
# sum of the model's size, in memory and on the network.
LEAST_CLIENTS, MOST_GROUPS = 4, 64
# Clients times examples of a batch times parameters, at least: of small models many clients cost no
# more than a call.
LEAST_PRODUCTS = 2**25


class GroupSum(NamedTuple):
    """What comes of a group's clients.

    Attributes:
      total: `QuerySample`, the sum of their clipped updates, and counts.
      loss: the sum over all examples of the loss before each step.
      examples: on how many they trained.
      not_finite: clients whose examples are not finite. They count as zeroed in `total`.
      group: which of the round's; None where it is not told.
      worker: the machine that made it; nothing for this process.
    """

    total: Any
    loss: float
    examples: int
    not_finite: int
    group: int | None = None
    worker: str = ""


def group_size(cohort_size: int, batch_size: int, parameters: int) -> int:
    """Clients of a group, for the planned cohort, the task's batches
    and the model's trainable parameters.

    The number of groups is even where it can be, so that two workers end together.

    >>> [group_size(clients, 16, 4_050_748) for clients in (10, 100, 1000)]
    [5, 5, 16]
    >>> group_size(500, 1, 550_570)
    60
    """
    groups = min(MOST_GROUPS, max(2, cohort_size // (2 * LEAST_CLIENTS) * 2))
    return max(-(-cohort_size // groups), LEAST_PRODUCTS // (batch_size * parameters))


def in_groups(clients: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The clients in their order, `size` at a time.

    >>> list(in_groups([1, 2, 3], 2))
    [[1, 2], [3]]
    """
    return (clients[start : start + size] for start in range(0, len(clients), size))


def checked(
    parts: Iterable[GroupSum], sizes: Sequence[int], *, zero: Any, clip_norm: float
) -> Iterator[GroupSum]:
    """Yields the result of each group if it can be the sum of so many clipped updates.

    This finds a machine that computes wrongly, and a result that is lost, doubled or damaged. It
    does not resist forgery: a wrong sum within the bounds passes.

    Args:
      parts: the results of the groups of a round, in order.
      sizes: clients of each group.
      zero: `QuerySample`, the sum of no clients.
      clip_norm: of the round.

    Raises:
      ValueError: naming the group, its worker and what is wrong.
    """
    for number, (clients, part) in enumerate(itertools.zip_longest(sizes, parts)):
        fault = _fault(part, number, clients, zero, clip_norm)
        if fault:
            worker = f", of worker {part.worker!r}," if getattr(part, "worker", "") else ""
            raise ValueError(
                f"group {number} of {len(sizes)}{worker} did not return the sum of its "
                f"clipped updates: {fault}; the round was not done, so find out what is wrong "
                "there, then resume the run"
            )
        yield part


def _fault(part: Any, number: int, clients: int | None, zero: Any, clip_norm: float) -> str:
    """What is wrong with the result of a group; nothing if it may be right."""
    if clients is None:
        return "there is one result more than there are groups"
    if not isinstance(part, GroupSum):
        return f"the result is {'missing' if part is None else type(part)}"
    if part.group not in (None, number):
        return f"the result is that of group {part.group}"
    try:
        tf.nest.assert_same_structure(zero, part.total)
    except (TypeError, ValueError):
        return "the result has another structure"
    for leaf, like in zip(tf.nest.flatten(part.total), tf.nest.flatten(zero), strict=True):
        found, expected = (f"{np.asarray(array).dtype} {np.shape(array)}" for array in (leaf, like))
        if found != expected:
            return f"the result has an array of {found} and not of {expected}"
    counted, clipped, zeroed = (int(count) for count in part.total[1:])
    if counted != clients or min(clipped, zeroed) < 0 or clipped + zeroed > clients:
        return f"the result counts {counted} clients, {clipped} of them clipped and {zeroed} zeroed"
    record = [np.asarray(leaf).reshape(-1) for leaf in tf.nest.flatten(part.total.record)]
    with np.errstate(over="ignore"):
        norm = sum(float(np.dot(leaf, leaf)) for leaf in record) ** 0.5
    most = largest_norm(clients, clip_norm, sum(leaf.size for leaf in record))
    return "" if norm <= most else f"the norm is {norm:.9g}, and at most {most:.9g} is possible"
