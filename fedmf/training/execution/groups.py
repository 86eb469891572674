"""Groups of a cohort. Clipped updates are summed within each group, then across groups.

Groups depend on the run and not on the machines that compute them, so that a run is bitwise
identical on one machine and on any number of workers.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from fedmf.server.clipping import largest_norm
from fedmf.server.messages import ClippedSum

T = TypeVar("T")
# Minimal number of clients in a group (from 8 clients a round on), and maximal number of groups in
# a round: each group costs a sum of the model's size, in memory and on the network.
MIN_CLIENTS = 4
MAX_GROUPS = 64
# Minimal product of the clients in a group, the batch size and the number of parameters: many
# clients of a small model cost no more than the call that trains them.
MIN_PRODUCT = 2**25


def group_size(cohort_size: int, batch_size: int, parameters: int) -> int:
    """Returns the number of clients in a group.

    The number of groups is even if possible, so that two workers finish at the same time.

    Args:
      cohort_size: planned number of clients in a round.
      batch_size: batch size of the task.
      parameters: number of trainable parameters of the model.

    >>> [group_size(clients, 16, 4_050_748) for clients in (10, 100, 1000)]
    [5, 5, 16]
    >>> group_size(500, 1, 550_570)
    60
    """
    num_groups = min(MAX_GROUPS, max(2, cohort_size // (2 * MIN_CLIENTS) * 2))
    return max(-(-cohort_size // num_groups), MIN_PRODUCT // (batch_size * parameters))


def in_groups(clients: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yields the clients in groups of `size`, in order.

    >>> list(in_groups([1, 2, 3], 2))
    [[1, 2], [3]]
    """
    return (clients[start : start + size] for start in range(0, len(clients), size))


def check_group_sums(
    group_sums: Iterable[ClippedSum],
    sizes: Sequence[int],
    *,
    shapes: Sequence[tuple[int, ...]],
    clip_norm: float,
) -> Iterator[ClippedSum]:
    """Yields the sum of each group after a check that it can be a sum of clipped updates.

    The check detects machines that compute wrongly, and results that are lost, doubled or damaged.
    It does not detect forgery: a wrong sum within the bounds passes.

    Args:
      group_sums: results of the groups of a round, in order.
      sizes: number of clients in each group.
      shapes: shapes of the weights.
      clip_norm: clip norm of the round.

    Raises:
      ValueError: a result cannot be the sum of its group.
    """
    for number, (size, group_sum) in enumerate(itertools.zip_longest(sizes, group_sums)):
        fault = _find_fault(group_sum, number, size, shapes, clip_norm)
        if fault:
            worker = ""
            if getattr(group_sum, "worker", ""):
                worker = f", of worker {group_sum.worker!r},"
            raise ValueError(
                f"group {number} of {len(sizes)}{worker} did not return the sum of its "
                f"clipped updates: {fault}; the round was not committed: find out what is wrong "
                "there, then resume the run"
            )
        yield group_sum


def _find_fault(
    group_sum: Any,
    number: int,
    size: int | None,
    shapes: Sequence[tuple[int, ...]],
    clip_norm: float,
) -> str:
    """Returns a description of the fault in the result of a group; empty if there is none."""
    if size is None:
        return "there is one result more than there are groups"
    if group_sum is None:
        return "the result is missing"
    if not isinstance(group_sum, ClippedSum):
        return f"the result is {type(group_sum)}"
    if group_sum.group not in (None, number):
        return f"the result is that of group {group_sum.group}"
    if len(group_sum.values) != len(shapes):
        return f"the result has {len(group_sum.values)} arrays and not {len(shapes)}"
    values = [np.asarray(array) for array in group_sum.values]
    for array, shape in zip(values, shapes, strict=True):
        array_spec = f"{array.dtype} {array.shape}"
        expected_spec = f"float64 {tuple(shape)}"
        if array_spec != expected_spec:
            return f"the result has an array of {array_spec} and not of {expected_spec}"
    clients = int(group_sum.clients)
    clipped = int(group_sum.clipped)
    zeroed = int(group_sum.zeroed)
    if clients != size or min(clipped, zeroed) < 0 or clipped + zeroed > size:
        return f"the result counts {clients} clients, {clipped} of them clipped and {zeroed} zeroed"
    with np.errstate(over="ignore"):
        norm = sum(float(np.dot(leaf, leaf)) for leaf in map(np.ravel, values)) ** 0.5
    max_norm = largest_norm(size, clip_norm, sum(leaf.size for leaf in values))
    if norm <= max_norm:
        return ""
    return f"the norm is {norm:.9g}, and at most {max_norm:.9g} is possible"
