"""Pictures that commands draw: a participation forecast, one mechanism, and a choice of bands."""

import textwrap
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
from fedmf.reports.groups import family_color

_MAX_SEPARATE_BARS = 24
_MAX_LABELLED_BARS = 10
_TITLE_LETTERS = 74  # that fit the width
_SHADES = ("#7a3e9d", "#b8860b", "#2f7d32", "#b0305c", "#555555")  # of sampling schemes


def participation_picture(forecast: dict[str, Any]) -> bytes:
    """A PNG with two panels.

    Args:
      forecast: of `fedmf.cohorts.forecast.forecast`, with "availability" and "sampling".
    """
    note = ""
    if forecast["simulated_population"] != forecast["population"]:
        clients = forecast["simulated_population"]
        cohort = forecast["simulated_cohort_size"]
        note = f"Simulated with {clients:,} clients and cohorts of {cohort:,}, the same share."
    with canvas(5.4, note) as (figure, png):
        figure.suptitle(
            textwrap.fill(picture_title(forecast), _TITLE_LETTERS), fontsize=10.5, fontweight="bold"
        )
        above, below = figure.subplots(2, 1)
        _draw_rounds(above, forecast)
        _draw_histogram(below, forecast)
    return png.getvalue()


def picture_title(forecast: dict[str, Any]) -> str:
    """The forecast's question in words."""
    kind = forecast["availability"].partition(":")[0]
    available = "always available" if kind == "always" else f"{kind} availability"
    drawn = f"{forecast['sampling']} sampling, " if forecast["sampling"] else ""
    limit = Participation.from_limits(forecast).describe_limit()
    return (
        f"{forecast['population']:,} clients, {forecast['cohort_size']:,} a round, "
        f"{available}, {drawn}{limit}"
    )


def _draw_rounds(ax: Axes, forecast: dict[str, Any]) -> None:
    """The pool or, where a scheme draws from all, the cohorts;
    rounds without enough clients are shaded.
    """
    n = forecast["rounds"]
    dry = forecast["dry"]
    pool = forecast["pool"]
    values = pool or forecast["cohorts"]
    ax.plot(
        forecast["pool_rounds"] if pool else range(n),
        values,
        color=BLUE,
        linewidth=1,
        marker=marker(values),
    )
    ax.axhline(1.0, color=RED, linewidth=1.1, linestyle=DASHED)
    if pool:
        tens(ax)
        ax.set_ylim(0.85 * max(0.01, min(0.7, *pool)), 1.2 * max(1.5, *pool))
    else:
        ax.set_ylim(bottom=0)
    title = "The pool, in cohorts" if pool else "Clients that take part, in cohorts"
    ax.set(
        title=title,
        xlabel="round",
        ylabel="eligible and available" if pool else "selected",
        xlim=(-0.5, n - 0.5),
    )
    if dry:
        ax.broken_barh(
            [(t - 0.5, 1) for t in dry],
            (0, 1),
            transform=ax.get_xaxis_transform(),
            color=RED,
            alpha=0.25,
            linewidth=0,
        )
        ax.set_title(f"{len(dry):,} of {n:,} rounds are dry", loc="right", fontsize=9, color=RED)
    ax.xaxis.set_major_locator(whole_steps(8))
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _draw_histogram(ax: Axes, forecast: dict[str, Any]) -> None:
    shares = forecast["histogram"]
    limit = forecast["max_participations"]
    most = max(shares)
    times = range(most + 1)
    colors = [SOFT if k == 0 else RED if k > limit else BLUE for k in times]
    width = 0.8 if most < _MAX_SEPARATE_BARS else 1.0
    bars = ax.bar(times, [100 * shares.get(k, 0.0) for k in times], width=width, color=colors)
    if most < _MAX_LABELLED_BARS:
        ax.bar_label(
            bars, fmt=lambda share: f"{share:.2g}%" if share else "", padding=2, fontsize=7.5
        )
    if limit <= max(2 * most, 12):
        ax.axvline(limit + 0.5, color=RED, linewidth=1.1, linestyle=DASHED)
    participations = f"participations, planned limit {limit:,}"
    ax.set(title="How often a client takes part", xlabel=participations, ylabel="clients, %")
    ax.grid(axis="x", visible=False)
    ax.margins(y=0.18)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def mechanism_picture(
    title: str, *, mechanism: Mechanism, sensitivity: float, errors: np.ndarray
) -> bytes:
    """A PNG with heat maps of C, N and X = C^T C, and the error of each round.

    Args:
      title: of the picture.
      mechanism: scaled to sensitivity 1. Where its matrices would have to be formed and are too
        large, only errors are drawn.
      sensitivity: of the mechanism.
      errors: standard deviation of each round's error at noise multiplier 1 and clip norm 1, (n,).
    """
    panels = []
    if is_drawable(mechanism):
        panels = [
            (drawn_encoder(mechanism, 1 / sensitivity), "encoder C", "round", "released row"),
            (drawn_noise(mechanism, sensitivity)[0], "noising N", "noise source", "round"),
            (drawn_gram(mechanism, 1 / sensitivity), "gram X = CᵀC", "round", "round"),
        ]
    with canvas(6.3 if panels else 3.2, "") as (figure, png):
        figure.suptitle(title, fontsize=10.5, fontweight="bold")
        *maps, ax = figure.subplots(2, 2).flat if panels else [figure.subplots()]
        for heat_map, (matrix, name, across, down) in zip(maps, panels, strict=True):
            norm = shared_norm([matrix.entries])
            draw_heat_map(heat_map, without_specks(matrix.entries), norm, size=matrix.size)
            heat_map.set(title=name, xlabel=across, ylabel=down)
            draw_color_bar(figure, [heat_map], norm)
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
    """A PNG of rmse over bands, on a logarithmic axis of bands.

    Args:
      choice: `fedmf.privacy.bands.BandChoice.summary()`.
    """
    rows = choice["rows"]
    best = choice["best"]
    banded = [row for row in rows if row["family"] == "banded"]
    with canvas(3.9, "") as (figure, png):
        ax = figure.subplots()
        tried = sorted({row["bands"] for row in banded})
        powers = [b for b in tried if b & (b - 1) == 0]
        powers_of_two(ax, powers if len(powers) > 1 else tried)
        ax.plot(
            [row["bands"] for row in banded], [row["rmse"] for row in banded], color=BLUE, zorder=2
        )
        for amplified, color, label in (
            (True, BLUE, "amplified by sampling"),
            (False, RED, "without amplification"),
        ):
            points = [
                (row["bands"], row["rmse"]) for row in banded if row["amplified"] == amplified
            ]
            if points:
                ax.plot(
                    *zip(*points, strict=True),
                    "o",
                    color=color,
                    label=label,
                    markersize=5,
                    zorder=3,
                )
        for row in rows:
            if row["family"] == "dense":
                label = "dense, without amplification"
                ax.axhline(row["rmse"], color=RED, linewidth=1.4, linestyle=DASHED, label=label)
        close = (best["rmse"], 1.01 * best["rmse"])
        ax.axhspan(*close, color=SOFT, alpha=0.18, linewidth=0, label="within 1% of the best")
        name = (
            "the dense optimum"
            if best["family"] == "dense"
            else f"{best['bands']} band{'s' * (best['bands'] > 1)}"
        )
        if best["family"] == "banded":
            ax.plot(best["bands"], best["rmse"], "o", markersize=11, mfc="none", mec=BLUE, zorder=4)
        ax.set_title(f"Error over bands at epsilon {choice['epsilon']:g}: the choice is {name}")
        ax.set(xlabel="bands", ylabel="rmse of a round's running query")
        ax.yaxis.set_major_formatter(ScalarFormatter(useOffset=False))
        ax.legend(loc="best")
    return png.getvalue()


