"""The front page's lists: NOTEBOOKS stands for docs/notebooks, UNLISTED for pages that no other list names. A new page needs no edit.

A name with a question mark is a page that may be missing.
"""

import pathlib
import re
from typing import Any


def _insert(app: Any, page: str, source: list[str]) -> None:
    if page == "index":
        docs = pathlib.Path(app.srcdir)
        pages = {path.stem for path in docs.glob("*.md") if path.name not in app.config.exclude_patterns} - {"index"}
        listed = set(re.findall(r"^(\w+)\??$", source[0], re.M))
        text = re.sub(r"^(\w+)\?$", lambda found: found[1] if found[1] in pages else "", source[0], flags=re.M)
        notebooks = sorted(f"notebooks/{path.stem}" for path in docs.glob("notebooks/*.md"))
        text = text.replace("NOTEBOOKS", "\n".join(notebooks))
        source[0] = text.replace("UNLISTED", "\n".join(sorted(pages - listed)))


def setup(app: Any) -> dict[str, bool]:
    """Connects to the reading of pages."""
    app.connect("source-read", _insert)
    return {"parallel_read_safe": True}
