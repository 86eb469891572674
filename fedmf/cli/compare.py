"""The command `fedmf plan compare`, which compares families and sampling schemes."""

import itertools
import pathlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from fedmf.cli.errors import Command, arguments_checked
from fedmf.cli.options import chosen_options, grouped, json_option, options_of, show, status_line
from fedmf.cli.values import COUNT, Listed, OutputFile

if TYPE_CHECKING:
    from fedmf.privacy.comparison import Comparison


def _families() -> Iterable[str]:
    """Returns the names of the families that can be fitted."""
    from fedmf.mechanisms.family import fitted_families

    return fitted_families()


def _schemes() -> Iterable[str]:
    """Returns the names of the sampling schemes."""
    from fedmf.privacy.sampling import SCHEMES

    return SCHEMES


_NUMBERS = Listed(click.FLOAT, "number number ...")


@click.command(cls=Command)
@options_of(
    "PlanConfig",
    names=(
        *("rounds", "cohort_size", "population", "schema", "min_sep", "max_participations"),
        *("bands", "delta", "workload", "workload_momentum"),
    ),
    required=("rounds", "cohort_size", "population"),
)
@grouped(
    "comparison_options",
    click.option(
        "--epsilon", type=_NUMBERS, multiple=True, required=True, help="Targets, as in 1 2 4 8."
    ),
    click.argument("more_epsilons", nargs=-1, type=_NUMBERS, metavar=""),
    click.option(
        "--family",
        type=Listed(click.STRING, "name,name,...", _families),
        multiple=True,
        help="Families.  [default: identity,tree,blt,banded]",
    ),
    click.option(
        "--sampling",
        type=Listed(click.STRING, "name,name,...", _schemes),
        multiple=True,
        help="Schemes, each with its best banded encoder.",
    ),
    click.option(
        "--availability",
        help="How often devices check in, for min_sep: every:3days, or how many in a round.",
    ),
    click.option(
        "--trials",
        type=COUNT,
        help="Also the noise for the best of so many trials under one guarantee, by private "
        "selection and by dividing epsilon.",
    ),
    click.option("--parameters", type=COUNT, default=4_050_748, help="Size of the model."),
)
@click.option("--out", type=OutputFile(".png"), help="Draw the errors into this PNG file.")
@json_option
def compare(
    config_options: dict[str, Any],
    comparison_options: dict[str, Any],
    out: pathlib.Path | None,
    as_json: bool,
) -> None:
    """Noise, error, risk and cost of families over epsilon.

    \b
    Example:
      fedmf plan compare --rounds 2000 --min-sep 400 --population 3000000 --cohort-size 6500 \\
        --epsilon 1 2 4 8 --out compare.png
      fedmf plan compare --rounds 512 --population 64000 --cohort-size 500 \\
        --availability every:3days --family blt,banded --epsilon 1 2 4 8
    """
    from fedmf.files import write_atomically

    with arguments_checked(), status_line() as progress:
        chosen_values = chosen_options(config_options)
        population = chosen_values.pop("population")
        check_in_values: dict[str, Any] = {}
        if comparison_options["availability"] is not None:
            check_in_values = _check_ins(
                comparison_options["availability"], population, chosen_values
            )
            chosen_values.setdefault("min_sep", check_in_values["min_sep"])
        comparison = _comparison(chosen_values, population, comparison_options)
        table_rows = []
        reasons_left_out: dict[str, str] = {}
        # If a family that the user named fails, its error ends the command. Other families are
        # skipped if they fail.
        skipped_families: dict[str, str] | None = reasons_left_out
        if comparison_options["family"]:
            skipped_families = None
        progress("fitting")
        for row in comparison.rows(skipped_families):
            progress(f"{row.name} at epsilon {row.epsilon:g}: {row.effective_rmse:.4g}")
            table_rows.append(row)
    comparison_summary = comparison.summary(table_rows)
    comparison_summary["check_ins"] = check_in_values or None
    comparison_summary["left_out"] = reasons_left_out
    comparison_summary["tuning"] = _tuning(comparison, comparison_options["trials"])
    if out is not None:
        from fedmf.reports.command_pictures import comparison_picture

        write_atomically(out, comparison_picture(comparison_summary))
        comparison_summary["picture"] = str(out)
    if as_json:
        show(comparison_summary, as_json)
        return
    if check_in_values:
        show(check_in_values, as_json)
        click.echo()
    click.echo("\n".join(_comparison_lines(comparison_summary)))
    if comparison_summary["tuning"] is not None:
        click.echo("\n".join(["", *_tuning_lines(comparison_summary["tuning"])]))
    if out is not None:
        click.echo(f"Picture: {out}")
    for family, reason in reasons_left_out.items():
        click.echo(f"Left out: {family}, since {reason}")


