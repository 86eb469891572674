"""Executed tutorials as Jupyter notebooks to download, beside their HTML.

Hidden cells that check the numbers of a page are left out, because they need this repository.
Roles and links to other pages of the site become plain text.
"""

import pathlib
import re
from typing import Any

import nbformat

_FRONT_MATTER = re.compile(r"---\s*\nfile_format:\s*mystnb\b")
_ROLE = re.compile(r"\{[\w:]+\}`([^`]+)`")
_PAGE_LINK = re.compile(r"\[([^\]]*)\]\((?![a-z]+://)([^)]*)\)")


def _is_notebook(app: Any, page: str) -> bool:
    """Returns whether a page is a tutorial whose cells are executed."""
    path = pathlib.Path(app.env.doc2path(page))
    is_tutorial = page.startswith("tutorials/") and path.suffix == ".md"
    return is_tutorial and bool(_FRONT_MATTER.match(path.read_text()))


def plain_markdown(text: str) -> str:
    """Returns Markdown that Jupyter shows, without roles and without links to pages."""
    without_roles = _ROLE.sub(r"`\1`", text)
    return _PAGE_LINK.sub(lambda link: link[1] or f"`{link[2]}`", without_roles)


def downloadable(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Returns a notebook without the cells that only the site's build can run."""
    cells = []
    for cell in notebook.cells:
        if "remove-cell" in cell.metadata.get("tags", []):
            continue
        if cell.cell_type == "markdown":
            cell.source = plain_markdown(cell.source)
        cells.append(cell)
    notebook.cells = cells
    return notebook


def _add_link(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Adds a link to the notebook below the title of its page."""
    if doctree is None or not _is_notebook(app, page):
        return
    file = f"{page.rpartition('/')[2]}.ipynb"
    link = f'<p class="notebook"><a href="{file}" download>Download as a notebook</a></p>'
    context["body"] = context["body"].replace("</h1>", f"</h1>\n{link}", 1)


def _write(app: Any, error: Exception | None) -> None:
    """Writes the notebooks that myst_nb executed beside the pages."""
    if error or app.builder.format != "html":
        return
    executed_folder = pathlib.Path(app.outdir).parent / "jupyter_execute"
    for page in app.env.found_docs:
        if _is_notebook(app, page):
            notebook = nbformat.read(executed_folder / f"{page}.ipynb", as_version=4)
            target = pathlib.Path(app.outdir) / f"{page}.ipynb"
            nbformat.write(downloadable(notebook), target)


def setup(app: Any) -> dict[str, bool]:
    """Connects to the writing of pages."""
    app.connect("html-page-context", _add_link)
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
