"""Numbers of the papers' results by verdict, from the files in docs/papers."""

import collections
import pathlib
from collections.abc import Mapping

from fedmf.experiments.papers import ITEMS, clause, results
from fedmf.experiments.papers.item import SOURCES

FOLDER = pathlib.Path(__file__).parents[1] / "papers"
_PAPERS = {source: title for source, title in SOURCES.items() if source != "fedmf"}
VERDICTS = (*clause.VERDICTS, "not reproducible")
# The verdicts in histories before claims were judged clause by clause.
_HELD = "held"
_OLD_VERDICTS = (_HELD, "did not hold")
# Probability at most that a 95% interval lies above 0 although the true value does not, or below 0
# although the true value does not.
_FALSE_VERDICT_RATE = 0.025


def counts_by_source(folder: pathlib.Path = FOLDER) -> dict[str, collections.Counter[str]]:
    """Returns how many tables and figures of each source have which verdict.

    A verdict "in part" counts as the verdict, and once more as "in part" in the same counter.

    Raises:
      ValueError: a verdict has no column in the table.
    """
    counts = {source: collections.Counter[str]() for source in _PAPERS}
    for item in ITEMS.values():
        if item.source not in counts:
            continue
        description = results.describe(item, results.load(folder / f"{item.name}.json"))
        words = description.verdict.lower()
        verdict = clause.base_verdict(words)
        if verdict not in VERDICTS:
            raise ValueError(f"{item.name} has the verdict {words!r}: add a column")
        counts[item.source][verdict] += 1
        if words != verdict:
            counts[item.source][words] += 1
    return counts


def table(folder: pathlib.Path = FOLDER) -> str:
    """Returns the numbers as a table in Markdown, with a row for each paper."""
    header = ["results (in part)", *VERDICTS]
    rows = [header, ["---"] * len(header)]
    for source, count_by_verdict in counts_by_source(folder).items():
        rows.append([_PAPERS[source], *(_cell(count_by_verdict, name) for name in VERDICTS)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(count_by_verdict: Mapping[str, int], verdict: str) -> str:
    """Returns the number of items of a verdict, and how many of these have it in part."""
    num_in_part = count_by_verdict[verdict + clause.IN_PART]
    text = str(count_by_verdict[verdict])
    return f"{text} ({num_in_part})" if num_in_part else text


def false_verdicts(folder: pathlib.Path = FOLDER) -> str:
    """Returns a sentence on how many false verdicts to expect among those that rest on random runs.

    Clauses of items that share runs count each, although their verdicts are not independent.
    """
    num_clauses = 0
    for item in ITEMS.values():
        result = results.load(folder / f"{item.name}.json") or {"clauses": ()}
        num_clauses += sum(part["interval"] is not None for part in result["clauses"])
    expected_number = _FALSE_VERDICT_RATE * num_clauses
    return (
        f"{num_clauses} clauses are judged by a 95% interval of random runs. Such an interval "
        "calls a false clause reproduced, or a true clause contradicted, with a probability of at "
        f"most 2.5%. So at most {expected_number:.1f} of these verdicts are expected to be false."
    )


def first_results(folder: pathlib.Path = FOLDER) -> str:
    """Returns a sentence on how many items that train did not hold at their first setting, by the
    results that are kept.
    """
    histories = []
    for name, item in ITEMS.items():
        result = results.load(folder / f"{name}.json") if item.study is not None else None
        old_verdicts = [entry["verdict"] for entry in (result or {}).get("history", ())]
        histories.append([verdict for verdict in old_verdicts if verdict in _OLD_VERDICTS])
    histories = [old_verdicts for old_verdicts in histories if old_verdicts]
    failed_first = [old_verdicts for old_verdicts in histories if old_verdicts[0] != _HELD]
    num_failed_later = sum(
        old_verdicts[0] == _HELD and old_verdicts.count(_HELD) < len(old_verdicts)
        for old_verdicts in histories
    )
    num_held_at_last = sum(old_verdicts[-1] == _HELD for old_verdicts in failed_first)
    return (
        f"{len(failed_first)} of the {len(histories)} trained results did not hold at their first "
        f"setting. For {num_held_at_last} of these, sizes, learning rates, noise or seeds were "
        f"changed until the result held. A further {num_failed_later} held at first and did not "
        "hold when they were trained again."
    )
