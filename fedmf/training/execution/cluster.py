"""Client work on a Ray cluster: groups of the cohort are tasks of Ray, and their sums come back in
the order of the groups.

Noise, controller and journal stay in this process, the driver. A worker gets weights,
examples and what `WorkerSetup` holds. Ray does the work of a lost worker again, on any other; it is
a pure function, so that the second time gives the same bits.

A worker trains groups of clients, on one thread: `train`.
"""

import collections
import contextlib
import dataclasses
import functools
import importlib.metadata
import os
import pickle
import platform
import re
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tqdm

from fedmf import nest
from fedmf.runs.config import TrainConfig
from fedmf.runs.executions import execution_kind
from fedmf.server.messages import ClippedSum
from fedmf.terminal import interrupts
from fedmf.training.client_data import ClientRound, client_data
from fedmf.training.client_work import Broadcast, ClientWork, cores
from fedmf.training.examples import ClientData
from fedmf.training.learner import ClientSettings, Learner, Machine
from fedmf.training.task import Task

_ADDRESS = re.compile(
    r"local|auto|(ray://)?[^\s/@,:]+:[1-9][0-9]{0,4}|(ray://)?\[[0-9a-fA-F:.]+\]:[1-9][0-9]{0,4}"
)
# A noise seed in a command or a program on the command line.
_SEED = re.compile(r"noise[-_]seed\W+[0-9]")
_CONNECT_SECONDS = 5.0
# Characters of a folder of temporary files in which the names of Ray's sockets, of 107 at most,
# have room.
_LONGEST_FOLDER = 30
# So long a run waits for workers when there are none.
WAIT_SECONDS = 120.0
_LOOK_SECONDS = 2.0
# Groups under way for each processor of the cluster: one in work, and some that wait
# for their turn.
_GROUPS_AHEAD = 3
# What a worker holds of the model's size: weights, variables, gradients, update, sum, and the
# optimizer's state.
_MODEL_COPIES = 8


class WorkersLost(ConnectionError):
    """The cluster does not answer, or has no worker left; the message says how to go on."""


# Of the client work that fedmf has; a process that trains on one of them needs the same version.
_FRAMEWORKS = ("tensorflow",)


def versions(frameworks: Sequence[str] = _FRAMEWORKS) -> dict[str, str]:
    """Returns what must be the same on all machines of a run; frameworks that are not installed
    here are left out.
    """
    packages = {name: importlib.metadata.version(name) for name in ("fedmf", "numpy")}
    for name in frameworks:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    return {"Python": platform.python_version(), **packages}


def check_address(address: Any, execution: str) -> None:
    """Raises unless `address` is None, or the address of a cluster and the execution
    is the one for clusters.
    """
    if address is None:
        return
    if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
        raise ValueError(
            f"cluster={address!r} is no address: give local, auto, host:port or ray://host:port"
        )
    if execution_kind(execution).in_tff:
        raise ValueError(
            f"cluster={address!r} does not go with execution={execution}, which trains in TFF's "
            "own process: leave one of them out"
        )
    if _SEED.search(" ".join(sys.orig_argv)):
        raise ValueError(
            f"cluster={address!r}: the noise seed stands on the command line, which Ray tells the "
            "cluster: use os, or @FILE to read it from a file"
        )


@contextlib.contextmanager
def connected(address: str, cpus: int | None) -> Iterator["Cluster"]:
    """The cluster at an address for the block.

    Args:
      address: "local" for one on this machine that ends with the block, "auto" for the one that
        runs here, "host:port" or "ray://host:port".
      cpus: processors of a local one; None for all.

    Raises:
      ImportError: Ray is not installed.
      WorkersLost: nothing answers there, or it has no processors.
    """
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # of groups behind one that failed
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise ImportError(
            f"cluster={address!r} needs Ray, which is not installed: pip install 'fedmf[ray]'"
        ) from None
    ours = not ray.is_initialized()  # a program may have connected itself
    if ours:
        _connect(ray, address, cpus)
    try:
        cluster = Cluster(ray, address)
        if not cluster.cpus():
            raise WorkersLost(
                f"cluster={address!r} has no processors: start Ray there by `ray start --num-cpus`"
            )
        yield cluster
    finally:
        if ours:
            ray.shutdown()


