"""Results of a sweep: tables, best settings, joint epsilon and figures, of runs without
training.
"""

import csv
import dataclasses
import io
import math
import pathlib

import numpy as np
import pytest

import fedmf
from fedmf.runs.folder import RunFolder
from fedmf.sweeps.figures import best_figure, validation_figure
from fedmf.sweeps.results import (
    best_settings,
    best_table,
    results_csv,
    score_of,
    stopped_by_data,
    together,
    validation_of,
    varying,
)
from tests.reports.conftest import make_run


def with_result(run, validation, name="run", metric="accuracy"):
    splits = {"validation": {metric: validation}, "test": {metric: validation - 0.01}}
    return dataclasses.replace(run, result=run.result | splits, path=pathlib.Path(name))


def table(runs, *smoothed_over):
    return list(csv.DictReader(io.StringIO(results_csv(runs, *smoothed_over))))


@pytest.fixture(scope="module")
def runs():
    """Returns runs of two seeds for each setting; one banded setting has the accuracy of a diverged
    model.
    """
    accuracies = {
        "banded": {0.1: 0.1, 0.5: 0.3, 1.0: 0.2, 4.0: math.nan},
        "none": {0.1: 0.2, 0.5: 0.3, 1.0: 0.4},
    }
    return [
        with_result(
            make_run(family, seed=seed, server_learning_rate=rate),
            accuracy + 0.01 * seed,
            f"{family}-{rate}-{seed}",
        )
        for family, rates in accuracies.items()
        for rate, accuracy in rates.items()
        for seed in (0, 1)
    ]


def test_the_best_setting_is_that_of_the_largest_mean_over_the_seeds(runs):
    banded_best, noiseless_best = best_settings(runs)
    assert banded_best.compared == {"family": "banded", "epsilon": 8.0}
    assert banded_best.tuned == {"server_learning_rate": 0.5}
    assert banded_best.validation == pytest.approx({0: 0.3, 1: 0.31})
    assert banded_best.test == pytest.approx({0: 0.29, 1: 0.3})
    assert (banded_best.settings, banded_best.at_edge) == (4, [])
    assert noiseless_best.tuned == {"server_learning_rate": 1.0}
    assert noiseless_best.at_edge == ["server_learning_rate"]
    _, first_line, second_line, star_note, *notes = best_table(runs).splitlines()
    assert first_line.split()[:4] == ["banded", "8", "0.5", "0.3050"]
    assert "(0.2415 to 0.3685)" in first_line
    assert first_line.split()[-3:] == ["2", "4", "0"]
    assert [note.split()[0] for note in notes] == ["in", "tied:"]
    assert second_line.split()[:3] == ["none", "-", "1*"]
    assert "may lie beyond" in star_note


@pytest.fixture
def halved_runs(tmp_path):
    """Returns a finished run with the largest of four rates, and three that halving stopped."""
    folders = {}
    for rate in (0.1, 0.5, 1.0, 4.0):
        stop = None if rate == 4.0 else 8
        run = make_run("banded", server_learning_rate=rate, stop=stop)
        folders[rate] = dataclasses.replace(run, path=tmp_path / str(rate))
        folders[rate].path.mkdir()
        if rate != 4.0:
            RunFolder(folders[rate].path).mark_stopped_by_data(8)
    return list(folders.values())


def test_stopped_settings_count_as_tried(halved_runs, plotted_lines):
    finished_runs = halved_runs[3:]
    stopped_runs = stopped_by_data(halved_runs)
    assert stopped_runs == halved_runs[:3]
    (best_setting,) = best_settings(finished_runs, stopped=stopped_runs)
    assert (best_setting.settings, best_setting.at_edge) == (4, ["server_learning_rate"])
    assert best_setting.tuned == {"server_learning_rate": 4.0}
    header, row, note, *_ = best_table(finished_runs, stopped=stopped_runs).splitlines()
    assert header.startswith("server_learning_rate")
    assert row.split()[0] == "4*"
    assert row.split()[-1] == "4"
    assert "may lie beyond" in note
    assert (
        results_csv(finished_runs, stopped=stopped_runs)
        .splitlines()[0]
        .startswith("run,server_learn")
    )
    assert validation_figure(finished_runs, stopped=stopped_runs) is not None
    (label, rates, heights), (_, crosses, _) = plotted_lines
    assert (label, rates) == ("Banded (8 bands)", [0.1, 0.5, 1.0, 4.0])
    assert np.isfinite(heights).tolist() == [False] * 3 + [True]
    assert crosses == [0.1, 0.5, 1.0]
    # A run that a crash stopped says nothing about its setting.
    (halved_runs[0].path / "stopped_by_data").unlink()
    assert stopped_by_data(halved_runs) == halved_runs[1:3]


