"""TFF's worker processes on other machines: connections that notice a lost worker, and work that goes on without it.

TFF's own contexts try a lost worker again without end (tensorflow_federated/python/common_libs/retrying.py). Here each call either
answers or ends with `WorkerLost`, and what the worker was doing is done again by another one. All of it are pure functions of values
that this process holds, so that a second time gives the same.
"""

import concurrent.futures
import contextlib
import functools
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import grpc
import tqdm

from fedmf.federated.tff import executor_pb2, executor_pb2_grpc, tff

T = TypeVar("T")
# As in TFF's executor_factory.py: one message is at most 2 GB.
_MESSAGE_BYTES = 2 * 1000 * 1000 * 1000
_CHANNEL = (
    ("grpc.max_message_length", _MESSAGE_BYTES),
    ("grpc.max_receive_message_length", _MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),  # a web proxy in the environment is not for these
)
CONNECT_SECONDS = 10.0
# A call that has not answered for this long has its worker asked, by a TCP connection, whether it is there at all: a machine that loses
# its power says nothing. (gRPC's own keep-alive is refused by TFF's worker when it comes more often than every five minutes.)
_ASK_SECONDS, _ASK_TIMES = 10.0, 3
_BACK_SECONDS = 0.5
# A worker that was started again does not know the values that it is asked for.
_LOST = {
    grpc.StatusCode.UNAVAILABLE: "the connection broke",
    grpc.StatusCode.FAILED_PRECONDITION: "it has been started again",
    grpc.StatusCode.CANCELLED: "its work was cancelled",
}


class WorkerLost(ConnectionError):
    """One worker does not answer; raised inside this module's work only."""


class WorkersLost(ConnectionError):
    """No worker is left; the message names them and says how to go on."""


class _Stub(tff.framework.RemoteExecutorStub):
    """TFF's calls to one worker. Once one of them has found it lost, they all raise WorkerLost."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = grpc.insecure_channel(address, _CHANNEL)
        self._calls = executor_pb2_grpc.ExecutorGroupStub(self._channel)
        self._running: set[Any] = set()
        self.lost: str | None = None

    def connect(self, seconds: float) -> None:
        """Raises WorkerLost unless TFF's worker answers in time."""
        request = executor_pb2.GetExecutorRequest()
        request.cardinalities.add(cardinality=0).placement.uri = tff.CLIENTS.uri
        try:
            grpc.channel_ready_future(self._channel).result(timeout=seconds)
            executor = self._calls.GetExecutor(request, timeout=seconds).executor
            self._calls.DisposeExecutor(executor_pb2.DisposeExecutorRequest(executor=executor), timeout=seconds)
        except grpc.FutureTimeoutError:
            raise self._lose("no TFF worker answers there") from None
        except grpc.RpcError as error:
            raise self._lose(f"what answers there is not TFF's worker: {error.code().name}") from error

    def end(self, why: str) -> None:
        """Cancels the calls that are under way; from any thread."""
        self.lost = self.lost or why
        for call in list(self._running):
            call.cancel()
        self._channel.close()

    def _lose(self, why: str) -> WorkerLost:
        self.lost = self.lost or why
        return WorkerLost(self._address)

    def _call(self, method: Any, request: Any) -> Any:
        if self.lost is not None:
            raise WorkerLost(self._address)
        try:
            call = method.future(request)
        except ValueError as error:  # the channel was closed, by `end`
            raise self._lose("the connection was closed") from error
        self._running.add(call)
        silent = 0
        try:
            while silent < _ASK_TIMES:
                try:
                    return call.result(timeout=_ASK_SECONDS)
                except grpc.FutureTimeoutError:
                    silent = 0 if listens(self._address, _ASK_SECONDS) else silent + 1
            raise self._lose("its machine does not answer any more")
        except grpc.FutureCancelledError:
            raise self._lose("its work was cancelled") from None
        except grpc.RpcError as error:
            why = _LOST.get(error.code())
            if why is None:
                raise
            raise self._lose(why) from error
        finally:
            self._running.discard(call)
            call.cancel()

    def get_executor(self, request: Any) -> Any:
        return self._call(self._calls.GetExecutor, request)

    def create_value(self, request: Any) -> Any:
        return self._call(self._calls.CreateValue, request)

    def create_struct(self, request: Any) -> Any:
        return self._call(self._calls.CreateStruct, request)

    def create_call(self, request: Any) -> Any:
        return self._call(self._calls.CreateCall, request)

    def create_selection(self, request: Any) -> Any:
        return self._call(self._calls.CreateSelection, request)

    def compute(self, request: Any) -> Any:
        return self._call(self._calls.Compute, request)

    def dispose(self, request: Any) -> Any:
        self._clear(self._calls.Dispose, request)

    def dispose_executor(self, request: Any) -> Any:
        self._clear(self._calls.DisposeExecutor, request)

    def _clear(self, method: Any, request: Any) -> None:
        """What a lost worker held is gone with it, and the garbage collector, which calls this, has nobody to tell."""
        with contextlib.suppress(WorkerLost):
            self._call(method, request)


