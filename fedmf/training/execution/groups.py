"""The cohort in groups of clients, whose clipped updates are summed one by one before the groups'
sums are.

Groups are a function of the run and not of who computes them: a run has the same bits on one
machine and on any number of workers.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from fedmf.server.clipping import largest_norm
from fedmf.server.messages import ClippedSum

T = TypeVar("T")
# Clients of a group at least (from 8 a round on), and groups of a round at most: a group costs a
# sum of the model's size, in memory and on the network.
LEAST_CLIENTS, MOST_GROUPS = 4, 64
# Clients times examples of a batch times parameters, at least: of small models many clients cost no
# more than a call.
LEAST_PRODUCTS = 2**25


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
    parts: Iterable[ClippedSum],
    sizes: Sequence[int],
    *,
    shapes: Sequence[tuple[int, ...]],
    clip_norm: float,
) -> Iterator[ClippedSum]:
    """Yields the result of each group if it can be the sum of so many clipped updates.

    This finds a machine that computes wrongly, and a result that is lost, doubled or damaged. It
    does not resist forgery: a wrong sum within the bounds passes.

    Args:
      parts: the results of the groups of a round, in order.
      sizes: clients of each group.
      shapes: of the weights.
      clip_norm: of the round.

    Raises:
      ValueError: naming the group, its worker and what is wrong.
    """
    for number, (clients, part) in enumerate(itertools.zip_longest(sizes, parts)):
        fault = _fault(part, number, clients, shapes, clip_norm)
        if fault:
            worker = f", of worker {part.worker!r}," if getattr(part, "worker", "") else ""
            raise ValueError(
                f"group {number} of {len(sizes)}{worker} did not return the sum of its "
                f"clipped updates: {fault}; the round was not done, so find out what is wrong "
                "there, then resume the run"
            )
        yield part


def _fault(
    part: Any,
    number: int,
    clients: int | None,
    shapes: Sequence[tuple[int, ...]],
    clip_norm: float,
) -> str:
    """Returns what is wrong with the result of a group; nothing if it may be right."""
    if clients is None:
        return "there is one result more than there are groups"
    if not isinstance(part, ClippedSum):
        return f"the result is {'missing' if part is None else type(part)}"
    if part.group not in (None, number):
        return f"the result is that of group {part.group}"
    if len(part.values) != len(shapes):
        return f"the result has {len(part.values)} arrays and not {len(shapes)}"
    values = [np.asarray(array) for array in part.values]
    for array, shape in zip(values, shapes, strict=True):
        found = f"{array.dtype} {array.shape}"
        expected = f"float64 {tuple(shape)}"
        if found != expected:
            return f"the result has an array of {found} and not of {expected}"
    counted, clipped, zeroed = (int(n) for n in (part.clients, part.clipped, part.zeroed))
    if counted != clients or min(clipped, zeroed) < 0 or clipped + zeroed > clients:
        return f"the result counts {counted} clients, {clipped} of them clipped and {zeroed} zeroed"
    with np.errstate(over="ignore"):
        norm = sum(float(np.dot(leaf, leaf)) for leaf in map(np.ravel, values)) ** 0.5
    most = largest_norm(clients, clip_norm, sum(leaf.size for leaf in values))
    return "" if norm <= most else f"the norm is {norm:.9g}, and at most {most:.9g} is possible"
