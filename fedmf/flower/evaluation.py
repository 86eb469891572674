"""Replies to an evaluation on clients: those that a strategy cannot take stop nobody."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from flwr.app import Message, MetricRecord
from flwr.serverapp.strategy import Strategy


class Evaluation(NamedTuple):
    """What a strategy makes of the replies to an evaluation.

    Attributes:
      metrics: the strategy's; None without.
      dropped: how many replies it did not take, by the reason.
    """

    metrics: MetricRecord | None
    dropped: Counter[str]


def evaluate(strategy: Strategy, server_round: int, replies: Sequence[Message]) -> Evaluation:
    """Lets the strategy aggregate all replies, else those that fit together, else none."""
    try:
        return Evaluation(strategy.aggregate_evaluate(server_round, replies), Counter())
    except Exception as error:  # a strategy of Flower's raises where one node's reply is odd
        reason = text_of(error)
    weight_key = getattr(strategy, "weighted_by_key", "num-examples")
    fitting, dropped = _fitting(replies, weight_key)
    if fitting and dropped:
        try:
            return Evaluation(strategy.aggregate_evaluate(server_round, fitting), dropped)
        except Exception as error:
            reason = text_of(error)
    if fitting:
        dropped[f"that the strategy cannot aggregate ({reason})"] += len(fitting)
    return Evaluation(None, dropped)


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
            if not (isinstance(weight, int | float) and 0 <= weight < math.inf):
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
