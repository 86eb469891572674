"""Page tree of the site, and links that leave docs/.

The toctrees of docs/index.md list all pages. An indented name is nested below the page above it.
A name with a question mark is left out if the page is missing. UNLISTED stands for the pages that
no toctree names, so that a new page needs no edit.
"""

import pathlib
import re
from typing import Any, NamedTuple

# Files beside docs/, and the pages of the site that show them.
_PAGE_BY_FILE = {
    "../benchmarks/RESULTS.md": "costs.md",
    "../CHANGELOG.md": "changelog.md",
    "../CONTRIBUTING.md": "contributing.md",
    "../SECURITY.md": "guarantee.md",
}
_TOCTREE = re.compile(r"```\{toctree\}\n(.*?)```", re.DOTALL)
_ENTRY = re.compile(r"^( *)([\w/-]+)(\??)$", re.MULTILINE)
# Folders whose pages must be in a toctree of the front page.
_FOLDERS = (".", "papers", "reference", "tutorials")


class Tree(NamedTuple):
    """Pages of the front page's toctrees.

    Attributes:
      index: docs/index.md with the names of visible pages only.
      nested: names of the pages that are nested below a page, by its name.
    """

    index: str
    nested: dict[str, list[str]]


def page_tree(docs: pathlib.Path, excluded: list[str]) -> Tree:
    """Returns the tree of pages that docs/index.md describes."""
    index = (docs / "index.md").read_text()
    pages = {
        path.relative_to(docs).with_suffix("").as_posix()
        for folder in _FOLDERS
        for path in docs.glob(f"{folder}/*.md")
    }
    pages -= {"index", *(name.removesuffix(".md") for name in excluded)}
    nested: dict[str, list[str]] = {}
    parent_page = ""
    listed_pages = set()

    def place(entry: re.Match[str]) -> str:
        nonlocal parent_page
        indent, page, optional = entry.groups()
        if page == "UNLISTED":
            return page
        listed_pages.add(page)
        if optional and page not in pages:
            return ""
        if indent and parent_page:
            nested.setdefault(parent_page, []).append(page)
            return ""
        parent_page = page
        return page

    def place_entries(toctree: re.Match[str]) -> str:
        return _ENTRY.sub(place, toctree[0])

    text = _TOCTREE.sub(place_entries, index)
    unlisted_pages = sorted(pages - listed_pages - _pages_in_other_toctrees(docs))
    return Tree(text.replace("UNLISTED", "\n".join(unlisted_pages)), nested)


def _pages_in_other_toctrees(docs: pathlib.Path) -> set[str]:
    """Returns the names of the pages in toctrees of pages other than the front page."""
    names = set()
    for path in docs.rglob("*.md"):
        folder = path.parent.relative_to(docs)
        if path != docs / "index.md":
            for toctree in _TOCTREE.findall(path.read_text()):
                names |= {(folder / page).as_posix() for _, page, _ in _ENTRY.findall(toctree)}
    return names


def _insert(app: Any, page: str, source: list[str]) -> None:
    """Places the pages of the toctrees, and leads links to files beside docs/ to their pages."""
    docs = pathlib.Path(app.srcdir)
    if (docs / "index.md").exists():
        tree = page_tree(docs, app.config.exclude_patterns)
        if page == "index":
            source[0] = tree.index
        elif page in tree.nested:
            paths = "\n".join(f"/{name}" for name in tree.nested[page])
            source[0] += f"\n\n```{{toctree}}\n:hidden:\n\n{paths}\n```\n"
    for file, shown_page in _PAGE_BY_FILE.items():
        source[0] = re.sub(rf"\]\({re.escape(file)}(#[^)]*)?\)", f"]({shown_page})", source[0])


def _outdated(app: Any, env: Any, added: set, changed: set, removed: set) -> list[str]:
    """Returns the pages that show the tree, because a new page changes them."""
    docs = pathlib.Path(app.srcdir)
    if not (docs / "index.md").exists():
        return []
    return ["index", *page_tree(docs, app.config.exclude_patterns).nested]


def setup(app: Any) -> dict[str, bool]:
    """Connects to the reading of pages."""
    app.connect("env-get-outdated", _outdated)
    app.connect("source-read", _insert)
    return {"parallel_read_safe": True}
