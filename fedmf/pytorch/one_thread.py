"""The state of PyTorch in which clients train, whatever the caller has set."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from fedmf.server.messages import ClippedSum
from fedmf.training.client_work import Broadcast, ClientWork
from fedmf.training.examples import ClientData


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Limits each operation of PyTorch to one thread inside the block.

    Kernels round by the number of threads, and one client a thread is faster.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


@contextlib.contextmanager
def training_mode(device: torch.device) -> Iterator[None]:
    """Computes gradients in full precision and with one thread inside the block, also if the caller
    has turned gradients off or autocast on.

    The number of threads stays 1 behind the block. It may be one of several blocks in as many
    threads, all of which share the number of some libraries; `one_thread` around them restores it.
    """
    torch.set_num_threads(1)
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
    ):
        yield


class TorchWork(ClientWork):
    """Client work in which each operation of PyTorch has one thread.

    Args:
      work: client work that trains the clients in `training_mode`.
      settings_of_round: returns a context manager that sets what else all threads of a round share.
    """

    def __init__(
        self,
        work: ClientWork,
        settings_of_round: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._work = work
        self._settings_of_round = settings_of_round

    def explain(self) -> str:
        """Returns the sentence of the client work that trains."""
        return self._work.explain()

    def sums(self, sent: Broadcast, groups: Iterable[Sequence[ClientData]]) -> Iterator[ClippedSum]:
        """Trains the clients of all groups, and yields the sum of each group's clipped updates."""
        with one_thread(), self._settings_of_round():
            yield from self._work.sums(sent, groups)
