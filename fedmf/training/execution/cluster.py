"""A connection to a Ray cluster, whose workers run functions for this process."""

import collections
import contextlib
import functools
import importlib.metadata
import itertools
import math
import os
import platform
import re
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tqdm

from fedmf.runs.executions import execution_kind
from fedmf.terminal import interrupts
from fedmf.training.client_work import cores

_ADDRESS = re.compile(
    r"local|auto|(ray://)?[^\s/@,:]+:[1-9][0-9]{0,4}|(ray://)?\[[0-9a-fA-F:.]+\]:[1-9][0-9]{0,4}"
)
# This pattern matches a noise seed on the command line of a program.
_SEED = re.compile(r"noise[-_]seed\W+[0-9]")
_CONNECT_SECONDS = 5.0
# Maximal length of the path of Ray's temporary folder, so that names of sockets in it have at most
# 107 characters.
_MAX_FOLDER_LENGTH = 30
# Seconds for which a run waits for workers if there are none.
WAIT_SECONDS = 120.0
_CHECK_SECONDS = 2.0
# Number of calls in progress or queued, for each processor of the Ray cluster.
_CALLS_PER_CPU = 3


class WorkersLost(ConnectionError):
    """The error of a cluster that does not answer, or that has no worker left."""


# Frameworks that fedmf's own client work uses. Their versions must agree on all machines.
_FRAMEWORKS = ("tensorflow", "torch")


def required_versions(frameworks: Sequence[str] = _FRAMEWORKS) -> dict[str, str]:
    """Returns the package versions that must agree on all machines of a run. Frameworks that are
    not installed here are left out.
    """
    version_by_package = {name: importlib.metadata.version(name) for name in ("fedmf", "numpy")}
    for name in frameworks:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version_by_package[name] = importlib.metadata.version(name)
    return {"Python": platform.python_version(), **version_by_package}


def check_address(address: Any, execution: str) -> None:
    """Checks that `address` is None or an address of a Ray cluster that the execution can use.

    Raises:
      ValueError: it is no address, the execution trains on no cluster, or the command line holds
        the noise seed.
    """
    if address is None:
        return
    if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
        raise ValueError(
            f"cluster={address!r} is no address: give local, auto, host:port or ray://host:port"
        )
    if execution_kind(execution).in_tff:
        raise ValueError(
            f"cluster={address!r} cannot be used with execution={execution}, which trains in TFF's "
            "own process: leave one of them out"
        )
    if _SEED.search(" ".join(sys.orig_argv)):
        raise ValueError(
            f"cluster={address!r}: the command line holds the noise seed, and Ray sends the "
            "command line to the cluster: use os, or @FILE to read the seed from a file"
        )


@contextlib.contextmanager
def connected(address: str, cpus: int | None) -> Iterator["Cluster"]:
    """Connects to a Ray cluster, and yields the connection.

    Args:
      address: "local" for a cluster on this machine that ends with the block, "auto" for the one
        that runs here, "host:port" or "ray://host:port".
      cpus: number of processors of a local cluster; None for all.

    Raises:
      ImportError: Ray is not installed.
      WorkersLost: nothing answers at the address, or the cluster has no processors.
    """
    # If one call fails, Ray must not also print the errors of the calls that were submitted after
    # it.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise ImportError(
            f"cluster={address!r} needs Ray, which is not installed: pip install 'fedmf[ray]'"
        ) from None
    # If the caller's program has connected to Ray before, the connection stays open after the run.
    is_connected = ray.is_initialized()
    if not is_connected:
        _connect(ray, address, cpus)
    try:
        cluster = Cluster(ray, address)
        if not cluster.cpus():
            raise WorkersLost(
                f"cluster={address!r} has no processors: start Ray there by `ray start --num-cpus`"
            )
        yield cluster
    finally:
        if not is_connected:
            ray.shutdown()


def _connect(ray: Any, address: str, cpus: int | None) -> None:
    """Connects this process to a Ray cluster, or raises WorkersLost."""
    _check_listens(address)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        options |= {"num_cpus": cpus or cores(), "include_dashboard": False}
        if len(tempfile.gettempdir()) > _MAX_FOLDER_LENGTH:
            options["_temp_dir"] = "/tmp/ray"
    previous_handler = signal.getsignal(signal.SIGTERM)
    # Ray writes objects that do not fit into memory to files, and some of these objects are
    # clients' examples. With this umask, which Ray's processes inherit, only the owner can read the
    # files.
    previous_mask = os.umask(0o077)
    try:
        ray.init(address=address, **options)
        # Ray would print messages about lost machines to standard output, which is reserved for
        # results.
        ray._private.worker._worker_logs_enabled = False
    except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
        error_line = str(error).strip().splitlines()[0]
        raise WorkersLost(
            f"cluster={address!r} does not answer ({error_line}): start one with `ray start --head`"
        ) from error
    finally:
        os.umask(previous_mask)
        # `signal.signal` raises ValueError outside the main thread.
        with contextlib.suppress(ValueError):
            # Ray's handler of the signal SIGTERM would end this process before the run is saved.
            signal.signal(signal.SIGTERM, previous_handler)


