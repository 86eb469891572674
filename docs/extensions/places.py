"""Pages find their places, and links that leave docs/ lead to pages of the site.

On the front page NOTEBOOKS stands for docs/notebooks, and UNLISTED for pages that no list names: a
new page needs no edit. A name with a question mark is a page that may be missing.
"""

import pathlib
import re
from typing import Any

# Files beside docs/ that pages of the site show.
_SHOWN = {
    "../benchmarks/RESULTS.md": "costs.md",
    "../SECURITY.md": "guarantee.md",
    "../examples": "examples.md",
}


def _insert(app: Any, page: str, source: list[str]) -> None:
    for file, shown in _SHOWN.items():
        source[0] = re.sub(rf"\]\({re.escape(file)}(#[^)]*)?\)", f"]({shown})", source[0])
    if page == "index":
        docs = pathlib.Path(app.srcdir)
        pages = {
            path.stem for path in docs.glob("*.md") if path.name not in app.config.exclude_patterns
        } - {"index"}
        listed = set(re.findall(r"^(\w+)\??$", source[0], re.M))
        text = re.sub(
            r"^(\w+)\?$", lambda found: found[1] if found[1] in pages else "", source[0], flags=re.M
        )
        notebooks = sorted(f"notebooks/{path.stem}" for path in docs.glob("notebooks/*.md"))
        text = text.replace("NOTEBOOKS", "\n".join(notebooks))
        source[0] = text.replace("UNLISTED", "\n".join(sorted(pages - listed)))


def setup(app: Any) -> dict[str, bool]:
    """Connects to the reading of pages."""
    app.connect("source-read", _insert)
    return {"parallel_read_safe": True}