class _Worker:
    """One worker, and the TFF context that computes on it."""

    def __init__(self, address: str, compile_function: Callable[[Any], Any]) -> None:
        self.address, self._compile = address, compile_function
        self._start()

    def _start(self) -> None:
        stub = self._stub = _Stub(self.address)
        self._executors: weakref.WeakSet[Any] = weakref.WeakSet()
        self.tried = time.monotonic()

        def executor(cardinalities: Any) -> Any:
            # TFF's default lets twenty values of the model's size pile up in the worker before it tells it to drop them.
            made = tff.framework.RemoteExecutor(stub, dispose_batch_size=1)
            made.set_cardinalities({tff.CLIENTS: 0} | cardinalities)
            self._executors.add(made)
            return made

        self._context = tff.framework.SyncExecutionContext(
            executor_fn=tff.framework.ResourceManagingExecutorFactory(executor),
            compiler_fn=self._compile,
            transform_args=tff.tensorflow.transform_args,
            transform_result=tff.tensorflow.transform_result,
        )

    @property
    def lost(self) -> str | None:
        """Why it is lost, if it is."""
        return self._stub.lost

    def connect(self, seconds: float) -> bool:
        """Whether it answers in time."""
        with contextlib.suppress(WorkerLost):
            self._stub.connect(seconds)
        return self.lost is None

    def back(self) -> bool:
        """Whether a lost worker answers again. Nothing that it knew before is used."""
        self.tried = time.monotonic()
        if not listens(self.address, _BACK_SECONDS):
            return False
        self._stub.end("replaced")
        self._start()
        return self.connect(CONNECT_SECONDS)

    def run(self, job: Callable[[], T]) -> T:
        """The job's value, with its TFF computations on this worker. TFF's contexts are each thread's own: no other run sees this one."""
        with tff.framework.get_context_stack().install(self._context):
            return job()

    def end(self, why: str) -> None:
        """Ends what is under way."""
        self._stub.end(why)

    def close(self) -> None:
        """Frees what the worker holds for this run."""
        for executor in list(self._executors):
            executor.close()
        self.end("the run has ended")


class RemoteWorkers:
    """The workers of a run.

    Args:
      addresses: host:port of each.

    Raises:
      WorkersLost: no TFF worker answers at one of them within ten seconds.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        compile_function = _compiled_once()
        self._workers = [_Worker(address, compile_function) for address in addresses]
        self._pool = concurrent.futures.ThreadPoolExecutor(len(addresses), "worker")
        answers = list(self._pool.map(lambda worker: worker.connect(CONNECT_SECONDS), self._workers))
        if not all(answers):
            silent = [f"{worker.address} ({worker.lost})" for worker in self._workers if worker.lost]
            self.close()
            raise WorkersLost(
                f"cannot reach {', '.join(silent)}: start one there with `fedmf worker --port`, or leave the address out of workers"
            )

    def __len__(self) -> int:
        return len(self._workers)

    def run(self, job: Callable[[], T]) -> T:
        """One job, on any worker."""
        return self.run_all([job])[0]

    def run_all(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        """The jobs' values in their order, each made on some worker; side by side where there are as many.

        The job of a worker that is lost is done again, by another one or by the same one started again.

        Raises:
          WorkersLost: none is left, or they are lost again and again. Errors of a job itself pass through.
        """
        done: dict[int, T] = {}
        losses = 0
        while len(done) < len(jobs):
            left = [i for i in range(len(jobs)) if i not in done]
            ready = self._ready()
            if not ready or losses > 3 * len(self._workers):
                names = ", ".join(f"{w.address} ({w.lost or 'lost again and again'})" for w in self._workers)
                raise WorkersLost(
                    f"no worker is left of {names}: start them again with `fedmf worker --port`, then --resume"
                )
            # zip's shorter side: one job for a worker at a time.
            running = {self._pool.submit(w.run, jobs[i]): (i, w) for i, w in zip(left, ready, strict=False)}
            try:
                concurrent.futures.wait(running)
            except BaseException:  # Ctrl-C: nobody waits for these calls any more
                for worker in self._workers:
                    worker.end("the run was interrupted")
                raise
            for future, (i, worker) in running.items():
                try:
                    done[i] = future.result()
                except WorkerLost:
                    losses += 1
                    _tell(f"worker {worker.address} is lost ({worker.lost}); what it was doing is done again")
        return [done[i] for i in range(len(jobs))]

    def _ready(self) -> list[_Worker]:
        """The workers that answer; a lost one is asked again every ten seconds, or at once if there is no other."""
        ready = [worker for worker in self._workers if worker.lost is None]
        for worker in self._workers:
            due = not ready or time.monotonic() - worker.tried > CONNECT_SECONDS
            if worker.lost is not None and due and worker.back():
                _tell(f"worker {worker.address} is back")
                ready.append(worker)
        return ready

    def close(self) -> None:
        """Ends the connections. The workers go on, for other runs."""
        for worker in self._workers:
            worker.close()
        self._pool.shutdown(wait=False)


@contextlib.contextmanager
def connected(addresses: Sequence[str]) -> Iterator[RemoteWorkers | None]:
    """RemoteWorkers for the block, None for no addresses."""
    if not addresses:
        yield None
        return
    workers = RemoteWorkers(addresses)
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
