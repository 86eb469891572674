"""Selection of the connected Flower nodes of a round, and the client of each node."""

import logging
import math
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedmf import checks
from fedmf.server.server import Server

log = logging.getLogger("flwr")  # Messages go to Flower's own log, so that all lines are in order.

_PARTITION = "partition"
# A round without connected clients waits until each silent node was asked this many times.
_MAX_QUERIES = 5
_NO_PARTITION = "none tells a partition id: call fedmf.flower.tell_partition on the app"
# Time limit, in seconds, for nodes to answer a query for their partition ids.
_ANSWER_SECONDS = 60.0
_POLL_SECONDS = 1.0


def tell_partition(app: ClientApp) -> None:
    """Makes the nodes of a ClientApp answer queries for their partition id, which a strategy with a
    `population` needs.

    Args:
      app: gets a query function of the name "partition", which answers with the partition id in the
        node's configuration.

    Raises:
      TypeError: it is no ClientApp.
      ValueError: it has a query function of this name.
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
    """Returns a time limit in seconds, which is infinite for None.

    Raises:
      TypeError, ValueError: it is no number of seconds.
    """
    if timeout is None:
        return math.inf
    timeout_hint = "give a number of seconds, or None for no limit"
    time_limit = checks.finite_float("timeout", timeout, hint=timeout_hint)
    if time_limit < 0:
        raise ValueError(f"timeout={time_limit} is negative: {timeout_hint}")
    return time_limit


class PatientGrid:
    """A Flower grid that waits until a node is connected. It also ends the wait of a Flower
    strategy for more nodes after a time limit.

    Args:
      grid: grid of the ServerApp.
      seconds: the time limit.
    """

    def __init__(self, grid: Grid, seconds: float) -> None:
        self._grid = grid
        self._seconds = seconds
        self._num_calls = 0
        self._deadline = time.monotonic() + seconds

    def get_node_ids(self) -> list[int]:
        """Returns the ids of the connected nodes, after waiting for at least one.

        Raises:
          TimeoutError: after the time limit, where no node is connected, or where the strategy has
            called several times and still waits.
        """
        self._num_calls += 1
        while True:
            connected_nodes = list(self._grid.get_node_ids())
            is_late = time.monotonic() >= self._deadline
            # Flower's strategies call this method twice in a round, to count the nodes and to draw
            # some of them. From the third call on they are waiting for more nodes.
            if is_late and (not connected_nodes or self._num_calls > 2):
                raise TimeoutError(
                    f"{len(connected_nodes)} nodes were connected after {self._seconds:g} s, fewer "
                    "than the wrapped strategy's min_available_nodes or min_train_nodes: connect "
                    "more, or ask for fewer"
                )
            if connected_nodes:
                return connected_nodes
            log.info("fedmf: waiting for nodes: none is connected")
            time.sleep(_POLL_SECONDS)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


class Nodes:
    """The nodes of a Flower grid, from which a server draws the clients of each round.

    Args:
      server: server of the run, with the rounds so far.
      population: clients are the partition ids 0 .. population - 1; None for node ids.
      clients_per_round: the most clients of a round, with node ids.
    """

    def __init__(self, server: Server, population: int | None, clients_per_round: int) -> None:
        self._server = server
        self._population = population
        self._clients_per_round = clients_per_round
        # If clients are node ids, a resumed run waits for one of the nodes that took part before,
        # if any did.
        self._needs_past_node = bool(server.clients)
        # The partition id of each connected node that has answered the query.
        self._partition_by_node: dict[int, int | None] = {}
        # The number of queries that each node has not answered.
        self._num_unanswered: Counter[int] = Counter()
        self._next_query: dict[
            int, int
        ] = {}  # The round in which each silent node is queried next.

    def draw(
        self, grid: Grid, seconds: float, added: Collection[int] = frozenset()
    ) -> dict[int, int]:
        """Draws the nodes of this round, and returns a dict from each node to its client.

        With node ids it waits until an eligible node is connected. With a population the server has
        drawn the round's clients, and it waits only until the connected nodes have told their
        partition ids. If no client of the round is connected, the round is empty, like a round for
        which the plan's sampling draws no client.

        Args:
          grid: grid of the ServerApp.
          seconds: the time limit.
          added: clients whose updates the round has already; they are left out.

        Raises:
          TimeoutError: the time limit is over.
        """
        deadline = time.monotonic() + seconds
        drawn_clients = None if self._population is None else set(map(int, self._server.cohort()))
        if drawn_clients == set():
            return {}
        is_waiting = False
        while True:
            connected_nodes = sorted(grid.get_node_ids())
            if drawn_clients is None:
                client_by_node, waiting_reason = self._by_node_id(connected_nodes, added)
                is_ready = bool(client_by_node) or bool(added)
            else:
                self._ask_partitions(grid, connected_nodes, seconds, is_waiting)
                client_by_node = self._by_partition(connected_nodes, drawn_clients)
                waiting_reason = _NO_PARTITION
                is_ready = bool(client_by_node) or self._have_told(connected_nodes)
            if is_ready:
                self._needs_past_node = False
                return {
                    node: client for node, client in client_by_node.items() if client not in added
                }
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    f"round {self._server.round + 1} has waited for {seconds:g} s, and of "
                    f"{len(connected_nodes)} connected nodes none may come: {waiting_reason}"
                )
            log.info(
                "fedmf: waiting for nodes: %d connected, and %s",
                len(connected_nodes),
                waiting_reason,
            )
            is_waiting = True
            time.sleep(_POLL_SECONDS)

    def _by_node_id(
        self, nodes: Sequence[int], added: Collection[int]
    ) -> tuple[dict[int, int], str]:
        """Draws clients among the connected nodes, by node id. Returns the client of each drawn
        node, and a reason for the log if none was drawn.
        """
        if self._needs_past_node and not set(self._server.clients) & set(nodes):
            return {}, (
                "none of them took part before the run was interrupted, so that they may be the "
                "same ones under new ids: give a population, or wait for those"
            )
        drawn_nodes = [int(node) for node in self._server.cohort(available=nodes)]
        missing_nodes = [node for node in drawn_nodes if node not in added]
        # Nodes may have connected or left since the first updates of the round were added, so the
        # cohort is filled up with new nodes.
        num_missing = max(0, self._clients_per_round - len(added))
        client_by_node = {node: node for node in missing_nodes[:num_missing]}
        return client_by_node, "none of them may take part again yet"

    def _by_partition(self, nodes: Sequence[int], drawn: Collection[int]) -> dict[int, int]:
        """Returns the connected nodes that have a drawn partition, each with its client. If several
        nodes have the same partition, it is the one with the smallest id.
        """
        node_by_client = {self._partition_by_node.get(node): node for node in reversed(nodes)}
        return {
            node_by_client[client]: client for client in sorted(drawn) if client in node_by_client
        }

    def _have_told(self, nodes: Sequence[int]) -> bool:
        """Returns whether at least one node has told its partition id, and no other answer is
        awaited.
        """
        has_partition = any(partition is not None for partition in self._partition_by_node.values())
        return has_partition and all(
            node in self._partition_by_node or self._num_unanswered[node] >= _MAX_QUERIES
            for node in nodes
        )

    def _ask_partitions(
        self, grid: Grid, nodes: Sequence[int], seconds: float, is_waiting: bool
    ) -> None:
        """Queries the partition ids of the nodes that have not told theirs yet.

        A silent node is asked again in this round if the round is waiting, and else after longer
        and longer intervals, because each query may take the whole time limit for answers.
        """
        t = self._server.round
        self._partition_by_node = _of_nodes(self._partition_by_node, nodes)
        self._next_query = _of_nodes(self._next_query, nodes)
        self._num_unanswered = Counter(_of_nodes(self._num_unanswered, nodes))
        silent_nodes = [node for node in nodes if node not in self._partition_by_node]
        nodes_to_ask = [
            node for node in silent_nodes if is_waiting or self._next_query.get(node, 0) <= t
        ]
        if not nodes_to_ask:
            return
        message_type = f"{MessageType.QUERY}.{_PARTITION}"
        query_messages = [Message(RecordDict(), node, message_type) for node in nodes_to_ask]
        self._num_unanswered.update(nodes_to_ask)
        assert self._population is not None
        for reply in grid.send_and_receive(query_messages, timeout=min(_ANSWER_SECONDS, seconds)):
            if reply.has_content():
                partition_id = reply.content.config_records.get(_PARTITION, {}).get("partition-id")
                is_integer = isinstance(partition_id, int) and not isinstance(partition_id, bool)
                is_partition = is_integer and 0 <= partition_id < self._population
                if not is_partition:
                    partition_id = None
                self._partition_by_node[reply.metadata.src_node_id] = partition_id
        for node in set(nodes_to_ask) - self._partition_by_node.keys():
            self._next_query[node] = t + 2 ** min(self._num_unanswered[node] - 1, 30)


Value = TypeVar("Value")


def _of_nodes(values: Mapping[int, Value], nodes: Sequence[int]) -> dict[int, Value]:
    """Returns the entries of a dict whose keys are in `nodes`."""
    connected_nodes = set(nodes)
    return {node: value for node, value in values.items() if node in connected_nodes}
