"""What the plots draw: ticks, markers, legends and which runs are averaged."""

import dataclasses

import pytest

from fedmf.reports import bands, groups, noise, participation, plots


def _axes(figure):
    return [ax for ax in figure.get_axes() if ax.get_title(loc="left")]


def _shown(axis):
    """Labels of the ticks that are in view."""
    low, high = sorted(axis.get_view_interval())
    ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    return [t.label1.get_text() for t in ticks if low <= t.get_loc() <= high and t.label1.get_text()]


QUESTION = {
    "population": 400, "cohort_size": 10, "availability": "independent:0.6", "sampling": None, "schema": "min_sep", "min_sep": 20,
}  # fmt: skip


def _forecast(rounds=1, **more):
    return {
        **QUESTION, "simulated_population": 400, "rounds": rounds, "dry": [], "pool": [10.0] * rounds, "pool_rounds": list(range(rounds)),
        "cohorts": [1.0] * rounds, "histogram": {0: 0.9, 1: 0.1}, "max_participations": 1, "largest_min_sep": 1,
        "tried": {1: None},
    } | more  # fmt: skip


@pytest.mark.parametrize("pool", [[10.0], []])
def test_one_round_is_a_point_and_ticks_are_whole(figures, pool):
    participation.participation_picture(_forecast(pool=pool, min_sep=1))
    over_rounds, _, search = _axes(figures[0])
    assert over_rounds.lines[0].get_marker() == "o"
    assert _shown(over_rounds.xaxis) == ["0"]
    assert _shown(search.xaxis) == ["0", "1"]
    assert _shown(search.yaxis) == ["0", "1"]


def test_many_rounds_are_a_line(figures):
    participation.participation_picture(_forecast(rounds=40))
    assert _axes(figures[0])[0].lines[0].get_marker() in ("", "None")


@pytest.mark.parametrize(
    ("tried", "names"),
    [
        ({1: None}, ["no dry round", "1 can be held", "5 looked at"]),
        ({3: 7}, ["first dry round", "1 can be held", "5 looked at"]),
        ({1: None, 3: 7}, ["no dry round", "first dry round", "1 can be held", "5 looked at"]),
    ],
)
def test_the_legend_lists_what_is_there_and_covers_nothing(figures, tried, names):
    participation.participation_picture(_forecast(rounds=20, tried=tried, min_sep=5))
    search = _axes(figures[0])[2]
    legend = search.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == names
    assert not legend.get_window_extent().overlaps(search.get_window_extent())
    assert not legend.get_window_extent().overlaps(search.xaxis.label.get_window_extent())


def test_titles_are_words_and_fit(figures):
    assert (
        participation.picture_title(QUESTION) == "400 clients, 10 a round, independent availability, min separation 20"
    )
    sampled = QUESTION | {"population": 10**7, "cohort_size": 6500, "availability": "always", "sampling": "poisson"}
    assert participation.picture_title(sampled).endswith("always available, poisson sampling, min separation 20")
    participation.participation_picture(_forecast(**sampled, simulated_population=10**7))
    assert figures[0]._suptitle.get_window_extent().width < figures[0].bbox.width


def _choice(errors):
    rows = [{"family": "banded", "bands": b, "rmse": rmse, "amplified": True} for b, rmse in errors.items()]
    return {"rows": rows, "best": min(rows, key=lambda row: row["rmse"]), "epsilon": 4.0}


@pytest.mark.parametrize(
    "errors", [{1: 0.36263}, {1: 0.36263, 2: 0.36264}, {5: 0.5, 6: 0.5001, 7: 0.6}, {1: 1.7, 4: 1.3, 16: 1.4}]
)
def test_ticks_of_bands_are_whole_and_differ(figures, errors):
    bands.bands_picture(_choice(errors))
    ax = figures[0].axes[0]
    assert set(map(int, _shown(ax.xaxis))) & set(errors)
    rmse = _shown(ax.yaxis)
    assert len(rmse) == len(set(rmse)) > 1


@pytest.mark.parametrize("rounds", [20, 10, 100])
def test_the_last_round_has_a_tick(make_run, figures, rounds):
    run = make_run("banded")
    shorter = dataclasses.replace(
        run, config=dataclasses.replace(run.config, rounds=rounds), metrics=run.metrics[:rounds], noising=run.noising[:rounds, :rounds]
    )  # fmt: skip
    plots.accuracy_plot(groups.group_runs([shorter]))
    noise.levels_plot(groups.group_runs([shorter]))
    assert str(rounds) in _shown(figures[0].axes[0].xaxis)
    if rounds <= len(run.noising):
        assert str(rounds) in _shown(figures[1].axes[0].xaxis)


def _counted(run, population, **config):
    seen = run.result["participation"] | {"population": population, "clients": 10, "histogram": {"1": 10}}
    return dataclasses.replace(
        run, config=dataclasses.replace(run.config, **config), result=run.result | {"participation": seen}
    )


def test_only_runs_of_one_kind_are_averaged(make_run, figures):
    run = make_run("banded")
    plot = plots.participation_plot([_counted(run, 60), _counted(run, 400, cohort_size=20), _counted(run, 60, seed=1)])
    first, second = figures[0].axes
    assert [bar.get_height() for bar in first.patches][:2] == [50, 10]
    assert [bar.get_height() for bar in second.patches][:2] == [390, 10]
    assert first.get_title(loc="left").endswith("24 rounds with 5 of 60 clients")
    assert second.get_title(loc="left").endswith("24 rounds with 20 of 400 clients")
    assert "Runs of other rounds, cohorts or populations are apart." in plot.caption
    assert "390 clients" in plot.alt


def test_kinds_beyond_the_last_panel_are_owned_up_to(make_run, figures):
    run = make_run("banded")
    plot = plots.participation_plot([_counted(run, 60 + i) for i in range(8)])
    assert len(figures[0].axes) == 6
    assert "Of 8 such kinds of runs the first 6 are shown." in plot.caption


def test_the_caption_says_what_shades_are_for(make_run):
    alone = plots.accuracy_plot(groups.group_runs([make_run("identity"), make_run("banded")]))
    several = plots.accuracy_plot(groups.group_runs([make_run("banded", epsilon=2.0), make_run("banded")]))
    assert "Shades and dashes" not in alone.caption
    assert "Shades and dashes tell apart" in several.caption
