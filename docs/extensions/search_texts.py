"""Snippets of text for search results, which browsers can read when the site is opened as files.

Sphinx's own snippets need an HTTP server. The build writes the text of every section into one
script, which the page of search results loads: page -> [[anchor, text], ...].
"""

import json
import pathlib
from typing import Any

from docutils import nodes

FILE = "section_texts.js"
_LEFT_OUT = (nodes.comment, nodes.raw, nodes.section, nodes.target, nodes.title)


def section_texts(doctree: nodes.document) -> list[tuple[str, str]]:
    """Returns the anchor and the text of each section of a page, without its subsections."""
    texts = []
    for section in doctree.findall(nodes.section):
        blocks = []
        for child in section.children:
            if not isinstance(child, _LEFT_OUT):
                blocks.append(child.astext())
        text = " ".join(" ".join(blocks).split())
        texts.append((section["ids"][0], text))
    return texts


def _collect(app: Any, doctree: nodes.document, page: str) -> None:
    """Keeps the texts of a page whose links have their titles."""
    if not hasattr(app, "section_texts"):
        app.section_texts = {}
    app.section_texts[page] = section_texts(doctree)


def _write(app: Any, error: Exception | None) -> None:
    """Writes the script into the folder of static files."""
    if error or app.builder.format != "html":
        return
    text_by_page = {}
    for page in sorted(app.env.found_docs):
        texts = getattr(app, "section_texts", {}).get(page)
        # A page that this build did not write again has its links without titles.
        text_by_page[page] = texts or section_texts(app.env.get_doctree(page))
    content = f"const SectionTexts = {json.dumps(text_by_page, separators=(',', ':'))};\n"
    (pathlib.Path(app.outdir) / "_static" / FILE).write_text(content)


def _load(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Loads the scripts on the page of search results."""
    if page == "search":
        app.add_js_file(FILE, priority=100)
        app.add_js_file("snippets.js", loading_method="defer")


def setup(app: Any) -> dict[str, bool]:
    """Connects to the writing of pages."""
    app.connect("doctree-resolved", _collect)
    app.connect("build-finished", _write)
    app.connect("html-page-context", _load)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
