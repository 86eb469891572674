"""Pictures that commands such as `fedmf plan bands --out` draw. They show a forecast, a mechanism,
a choice of bands or a comparison. Plots of a report on runs are in the modules *_plots.
"""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, ScalarFormatter, StrMethodFormatter

from fedmf.mechanisms.base import Mechanism
from fedmf.participation.schema import Participation
from fedmf.reports.canvas import (
    BLUE,
    DASHED,
    INK,
    RED,
    SOFT,
    canvas,
    draw_color_bar,
    draw_heat_map,
    marker,
    powers_of_two,
    shared_norm,
    tens,
    whole_steps,
    without_specks,
)
from fedmf.reports.drawn_noise import drawn_encoder, drawn_gram, drawn_noise, is_drawable
from fedmf.reports.labels import family_color
from fedmf.reports.text import plural

# The bars of a histogram have gaps between them if there are fewer bars than this.
_MAX_SEPARATE_BARS = 24
_MAX_LABELLED_BARS = 10
# Number of characters that fit on one line of a picture's title.
_TITLE_WIDTH = 74
# Colours of mechanisms that are combined with a sampling scheme.
_SAMPLING_COLORS = ("#7a3e9d", "#b8860b", "#2f7d32", "#b0305c", "#555555")


def participation_picture(forecast: dict[str, Any]) -> bytes:
    """Draws a forecast of participation, and returns the PNG bytes.

    The picture has the pool of clients over rounds, and a histogram of participations.

    Args:
      forecast: of `fedmf.cohorts.forecast.forecast`, with "availability" and "sampling".
    """
    simulation_note = ""
    if forecast["simulated_population"] != forecast["population"]:
        population = forecast["simulated_population"]
        cohort_size = forecast["simulated_cohort_size"]
        simulation_note = (
            f"Simulated with {population:,} clients and cohorts of {cohort_size:,}, the same share."
        )
    with canvas(5.4, simulation_note) as (figure, png):
        figure.suptitle(
            textwrap.fill(picture_title(forecast), _TITLE_WIDTH), fontsize=10.5, fontweight="bold"
        )
        round_panel, histogram_panel = figure.subplots(2, 1)
        _draw_rounds(round_panel, forecast)
        _draw_histogram(histogram_panel, forecast)
    return png.getvalue()


def picture_title(forecast: dict[str, Any]) -> str:
    """Returns a title that states the settings of a forecast in words."""
    availability_kind = forecast["availability"].partition(":")[0]
    availability = (
        "always available" if availability_kind == "always" else f"{availability_kind} availability"
    )
    setting_texts = [
        f"{forecast['population']:,} clients",
        f"{forecast['cohort_size']:,} a round",
        availability,
    ]
    if forecast["sampling"]:
        setting_texts.append(f"{forecast['sampling']} sampling")
    setting_texts.append(Participation.from_limits(forecast).describe_limit())
    return ", ".join(setting_texts)


def _draw_rounds(ax: Axes, forecast: dict[str, Any]) -> None:
    """Draws the number of eligible clients in each round, in units of the cohort size.

    If a sampling scheme samples from all clients, the sizes of the cohorts are drawn instead.

    Rounds without enough clients are shaded.
    """
    n = forecast["rounds"]
    pool_sizes = forecast["pool"]
    if pool_sizes:
        plotted_rounds = forecast["pool_rounds"]
        client_counts = pool_sizes
        panel_title = "The pool, in cohorts"
        axis_label = "eligible and available"
    else:
        plotted_rounds = range(n)
        client_counts = forecast["cohorts"]
        panel_title = "Clients that take part, in cohorts"
        axis_label = "selected"
    ax.plot(plotted_rounds, client_counts, color=BLUE, linewidth=1, marker=marker(client_counts))
    ax.axhline(1.0, color=RED, linewidth=1.1, linestyle=DASHED)
    if pool_sizes:
        tens(ax)
        ax.set_ylim(0.85 * max(0.01, min(0.7, *pool_sizes)), 1.2 * max(1.5, *pool_sizes))
    else:
        ax.set_ylim(bottom=0)
    ax.set(title=panel_title, xlabel="round", ylabel=axis_label, xlim=(-0.5, n - 0.5))
    dry_rounds = forecast["dry"]
    if dry_rounds:
        ax.broken_barh(
            [(t - 0.5, 1) for t in dry_rounds],
            (0, 1),
            transform=ax.get_xaxis_transform(),
            color=RED,
            alpha=0.25,
            linewidth=0,
        )
        dry_title = f"{len(dry_rounds):,} of {n:,} rounds are dry"
        ax.set_title(dry_title, loc="right", fontsize=9, color=RED)
    ax.xaxis.set_major_locator(whole_steps(8))
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _draw_histogram(ax: Axes, forecast: dict[str, Any]) -> None:
    """Draws a histogram of the percentage of clients for each number of participations."""
    fraction_by_times = forecast["histogram"]
    max_participations = forecast["max_participations"]
    max_times = max(fraction_by_times)
    participation_counts = range(max_times + 1)
    client_percents = [100 * fraction_by_times.get(k, 0.0) for k in participation_counts]
    colors = [_bar_color(k, max_participations) for k in participation_counts]
    bar_width = 0.8 if max_times < _MAX_SEPARATE_BARS else 1.0
    histogram_bars = ax.bar(participation_counts, client_percents, width=bar_width, color=colors)
    if max_times < _MAX_LABELLED_BARS:
        ax.bar_label(histogram_bars, fmt=_percent_label, padding=2, fontsize=7.5)
    if max_participations <= max(2 * max_times, 12):
        ax.axvline(max_participations + 0.5, color=RED, linewidth=1.1, linestyle=DASHED)
    axis_label = f"participations, planned limit {max_participations:,}"
    ax.set(title="How often a client takes part", xlabel=axis_label, ylabel="clients, %")
    ax.grid(axis="x", visible=False)
    ax.margins(y=0.18)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _bar_color(times: int, limit: int) -> str:
    """Returns the colour of the bar for this number of participations of a client."""
    if times == 0:
        return SOFT
    return RED if times > limit else BLUE


