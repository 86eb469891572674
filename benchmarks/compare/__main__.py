"""fedmf beside other libraries: the same work, in one sitting, in turns.

    make compare                                    all of it, into docs/costs.md
    python -m benchmarks.compare --case "random"    some of it
    python -m benchmarks.compare --small            a check of this program

Every side is a process of its own environment. While one works the others wait, and the order is
reversed from turn to turn. Nothing is asserted: who is better is bold. A library that is not
installed, does not start or does not answer in time has the reason in its row.
"""

import os
import pathlib

import click

from benchmarks.compare import accounting, clients, fits, noise, page
from benchmarks.compare.sitting import ROOT, Sitting, run

CASES = (*accounting.CASES, *fits.CASES, *noise.CASES, *clients.CASES)


@click.command(help=__doc__)
@click.option("--case", "text", default="", help="Only the cases whose work contains this.")
@click.option("--small", is_flag=True, help="Toy sizes: checks this program, measures nothing.")
@click.option(
    "--environments",
    type=click.Path(file_okay=False, path_type=pathlib.Path),
    default=ROOT,
    show_default="this repository",
    help="Folder with .venv-compare and .venv-torch.",
)
@click.option("--newer", default="", help="A Python 3.13, for opake.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=120.0,
    show_default=True,
    help="The longest that one turn may take.",
)
@click.option(
    "--write",
    "written",
    type=click.Path(exists=True, dir_okay=False, path_type=pathlib.Path),
    help="Page to put the table into.",
)
def main(
    text: str,
    small: bool,
    environments: pathlib.Path,
    newer: str,
    seconds: float,
    written: pathlib.Path | None,
) -> None:
    """Print the table, and write it if so asked."""
    chosen = [case for case in CASES if text in case.work]
    if not chosen:
        names = "; ".join(case.work for case in CASES)
        raise click.UsageError(f"--case {text!r} is in the work of no case: {names}")
    sitting = Sitting(root=environments, newer=newer, seconds=seconds, small=small)
    load = os.getloadavg()[0]
    rows = [(case, run(case, sitting, lambda line: click.echo(line, err=True))) for case in chosen]
    found = f"{page.circumstances((load, os.getloadavg()[0]))}\n\n{page.tables(rows)}"
    click.echo(found)
    if written is not None:
        page.write(written, found)


if __name__ == "__main__":
    main()
