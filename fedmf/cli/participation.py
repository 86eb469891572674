"""The command `fedmf plan participation`, which forecasts how often clients take part before
training.
"""

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Any

import click

from fedmf.cli.errors import Command, arguments_checked
from fedmf.cli.options import grouped, json_option, options_of, show, status_line
from fedmf.cli.values import COUNT, EXISTING_FILE, SHARE, OutputFile, Whole

if TYPE_CHECKING:
    from fedmf.cohorts.availability import Availability
    from fedmf.cohorts.devices import DeviceBehavior
    from fedmf.cohorts.forecast import Size
    from fedmf.mechanisms.budget import Budget
    from fedmf.privacy.config import PlanConfig

_MAX_ROWS = 12
_BY_ROUND = ("dry", "pool", "pool_rounds", "cohorts", "tried", "histogram", "spent")
# Values whose names begin with these words are extremes over the simulated clients. In a larger
# population they can be more extreme.
_EXTREMES = ("dry_rounds", "mean_", "smallest_", "min_separation_", "max_participations_")


@click.command(cls=Command)
@options_of(
    "TrainConfig",
    names=(
        *("rounds", "population", "cohort_size", "schema", "min_sep", "max_participations"),
        *("sampling", "partitions", "availability", "dropout"),
    ),
    required=("rounds", "population", "cohort_size"),
    defaults=True,
)
@grouped(
    "simulation",
    click.option(
        "--noncompliant-fraction",
        type=SHARE,
        default=0.0,
        help="Clients that ignore timer and limit.",
    ),
    click.option(
        "--timer-jitter",
        type=Whole(0),
        default=0,
        help="Rounds by which timers may fire early.",
    ),
    click.option(
        "--mechanism",
        "mechanism_file",
        type=EXISTING_FILE,
        help="With --schema budget: whose encoder counts. The budget is what --min-sep costs with "
        "it, and both are compared.",
    ),
    click.option(
        "--pace",
        type=COUNT,
        help="With --schema budget: rounds that devices space what they keep.  "
        "[default: --min-sep]",
    ),
    click.option(
        "--seeds",
        type=Whole(2),
        help="With --schema budget: repetitions of the comparison.  [default: 3]",
    ),
    click.option(
        "--simulated-cohort",
        type=COUNT,
        help="Clients a round of the simulation.  [default: of 200,000 clients]",
    ),
    click.option("--seed", type=click.IntRange(0), default=0, help="Of the simulation."),
)
@click.option(
    "--search/--no-search",
    default=True,
    help="Find the largest min separation, which is taken without --min-sep.",
)
@click.option("--out", type=OutputFile(".png"), help="Draw the answers into this PNG file.")
@json_option
def participation(
    config_options: dict[str, Any],
    simulation: dict[str, Any],
    search: bool,
    out: pathlib.Path | None,
    as_json: bool,
) -> None:
    """The min separation that a population can hold.

    And how often its pool runs dry, and how often one client takes part.

    The controller runs through all rounds without training, on a smaller population in which a
    cohort is the same share. Chance weighs more there, so that the separation found is rather too
    small than too large: --simulated-cohort makes it larger.

    \b
    Example:
      fedmf plan participation --population 10000000 --cohort-size 6500 --rounds 2000 \\
        --min-sep 300 --availability diurnal --out who.png
      fedmf plan participation --population 342000 --cohort-size 1000 --rounds 2052 \\
        --sampling poisson --partitions 9
      fedmf plan participation --population 20000 --cohort-size 50 --rounds 2052 \\
        --schema budget --min-sep 342 \\
        --mechanism toeplitz.npz --availability independent:0.0025
    """
    from fedmf.cohorts.availability import availability_from_text
    from fedmf.cohorts.devices import DeviceBehavior
    from fedmf.cohorts.forecast import Size
    from fedmf.files import write_atomically

    options = config_options | simulation
    with arguments_checked():
        simulation_size = Size(
            **{name: options[name] for name in ("population", "cohort_size", "simulated_cohort")}
        )
        availability = availability_from_text(options["availability"])
        behavior_options = ("dropout", "noncompliant_fraction", "timer_jitter", "seed")
        behavior = DeviceBehavior(**{name: options[name] for name in behavior_options})
        forecast_values = _forecast_values(
            options, simulation_size, availability, behavior, search=search
        )
    if out is not None:
        from fedmf.reports.command_pictures import participation_picture

        write_atomically(out, participation_picture(forecast_values))
        forecast_values["picture"] = str(out)
    if not as_json:
        forecast_values = _for_people(forecast_values)
    show(forecast_values, as_json)


