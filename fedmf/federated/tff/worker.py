"""TFF's C++ worker as a child process that always ends with this process.

TFF 0.87 leaves its worker running when the interpreter ends. The worker holds standard output open,
so that a pipe behind the program never ends. TFF's own context retries a lost worker forever, and
ignores Ctrl-C while it waits.
"""

import atexit
import contextlib
import gc
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from fedmf.federated.tff import tff
from fedmf.terminal import interrupts

T = TypeVar("T")

_WORKER = pathlib.Path(tff.__file__).parent / "data" / "worker_binary"
# Largest size of a message to or from TFF's worker process, in bytes. TFF limits its own messages
# to the same size.
_MAX_MESSAGE_BYTES = 2 * 1000 * 1000 * 1000
_CHANNEL = [
    ("grpc.max_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),
]
_START_SECONDS = 60.0
# prctl(PR_SET_PDEATHSIG, SIGKILL) makes Linux end the worker when this process ends, even if it was
# killed. The setting remains after exec replaces Python by the worker.
_DIE_WITH_PARENT = (
    "import ctypes, os, sys; getattr(ctypes.CDLL(None), 'prctl', id)(1, 9); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


class TffWorker:
    """A worker process of TFF, and the TFF context that computes on it.

    Args:
      threads: most parallel clients; None for no limit.

    Raises:
      ChildProcessError: the worker does not start.
    """

    def __init__(self, threads: int | None) -> None:
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            port = probe.getsockname()[1]
        worker_command = [str(_WORKER), f"--port={port}"]
        if threads is not None:
            worker_command.append(f"--max_concurrent_computation_calls={threads}")
        if sys.platform == "linux":
            worker_command = [sys.executable, "-S", "-c", _DIE_WITH_PARENT, *worker_command]
        # In a session of its own, the worker does not receive Ctrl-C. The run receives it, saves
        # its state, and then ends the worker.
        self._process = subprocess.Popen(worker_command, start_new_session=True)
        weakref.finalize(self, _end, self._process)
        self._channel = grpc.insecure_channel(f"localhost:{port}", _CHANNEL)
        try:
            grpc.channel_ready_future(self._channel).result(timeout=_START_SECONDS)
        except grpc.FutureTimeoutError:
            self.close()
            raise ChildProcessError(
                f"TFF's worker did not start within {_START_SECONDS:g} s"
            ) from None
        executor_stub = tff.framework.RemoteExecutorGrpcStub(self._channel)

        def executor(cardinalities: Any) -> Any:
            # The batch size is 1, because by default TFF keeps up to twenty values of the model's
            # size in the worker.
            remote_executor = tff.framework.RemoteExecutor(executor_stub, dispose_batch_size=1)
            remote_executor.set_cardinalities({tff.CLIENTS: 0} | cardinalities)
            return remote_executor

        self._context = tff.framework.SyncExecutionContext(
            executor_fn=tff.framework.ResourceManagingExecutorFactory(executor),
            compiler_fn=tff.backends.native.desugar_and_transform_to_native,
            transform_args=tff.tensorflow.transform_args,
            transform_result=tff.tensorflow.transform_result,
        )

    def run(self, job: Callable[[], T]) -> T:
        """Calls a function whose TFF computations run on the worker, and returns its result.

        Errors of the function pass through.

        Raises:
          ChildProcessError: the worker has ended.
          KeyboardInterrupt: as `interrupts.check` does; the worker has ended then too.
        """
        outcomes: list[tuple[T | None, BaseException | None]] = []

        def work() -> None:
            try:
                # The context is installed in this thread, because TFF has a separate context stack
                # for each thread.
                with tff.framework.get_context_stack().install(self._context):
                    outcomes.append((job(), None))
            except BaseException as error:
                outcomes.append((None, error))

        # The thread is a daemon, because it may wait for a lost worker forever.
        thread = threading.Thread(target=work, name="tff", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(0.2)
                interrupts.check()
                if self._process.poll() is not None and thread.is_alive():
                    raise ChildProcessError(
                        "TFF's worker process has ended (was there enough memory?): "
                        "resume with resume=True"
                    )
        except BaseException:
            self.close()
            raise
        [(value, error)] = outcomes
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def close(self) -> None:
        """Ends the worker process."""
        self._channel.close()
        _end(self._process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills a process and waits for its end."""
    process.kill()
    process.wait()


def worker_processes() -> list[int]:
    """Returns the process ids of all TFF workers that this process has started.

    Workers that TFF itself has started are included.
    """
    try:
        ps_command = ["ps", "-o", "pid=,comm=", "--ppid", str(os.getpid())]
        ps_output = subprocess.run(ps_command, capture_output=True, text=True, check=False)
    except OSError:
        # The machine has no program `ps`, so the worker processes cannot be listed.
        return []
    process_ids = []
    for line in ps_output.stdout.splitlines():
        process_id, _, name = line.strip().partition(" ")
        if name.strip().startswith(_WORKER.name):
            process_ids.append(int(process_id))
    return process_ids


class _EndedContext(tff.framework.SyncContext):
    """A TFF context that refuses all computations, for use after the worker has ended."""

    def invoke(self, comp: Any, arg: Any) -> Any:
        raise RuntimeError("TFF's worker has ended because the process is exiting")


@atexit.register
def end_workers() -> None:
    """Ends all TFF workers of this process when the program exits."""
    for pid in worker_processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    # The destructor of the handle on TFF's worker must run now, because the modules that it needs
    # are unloaded later. Setting another default context makes it run.
    tff.framework.set_default_context(_EndedContext())
    gc.collect()
