"""Colours, line styles and labels that tell groups of runs apart."""

import dataclasses
import itertools

import numpy as np
import pytest

from fedmf.privacy.flat_config import families
from fedmf.reports import groups, labels, tables

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
_SIGHT = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
}
_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def _linear(color):
    """Returns the linear RGB channels of a colour."""
    s = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(s <= 0.04045, s / 12.92, ((s + 0.055) / 1.055) ** 2.4)


def _lab(linear):
    """Returns the CIELAB coordinates of a linear RGB colour."""
    xyz_ratio = _XYZ @ np.clip(linear, 0, 1) / [0.9505, 1, 1.089]
    cube_roots = np.where(xyz_ratio > 0.008856, np.cbrt(xyz_ratio), 7.787 * xyz_ratio + 16 / 116)
    return np.array(
        [
            116 * cube_roots[1] - 16,
            500 * (cube_roots[0] - cube_roots[1]),
            200 * (cube_roots[1] - cube_roots[2]),
        ]
    )


def _contrast(color):
    """Returns the contrast of a colour with white, by WCAG."""
    return 1.05 / (_XYZ[1] @ _linear(color) + 0.05)


@pytest.mark.parametrize("sight", _SIGHT)
def test_colours_of_families_are_told_apart(sight):
    # This line is dashed.
    color_by_family = {family: labels.family_color(family) for family in families()[1:]}
    for (first_family, first_color), (second_family, second_color) in itertools.combinations(
        color_by_family.items(), 2
    ):
        color_distance = np.linalg.norm(
            _lab(_SIGHT[sight] @ _linear(first_color)) - _lab(_SIGHT[sight] @ _linear(second_color))
        )
        assert color_distance > 16, (first_family, second_family)


def test_every_shade_is_legible():
    for family in families():
        assert _contrast(labels.family_color(family)) >= 3, family
        for style in labels.group_styles([family] * 4):
            assert _contrast(style.color) >= 2, family


def test_families_without_a_colour_differ_in_dashes():
    styles = labels.group_styles(["new", "newer", "newest"])
    assert len({str(style.line) for style in styles}) == 3


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        # A setting that differs anywhere is in all labels, so that no runs look comparable by
        # mistake.
        (
            [("none", {}), ("identity", {}), ("tree", {}), ("banded", {"epsilon": 2.0})],
            [
                "No noise (not private)",
                "DP-FedAvg, epsilon 8",
                "Tree (full Honaker), epsilon 8",
                "Banded (8 bands), epsilon 2",
            ],
        ),
        # Tuned rates and paths are left out, unless nothing else distinguishes two groups.
        (
            [("identity", {"server_learning_rate": 0.5, "data": "a"}), ("banded", {"data": "b"})],
            ["DP-FedAvg", "Banded (8 bands)"],
        ),
        (
            [("banded", {"server_learning_rate": 0.5}), ("banded", {})],
            [
                "Banded (8 bands), server learning rate 0.5",
                "Banded (8 bands), server learning rate 1",
            ],
        ),
        # A tree has the name of the decoder that ran, also by default.
        (
            [("tree", {}), ("tree", {"decoder": "full"}), ("tree", {"decoder": "online"})],
            ["Tree (full Honaker)", "Tree (online Honaker)"],
        ),
        (
            [("tree", {"mechanism_options": {"restarts": 2}}), ("tree", {})],
            ["Tree (full Honaker), restarts 2", "Tree (full Honaker)"],
        ),
        (
            [("fft", {}), ("fft", {"decoder": "plain"})],
            ["FFT", "FFT, decoder plain"],
        ),
        # Options that a run lacks are left out, and so are options that only matter beside them.
        (
            [("banded", {"private_metrics": 0.02, "largest_loss": 5.0}), ("identity", {})],
            ["Banded (8 bands), private metrics 0.02", "DP-FedAvg"],
        ),
        (
            [("banded", {"clip_quantile": 0.5, "clip_every": 4}), ("identity", {"dropout": 0.1})],
            ["Banded (8 bands), clip quantile 0.5", "DP-FedAvg, dropout 0.1"],
        ),
        # Unset options are not in the label.
        (
            [("banded", {"epsilon": 4.0}), ("banded", {"noise_multiplier": 1.0})],
            ["Banded (8 bands), epsilon 4", "Banded (8 bands), noise multiplier 1"],
        ),
    ],
)
def test_labels_say_what_is_compared(make_run, configs, expected):
    runs = [make_run(family, **config) for family, config in configs]
    assert [group.label for group in groups.group_runs(runs)] == expected


def test_an_older_run_has_the_label_of_the_decoder_that_ran(make_run):
    ran_online = make_run("tree", decoder="online")
    silent_config = dataclasses.replace(ran_online.config, decoder=None)
    older_run = dataclasses.replace(ran_online, config=silent_config)
    run_groups = groups.group_runs([older_run, make_run("tree")])
    expected = ["Tree (online Honaker)", "Tree (full Honaker)"]
    assert [group.label for group in run_groups] == expected
    column = tables.runs_table(run_groups).columns.index("decoder")
    assert [row[column].text for row in tables.runs_table(run_groups).rows] == ["online", "full"]
    assert dict(tables.common_config([older_run]))["decoder"] == "online"


def test_a_simulated_run_is_marked_where_others_are_honest(make_run):
    run_groups = groups.group_runs([make_run("identity"), make_run("banded", claimed_cohort=1000)])
    label = "Banded (8 bands), simulates 1,000 clients a round"
    assert [group.label for group in run_groups] == ["DP-FedAvg", label]
    for table in (tables.accuracy_table(run_groups), tables.participation_table(run_groups)):
        honest_row, simulated_row = (str(row) for row in table.rows)
        for words in ("simulates 1,000 clients a round", "of the claimed cohort"):
            assert words in simulated_row
            assert words not in honest_row
    assert [row[-1].text == "not observed" for row in table.rows] == [False, True]


def _amplified(run):
    """Returns a run with sampling, planned for epsilon 2, and 12.6 for known cohorts."""
    sampling = {"scheme": "CyclicPoisson", "unamplified_epsilon": 12.6}
    achieved_values = {"epsilon": 2.0, "unamplified_epsilon": 6.5, "rho": 2.9, "sensitivity": 1.0}
    return dataclasses.replace(
        run,
        plan=run.plan | {"sampling": sampling, "epsilon": 2.0, "rho": 2.975},
        result=run.result | {"achieved": achieved_values},
    )


def test_tables_mark_amplified_values(make_run):
    run_groups = groups.group_runs([make_run("identity"), _amplified(make_run("banded"))])
    results_table = tables.accuracy_table(run_groups)
    participation_table = tables.participation_table(run_groups)
    epsilon_cell, rho_cell = (
        (cell.text, list(cell.details)) for cell in results_table.rows[1][1:3]
    )
    assert epsilon_cell == ("2", ["amplified by sampling"])
    assert rho_cell == ("2.975", ["not amplified"])
    assert not any(cell.details for cell in results_table.rows[0][1:3])
    assert "ρ is not amplified" in results_table.caption
    assert "without amplification it is never above the planned ε" in participation_table.caption
    assert "planned 2; 6.5 if the cohorts are known" in participation_table.rows[1][-1].details
    # The mark is nowhere else.
    for table in (
        tables.accuracy_table(run_groups[:1]),
        tables.participation_table(run_groups[:1]),
    ):
        assert "amplif" not in str(table)
