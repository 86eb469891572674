"""Connections to TFF's worker processes that notice a lost worker, and work that goes on without it.

TFF's own contexts retry a lost worker forever. Here each call answers or raises `WorkerLost`, and another worker does the work again. All
work is a pure function of values that this process holds: the second time gives the same bits.
"""

import concurrent.futures
import contextlib
import functools
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import grpc
import tqdm

from fedmf.federated.execution.workers import start_worker
from fedmf.federated.tff import executor_pb2, executor_pb2_grpc, tff
from fedmf.terminal import interrupts

T = TypeVar("T")
MAX_MESSAGE_BYTES = 2 * 1000 * 1000 * 1000  # as TFF's executor_factory.py has it
_CHANNEL = (
    ("grpc.max_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),
)
CONNECT_SECONDS = 10.0
# After this long without an answer a TCP connection asks whether the machine is there: one without power says nothing. TFF's worker
# refuses gRPC's keep-alive when it comes more often than every five minutes.
_PING_SECONDS, MAX_UNANSWERED_PINGS = 10.0, 3
_LOST = {
    grpc.StatusCode.UNAVAILABLE: "the connection broke",
    grpc.StatusCode.FAILED_PRECONDITION: "it has been started again",
    grpc.StatusCode.CANCELLED: "its work was cancelled",
}


class WorkerLost(ConnectionError):
    """One worker does not answer; raised and caught in this module."""


class WorkersLost(ConnectionError):
    """No worker is left; the message names them and says how to go on."""


class _Stub(tff.framework.RemoteExecutorStub):
    """TFF's calls to one worker. After the first that finds it lost, all raise WorkerLost."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = grpc.insecure_channel(address, _CHANNEL)
        self._methods = executor_pb2_grpc.ExecutorGroupStub(self._channel)
        self._running: set[Any] = set()
        self.lost: str | None = None

    def connect(self, seconds: float) -> None:
        """Raises WorkerLost unless TFF's worker answers in time."""
        request = executor_pb2.GetExecutorRequest()
        request.cardinalities.add(cardinality=0).placement.uri = tff.CLIENTS.uri
        try:
            grpc.channel_ready_future(self._channel).result(timeout=seconds)
            executor = self._methods.GetExecutor(request, timeout=seconds).executor
            self._methods.DisposeExecutor(executor_pb2.DisposeExecutorRequest(executor=executor), timeout=seconds)
        except grpc.FutureTimeoutError:
            raise self._lose("no TFF worker answers there") from None
        except grpc.RpcError as error:
            raise self._lose(f"what answers there is not TFF's worker: {error.code().name}") from error

    def end(self, reason: str) -> None:
        """Cancels running calls; from any thread."""
        self.lost = self.lost or reason
        for call in list(self._running):
            call.cancel()
        self._channel.close()

    def _lose(self, reason: str) -> WorkerLost:
        self.lost = self.lost or reason
        return WorkerLost(self._address)

    def _call(self, method: str, request: Any) -> Any:
        if self.lost is not None:
            raise WorkerLost(self._address)
        try:
            call = getattr(self._methods, method).future(request)
        except ValueError as error:  # `end` closed the channel
            raise self._lose("the connection was closed") from error
        self._running.add(call)
        unanswered = 0
        try:
            while unanswered < MAX_UNANSWERED_PINGS:
                try:
                    return call.result(timeout=_PING_SECONDS)
                except grpc.FutureTimeoutError:
                    unanswered = 0 if listens(self._address, _PING_SECONDS) else unanswered + 1
            raise self._lose("its machine does not answer any more")
        except grpc.FutureCancelledError:
            raise self._lose("its work was cancelled") from None
        except grpc.RpcError as error:
            if error.code() not in _LOST:
                raise
            raise self._lose(_LOST[error.code()]) from error
        finally:
            self._running.discard(call)
            call.cancel()

    def _dispose(self, method: str, request: Any) -> None:
        """The garbage collector calls this; what a lost worker held is gone with it."""
        with contextlib.suppress(WorkerLost):
            self._call(method, request)

    get_executor = functools.partialmethod(_call, "GetExecutor")
    create_value = functools.partialmethod(_call, "CreateValue")
    create_struct = functools.partialmethod(_call, "CreateStruct")
    create_call = functools.partialmethod(_call, "CreateCall")
    create_selection = functools.partialmethod(_call, "CreateSelection")
    compute = functools.partialmethod(_call, "Compute")
    dispose = functools.partialmethod(_dispose, "Dispose")
    dispose_executor = functools.partialmethod(_dispose, "DisposeExecutor")


class _Worker:
    """One worker, and the TFF context that computes on it."""

    def __init__(self, address: str, compile_function: Callable[[Any], Any]) -> None:
        self.address, self._compile = address, compile_function
        self._start()

    def _start(self) -> None:
        stub = self.stub = _Stub(self.address)
        self._executors: weakref.WeakSet[Any] = weakref.WeakSet()
        self.tried = time.monotonic()

        def executor(cardinalities: Any) -> Any:
            # TFF's default keeps twenty values of the model's size in the worker before it drops them.
            remote = tff.framework.RemoteExecutor(stub, dispose_batch_size=1)
            remote.set_cardinalities({tff.CLIENTS: 0} | cardinalities)
            self._executors.add(remote)
            return remote

        self._context = tff.framework.SyncExecutionContext(
            executor_fn=tff.framework.ResourceManagingExecutorFactory(executor),
            compiler_fn=self._compile,
            transform_args=tff.tensorflow.transform_args,
            transform_result=tff.tensorflow.transform_result,
        )

    def connect(self, seconds: float) -> bool:
        """Whether it answers in time."""
        with contextlib.suppress(WorkerLost):
            self.stub.connect(seconds)
        return self.stub.lost is None

    def reconnect(self) -> bool:
        """Whether a lost worker answers again; values that it held before are not used."""
        self.tried = time.monotonic()
        if not listens(self.address, 0.5):
            return False
        self.stub.end("replaced")
        self._start()
        return self.connect(CONNECT_SECONDS)

    def run(self, job: Callable[[], T]) -> T:
        """The job's value, with its TFF computations on this worker. TFF's contexts are each thread's own."""
        with tff.framework.get_context_stack().install(self._context):
            return job()

    def close(self) -> None:
        """Frees what the worker holds for this run."""
        for executor in list(self._executors):
            executor.close()
        self.stub.end("the run has ended")


class RemoteWorkers:
    """The workers of a run.

    Args:
      addresses: host:port of each.
      seconds: within which each must answer; None for CONNECT_SECONDS.

    Raises:
      WorkersLost: no TFF worker answers at one of them in time.
    """

    def __init__(self, addresses: Sequence[str], seconds: float | None = None) -> None:
        seconds = CONNECT_SECONDS if seconds is None else seconds
        compile_function = _compiled_once()
        self._workers = [_Worker(address, compile_function) for address in addresses]
        self._pool = concurrent.futures.ThreadPoolExecutor(len(addresses), "worker")
        if not all(list(self._pool.map(lambda worker: worker.connect(seconds), self._workers))):
            silent = [f"{worker.address} ({worker.stub.lost})" for worker in self._workers if worker.stub.lost]
            self.close()
            raise WorkersLost(
                f"cannot reach {', '.join(silent)}: start one there with `fedmf worker --port`, or leave the address out of workers"
            )

    def __len__(self) -> int:
        return len(self._workers)

    def run(self, job: Callable[[], T]) -> T:
        """The value of one job, on any worker."""
        return self.run_all([job])[0]

    def run_all(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        """The jobs' values in their order, side by side where there are as many workers. The job of a lost worker is done again.

        Raises:
          WorkersLost: none is left, or they are lost again and again. Errors of a job itself pass through.
        """
        done: dict[int, T] = {}
        losses = 0
        while len(done) < len(jobs):
            ready = self._ready()
            if not ready or losses > 3 * len(self._workers):
                names = ", ".join(f"{w.address} ({w.stub.lost or 'lost again and again'})" for w in self._workers)
                raise WorkersLost(
                    f"no worker is left of {names}: start them again with `fedmf worker --port`, then --resume"
                )
            left = [i for i in range(len(jobs)) if i not in done]
            running = {self._pool.submit(w.run, jobs[i]): (i, w) for i, w in zip(left, ready, strict=False)}
            self._wait(running)
            for future, (i, worker) in running.items():
                try:
                    done[i] = future.result()
                except WorkerLost:
                    losses += 1
                    _tell(f"worker {worker.address} is lost ({worker.stub.lost}); its work is done again")
        return [done[i] for i in range(len(jobs))]

    def _wait(self, running: Any) -> None:
        try:
            while concurrent.futures.wait(running, timeout=0.2).not_done:
                interrupts.check()
        except BaseException:
            for worker in self._workers:
                worker.stub.end("the run was interrupted")
            raise

    def _ready(self) -> list[_Worker]:
        """The workers that answer; a lost one is asked again every ten seconds, or at once if there is no other."""
        ready = [worker for worker in self._workers if worker.stub.lost is None]
        for worker in self._workers:
            due = not ready or time.monotonic() - worker.tried > CONNECT_SECONDS
            if worker.stub.lost is not None and due and worker.reconnect():
                _tell(f"worker {worker.address} is back")
                ready.append(worker)
        return ready

    def close(self) -> None:
        """Ends the connections. The workers go on, for other runs."""
        for worker in self._workers:
            worker.close()
        self._pool.shutdown(wait=False)


class LocalWorker(RemoteWorkers):
    """A worker on this machine, started for this run and ended with it."""

    def __init__(self, threads: int | None = None) -> None:
        self._process, address = start_worker(threads)
        weakref.finalize(self, _end, self._process)
        super().__init__([address], seconds=60.0)

    def close(self) -> None:
        """Ends the connection and the worker."""
        super().close()
        _end(self._process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


@contextlib.contextmanager
def connected(execution: str, addresses: Sequence[str], threads: int | None) -> Iterator[RemoteWorkers | None]:
    """The workers of an execution for the block; None for "fast", which needs none."""
    if execution == "fast":
        yield None
        return
    workers = LocalWorker(threads) if execution == "tff" else RemoteWorkers(addresses)
    try:
        yield workers
    finally:
        workers.close()


def listens(address: str, seconds: float) -> bool:
    """Whether anything takes connections at host:port."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), seconds).close()
    except OSError:
        return False
    return True


def _compiled_once() -> Callable[[Any], Any]:
    """TFF's compiler for its workers; each computation is compiled for the first of them only."""
    lock, compiled = threading.Lock(), functools.lru_cache(tff.backends.native.desugar_and_transform_to_native)

    def compile_function(computation: Any) -> Any:
        with lock:
            return compiled(computation)

    return compile_function


def _tell(text: str) -> None:
    tqdm.tqdm.write(f"fedmf: {text}", file=sys.stderr)