def _check_listens(address: str) -> None:
    """Raises WorkersLost if nothing listens at the address. Ray itself would wait a minute."""
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
    """A connection to a Ray cluster."""

    def __init__(self, ray: Any, address: str) -> None:
        self._ray = ray
        self.address = address

    def cpus(self) -> int:
        """Returns the number of processors on all machines of the cluster."""
        return int(self._ray.cluster_resources().get("CPU", 0))

    def max_cpus(self) -> int:
        """Returns the number of processors on the machine that has the most."""
        return max((int(node["Resources"].get("CPU", 0)) for node in self._live_nodes()), default=0)

    def _live_nodes(self) -> list[dict[str, Any]]:
        """Returns Ray's descriptions of the machines that are alive."""
        return [node for node in self._ray.nodes() if node["Alive"]]

    def put(self, value: Any) -> Any:
        """Returns a reference to a value, which Ray sends to each machine once."""
        return self._ray.put(value)

    def function(
        self, target: str, cpus: int = 1, frameworks: Sequence[str] = _FRAMEWORKS
    ) -> Callable[..., Any]:
        """Returns a function that runs on the cluster's workers. A call returns a reference to its
        result at once.

        A call is repeated if its worker is lost. It raises RuntimeError on a worker whose
        `required_versions` differ.

        Args:
          target: the function to call, as package.module:function.
          cpus: number of processors for each call.
          frameworks: frameworks whose versions must agree.
        """
        remote_call = self._ray.remote(num_cpus=cpus, max_retries=-1)(_worker_call())
        return functools.partial(remote_call.remote, required_versions(frameworks), target)

    def finished(self, reference: Any, seconds: float = 0) -> bool:
        """Returns whether a call has finished, after waiting for it up to `seconds`."""
        finished_references, _ = self._ray.wait([reference], timeout=seconds)
        return bool(finished_references)

    def value(self, reference: Any) -> Any:
        """Returns the result of a call, or raises its exception."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, Exception):
                raise error.cause from None
            raise RuntimeError(str(error)) from None

    def cancel(self, reference: Any, *, force: bool) -> None:
        """Cancels a call by a KeyboardInterrupt in its worker. With `force`, it ends the worker
        instead.
        """
        # A finished call is not cancelled, because Ray aborts this process if it cancels a call
        # while it receives the call's result.
        if not self.finished(reference):
            self._ray.cancel(reference, force=force)

    def least_memory(self) -> tuple[str, float]:
        """Returns the machine with the least memory for each of its processors, and that memory in
        bytes.
        """
        machine_address = ""
        least_bytes = math.inf
        for node in self._live_nodes():
            node_resources = node["Resources"]
            if not node_resources.get("CPU"):
                continue
            node_bytes = node_resources.get("memory", math.inf) / node_resources["CPU"]
            if node_bytes < least_bytes:
                machine_address = node["NodeManagerAddress"]
                least_bytes = node_bytes
        return machine_address, least_bytes

    def in_order(self, function: Any, calls: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Yields the results of calls on the cluster in their order. Later calls are submitted in
        advance.

        Args:
          function: result of `function`.
          calls: arguments of each call.

        Raises:
          WorkersLost: there was no worker for WAIT_SECONDS.
          KeyboardInterrupt: raised by `interrupts.check`.
          Exception: the first exception of a call.
        """
        calls = iter(calls)
        pending_calls = collections.deque[Any]()
        try:
            while True:
                num_new_calls = _CALLS_PER_CPU * max(1, self.cpus()) - len(pending_calls)
                for arguments in itertools.islice(calls, max(0, num_new_calls)):
                    pending_calls.append(function(*arguments))
                if not pending_calls:
                    return
                call_result = self._result(pending_calls[0])
                pending_calls.popleft()
                yield call_result
        finally:
            for reference in pending_calls:
                self.cancel(reference, force=True)

    def _result(self, reference: Any) -> Any:
        """Waits for a call and returns its result, or raises WorkersLost if there is no worker left
        for it.
        """
        check_time = time.monotonic()
        empty_since = None
        while not self.finished(reference, 0.2):
            interrupts.check()
            if time.monotonic() - check_time < _CHECK_SECONDS:
                continue
            check_time = time.monotonic()
            if self.cpus():
                empty_since = None
                continue
            if empty_since is None:
                empty_since = check_time
                message = (
                    f"fedmf: no worker is left in cluster {self.address}: waiting "
                    f"{WAIT_SECONDS:g} s for one"
                )
                tqdm.tqdm.write(message, file=sys.stderr)
            if check_time - empty_since >= WAIT_SECONDS:
                raise WorkersLost(
                    f"no worker is left in cluster {self.address}: add machines to it, then "
                    "resume the run with resume=True"
                )
        return self.value(reference)


def _worker_call() -> Callable[..., Any]:
    """Returns the function that a worker runs for each call. It checks versions, and then calls the
    target.

    Ray sends a nested function as code, so that a worker without fedmf, or with another version,
    can report that.
    """

    def fedmf_call(expected: dict[str, str], target: str, *arguments: Any) -> Any:
        import importlib.metadata
        import pkgutil
        import platform

        version_by_name = {"Python": platform.python_version()}
        for name in [name for name in expected if name not in version_by_name]:
            try:
                version_by_name[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                version_by_name[name] = "none"
        version_differences = [
            f"{name} {version_by_name[name]} and not {version}"
            for name, version in expected.items()
            if version_by_name[name] != version
        ]
        if version_differences:
            raise RuntimeError(
                f"worker {platform.node()} has {', '.join(version_differences)}: install the same "
                "there"
            )
        return pkgutil.resolve_name(target)(*arguments)

    return fedmf_call
