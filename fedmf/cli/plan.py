"""The command `fedmf plan`, which answers questions about a plan before anything is trained."""

import itertools
import pathlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from fedmf.cli.errors import Command, Group, arguments_checked
from fedmf.cli.options import (
    chosen_options,
    grouped,
    json_option,
    options_of,
    plan_config,
    plan_options,
    show,
    status_line,
)
from fedmf.cli.participation import participation
from fedmf.cli.values import COUNT, EXISTING_FILE, Gigabytes, Listed, OutputFile

if TYPE_CHECKING:
    from fedmf.privacy.bands import BandChoice
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
    momentum = config_options.pop("workload_momentum")
    config_options["sampling"] = config_options["sampling"] or "poisson"
    with arguments_checked(), status_line() as progress:
        A = workloads.by_name(workload, num_rounds, momentum=momentum)
        search = BandSearch(workload=A, **config_options)
        rows = []
        if dense:
            # The dense fit is made first. If it is too large for the memory, it is refused
            # immediately.
            progress("fitting the dense optimum")
            rows.append(search.dense())
        progress("fitting the first number of bands")
        for row in search.rows(bands):
            progress(f"{row.bands} bands: rmse {row.rmse:.4g}")
            rows.append(row)
        rows.sort(key=lambda row: (row.family == "dense", row.bands))
    choice = BandChoice(search=search, rows=tuple(rows))
    summary = choice.summary()
    if out is not None:
        from fedmf.reports.pictures import bands_picture

        write_atomically(out, bands_picture(summary))
        summary["picture"] = str(out)
    if as_json:
        show(summary, as_json)
        return
    click.echo(_table(choice))
    if out is not None:
        click.echo(f"Picture: {out}")


def _table(choice: "BandChoice") -> str:
    """Returns the candidate numbers of bands as a table, with its legend and the chosen number."""
    from fedmf.privacy.rounding import up

    best_candidate = choice.best
    lines = [" bands         q  events  noise each     noise       rmse  per client  advantage"]
    for row in choice.rows:
        name = str(row.bands)
        if row.family == "dense":
            name = "dense"
        probability = "-"
        if row.amplified:
            probability = f"{row.probability:.5f}"
        remark = ""
        if row is best_candidate:
            remark = "best"
        elif row in choice.close:
            remark = "within 1%"
        lines.append(
            f"{name:>6}  {probability:>8}  {row.compositions:>6}  "
            f"{row.per_query_noise_multiplier:10.5f}  {row.noise_multiplier:8.5f}  "
            f"{row.rmse:9.4g}  {row.effective_rmse:10.4g}  "
            f"{up(row.advantage, 3):>9}  {remark}".rstrip()
        )
    lines.append(_legend(choice))
    if choice.failure:
        lines.append(
            "The guarantees of these rows are simulated. Any of them is wrong "
            f"with probability at most {choice.failure:.2g}, over\n"
            "the coins of the simulations: that is the chance for the row that "
            "was chosen among them."
        )
    has_repetition = choice.participation.max_participations > 1
    if not best_candidate.amplified and best_candidate.family == "banded" and has_repetition:
        lines.append(
            "Without amplification the best encoder of all, for clients in a fixed order, can "
            "be better: see --dense."
        )
    return "\n".join(lines)


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
    amplification = "without amplification"
    if best_candidate.amplified:
        amplification = "with amplification"
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
        f"Choice: {chosen_encoder}, {amplification} by sampling."
    )


@click.group(cls=Group)
def plan() -> None:
    """Answer before training: who, bands, rate, noise.

    \b
    Example:
      fedmf plan bands --help
    """


