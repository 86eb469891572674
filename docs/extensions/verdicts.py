"""Numbers of the papers' results by verdict, from the files in docs/papers."""

import collections
import pathlib

from fedmf.experiments.papers import ITEMS, results
from fedmf.experiments.papers.item import SOURCES

FOLDER = pathlib.Path(__file__).parents[1] / "papers"
_PAPERS = {source: title for source, title in SOURCES.items() if source != "fedmf"}
VERDICTS = ("Holds", "Not shown", "Does not hold", "Not reproducible")


def counts_by_source(folder: pathlib.Path = FOLDER) -> dict[str, collections.Counter[str]]:
    """Returns how many tables and figures of each source have which verdict.

    Raises:
      ValueError: a verdict has no column in the table.
    """
    counts = {source: collections.Counter[str]() for source in _PAPERS}
    for item in ITEMS.values():
        if item.source not in counts:
            continue
        description = results.describe(item, results.load(folder / f"{item.name}.json"))
        if description.verdict not in VERDICTS:
            raise ValueError(f"{item.name} has the verdict {description.verdict!r}: add a column")
        counts[item.source][description.verdict] += 1
    return counts


def table(folder: pathlib.Path = FOLDER) -> str:
    """Returns the numbers as a table in Markdown, with a row for each paper."""
    header = ["tables and figures of", *(verdict.lower() for verdict in VERDICTS)]
    rows = [header, ["---"] * len(header)]
    for source, count_by_verdict in counts_by_source(folder).items():
        numbers = [str(count_by_verdict[verdict]) for verdict in VERDICTS]
        rows.append([_PAPERS[source], *numbers])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
