"""The command `fedmf paper`, which reproduces the tables and figures of the papers."""

import pathlib
import re
import runpy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from fedmf.cli.errors import Command, Group, arguments_checked
from fedmf.cli.options import grouped, json_option, show
from fedmf.cli.values import COUNT, PATH, Named, OutputFile

if TYPE_CHECKING:
    from fedmf.experiments.papers.item import Item, Request, Scale


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
    from fedmf.experiments.papers.theorems import cited_statements
    from fedmf.reports.text import aligned

    listed: dict[str, dict[str, Any]] = {}
    for name, item in ITEMS.items():
        listed[name] = {
            "state": item.state,
            "claim": item.claim,
            "why": item.why,
            "made": item.make is not None,
        }
    for statement, code, tests in cited_statements():
        citations = {"code": code, "tests": tests}
        citing_kinds = [kind for kind, files in citations.items() if files]
        claim = statement.claim
        citation_state = "nothing cites it"
        if citing_kinds:
            citation_state = f"in {' and '.join(citing_kinds)}"
        else:
            claim += f" Why: {statement.why_uncited}"
        listed[statement.name] = {
            "state": citation_state,
            "claim": claim,
            "why": statement.why_uncited,
            "made": False,
            **citations,
        }
    if as_json:
        show(listed, True)
        return
    for line in aligned([(name, row["state"], row["claim"]) for name, row in listed.items()]):
        click.echo(line)


def _names() -> Iterable[str]:
    """Returns the names of the items that can be made, for completion by a shell.

    It reads the catalogue alone, because importing the code of the items and Matplotlib takes
    longer than somebody who presses Tab waits.
    """
    catalogue_path = pathlib.Path(__file__).parents[1] / "experiments" / "papers" / "catalogue.py"
    item_texts = re.split(r"\n(?! )", runpy.run_path(str(catalogue_path))["ITEMS"].strip())
    return [item.partition(" | ")[0] for item in item_texts if "Why:" not in item.split()]


@paper.command("run", cls=Command)
@click.argument("names", metavar="NAME...", nargs=-1, required=True, type=Named(_names))
@click.option(
    "--scale",
    type=click.Choice(["small", "full"]),
    default="small",
    help="Seconds to two hours on one core, or as in the paper.",
)
@click.option(
    "--out",
    type=PATH,
    default=pathlib.Path("papers"),
    help="Each goes into the folder of its name in this one.",
)
@grouped(
    "request_options",
    click.option(
        "--data",
        type=PATH,
        help="The real file, for those that train: docs/full_scale.md says where to get it.",
    ),
    click.option("--jobs", type=COUNT, default=1, help="Runs at a time, of those that train."),
    click.option(
        "--cluster",
        help="Train on a Ray cluster whose machines share --out, each run on one processor: auto, "
        "host:port or ray://host:port (docs/cluster.md).",
    ),
    click.option(
        "--test-sentences",
        type=COUNT,
        help="Limit on the sentences of StackOverflow's test set; by default all at full.",
    ),
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
    request_options: dict[str, Any],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make tables or figures, as numbers.csv, figure.png and result.json.

    Nothing trains before every run of its grid has been checked.

    \b
    Example:
      fedmf paper run slides-max-error
      fedmf paper run banded-figure-9 banded-table-4 --scale full --out papers
      fedmf paper run banded-figure-5 --scale full --data stackoverflow.sqlite --dry-run
    """
    from fedmf.experiments.papers import ITEMS, Request, results, study
    from fedmf.reports.text import duration

    requests = {name: Request(folder=out / name, scale=scale, **request_options) for name in names}
    with arguments_checked():
        for name, request in requests.items():
            if name not in ITEMS:
                raise ValueError(
                    f"NAME {name!r} is no table or figure: `fedmf paper list` names them"
                )
            if ITEMS[name].make is None:
                raise ValueError(f"NAME {name!r} cannot be made here: {ITEMS[name].why}")
            if ITEMS[name].study is not None:
                study.check_data(request)
            elif dry_run:
                raise ValueError(
                    f"NAME {name!r} trains nothing, so that a dry run has nothing to check: leave "
                    "out --dry-run"
                )
    answers: dict[str, Any] = {}
    for name, request in requests.items():
        requested_item = ITEMS[name]
        if dry_run and requested_item.study is not None:
            cost = study.dry_run(requested_item.study(scale), request)
            seconds, words = _time(requested_item, request)
            num_runs = len(cost.tuning) + len(cost.repeats)
            answers[name] = {"runs": num_runs, "clients": cost.clients, "seconds": round(seconds)}
            outcome_text = f"all {num_runs} runs pass; {words}"
        else:
            seconds, words = _time(requested_item, request)
            if seconds > 60:
                click.echo(f"{name}: {words}", err=True)
            answers[name] = results.run(requested_item, request)
            elapsed_time = duration(answers[name]["seconds"])
            clauses = [f"\n  {results.clause_line(part)}" for part in answers[name]["clauses"]]
            verdict = answers[name]["verdict"]
            outcome_text = f"{verdict} [{elapsed_time}; {request.folder}]{''.join(clauses)}"
        if not as_json:
            click.echo(f"{name}: {outcome_text}")
    if as_json:
        show(answers, True)


def _time(item: "Item", request: "Request") -> tuple[float, str]:
    """Returns the time that a table or figure takes, in seconds and as a phrase.

    The phrase of a study at the papers' size is its cost.
    """
    from fedmf.experiments.papers import study
    from fedmf.reports.text import duration

    if item.study is not None and request.scale == "full":
        study_cost = study.cost_of(item.study("full"), request)
        return study_cost.seconds, str(study_cost)
    item_seconds = item.seconds[request.scale]
    return item_seconds, f"about {duration(item_seconds)} on one core"


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

    What the page's folder holds already stays, unless there is a newer result. A replaced result
    joins the history of its item. Results that share runs must be of the same commit and settings.

    \b
    Example:
      fedmf paper report --out docs/papers.md
    """
    from fedmf.experiments.papers import ITEMS
    from fedmf.experiments.papers import results as stored_results

    show(stored_results.report(ITEMS, results, out), as_json)
