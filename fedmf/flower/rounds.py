"""A round under way, and the replies of its nodes: which of them count, and why others do not."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from flwr.app import Message, MessageType, RecordDict

from fedmf.flower.arrays import Model, is_model, metrics_of, update_of
from fedmf.flower.strategy_state import State, StrategyState
from fedmf.server.server import Server


@dataclasses.dataclass(kw_only=True)
class Round:
    """A round from its messages to the wrapped strategy's step; an interrupt may end it anywhere.

    Attributes:
      t: the round, from 0 on.
      before: the wrapped strategy's state before it made the messages.
      model: the arrays that the nodes got, by name.
      message_type: of the messages.
      asked: client of each node that was asked; None before they were drawn.
      added: clients that were handed to the server, also where an interrupt came meanwhile.
      after: the wrapped strategy's state before its step.
      is_summed: whether all replies are in the server's sum, so that it has to be released.
      is_step_begun: whether the wrapped strategy may have changed its state by a step already.
      is_undone: whether the messages were for nothing, and the wrapped strategy has the state of
        before.
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
        """Gives the wrapped strategy the state before what the round has begun and not ended."""
        if not self.is_summed and not self.is_undone:
            state.rewind(self.before)
            self.is_undone = True
            self.asked = None
        elif self.is_step_begun and self.after is not None:
            state.rewind(self.after)
            self.is_step_begun = False


class Update(NamedTuple):
    """A client's update.

    Attributes:
      client: whose it is.
      arrays: reply minus model.
      metrics: "accuracy" and "loss"; None where they are not asked for or not there.
    """

    client: int
    arrays: list[np.ndarray]
    metrics: dict[str, float] | None


class Replies:
    """Yields the updates of a round's replies, and counts the replies that do not count.

    Args:
      replies: of the nodes, in any order.
      under_way: the round.
      takes_metrics: whether the clients' metrics are released.

    Attributes:
      dropped: how many replies do not count, by the reason.
      misfit: what is wrong with the arrays of the first reply that has others.
      has_unpaid_metrics: whether a reply that counts has metrics which nobody takes.
    """

    def __init__(self, replies: Iterable[Message], under_way: Round, takes_metrics: bool) -> None:
        self._replies, self._round, self._takes_metrics = replies, under_way, takes_metrics
        self.dropped: Counter[str] = Counter()
        self.misfit = ""
        self.has_unpaid_metrics = False

    def __iter__(self) -> Iterator[Update]:
        client_by_node = dict(self._round.asked or {})
        added = self._round.added
        awaited = {node: client for node, client in client_by_node.items() if client not in added}
        for reply in self._replies:
            node = reply.metadata.src_node_id
            if reply.has_error():
                self.dropped["failed"] += 1
            elif reply.metadata.group_id != str(self._round.t + 1):
                self.dropped["of another round"] += 1
            elif reply.metadata.message_type != self._round.message_type:
                self.dropped["of another type than asked for"] += 1
            elif node not in client_by_node:
                self.dropped["of nodes that were not drawn"] += 1
            elif node not in awaited:
                self.dropped["come twice"] += 1
            else:
                update = self._update_of(awaited[node], reply.content)
                if update is not None:
                    del awaited[node]
                    yield update
        num_odd = sum(self.dropped[why] for why in ("failed", "with other arrays"))
        if len(awaited) > num_odd:
            self.dropped["missing"] = len(awaited) - num_odd

    def _update_of(self, client: int, content: RecordDict) -> Update | None:
        try:
            arrays = update_of(content, self._round.model)
            metrics = metrics_of(content) if self._takes_metrics else None
        except Exception as error:  # whatever a hostile client makes of its bytes
            self.dropped["with other arrays"] += 1
            self.misfit = self.misfit or " ".join(str(error).split())
            return None
        if metrics is None and any(map(len, content.metric_records.values())):
            self.has_unpaid_metrics = True
        return Update(client, arrays, metrics)


def add_updates(server: Server, under_way: Round, replies: Replies) -> None:
    """Adds the updates of a round's replies to the server's sum.

    Raises:
      ValueError: no reply of this run has had the arrays that were sent.
    """
    for update in replies:
        # Before the server has it: an interrupt may come when it has counted the client.
        under_way.added.add(update.client)
        server.add(update.arrays, client=update.client, metrics=update.metrics)
    num_odd = replies.dropped["with other arrays"]
    # Clients that send others are hostile, and stop nobody; where all have done so from the first
    # round on it is the program.
    is_everybody = num_odd > 1 or len(under_way.asked or {}) == 1
    has_worked = bool(under_way.added) or server.ledger.observed().participations > 0
    if num_odd and is_everybody and not has_worked:
        raise ValueError(
            f"no reply of round {under_way.t + 1} has the arrays that were sent "
            f"({replies.misfit}): let clients send back all of them, of the same names and "
            "shapes, as floats"
        )


class Letter(NamedTuple):
    """What all messages of a round are.

    Attributes:
      content: of each.
      message_type: of each, "train" or one behind it such as "train.lora".
      seconds: how long it may wait for its node.
    """

    content: RecordDict
    message_type: str
    seconds: float

    def to(self, node: int, t: int) -> Message:
        """Returns the message of round t to a node."""
        return Message(self.content, node, self.message_type, ttl=self.seconds, group_id=str(t + 1))


def letter_of(name: str, messages: list[Message], model: Model) -> Letter:
    """Returns what a strategy's messages have in common.

    Args:
      name: of the strategy.
      messages: for training.
      model: the arrays that the nodes are to get.

    Raises:
      ValueError: there are none, they differ, or they are not for training this model.
    """
    if not messages:
        raise ValueError(
            f"strategy={name} sends no message for training: let it train one node at least "
            "(fraction_train, min_train_nodes)"
        )
    first = messages[0]
    letter = Letter(first.content, first.metadata.message_type, first.metadata.ttl)
    for message in messages:
        is_content = message.content is letter.content or message.content == letter.content
        if not is_content or message.metadata.message_type != letter.message_type:
            raise ValueError(
                f"strategy={name} sends nodes messages of their own, and the nodes that train are "
                "drawn by the server: use one that sends all the same"
            )
    if letter.message_type.partition(".")[0] != MessageType.TRAIN:
        raise ValueError(
            f"strategy={name} sends messages of the type {letter.message_type!r} for training: "
            "let it send such of the type 'train', or of one such as 'train.lora'"
        )
    if not any(is_model(record, model) for record in letter.content.array_records.values()):
        raise ValueError(
            f"strategy={name} sends other arrays than those of the model, and an update is a reply "
            "minus the model: let configure_train send the arrays that it gets"
        )
    return letter
