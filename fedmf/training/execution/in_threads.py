"""Client work that trains one client in each of several threads."""

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


class ClientResult(NamedTuple):
    """The clipped update of a client, with its loss.

    Attributes:
      values: float arrays in the shapes of the weights, or tensors, which are converted when they
        are added, so that the memory of few arrays suffices.
      clipped, zeroed: 0 or 1.
      loss_sum: loss before each step, summed over examples.
    """

    values: Sequence[Any]
    clipped: int
    zeroed: int
    loss_sum: float


# A function that takes a broadcast and a client's epochs, trains this client, and returns its
# clipped update.
OneClient = Callable[[Broadcast, Epochs], ClientResult]


class ClientsInThreads(ClientWork):
    """Client work that trains one client in each thread, and adds the updates in the cohort's
    order.

    Args:
      make: returns the function that trains a client; called once in each thread.
      shapes: shapes of the weights.
      threads: number of threads.
      reason: reason for this kind of client work, for `explain`.
    """

    def __init__(
        self,
        make: Callable[[], OneClient],
        shapes: Sequence[tuple[int, ...]],
        threads: int,
        reason: str,
    ) -> None:
        self._make = make
        self._shapes = shapes
        self._threads = threads
        self._reason = reason
        self._make_lock = threading.Lock()
        self._thread_local = threading.local()
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, "client")
        # One more client than there are threads is submitted at the same time, so that no thread
        # has to wait for its next client.
        self._max_pending = threads + 1

    def _train(self, sent: Broadcast, epochs: Epochs) -> ClientResult:
        """Trains a client in the calling thread, and returns its clipped update."""
        if not hasattr(self._thread_local, "train_client"):
            # The lock is held, because machine-learning frameworks must trace functions one at a
            # time.
            with self._make_lock:
                self._thread_local.train_client = self._make()
        update: ClientResult = self._thread_local.train_client(sent, epochs)
        return update

    def explain(self) -> str:
        """Returns a sentence that says how many clients are trained at a time, and why."""
        return f"one client a thread, {self._threads} at a time: {self._reason}"

    def sums(self, sent: Broadcast, groups: Iterable[Sequence[ClientData]]) -> Iterator[ClippedSum]:
        """Trains the clients of all groups in threads, and yields the sum of each group's clipped
        updates. Free threads begin with clients of the next groups.
        """
        groups = list(groups)
        clients_of_groups = itertools.chain.from_iterable(map(with_finite_examples, groups))
        pending_results = collections.deque[concurrent.futures.Future[ClientResult]]()
        try:
            for group in groups:
                sum_arrays = [np.zeros(shape) for shape in self._shapes]
                num_clipped = 0
                num_zeroed = 0
                loss_sum = 0.0
                for _ in with_finite_examples(group):
                    for epochs in itertools.islice(
                        clients_of_groups, self._max_pending - len(pending_results)
                    ):
                        pending_results.append(self._pool.submit(self._train, sent, epochs))
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
