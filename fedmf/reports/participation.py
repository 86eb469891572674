"""The picture of a participation forecast: the pool over the rounds, and who comes how often."""

import textwrap
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from fedmf.reports.canvas import BLUE, DASHED, RED, SOFT, canvas, marker, whole_steps

_MAX_SEPARATE_BARS = 24
_MAX_LABELLED_BARS = 10
_TITLE_LETTERS = 74  # that fit the width


def participation_picture(forecast: dict[str, Any]) -> bytes:
    """A PNG with two panels.

    Args:
      forecast: of `fedmf.cohorts.forecast.forecast`, with "availability" and "sampling".
    """
    note = ""
    if forecast["simulated_population"] != forecast["population"]:
        clients, cohort = forecast["simulated_population"], forecast["simulated_cohort_size"]
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
    limit = f"min separation {forecast['min_sep']:,}"
    if forecast["schema"] == "budget":
        limit = f"participation budget {forecast['budget']:.4g}"
    return (
        f"{forecast['population']:,} clients, {forecast['cohort_size']:,} a round, "
        f"{available}, {drawn}{limit}"
    )


def _draw_rounds(ax: Axes, forecast: dict[str, Any]) -> None:
    """The pool or, where a scheme draws from all, the cohorts;
    rounds without enough clients are shaded.
    """
    n, dry, pool = forecast["rounds"], forecast["dry"], forecast["pool"]
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
        ax.set_yscale("log")
        ax.set_ylim(0.85 * max(0.01, min(0.7, *pool)), 1.2 * max(1.5, *pool))
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
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
    shares, limit = forecast["histogram"], forecast["max_participations"]
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
