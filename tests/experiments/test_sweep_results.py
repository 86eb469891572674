"""What is read off the runs of a sweep, on runs that were never trained."""

import csv
import dataclasses
import io
import math
import pathlib

import numpy as np
import pytest

import fedmf
from experiments.sweep_results import best_settings, best_table, figure, results_csv, together, varying
from tests.reports.conftest import make_run


def reached(run, validation, name="run"):
    result = run.result | {"validation": {"accuracy": validation}, "test": {"accuracy": validation - 0.01}}
    return dataclasses.replace(run, result=result, path=pathlib.Path(name))


@pytest.fixture
def runs():
    found = []
    for family, rates in (("banded", {0.1: 0.1, 0.5: 0.3, 1.0: 0.2}), ("none", {0.1: 0.2, 0.5: 0.3, 1.0: 0.4})):
        for rate, accuracy in rates.items():
            found += [
                reached(
                    make_run(family, seed=seed, server_learning_rate=rate),
                    accuracy + 0.01 * seed,
                    f"{family}-{rate}-{seed}",
                )
                for seed in (0, 1)
            ]
    return found


def test_the_best_setting_is_that_of_the_largest_mean_over_the_seeds(runs):
    banded, none = best_settings(runs)
    assert banded.compared == {"family": "banded", "epsilon": 8.0}
    assert banded.tuned == {"server_learning_rate": 0.5}
    assert banded.validation == pytest.approx([0.3, 0.31])
    assert banded.test == pytest.approx([0.29, 0.3])
    assert (banded.settings, banded.at_edge) == (3, [])
    assert none.tuned == {"server_learning_rate": 1.0}
    assert none.at_edge == ["server_learning_rate"]
    table = best_table(runs).splitlines()
    assert table[1].split()[:4] == ["banded", "8", "0.5", "0.3050"]
    assert table[2].split()[:3] == ["none", "-", "1*"]
    assert "may lie beyond" in table[-1]


def test_a_model_that_diverged_is_no_best_one(runs):
    lost = [reached(run, math.nan) if run.config.server_learning_rate == 0.5 else run for run in runs]
    assert best_settings(lost)[0].tuned == {"server_learning_rate": 1.0}


def test_a_row_for_every_run(runs):
    rows = list(csv.DictReader(io.StringIO(results_csv(runs))))
    assert [row["run"] for row in rows] == [run.path.name for run in runs]
    assert varying(runs) == ["family", "epsilon", "server_learning_rate", "seed"]
    for row, run in zip(rows, runs, strict=True):
        assert float(row["server_learning_rate"]) == run.config.server_learning_rate
        assert float(row["validation_accuracy"]) == run.result["validation"]["accuracy"]
        assert row["plan_epsilon"] == ("" if run.config.family == "none" else str(run.plan["epsilon"]))


def test_a_simulation_is_named_in_its_row():
    rows = list(csv.DictReader(io.StringIO(results_csv([make_run("banded", claimed_cohort=50), make_run("banded")]))))
    assert [row["simulated_for_cohort"] for row in rows] == ["50", ""]
    assert [bool(row["achieved_epsilon"]) for row in rows] == [False, True]
    table = best_table([make_run("banded", claimed_cohort=50)])
    assert "the models trained here do not have it" in " ".join(table.split())
    assert "Simulation" not in best_table([make_run("banded")])


def test_together_is_the_composition():
    """Two runs of one noise multiplier are one whose encoder is twice below itself: sensitivity times the root of 2."""
    one, other = make_run("banded"), make_run("identity")
    assert together([one]).startswith("The private run: epsilon 8.00 at delta 1e-6.")
    encoder = np.vstack([np.eye(4), np.eye(4)])
    participation = fedmf.Participation(rounds=4, schema="single")
    assert fedmf.sensitivity(encoder, participation).value == pytest.approx(math.sqrt(2))
    sigma = one.plan["noise_multiplier"]
    plan = fedmf.Plan(
        mechanism=fedmf.fit(fedmf.prefix_sum(4), participation, family="identity"),
        participation=participation,
        noise_multiplier=sigma / math.sqrt(2),
        delta=1e-6,
        clip_norm=1.0,
    )
    assert other.plan["noise_multiplier"] == sigma
    said = float(together([one, other]).split("epsilon ")[1].split()[0])
    assert plan.epsilon <= said < plan.epsilon + 0.01
    assert said > 8.5  # more than one of them


def test_together_of_other_deltas_adds_up_and_of_no_noise_says_so():
    one, other = make_run("banded"), make_run("banded", delta=1e-5)
    said = together([one, other, make_run("none")])
    assert "epsilon 16.00 at delta 1.1e-5" in said
    assert "The other one promises no privacy." in said
    assert together([make_run("none")]) == "None of these runs promises any privacy."
    assert "of the claimed cohorts" in together([make_run("banded", claimed_cohort=50), one])


def test_amplified_runs_are_added_up():
    amplified = make_run("identity", sampling="poisson", population=60)
    said = together([amplified, make_run("identity")])
    total = amplified.plan["epsilon"] + 8.0
    assert float(said.split("epsilon ")[1].split()[0]) == pytest.approx(total, abs=0.01)
    assert "2e-6" in said


def test_the_figure(runs, monkeypatch):
    drawn = []
    from matplotlib.axes import Axes

    plot = Axes.plot
    monkeypatch.setattr(
        Axes, "plot", lambda ax, x, y, **style: drawn.append((style.get("label"), x, y)) or plot(ax, x, y, **style)
    )
    assert figure(runs)[:8] == b"\x89PNG\r\n\x1a\n"
    lines = {label: (x, y) for label, x, y in drawn if label}
    assert list(lines) == ["Banded (8 bands)", "No noise (not private)"]
    assert lines["Banded (8 bands)"][0] == [0.1, 0.5, 1.0]
    assert lines["Banded (8 bands)"][1] == pytest.approx([0.105, 0.305, 0.205])


def test_no_noise_is_a_level_over_epsilon_and_nothing_is_drawn_without_numbers():
    over_epsilon = [make_run("banded", epsilon=2.0), make_run("banded", epsilon=8.0), make_run("none")]
    assert figure(over_epsilon) is not None
    assert figure([make_run("banded"), make_run("tree")]) is None