def _percent_label(percent: float) -> str:
    """Returns the label of a bar in percent, which is empty for 0."""
    return f"{percent:.2g}%" if percent else ""


def mechanism_picture(
    title: str, *, mechanism: Mechanism, sensitivity: float, errors: np.ndarray
) -> bytes:
    """Draws a mechanism, and returns the PNG bytes.

    The picture has heat maps of the encoder C, the noise matrix N and X = C^T C, and the error of
    each round.

    Args:
      title: of the picture.
      mechanism: to draw, scaled to sensitivity 1. Only errors are drawn if its matrices would have
        to be formed and are too large.
      sensitivity: of the mechanism.
      errors: standard deviation of each round's error at noise multiplier 1 and clip norm 1, (n,).
    """
    matrix_panels = []
    if is_drawable(mechanism):
        matrix_panels = [
            (drawn_encoder(mechanism, 1 / sensitivity), "encoder C", "round", "released row"),
            (drawn_noise(mechanism, sensitivity)[0], "noising N", "noise source", "round"),
            (drawn_gram(mechanism, 1 / sensitivity), "gram X = CᵀC", "round", "round"),
        ]
    figure_height = 6.3 if matrix_panels else 3.2
    with canvas(figure_height, "") as (figure, png):
        figure.suptitle(title, fontsize=10.5, fontweight="bold")
        if matrix_panels:
            *matrix_axes, ax = figure.subplots(2, 2).flat
        else:
            matrix_axes = []
            ax = figure.subplots()
        for matrix_ax, (matrix, name, xlabel, ylabel) in zip(
            matrix_axes, matrix_panels, strict=True
        ):
            norm = shared_norm([matrix.entries])
            draw_heat_map(matrix_ax, without_specks(matrix.entries), norm, size=matrix.size)
            matrix_ax.set(title=name, xlabel=xlabel, ylabel=ylabel)
            draw_color_bar(figure, [matrix_ax], norm)
        rmse = float(np.sqrt(np.mean(np.square(errors))))
        ax.axhline(rmse, color=SOFT, linewidth=0.9, linestyle="--")
        ax.plot(errors, color=BLUE, linewidth=1.0, marker=marker(errors))
        ax.set(
            title=f"error by round (rmse {rmse:.4g})", xlabel="round", ylabel="standard deviation"
        )
        ax.set_ylim(bottom=0)
        ax.xaxis.set_major_locator(whole_steps(5))
        ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    return png.getvalue()


def bands_picture(choice: dict[str, Any]) -> bytes:
    """Draws the root mean squared error for each number of bands, and returns the PNG bytes.

    Args:
      choice: `fedmf.privacy.bands.BandChoice.summary()`.
    """
    candidate_rows = choice["rows"]
    best_bands = choice["best"]
    banded_rows = [row for row in candidate_rows if row["family"] == "banded"]
    bands = [row["bands"] for row in banded_rows]
    banded_errors = [row["rmse"] for row in banded_rows]
    with canvas(3.9, "") as (figure, png):
        ax = figure.subplots()
        band_ticks = sorted(set(bands))
        power_ticks = [b for b in band_ticks if b & (b - 1) == 0]
        if len(power_ticks) > 1:
            band_ticks = power_ticks
        powers_of_two(ax, band_ticks)
        ax.plot(bands, banded_errors, color=BLUE, zorder=2)
        _draw_bands(ax, banded_rows, is_amplified=True)
        _draw_bands(ax, banded_rows, is_amplified=False)
        for row in candidate_rows:
            if row["family"] == "dense":
                dense_label = "dense, without amplification"
                ax.axhline(
                    row["rmse"], color=RED, linewidth=1.4, linestyle=DASHED, label=dense_label
                )
        near_best_range = (best_bands["rmse"], 1.01 * best_bands["rmse"])
        ax.axhspan(
            *near_best_range, color=SOFT, alpha=0.18, linewidth=0, label="within 1% of the best"
        )
        best_name = "the dense optimum"
        if best_bands["family"] != "dense":
            best_name = f"{best_bands['bands']} {plural('band', best_bands['bands'])}"
        if best_bands["family"] == "banded":
            ax.plot(
                best_bands["bands"],
                best_bands["rmse"],
                "o",
                markersize=11,
                mfc="none",
                mec=BLUE,
                zorder=4,
            )
        figure_title = (
            f"Error over bands at epsilon {choice['epsilon']:g}: the choice is {best_name}"
        )
        ax.set_title(figure_title)
        ax.set(xlabel="bands", ylabel="rmse of a round's running query")
        ax.yaxis.set_major_formatter(ScalarFormatter(useOffset=False))
        ax.legend(loc="best")
    return png.getvalue()