def test_the_best_of_models_that_all_diverged_has_no_star():
    runs = [
        with_result(make_run("banded", server_learning_rate=rate), math.nan)
        for rate in (0.1, 0.5, 1.0)
    ]
    (best_setting,) = best_settings(runs)
    assert (best_setting.settings, best_setting.at_edge) == (3, [])


def with_error(run, error, rate=1.0):
    """Returns the run with a task whose metric is an error."""
    plan = run.plan | {"task": run.plan["task"] | {"headline_metric": "accuracy_error"}}
    config = dataclasses.replace(run.config, server_learning_rate=rate)
    run = dataclasses.replace(run, plan=plan, config=config)
    return with_result(run, error, metric="accuracy_error")


def test_a_model_whose_loss_is_not_finite_is_never_the_best(runs):
    """Its accuracy is finite: it is the share of the first class."""
    best_run = runs[2]
    for loss in (math.nan, math.inf, -math.inf):
        validation = {"accuracy": 0.9, "loss": loss}
        diverged = dataclasses.replace(runs[4], result=runs[4].result | {"validation": validation})
        assert math.isnan(score_of(diverged))
        for order in ([best_run, diverged], [diverged, best_run]):
            (chosen,) = best_settings(order)
            assert chosen.tuned == {"server_learning_rate": 0.5}


def test_errors_are_minimised(runs):
    assert score_of(with_error(runs[0], 0.75)) == -0.75
    assert math.isnan(score_of(with_error(runs[0], math.inf)))
    errors = {0.1: 0.7, 0.5: 0.3, 1.0: 0.4, 2.0: math.inf}
    (best_setting,) = best_settings(
        [with_error(runs[0], error, rate) for rate, error in errors.items()]
    )
    assert best_setting.tuned == {"server_learning_rate": 0.5}


def test_searched_fields_are_tuned_and_have_no_edges(runs):
    searched = ["family", "server_learning_rate"]
    private_best, noiseless_best = best_settings(
        runs, 0, searched
    )  # Runs with and without a guarantee are not compared.
    assert (private_best.compared, noiseless_best.compared) == ({"epsilon": 8.0}, {"epsilon": None})
    assert private_best.tuned == {"family": "banded", "server_learning_rate": 0.5}
    assert noiseless_best.tuned == {"family": "none", "server_learning_rate": 1.0}
    assert noiseless_best.at_edge == []


def test_the_table_has_a_row_for_every_run(runs):
    rows = table(runs)
    assert [row["run"] for row in rows] == [run.path.name for run in runs]
    assert varying(runs) == ["family", "epsilon", "server_learning_rate", "seed"]
    for row, run in zip(rows, runs, strict=True):
        assert float(row["server_learning_rate"]) == run.config.server_learning_rate
        assert row["validation_accuracy"] == str(run.result["validation"]["accuracy"])
        is_private = run.config.family != "none"
        assert row["plan_epsilon"] == str(run.plan["epsilon"]) * is_private
        assert row["plan_noise_multiplier"] == str(run.plan["noise_multiplier"]) * is_private
    (untested,) = table([dataclasses.replace(runs[0], result=runs[0].result | {"test": {}})])
    assert untested["test_accuracy"] == ""


def test_the_row_of_a_simulation_names_it():
    simulated_run = make_run("banded", claimed_cohort=50)
    honest_run = make_run("banded")
    rows = table([simulated_run, honest_run])
    assert [row["simulated_for_cohort"] for row in rows] == ["50", ""]
    assert [bool(row["achieved_epsilon"]) for row in rows] == [False, True]
    table_text = " ".join(best_table([simulated_run]).split())
    assert "the models trained here do not have it" in table_text
    assert "Simulation" not in best_table([honest_run])


