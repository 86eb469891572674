"""Pictures of a single round, and runs that are averaged."""

import dataclasses

from fedmf.reports import client_plots, command_pictures


def test_one_round_is_a_point(figures):
    command_pictures.participation_picture(
        {
            "population": 400, "simulated_population": 400, "cohort_size": 10, "rounds": 1,
            "availability": "independent:0.6", "sampling": None, "schema": "min_sep", "min_sep": 1,
            "dry": [], "pool": [10.0], "pool_rounds": [0], "cohorts": [1.0],
            "histogram": {0: 0.9, 1: 0.1}, "max_participations": 1,
        }
    )  # fmt: skip
    round_axes, _ = figures[0].axes
    assert round_axes.lines[0].get_marker() == "o"


def _counted(run, population, **config):
    """Returns a run with this population, and changes of its configuration."""
    new_counts = {"population": population, "clients": 10, "histogram": {"1": 10}}
    participation = run.result["participation"] | new_counts
    return dataclasses.replace(
        run,
        config=dataclasses.replace(run.config, **config),
        result=run.result | {"participation": participation},
    )


def test_only_runs_of_one_kind_are_averaged(make_run, figures):
    run = make_run("banded")
    plot = client_plots.participation_plot(
        [_counted(run, 60), _counted(run, 60, seed=1), make_run("banded", stop=4)]
    )
    assert [bar.get_height() for bar in figures[0].axes[0].patches][:2] == [50, 10]
    assert "means over runs" in plot.caption
    assert "50 clients" in plot.alt
    for other_run in (
        _counted(run, 400),
        _counted(run, 60, cohort_size=20),
        _counted(run, 60, rounds=30),
    ):
        assert client_plots.participation_plot([_counted(run, 60), other_run]) is None