@click.command("learning-rate", cls=Command)
@plan_options
@json_option
def learning_rate(config_options: dict[str, Any], as_json: bool) -> None:
    """A server learning rate for a mechanism and its noise.

    The rule (banded paper, App. I) is a regression over tuned runs of StackOverflow next-word
    prediction (2052 rounds, server momentum 0.95, client rate 1, clip norm 1, effective errors from
    0.0031 to 0.332). Beyond them it extrapolates, and says so. For another task take its slope: a
    mechanism of half the error wants a rate 1.9 times as high.

    \b
    Example:
      fedmf plan learning-rate banded.npz --rounds 256 --min-sep 64 --epsilon 8 --cohort-size 100
      fedmf plan learning-rate banded.npz --rounds 256 --epsilon 8 --cohort-size 100 \\
        --sampling poisson --population 100000
    """
    from fedmf.privacy import learning_rate as rule
    from fedmf.privacy.attack_risk import attack_risk

    with arguments_checked():
        if config_options["noise_multiplier"] == 0:
            raise ValueError(
                "noise_multiplier=0: the rule is for runs with noise; without noise the rate "
                "is bounded by stability"
            )
        config = plan_config(config_options)
        planned_run = config.plan()
        cohort_size = config.claimed_cohort or config.cohort_size
        error = rule.effective_rmse(planned_run, config.fit_workload(), cohort_size=cohort_size)
        rate = rule.predicted_learning_rate(error, clip_norm=planned_run.clip_norm, grid=None)
    extrapolations = rule.extrapolations(
        error, rounds=planned_run.mechanism.rounds, clip_norm=planned_run.clip_norm
    )
    extrapolations_values: list[str] | str = extrapolations
    if not as_json:
        extrapolations_values = "; ".join(extrapolations) or "no, if the task is that"
    show(
        {
            "noise_multiplier": planned_run.noise_multiplier,
            "epsilon": planned_run.epsilon,
            "delta": planned_run.delta,
            "attack_risk": attack_risk(planned_run).values(),
            "effective_rmse": error,
            "predicted_rate": rate,
            "learning_rate": rule.on_grid(rate),
            "also_try": [rule.on_grid(rate, steps=-1), rule.on_grid(rate, steps=1)],
            "fitted_to": {
                "task": rule.TASK,
                "rounds": rule.ROUNDS,
                "clip_norm": rule.CLIP_NORM,
                "effective_rmse": list(rule.ERRORS),
            },
            "extrapolates": extrapolations_values,
        },
        as_json,
    )


