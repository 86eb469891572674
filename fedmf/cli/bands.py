"""fedmf plan bands: the number of bands with the least error at a privacy target."""

import pathlib
from typing import TYPE_CHECKING, Any

import click

from fedmf.cli.errors import Command, arguments_checked
from fedmf.cli.options import (
    COUNT,
    OutputFile,
    json_option,
    options_of,
    show,
    status_line,
)

if TYPE_CHECKING:
    from fedmf.privacy.bands import BandChoice


class _Counts(click.ParamType[list[int]]):
    name = "integer,integer,..."

    def convert(
        self, value: str | list[int], param: click.Parameter | None, ctx: click.Context | None
    ) -> list[int]:
        return (
            value
            if isinstance(value, list)
            else [COUNT(text, param, ctx) for text in value.split(",")]
        )


@click.command(cls=Command)
@options_of(
    "PlanConfig",
    names=(
        *("rounds", "population", "cohort_size", "sampling", "epsilon", "delta"),
        *("workload", "workload_momentum"),
    ),
    required=("rounds", "population", "cohort_size", "epsilon"),
    defaults=True,
)
@click.option("--bands", type=_Counts(), help="Candidates, as in 8,16,32.  [default: a search]")
@click.option(
    "--dense", is_flag=True, help="Try the best encoder of all without amplification as well."
)
@click.option("--out", type=OutputFile(".png"), help="Draw the curve into this PNG file.")
@json_option
def bands(
    promise: dict[str, Any],
    bands: list[int] | None,
    dense: bool,
    out: pathlib.Path | None,
    as_json: bool,
) -> None:
    """The number of bands with the least error.

    This is for servers that draw clients at random. Few bands are amplified more by sampling, many
    leave less noise in the sums. Without random sampling, as with phones, there is nothing to
    choose: take as many bands as rounds that a client stays away.

    \b
    Example:
      fedmf plan bands --rounds 128 --population 2560 --cohort-size 40 --epsilon 4 --out bands.png
      fedmf plan bands --rounds 2052 --population 342000 --cohort-size 1000 --epsilon 8 \\
        --bands 32,64,342
    """
    from fedmf import workloads
    from fedmf.files import write_atomically
    from fedmf.privacy.bands import BandChoice, BandSearch

    workload, rounds = promise.pop("workload"), promise.pop("rounds")
    momentum = promise.pop("workload_momentum")
    promise["sampling"] = promise["sampling"] or "poisson"
    progress = status_line() or (lambda phrase: None)
    with arguments_checked():
        A = workloads.named(workload, rounds, momentum=momentum)
        search = BandSearch(workload=A, **promise)
        rows = []
        if dense:  # first: where it is too large that is known at once
            progress("fitting the dense optimum")
            rows.append(search.dense())
        progress("fitting the first number of bands")
        for row in search.rows(bands):
            progress(f"{row.bands} bands: rmse {row.rmse:.4g}")
            rows.append(row)
        rows.sort(key=lambda row: (row.family == "dense", row.bands))
    progress("")
    choice = BandChoice(search=search, rows=tuple(rows))
    if out is not None:
        from fedmf.reports.bands import bands_picture

        write_atomically(out, bands_picture(choice.summary()))
    if as_json:
        show(choice.summary() | ({"picture": str(out)} if out else {}), as_json)
    else:
        click.echo(_table(choice) + (f"\nPicture: {out}" if out else ""))


def _table(choice: "BandChoice") -> str:
    best, p, search = choice.best, choice.participation, choice.search
    lines = [" bands         q  events  noise each     noise       rmse  per client"]
    for row in choice.rows:
        name = "dense" if row.family == "dense" else row.bands
        probability = f"{row.probability:.5f}" if row.amplified else "-"
        mark = "best" if row is best else "within 1%" if row in choice.close else ""
        lines.append(
            f"{name:>6}  {probability:>8}  {row.compositions:>6}  "
            f"{row.per_query_noise_multiplier:10.5f}  {row.noise_multiplier:8.5f}  "
            f"{row.rmse:9.4g}  {row.effective_rmse:10.4g}  {mark}".rstrip()
        )
    chosen = (
        "the dense optimum"
        if best.family == "dense"
        else f"{best.bands} band{'s' * (best.bands != 1)}"
    )
    lines.append(
        f"epsilon {search.epsilon:g} at delta {search.delta:g}; {p.rounds} rounds; cohorts of "
        f"{search.cohort_size:,} out of {search.population:,} clients.\n"
        "q: chance of a client to be drawn in a round of its part (-: no sampling); events: rounds "
        "of its part. noise each: stddev\n"
        f"over the largest column norm; noise: over the sensitivity of {p.max_participations} "
        f"participation{'s' * (p.max_participations != 1)} {p.min_sep} rounds apart. rmse: of a\n"
        "round's running query at clip norm 1; per client: divided by the cohort, as in the mean.\n"
        f"Choice: {chosen}, {'with' if best.amplified else 'without'} amplification by sampling."
    )
    if choice.failure:
        lines.append(
            "The guarantees of these rows are simulated. Any of them is wrong "
            f"with probability at most {choice.failure:.2g}, over\n"
            "the coins of the simulations: that is the chance for the row that "
            "was chosen among them."
        )
    if not best.amplified and best.family == "banded" and p.max_participations > 1:
        lines.append(
            "Without amplification the best encoder of all, for clients in a fixed order, can "
            "be better: see --dense."
        )
    return "\n".join(lines)
