"""Pictures as links to their files, so that a click shows them in full size."""

from typing import Any

from docutils import nodes


def _give_scale(app: Any, doctree: nodes.document, page: str) -> None:
    """Gives each picture a scale, because Sphinx makes links of pictures that have one."""
    for picture in doctree.findall(nodes.image):
        picture.setdefault("scale", 100)


def setup(app: Any) -> dict[str, bool]:
    """Connects to resolved pages, which have the pictures that cells draw, too."""
    app.connect("doctree-resolved", _give_scale)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
