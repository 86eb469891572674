"""Intervals over seeds, orders that they show, and differences between mechanisms."""

import dataclasses
import math

import numpy as np
import pytest

from fedmf.reports import differences, groups, seeds, tables
from fedmf.sweeps.differences import differences_text, mechanism_differences
from fedmf.sweeps.results import best_settings


def with_accuracy(run, accuracy):
    """Returns a run with this accuracy on both splits."""
    splits = {name: {"accuracy": accuracy, "loss": 1.0} for name in ("validation", "test")}
    return dataclasses.replace(run, result=run.result | splits)


def mechanism_runs(make_run, accuracy_by_family, rates=(0.5, 1.0), num_seeds=3, **config_values):
    """Returns runs of each family and rate, whose accuracies vary by seed for all alike. The second
    rate costs 0.1.
    """
    runs = []
    for family, accuracy in accuracy_by_family.items():
        first_run = make_run(family, **config_values)
        for position, rate in enumerate(rates):
            for seed in range(num_seeds):
                config = dataclasses.replace(first_run.config, seed=seed, server_learning_rate=rate)
                run = dataclasses.replace(first_run, config=config)
                value = accuracy - 0.1 * position + 0.05 * seed + 0.001 * (seed == position)
                runs.append(with_accuracy(run, value))
    return runs


def test_an_order_is_stated_only_between_tiers_that_all_differ():
    # The second setting overlaps with the first and the third, which differ: they are one tier.
    rng = np.random.default_rng(5)
    noise = rng.normal(0.0, 0.001, (5, 4))
    noise[1] = [-0.2, 0.2, -0.2, 0.2]
    means = np.array([[0.1], [0.3], [0.5], [0.9], [0.0]])
    settings = [dict(enumerate(values)) for values in means + noise]
    settings[4] = {0: 0.7}
    assert seeds.tiers(settings) == [0, 0, 0, 1, None]
    assert seeds.tiers([settings[0], settings[2]]) == [0, 1]
    assert seeds.tiers([settings[2], settings[0]]) == [1, 0]
    # Differences are paired: what varies with the seed in both settings hides no order.
    swing = {seed: 0.3 * seed for seed in range(4)}
    shifted = {seed: value + 0.01 + 1e-4 * (seed % 2) for seed, value in swing.items()}
    assert seeds.tiers([shifted, swing]) == [1, 0]
    assert seeds.tiers([shifted, {seed + 9: value for seed, value in swing.items()}]) == [0, 0]
    assert seeds.tiers([{0: 0.5, 1: math.nan}, {0: 0.1, 1: 0.2}]) == [None, 0]


def test_runs_of_the_same_seed_count_once_and_unfinished_runs_do_not(make_run):
    first = with_accuracy(make_run("banded", seed=0), 0.25)
    again = with_accuracy(make_run("banded", seed=0), 0.75)
    unfinished = make_run("banded", seed=1, stop=12)
    (group,) = groups.group_runs([first, again, unfinished])
    values = groups.final_by_seed(group.runs, "validation")
    assert values == {0: 0.5}
    assert groups.final_mean(group.runs, "validation") == 0.5
    assert seeds.interval_in_words("accuracy", values) == "one seed: not ranked"
    assert groups.final_by_seed([unfinished], "validation") == {}
    assert (
        groups.final_mean([unfinished], "validation")
        == unfinished.metrics[-1]["validation"]["accuracy"]
    )
    # The band of a plot has a row for each seed, too.
    _, curves = groups.validation_curves(group)
    assert len(curves) == 2


def test_cells_have_the_interval_of_finished_seeds_and_sort_by_tiers(make_run):
    runs = [
        *mechanism_runs(make_run, {"banded": 0.4, "tree": 0.2}, rates=(1.0,)),
        make_run("none"),
    ]
    cells = tables._metric_cells(groups.group_runs(runs), "test")
    assert [cell.sort for cell in cells] == [1, 0, math.inf]
    assert cells[0].details[0] == "32.74 to 57.33%"
    assert cells[2].details == ["one seed: not ranked"]


def test_mechanisms_at_the_same_target_are_compared_at_their_best_rates(make_run):
    runs = []
    for epsilon in (2.0, 8.0):
        runs += mechanism_runs(make_run, {"banded": 0.4, "tree": 0.2}, epsilon=epsilon)
    runs += mechanism_runs(make_run, {"none": 0.5})
    runs += mechanism_runs(make_run, {"identity": 0.3}, epsilon=8.0, clip_norm=0.5)
    run_groups = groups.group_runs(runs)
    best = differences.best_rates(run_groups)
    assert {run.config.server_learning_rate for run in best.runs} == {0.5}
    pairs = differences.compared_pairs(run_groups, best)
    named_pairs = {
        tuple((group.config.family, group.config.epsilon) for group in pair) for pair in pairs
    }
    # The identity has another clip norm, so that it is trained unlike the others.
    assert named_pairs == {
        (("banded", 2.0), ("tree", 2.0)),
        (("banded", 8.0), ("tree", 8.0)),
        *(((family, eps), ("none", None)) for family in ("banded", "tree") for eps in (2.0, 8.0)),
    }
    table = differences.differences_table(run_groups, None)
    assert table.rows[0][1].text == "+20.00 points"
    assert table.rows[0][1].details == ["+20.00 to +20.00", "3 seeds"]
    assert "of 12, 0.6 miss on average" in table.caption
    assert "that these were chosen" in table.caption


def test_a_diverged_setting_is_not_the_best_of_its_mechanism(make_run):
    runs = mechanism_runs(make_run, {"banded": 0.4}, num_seeds=1)
    runs[0].result["validation"]["loss"] = math.nan
    best = differences.best_rates(groups.group_runs(runs))
    assert [run.config.server_learning_rate for run in best.runs] == [1.0]


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_what_no_interval_shows_is_said_to_be_not_ranked(make_run, num_seeds):
    runs = mechanism_runs(make_run, {"banded": 0.2, "tree": 0.2}, num_seeds=num_seeds)
    runs[-1] = with_accuracy(runs[-1], 0.3)
    run_groups = groups.group_runs(runs)
    table = differences.differences_table(run_groups, None)
    best = best_settings(runs)
    text = differences_text("accuracy", mechanism_differences(best))
    assert [setting.to_json()["seeds"] for setting in best] == [list(range(num_seeds))] * 2
    if num_seeds == 1:
        assert (table, text) == (None, "")
        assert [setting.tied for setting in best] == [None, None]
        assert best[0].to_json()["validation_interval"] is None
    else:
        assert table.rows[0][1].details[0].endswith("contains 0: not ranked")
        assert "contains 0: not ranked" in text
        # Of the tree, the second rate differs from the first by 0.1 and by 0.05.
        assert [setting.tied for setting in best] == [0, 1]
