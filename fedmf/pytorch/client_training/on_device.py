"""Client work on a GPU, which computes one call after the other."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from fedmf.server.messages import ClippedSum
from fedmf.terminal import interrupts
from fedmf.training.client_work import Broadcast, ClientWork, group_sum, with_finite_examples
from fedmf.training.examples import ClientData
from fedmf.training.execution.groups import in_groups
from fedmf.training.execution.in_threads import TrainClients


class ClientsOnDevice(ClientWork):
    """Client work that adds clipped updates on a device, in the cohort's order.

    Only the sum of a group is moved to the processor, and a round has one group.

    Args:
      make: returns the function that trains the clients of a call, on the device.
      shapes: shapes of the weights.
      device: the device.
      reason: reason for this kind of client work, for `explain`.
      clients_per_call: largest number of clients of a call.
    """

    has_one_group = True

    def __init__(
        self,
        make: Callable[[], TrainClients],
        shapes: Sequence[tuple[int, ...]],
        device: torch.device,
        reason: str,
        clients_per_call: int = 1,
    ) -> None:
        self._train_clients = make()
        self._shapes = shapes
        self._device = device
        self._reason = reason
        self._clients_per_call = clients_per_call

    def explain(self) -> str:
        """Returns a sentence that says how many clients are trained at a time, and why."""
        if self._clients_per_call == 1:
            return f"one client at a time: {self._reason}"
        return f"stacked: {self._clients_per_call} clients train in one call: {self._reason}"

    def sums(self, sent: Broadcast, groups: Iterable[Sequence[ClientData]]) -> Iterator[ClippedSum]:
        """Trains the clients of each group, and yields the sum of their clipped updates."""
        for group in groups:
            totals = [
                torch.zeros(shape, dtype=torch.float64, device=self._device)
                for shape in self._shapes
            ]
            num_clipped = 0
            num_zeroed = 0
            loss_sum = 0.0
            for clients in in_groups(with_finite_examples(group), self._clients_per_call):
                client_result = self._train_clients(sent, clients)
                for total, update in zip(totals, client_result.values, strict=True):
                    total += update
                num_clipped += client_result.clipped
                num_zeroed += client_result.zeroed
                loss_sum += client_result.loss_sum
                interrupts.check()
            values = [total.cpu().numpy() for total in totals]
            yield group_sum(
                group, values, clipped=num_clipped, zeroed=num_zeroed, loss_sum=loss_sum
            )
