"""Trial of the wrapped strategy before the first round, which finds strategies that cannot be
wrapped. A synthetic reply shows whether the strategy moves the model.
"""

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
from fedmf.flower.state import AttributePath, path_text
from fedmf.flower.strategy_state import StrategyState, iterators_of

# A strategy that does not move the model within this number of rounds counts as one that never
# does.
_ROUNDS_TO_MOVE = 3


def check_strategy(strategy: Any) -> None:
    """Raises an error unless the value is a Flower strategy that needs no metrics of training.

    Raises:
      TypeError: the value is no Flower strategy.
      ValueError: the strategy needs metrics of clients.
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
    """Lets the strategy aggregate one reply in round t, and returns its next model in the order of
    `model`. None if it returns no model.

    Args:
      strategy: aggregates one reply, of weight 1.
      t: the round, from 0 on.
      model: model before the round.
      reply: the arrays of the reply.

    Raises:
      ValueError: it returns arrays of other names or shapes.
    """
    weight_record = MetricRecord({getattr(strategy, "weighted_by_key", "num-examples"): 1.0})
    record_key = getattr(strategy, "arrayrecord_key", "arrays")
    reply_content = RecordDict({record_key: as_record(reply), "metrics": weight_record})
    arrays, _ = strategy.aggregate_train(t + 1, [Message(reply_content, 0, MessageType.TRAIN)])
    if arrays is None:
        return None
    model_by_name = in_order(floats(arrays), list(model))
    if shapes_of(model_by_name) != shapes_of(model):
        raise ValueError(
            f"strategy={type(strategy).__name__} returns arrays of the names and shapes "
            f"{shapes_of(model_by_name)}, and the model's are {shapes_of(model)}: keep the model's"
        )
    return model_by_name


def step(strategy: Strategy, t: int, model: Model, mean: Sequence[np.ndarray]) -> ArrayRecord:
    """Lets the strategy make its step of round t with the noisy mean update, and returns its next
    model. The strategy gets one reply of weight 1, the model plus the released mean.
    """
    synthetic_reply = {
        name: (array + change).astype(array.dtype)
        for (name, array), change in zip(model.items(), mean, strict=True)
    }
    model_by_name = next_model(strategy, t, model, synthetic_reply)
    if model_by_name is None:
        log.warning("fedmf: the strategy returns no model after round %d: it stays", t + 1)
        model_by_name = dict(model)
    return as_record(model_by_name)


def try_strategy(strategy: Strategy, t: int, model: Model) -> dict[AttributePath, str]:
    """Checks that the strategy moves the model when it gets a reply, and restores the strategy's
    state.

    Objects of libraries, whose state cannot be read, are replaced by copies during the trial; where
    one cannot be copied there is no trial.

    Args:
      strategy: has made the messages of round t.
      t: the round, from 0 on.
      model: model before the round.

    Returns:
      The type of each object that changes and that no file can hold, by its path.

    Raises:
      ValueError: the model does not move in round 0, or the strategy fails.
    """
    strategy_state = StrategyState(strategy)
    iterator_types = iterators_of(strategy_state)
    lost_types: dict[AttributePath, str] = {}
    # The reply must differ from the model after rounding to every float type, and must not
    # overflow.
    trial_reply = {name: (x + np.abs(x) / 4 + 1).astype(x.dtype) for name, x in model.items()}
    with strategy_state.restored() as watch:
        if watch is None or iterator_types:
            log.info(
                "fedmf: strategy=%s is not tried before the first round, because strategy.%s "
                "cannot be copied",
                type(strategy).__name__,
                attribute_list(iterator_types or strategy_state.opaque),
            )
            return iterator_types
        try:
            with _quiet():
                refusal_reason = _fault_of(strategy, t, model, trial_reply)
            lost_types = strategy_state.changes().lost | watch.changed()
        except Exception as error:  # Any error is caught, because the strategy is code of the user.
            refusal_reason = text_of(error)
    if refusal_reason:
        raise ValueError(refusal_of(strategy, refusal_reason))
    return lost_types


def _fault_of(strategy: Strategy, t: int, model: Model, reply: Model) -> str:
    """Tries the strategy for some rounds, and returns a phrase on what is wrong with its next
    model, which is empty if nothing is.

    A schedule may begin with a learning rate of 0, so that a strategy has some rounds to move the
    model. In a resumed run, which has moved the model before, it need not move.
    """
    for number in range(t, t + _ROUNDS_TO_MOVE):
        model_by_name = next_model(strategy, number, model, reply)
        if model_by_name is None:
            return "it returns no model"
        becomes_not_finite = (
            np.isfinite(model[name]) & ~np.isfinite(model_by_name[name]) for name in model
        )
        if any(map(np.any, becomes_not_finite)):
            return "the next model has entries that are not finite"
        is_unchanged = all(
            np.array_equal(model[name], model_by_name[name], equal_nan=True) for name in model
        )
        if not is_unchanged or t > 0:
            return ""
    return "the model stays as it is"


def refusal_of(strategy: Strategy, reason: str) -> str:
    """Returns the error message for a strategy that cannot be wrapped."""
    return (
        f"strategy={type(strategy).__name__} cannot train this model with one reply a round, the "
        f"noisy mean of the clients' ({reason}): wrap one that moves a model by an average, such "
        "as FedAvg, FedAvgM, FedAdam, FedAdagrad, FedYogi or FedProx"
    )


def check_is_kept(lost: Mapping[AttributePath, str], folder: pathlib.Path) -> None:
    """Raises a ValueError if rounds change values of the strategy that the folder does not hold."""
    if lost:
        raise ValueError(
            f"strategy.{attribute_list(lost)} changes from round to round, and "
            f"folder={str(folder)!r} does not keep it for a run that is started again: let the "
            "strategy keep numbers, texts, arrays, or lists and dicts of them, or give folder=None"
        )


def attribute_list(attributes: Mapping[AttributePath, str]) -> str:
    """Returns the names of attributes with their types, for a message."""
    return ", ".join(f"{path_text(path)} ({kind})" for path, kind in attributes.items())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Mutes the log inside the block, and restores the global random generators at its end."""
    log_level = log.level
    numpy_state = np.random.get_state()  # noqa: NPY002 (programs may use it)
    python_state = random.getstate()
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(log_level)
        np.random.set_state(numpy_state)  # noqa: NPY002 (programs may use it)
        random.setstate(python_state)
