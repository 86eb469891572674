"""Results on the pages of the papers.

A line `<!-- result: NAME -->` on docs/papers/SOURCE.md stands for an item of the catalogue: its
heading, claim, picture, verdict, clauses and history, from the files of `fedmf paper report`. Lines
on docs/papers.md stand for numbers of verdicts (`TEXT_BY_MARK`).
"""

import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from extensions import verdicts
from fedmf.experiments.papers import ITEMS, results

# Mark on docs/papers.md -> the function that returns the text in its place.
TEXT_BY_MARK = {
    "<!-- numbers of verdicts -->": verdicts.table,
    "<!-- false verdicts -->": verdicts.false_verdicts,
    "<!-- first results -->": verdicts.first_results,
}
MARK = re.compile(r"^<!-- result: ([\w-]+) -->$", re.M)


def section(name: str, folder: pathlib.Path) -> str:
    """Returns the section of one item in Markdown.

    Args:
      name: name of the item.
      folder: folder of the results and pictures, which has the page, too.
    """
    item = ITEMS[name]
    result = results.load(folder / f"{name}.json")
    words = results.describe(item, result)
    fields = {"The paper's claim": item.claim, "Verdict": f"**{words.verdict}.** {words.why}"}
    if words.reduced:
        fields["Smaller than in the paper"] = f"{words.reduced[0].upper()}{words.reduced[1:]}."
    if result is not None:
        fields["How it was computed"] = f"`{result['command']}`. {words.origin}."
    else:
        fields["How it is computed"] = f"{words.origin}."
    tables = ""
    if words.clauses:
        clause_rows = [(part["text"], part["verdict"], part["evidence"]) for part in words.clauses]
        tables += table(("clause of the claim", "verdict", "numbers"), clause_rows)
    if result is not None and "history" in result:
        history_rows = [_history_row(entry) for entry in result["history"]]
        tables += "\nHistory of this item, with each setting that was run to its end:\n"
        tables += table(("date", "commit", "settings", "outcome"), history_rows)
    picture = f"![{item.number}]({name}.png)\n\n" if words.has_picture else ""
    listed = "\n\n".join(f"{field}\n: {text}" for field, text in fields.items() if text != ".")
    return f"({name})=\n## {item.number}\n\n{picture}{listed}\n{tables}"


def _history_row(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the cells of an entry in an item's history."""
    commits = f"`{entry['commit']}`"
    if "redrawn" in entry:
        later_commits = ", ".join(f"`{commit}`" for commit in entry["redrawn"])
        commits += f", drawn again in {later_commits}"
    outcome = f"{entry['verdict']}: {entry['outcome']}"
    return entry["date"], commits, entry["settings"], outcome


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown, after an empty line."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n" + "".join(
        f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines
    )


def _insert(app: Any, page: str, source: list[str]) -> None:
    """Replaces the marks on a page of a paper by the sections of their items."""
    if page == "papers":
        for mark, text in TEXT_BY_MARK.items():
            source[0] = source[0].replace(mark, text())
        for name in ITEMS:
            app.env.note_dependency(str(verdicts.FOLDER / f"{name}.json"))
    if page.startswith("papers/"):
        folder = pathlib.Path(app.srcdir) / "papers"
        for name in MARK.findall(source[0]):
            app.env.note_dependency(str(folder / f"{name}.json"))
        source[0] = MARK.sub(lambda mark: section(mark[1], folder), source[0])


def setup(app: Any) -> dict[str, bool]:
    """Connects to the reading of pages."""
    app.connect("source-read", _insert)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
