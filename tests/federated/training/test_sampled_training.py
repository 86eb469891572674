"""Runs whose cohorts are drawn by a sampling scheme, from devices that are not always there."""

import dataclasses

import numpy as np
import pytest

from fedmf.federated.training.run_setup import controller_of
from tests.federated.small_runs import assert_same_run, broken_off, config, small_task, train
from tests.refusals import refusal


def sampled(**changes):
    """Two parts of six clients, of whom three are expected a round."""
    values = {
        "bands": 2, "sampling": "poisson", "population": 12, "cohort_size": 3, "min_sep": None,
        "epsilon": 20.0, "noise_multiplier": None,
    }  # fmt: skip
    return config(**(values | changes))


@pytest.mark.slow
def test_poisson_run_keeps_to_its_parts_and_resumes_to_the_same(tmp_path):
    settings = sampled(availability="independent:0.8", dropout=0.2, checkpoint_every=2)
    whole = train(tmp_path / "whole", settings)
    parts = train(broken_off(tmp_path / "parts", 4, settings), settings, resume=True)
    assert_same_run(whole, parts)
    selected = (whole.path / "selected.csv").read_bytes()
    assert selected == (parts.path / "selected.csv").read_bytes()
    rows = np.loadtxt(whole.path / "selected.csv", delimiter=",", skiprows=1, dtype=int)
    for client in np.unique(rows[:, 1]):
        assert len(set(rows[rows[:, 1] == client, 0] % 2)) == 1
    assert len({row["clients"] for row in whole.metrics}) > 1  # Poisson cohorts vary
    assert "Poisson" in (whole.path / "final_statement.md").read_text()
    achieved = whole.result["achieved"]
    assert achieved["epsilon"] == whole.plan["epsilon"] <= 20 < achieved["unamplified_epsilon"]


def test_a_round_without_clients_goes_on(tmp_path):
    # One client expected in each of six rounds: about a third of the rounds are empty, with this
    # seed at least one.
    run = train(tmp_path / "run", sampled(cohort_size=1))
    assert min(row["clients"] for row in run.metrics) == 0
    assert all(np.isfinite(row["train_loss"]) for row in run.metrics)


def test_cohorts_follow_the_secret_seed_and_not_the_published_one():
    settings = sampled()
    plan = settings.plan()

    def cohorts(settings, noise_seed):
        controller = controller_of(small_task(), settings, plan, noise_seed)
        return [controller.cohort(t).tolist() for t in range(settings.rounds)]

    assert cohorts(settings, 9) == cohorts(dataclasses.replace(settings, seed=77), 9)
    assert cohorts(settings, 9) != cohorts(settings, 10)


def test_simulation_of_a_larger_cohort_draws_the_smaller_one():
    settings = sampled(claimed_cohort=6, cohort_size=2)
    plan = settings.plan()
    assert plan.sampling.cohort_size == 6
    assert plan.sampling.probability == 1  # the claimed cohort is the whole part
    assert controller_of(small_task(), settings, plan, 9).sampling.cohort_size == 2


def test_a_wrong_population_is_refused(tmp_path):
    with refusal("population=24 .* 12 clients"):
        train(tmp_path / "run", sampled(population=24))
    assert not (tmp_path / "run").exists()
