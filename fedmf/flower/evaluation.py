"""Replies to an evaluation on clients: those that a strategy cannot take stop nobody."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from flwr.app import Message, MetricRecord
from flwr.serverapp.strategy import Result, Strategy


class Evaluation(NamedTuple):
    """What a strategy makes of the replies to an evaluation.

    Attributes:
      metrics: the strategy's; None without.
      dropped: how many replies it did not take, by the reason.
    """

    metrics: MetricRecord | None
    dropped: Counter[str]


def evaluate(
    strategy: Strategy, server_round: int, replies: Sequence[Message], undo: Callable[[], None]
) -> Evaluation:
    """Lets the strategy aggregate all replies, else those that fit together, else none.

    No reply counts whose weight is no weight: a strategy would make NaN of all of them.

    Args:
      strategy: aggregates them.
      server_round: Flower's number of the round.
      replies: of the nodes.
      undo: gives the strategy back the state that it had before.
    """
    weight_key = getattr(strategy, "weighted_by_key", "num-examples")
    weighted = [reply for reply in replies if not _has_odd_weight(reply, weight_key)]
    odd: Counter[str] = Counter()
    if len(weighted) < len(replies):
        reason = f"with a {weight_key!r} that is negative or not finite"
        odd[reason] = len(replies) - len(weighted)
    try:
        return Evaluation(strategy.aggregate_evaluate(server_round, weighted), odd)
    except Exception as error:  # a strategy of Flower's raises where one node's reply is odd
        reason = text_of(error)
    undo()
    fitting, unfit = _fitting(weighted, weight_key)
    dropped = unfit + odd
    if fitting and unfit:
        try:
            return Evaluation(strategy.aggregate_evaluate(server_round, fitting), dropped)
        except Exception as error:
            reason = text_of(error)
        undo()
    if fitting:
        dropped[f"that the strategy cannot aggregate ({reason})"] += len(fitting)
    return Evaluation(None, dropped)


def _has_odd_weight(reply: Message, weight_key: str) -> bool:
    """Says whether a reply has a weight of its own that is negative or not finite."""
    if reply.has_error():
        return False
    weights = [record.get(weight_key, 0) for record in reply.content.metric_records.values()]
    return any(not 0 <= weight < math.inf for weight in weights if isinstance(weight, int | float))


def number_from(result: Result, num_done: int) -> None:
    """Numbers the rounds of a result over the whole run, of which so many were done before."""
    names = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")
    for name in names:
        by_round = getattr(result, name)
        setattr(result, name, {num_done + t: record for t, record in by_round.items()})


def text_of(error: Exception) -> str:
    """Returns an error's first sentence, or its type where it has none."""
    sentence = " ".join(str(error).split()).split(". ")[0].rstrip(".")
    return sentence or type(error).__name__


def _fitting(replies: Sequence[Message], weight_key: str) -> tuple[list[Message], Counter[str]]:
    """Returns the replies with a weight and the names that most have, and counts the others."""
    dropped: Counter[str] = Counter()
    by_names: dict[frozenset[tuple[str, int | None]], list[Message]] = {}
    for reply in replies:
        if reply.has_error():  # the strategy has logged them
            continue
        try:
            [record] = reply.content.metric_records.values()
            weight = record[weight_key]
            if not isinstance(weight, int | float):
                raise ValueError
        except (ValueError, KeyError):
            dropped[f"without one record that has a number {weight_key!r}"] += 1
            continue
        sizes = {
            (name, len(value) if isinstance(value, list) else None)
            for name, value in record.items()
        }
        by_names.setdefault(frozenset(sizes), []).append(reply)
    fitting = max(by_names.values(), key=len, default=[])
    num_unlike = sum(map(len, by_names.values())) - len(fitting)
    if num_unlike:
        dropped["with other metrics than most"] = num_unlike
    return fitting, dropped
