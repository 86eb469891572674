"""Which connected nodes take part in a round, and which client each is."""

import logging
import math
import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedmf import checks
from fedmf.server.server import Server

log = logging.getLogger("flwr")  # Flower's own, so that lines come in one order

_PARTITION = "partition"
# A round without clients waits for a node to answer so many queries, and no more.
_MOST_QUERIES = 5
_NO_PARTITION = "none tells a partition id: call fedmf.flower.tell_partition on the app"
# How long nodes have for their partition id, and how often waiting looks again, in seconds.
_ANSWER_SECONDS, _LOOK_SECONDS = 60.0, 1.0


def tell_partition(app: ClientApp) -> None:
    """Lets the nodes of a ClientApp tell their partition id, which a `population` asks for.

    Args:
      app: gets a query function of the name "partition", which answers with what the node's
        configuration says.

    Raises:
      TypeError: it is no ClientApp.
      ValueError: it has one of this name.
    """
    if not isinstance(app, ClientApp):
        raise TypeError(
            f"app={app!r} is a {type(app).__name__}: give the flwr.clientapp.ClientApp of the nodes"
        )

    @app.query(_PARTITION)
    def partition(message: Message, context: Context) -> Message:
        config = ConfigRecord({"partition-id": context.node_config["partition-id"]})
        return Message(RecordDict({_PARTITION: config}), reply_to=message)


def seconds_of(timeout: Any) -> float:
    """Returns a time limit in seconds; infinite for None.

    Raises:
      TypeError, ValueError: it is no number of seconds.
    """
    if timeout is None:
        return math.inf
    hint = "give a number of seconds, or None for no limit"
    seconds = checks.finite_float("timeout", timeout, hint=hint)
    if seconds < 0:
        raise ValueError(f"timeout={seconds} is negative: {hint}")
    return seconds


class PatientGrid:
    """A grid that waits for a node, and ends the endless waiting of Flower's strategies."""

    def __init__(self, grid: Grid, seconds: float) -> None:
        self._grid, self._seconds, self._looks = grid, seconds, 0
        self._deadline = time.monotonic() + seconds

    def get_node_ids(self) -> list[int]:
        """Those of the grid, one at least.

        Raises:
          TimeoutError: the limit is over, and there is none, or the strategy looks again and again.
        """
        self._looks += 1
        while True:
            nodes = list(self._grid.get_node_ids())
            late = time.monotonic() >= self._deadline
            # Flower's strategies look twice, to count the nodes and to draw of them.
            if late and (not nodes or self._looks > 2):
                raise TimeoutError(
                    f"{len(nodes)} nodes were connected after {self._seconds:g} s, fewer than the "
                    "wrapped strategy's min_available_nodes or min_train_nodes: connect more, or "
                    "ask for fewer"
                )
            if nodes:
                return nodes
            log.info("fedmf: waiting for nodes: none is connected")
            time.sleep(_LOOK_SECONDS)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


