"""The settings of PyTorch with which clients train, whatever the caller has set."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from fedmf.server.messages import ClippedSum
from fedmf.training.client_work import Broadcast, ClientWork
from fedmf.training.examples import ClientData

T = TypeVar("T")


@contextlib.contextmanager
def process_settings(device: torch.device) -> Iterator[None]:
    """Sets what all threads of the process share: inside the block each operation has one thread,
    products of float32 are computed in float32, and not in TF32 or bfloat16, oneDNN is on, and
    operations on a GPU are deterministic where they can be.

    Kernels round by the number of threads, and one client a thread is faster.
    """
    num_threads = torch.get_num_threads()
    has_onednn = torch.backends.mkldnn.enabled
    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = torch.backends.mkldnn.is_available()
    try:
        with contextlib.ExitStack() as settings_stack:
            settings_stack.enter_context(_full_precision())
            if device.type != "cpu":
                settings_stack.enter_context(_deterministic_operations())
            yield
    finally:
        torch.backends.mkldnn.enabled = has_onednn
        torch.set_num_threads(num_threads)


@contextlib.contextmanager
def _full_precision() -> Iterator[None]:
    """Computes products of float32 in float32 inside the block.

    PyTorch has two sets of these settings. Its older functions raise an error if the newer ones,
    `fp32_precision` of PyTorch 2.9, allow TF32 and the older ones do not.
    """
    matmul_precision = _older_setting(torch.get_float32_matmul_precision, "highest")
    allows_tf32 = _older_setting(lambda: torch.backends.cudnn.allow_tf32, False)
    holders: list[Any] = [
        getattr(library, operation, None)
        for library in (torch.backends.cuda, torch.backends.cudnn, torch.backends.mkldnn)
        for operation in ("matmul", "conv", "rnn")
    ]
    precisions = [
        (holder, holder.fp32_precision) for holder in holders if hasattr(holder, "fp32_precision")
    ]
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    for holder, _ in precisions:
        holder.fp32_precision = "ieee"
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = allows_tf32
        torch.set_float32_matmul_precision(matmul_precision)
        for holder, precision in precisions:
            holder.fp32_precision = precision


def _older_setting(read: Callable[[], T], default: T) -> T:
    """Returns what an older function reads, or the default if it raises an error because the caller
    has used the newer settings.
    """
    try:
        return read()
    except RuntimeError:
        return default


@contextlib.contextmanager
def _deterministic_operations() -> Iterator[None]:
    """Chooses deterministic operations on a GPU inside the block. PyTorch warns of those of a model
    that have no deterministic form.
    """
    # Matrix products on a GPU are deterministic with this workspace only. PyTorch reads the
    # variable before its first product.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    was_enabled = torch.are_deterministic_algorithms_enabled()
    was_warning = torch.is_deterministic_algorithms_warn_only_enabled()
    has_benchmark = torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True, warn_only=True)
    # The fastest of several deterministic operations would be another one in another run.
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = has_benchmark
        torch.use_deterministic_algorithms(was_enabled, warn_only=was_warning)


@contextlib.contextmanager
def training_mode(device: torch.device) -> Iterator[None]:
    """Computes gradients in full precision and with one thread inside the block, also if the caller
    has turned gradients off or autocast on.

    The number of threads stays 1 behind the block. It may be one of several blocks in as many
    threads, all of which share the number of some libraries; `process_settings` around them
    restores it.
    """
    torch.set_num_threads(1)
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        # A context of `forward` inside this one caches no casts, which would be those of weights
        # before a step.
        torch.autocast(device.type, enabled=False, cache_enabled=False),
    ):
        yield


class TorchWork(ClientWork):
    """Client work in which each operation of PyTorch has one thread.

    Args:
      work: client work that trains the clients in `training_mode`.
      device: device on which they train.
      settings_of_round: returns a context manager that sets what else all threads of a round share.
    """

    def __init__(
        self,
        work: ClientWork,
        device: torch.device,
        settings_of_round: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._work = work
        self._device = device
        self._settings_of_round = settings_of_round
        self.has_one_group = work.has_one_group

    def explain(self) -> str:
        """Returns the sentence of the client work that trains."""
        return self._work.explain()

    def sums(self, sent: Broadcast, groups: Iterable[Sequence[ClientData]]) -> Iterator[ClippedSum]:
        """Trains the clients of all groups, and yields the sum of each group's clipped updates."""
        with process_settings(self._device), self._settings_of_round():
            yield from self._work.sums(sent, groups)
