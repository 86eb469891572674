"""The table of the comparison, and the page that it is written to."""

import datetime
import os
import pathlib
import platform
import statistics
import subprocess
from collections.abc import Sequence

from benchmarks.compare.sitting import RATE, ROOT, Answer, Case, Result

BEGIN, END = "<!-- make compare writes from here -->", "<!-- make compare writes to here -->"
_RESULTS = ("work", "other library", "result of fedmf", "result of the other")
_COSTS = ("work", "other library", "cost of fedmf", "cost of the other", "ratio")


def cost(case: Case, answer: Answer) -> float:
    """What a unit of work took, in the case's unit."""
    return answer["seconds"] if case.cost == "s" else 1000 * answer["cpu"]


def found(case: Case, result: Result) -> float | None:
    """The value of a side; the median where it is a rate."""
    if case.value == RATE:
        return 1 / statistics.median(answer["seconds"] for answer in result.answers)
    return result.answers[0].get("value") if case.value else None


def _found_text(case: Case, result: Result) -> str:
    value, last = found(case, result), result.answers[0]
    if value is None:
        return "–"
    words = f"{case.value} {value:.{case.digits}f}"
    extra = [last["note"]] if last.get("note") else []
    if last.get("failure"):
        extra.append(f"wrong with a chance of {last['failure']:.0e}".replace("e-0", "e-"))
    return words + (f" ({', '.join(extra)})" if extra else "")


def _bold_better(cells: list[str], numbers: tuple[float, float], lower: bool | None) -> list[str]:
    """Two cells, of which the better is bold, if either is by more than what is printed."""
    a, b = (f"{number:.4g}" for number in numbers)
    if lower is None or a == b:
        return cells
    first = (numbers[0] < numbers[1]) == lower
    return [
        f"**{cell}**" if better else cell
        for cell, better in zip(cells, (first, not first), strict=True)
    ]


def _ratio(case: Case, ours: Result, theirs: Result) -> str:
    """The other's cost over fedmf's, turn by turn: the median, and the range of several."""
    ratios = [
        cost(case, b) / cost(case, a)
        for a, b in zip(ours.answers, theirs.answers, strict=False)
        if cost(case, a)  # a clock of 10 ms may have seen nothing
    ]
    if not ratios:
        return "–"
    middle = f"{statistics.median(ratios):.3g}"
    if len(ratios) == 1:
        return middle
    return f"{middle} ({min(ratios):.3g} to {max(ratios):.3g})"


def row(case: Case, ours: Result, theirs: Result) -> list[str]:
    """The cells of one row; the reason in place of the numbers of a side without any."""
    name = f"{theirs.side.label} {theirs.version}".strip()
    if not (ours.answers and theirs.answers):
        cells = [
            [result.reason.replace("|", "/"), "–"]
            if not result.answers
            else [_found_text(case, result), _cost_text(case, result)]
            for result in (ours, theirs)
        ]
        return [case.work, name, cells[0][0], cells[1][0], cells[0][1], cells[1][1], "–"]
    values = [_found_text(case, ours), _found_text(case, theirs)]
    numbers = found(case, ours), found(case, theirs)
    if numbers[0] is not None and numbers[1] is not None:
        values = _bold_better(values, (numbers[0], numbers[1]), case.lower)
    costs = _bold_better(
        [_cost_text(case, ours), _cost_text(case, theirs)],
        (_median(case, ours), _median(case, theirs)),
        True,
    )
    return [case.work, name, *values, *costs, _ratio(case, ours, theirs)]


def _median(case: Case, result: Result) -> float:
    return statistics.median(cost(case, answer) for answer in result.answers)


def _cost_text(case: Case, result: Result) -> str:
    return f"{_median(case, result):.3g} {case.cost}"


def tables(sittings: Sequence[tuple[Case, Sequence[Result]]]) -> str:
    """Returns a table of results and a table of costs, in Markdown. Each fits a narrow page."""
    rows = [row(case, ours, other) for case, (ours, *others) in sittings for other in others]
    results = [cells[:4] for cells in rows if set(cells[2:4]) != {"–"}]
    costs = [[*cells[:2], *cells[4:]] for cells in rows]
    return f"{_markdown(_RESULTS, results)}\n\n{_markdown(_COSTS, costs)}"


def _markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown."""
    rule = ["---"] * len(headings)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, rule, *rows))


def circumstances(load: Sequence[float]) -> str:
    """When, where and beside what the numbers were made.

    Args:
      load: of the machine, before the sitting and after it.
    """
    processor = next(
        (
            line.partition(":")[2].strip()
            for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    cores = len(os.sched_getaffinity(0))
    return (
        f"Measured on {datetime.datetime.now(datetime.UTC):%Y-%m-%d} at fedmf `{commit}` on "
        f"{cores} cores of {processor}. The load of the machine was {load[0]:.1f} at the beginning "
        f"and {load[1]:.1f} at the end."
    )


def write(page: pathlib.Path, text: str) -> None:
    """Puts text between the two marks of a page.

    Raises:
      ValueError: the page has no such marks.
    """
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"page={str(page)!r} lacks the lines {BEGIN!r} and {END!r}: add them")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")
