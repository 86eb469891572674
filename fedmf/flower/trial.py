"""A trial of the wrapped strategy before its first round: what it makes of one reply."""

import contextlib
import logging
import pathlib
from collections.abc import Iterator, Mapping

import numpy as np
from flwr.app import Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from fedmf.flower.arrays import Model, as_record, floats, in_order, shapes_of
from fedmf.flower.evaluation import text_of
from fedmf.flower.nodes import log
from fedmf.flower.strategy_state import Path, StrategyState, duplicate


def next_model(
    strategy: Strategy, t: int, model: Model, reply: Model
) -> dict[str, np.ndarray] | None:
    """Returns the strategy's model after round t, in the order of `model`; None where it has none.

    Args:
      strategy: aggregates one reply, of weight 1.
      t: the round, from 0 on.
      model: before the round.
      reply: the arrays of the reply.

    Raises:
      ValueError: its arrays are not those of the model.
    """
    weight = MetricRecord({getattr(strategy, "weighted_by_key", "num-examples"): 1.0})
    key = getattr(strategy, "arrayrecord_key", "arrays")
    content = RecordDict({key: as_record(reply), "metrics": weight})
    arrays, _ = strategy.aggregate_train(t + 1, [Message(content, 0, MessageType.TRAIN)])
    if arrays is None:
        return None
    result = in_order(floats(arrays), list(model))
    if shapes_of(result) != shapes_of(model):
        raise ValueError(
            f"strategy={type(strategy).__name__} gives arrays of the names and shapes "
            f"{shapes_of(result)}, and the model's are {shapes_of(model)}: keep the model's"
        )
    return result


def try_strategy(strategy: Strategy, t: int, model: Model) -> dict[Path, str]:
    """Checks on a copy that the strategy moves the model by one reply.

    Args:
      strategy: has made the messages of round t.
      t: the round, from 0 on.
      model: before the round.

    Returns:
      The type of each attribute that changes and that no file keeps.

    Raises:
      ValueError: the model does not move in round 0, or the strategy fails.
    """
    twin = duplicate(strategy)
    # Those who replaced the strategy's methods by functions of their own hold the strategy itself.
    states = [(each, StrategyState(each)) for each in (strategy, twin)]
    # Far enough for every float type, and not so far that it overflows.
    reply = {name: (x + np.abs(x) / 4 + 1).astype(x.dtype) for name, x in model.items()}
    try:
        with _quiet():
            result = next_model(twin, t, model, reply)
        reason = "it gives no model" if result is None else _fault(model, result, t)
        lost = [state.changes(each).lost for each, state in states]
    except Exception as error:  # of the strategy's author
        reason = text_of(error)
    finally:
        states[0][1].undo(strategy)
    if reason:
        raise ValueError(refusal_of(strategy, reason))
    return lost[0] | lost[1]


def refusal_of(strategy: Strategy, reason: str) -> str:
    """Returns the sentence that refuses a strategy."""
    return (
        f"strategy={type(strategy).__name__} cannot train this model with one reply a round, the "
        f"noisy mean of the clients' ({reason}): wrap one that moves a model by an average, such "
        "as FedAvg, FedAvgM, FedAdam, FedAdagrad, FedYogi or FedProx"
    )


def _fault(model: Model, result: Model, t: int) -> str:
    """Returns what is wrong with the next model; nothing where it is right.

    A run that goes on moved the model in its first round, and may stand still in this one: a
    learning rate may be 0.
    """
    is_lost = (np.isfinite(model[name]) & ~np.isfinite(result[name]) for name in model)
    if any(map(np.any, is_lost)):
        return "the next model has entries that are not finite"
    stays = all(np.array_equal(model[name], result[name], equal_nan=True) for name in model)
    if stays and t == 0:
        return "the model stays as it is"
    return ""


def check_is_kept(lost: Mapping[Path, str], folder: pathlib.Path) -> None:
    """Refuses a strategy in which rounds change what the folder of the run does not keep."""
    if lost:
        raise ValueError(
            f"strategy.{shown(lost)} changes from round to round, and folder={str(folder)!r} does "
            "not keep it for a run that is started again: let the strategy keep numbers, texts, "
            "arrays, or lists and dicts of them, or give folder=None"
        )


def shown(attributes: Mapping[Path, str]) -> str:
    """Returns the names of attributes with their types, for a sentence."""
    return ", ".join(f"{'.'.join(path)} ({kind})" for path, kind in attributes.items())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps what a strategy logs of a trial out of the run's log."""
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
