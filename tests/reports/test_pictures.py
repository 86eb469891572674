"""What the plots draw: ticks, markers, legends and which runs are averaged."""

import dataclasses

import pytest

from fedmf.reports import pictures, plots


def _shown(axis):
    """Labels of the ticks that are in view."""
    low, high = sorted(axis.get_view_interval())
    ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    return [
        t.label1.get_text() for t in ticks if low <= t.get_loc() <= high and t.label1.get_text()
    ]


QUESTION = {
    "population": 400,
    "cohort_size": 10,
    "availability": "independent:0.6",
    "sampling": None,
    "schema": "min_sep",
    "min_sep": 20,
}


def _forecast(rounds=1, **more):
    return {
        **QUESTION, "simulated_population": 400, "rounds": rounds, "dry": [],
        "pool": [10.0] * rounds, "pool_rounds": list(range(rounds)),
        "cohorts": [1.0] * rounds, "histogram": {0: 0.9, 1: 0.1}, "max_participations": 1,
    } | more  # fmt: skip


@pytest.mark.parametrize("pool", [[10.0], []])
def test_one_round_is_a_point_and_ticks_are_whole(figures, pool):
    pictures.participation_picture(_forecast(pool=pool, min_sep=1))
    over_rounds, histogram = figures[0].axes
    assert over_rounds.lines[0].get_marker() == "o"
    assert _shown(over_rounds.xaxis) == ["0"]
    assert _shown(histogram.xaxis) == ["0", "1"]


def test_titles_are_words_and_fit(figures):
    sampled = {"population": 10**7, "cohort_size": 6500, "availability": "always"}
    forecast = _forecast(**sampled, sampling="poisson", simulated_population=10**7)
    pictures.participation_picture(forecast)
    (title,) = (text for text in figures[0].texts if text.get_text().startswith("10,000,000"))
    assert title.get_window_extent().width < figures[0].bbox.width


def _counted(run, population, **config):
    seen = run.result["participation"] | {
        "population": population,
        "clients": 10,
        "histogram": {"1": 10},
    }
    return dataclasses.replace(
        run,
        config=dataclasses.replace(run.config, **config),
        result=run.result | {"participation": seen},
    )


def test_only_runs_of_one_kind_are_averaged(make_run, figures):
    run = make_run("banded")
    plot = plots.participation_plot(
        [_counted(run, 60), _counted(run, 60, seed=1), make_run("banded", stop=4)]
    )
    assert [bar.get_height() for bar in figures[0].axes[0].patches][:2] == [50, 10]
    assert "means over runs" in plot.caption
    assert "50 clients" in plot.alt
    for other in (
        _counted(run, 400),
        _counted(run, 60, cohort_size=20),
        _counted(run, 60, rounds=30),
    ):
        assert plots.participation_plot([_counted(run, 60), other]) is None