def test_the_joint_epsilon_is_that_of_the_composition():
    """Two runs with one noise multiplier are a run whose encoder is stacked twice: its sensitivity
    has the factor sqrt(2).
    """
    banded_run = make_run("banded")
    identity_run = make_run("identity")
    assert together([banded_run]).startswith("The private run: epsilon 8.00 at delta 1e-6.")
    encoder = np.vstack([np.eye(4), np.eye(4)])
    participation = fedmf.Participation(rounds=4, schema="single")
    assert fedmf.sensitivity(encoder, participation).value == pytest.approx(math.sqrt(2))
    sigma = banded_run.plan["noise_multiplier"]
    identity = fedmf.fit(fedmf.prefix_sum(4), participation, family="identity")
    plan_arguments = {"participation": participation, "delta": 1e-6, "clip_norm": 1.0}
    plan = fedmf.Plan(mechanism=identity, noise_multiplier=sigma / math.sqrt(2), **plan_arguments)
    assert identity_run.plan["noise_multiplier"] == sigma
    stated_epsilon = float(together([banded_run, identity_run]).split("epsilon ")[1].split()[0])
    assert plan.epsilon <= stated_epsilon < plan.epsilon + 0.01
    assert stated_epsilon > 8.5  # The joint epsilon exceeds that of one run.


def test_the_joint_epsilon_of_simulated_bounds_states_their_error_probability():
    banded_run = make_run("banded")
    config = banded_run.plan["config"] | {"sampling": "balls-in-bins"}
    simulated_run = dataclasses.replace(
        banded_run, plan=banded_run.plan | {"sampling": config, "config": config}
    )
    joint_text = together([simulated_run, banded_run, simulated_run])
    assert "(simulated: wrong with probability at most 2e-9)" in joint_text


def test_epsilons_at_different_deltas_are_added_and_runs_without_noise_are_named():
    first_run = make_run("banded")
    second_run = make_run("banded", delta=1e-5)
    joint_text = together([first_run, second_run, make_run("none")])
    assert "epsilon 16.00 at delta 1.1e-5" in joint_text
    assert "The other one promises no privacy." in joint_text
    assert together([make_run("none")]) == "None of these runs promises any privacy."
    assert "of the claimed cohorts" in together([make_run("banded", claimed_cohort=50), first_run])


def test_epsilons_of_amplified_runs_are_added():
    amplified = make_run("identity", sampling="poisson", population=60)
    joint_text = together([amplified, make_run("identity")])
    total = amplified.plan["epsilon"] + 8.0
    assert float(joint_text.split("epsilon ")[1].split()[0]) == pytest.approx(total, abs=0.01)
    assert "2e-6" in joint_text


@pytest.fixture
def plotted_lines(monkeypatch):
    """Returns a list of (label, x, y) of the lines that are plotted."""
    from matplotlib.axes import Axes

    plotted_lines = []
    plot = Axes.plot
    monkeypatch.setattr(
        Axes,
        "plot",
        lambda ax, x, y, **style: (
            plotted_lines.append((style.get("label"), x, y)) or plot(ax, x, y, **style)
        ),
    )
    return plotted_lines


def test_the_figure_shows_validations_over_the_learning_rate(runs, plotted_lines):
    assert validation_figure(runs)[:8] == b"\x89PNG\r\n\x1a\n"
    lines = {label: (x, y) for label, x, y in plotted_lines if label}
    assert list(lines) == ["Banded (8 bands)", "No noise (not private)"]
    rates, heights = lines["Banded (8 bands)"]
    assert rates[:3] == [0.1, 0.5, 1.0]
    assert heights[:3] == pytest.approx([0.105, 0.305, 0.205])
    # A bar is the interval over two seeds, whose half width is 12.7 times the standard error.
    bar = plotted_lines[2]
    assert (bar[1], bar[2]) == (
        [0.5, 0.5],
        pytest.approx((0.305 - 0.0635, 0.305 + 0.0635), abs=1e-4),
    )
    assert validation_figure(runs[:1]) is None


