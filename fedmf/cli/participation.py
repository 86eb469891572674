"""fedmf plan participation: what a population can give, before anything is trained."""

import pathlib
import sys
from typing import TYPE_CHECKING, Any

import click

from fedmf.cli.options import arguments_checked, json_option, show, writable

if TYPE_CHECKING:
    from fedmf.participation.schema import Participation
    from fedmf.privacy.sampling import Sampling

_MAX_ROWS = 12


@click.command()
@click.option("--population", type=int, required=True, help="Clients in all.")
@click.option("--cohort-size", type=int, required=True, help="Clients of a round.")
@click.option("--rounds", type=int, required=True, help="Rounds of training.")
@click.option("--min-sep", type=int, help="Min separation to look at.  [default: the largest that can be held]")
@click.option("--schema", default="min_sep", show_default=True, help="min_sep, fixed_epoch, single or every_round.")
@click.option("--max-participations", type=int, help="Most participations of a client.")
@click.option(
    "--availability",
    default="always",
    show_default=True,
    help="always, independent:0.3 or diurnal; diurnal:rounds_per_day=24,phase_hours=2 and so on.",
)
@click.option(
    "--sampling", help="poisson, fixed_size, shuffle or reshuffle, in parts of the population: then no --min-sep."
)
@click.option("--groups", type=int, help="Parts of the population with --sampling: the mechanism's bands.")
@click.option("--dropout", type=float, default=0.0, help="Probability that a selected client contributes nothing.")
@click.option("--noncompliant-fraction", type=float, default=0.0, help="Share of clients that ignore timer and limit.")
@click.option("--timer-jitter", type=int, default=0, help="Rounds by which timers may fire early.")
@click.option("--search/--no-search", default=True, help="Look for the largest min separation, or not.")
@click.option("--simulated-cohort", type=int, help="Clients a round of the simulation.  [default: of 200,000 clients]")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the simulation.")
@click.option("--out", type=click.Path(path_type=pathlib.Path), help="Draw the answers into this PNG file.")
@json_option
def participation(
    population: int,
    cohort_size: int,
    rounds: int,
    min_sep: int | None,
    schema: str,
    max_participations: int | None,
    availability: str,
    sampling: str | None,
    groups: int | None,
    dropout: float,
    noncompliant_fraction: float,
    timer_jitter: int,
    search: bool,
    simulated_cohort: int | None,
    seed: int,
    out: pathlib.Path | None,
    as_json: bool,
) -> None:
    """Which min separation a population can hold, how often its pool runs dry, and how often one client takes part.

    The controller runs through all rounds without training, on a smaller population in which a cohort is the same share. Chance weighs
    more there, so that the separation found is rather too small than too large: --simulated-cohort makes it larger.

    \b
    Example:
      fedmf plan participation --population 10000000 --cohort-size 6500 --rounds 2000 --min-sep 300 --availability diurnal --out who.png
      fedmf plan participation --population 342000 --cohort-size 1000 --rounds 2052 --sampling poisson --groups 9
    """
    from fedmf.cohorts.availability import availability_from_text
    from fedmf.cohorts.devices import DeviceBehavior
    from fedmf.cohorts.forecast import Size, forecast, largest_min_sep, refuse_impossible

    with arguments_checked():
        writable("out", out, ".png")
        size = Size(population=population, cohort_size=cohort_size, simulated_cohort=simulated_cohort)
        there = availability_from_text(availability)
        behavior = DeviceBehavior(
            dropout=dropout, noncompliant_fraction=noncompliant_fraction, timer_jitter=timer_jitter, seed=seed
        )
        scheme = _scheme(sampling, groups, population, cohort_size)
        enforced = _enforced(scheme, rounds, schema, min_sep, max_participations)
        devices: dict[str, Any] = {"availability": there, "behavior": behavior, "seed": seed}
        found = None
        if search and scheme is None and schema == "min_sep":
            if enforced is not None:
                refuse_impossible(enforced, size, availability=there, behavior=behavior)  # before a long search
            found = largest_min_sep(
                size, rounds=rounds, availability=there, seed=seed, progress=_status("min separation")
            )
        if enforced is None:
            if found is None:
                raise ValueError(f"schema={schema!r} needs --min-sep: give it, or leave out --no-search")
            if found.min_sep is None:
                raise ValueError(
                    f"cohort_size={cohort_size} of population={population} cannot be filled in every round with "
                    f"availability={availability!r}, whatever the separation: lower --cohort-size, or give --min-sep to see how often "
                    "the pool runs dry"
                )
            enforced = _enforced(None, rounds, schema, found.min_sep, max_participations)
            assert enforced is not None
        result = forecast(enforced, size, sampling=scheme, progress=_status("round"), **devices)
    values = {"availability": availability, "sampling": sampling, **result.values()}
    if found is not None:
        values |= {"largest_min_sep": found.min_sep, "too_large_min_sep": found.too_large, "tried": found.tried}
    if out is not None:
        _draw(values, out)
        values["picture"] = str(out)
    if as_json:
        show(values, as_json)
    else:
        click.echo(_text(values))


