"""TFF workers on this machine for tests, in process groups of their own that end with the block, however it ends."""

import contextlib
import dataclasses
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import tensorflow_federated as tff

from fedmf.federated.execution.remote_workers import listens

COMMAND = [sys.executable, "-c", "from fedmf.cli import main; main()"]
BINARY = pathlib.Path(tff.__file__).parent / "data" / "worker_binary"


@dataclasses.dataclass
class LocalWorker:
    """One worker process, started by TFF's binary or by `fedmf worker`."""

    port: int
    process: subprocess.Popen

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def start(port: int, *, by_command: bool = False) -> LocalWorker:
    """Starts a worker and waits until it listens."""
    command = [*COMMAND, "worker", "--threads", "1"] if by_command else [str(BINARY)]
    process = subprocess.Popen(
        [*command, "--port", str(port)],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    worker = LocalWorker(port, process)
    deadline = time.monotonic() + 60
    while not listens(worker.address, 1.0):
        if time.monotonic() > deadline or process.poll() is not None:
            worker.kill()
            raise AssertionError(f"the worker on port {port} did not start")
        time.sleep(0.1)
    return worker


@contextlib.contextmanager
def local_workers(*, by_command: tuple[bool, ...] = (False, False)) -> Iterator[list[LocalWorker]]:
    workers: list[LocalWorker] = []
    try:
        for chosen in by_command:
            workers.append(start(free_port(), by_command=chosen))
        yield workers
    finally:
        for worker in workers:
            worker.kill()
