"""The picture of a choice of bands: error over the number of bands at one privacy target."""

from typing import Any

from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, ScalarFormatter

from fedmf.reports.plots import canvas

_ALIKE = 1.1  # ratio of errors below which a logarithmic axis has no room for ticks that differ
_SAMPLED, _PLAIN, _SOFT = "#1f5f8b", "#c1440e", "#6b6b6b"


def bands_picture(choice: dict[str, Any]) -> bytes:
    """A PNG of rmse over bands, on logarithmic axes.

    Args:
      choice: `fedmf.privacy.bands.BandChoice.summary()`.
    """
    rows = choice["rows"]
    banded = [row for row in rows if row["family"] == "banded"]
    best = choice["best"]
    with canvas(3.9, "") as (figure, out):
        ax = figure.subplots()
        ax.set_xscale("log", base=2)
        errors = [row["rmse"] for row in rows]
        alike = max(errors) < _ALIKE * min(errors)
        ax.set_yscale("linear" if alike else "log")
        if banded:
            ax.plot([row["bands"] for row in banded], [row["rmse"] for row in banded], color=_SAMPLED, zorder=2)
        for amplified, color, label in (
            (True, _SAMPLED, "amplified by sampling"),
            (False, _PLAIN, "without amplification"),
        ):
            some = [row for row in banded if row["amplified"] == amplified]
            if some:
                ax.plot(
                    [row["bands"] for row in some], [row["rmse"] for row in some], "o", color=color, label=label, markersize=5, zorder=3
                )  # fmt: skip
        for row in rows:
            if row["family"] == "dense":
                ax.axhline(
                    row["rmse"],
                    color=_PLAIN,
                    linewidth=1.4,
                    linestyle=(0, (5, 3)),
                    label="dense, without amplification",
                )
        ax.axhspan(
            best["rmse"], 1.01 * best["rmse"], color=_SOFT, alpha=0.18, linewidth=0, label="within 1% of the best"
        )
        if best["family"] == "banded":
            ax.plot(
                best["bands"],
                best["rmse"],
                "o",
                markersize=11,
                markerfacecolor="none",
                markeredgecolor=_SAMPLED,
                zorder=4,
            )
        name = "the dense optimum" if best["family"] == "dense" else f"{best['bands']} band{'s'[: best['bands'] > 1]}"
        ax.set_title(f"Error over bands at epsilon {choice['epsilon']:g}: the choice is {name}")
        ax.set_xlabel("bands")
        ax.set_ylabel("rmse of a round's running query")
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        candidates = sorted({row["bands"] for row in banded})
        if candidates:
            powers = [2**k for k in range(candidates[-1].bit_length()) if 2**k >= candidates[0]]
            ax.xaxis.set_major_locator(FixedLocator(powers if len(powers) > 1 else candidates))
        if len(candidates) == 1:
            ax.set_xlim(candidates[0] / 2, candidates[0] * 2)
        if alike:
            ax.set_ylim(min(errors) / _ALIKE, max(errors) * _ALIKE)
            ax.yaxis.set_major_locator(MaxNLocator(nbins=6))
            ax.yaxis.set_major_formatter(ScalarFormatter(useOffset=False))
        else:
            ax.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
            ax.yaxis.set_minor_formatter(lambda value, _: f"{value:.3g}")
            ax.tick_params(axis="y", which="minor", labelsize=8, labelcolor=_SOFT)
        ax.xaxis.set_minor_locator(NullLocator())
        ax.legend(loc="best")
    return out.getvalue()
