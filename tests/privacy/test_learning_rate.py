"""The rule for the learning rate, against banded Tables 6 and 7."""

import math

import pytest

import fedmf
from fedmf.experiments.papers import noise_tables, printed
from fedmf.privacy import learning_rate
from tests.cli.program import printed_by
from tests.mechanisms.schemas import fitted, single
from tests.privacy.plans import plan as plan_of


@pytest.fixture(scope="module")
def plan():
    return plan_of(single(8), fitted(single(8), "tree"), noise_multiplier=3.0, clip_norm=0.25)


def test_effective_rmse_is_the_noise_of_the_mean_in_units_of_the_clip_norm(plan):
    workload = fedmf.prefix_sum(8)
    errors = workload.matrix @ plan.mechanism.noising()
    by_hand = math.sqrt((errors**2).sum() / 8) * plan.stddev / plan.clip_norm / 50
    error = learning_rate.effective_rmse(plan, workload, cohort_size=50)
    assert error == pytest.approx(by_hand, rel=1e-12)
    simulating_plan = plan.simulating(simulated=5, claimed=50)
    assert learning_rate.effective_rmse(simulating_plan, workload) == pytest.approx(
        by_hand, rel=1e-12
    )


def test_the_rule_is_a_power_on_a_grid():
    rate = learning_rate.predicted_learning_rate
    assert rate(1.0, grid=None) == pytest.approx(math.exp(-4.64), rel=1e-12)
    assert rate(0.02, grid=None) / rate(0.04, grid=None) == pytest.approx(2**0.95, rel=1e-12)
    halved = rate(0.02, clip_norm=0.5, grid=None)
    assert halved == pytest.approx(2 * rate(0.02, grid=None), rel=1e-12)
    for error in (1e-4, 7.0):
        assert 1.7**-0.5 <= rate(error) / rate(error, grid=None) <= 1.7**0.5
        step = math.log(rate(error)) / math.log(1.7)
        assert step == pytest.approx(round(step), abs=1e-9)


def test_the_printed_rates_are_the_grid_and_the_tables_are_consistent():
    assert [printed.RATES[i] for i in (0, 9, -1)] == ["0.0084", "1.0000", "8.3521"]
    for row in (*printed.BANDED_TABLE_6, *printed.BANDED_TABLE_7):
        assert float(row.accuracies[row.optimum]) == max(map(float, row.accuracies.values()))
    # Tables 4 and 5 print the optima of 6 and 7 once more.
    for noise, tuned_rate in (
        (printed.BANDED_TABLE_4, printed.BANDED_TABLE_6),
        (printed.BANDED_TABLE_5, printed.BANDED_TABLE_7),
    ):
        optima = {(row.mechanism, row.epsilon): row.optimum for row in tuned_rate}
        for row in noise:
            assert row.learning_rate == optima[row.mechanism, row.epsilon]


def test_the_command_prints_the_rate_and_its_neighbours(tmp_path, plan):
    plan.mechanism.save(tmp_path / "tree.npz")
    noise = "--noise-multiplier 3 --clip-norm 0.25 --cohort-size 50"
    command = f"plan learning-rate {tmp_path}/tree.npz --rounds 8 --schema single {noise}"
    printed_values = printed_by(command)
    error = learning_rate.effective_rmse(plan, fedmf.prefix_sum(8), cohort_size=50)
    rate = learning_rate.predicted_learning_rate(error, clip_norm=0.25)
    assert printed_values["effective_rmse"] == pytest.approx(error, rel=1e-12)
    assert printed_values["learning_rate"] == pytest.approx(rate, rel=1e-12)
    assert printed_values["also_try"] == pytest.approx([rate / 1.7, rate * 1.7])
    assert printed_values["extrapolates"] == [
        "8 rounds in place of 2052",
        "clip_norm 0.25 in place of 1",
    ]
    # With a workload that contains the schedule.
    printed_values = printed_by(
        f"{command} --workload momentum_sgd --learning-rate-schedule 6:0.15"
    )
    falling = fedmf.momentum_sgd(8, 0.95, [1.0] * 6 + [0.15] * 2)
    error = learning_rate.effective_rmse(plan, falling, cohort_size=50)
    assert printed_values["effective_rmse"] == pytest.approx(error, rel=1e-12)


def test_the_errors_of_the_runs_behind_the_rule_need_no_extrapolation():
    """L_e of App. I, Table 6: from Band MF at epsilon 16, whose bands are 342 and rmse 8.56, to
    DP-SGD at epsilon 1, whose N is C = I.
    """
    largest_error = 4.22468 * math.sqrt(6) * math.sqrt(2053 / 2) / 1000
    smallest_error = 0.36861 * 8.56 / 1000
    for error in (smallest_error, largest_error):
        assert learning_rate.extrapolations(error, rounds=2052) == []
    for error in (0.95 * smallest_error, 1.01 * largest_error):
        (phrase,) = learning_rate.extrapolations(error, rounds=2052)
        assert phrase.startswith("effective_rmse")


def predictions(cells):
    """Returns the numbers of rows with the table's optimum, of those one step beside it, and of
    all.
    """
    cells = list(cells)
    return (
        sum(cell.as_printed for cell in cells),
        sum(bool(cell.nearly) and not cell.as_printed for cell in cells),
        len(cells),
    )


@pytest.mark.slow
def test_the_rule_finds_the_tables_optima_with_amplification():
    rows = [
        row for row in printed.BANDED_TABLE_7 if row.mechanism == "DP-SGD" or row.bands in (9, 18)
    ]
    assert predictions(noise_tables.rates(rows, True, "full")) == (7, 0, 7)


@pytest.mark.slow
def test_a_rule_with_decimal_logarithms_misses_every_optimum(monkeypatch):
    # The negative control: read with decimal logarithms the rule misses every row.
    monkeypatch.setattr(
        noise_tables,
        "predicted_learning_rate",
        lambda error: learning_rate.on_grid(10 ** (-0.95 * math.log10(error) - 4.64)),
    )
    assert predictions(noise_tables.banded_table_6("small")) == (0, 0, 10)