def test_the_figure_of_a_search_has_a_panel_for_each_searched_number(runs, plotted_lines):
    assert validation_figure(runs, 0, ["server_learning_rate", "family", "seed"]) is not None
    (_, rates, heights), (_, crosses, _), (_, seeds, _), _ = plotted_lines
    assert crosses == [4.0, 4.0]  # the models that diverged
    assert rates == [run.config.server_learning_rate for run in runs]
    assert seeds == [run.config.seed for run in runs]
    np.testing.assert_equal(heights, [validation_of(run) for run in runs])
    assert validation_figure(runs, 0, ["family"]) is None
    assert best_figure(runs, 0, ["server_learning_rate"]) is None


def with_curve(run, values):
    rows = [row for row in run.metrics if "validation" in row]
    for row, value in zip(rows, values, strict=True):
        row["validation"]["accuracy"] = value
    return with_result(run, values[-1])


def test_a_setting_may_be_chosen_by_the_mean_over_the_last_rounds():
    # Validated after rounds 4, 8, ..., 24 of 24.
    curves = {0.1: [0, 0, 0.1, 0.1, 0.1, 0.4], 0.5: [0, 0, 0.3, 0.3, 0.3, 0.3]}
    lucky_run, steady_run = both_runs = [
        with_curve(make_run("banded", server_learning_rate=rate), curve)
        for rate, curve in curves.items()
    ]
    for over, mean in ((0, 0.4), (1, 0.4), (5, 0.25), (16, 0.175), (1000, 0.7 / 6)):
        assert validation_of(lucky_run, over) == pytest.approx(mean)
    for over, chosen in ((0, lucky_run), (16, steady_run)):
        (best,) = best_settings(both_runs, over)
        assert best.tuned["server_learning_rate"] == chosen.config.server_learning_rate
        assert ("the last 16 rounds" in best_table(both_runs, over)) == (over == 16)
    row, _ = table(both_runs, 16)
    assert float(row["validation_accuracy"]) == 0.4
    assert float(row["smoothed_validation_accuracy"]) == pytest.approx(0.175)
    # The end of the run counts if it was no round of validation.
    longer_run = dataclasses.replace(
        lucky_run, config=dataclasses.replace(lucky_run.config, rounds=26)
    )
    assert validation_of(longer_run, 6) == pytest.approx((0.4 + 0.4) / 2)


def test_the_best_figure_shows_the_best_settings_over_the_compared_values(plotted_lines):
    runs = [
        with_result(
            make_run(family, epsilon=epsilon, server_learning_rate=rate), level * rate * epsilon
        )
        for family, level in (("banded", 0.1), ("identity", 0.05))
        for epsilon in (1.0, 4.0)
        for rate in (0.5, 1.0)
    ]
    assert best_figure([*runs, with_result(make_run("none"), 0.4)])[:8] == b"\x89PNG\r\n\x1a\n"
    lines = {label: (x, y) for label, x, y in plotted_lines if label}
    # The test metric is 0.01 less
    assert lines["Banded (8 bands)"] == ([1.0, 4.0], pytest.approx([0.09, 0.39]))
    assert lines["DP-FedAvg"][1] == pytest.approx([0.04, 0.19])
    assert best_figure(runs[:2]) is None  # These runs have nothing to compare.
    assert best_figure(runs[::2]) is None  # These runs have no tuned setting.


@pytest.mark.slow
def test_bands_are_chosen_for_each_epsilon_if_cohorts_are_sampled(plotted_lines):
    drawing = {"sampling": "poisson", "population": 60}
    accuracy = {(1.0, 1): 0.2, (1.0, 2): 0.3, (8.0, 2): 0.4, (8.0, 4): 0.5}
    runs = [
        with_result(make_run("banded", epsilon=epsilon, bands=b, **drawing), value)
        for (epsilon, b), value in accuracy.items()
    ]
    runs += [
        with_result(make_run("identity", epsilon=epsilon, **drawing), 0.1) for epsilon in (1.0, 8.0)
    ]
    first_best, second_best, *_ = best_settings(runs)
    assert (
        first_best.compared["epsilon"],
        first_best.tuned["bands"],
        second_best.tuned["bands"],
    ) == (
        1.0,
        2,
        4,
    )
    assert best_figure(runs) is not None
    lines = {label: (x, y) for label, x, y in plotted_lines if label}
    assert lines["Banded (2 to 4 bands)"] == ([1.0, 8.0], pytest.approx([0.29, 0.49]))
    # Without sampling, bands are compared.
    assert "bands" in best_settings([make_run("banded", bands=b) for b in (2, 4)])[0].compared
