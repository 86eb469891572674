"""Successive halving: which settings go on."""

import math

import pytest

from fedmf.sweeps import results
from fedmf.sweeps.grid import sweep_configs

FIXED = {"rounds": 8, "min_sep": 2, "cohort_size": 2, "evaluate_every": 2}


def test_of_everything_compared_the_better_half_goes_on(monkeypatch):
    configs = sweep_configs(
        FIXED | {"epsilon": 8.0},
        {
            "family": ["tree", "identity"],
            "server_learning_rate": [0.1, 0.2, 0.5, 1.0, 2.0],
            "seed": [0, 1],
        },
    )

    def score(out, name, rung):
        assert rung == 4
        config = configs[name]
        if config.server_learning_rate == 2.0:
            return -math.inf  # diverged
        # Trees like large rates, identity small ones; a seed alone decides nothing.
        rate = config.server_learning_rate * (1 if config.family == "tree" else -1)
        return rate + 0.05 * config.seed

    monkeypatch.setattr(results, "_score", score)
    rates = {"tree": set(), "identity": set()}
    for name in results.kept(None, configs, 4):
        rates[configs[name].family].add((configs[name].server_learning_rate, configs[name].seed))
    assert rates["tree"] == {(rate, seed) for rate in (0.2, 0.5, 1.0) for seed in (0, 1)}
    assert rates["identity"] == {(rate, seed) for rate in (0.1, 0.2, 0.5) for seed in (0, 1)}


def test_a_setting_without_a_score_is_the_worst(tmp_path):
    configs = sweep_configs(FIXED | {"family": "none"}, {"server_learning_rate": [0.1, 0.2]})
    assert results.kept(tmp_path, configs, 2) == [
        next(iter(configs))
    ]  # neither has begun: the first


@pytest.mark.parametrize(
    ("rounds", "every", "expected"), [(8, 2, [2, 4]), (8, 8, []), (20, 10, [10]), (1, 1, [])]
)
def test_rungs_are_validated_rounds_before_the_last(rounds, every, expected):
    [config] = sweep_configs(
        FIXED | {"family": "none", "rounds": rounds, "evaluate_every": every, "min_sep": 1},
        {"seed": [0]},
    ).values()
    assert results.rungs(config) == expected