def _comparison(
    chosen: dict[str, Any], population: int, comparison_options: dict[str, Any]
) -> "Comparison":
    """Compares the mechanism families and sampling schemes that the command line names.

    Args:
      chosen: options of the plan that are on the command line.
      population: number of clients.
      comparison_options: families, schemes, epsilons and the size of the model.
    """
    from fedmf.privacy.comparison import Comparison

    epsilon_lists = (*comparison_options["epsilon"], *comparison_options["more_epsilons"])
    return Comparison.of(
        chosen,
        population=population,
        families=list(itertools.chain(*comparison_options["family"])) or None,
        schemes=list(itertools.chain(*comparison_options["sampling"])),
        epsilons=sorted({*itertools.chain(*epsilon_lists)}),
        parameters=comparison_options["parameters"],
    )


def _tuning(comparison: "Comparison", trials: int | None) -> dict[str, Any] | None:
    """Returns the noise for a choice among trials; None if it was not asked for."""
    from fedmf.privacy.tuning import tuning_summary

    if trials is None:
        return None
    with arguments_checked():
        return tuning_summary(trials, comparison.epsilons, comparison.config.delta)


def _tuning_lines(tuning: dict[str, Any]) -> list[str]:
    """Returns the lines of the table of the noise for a choice among trials."""
    from fedmf.reports.text import aligned

    table_rows = [[f"best of {tuning['trials']} trials", "epsilon", "noise", "of one run's"]]
    for row in tuning["rows"]:
        number_texts = [f"{row[name]:.4g}" for name in ("epsilon", "noise_multiplier")]
        table_rows.append([row["way"], *number_texts, f"{row['noise_ratio']:.2f} times"])
    return [
        *aligned(table_rows),
        "epsilon: of the chosen model. noise: noise multiplier of each trial, without sampling; "
        "the error of a trial",
        "grows like it. Private selection trains that many trials on average, and keeps the best "
        "one only.",
    ]


def _check_ins(availability: str, population: int, chosen: dict[str, Any]) -> dict[str, Any]:
    """Returns how often devices check in, and the largest min separation that this rate allows.

    Raises:
      ValueError: if the command line has a larger min separation.
    """
    from fedmf.privacy.comparison import check_ins

    run_sizes = {name: chosen[name] for name in ("rounds", "cohort_size")}
    check_in_values = check_ins(availability, population=population, **run_sizes)
    max_min_sep = check_in_values["min_sep"]
    min_sep = chosen.get("min_sep", max_min_sep)
    if min_sep > max_min_sep:
        raise ValueError(
            f"min_sep={min_sep} is more than the {max_min_sep} that availability="
            f"{availability} allows: lower it, or leave it out"
        )
    return check_in_values


def _comparison_lines(summary: dict[str, Any]) -> list[str]:
    """Returns the lines of the comparison's table, followed by its legend."""
    from fedmf.privacy.rounding import up
    from fedmf.reports.text import aligned

    column_names = ("epsilon", "noise", "rmse", "per client", "advantage", "found at 1%", "s", "MB")
    table_rows = [["family", "bands", *column_names]]
    for row in summary["rows"]:
        number_names = ("epsilon", "noise_multiplier", "rmse", "effective_rmse")
        table_rows.append(
            [row["name"], str(row["bands"]), *(f"{row[name]:.4g}" for name in number_names)]
            + [up(row[name], 3) for name in ("advantage", "true_positive_rate")]
            + [f"{row['noise_seconds']:.2g}", f"{row['noise_bytes'] / 1e6:.4g}"]
        )
    separation_text = ""
    if summary["min_sep"] is not None:
        separation_text = f", {summary['min_sep']} or more apart"
    return [
        *aligned(table_rows),
        f"delta {summary['delta']:g}; {summary['rounds']} rounds; cohorts of "
        f"{summary['cohort_size']:,} out of {summary['population']:,} clients; without sampling",
        f"a client takes part up to {summary['max_participations']} times{separation_text}. noise: "
        "noise multiplier of the run; rmse: of a round's",
        "running query of sums at noise multiplier 1 and clip norm 1; per client: noise * rmse / "
        "cohort. advantage, found at",
        "1%: at most, of an attacker (fedmf.attack_risk). s, MB: of making a round's noise for "
        f"{summary['parameters']:,}",
        "parameters on one thread, about.",
    ]
