"""Clients in threads, for learners that train one client at a time."""

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
    """The clipped update of a client, and its loss.

    Attributes:
      values: float arrays in the shapes of the weights, or tensors, which become arrays when they
        are added: several clients at a time would need memory of their own.
      clipped, zeroed: 0 or 1.
      loss_sum: the loss before each step, summed over examples.
    """

    values: Sequence[Any]
    clipped: int
    zeroed: int
    loss_sum: float


# What the server sent and a client's epochs -> its update. One client at a time.
OneClient = Callable[[Broadcast, Epochs], ClientResult]


class ClientsInThreads(ClientWork):
    """As many clients at a time as there are threads; updates are added in the cohort's order.

    Args:
      make: makes what trains a client, for each thread when it has its first.
      shapes: of the weights.
      threads: clients at a time.
      reason: why they train so, in words.
    """

    def __init__(
        self,
        make: Callable[[], OneClient],
        shapes: Sequence[tuple[int, ...]],
        threads: int,
        reason: str,
    ) -> None:
        self._reason, self._threads = reason, threads
        self._make, self._making, self._own = make, threading.Lock(), threading.local()
        self._shapes = shapes
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, "client")
        self._ahead = threads + 1  # one waits for its turn

    def _train(self, sent: Broadcast, epochs: Epochs) -> ClientResult:
        if not hasattr(self._own, "client"):
            with self._making:  # frameworks trace one function after the other
                self._own.client = self._make()
        update: ClientResult = self._own.client(sent, epochs)
        return update

    def explain(self) -> str:
        """See `ClientWork.explain`."""
        return f"one client a thread, {self._threads} at a time: {self._reason}"

    def sums(self, sent: Broadcast, groups: Iterable[Sequence[ClientData]]) -> Iterator[ClippedSum]:
        """See `ClientWork.sums`. Clients of the next groups begin where threads are free."""
        groups = list(groups)
        clients = itertools.chain.from_iterable(map(with_finite_examples, groups))
        waiting = collections.deque[concurrent.futures.Future[ClientResult]]()
        try:
            for group in groups:
                values = [np.zeros(shape) for shape in self._shapes]
                clipped, zeroed, loss_sum = 0, 0, 0.0
                for _ in with_finite_examples(group):
                    for epochs in itertools.islice(clients, self._ahead - len(waiting)):
                        waiting.append(self._pool.submit(self._train, sent, epochs))
                    update = waiting.popleft().result()
                    for total, part in zip(values, update.values, strict=True):
                        total += np.asarray(part)
                    clipped += update.clipped
                    zeroed += update.zeroed
                    loss_sum += update.loss_sum
                    interrupts.check()
                yield group_sum(group, values, clipped=clipped, zeroed=zeroed, loss_sum=loss_sum)
        finally:
            # After an error: no client of this round is in the way of the next one's.
            concurrent.futures.wait([job for job in waiting if not job.cancel()])
