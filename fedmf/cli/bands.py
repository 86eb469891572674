"""The command `fedmf plan bands`, which chooses a number of bands."""

import pathlib
from typing import TYPE_CHECKING, Any

import click

from fedmf.cli.errors import Command, arguments_checked
from fedmf.cli.options import json_option, options_of, show, status_line
from fedmf.cli.values import COUNT, Listed, OutputFile

if TYPE_CHECKING:
    from fedmf.privacy.bands import BandChoice


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
@click.option(
    "--bands",
    type=Listed(COUNT, "integer,integer,..."),
    help="Candidates, as in 8,16,32.  [default: a search]",
)
@click.option(
    "--dense", is_flag=True, help="Try the best encoder of all without amplification as well."
)
@click.option("--out", type=OutputFile(".png"), help="Draw the curve into this PNG file.")
@json_option
def bands(
    config_options: dict[str, Any],
    bands: list[int] | None,
    dense: bool,
    out: pathlib.Path | None,
    as_json: bool,
) -> None:
    """The number of bands with the least error.

    This is for servers that sample clients at random. Few bands are amplified more by sampling,
    many leave less noise in the sums. Without random sampling, as with phones, there is nothing to
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

    workload = config_options.pop("workload")
    num_rounds = config_options.pop("rounds")
    workload_momentum = config_options.pop("workload_momentum")
    config_options["sampling"] = config_options["sampling"] or "poisson"
    with arguments_checked(), status_line() as progress:
        A = workloads.by_name(workload, num_rounds, momentum=workload_momentum)
        search = BandSearch(workload=A, **config_options)
        table_rows = []
        if dense:
            # The dense optimum is fitted first. If it is too large for the memory, the command
            # fails immediately.
            progress("fitting the dense optimum")
            table_rows.append(search.dense())
        progress("fitting the first number of bands")
        for row in search.rows(bands):
            progress(f"{row.bands} bands: rmse {row.rmse:.4g}")
            table_rows.append(row)
        table_rows.sort(key=lambda row: (row.family == "dense", row.bands))
    band_choice = BandChoice(search=search, rows=tuple(table_rows))
    choice_summary = band_choice.summary()
    if out is not None:
        from fedmf.reports.command_pictures import bands_picture

        write_atomically(out, bands_picture(choice_summary))
        choice_summary["picture"] = str(out)
    if as_json:
        show(choice_summary, as_json)
        return
    click.echo(_table(band_choice))
    if out is not None:
        click.echo(f"Picture: {out}")


def _table(choice: "BandChoice") -> str:
    """Returns the candidate numbers of bands as a table, with its legend and the chosen number."""
    from fedmf.privacy.rounding import up

    best_candidate = choice.best
    table_lines = [
        " bands         q  events  noise each     noise       rmse  per client  advantage"
    ]
    for row in choice.rows:
        row_name = str(row.bands)
        if row.family == "dense":
            row_name = "dense"
        probability_text = "-"
        if row.amplified:
            probability_text = f"{row.probability:.5f}"
        row_remark = ""
        if row is best_candidate:
            row_remark = "best"
        elif row in choice.close:
            row_remark = "within 1%"
        table_lines.append(
            f"{row_name:>6}  {probability_text:>8}  {row.compositions:>6}  "
            f"{row.per_query_noise_multiplier:10.5f}  {row.noise_multiplier:8.5f}  "
            f"{row.rmse:9.4g}  {row.effective_rmse:10.4g}  "
            f"{up(row.advantage, 3):>9}  {row_remark}".rstrip()
        )
    table_lines.append(_legend(choice))
    if choice.failure:
        table_lines.append(
            "The guarantees of these rows are simulated. Any of them is wrong "
            f"with probability at most {choice.failure:.2g}, over\n"
            "the coins of the simulations: that is the chance for the row that "
            "was chosen among them."
        )
    has_repetition = choice.participation.max_participations > 1
    if not best_candidate.amplified and best_candidate.family == "banded" and has_repetition:
        table_lines.append(
            "Without amplification the best encoder of all, for clients in a fixed order, can "
            "be better: see --dense."
        )
    return "\n".join(table_lines)


def _legend(choice: "BandChoice") -> str:
    """Returns an explanation of the table's columns. Its last line is the chosen number of
    bands.
    """
    from fedmf.reports.text import plural

    best_candidate = choice.best
    participation = choice.participation
    search = choice.search
    chosen_encoder = "the dense optimum"
    if best_candidate.family != "dense":
        chosen_encoder = f"{best_candidate.bands} {plural('band', best_candidate.bands)}"
    amplification_text = "without amplification"
    if best_candidate.amplified:
        amplification_text = "with amplification"
    num_participations = participation.max_participations
    return (
        f"epsilon {search.epsilon:g} at delta {search.delta:g}; {participation.rounds} rounds; "
        f"cohorts of {search.cohort_size:,} out of {search.population:,} clients.\n"
        "q: probability that a client is sampled in a round of its partition (-: no sampling);\n"
        "events: rounds of its partition. noise each: stddev "
        f"over the largest column norm; noise: over the sensitivity of {num_participations} "
        f"{plural('participation', num_participations)} {participation.min_sep} rounds apart.\n"
        "rmse: of a round's running query at clip norm 1; per client: divided by the cohort, as in "
        "the mean.\n"
        "advantage: at most, of an attacker who guesses who is there (fedmf.attack_risk).\n"
        f"Choice: {chosen_encoder}, {amplification_text} by sampling."
    )
