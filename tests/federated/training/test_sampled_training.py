"""Runs whose cohorts are drawn by a sampling scheme, from devices that are not always there."""

import dataclasses
import json

import numpy as np
import pytest

import fedmf
from fedmf.federated.training.run_setup import controller_of
from fedmf.privacy import monte_carlo
from tests.federated.run_small import config
from tests.federated.small_task import small_task
from tests.federated.training.test_loop import Crash, crash_after, train

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("clients_in_turn")]


def sampled(**changes):
    """Two parts of six clients, of whom three are expected a round."""
    values = {
        "family": "banded",
        "bands": 2,
        "sampling": "poisson",
        "population": 12,
        "cohort_size": 3,
        "min_sep": None,
    }
    values |= {
        "schema": "min_sep",
        "max_participations": None,
        "epsilon": 20.0,
        "noise_multiplier": None,
    }
    return dataclasses.replace(config(), **(values | changes))


@pytest.mark.parametrize("execution", ["fast", pytest.param("tff", marks=pytest.mark.slow)])
def test_poisson_run_keeps_to_its_parts_and_resumes_to_the_same(tmp_path, execution):
    settings = sampled(
        execution=execution, availability="independent:0.8", dropout=0.2, checkpoint_every=2
    )
    whole = train(tmp_path / "whole", settings)

    with pytest.raises(Crash):
        train(tmp_path / "parts", settings, on_round=crash_after(4))
    parts = train(tmp_path / "parts", settings, noise_seed=None, resume=True)
    assert parts.metrics == whole.metrics
    sizes = [row["clients"] for row in whole.metrics]
    assert len(set(sizes)) > 1  # Poisson cohorts vary
    for name in ("participation.csv", "selected.csv"):
        assert (whole.path / name).read_bytes() == (parts.path / name).read_bytes()
    rows = np.loadtxt(whole.path / "participation.csv", delimiter=",", skiprows=1, dtype=int)
    assert all(len(set(rows[rows[:, 1] == client, 0] % 2)) == 1 for client in np.unique(rows[:, 1]))
    assert whole.plan["sampling"]["partitions"] == 2
    assert whole.plan["epsilon"] <= 20 < whole.plan["sampling"]["unamplified_epsilon"]


@pytest.mark.slow
def test_a_min_sep_run_keeps_its_separation_and_resumes_to_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(monte_carlo, "_SEARCH_WORK", 1e6)
    monkeypatch.setattr(monte_carlo, "_PROOF_WORK", 1e7)
    settings = sampled(sampling="min-sep-poisson", checkpoint_every=2, dropout=0.2)
    whole = train(tmp_path / "whole", settings)
    with pytest.raises(Crash):
        train(tmp_path / "parts", settings, on_round=crash_after(4))
    train(tmp_path / "parts", settings, noise_seed=None, resume=True)
    for name in ("participation.csv", "selected.csv"):
        assert (whole.path / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()
    rows = np.loadtxt(whole.path / "selected.csv", delimiter=",", skiprows=1, dtype=int)
    assert (
        min(
            np.diff(np.sort(rows[rows[:, 1] == client, 0])).min(initial=2)
            for client in np.unique(rows[:, 1])
        )
        >= 2
    )
    assert whole.plan["sampling"]["min_sep"] == 2
    assert whole.plan["epsilon"] <= 20 < whole.plan["sampling"]["unamplified_epsilon"]
    assert fedmf.audit_run(whole).contradictions == ()


def test_a_round_without_clients_goes_on(tmp_path):
    # One client expected in each of six rounds: about a third of the rounds are empty, with this
    # seed at least one.
    settings = sampled(cohort_size=1)
    run = train(tmp_path / "run", settings)
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


def test_simulation_of_a_larger_cohort_draws_the_smaller_one(tmp_path):
    settings = sampled(claimed_cohort=6, cohort_size=2)
    plan = settings.plan()
    assert plan.sampling.cohort_size == 6
    assert plan.sampling.probability == 1  # the claimed cohort is the whole part
    assert controller_of(small_task(), settings, plan, 9).sampling.cohort_size == 2


def test_wrong_populations_and_plans_are_refused(tmp_path):
    with pytest.raises(ValueError, match="population=24 but the data has 12 clients"):
        train(tmp_path / "run", sampled(population=24))
    with pytest.raises(
        ValueError, match="plan has sampling=None but the config asks for CyclicPoisson"
    ):
        train(
            tmp_path / "run", sampled(), plan=dataclasses.replace(sampled().plan(), sampling=None)
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"population": None}, "sampling=poisson needs population=None to be given"),
        ({"sampling": None}, "population=12 belongs to sampling"),
        ({"sampling": "bernoulli"}, "sampling='bernoulli' is unknown"),
        ({"bands": None}, "needs bands"),
        ({"cohort_size": 13}, "cohort_size=13 exceeds"),
        ({"availability": "sometimes"}, "availability='sometimes' is unknown"),
        ({"dropout": 1.5}, "dropout=1.5 is not a probability"),
    ],
)
def test_configs_that_cannot_be_meant(changes, words):
    with pytest.raises(ValueError, match=words):
        sampled(**changes)


def test_finished_run_leaves_its_statement(tmp_path):
    run = train(tmp_path / "run", sampled())
    values = json.loads((run.path / "final_statement.json").read_text())
    text = (run.path / "final_statement.md").read_text()
    assert "Poisson" in text
    assert values
    achieved = fedmf.Run.load(run.path).result["achieved"]
    assert achieved["epsilon"] == run.plan["epsilon"] < achieved["unamplified_epsilon"]
