"""The front page's lists: NOTEBOOKS stands for docs/notebooks, UNLISTED for pages that no other list names. A new page needs no edit."""

import pathlib
import re
from typing import Any


def _insert(app: Any, page: str, source: list[str]) -> None:
    if page == "index":
        docs = pathlib.Path(app.srcdir)
        notebooks = sorted(f"notebooks/{path.stem}" for path in docs.glob("notebooks/*.md"))
        listed = set(re.findall(r"^\w+$", source[0], re.M))
        unlisted = sorted({path.stem for path in docs.glob("*.md")} - listed - {"index"})
        source[0] = source[0].replace("NOTEBOOKS", "\n".join(notebooks)).replace("UNLISTED", "\n".join(unlisted))


def setup(app: Any) -> dict[str, bool]:
    """Connects to the reading of pages."""
    app.connect("source-read", _insert)
    return {"parallel_read_safe": True}
