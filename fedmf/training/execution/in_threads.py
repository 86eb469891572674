"""Client work that trains one client, or one stack of clients, in each of several threads."""

import collections
import concurrent.futures
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedmf.server.messages import ClippedSum
from fedmf.terminal import interrupts
from fedmf.training.client_work import Broadcast, ClientWork, group_sum, with_finite_examples
from fedmf.training.examples import ClientData, Epochs
from fedmf.training.execution.groups import in_groups


class ClientResult(NamedTuple):
    """The sum of the clipped updates of the clients of a call, mostly one client.

    Attributes:
      values: float arrays in the shapes of the weights, or tensors, which are converted when they
        are added, so that the memory of few arrays suffices.
      clipped, zeroed: numbers of clients.
      loss_sum: loss before each step, summed over examples.
    """

    values: Sequence[Any]
    clipped: int
    zeroed: int
    loss_sum: float


# A function that takes a broadcast and the epochs of the clients of a call, trains these clients,
# and returns the sum of their clipped updates.
TrainClients = Callable[[Broadcast, Sequence[Epochs]], ClientResult]


class ClientsInThreads(ClientWork):
    """Client work that makes one call in each thread, and adds the updates in the cohort's order.

    Args:
      make: returns the function that trains the clients of a call; called once in each thread.
      shapes: shapes of the weights.
      threads: number of threads.
      reason: reason for this kind of client work, for `explain`.
      clients_per_call: largest number of clients of a call.
    """

    def __init__(
        self,
        make: Callable[[], TrainClients],
        shapes: Sequence[tuple[int, ...]],
        threads: int,
        reason: str,
        clients_per_call: int = 1,
    ) -> None:
        self._make = make
        self._shapes = shapes
        self._threads = threads
        self._reason = reason
        self._clients_per_call = clients_per_call
        self._make_lock = threading.Lock()
        self._thread_local = threading.local()
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, "client")
        # One more call than there are threads is submitted at the same time, so that no thread has
        # to wait for its next clients.
        self._max_pending = threads + 1

    def _train(self, sent: Broadcast, clients: Sequence[Epochs]) -> ClientResult:
        """Trains the clients of a call in the calling thread."""
        if not hasattr(self._thread_local, "train_clients"):
            # The lock is held, because machine-learning frameworks must trace functions one at a
            # time.
            with self._make_lock:
                self._thread_local.train_clients = self._make()
        client_result: ClientResult = self._thread_local.train_clients(sent, clients)
        return client_result

    def explain(self) -> str:
        """Returns a sentence that says how many clients are trained at a time, and why."""
        if self._clients_per_call == 1:
            return f"one client a thread, {self._threads} at a time: {self._reason}"
        return (
            f"stacked: {self._clients_per_call} clients train in one call, {self._threads} calls "
            f"at a time: {self._reason}"
        )

    def sums(self, sent: Broadcast, groups: Iterable[Sequence[ClientData]]) -> Iterator[ClippedSum]:
        """Trains the clients of all groups in threads, and yields the sum of each group's clipped
        updates. Free threads begin with clients of the next groups.
        """
        groups = list(groups)
        calls_of_groups = [
            list(in_groups(with_finite_examples(group), self._clients_per_call)) for group in groups
        ]
        next_calls = itertools.chain.from_iterable(calls_of_groups)
        pending_results = collections.deque[concurrent.futures.Future[ClientResult]]()
        try:
            for group, group_calls in zip(groups, calls_of_groups, strict=True):
                sum_arrays = [np.zeros(shape) for shape in self._shapes]
                num_clipped = 0
                num_zeroed = 0
                loss_sum = 0.0
                for _ in group_calls:
                    num_free = self._max_pending - len(pending_results)
                    for clients in itertools.islice(next_calls, num_free):
                        pending_results.append(self._pool.submit(self._train, sent, clients))
                    client_result = pending_results.popleft().result()
                    for total, array in zip(sum_arrays, client_result.values, strict=True):
                        total += np.asarray(array)
                    num_clipped += client_result.clipped
                    num_zeroed += client_result.zeroed
                    loss_sum += client_result.loss_sum
                    interrupts.check()
                yield group_sum(
                    group, sum_arrays, clipped=num_clipped, zeroed=num_zeroed, loss_sum=loss_sum
                )
        finally:
            # If an error ended the round early, its clients must not delay clients of the next
            # round.
            concurrent.futures.wait([future for future in pending_results if not future.cancel()])
