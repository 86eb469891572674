"""The picture of a participation forecast: the pool over the rounds, who comes how often, and which min separation can be held."""

import textwrap
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from fedmf.reports.plots import canvas, whole_steps

_BLUE, _RED, _SOFT = "#1f5f8b", "#c1440e", "#6b6b6b"
_MAX_BARS = 24
_TITLE = 74  # letters that fit the width
_PLATE = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.0}


def participation_picture(forecast: dict[str, Any]) -> bytes:
    """A PNG with up to three panels.

    Args:
      forecast: `fedmf.cohorts.forecast.Forecast.values()`; with "tried" and "largest_min_sep" of a search, if there was one.
    """
    tried = forecast.get("tried")
    with canvas(6.2 if tried else 5.4, forecast["note"]) as (figure, out):
        figure.suptitle(textwrap.fill(forecast["title"], _TITLE), fontsize=10.5, fontweight="bold")
        above, below = cast(Sequence[SubFigure], figure.subfigures(2, 1))
        _over_rounds(above.subplots(), forecast)
        if tried:
            left, right = np.ravel(below.subplots(1, 2))
            _histogram(left, forecast)
            _search(right, forecast, tried)
        else:
            _histogram(below.subplots(), forecast)
    return out.getvalue()


def _thousands(axis: Any) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _over_rounds(ax: Axes, forecast: dict[str, Any]) -> None:
    n, dry = forecast["rounds"], forecast["dry"]
    if forecast["pool"]:
        ax.plot(forecast["pool_rounds"], forecast["pool"], color=_BLUE, linewidth=1.1, marker=_marker(forecast["pool"]))
        ax.axhline(1.0, color=_RED, linewidth=1.1, linestyle=(0, (5, 3)))
        ax.annotate("one cohort", (0.995, 1.0), xycoords=("axes fraction", "data"), xytext=(0, 3),
                    textcoords="offset points", ha="right", fontsize=8, color=_RED)  # fmt: skip
        ax.set_yscale("log")
        places = [value * 10.0**power for power in range(-3, 7) for value in (1, 2, 5)]
        low, high = min(0.7, *forecast["pool"]), max(1.5, *forecast["pool"])
        low = max(low, 0.01)
        ax.set_ylim(low * 0.85, high * 1.2)
        ax.yaxis.set_major_locator(FixedLocator([place for place in places if low * 0.85 <= place <= high * 1.2]))
        ax.yaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.set_title("The pool, in cohorts")
        ax.set_ylabel("eligible and available, / cohort")
    else:
        ax.plot(range(n), forecast["cohorts"], color=_BLUE, linewidth=0.7, marker=_marker(forecast["cohorts"]))
        ax.axhline(1.0, color=_SOFT, linewidth=1.1, linestyle=(0, (5, 3)))
        ax.set_ylim(bottom=0)
        ax.set_title("Clients that take part, over the cohort size")
        ax.set_ylabel("share of the cohort size")
    for start, stop in _stretches(dry):
        ax.axvspan(start - 0.5, stop + 0.5, color=_RED, alpha=0.25, linewidth=0)
    if dry:
        ax.set_title(f"{len(dry):,} of {n:,} rounds are dry", loc="right", fontsize=9, color=_RED)
    ax.set_xlim(-0.5, n - 0.5)
    ax.set_xlabel("round")
    ax.xaxis.set_major_locator(whole_steps(8))
    _thousands(ax.xaxis)


def _marker(values: Sequence[float]) -> str:
    """A line of one point is nothing."""
    return "o" if len(values) == 1 else ""


def _stretches(rounds: list[int]) -> list[tuple[int, int]]:
    """(first, last) of each run of consecutive numbers."""
    found: list[tuple[int, int]] = []
    for t in rounds:
        if found and t == found[-1][1] + 1:
            found[-1] = (found[-1][0], t)
        else:
            found.append((t, t))
    return found


def _histogram(ax: Axes, forecast: dict[str, Any]) -> None:
    shares, limit = forecast["histogram"], forecast["max_participations"]
    most = max(shares)
    if most < _MAX_BARS:
        places: Sequence[int] = range(most + 1)
        heights = [100 * shares.get(k, 0.0) for k in places]
        ax.bar(places, heights, width=0.8, color=[_SOFT if k == 0 else _RED if k > limit else _BLUE for k in places])
        if most < 10:
            for k, height in zip(places, heights, strict=True):
                text = "" if height == 0 else f"{height:.0f}%" if height >= 0.95 else f"{height:.1g}%"
                ax.annotate(text, (k, height), xytext=(0, 2), textcoords="offset points", ha="center", fontsize=7.5)
    else:
        for places, color in ((range(min(limit, most) + 1), _BLUE), (range(limit + 1, most + 1), _RED)):
            ax.bar(places, [100 * shares.get(k, 0.0) for k in places], width=1.0, color=color)
    shown = limit <= max(2 * most, 12)
    if shown:
        ax.axvline(limit + 0.5, color=_RED, linewidth=1.1, linestyle=(0, (5, 3)))
    left = shown and limit < 0.5 * most
    ax.annotate(f"planned limit {limit:,}", (limit + 0.5, 0.97) if shown else (0.99, 0.97), va="top",
                xycoords=("data" if shown else "axes fraction", "axes fraction"), xytext=(4 if left else -4, 0),
                textcoords="offset points", ha="left" if left else "right", fontsize=8, color=_RED)  # fmt: skip
    ax.set_title("How often a client takes part")
    ax.set_xlabel("participations")
    ax.set_ylabel("clients, %")
    ax.grid(axis="x", visible=False)
    ax.margins(y=0.18)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _search(ax: Axes, forecast: dict[str, Any], tried: dict[int, int | None]) -> None:
    n, best, asked = forecast["rounds"], forecast["largest_min_sep"], forecast["min_sep"]
    held = [b for b, first in tried.items() if first is None]
    broken = [(b, first) for b, first in tried.items() if first is not None]
    if held:
        ax.plot(held, [n] * len(held), "o", color=_BLUE, markersize=5, label="no dry round")
    if broken:
        ax.plot(*zip(*broken, strict=True), "x", color=_RED, markersize=6, label="first dry round")
    ends = [*tried, *([asked] if asked is not None else [])]
    middle = max(ends) / 2
    ax.set_xlim(0, 1.06 * max(ends))
    if best is not None:
        ax.axvline(best, color=_BLUE, linewidth=1.1)
        ax.annotate(f"{best:,} can be held", (best, 0.04), xycoords=("data", "axes fraction"),
                    xytext=(-4 if best > middle else 4, 0), textcoords="offset points",
                    ha="right" if best > middle else "left", fontsize=8, color=_BLUE, bbox=_PLATE)  # fmt: skip
    if asked is not None and asked != best:
        ax.axvline(asked, color=_SOFT, linewidth=1.1, linestyle=(0, (5, 3)))
        ax.annotate(f"{asked:,} asked", (asked, 0.14), xycoords=("data", "axes fraction"),
                    xytext=(-4 if asked > middle else 4, 0), textcoords="offset points",
                    ha="right" if asked > middle else "left", fontsize=8, color=_SOFT, bbox=_PLATE)  # fmt: skip
    ax.set_title("Held until which round")
    ax.set_xlabel("min separation")
    ax.set_ylabel("round")
    ax.set_ylim(0, 1.08 * n)
    # Below the panel: points and lines can be anywhere in it.
    ax.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.24), ncols=2, fontsize=8, columnspacing=1.2, handletextpad=0.3
    )
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(whole_steps(6))
        _thousands(axis)