@click.command(cls=Command)
@click.argument("mechanism_file", metavar="MECHANISM", type=EXISTING_FILE)
@click.option("--parameters", type=COUNT, default=4_050_748, help="Size of the model.")
@click.option(
    "--noise-memory",
    "memory",
    type=Gigabytes(),
    help="GB that may be planned with.  [default: a quarter of the memory]",
)
@json_option
def noise(mechanism_file: pathlib.Path, parameters: int, memory: int | None, as_json: bool) -> None:
    """The strategies by which training can make the noise, and their costs.

    \b
    Example:
      fedmf plan noise banded.npz --parameters 4050748
    """
    from fedmf import load_mechanism
    from fedmf.noise.graph_strategies import graph_strategy
    from fedmf.noise.host_strategies import host_strategies
    from fedmf.noise.strategy import explain

    with arguments_checked():
        stream = load_mechanism(mechanism_file).stream().causal()
        folder = pathlib.Path.cwd()
        host = host_strategies(stream, parameters, memory_bytes=memory, folder=folder)
        graph = [graph_strategy(stream, parameters)]
    if as_json:
        values = {
            "noise_strategies": [strategy.summary() for strategy in host],
            "graph_noise_strategies": [strategy.summary() for strategy in graph],
        }
        show(values, as_json)
        return
    click.echo(
        f"Noise for {parameters:,} parameters, the choice first. Cost: of a round on average over "
        "the run, in draws of one\nvector of independent Gaussians of that size. Block: rounds "
        "computed at a time. State: vectors of model size between blocks.\n\n"
        "Precomputed by the host (fedmf train, federated.HostNoise):\n"
        f"{explain(host)}\n\n"
        "In the graph (the default of federated.dp_aggregator in other pipelines):\n"
        f"{explain(graph)}"
    )


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
    """Families against epsilon: noise, error, risk and cost.

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
        devices: dict[str, Any] = {}
        if comparison_options["availability"] is not None:
            devices = _check_ins(comparison_options["availability"], population, chosen_values)
            chosen_values.setdefault("min_sep", devices["min_sep"])
        comparison = _comparison(chosen_values, population, comparison_options)
        rows = []
        reasons_left_out: dict[str, str] = {}
        # A family that the user named is not skipped if it fails. Its error ends the command.
        skipped_families: dict[str, str] | None = reasons_left_out
        if comparison_options["family"]:
            skipped_families = None
        progress("fitting")
        for row in comparison.rows(skipped_families):
            progress(f"{row.name} at epsilon {row.epsilon:g}: {row.effective_rmse:.4g}")
            rows.append(row)
    summary = comparison.summary(rows)
    summary["check_ins"] = devices or None
    summary["left_out"] = reasons_left_out
    if out is not None:
        from fedmf.reports.pictures import comparison_picture

        write_atomically(out, comparison_picture(summary))
        summary["picture"] = str(out)
    if as_json:
        show(summary, as_json)
        return
    if devices:
        show(devices, as_json)
        click.echo()
    click.echo("\n".join(_comparison_lines(summary)))
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


def _check_ins(availability: str, population: int, chosen: dict[str, Any]) -> dict[str, Any]:
    """Returns how often devices check in, and the largest min separation that this rate allows.

    Raises:
      ValueError: if the command line has a larger min separation.
    """
    from fedmf.privacy.comparison import check_ins

    sizes = {name: chosen[name] for name in ("rounds", "cohort_size")}
    devices = check_ins(availability, population=population, **sizes)
    max_min_sep = devices["min_sep"]
    min_sep = chosen.get("min_sep", max_min_sep)
    if min_sep > max_min_sep:
        raise ValueError(
            f"min_sep={min_sep} is more than the {max_min_sep} that availability="
            f"{availability} allows: lower it, or leave it out"
        )
    return devices


def _comparison_lines(summary: dict[str, Any]) -> list[str]:
    """Returns the lines of the comparison's table, followed by its legend."""
    from fedmf.privacy.rounding import up
    from fedmf.reports.text import aligned

    names = ("epsilon", "noise", "rmse", "per client", "advantage", "found at 1%", "s", "MB")
    table = [["family", "bands", *names]]
    for row in summary["rows"]:
        numbers = ("epsilon", "noise_multiplier", "rmse", "effective_rmse")
        table.append(
            [row["name"], str(row["bands"]), *(f"{row[name]:.4g}" for name in numbers)]
            + [up(row[name], 3) for name in ("advantage", "true_positive_rate")]
            + [f"{row['noise_seconds']:.2g}", f"{row['noise_bytes'] / 1e6:.4g}"]
        )
    separation = ""
    if summary["min_sep"] is not None:
        separation = f", {summary['min_sep']} or more apart"
    return [
        *aligned(table),
        f"delta {summary['delta']:g}; {summary['rounds']} rounds; cohorts of "
        f"{summary['cohort_size']:,} out of {summary['population']:,} clients; without sampling",
        f"a client takes part up to {summary['max_participations']} times{separation}. noise: "
        "noise multiplier of the run; rmse: of a round's",
        "running query of sums at noise multiplier 1 and clip norm 1; per client: noise * rmse / "
        "cohort. advantage, found at",
        "1%: at most, of an attacker (fedmf.attack_risk). s, MB: of making a round's noise for "
        f"{summary['parameters']:,}",
        "parameters on one thread, about.",
    ]


for command in (participation, bands, learning_rate, noise, compare):
    plan.add_command(command)