def _connect(ray: Any, address: str, cpus: int | None) -> None:
    _check_listens(address)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        options |= {"num_cpus": cpus or cores(), "include_dashboard": False}
        if len(tempfile.gettempdir()) > _LONGEST_FOLDER:
            options["_temp_dir"] = "/tmp/ray"
    handler = signal.getsignal(signal.SIGTERM)
    # Ray's processes inherit it: what does not fit into memory, examples too, they write to files.
    mask = os.umask(0o077)
    try:
        ray.init(address=address, **options)
        # It prints of lost machines on standard output, which is for results.
        ray._private.worker._worker_logs_enabled = False
    except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise WorkersLost(
            f"cluster={address!r} does not answer ({reason}): start one with `ray start --head`"
        ) from error
    finally:
        os.umask(mask)
        with contextlib.suppress(ValueError):  # not in the main thread
            # Ray's own would end this process before it has saved.
            signal.signal(signal.SIGTERM, handler)


def _check_listens(address: str) -> None:
    """Raises WorkersLost where nothing takes connections: Ray itself tries for a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        raise WorkersLost(
            f"cluster={address!r}: nothing answers there ({error.strerror or error}): start Ray "
            f"with `ray start --head --port {port}`"
        ) from error


class Cluster:
    """A connection to a cluster."""

    def __init__(self, ray: Any, address: str) -> None:
        self._ray, self.address = ray, address

    def cpus(self) -> int:
        """The processors of all its machines."""
        return int(self._ray.cluster_resources().get("CPU", 0))

    def most_cpus(self) -> int:
        """The processors of its largest machine."""
        return max(
            (int(node["Resources"].get("CPU", 0)) for node in self._ray.nodes() if node["Alive"]),
            default=0,
        )

    def put(self, value: Any) -> Any:
        """A reference to the value, which travels once to each machine."""
        return self._ray.put(value)

    def function(
        self, target: str, cpus: int = 1, frameworks: Sequence[str] = _FRAMEWORKS
    ) -> Callable[..., Any]:
        """A function of the cluster: package.module:function on a worker, done again as often as
        workers are lost in it.

        A call returns a reference. A worker of other `versions` raises RuntimeError.
        """
        remote = self._ray.remote(num_cpus=cpus, max_retries=-1)(_on_worker())
        return functools.partial(remote.remote, versions(frameworks), target)

    def finished(self, reference: Any, seconds: float = 0) -> bool:
        """Whether a call is over, after so many seconds at most."""
        return bool(self._ray.wait([reference], timeout=seconds)[0])

    def value(self, reference: Any) -> Any:
        """What a call returned. What it raised is raised here."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else RuntimeError(str(error))
            raise cause from None

    def cancel(self, reference: Any, *, force: bool) -> None:
        """Ends a call, by a KeyboardInterrupt in it or with its worker."""
        # Ray aborts this process where it cancels a call whose result it is just taking.
        if not self.finished(reference):
            self._ray.cancel(reference, force=force)

    def least_memory(self) -> tuple[str, float]:
        """The machine with the least memory for each of its processors, and the bytes of that."""
        nodes = [
            node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU")
        ]
        return min(
            (
                (
                    n["NodeManagerAddress"],
                    n["Resources"].get("memory", np.inf) / n["Resources"]["CPU"],
                )
                for n in nodes
            ),
            key=lambda pair: pair[1],
            default=("", np.inf),
        )

    def in_order(self, function: Any, calls: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Yields what the calls of a cluster's function return, in their order; some are under way
        ahead of it.

        Raises:
          WorkersLost: there was no worker for WAIT_SECONDS.
          KeyboardInterrupt: as `interrupts.check` does. Errors of the function itself pass through.
        """
        calls, pending = iter(calls), collections.deque[Any]()
        try:
            while True:
                ahead = _GROUPS_AHEAD * max(1, self.cpus())
                while len(pending) < ahead and (call := next(calls, None)) is not None:
                    pending.append(function(*call))
                if not pending:
                    return
                result = self._result(pending[0])
                pending.popleft()
                yield result
        finally:
            for reference in pending:
                self.cancel(reference, force=True)

    def _result(self, reference: Any) -> Any:
        looked, empty_since = time.monotonic(), None
        while not self.finished(reference, 0.2):
            interrupts.check()
            if time.monotonic() - looked < _LOOK_SECONDS:
                continue
            looked = time.monotonic()
            if self.cpus():
                empty_since = None
                continue
            if empty_since is None:
                empty_since = looked
                text = (
                    f"fedmf: no worker is left in cluster {self.address}: waiting "
                    f"{WAIT_SECONDS:g} s for one"
                )
                tqdm.tqdm.write(text, file=sys.stderr)
            if looked - empty_since >= WAIT_SECONDS:
                raise WorkersLost(
                    f"no worker is left in cluster {self.address}: add machines to it, then "
                    "go on with resume=True"
                )
        return self.value(reference)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerSetup:
    """What the workers of a run share: no noise, no seed of it, and no examples.

    Attributes:
      learner: of the run's task, as workers get it.
      settings, config: of the run.
      data_version: of the run's task.
      make_task: makes the run's task on a worker, which then reads the examples itself; None to
        send them.
    """

    learner: Learner
    settings: ClientSettings
    config: TrainConfig
    data_version: str
    make_task: Callable[[], Task] | None

    def task(self) -> Task | None:
        """Returns the task that has the examples; None where they are sent.

        Raises:
          ValueError: it has other data than the run.
        """
        if self.make_task is None:
            return None
        task = self.make_task()
        if task.data_version != self.data_version:
            raise ValueError(
                f"worker {platform.node()} has other data than the run (version "
                f"{task.data_version!r} and not {self.data_version!r}): copy the same file there"
            )
        return task


class ClusterClients(ClientWork):
    """The clients of a round on a cluster's workers, a group each.

    Args:
      cluster: connected.
      setup: of the run.

    Raises:
      TypeError: the task cannot be sent.
    """

    def __init__(self, cluster: Cluster, setup: WorkerSetup) -> None:
        from ray import cloudpickle

        try:
            pickled = cloudpickle.dumps(setup)
        except Exception as error:
            raise TypeError(
                f"task {setup.settings.task!r} cannot be sent to workers ({type(error).__name__}: "
                f"{error}): let its functions use nothing "
                "that is open here, such as files, connections or locks"
            ) from error
        self._cluster, self._setup = cluster, cluster.put(pickled)
        target = f"{__name__}:train"
        self._train = cluster.function(target, frameworks=setup.learner.packages)

    def explain(self) -> str:
        """See `ClientWork.explain`."""
        return f"groups of clients train on the workers of cluster {self._cluster.address!r}"

    def sums(
        self, sent: Broadcast, groups: Iterable[Sequence[ClientData | ClientRound]]
    ) -> Iterator[ClippedSum]:
        """See `ClientWork.sums`."""
        model, model_bytes = self._cluster.put(sent), sum(w.nbytes for w in sent.weights)
        machine, memory = self._cluster.least_memory()

        def calls() -> Iterator[tuple[Any, ...]]:
            for number, group in enumerate(groups):
                needed = _MODEL_COPIES * model_bytes + sum(map(_bytes, group))
                if needed > memory:
                    raise ValueError(
                        f"cluster={self._cluster.address!r}: a group of {len(group)} clients takes "
                        f"some {needed / 1e9:.2g} GB and machine {machine} has {memory / 1e9:.2g} "
                        "for each processor: give it more memory, or Ray fewer processors there"
                    )
                yield self._setup, model, number, group

        yield from self._cluster.in_order(self._train, calls())


def _bytes(client: ClientData | ClientRound) -> int:
    if isinstance(client, ClientRound):
        return 0
    return sum(leaf.nbytes for leaf in nest.flatten(list(client.epochs)))


def _on_worker() -> Callable[..., Any]:
    """The body of a call, which travels as code: a worker without our package, or with another
    version, must be able to say so.
    """

    def fedmf_call(expected: dict[str, str], target: str, *arguments: Any) -> Any:
        import importlib.metadata
        import pkgutil
        import platform

        here = {"Python": platform.python_version()}
        for name in [name for name in expected if name not in here]:
            try:
                here[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                here[name] = "none"
        wrong = [
            f"{name} {here[name]} and not {version}"
            for name, version in expected.items()
            if here[name] != version
        ]
        if wrong:
            raise RuntimeError(
                f"worker {platform.node()} has {', '.join(wrong)}: install the same there"
            )
        return pkgutil.resolve_name(target)(*arguments)

    return fedmf_call


_limits = contextlib.ExitStack()  # for the life of this process


@functools.lru_cache(maxsize=1)
def _begun(pickled: bytes) -> tuple[WorkerSetup, ClientWork, Task | None]:
    """Returns what the groups of a run share: its setup, the client work, which may have been
    traced, and the task that has the examples.
    """
    setup: WorkerSetup = pickle.loads(pickled)
    _limits.close()
    _limits.enter_context(setup.learner.limited_threads(1))
    task = setup.task()
    return setup, setup.learner.client_work(setup.settings, Machine(threads=1)), task


def train(pickled: bytes, sent: Broadcast, number: int, group: Sequence[Any]) -> ClippedSum:
    """Returns the sum of the group's clipped updates.

    Args:
      pickled: a `WorkerSetup`.
      sent: to the clients of the round.
      number: of the group in the round.
      group: each client's `ClientData`, or its `ClientRound`.
    """
    setup, work, task = _begun(bytes(pickled))
    clients: list[ClientData] = []
    for client in group:
        if isinstance(client, ClientRound):
            assert task is not None
            client = client_data(task, setup.config, client.t, client.client)
        clients.append(client)
    [part] = work.sums(sent, [clients])
    return part._replace(group=number, worker=platform.node())
