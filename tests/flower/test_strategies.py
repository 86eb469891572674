"""Strategies that can train with one reply a round; others are refused before round one."""

import random

import flwr.serverapp.strategy
import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg, FedAvgM, FedMedian, QFedAvg

from tests.flower.made_up import COHORT, Grid, Odd, expected, flat, initial, plan, wrapped
from tests.refusals import refusal

NODES = list(range(101, 116))


def of_flower():
    """Returns a strategy of each class that Flower exports, with few options."""
    for name in set(flwr.serverapp.strategy.__all__) - {"Result", "Strategy"}:
        kind = getattr(flwr.serverapp.strategy, name)
        if name.startswith("DifferentialPrivacy"):
            options = {"noise_multiplier": 0.1, "num_sampled_clients": COHORT}
            options |= {"clipping_norm": 1.0} if "Fixed" in name else {}
            yield (
                name,
                lambda kind=kind, options=options: kind(FedAvg(fraction_evaluate=0.0), **options),
            )
        else:
            options = {"client_learning_rate": 0.1} if kind is QFedAvg else {}
            yield name, lambda kind=kind, options=options: kind(**options)


OF_FLOWER = dict(sorted(of_flower()))
THAT_CANNOT = {
    "Bulyan",
    "DifferentialPrivacyClientSideAdaptiveClipping",
    "FedXgbBagging",
    "QFedAvg",
}


def test_every_strategy_of_flower_has_a_case():
    assert {"FedAvg", "FedAdam", "Krum", "FedXgbCyclic", *THAT_CANNOT} <= set(OF_FLOWER)


@pytest.mark.parametrize("name", OF_FLOWER)
def test_strategy_moves_the_model_or_is_refused_before_round_one(name):
    grid = Grid(NODES)
    strategy = wrapped(strategy=OF_FLOWER[name]())
    if name in THAT_CANNOT:
        with refusal(f"strategy={name} cannot train this model with one reply a round"):
            strategy.start(grid, initial(), 3)
        assert (strategy.server.round, grid.asked) == (0, [])
    else:
        strategy.configure_evaluate = lambda *args: []
        result = strategy.start(grid, initial(), 3)
        models = [
            np.concatenate([array.ravel() for array in sent_arrays.values()])
            for sent_arrays in grid.sent
        ]
        models.append(flat(result.arrays))
        assert all(np.any(models[t] != models[t + 1]) for t in range(3))


ODD = {
    "stays": (lambda model: {n: np.ones_like(a) for n, a in model.items()}, "model stays as it is"),
    "NaN": (lambda model: {n: a * np.nan for n, a in model.items()}, "entries that are not finite"),
    "less": (lambda model: {"bias": model["bias"]}, "returns arrays of the names and shapes"),
    "flat": (lambda model: {n: a.ravel() for n, a in model.items()}, "returns arrays of the names"),
    "integers": (lambda model: {n: a.astype(int) for n, a in model.items()}, "holds int64 entries"),
    "fails": (lambda model: 1 / 0, "division by zero"),
}


@pytest.mark.parametrize("name", ODD)
def test_custom_strategy_that_cannot_train_is_refused(name):
    change, words = ODD[name]
    strategy = wrapped(strategy=Odd(change))
    with refusal(f"strategy=Odd cannot train this model with one reply .*{words}"):
        strategy.start(Grid(NODES), initial())
    assert strategy.server.round == 0


class WarmingUp(FedAvgM):
    """A strategy whose learning rate begins with 0."""

    def aggregate_train(self, server_round, replies):
        self.server_learning_rate = (server_round - 1) / 2
        return super().aggregate_train(server_round, replies)


def test_learning_rate_may_begin_with_0_but_not_stay_0():
    grid = Grid(NODES)
    strategy = WarmingUp(fraction_evaluate=0.0, server_learning_rate=0.5, server_momentum=0.0)
    wrapped(strategy=strategy).start(grid, initial(), 3)
    np.testing.assert_array_equal(grid.sent[1]["weights"], grid.sent[0]["weights"])
    assert np.any(grid.sent[2]["weights"] != grid.sent[1]["weights"])


def test_trial_restores_the_strategy():
    """Methods of the strategy may be replaced by functions that refer to it."""

    def patched(strategy):
        aggregate = strategy.aggregate_train
        strategy.aggregate_train = lambda *args: aggregate(*args)
        return strategy

    final_models = []
    for change in (lambda strategy: strategy, patched):
        strategy = change(FedAvgM(fraction_evaluate=0.0, server_momentum=0.9))
        final_models.append(flat(wrapped(strategy=strategy).start(Grid(NODES), initial()).arrays))
    np.testing.assert_array_equal(*final_models)
    grid = Grid(NODES)
    wrapped(strategy=FedMedian(fraction_evaluate=0.0)).start(grid, initial(), 2)
    after_one = expected(plan(), grid.asked)[0]
    np.testing.assert_array_equal(grid.sent[1]["weights"], after_one["weights"])


def test_trial_restores_global_random_generators():
    def draws(model):
        factor = 1 + np.random.uniform() + random.random()  # noqa: NPY002 (what this is about)
        return {name: array * np.float32(factor) for name, array in model.items()}

    final_models = []
    for is_tried in (False, True):
        np.random.seed(3)  # noqa: NPY002
        random.seed(3)
        strategy = wrapped(strategy=Odd(draws))
        strategy._wrapped.is_tried = is_tried
        final_models.append(flat(strategy.start(Grid(NODES), initial(), 2).arrays))
    np.testing.assert_array_equal(*final_models)
