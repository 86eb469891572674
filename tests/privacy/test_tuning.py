"""The noise of each trial for a model that is chosen among several."""

import pytest

import fedmf
from fedmf.privacy import tuning


def test_each_way_reaches_the_epsilon_and_private_selection_takes_less_noise():
    summary = tuning.tuning_summary(10, [2.0, 8.0], 1e-6)
    assert len(summary["rows"]) == 2 * len(tuning.WAYS)
    for row in summary["rows"]:
        config = fedmf.PlanConfig(
            rounds=4, min_sep=4, family="identity", noise_multiplier=row["noise_multiplier"]
        )
        plan = config.plan()
        shape = {tuning.GEOMETRIC: 1.0, tuning.LOGARITHMIC: 0.0}.get(row["way"])
        if row["way"] == tuning.SHARED:
            assert row["noise_ratio"] == pytest.approx(10**0.5)
            continue
        epsilon = plan.epsilon
        if shape is not None:
            assert 1.2 < row["noise_ratio"] < 1.5
            epsilon = fedmf.private_selection(plan, mean_trials=10, shape=shape).epsilon(1e-6)
        assert 0.999 * row["epsilon"] <= epsilon <= row["epsilon"]
    numbers = {row["trials"] for row in summary["curves"] if row["way"] == tuning.SHARED}
    assert numbers == {1, 2, 5, 10, 20, 50}