def _scheme(sampling: str | None, groups: int | None, population: int, cohort_size: int) -> "Sampling | None":
    from fedmf.privacy.sampling import SCHEMES

    if sampling is None:
        if groups is not None:
            raise ValueError(f"groups={groups} belongs to --sampling: leave it out, or give --sampling poisson")
        return None
    if sampling not in SCHEMES:
        raise ValueError(f"sampling={sampling!r} is unknown: choose one of {', '.join(SCHEMES)}")
    if groups is None:
        raise ValueError(f"sampling={sampling!r} needs --groups: give the mechanism's bands")
    return SCHEMES[sampling](population=population, cohort_size=cohort_size, groups=groups)


def _enforced(
    scheme: "Sampling | None", rounds: int, schema: str, min_sep: int | None, max_participations: int | None
) -> "Participation | None":
    """The participation to enforce; None where its min separation is what is asked."""
    from fedmf.participation.schema import Participation

    if scheme is not None:
        if min_sep is not None or max_participations is not None:
            raise ValueError(
                f"min_sep={min_sep} and max_participations={max_participations} follow from --sampling and --groups: leave them out"
            )
        return scheme.participation(rounds)
    if min_sep is None and schema == "min_sep":
        return None
    return Participation(rounds=rounds, schema=schema, min_sep=min_sep, max_participations=max_participations)


def _status(what: str) -> Any:
    """Shows how far it is, on a terminal."""
    if not sys.stderr.isatty():
        return None
    return lambda number: click.echo(f"\r{what} {number:,} tried   ", nl=False, err=True)


def _draw(values: dict[str, Any], out: pathlib.Path) -> None:
    from fedmf.files import write_atomically
    from fedmf.reports.participation import participation_picture

    note = ""
    if values["simulated_population"] != values["population"]:
        note = (
            f"Simulated with {values['simulated_population']:,} clients and cohorts of {values['simulated_cohort_size']:,}, "
            "the same share."
        )
    write_atomically(out, participation_picture(values | {"note": note, "title": _title(values)}))


def _title(values: dict[str, Any]) -> str:
    kind = values["availability"].partition(":")[0]
    there = "always available" if kind == "always" else f"{kind} availability"
    words = {"min_sep": "", "fixed_epoch": "fixed order, ", "single": "each once, ", "every_round": "every round, "}
    drawn = f"{values['sampling']} sampling, " if values["sampling"] else words.get(values["schema"], "")
    return (
        f"{values['population']:,} clients, {values['cohort_size']:,} a round, {there}, "
        f"{drawn}min separation {values['min_sep']:,}"
    )


def _text(values: dict[str, Any]) -> str:
    n, limit = values["rounds"], values["max_participations"]
    rows = [
        ("population", f"{values['population']:,} clients, {values['cohort_size']:,} a round, {n:,} rounds"),
    ]
    simulated = values["simulated_population"] != values["population"]
    # Extremes over fewer clients: the population's can be further out.
    seen = ", simulated" * simulated
    if simulated:
        rows.append(
            (
                "simulated with",
                f"{values['simulated_population']:,} clients, {values['simulated_cohort_size']:,} a round",
            )
        )
    if "largest_min_sep" in values:
        best, too_large = values["largest_min_sep"], values["too_large_min_sep"]
        held = "none: the pool runs dry whatever it is" if best is None else f"{best:,} held in every round"
        fails = f", {too_large:,} did not" if too_large else ", and no larger one is possible"
        rows.append(("largest min separation", held if best is None else held + fails))
    first = f", the first is round {values['dry'][0]:,}" if values["dry"] else ""
    rows += [
        (
            "looked at",
            f"{values['sampling'] or values['schema']}, min separation {values['min_sep']:,}, at most {limit:,} participations",
        ),
        (f"dry rounds{seen}", f"{values['dry_rounds']:,} of {n:,}{first}"),
        (
            f"cohorts{seen}",
            f"{values['mean_cohort']:,.0f} clients on average, {values['smallest_cohort']:,.0f} in the smallest",
        ),
        (
            f"min separation{seen or ' seen'}",
            "nobody came twice"
            if values["min_separation_observed"] is None
            else f"{values['min_separation_observed']:,}",
        ),
        (f"most participations{seen}", f"{values['max_participations_observed']:,}"),
    ]
    if (values["min_separation_of_the_well_behaved"], values["max_participations_of_the_well_behaved"]) != (
        values["min_separation_observed"], values["max_participations_observed"]
    ):  # fmt: skip
        rows.append(
            (
                "of the well-behaved",
                f"min separation {values['min_separation_of_the_well_behaved']}, most participations "
                f"{values['max_participations_of_the_well_behaved']}",
            )
        )
    shares = values["histogram"]
    rows += [
        (f"{times:,} participation{'s' * (times != 1)}", f"{100 * share:.3g}% of the clients")
        for times, share in shares.items()
        if times <= _MAX_ROWS
    ]
    if more := sum(share for times, share in shares.items() if times > _MAX_ROWS):
        rows.append((f"more than {_MAX_ROWS}", f"{100 * more:.3g}% of the clients"))
    if "picture" in values:
        rows.append(("picture", values["picture"]))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)
