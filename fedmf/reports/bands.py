"""The picture of a choice of bands: error over the number of bands at one privacy target."""

from typing import Any

from matplotlib.ticker import NullLocator, ScalarFormatter, StrMethodFormatter

from fedmf.reports.canvas import BLUE, DASHED, RED, SOFT, canvas


def bands_picture(choice: dict[str, Any]) -> bytes:
    """A PNG of rmse over bands, on a logarithmic axis of bands.

    Args:
      choice: `fedmf.privacy.bands.BandChoice.summary()`.
    """
    rows, best = choice["rows"], choice["best"]
    banded = [row for row in rows if row["family"] == "banded"]
    with canvas(3.9, "") as (figure, png):
        ax = figure.subplots()
        ax.set_xscale("log", base=2)
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
        tried = sorted({row["bands"] for row in banded})
        powers = [b for b in tried if b & (b - 1) == 0]
        ax.set_xticks(powers if len(powers) > 1 else tried)
        ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_major_formatter(ScalarFormatter(useOffset=False))
        ax.legend(loc="best")
    return png.getvalue()
