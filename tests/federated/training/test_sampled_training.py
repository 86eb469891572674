"""Runs whose cohorts are sampled, from devices that are not always available."""

import dataclasses

import numpy as np
import pytest

import fedmf
from fedmf.training.run_setup import run_controller
from tests.federated.small_runs import broken_off, config, small_task, train
from tests.refusals import refusal


def sampled(**changes):
    """Returns a config of two parts of six clients, with three expected clients a round."""
    values = {
        "bands": 2, "sampling": "poisson", "population": 12, "cohort_size": 3, "min_sep": None,
        "epsilon": 20.0, "noise_multiplier": None,
    }  # fmt: skip
    return config(**(values | changes))


def whole_and_resumed(folder, settings):
    """Trains two runs with the same clients, and returns one and the rounds of each selected
    client.
    """
    whole_run = train(folder / "whole", settings)
    resumed_run = train(broken_off(folder / "parts", 4, settings), settings, resume=True)
    assert resumed_run.metrics == whole_run.metrics
    for name in ("participation.csv", "selected.csv"):
        assert (whole_run.path / name).read_bytes() == (resumed_run.path / name).read_bytes()
    assert whole_run.plan["epsilon"] <= 20 < whole_run.plan["sampling"]["unamplified_epsilon"]
    rows = np.loadtxt(whole_run.path / "selected.csv", delimiter=",", skiprows=1, dtype=int)
    return whole_run, [np.sort(rows[rows[:, 1] == client, 0]) for client in np.unique(rows[:, 1])]


@pytest.mark.slow
def test_a_poisson_run_respects_its_partition_and_resumes_identically(tmp_path):
    settings = sampled(availability="independent:0.8", dropout=0.2)
    whole_run, rounds = whole_and_resumed(tmp_path, settings)
    assert len({row["clients"] for row in whole_run.metrics}) > 1  # Poisson cohorts vary
    assert all(len(set(cohort % 2)) == 1 for cohort in rounds)
    assert whole_run.plan["sampling"]["partitions"] == 2
    statement = (whole_run.path / "final_statement.md").read_text()
    assert "Poisson" in statement
    achieved_values = whole_run.result["achieved"]
    assert (
        achieved_values["epsilon"]
        == whole_run.plan["epsilon"]
        < achieved_values["unamplified_epsilon"]
    )


@pytest.mark.slow
def test_a_min_sep_run_respects_its_separation_and_resumes_identically(tmp_path, quick):
    settings = sampled(sampling="min-sep-poisson", dropout=0.2)
    whole_run, rounds = whole_and_resumed(tmp_path, settings)
    assert min(np.diff(client_rounds).min(initial=2) for client_rounds in rounds) == 2
    assert whole_run.plan["sampling"]["min_sep"] == 2
    assert fedmf.audit_run(whole_run).contradictions == ()


def test_a_run_continues_after_a_round_without_clients(tmp_path):
    # One client expected in each of six rounds: about a third of the rounds are empty, with this
    # seed at least one.
    run = train(tmp_path / "run", sampled(cohort_size=1))
    assert min(row["clients"] for row in run.metrics) == 0
    for row in run.metrics:
        assert np.isfinite(row["train_loss"]) == (row["examples"] > 0)


def test_cohorts_follow_the_secret_seed_and_not_the_published_one():
    settings = sampled()
    plan = settings.plan()

    def cohorts(settings, noise_seed):
        controller = run_controller(len(small_task().client_ids), settings, plan, noise_seed)
        return [controller.cohort(t).tolist() for t in range(settings.rounds)]

    assert cohorts(settings, 9) == cohorts(dataclasses.replace(settings, seed=77), 9)
    assert cohorts(settings, 9) != cohorts(settings, 10)


def test_simulating_a_larger_cohort_samples_the_smaller_one(tmp_path):
    settings = sampled(claimed_cohort=6, cohort_size=2)
    plan = settings.plan()
    assert plan.sampling.cohort_size == 6
    assert plan.sampling.probability == 1  # The claimed cohort is the whole partition.
    assert run_controller(len(small_task().client_ids), settings, plan, 9).sampling.cohort_size == 2


def test_wrong_populations_and_plans_are_refused(tmp_path):
    with refusal("population=24 .* 12 clients"):
        train(tmp_path / "run", sampled(population=24))
    plan = dataclasses.replace(sampled().plan(), sampling=None)
    with refusal("plan has .*sampling=None"):
        train(tmp_path / "run", sampled(), plan=plan)
    assert not (tmp_path / "run").exists()
    for changes, match in (
        ({"bands": None}, "needs bands"),
        ({"cohort_size": 13}, "cohort_size=13 exceeds"),
    ):
        with refusal(match):
            sampled(**changes)
