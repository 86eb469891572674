"""Groups of a cohort's clients. Clipped updates are summed within each group, and then across
groups.

Groups depend on the run and not on the machines that compute them, so that a run is bitwise
identical on one machine and on any number of workers.
"""

import itertools
import operator
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from fedmf import checks
from fedmf.server.clipping import largest_norm
from fedmf.server.messages import ClippedSum

T = TypeVar("T")
# In rounds of 8 clients or more, each group but the last has at least MIN_CLIENTS clients, and
# there are about MAX_GROUPS groups at most. Each group costs a sum of the model's size, in memory
# and on the network.
MIN_CLIENTS = 4
MAX_GROUPS = 64
# Least product of a group's clients, the batch size and the number of parameters. For small models
# the groups are therefore large, because the call for a group costs more than the training of a few
# clients.
MIN_PRODUCT = 2**25


def group_size(cohort_size: int, batch_size: int, parameters: int) -> int:
    """Returns the number of clients in each group of a cohort.

    It is chosen so that the number of groups is even where that is easy, so that two workers finish
    at about the same time. The last group of a round may be smaller.

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
    """Yields the clients in groups of `size`, in their order.

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
    """Checks that each group's result can be a sum of clipped updates, and yields a copy of it.

    The copy is what is checked, and nobody else writes to it. All copies share their memory: add
    one before the next.

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
    sum_memory = [np.empty(shape) for shape in shapes]
    for number, (size, group_sum) in enumerate(itertools.zip_longest(sizes, group_sums)):
        try:
            copied_sum = _checked_copy(group_sum, number, size, sum_memory)
            _check_norm(copied_sum, clip_norm)
        except ValueError as fault:
            worker_phrase = ""
            if getattr(group_sum, "worker", ""):
                worker_phrase = f", of worker {group_sum.worker!r},"
            raise ValueError(
                f"group {number} of {len(sizes)}{worker_phrase} did not return the sum of its "
                f"clipped updates: {fault}; the round was not committed: find out what is wrong "
                "there, then resume the run"
            ) from None
        yield copied_sum


def _checked_copy(
    group_sum: Any, number: int, size: int | None, memory: Sequence[np.ndarray]
) -> ClippedSum:
    """Checks the types and counts of a group's result, and returns a copy with float64 arrays, ints
    and a float.

    Args:
      group_sum: the result.
      number: number of the group in the round.
      size: clients of the group; None where there is no such group.
      memory: arrays for the copy, in the shapes of the weights.

    Raises:
      ValueError: with what is wrong.
    """
    if size is None:
        raise ValueError("there is one result more than there are groups")
    if not isinstance(group_sum, ClippedSum):
        raise ValueError(f"the result is {'missing' if group_sum is None else type(group_sum)}")
    if group_sum.group not in (None, number):
        raise ValueError(f"the result is that of group {group_sum.group}")
    _copy_arrays(list(group_sum.values), memory)
    counts = {
        name: _whole_number(name, getattr(group_sum, name))
        for name in ("clients", "clipped", "zeroed", "not_finite", "examples")
    }
    num_clipped, num_zeroed = counts["clipped"], counts["zeroed"]
    is_possible = min(num_clipped, num_zeroed) >= 0 and num_clipped + num_zeroed <= size
    if counts["clients"] != size or not is_possible:
        raise ValueError(
            f"the result counts {counts['clients']} clients, {num_clipped} of them clipped "
            f"and {num_zeroed} zeroed"
        )
    if not 0 <= counts["not_finite"] <= num_zeroed or counts["examples"] < 0:
        raise ValueError(
            f"the result counts {counts['examples']} examples, and "
            f"{counts['not_finite']} clients whose examples are not finite among "
            f"{num_zeroed} zeroed ones"
        )
    loss_sum = checks.real_number(group_sum.loss_sum)
    if loss_sum is None:
        raise ValueError(
            f"the result has loss_sum={reprlib.repr(group_sum.loss_sum)}, not one number"
        )
    return ClippedSum(
        values=list(memory),
        clients=counts["clients"],
        clipped=num_clipped,
        zeroed=num_zeroed,
        not_finite=counts["not_finite"],
        loss_sum=loss_sum,
        examples=counts["examples"],
    )


def _copy_arrays(group_arrays: Sequence[Any], memory: Sequence[np.ndarray]) -> None:
    """Copies the arrays of a group's sum into `memory`.

    Raises:
      ValueError: an array has another type or shape than the one that it is copied to, or there are
        more or fewer.
    """
    if len(group_arrays) != len(memory):
        raise ValueError(f"the result has {len(group_arrays)} arrays and not {len(memory)}")
    for value, copied in zip(group_arrays, memory, strict=True):
        if np.ma.isMaskedArray(value):
            raise ValueError("the result has a masked array, and no sum leaves entries out")
        array = np.asarray(value)
        array_kind = f"{array.dtype} {array.shape}"
        expected_kind = f"float64 {copied.shape}"
        if array_kind != expected_kind:
            raise ValueError(f"the result has an array of {array_kind} and not of {expected_kind}")
        np.copyto(copied, array)


def _whole_number(name: str, value: Any) -> int:
    """Returns a count as an int, or raises a ValueError.

    Raises:
      ValueError: it is no whole number.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(
            f"the result has {name}={reprlib.repr(value)}, which is no whole number"
        ) from None


def _check_norm(group_sum: ClippedSum, clip_norm: float) -> None:
    """Raises a ValueError if the norm of a sum is above the largest norm that a sum of clipped
    updates of this many clients can have.
    """
    with np.errstate(over="ignore"):
        sum_norm = sum(float(np.dot(leaf, leaf)) for leaf in map(np.ravel, group_sum.values)) ** 0.5
    norm_bound = largest_norm(
        group_sum.clients, clip_norm, sum(leaf.size for leaf in group_sum.values)
    )
    if not sum_norm <= norm_bound:
        raise ValueError(f"the norm is {sum_norm:.9g}, and at most {norm_bound:.9g} is possible")