class Nodes:
    """Draws nodes for a server.

    Args:
      server: with what came before.
      population: clients are the partition ids 0 .. population - 1; None for node ids.
      clients_per_round: the most of a round, with node ids.
    """

    def __init__(self, server: Server, population: int | None, clients_per_round: int) -> None:
        self._server, self._population = server, population
        self._clients_per_round = clients_per_round
        # With node ids, a run that goes on must know some of them again, if any took part.
        self._goes_on = bool(server.clients)
        self._partitions: dict[int, int | None] = {}  # of each connected node that answered
        self._num_unanswered: Counter[int] = Counter()  # of each node, queries
        self._next_query: dict[int, int] = {}  # of each silent node, the round that asks it again

    def draw(
        self, grid: Grid, seconds: float, added: Collection[int] = frozenset()
    ) -> dict[int, int]:
        """Draws the nodes of this round, and says which client each is.

        With node ids it waits until a node is connected that may take part. With a population it
        waits only until the connected nodes have told their partition ids: the server has drawn
        the round's clients, so that a round none of whose clients is connected is empty, as one is
        for which the plan's sampling draws nobody.

        Args:
          grid: of the ServerApp.
          seconds: how long to wait.
          added: clients that the round has already, and that do not come again.

        Raises:
          TimeoutError: it has waited for so many seconds.
        """
        deadline = time.monotonic() + seconds
        drawn = None if self._population is None else set(map(int, self._server.cohort()))
        if drawn == set():
            return {}
        is_waiting = False
        while True:
            nodes = sorted(grid.get_node_ids())
            if drawn is None:
                client_by_node, why = self._by_node_id(nodes, added)
                is_ready = bool(client_by_node) or bool(added)
            else:
                self._ask_partitions(grid, nodes, seconds, is_waiting)
                client_by_node, why = self._by_partition(nodes, drawn), _NO_PARTITION
                is_ready = bool(client_by_node) or self._have_told(nodes)
            if is_ready:
                self._goes_on = False
                return {
                    node: client for node, client in client_by_node.items() if client not in added
                }
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    f"round {self._server.round + 1} has waited for {seconds:g} s, and of "
                    f"{len(nodes)} connected nodes none may come: {why}"
                )
            log.info("fedmf: waiting for nodes: %d connected, and %s", len(nodes), why)
            is_waiting = True
            time.sleep(_LOOK_SECONDS)

    def _by_node_id(
        self, nodes: Sequence[int], added: Collection[int]
    ) -> tuple[dict[int, int], str]:
        if self._goes_on and not set(self._server.clients) & set(nodes):
            return {}, (
                "none of them took part before the run was interrupted, so that they may be the "
                "same ones under new ids: give a population, or wait for those"
            )
        drawn = [int(node) for node in self._server.cohort(available=nodes)]
        missing = [node for node in drawn if node not in added]
        # Other nodes may be connected now than when the first ones of the round were added.
        num_missing = max(0, self._clients_per_round - len(added))
        return {
            node: node for node in missing[:num_missing]
        }, "none of them may take part again yet"

    def _by_partition(self, nodes: Sequence[int], drawn: Collection[int]) -> dict[int, int]:
        """Returns the nodes of the drawn partitions; of several with one, the one of least id."""
        named = {self._partitions.get(node): node for node in reversed(nodes)}
        return {named[client]: client for client in sorted(drawn) if client in named}

    def _have_told(self, nodes: Sequence[int]) -> bool:
        """Says whether a node has told its partition, and none of the others may do so yet."""
        told = [partition for partition in self._partitions.values() if partition is not None]
        return bool(told) and all(
            node in self._partitions or self._num_unanswered[node] >= _MOST_QUERIES
            for node in nodes
        )

    def _ask_partitions(
        self, grid: Grid, nodes: Sequence[int], seconds: float, is_waiting: bool
    ) -> None:
        """Asks the nodes that have not told their partition id.

        One that was silent is asked again in the same round where the round waits for it, and
        otherwise in later and later rounds: each query may last as long as a node has to answer.
        """
        t, connected = self._server.round, set(nodes)
        self._partitions = {n: p for n, p in self._partitions.items() if n in connected}
        self._next_query = {n: later for n, later in self._next_query.items() if n in connected}
        self._num_unanswered = Counter(
            {node: count for node, count in self._num_unanswered.items() if node in connected}
        )
        silent = [node for node in nodes if node not in self._partitions]
        due = [node for node in silent if is_waiting or self._next_query.get(node, 0) <= t]
        if not due:
            return
        kind = f"{MessageType.QUERY}.{_PARTITION}"
        messages = [Message(RecordDict(), node, kind) for node in due]
        self._num_unanswered.update(due)
        assert self._population is not None
        for reply in grid.send_and_receive(messages, timeout=min(_ANSWER_SECONDS, seconds)):
            if reply.has_content():
                partition = reply.content.config_records.get(_PARTITION, {}).get("partition-id")
                is_integer = isinstance(partition, int) and not isinstance(partition, bool)
                is_partition = is_integer and 0 <= partition < self._population
                self._partitions[reply.metadata.src_node_id] = partition if is_partition else None
        for node in set(due) - self._partitions.keys():
            self._next_query[node] = t + 2 ** min(self._num_unanswered[node] - 1, 30)
