"""fedmf paper: the tables and figures of the papers, made again."""

import pathlib

import click

from fedmf.cli.errors import Command, Group, arguments_checked
from fedmf.cli.options import COUNT, EXISTING, PATH, OutputFile, json_option, show


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
    "--scale", type=click.Choice(["small", "full"]), default="small", help="Minutes on two cores, or as in the paper."
)
@click.option("--data", type=EXISTING, help="The real file, for those that train.")
@click.option(
    "--out", type=PATH, default=pathlib.Path("papers"), help="Each goes into the folder of its name in this one."
)
@click.option("--jobs", type=COUNT, default=1, help="Runs at a time, of those that train.")
@json_option
def run(
    names: tuple[str, ...], scale: str, data: pathlib.Path | None, out: pathlib.Path, jobs: int, as_json: bool
) -> None:
    """Make tables or figures: numbers.csv, figure.png and result.json.

    \b
    Example:
      fedmf paper run slides-max-error
      fedmf paper run banded-figure-9 banded-table-4 --scale full --out papers
    """
    from fedmf.experiments.papers import ITEMS, Request, runner
    from fedmf.reports.text import duration

    with arguments_checked():
        for name in names:
            if name not in ITEMS:
                raise ValueError(f"NAME {name!r} is no table or figure: `fedmf paper list` names them")
            if ITEMS[name].make is None:
                raise ValueError(f"NAME {name!r} cannot be made here: {ITEMS[name].why}")
    results = {}
    for name in names:
        if (seconds := ITEMS[name].seconds[scale]) > 60:
            click.echo(f"{name}: about {duration(seconds)} on two cores", err=True)
        request = Request(folder=out / name, scale=scale, data=data, jobs=jobs)  # type: ignore[arg-type]
        results[name] = runner.run(ITEMS[name], request)
        if not as_json:
            click.echo(f"{name}: {results[name]['verdict']} [{duration(results[name]['seconds'])}; {out / name}]")
    if as_json:
        show(results, True)


@paper.command("report", cls=Command)
@click.option("--results", type=PATH, default=pathlib.Path("papers"), help="Folder that `fedmf paper run` wrote.")
@click.option(
    "--out", type=OutputFile(".md"), required=True, help="The page; thumbnails and results go into a folder beside it."
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
