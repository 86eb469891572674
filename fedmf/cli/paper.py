"""fedmf paper: the tables and figures of the papers, made again."""

import pathlib
from typing import TYPE_CHECKING, Any

import click

from fedmf.cli.errors import Command, Group, arguments_checked
from fedmf.cli.options import COUNT, EXISTING, PATH, OutputFile, json_option, show

if TYPE_CHECKING:
    from fedmf.experiments.papers.item import Item, Scale
    from fedmf.experiments.papers.study_cost import Cost


@click.group(cls=Group)
def paper() -> None:
    """Make the tables and figures of the papers again.

    \b
    Example:
      fedmf paper list
      fedmf paper run slides-max-error
    """


@paper.command("list", cls=Command)
@json_option
def list_items(as_json: bool) -> None:
    """Every table and figure of the papers, and how far it is reproduced.

    \b
    Example:
      fedmf paper list
    """
    from fedmf.experiments.papers import ITEMS
    from fedmf.experiments.table_cells import aligned

    if as_json:
        show(
            {
                n: {"state": i.state, "why": i.why, "made": i.make is not None, "claim": i.claim}
                for n, i in ITEMS.items()
            },
            True,
        )
        return
    for line in aligned([(name, item.state, item.claim) for name, item in ITEMS.items()]):
        click.echo(line)


@paper.command("run", cls=Command)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--scale",
    type=click.Choice(["small", "full"]),
    default="small",
    help="Minutes on two cores, or as in the paper.",
)
@click.option("--data", type=EXISTING, help="The real file, for those that train.")
@click.option(
    "--out",
    type=PATH,
    default=pathlib.Path("papers"),
    help="Each goes into the folder of its name in this one.",
)
@click.option("--jobs", type=COUNT, default=1, help="Runs at a time, of those that train.")
@click.option(
    "--test-sentences",
    type=COUNT,
    help="Limit on the sentences of StackOverflow's test set; by default all at full.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Check every run of those that train, say what they cost, train nothing.",
)
@json_option
def run(
    names: tuple[str, ...],
    scale: "Scale",
    out: pathlib.Path,
    dry_run: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Make tables or figures: numbers.csv, figure.png and result.json.

    Nothing trains before every run of its grid has been checked.

    \b
    Example:
      fedmf paper run slides-max-error
      fedmf paper run banded-figure-9 banded-table-4 --scale full --out papers
      fedmf paper run banded-figure-5 --scale full --data stackoverflow.sqlite --dry-run
    """
    from fedmf.experiments.papers import ITEMS, Request, runner, study
    from fedmf.reports.text import duration

    with arguments_checked():
        for name in names:
            if name not in ITEMS:
                raise ValueError(
                    f"NAME {name!r} is no table or figure: `fedmf paper list` names them"
                )
            if ITEMS[name].make is None:
                raise ValueError(f"NAME {name!r} cannot be made here: {ITEMS[name].why}")
            if dry_run and ITEMS[name].study is None:
                raise ValueError(
                    f"NAME {name!r} trains nothing, so that a dry run has nothing to "
                    "check: leave out --dry-run"
                )
            if ITEMS[name].study is not None:
                study.check_data(Request(folder=out / name, scale=scale, **asked))
    results: dict[str, Any] = {}
    for name in names:
        item, request = ITEMS[name], Request(folder=out / name, scale=scale, **asked)
        if dry_run and item.study is not None:
            cost = study.dry_run(item.study(scale), request)
            seconds, words = _time(item, scale, cost)
            results[name] = {
                "runs": cost.tuning + cost.repeats,
                "clients": cost.clients,
                "seconds": round(seconds),
            }
            if not as_json:
                click.echo(f"{name}: all {results[name]['runs']} runs pass; {words}")
            continue
        at_full = (
            None
            if item.study is None or scale != "full"
            else study.cost_of(item.study(scale), request)
        )
        seconds, words = _time(item, scale, at_full)
        if seconds > 60:
            click.echo(f"{name}: {words}", err=True)
        results[name] = runner.run(item, request)
        if not as_json:
            click.echo(
                f"{name}: {results[name]['verdict']} "
                f"[{duration(results[name]['seconds'])}; {out / name}]"
            )
    if as_json:
        show(results, True)


def _time(item: "Item", scale: "Scale", cost: "Cost | None") -> tuple[float, str]:
    """The seconds that an item takes, and words for them; `cost`, of a study, holds for the
    published models.
    """
    from fedmf.reports.text import duration

    if cost is not None and scale == "full":
        return cost.seconds, str(cost)
    return item.seconds[scale], f"about {duration(item.seconds[scale])} on two cores"


@paper.command("report", cls=Command)
@click.option(
    "--results",
    type=PATH,
    default=pathlib.Path("papers"),
    help="Folder that `fedmf paper run` wrote.",
)
@click.option(
    "--out",
    type=OutputFile(".md"),
    required=True,
    help="The page; thumbnails and results go into a folder beside it.",
)
@json_option
def report(results: pathlib.Path, out: pathlib.Path, as_json: bool) -> None:
    """Write a page that has paper and reproduction side by side.

    What the page's folder holds already stays, unless there is a newer result.

    \b
    Example:
      fedmf paper report --out docs/papers.md
    """
    from fedmf.experiments.papers import ITEMS, gallery

    show(gallery.report(ITEMS, results, out), as_json)
