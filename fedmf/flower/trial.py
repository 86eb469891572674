"""A trial of the wrapped strategy before its first round: what it makes of one reply."""

import contextlib
import logging
import pathlib
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from fedmf.flower.arrays import Model, as_record, floats, in_order, shapes_of
from fedmf.flower.evaluation import text_of
from fedmf.flower.nodes import log
from fedmf.flower.strategy_state import Path, StrategyState, iterators_of, shown_path

# A strategy whose model does not move in so many rounds never moves it.
_ROUNDS_TO_MOVE = 3


def check_strategy(strategy: Any) -> None:
    """Refuses what is no strategy, and one that asks for metrics of training.

    Raises:
      TypeError, ValueError: naming what to do instead.
    """
    if not isinstance(strategy, Strategy):
        raise TypeError(
            f"strategy={strategy!r} is no flwr.serverapp.strategy.Strategy: wrap one such as "
            "FedAvg()"
        )
    takes_metrics = getattr(strategy, "train_metrics_aggr_fn", aggregate_metricrecords)
    if takes_metrics is not aggregate_metricrecords:
        raise ValueError(
            f"strategy.train_metrics_aggr_fn={takes_metrics!r} needs metrics of clients, which "
            "the guarantee does not cover and which are dropped: leave it out"
        )


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


def step(strategy: Strategy, t: int, model: Model, mean: Sequence[np.ndarray]) -> ArrayRecord:
    """Returns what the strategy makes of the release of round t, as one reply of weight 1."""
    moved = {
        name: (array + change).astype(array.dtype)
        for (name, array), change in zip(model.items(), mean, strict=True)
    }
    result = next_model(strategy, t, model, moved)
    if result is None:
        log.warning("fedmf: the strategy gives no model after round %d: it stays", t + 1)
        result = dict(model)
    return as_record(result)


def try_strategy(strategy: Strategy, t: int, model: Model) -> dict[Path, str]:
    """Checks that the strategy moves the model by one reply, and leaves the strategy as it was.

    What the strategy's author wrote is put back as it was. Objects of libraries, whose state cannot
    be seen, have copies in their place meanwhile; where one cannot be copied nothing is tried.

    Args:
      strategy: has made the messages of round t.
      t: the round, from 0 on.
      model: before the round.

    Returns:
      The type of each object that changes and that no file keeps, by its path.

    Raises:
      ValueError: the model does not move in round 0, or the strategy fails.
    """
    state = StrategyState(strategy)
    iterators = iterators_of(state)
    lost: dict[Path, str] = {}
    # Far enough for every float type, and not so far that it overflows.
    reply = {name: (x + np.abs(x) / 4 + 1).astype(x.dtype) for name, x in model.items()}
    with state.restored() as watch:
        if watch is None or iterators:
            log.info(
                "fedmf: strategy=%s is not tried before the first round, because strategy.%s "
                "cannot be copied",
                type(strategy).__name__,
                shown(iterators or state.opaque),
            )
            return iterators
        try:
            with _unnoticed():
                reason = _first_fault(strategy, t, model, reply)
            lost = state.changes().lost | watch.changed()
        except Exception as error:  # of the strategy's author
            reason = text_of(error)
    if reason:
        raise ValueError(refusal_of(strategy, reason))
    return lost


def _first_fault(strategy: Strategy, t: int, model: Model, reply: Model) -> str:
    """Returns what is wrong with the next models; nothing where the first one is right.

    A schedule may begin with a learning rate of 0, so that a model which stays as it is gets some
    more rounds. A run that goes on moved the model in its first rounds, and may stand still now.
    """
    for number in range(t, t + _ROUNDS_TO_MOVE):
        result = next_model(strategy, number, model, reply)
        if result is None:
            return "it gives no model"
        is_lost = (np.isfinite(model[name]) & ~np.isfinite(result[name]) for name in model)
        if any(map(np.any, is_lost)):
            return "the next model has entries that are not finite"
        stays = all(np.array_equal(model[name], result[name], equal_nan=True) for name in model)
        if not stays or t > 0:
            return ""
    return "the model stays as it is"


def refusal_of(strategy: Strategy, reason: str) -> str:
    """Returns the sentence that refuses a strategy."""
    return (
        f"strategy={type(strategy).__name__} cannot train this model with one reply a round, the "
        f"noisy mean of the clients' ({reason}): wrap one that moves a model by an average, such "
        "as FedAvg, FedAvgM, FedAdam, FedAdagrad, FedYogi or FedProx"
    )


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
    return ", ".join(f"{shown_path(path)} ({kind})" for path, kind in attributes.items())


@contextlib.contextmanager
def _unnoticed() -> Iterator[None]:
    """Keeps the run's log free of a trial, and the global random generators as they are."""
    level = log.level
    numpy_state = np.random.get_state()  # noqa: NPY002 (whoever uses it)
    python_state = random.getstate()
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
        np.random.set_state(numpy_state)  # noqa: NPY002 (whoever uses it)
        random.setstate(python_state)