def _forecast_values(
    options: dict[str, Any],
    size: "Size",
    availability: "Availability",
    behavior: "DeviceBehavior",
    *,
    search: bool,
) -> dict[str, Any]:
    """Simulates the participation of a plan, and returns the values that the command prints.

    Args:
      options: values of the options of the plan and of the simulation.
      size: population and cohort of the simulation.
      availability: when devices check in.
      behavior: whether devices drop out or do not comply.
      search: whether to find the largest min separation.

    Raises:
      ValueError: if the options do not go together, or no cohort can be filled.
    """
    from fedmf.cohorts.forecast import compare_schemas, forecast, refuse_impossible

    seed = options["seed"]
    has_timers = _has_timers(options)
    needs_min_sep = has_timers and options["min_sep"] is None
    min_sep = options["min_sep"]
    if needs_min_sep:
        min_sep = 1
    config = _plan_config(options, min_sep)
    sampling_scheme = config.scheme()
    budget = _budget(config, options)
    if sampling_scheme is not None:
        planned_participation = sampling_scheme.participation(config.rounds)
    else:
        planned_participation = config.participation()
    schema_comparison: dict[str, Any] = {}
    if search and has_timers:
        if not needs_min_sep:
            # The plan is checked before the search, because the search takes long and an impossible
            # plan should be refused at once.
            refuse_impossible(
                planned_participation, size, behavior=behavior, availability=availability
            )
        schema_comparison = _search_min_sep(options, size, availability)
    if needs_min_sep:
        min_sep = _searched_min_sep(schema_comparison, size, options["availability"])
        planned_participation = _plan_config(options, min_sep).participation()
    with status_line("round ") as progress:
        devices: dict[str, Any] = {
            "availability": availability,
            "behavior": behavior,
            "progress": progress,
        }
        participation_forecast = forecast(
            budget or planned_participation, size, sampling=sampling_scheme, seed=seed, **devices
        )
        if budget is not None:
            seeds = range(seed, seed + (options["seeds"] or 3))
            schema_comparison = compare_schemas(
                budget, planned_participation, size, seeds=seeds, **devices
            )
    plan_values = {"availability": options["availability"], "sampling": config.sampling}
    return plan_values | participation_forecast | schema_comparison


def _search_min_sep(
    options: dict[str, Any], size: "Size", availability: "Availability"
) -> dict[str, Any]:
    """Finds the largest min separation at which every cohort can be filled, and shows the
    progress.
    """
    from fedmf.cohorts.forecast import largest_min_sep

    with status_line("min separation ") as progress:
        return largest_min_sep(
            size,
            rounds=options["rounds"],
            seed=options["seed"],
            progress=progress,
            availability=availability,
        )


def _has_timers(options: dict[str, Any]) -> bool:
    """Returns whether the devices of a plan enforce a min separation by their own timers."""
    from fedmf.participation.schema import SCHEMAS

    if options["sampling"] is not None:
        return False
    schema_class = SCHEMAS[options["schema"]]
    return "min_sep" in schema_class.settings and not schema_class.has_fixed_order


def _searched_min_sep(search_values: dict[str, Any], size: "Size", availability: str) -> int:
    """Returns the largest min separation that a search has found.

    Raises:
      ValueError: if there was no search, or no separation lets every cohort be filled.
    """
    if not search_values:
        raise ValueError("`min_sep` is missing: give it, or leave out --no-search")
    largest_min_sep: int | None = search_values["largest_min_sep"]
    if largest_min_sep is None:
        raise ValueError(
            f"cohort_size={size.cohort_size} of population={size.population} cannot "
            f"be filled in every round with availability={availability!r}, whatever "
            "the separation: lower --cohort-size, or give --min-sep to see how "
            "often the pool runs dry"
        )
    return largest_min_sep


def _plan_config(options: dict[str, Any], min_sep: int | None) -> "PlanConfig":
    """Returns the plan's configuration for a min separation, or raises an error if there can be
    none.
    """
    from fedmf.privacy.config import PlanConfig

    option_names = ("rounds", "cohort_size", "schema", "max_participations", "partitions")
    values: dict[str, Any] = {name: options[name] for name in ("sampling", *option_names)}
    # Only a plan with sampling takes a population as an option. Without sampling, training reads
    # the population from the data.
    if options["sampling"] is not None:
        values["population"] = options["population"]
    return PlanConfig(family="none", min_sep=min_sep, **values)


def _budget(config: "PlanConfig", options: dict[str, Any]) -> "Budget | None":
    """Returns the privacy budget of the plan with its mechanism, or None without --schema
    budget.
    """
    import fedmf
    from fedmf.participation.schema import SCHEMAS

    mechanism_file = options["mechanism_file"]
    if not SCHEMAS[options["schema"]].needs_encoder:
        for name in ("mechanism_file", "pace", "seeds"):
            if options[name] is not None:
                raise ValueError(
                    f"{name.removesuffix('_file')}={options[name]} belongs to "
                    "--schema budget: leave it out"
                )
        return None
    if mechanism_file is None:
        raise ValueError(
            "`mechanism` is missing: with --schema budget give the file that `fedmf fit --out` "
            "wrote"
        )
    participation_budget = fedmf.Budget.of(
        fedmf.load_mechanism(mechanism_file), config.participation()
    )
    if options["pace"] is None:
        return participation_budget
    return dataclasses.replace(participation_budget, pace=options["pace"])


def _for_people(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values that a terminal shows, which leave out values by round and have shares in
    percent.

    Extremes of a smaller simulated population are marked as simulated.
    """
    is_smaller = values["simulated_population"] != values["population"]
    lines_by_name = {}
    for name, value in values.items():
        if name in _BY_ROUND:
            continue
        if is_smaller and name.startswith(_EXTREMES):
            lines_by_name[f"{name}, simulated"] = value
        else:
            lines_by_name[name] = value
    client_shares: dict[str, float] = {}
    for num_participations, share in values["histogram"].items():
        row_name = f"with more than {_MAX_ROWS}"
        if num_participations <= _MAX_ROWS:
            row_name = f"clients with {num_participations:,} participations"
        client_shares[row_name] = client_shares.get(row_name, 0.0) + share
    for budget_share, share in values.get("spent", {}).items():
        client_shares[f"clients that spent {budget_share}"] = share
    return lines_by_name | {
        row_name: f"{100 * share:.3g}%" for row_name, share in client_shares.items()
    }
