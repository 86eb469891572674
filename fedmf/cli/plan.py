"""fedmf plan: questions that are answered before anything is trained."""

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


def _families() -> Iterable[str]:
    from fedmf.mechanisms.family import fitted_families

    return fitted_families()


def _schemes() -> Iterable[str]:
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
    with arguments_checked(), status_line() as progress:
        A = workloads.by_name(workload, rounds, momentum=momentum)
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
    choice = BandChoice(search=search, rows=tuple(rows))
    if out is not None:
        from fedmf.reports.pictures import bands_picture

        write_atomically(out, bands_picture(choice.summary()))
    if as_json:
        show(choice.summary() | ({"picture": str(out)} if out else {}), as_json)
    else:
        click.echo(_table(choice) + (f"\nPicture: {out}" if out else ""))


def _table(choice: "BandChoice") -> str:
    from fedmf.privacy.rounding import up

    best, p, search = choice.best, choice.participation, choice.search
    lines = [" bands         q  events  noise each     noise       rmse  per client  advantage"]
    for row in choice.rows:
        name = "dense" if row.family == "dense" else row.bands
        probability = f"{row.probability:.5f}" if row.amplified else "-"
        mark = "best" if row is best else "within 1%" if row in choice.close else ""
        lines.append(
            f"{name:>6}  {probability:>8}  {row.compositions:>6}  "
            f"{row.per_query_noise_multiplier:10.5f}  {row.noise_multiplier:8.5f}  "
            f"{row.rmse:9.4g}  {row.effective_rmse:10.4g}  "
            f"{up(row.advantage, 3):>9}  {mark}".rstrip()
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
        "advantage: at most, of an attacker who guesses who is there (fedmf.attack_risk).\n"
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
def learning_rate(promise: dict[str, Any], as_json: bool) -> None:
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
        if promise["noise_multiplier"] == 0:
            raise ValueError(
                "noise_multiplier=0: the rule is for runs with noise; without noise the rate "
                "is bounded by stability"
            )
        config = plan_config(promise)
        planned = config.plan()
        cohort_size = config.claimed_cohort or config.cohort_size
        error = rule.effective_rmse(planned, config.fit_workload(), cohort_size=cohort_size)
        rate = rule.predicted_learning_rate(error, clip_norm=planned.clip_norm, grid=None)
    beyond = rule.extrapolations(
        error, rounds=planned.mechanism.rounds, clip_norm=planned.clip_norm
    )
    show(
        {
            "noise_multiplier": planned.noise_multiplier,
            "epsilon": planned.epsilon,
            "delta": planned.delta,
            "attack_risk": attack_risk(planned).values(),
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
            "extrapolates": beyond if as_json else "; ".join(beyond) or "no, if the task is that",
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
    """How training would make the noise, and what that costs.

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
        here = pathlib.Path.cwd()
        host = host_strategies(stream, parameters, memory_bytes=memory, folder=here)
        graph = [graph_strategy(stream, parameters)]
    if as_json:
        values = {"noise_strategies": [strategy.summary() for strategy in host]}
        show(values | {"graph_noise_strategies": [one.summary() for one in graph]}, as_json)
        return
    click.echo(
        f"Noise for {parameters:,} parameters, the choice first. Cost: of a round on average over "
        "the run, in draws of one\nvector of independent Gaussians of that size. Block: rounds "
        "made at a time. State: rows of model size between blocks.\n\n"
        "Made ahead by the host (fedmf train, federated.HostNoise):\n"
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
    "asked",
    click.option(
        "--epsilon", type=_NUMBERS, multiple=True, required=True, help="Targets, as in 1 2 4 8."
    ),
    click.argument("more", nargs=-1, type=_NUMBERS, metavar=""),
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
    promise: dict[str, Any], asked: dict[str, Any], out: pathlib.Path | None, as_json: bool
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
    from fedmf.privacy.comparison import Comparison, check_ins

    with arguments_checked(), status_line() as progress:
        chosen = chosen_options(promise)
        population = chosen.pop("population")
        devices: dict[str, Any] = {}
        if asked["availability"] is not None:
            sizes = {name: chosen[name] for name in ("rounds", "cohort_size")}
            devices = check_ins(asked["availability"], population=population, **sizes)
            most = devices["min_sep"]
            given = chosen.setdefault("min_sep", most)
            if given > most:
                raise ValueError(
                    f"min_sep={given} is more than the {most} that availability="
                    f"{asked['availability']} allows: lower it, or leave it out"
                )
        families = list(itertools.chain(*asked["family"])) or None
        comparison = Comparison.of(
            chosen,
            population=population,
            families=families,
            schemes=list(itertools.chain(*asked["sampling"])),
            epsilons=sorted({*itertools.chain(*asked["epsilon"], *asked["more"])}),
            parameters=asked["parameters"],
        )
        rows = []
        left_out = dict[str, str]()
        progress("fitting")
        for row in comparison.rows(left_out if families is None else None):
            progress(f"{row.name} at epsilon {row.epsilon:g}: {row.effective_rmse:.4g}")
            rows.append(row)
    summary = comparison.summary(rows) | {"check_ins": devices or None, "left_out": left_out}
    if out is not None:
        from fedmf.reports.pictures import comparison_picture

        write_atomically(out, comparison_picture(summary))
    if as_json:
        show(summary | ({"picture": str(out)} if out else {}), as_json)
        return
    if devices:
        show(devices, as_json)
        click.echo()
    click.echo("\n".join(_compared(summary)) + (f"\nPicture: {out}" if out else ""))
    for family, reason in left_out.items():
        click.echo(f"Left out: {family}, since {reason}")


def _compared(summary: dict[str, Any]) -> list[str]:
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
    least = "" if summary["min_sep"] is None else f", {summary['min_sep']} or more apart"
    return [
        *aligned(table),
        f"delta {summary['delta']:g}; {summary['rounds']} rounds; cohorts of "
        f"{summary['cohort_size']:,} out of {summary['population']:,} clients; without sampling",
        f"a client takes part up to {summary['max_participations']} times{least}. noise: noise "
        "multiplier of the run; rmse: of a round's",
        "running query of sums at noise multiplier 1 and clip norm 1; per client: noise * rmse / "
        "cohort. advantage, found at",
        "1%: at most, of an attacker (fedmf.attack_risk). s, MB: of making a round's noise for "
        f"{summary['parameters']:,}",
        "parameters on one thread, about.",
    ]


for command in (participation, bands, learning_rate, noise, compare):
    plan.add_command(command)