def comparison_picture(summary: dict[str, Any]) -> bytes:
    """A PNG with two panels over epsilon: the error per client, and an attacker's advantage.

    Without sampling the advantage is that of epsilon, whatever the family: one line.

    Args:
      summary: of `fedmf.privacy.comparison.Comparison`.
    """
    by_name: dict[str, list[dict[str, Any]]] = {}
    for row in summary["rows"]:
        by_name.setdefault(row["name"], []).append(row)
    with canvas(4.3, "") as (figure, png):
        errors, risks = figure.subplots(1, 2)
        shades = dict[str, str]()
        for name, rows in by_name.items():
            sampled = rows[0]["sampling"] is not None
            line: dict[str, Any] = {"color": family_color(rows[0]["family"]), "marker": "o"}
            line |= {"markersize": 4, "linewidth": 1.6}
            if sampled:
                shade = shades.setdefault(name, _SHADES[len(shades) % len(_SHADES)])
                line |= {"color": shade, "linestyle": DASHED, "marker": "s"}
            epsilons = [row["epsilon"] for row in rows]
            errors.plot(epsilons, [row["effective_rmse"] for row in rows], label=name, **line)
            if not sampled:
                line, name = line | {"color": INK}, "without sampling"
            if name not in risks.get_legend_handles_labels()[1]:
                risks.plot(epsilons, [row["advantage"] for row in rows], label=name, **line)
        for ax in (errors, risks):
            powers_of_two(ax, sorted({row["epsilon"] for row in summary["rows"]}))
            ax.set_xlabel(f"epsilon at delta {summary['delta']:g}")
        errors.set(title="Error of a round's mean", ylabel="rmse of its query, in clip norms")
        tens(errors)
        figure.legend(*errors.get_legend_handles_labels(), loc="outside lower center", ncols=4)
        risks.legend(loc="best")
        risks.set(title="Attacker's advantage", ylabel="at most", ylim=(0, 1))
    return png.getvalue()
