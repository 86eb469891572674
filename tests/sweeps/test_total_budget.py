"""A budget for all runs of a sweep: shares, records and refusals."""

import math

import pytest

import fedmf
from fedmf.privacy.gaussian import gaussian_epsilon, gaussian_noise_multiplier
from fedmf.privacy.source_tail import check_tail_of_runs
from fedmf.sweeps import results
from fedmf.sweeps import run as driver
from fedmf.sweeps.grid import sweep_configs
from fedmf.sweeps.total_budget import TotalBudget, divided
from tests.cli.program import fedmf as program
from tests.refusals import refusal
from tests.reports.conftest import make_run

FIXED = {"rounds": 4, "min_sep": 2, "cohort_size": 2, "family": "identity"}


@pytest.mark.parametrize("num_runs", [1, 6, 24])
def test_runs_without_sampling_have_the_total_epsilon_together(num_runs):
    budget = TotalBudget(epsilon=8.0, delta=1e-6, num_runs=num_runs)
    share = budget.share(is_sampled=False)
    plan = fedmf.PlanConfig(rounds=4, min_sep=2, family="identity", **share).plan()
    together = (num_runs * plan.noise_multiplier**-2) ** -0.5
    assert 7.999 <= gaussian_epsilon(together, 1e-6) <= 8.0


def test_noise_whose_draws_would_reveal_a_client_in_one_of_the_runs_is_refused():
    """Each run alone reveals a client with a probability below a tenth of delta."""
    budget = TotalBudget(epsilon=2500.0, delta=1e-6, num_runs=100)
    noise_multiplier = 10 * gaussian_noise_multiplier(2500.0, 1e-6)
    check_tail_of_runs(noise_multiplier, 1, 1e-6)
    with refusal("too small for 100 runs"):
        budget.share(is_sampled=False)


def test_runs_with_sampling_have_shares_that_add_up():
    share = TotalBudget(epsilon=8.0, delta=1e-6, num_runs=4).share(is_sampled=True)
    assert (4 * share["epsilon"], 4 * share["delta"]) == (8.0, 1e-6)


def test_a_grid_counts_the_runs_that_add_noise():
    varied = {"family": ["none", "identity", "tree"], "seed": [0, 1]}
    fixed = {name: value for name, value in FIXED.items() if name != "family"}
    configs = sweep_configs(fixed | {"epsilon": 8.0}, varied).values()
    budget, divided_fixed = divided(fixed, 8.0, configs, None)
    assert budget.num_runs == 4
    single_multiplier = fedmf.PlanConfig(**FIXED, epsilon=8.0).plan().noise_multiplier
    assert math.isclose(divided_fixed["noise_multiplier"], 2 * single_multiplier)
    budget, _ = divided(fixed, 8.0, configs, 20)
    assert budget.num_runs == 20
    sampled = {"sampling": "poisson", "population": 100, "min_sep": None}
    configs = sweep_configs(FIXED | sampled | {"epsilon": 8.0}, {"seed": [0, 1]}).values()
    _, divided_fixed = divided(FIXED | sampled, 8.0, configs, None)
    assert (divided_fixed["epsilon"], divided_fixed["delta"]) == (4.0, 5e-7)


def runs_of(budget, *names):
    config = fedmf.TrainConfig(**FIXED, **budget.share(is_sampled=False))
    return dict.fromkeys(names, config)


def test_a_budget_is_not_divided_again(tmp_path):
    budget = TotalBudget(epsilon=8.0, delta=1e-6, num_runs=2)
    without_noise = fedmf.TrainConfig(rounds=4, min_sep=2, cohort_size=2, family="none")
    budget.reserve(tmp_path, runs_of(budget, "a", "b") | {"none": without_noise})
    budget.reserve(tmp_path, runs_of(budget, "a", "b"))
    assert TotalBudget.of(tmp_path) == budget
    with refusal("a budget cannot be divided again"):
        TotalBudget(epsilon=8.0, delta=1e-6, num_runs=3).reserve(tmp_path, {})
    # A run counts before it begins, and after its folder was deleted.
    with refusal("would have 3 runs, and total_epsilon=8.0 was divided among 2"):
        budget.reserve(tmp_path, runs_of(budget, "b", "c"))
    with refusal("run b does not add the noise of one of 2 runs with total_epsilon=8.0"):
        budget.reserve(tmp_path, {"b": fedmf.TrainConfig(**FIXED, epsilon=8.0)})
    # So does a run that another command has trained in the folder, also one of Python.
    [config] = runs_of(budget, "c").values()
    run_folder = tmp_path / "runs" / "c"
    run_folder.mkdir(parents=True)
    (run_folder / "config.json").write_text(config.to_json())
    with refusal("would have 3 runs, and total_epsilon=8.0 was divided among 2"):
        driver.train_all(tmp_path, runs_of(budget, "a"), driver.SweepOptions(noise_seed="os"))
    (tmp_path / "total_budget.json").unlink()
    with refusal("holds runs that no `total_epsilon` covers"):
        budget.reserve(tmp_path, runs_of(budget, "a", "b"))


def test_every_row_of_the_tables_shows_what_all_runs_cost():
    runs = [make_run("banded", server_learning_rate=rate) for rate in (0.1, 0.5)]
    rows = results.results_csv(runs, total_epsilon=8.0).splitlines()
    assert rows[0].endswith(",total_epsilon")
    assert all(row.endswith(",8.0") for row in rows[1:])
    table = results.best_table(runs, total_epsilon=8.0)
    assert "epsilon of all runs" in table


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--epsilon 8", "--total-epsilon beside --epsilon 8"),
        ("--private-selection", "leave one of them out"),
        ("--vary delta=1e-6,1e-5", "which has one delta"),
    ],
)
def test_options_that_contradict_a_budget_are_refused(options, words, tmp_path):
    line = (
        f"sweep --out {tmp_path / 'out'} --total-epsilon 8 --vary server-learning-rate=0.1,0.3 "
        f"--rounds 4 --min-sep 2 --cohort-size 2 --family identity --noise-seed os {options}"
    )
    assert words in program(line, status=2).stderr


def test_the_budget_is_recorded_before_the_first_run(tmp_path):
    out_path = tmp_path / "out"
    line = (
        f"sweep --out {out_path} --vary server-learning-rate=0.1,0.3 --rounds 4 --min-sep 2 "
        "--cohort-size 2 --family identity --task regression --noise-seed os --quiet"
    )
    program(f"{line} --total-epsilon 8 --dry-run")
    assert not out_path.exists()
    TotalBudget(epsilon=8.0, delta=1e-6, num_runs=2).reserve(out_path, {})
    assert "to which other runs would add" in program(f"{line} --epsilon 8", status=2).stderr