def _draw_bands(ax: Axes, rows: Sequence[dict[str, Any]], *, is_amplified: bool) -> None:
    """Draws a point for each number of bands, either with or without amplification."""
    band_errors = [(row["bands"], row["rmse"]) for row in rows if row["amplified"] == is_amplified]
    if not band_errors:
        return
    color = RED
    line_label = "without amplification"
    if is_amplified:
        color = BLUE
        line_label = "amplified by sampling"
    bands, errors = zip(*band_errors, strict=True)
    ax.plot(bands, errors, "o", color=color, label=line_label, markersize=5, zorder=3)


def comparison_picture(summary: dict[str, Any]) -> bytes:
    """Draws a comparison of mechanisms over epsilon, and returns the PNG bytes.

    The picture has the error of each mechanism, an attacker's advantage and, if it was asked for,
    the noise for a choice among trials. Without sampling the
    advantage follows from epsilon alone, so that all mechanisms share one line.

    Args:
      summary: of `fedmf.privacy.comparison.Comparison`.
    """
    rows_by_name: dict[str, list[dict[str, Any]]] = {}
    for row in summary["rows"]:
        rows_by_name.setdefault(row["name"], []).append(row)
    tuning = summary.get("tuning")
    panel_rows = [["error", "risk"]]
    if tuning is not None:
        panel_rows.append(["tuning", "tuning"])
    with canvas(0.5 + 3.8 * len(panel_rows), "") as (figure, png):
        panel_by_name: dict[str, Axes] = figure.subplot_mosaic(panel_rows)
        error_panel = panel_by_name["error"]
        risk_panel = panel_by_name["risk"]
        if tuning is not None:
            _draw_tuning(panel_by_name["tuning"], tuning)
        num_sampled = 0
        for name, rows in rows_by_name.items():
            style: dict[str, Any] = {"color": family_color(rows[0]["family"]), "marker": "o"}
            style |= {"markersize": 4, "linewidth": 1.6}
            risk_style = style | {"color": INK}
            risk_label = "without sampling"
            if rows[0]["sampling"] is not None:
                color = _SAMPLING_COLORS[num_sampled % len(_SAMPLING_COLORS)]
                num_sampled += 1
                style |= {"color": color, "linestyle": DASHED, "marker": "s"}
                risk_style = style
                risk_label = name
            epsilons = [row["epsilon"] for row in rows]
            effective_errors = [row["effective_rmse"] for row in rows]
            error_panel.plot(epsilons, effective_errors, label=name, **style)
            if risk_label not in risk_panel.get_legend_handles_labels()[1]:
                attacker_advantages = [row["advantage"] for row in rows]
                risk_panel.plot(epsilons, attacker_advantages, label=risk_label, **risk_style)
        for ax in (error_panel, risk_panel):
            powers_of_two(ax, sorted({row["epsilon"] for row in summary["rows"]}))
            ax.set_xlabel(f"epsilon at delta {summary['delta']:g}")
        error_panel.set(title="Error of a round's mean", ylabel="rmse of its query, in clip norms")
        tens(error_panel)
        legend_entries = error_panel.get_legend_handles_labels()
        figure.legend(*legend_entries, loc="outside lower center", ncols=4)
        risk_panel.legend(loc="best")
        risk_panel.set(title="Attacker's advantage", ylabel="at most", ylim=(0, 1))
    return png.getvalue()


def _draw_tuning(ax: Axes, tuning: dict[str, Any]) -> None:
    """Draws the noise of each trial over the number of trials among which a model is chosen.

    Args:
      ax: the panel.
      tuning: of `fedmf.privacy.tuning.tuning_summary`.
    """
    rows_by_way: dict[str, list[dict[str, Any]]] = {}
    for row in tuning["curves"]:
        rows_by_way.setdefault(row["way"], []).append(row)
    for (way, rows), color in zip(rows_by_way.items(), (RED, INK, BLUE), strict=True):
        numbers = [row["trials"] for row in rows]
        ratios = [row["noise_ratio"] for row in rows]
        ax.plot(numbers, ratios, label=way, color=color, marker="o", markersize=4, linewidth=1.6)
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    ax.set(
        title=f"Noise of a trial, epsilon {tuning['curves'][0]['epsilon']:g}",
        xlabel="trials, on average",
        ylabel="times that of one run",
        ylim=(0, None),
    )
    ax.legend(loc="upper left")
