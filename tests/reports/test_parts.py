"""Curves, notes and legends of groups, and matrices of the noise."""

import dataclasses

import numpy as np
import pytest
from numpy.testing import assert_allclose

from fedmf.reports import canvas, drawn_noise, groups, metric_plots, tables, text


def test_validation_curves_use_rounds_that_all_seeds_have(make_run):
    group = groups.group_runs([make_run("banded", seed=0), make_run("banded", seed=1, stop=10)])[0]
    rounds, values = groups.validation_curves(group)
    assert rounds.tolist() == [4, 8]
    assert values.shape == (2, 2)


def test_noise_levels_are_those_of_the_noise_itself(make_run):
    run = make_run("banded")
    on_round, on_sum = groups.noise_levels(groups.group_runs([run])[0])
    N = run.noising * run.plan["stddev"] / run.config.cohort_size
    assert_allclose(on_round, np.linalg.norm(N, axis=1), rtol=1e-9)
    assert_allclose(on_sum, np.linalg.norm(np.cumsum(N, axis=0), axis=1), rtol=1e-9)
    # A claimed cohort has that of its own average.
    simulated_levels, _ = groups.noise_levels(
        groups.group_runs([make_run("banded", claimed_cohort=50)])[0]
    )
    assert np.allclose(simulated_levels, on_round * 5 / 50)


def test_correlation_of_rounds_without_noise_is_zero():
    N = np.array([[1.0, 0.0], [-1.0, 1.0], [0.0, 0.0]])
    expected = np.array([[1, -(0.5**0.5), 0], [-(0.5**0.5), 1, 0], [0, 0, 0]])
    assert np.allclose(drawn_noise.correlation(N), expected)


def test_pooling_preserves_a_thin_diagonal():
    pooled = canvas.pool(-np.eye(2052), 500)
    assert pooled.shape == (500, 500)
    assert (np.diag(pooled) == -1).all()


@pytest.mark.parametrize(
    ("value", "printed_digits"),
    [
        (7.9999990, "8.00"),
        (1e-5, "1.00e-05"),
        (float("inf"), "∞"),
    ],
)
def test_significant_rounds_to_three_digits(value, printed_digits):
    assert text.significant(value) == printed_digits


def test_folders_of_one_name_get_their_parent(make_run):
    first_run = make_run("banded")
    second_run = make_run("identity")
    same_names = [
        dataclasses.replace(first_run, path=first_run.path.parent / "banded" / "seed-0"),
        dataclasses.replace(second_run, path=second_run.path.parent / "identity" / "seed-0"),
    ]
    assert list(tables.folder_names(same_names).values()) == ["banded/seed-0", "identity/seed-0"]


def test_seeds_that_took_part_alike_share_a_row(demo_runs):
    run = demo_runs[2]
    twin_run = dataclasses.replace(run, config=dataclasses.replace(run.config, seed=7))
    participation_table = tables.participation_table(groups.group_runs([run, twin_run]))
    assert len(participation_table.rows) == 1
    assert participation_table.rows[0][0].details == ["seeds 0 and 7"]


def test_a_legend_of_very_many_runs_names_the_mechanisms(make_run, figures):
    families = ("tree", "banded", "identity")
    run_groups = groups.group_runs(
        [
            make_run(family, server_learning_rate=float(rate))
            for family in families
            for rate in np.linspace(0.1, 1.0, 9).round(2)
        ]
    )
    plot = metric_plots.accuracy_plot(run_groups)
    (figure,) = figures
    (legend,) = figure.legends
    mechanism_names = ["Tree (full Honaker)", "Banded (8 bands)", "DP-FedAvg"]
    assert [text.get_text() for text in legend.get_texts()] == mechanism_names
    assert "too many to name" in plot.caption
    assert figure.bbox.height < 1.2 * figure.bbox.width


def test_noise_is_drawn_once_whatever_the_learning_rate(make_run):
    runs = [
        make_run("banded", epsilon=epsilon, server_learning_rate=learning_rate)
        for epsilon in (2.0, 8.0)
        for learning_rate in (0.1, 0.5)
    ]
    run_groups = groups.group_runs([*runs, make_run("identity"), make_run("none")])
    drawn_groups = groups.distinct_noise(run_groups)
    expected_labels = [
        "Banded (8 bands), epsilon 2",
        "Banded (8 bands), epsilon 8",
        "DP-FedAvg, epsilon 8",
    ]
    assert [group.label for group in drawn_groups] == expected_labels
    final_levels = [groups.noise_levels(group).of_sums[-1] for group in drawn_groups[:2]]
    assert final_levels[0] > final_levels[1]
    labelled_groups = groups.distinct_mechanisms(run_groups)  # whatever the epsilon as well
    assert [label for label, _ in labelled_groups] == ["Banded (8 bands)", "DP-FedAvg"]
    assert [len(same_noise) for _, same_noise in labelled_groups] == [4, 1]
