"""Client work that trains clients of one example in another way than clients of several."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

from fedmf.server.messages import ClippedSum
from fedmf.training.client_work import Broadcast, ClientWork, merge_sums
from fedmf.training.examples import ClientData, has_one_example


class OneStepClients(ClientWork):
    """Client work that trains clients of a single step in one way, and all others in another way.

    The choice for a client depends only on its own data. Clients whose examples are not finite do
    not train, and are counted with those of a single step.

    Args:
      one_step: client work of clients with one example.
      make_several_steps: returns the client work of all other clients.
    """

    def __init__(self, one_step: ClientWork, make_several_steps: Callable[[], ClientWork]) -> None:
        self._one_step = one_step
        self._several_steps = functools.cache(make_several_steps)

    def explain(self) -> str:
        """Returns the sentence on clients with one example."""
        return self._one_step.explain()

    def sums(self, sent: Broadcast, groups: Iterable[Sequence[ClientData]]) -> Iterator[ClippedSum]:
        """Yields the sum of the clipped updates of each group of clients."""
        for group in groups:
            is_one_step = [not client.epochs or has_one_example(client.epochs) for client in group]
            client_pairs = list(zip(group, is_one_step, strict=True))
            single_clients = [client for client, is_single in client_pairs if is_single]
            other_clients = [client for client, is_single in client_pairs if not is_single]
            [clipped_sum] = self._one_step.sums(sent, [single_clients])
            if other_clients:
                [other_sum] = self._several_steps().sums(sent, [other_clients])
                clipped_sum = merge_sums(clipped_sum, other_sum)
            yield clipped_sum
