"""fedmf plan participation: what a population can give, before anything is trained."""

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Any

import click

from fedmf.cli.errors import Command, arguments_checked
from fedmf.cli.options import in_one, json_option, options_of, show, status_line
from fedmf.cli.values import COUNT, EXISTING_FILE, SHARE, OutputFile, Whole

if TYPE_CHECKING:
    from fedmf.mechanisms.budget import Budget
    from fedmf.privacy.config import PlanConfig

_MAX_ROWS = 12
_BY_ROUND = ("dry", "pool", "pool_rounds", "cohorts", "tried", "histogram", "spent")
# Of a population, those of all clients can be further out than those of a part of them.
_SEEN = ("dry_rounds", "mean_", "smallest_", "min_separation_", "max_participations_")


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
@in_one(
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
    promise: dict[str, Any],
    simulation: dict[str, Any],
    search: bool,
    out: pathlib.Path | None,
    as_json: bool,
) -> None:
    """Which min separation a population can hold.

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
    from fedmf.cohorts.forecast import (
        Size,
        compare_schemas,
        forecast,
        largest_min_sep,
        refuse_impossible,
    )
    from fedmf.files import write_atomically
    from fedmf.participation.schema import SCHEMAS

    options = promise | simulation
    availability, seed = options["availability"], options["seed"]
    with arguments_checked():
        size = Size(
            **{name: options[name] for name in ("population", "cohort_size", "simulated_cohort")}
        )
        who: dict[str, Any] = {"availability": availability_from_text(availability)}
        devices = ("dropout", "noncompliant_fraction", "timer_jitter", "seed")
        behavior = DeviceBehavior(**{name: options[name] for name in devices})
        schema = SCHEMAS[options["schema"]]
        has_timers = "min_sep" in schema.settings and not schema.has_fixed_order
        spaced = options["sampling"] is None and has_timers
        asked = spaced and options["min_sep"] is None
        config = _promise(options, 1 if asked else options["min_sep"])
        scheme, budget = config.scheme(), _budget(config, options)
        planned = scheme.participation(config.rounds) if scheme else config.participation()
        largest: dict[str, Any] = {}
        if search and spaced:
            if not asked:
                refuse_impossible(planned, size, behavior=behavior, **who)  # before a long search
            with status_line("min separation ") as progress:
                largest = largest_min_sep(
                    size, rounds=options["rounds"], seed=seed, progress=progress, **who
                )
        if asked:
            if not largest:
                raise ValueError("`min_sep` is missing: give it, or leave out --no-search")
            if largest["largest_min_sep"] is None:
                raise ValueError(
                    f"cohort_size={size.cohort_size} of population={size.population} cannot "
                    f"be filled in every round with availability={availability!r}, whatever "
                    "the separation: lower --cohort-size, or give --min-sep to see how "
                    "often the pool runs dry"
                )
            planned = _promise(options, largest["largest_min_sep"]).participation()
        with status_line("round ") as progress:
            of_both: dict[str, Any] = {"behavior": behavior, "progress": progress, **who}
            result = forecast(budget or planned, size, sampling=scheme, seed=seed, **of_both)
            if budget is not None:
                seeds = range(seed, seed + (options["seeds"] or 3))
                largest = compare_schemas(budget, planned, size, seeds=seeds, **of_both)
    values = {"availability": availability, "sampling": config.sampling, **result, **largest}
    if out is not None:
        from fedmf.reports.pictures import participation_picture

        write_atomically(out, participation_picture(values))
        values["picture"] = str(out)
    show(values if as_json else _for_people(values), as_json)


def _promise(options: dict[str, Any], min_sep: int | None) -> "PlanConfig":
    """The promise of these options with this separation; refuses what does not go together."""
    from fedmf.privacy.config import PlanConfig

    names = ("rounds", "cohort_size", "schema", "max_participations", "partitions")
    values: dict[str, Any] = {name: options[name] for name in ("sampling", *names)}
    if options["sampling"] is not None:  # elsewhere the population is that of the data
        values["population"] = options["population"]
    return PlanConfig(family="none", min_sep=min_sep, **values)


def _budget(config: "PlanConfig", options: dict[str, Any]) -> "Budget | None":
    """What the promise costs with the mechanism; None for every other schema."""
    import fedmf
    from fedmf.participation.schema import SCHEMAS

    file, pace = options["mechanism_file"], options["pace"]
    if not SCHEMAS[options["schema"]].needs_encoder:
        for name in ("mechanism_file", "pace", "seeds"):
            if options[name] is not None:
                raise ValueError(
                    f"{name.removesuffix('_file')}={options[name]} belongs to "
                    "--schema budget: leave it out"
                )
        return None
    if file is None:
        raise ValueError(
            "`mechanism` is missing: with --schema budget give the file that `fedmf fit --out` "
            "wrote"
        )
    budget = fedmf.Budget.of(fedmf.load_mechanism(file), config.participation())
    return budget if pace is None else dataclasses.replace(budget, pace=pace)


def _for_people(values: dict[str, Any]) -> dict[str, Any]:
    """The values but those by round, with the histogram in percent.

    Extremes seen among fewer clients are marked as simulated.
    """
    mark = ", simulated" * (values["simulated_population"] != values["population"])
    lines = {
        name + mark * name.startswith(_SEEN): value
        for name, value in values.items()
        if name not in _BY_ROUND
    }
    shares: dict[str, float] = {}
    for times, share in values["histogram"].items():
        row = (
            f"clients with {times:,} participations"
            if times <= _MAX_ROWS
            else f"with more than {_MAX_ROWS}"
        )
        shares[row] = shares.get(row, 0.0) + share
    shares |= {f"clients that spent {row}": share for row, share in values.get("spent", {}).items()}
    return lines | {row: f"{100 * share:.3g}%" for row, share in shares.items()}
