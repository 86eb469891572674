"""Results on the pages of the papers.

A line `<!-- result: NAME -->` on docs/papers/SOURCE.md stands for an item of the catalogue: its
heading, claim, picture and verdict, from the files of `fedmf paper report`.
"""

import pathlib
import re
from typing import Any

from fedmf.experiments.papers import ITEMS, results

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
    fields = {"The paper's claim": item.claim, "Verdict": f"**{words.verdict}.** {words.sentence}"}
    if words.reduced:
        fields["Smaller than in the paper"] = f"{words.reduced[0].upper()}{words.reduced[1:]}."
    if result is not None:
        fields["How it was computed"] = f"`{result['command']}`. {words.origin}."
    else:
        fields["How it is computed"] = f"{words.origin}."
    picture = f"![{item.number}]({name}.png)\n\n" if words.has_picture else ""
    listed = "\n\n".join(f"{field}\n: {text}" for field, text in fields.items() if text != ".")
    return f"({name})=\n## {item.number}\n\n{picture}{listed}\n"


def _insert(app: Any, page: str, source: list[str]) -> None:
    """Replaces the marks on a page of a paper by the sections of their items."""
    if page.startswith("papers/"):
        folder = pathlib.Path(app.srcdir) / "papers"
        for name in MARK.findall(source[0]):
            app.env.note_dependency(str(folder / f"{name}.json"))
        source[0] = MARK.sub(lambda mark: section(mark[1], folder), source[0])


def setup(app: Any) -> dict[str, bool]:
    """Connects to the reading of pages."""
    app.connect("source-read", _insert)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
