"""Processing of a Flower round, from its messages to the updates in the nodes' replies. Replies
that cannot be used are dropped and counted by the reason.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from flwr.app import Message, MessageType, RecordDict

from fedmf.flower.arrays import Model, is_model, metrics_of, update_of
from fedmf.flower.state import State
from fedmf.flower.strategy_state import StrategyState
from fedmf.server.server import Server


@dataclasses.dataclass(kw_only=True)
class Round:
    """The progress of a round that has not ended, from its messages to the wrapped strategy's step.
    An interrupt may come at any point.

    Attributes:
      t: the round, from 0 on.
      before: the wrapped strategy's state before it made the messages.
      model: the arrays in the messages, by name.
      message_type: type of the messages.
      asked: the client of each node that gets a message; None before they were drawn.
      added: clients whose updates were passed to the server, whether or not an interrupt came.
      after: the wrapped strategy's state before its step.
      is_summed: whether all replies are in the server's sum, which must be released then.
      is_step_begun: whether the step may have changed the wrapped strategy's state already.
      is_undone: whether the wrapped strategy has the state before the messages again, which will
        not be sent.
    """

    t: int
    before: State
    model: dict[str, np.ndarray]
    message_type: str = MessageType.TRAIN
    asked: dict[int, int] | None = None
    added: set[int] = dataclasses.field(default_factory=set)
    after: State | None = None
    is_summed: bool = False
    is_step_begun: bool = False
    is_undone: bool = False

    def undo_interrupted(self, state: StrategyState) -> None:
        """Restores the state that the wrapped strategy had before a call that was interrupted."""
        if not self.is_summed and not self.is_undone:
            state.rewind(self.before)
            self.is_undone = True
            self.asked = None
        elif self.is_step_begun and self.after is not None:
            state.rewind(self.after)
            self.is_step_begun = False


class Update(NamedTuple):
    """The update of one client in a round, with its metrics.

    Attributes:
      client: id of the client.
      arrays: reply minus model.
      metrics: "accuracy" and "loss"; None where they are not released, or the reply has none.
    """

    client: int
    arrays: list[np.ndarray]
    metrics: dict[str, float] | None


class Replies:
    """The updates in the replies of a round, with counts of dropped replies.

    Args:
      replies: replies of the nodes, in any order.
      under_way: the round.
      takes_metrics: whether the clients' metrics are released.

    Attributes:
      dropped: the number of dropped replies, by the reason.
      mismatch: the fault of the first reply whose arrays are not those of the model.
      has_unpaid_metrics: whether a reply with an update has metrics that the plan does not pay for.
    """

    def __init__(self, replies: Iterable[Message], under_way: Round, takes_metrics: bool) -> None:
        self._replies = replies
        self._round = under_way
        self._takes_metrics = takes_metrics
        self.dropped: Counter[str] = Counter()
        self.mismatch = ""
        self.has_unpaid_metrics = False

    def __iter__(self) -> Iterator[Update]:
        client_by_node = dict(self._round.asked or {})
        added_clients = self._round.added
        awaited_by_node = {
            sender_node: client
            for sender_node, client in client_by_node.items()
            if client not in added_clients
        }
        for reply in self._replies:
            sender_node = reply.metadata.src_node_id
            if reply.has_error():
                self.dropped["failed"] += 1
            elif reply.metadata.group_id != str(self._round.t + 1):
                self.dropped["of another round"] += 1
            elif reply.metadata.message_type != self._round.message_type:
                self.dropped["of another type than asked for"] += 1
            elif sender_node not in client_by_node:
                self.dropped["of nodes that were not drawn"] += 1
            elif sender_node not in awaited_by_node:
                self.dropped["come twice"] += 1
            else:
                client_update = self._update_of(awaited_by_node[sender_node], reply.content)
                if client_update is not None:
                    del awaited_by_node[sender_node]
                    yield client_update
        num_without_update = self.dropped["failed"] + self.dropped["with other arrays"]
        if len(awaited_by_node) > num_without_update:
            self.dropped["missing"] = len(awaited_by_node) - num_without_update

    def _update_of(self, client: int, content: RecordDict) -> Update | None:
        """Returns the update in a reply. A reply whose arrays differ from the model's is counted,
        and gives None.
        """
        try:
            update_arrays = update_of(content, self._round.model)
            client_metrics = metrics_of(content) if self._takes_metrics else None
        # Any error is caught, because the bytes of a hostile client may raise an error of any type.
        except Exception as error:
            self.dropped["with other arrays"] += 1
            self.mismatch = self.mismatch or " ".join(str(error).split())
            return None
        if client_metrics is None and any(map(len, content.metric_records.values())):
            self.has_unpaid_metrics = True
        return Update(client, update_arrays, client_metrics)


def add_updates(server: Server, under_way: Round, replies: Replies) -> None:
    """Adds the updates of a round's replies to the server's sum.

    Raises:
      ValueError: no reply of this run has had the arrays that were sent.
    """
    for update in replies:
        # The client is recorded before `add` is called, because an interrupt may come after the
        # server has counted its update.
        under_way.added.add(update.client)
        server.add(update.arrays, client=update.client, metrics=update.metrics)
    num_mismatches = replies.dropped["with other arrays"]
    # A hostile client that sends arrays of other shapes must not stop the run. But if all clients
    # have done so since the first round, the program has a mistake.
    must_be_program = num_mismatches > 1 or len(under_way.asked or {}) == 1
    has_had_updates = bool(under_way.added) or server.ledger.observed().participations > 0
    if num_mismatches and must_be_program and not has_had_updates:
        raise ValueError(
            f"no reply of round {under_way.t + 1} has the arrays that were sent "
            f"({replies.mismatch}): let clients send back all of them, of the same names and "
            "shapes, as floats"
        )


class Letter(NamedTuple):
    """The training message of a round, which is the same for all nodes.

    Attributes:
      content: content of the message.
      message_type: "train", or a type that begins with it such as "train.lora".
      seconds: time to live.
    """

    content: RecordDict
    message_type: str
    seconds: float

    def to(self, node: int, t: int) -> Message:
        """Returns the message of round t for one node."""
        return Message(self.content, node, self.message_type, ttl=self.seconds, group_id=str(t + 1))


def letter_of(name: str, messages: list[Message], model: Model) -> Letter:
    """Checks that a strategy's messages are the same for all nodes, and returns that one message.

    Args:
      name: name of the strategy.
      messages: messages for training.
      model: the arrays that the nodes are to get.

    Raises:
      ValueError: there are none, they differ, or they are not for training this model.
    """
    if not messages:
        raise ValueError(
            f"strategy={name} sends no message for training: let it train one node at least "
            "(fraction_train, min_train_nodes)"
        )
    first_message = messages[0]
    common_letter = Letter(
        first_message.content, first_message.metadata.message_type, first_message.metadata.ttl
    )
    for message in messages:
        is_content = (
            message.content is common_letter.content or message.content == common_letter.content
        )
        if not is_content or message.metadata.message_type != common_letter.message_type:
            raise ValueError(
                f"strategy={name} sends nodes messages of their own, and the nodes that train are "
                "drawn by the server: use one that sends all the same"
            )
    if common_letter.message_type.partition(".")[0] != MessageType.TRAIN:
        raise ValueError(
            f"strategy={name} sends messages of the type {common_letter.message_type!r} for "
            "training: let it send such of the type 'train', or of one such as 'train.lora'"
        )
    if not any(is_model(record, model) for record in common_letter.content.array_records.values()):
        raise ValueError(
            f"strategy={name} sends other arrays than those of the model, and an update is a reply "
            "minus the model: let configure_train send the arrays that it gets"
        )
    return common_letter
