"""Client work that trains stacks of clients, each stack in a call of one thread."""

import collections
import concurrent.futures
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from fedmf.pytorch.client_training.stacked import ClientStack, StackSum, stacked_operations
from fedmf.server.messages import ClippedSum
from fedmf.terminal import interrupts
from fedmf.training.client_work import Broadcast, ClientWork, group_sum, with_finite_examples
from fedmf.training.examples import ClientData, Epochs
from fedmf.training.execution.groups import in_groups


class ClientsInStacks(ClientWork):
    """Client work that trains many clients in each call. Stacks run in parallel, and are added up
    in the cohort's order.

    Args:
      make_stack: returns a `ClientStack`; called once in each thread.
      num_slots: number of clients in a stack.
      threads: number of threads.
      num_parameters: number of trained parameters, for `explain`.
    """

    def __init__(
        self,
        make_stack: Callable[[], ClientStack],
        num_slots: int,
        threads: int,
        num_parameters: int,
    ) -> None:
        self._make_stack = make_stack
        self._num_slots = num_slots
        self._threads = threads
        self._num_parameters = num_parameters
        self._make_lock = threading.Lock()
        self._thread_local = threading.local()
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, "clients")

    def explain(self) -> str:
        """Returns a sentence that says how many clients train in a call."""
        return (
            f"stacked: {self._num_slots} clients of a model of {self._num_parameters} parameters "
            f"train in one call, {self._threads} calls at a time"
        )

    def sums(self, sent: Broadcast, groups: Iterable[Sequence[ClientData]]) -> Iterator[ClippedSum]:
        """Trains the clients of all groups, and yields the sum of each group's clipped updates."""
        with stacked_operations():
            yield from self._sums(sent, list(groups))

    def _sums(
        self, sent: Broadcast, groups: Sequence[Sequence[ClientData]]
    ) -> Iterator[ClippedSum]:
        """Yields the sum of each group's clipped updates."""
        stacks_of_groups = [
            list(in_groups(with_finite_examples(group), self._num_slots)) for group in groups
        ]
        stacks = itertools.chain.from_iterable(stacks_of_groups)
        pending_sums = collections.deque[concurrent.futures.Future[StackSum]]()
        try:
            for group, group_stacks in zip(groups, stacks_of_groups, strict=True):
                sum_arrays = [np.zeros(weight.shape) for weight in sent.weights]
                num_clipped = 0
                num_zeroed = 0
                loss_sum = 0.0
                for _ in group_stacks:
                    num_free = self._threads + 1 - len(pending_sums)
                    for stack in itertools.islice(stacks, num_free):
                        pending_sums.append(self._pool.submit(self._train, sent, stack))
                    stack_sum = pending_sums.popleft().result()
                    for total, array in zip(sum_arrays, stack_sum.values, strict=True):
                        total += array
                    num_clipped += stack_sum.clipped
                    num_zeroed += stack_sum.zeroed
                    loss_sum += stack_sum.loss_sum
                    interrupts.check()
                yield group_sum(
                    group, sum_arrays, clipped=num_clipped, zeroed=num_zeroed, loss_sum=loss_sum
                )
        finally:
            # If an error ended the round early, its clients must not delay clients of the next
            # round.
            concurrent.futures.wait([future for future in pending_sums if not future.cancel()])

    def _train(self, sent: Broadcast, clients: Sequence[Epochs]) -> StackSum:
        """Trains a stack of clients in the calling thread."""
        if not hasattr(self._thread_local, "stack"):
            with self._make_lock:
                self._thread_local.stack = self._make_stack()
        stack: ClientStack = self._thread_local.stack
        return stack(sent, clients)
