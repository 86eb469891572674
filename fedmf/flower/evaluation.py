"""Evaluation of the model on Flower clients. The wrapped strategy aggregates the clients' replies,
except those that it cannot aggregate.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from flwr.app import Message, MetricRecord
from flwr.serverapp.strategy import Result, Strategy


class EvaluationResult(NamedTuple):
    """The result of an evaluation on clients, with counts of dropped replies.

    Attributes:
      metrics: metrics of the strategy; None where it returned none.
      dropped: the number of replies that were left out, by the reason.
    """

    metrics: MetricRecord | None
    dropped: Counter[str]


def evaluate(
    strategy: Strategy, server_round: int, replies: Sequence[Message], undo: Callable[[], None]
) -> EvaluationResult:
    """Lets the wrapped strategy aggregate the replies of an evaluation. If it cannot aggregate all,
    it gets those with the most frequent metrics.

    Replies with an invalid weight are left out, because a strategy would compute NaN with them.

    Args:
      strategy: aggregates the replies.
      server_round: Flower's number of the round.
      replies: replies of the nodes.
      undo: restores the state of the strategy from before.
    """
    weight_key = getattr(strategy, "weighted_by_key", "num-examples")
    weighted_replies = [reply for reply in replies if not _has_invalid_weight(reply, weight_key)]
    dropped: Counter[str] = Counter()
    if len(weighted_replies) < len(replies):
        drop_reason = f"with a {weight_key!r} that is negative or not finite"
        dropped[drop_reason] = len(replies) - len(weighted_replies)
    try:
        return EvaluationResult(
            strategy.aggregate_evaluate(server_round, weighted_replies), dropped
        )
    # Flower's strategies raise an error if replies have different metrics.
    except Exception as error:
        drop_reason = text_of(error)
    undo()
    matching_replies, num_mismatches = _matching(weighted_replies, weight_key)
    dropped = num_mismatches + dropped
    if matching_replies and num_mismatches:
        try:
            return EvaluationResult(
                strategy.aggregate_evaluate(server_round, matching_replies), dropped
            )
        except Exception as error:
            drop_reason = text_of(error)
        undo()
    if matching_replies:
        dropped[f"that the strategy cannot aggregate ({drop_reason})"] += len(matching_replies)
    return EvaluationResult(None, dropped)


def _has_invalid_weight(reply: Message, weight_key: str) -> bool:
    """Returns whether a reply has a weight that is negative, NaN or infinite."""
    if reply.has_error():
        return False
    metric_weights = [record.get(weight_key, 0) for record in reply.content.metric_records.values()]
    return any(
        not 0 <= weight < math.inf for weight in metric_weights if isinstance(weight, int | float)
    )


def number_from(result: Result, num_done: int) -> None:
    """Renumbers the rounds of a Flower result after a run that had done `num_done` rounds was
    resumed.
    """
    metric_attributes = (
        "train_metrics_clientapp",
        "evaluate_metrics_clientapp",
        "evaluate_metrics_serverapp",
    )
    for name in metric_attributes:
        metrics_by_round = getattr(result, name)
        setattr(result, name, {num_done + t: record for t, record in metrics_by_round.items()})


def text_of(error: Exception) -> str:
    """Returns the first sentence of an error, or the error's type if it has no text."""
    first_sentence = " ".join(str(error).split()).split(". ")[0].rstrip(".")
    return first_sentence or type(error).__name__


def _matching(replies: Sequence[Message], weight_key: str) -> tuple[list[Message], Counter[str]]:
    """Returns the replies that have a weight and the most frequent metrics, with counts of all
    other replies.
    """
    dropped: Counter[str] = Counter()
    replies_by_names: dict[frozenset[tuple[str, int | None]], list[Message]] = {}
    for reply in replies:
        # The wrapped strategy has already logged the error of this reply.
        if reply.has_error():
            continue
        try:
            [record] = reply.content.metric_records.values()
            reply_weight = record[weight_key]
            if not isinstance(reply_weight, int | float):
                raise ValueError
        except (ValueError, KeyError):
            dropped[f"without one record that has a number {weight_key!r}"] += 1
            continue
        name_sizes = {
            (name, len(value) if isinstance(value, list) else None)
            for name, value in record.items()
        }
        replies_by_names.setdefault(frozenset(name_sizes), []).append(reply)
    matching_replies = max(replies_by_names.values(), key=len, default=[])
    num_different = sum(map(len, replies_by_names.values())) - len(matching_replies)
    if num_different:
        dropped["with other metrics than most"] = num_different
    return matching_replies, dropped
