"""Charts of executed pages in the reports' style, whatever matplotlibrc says. static/site.css turns
them dark where the page is dark.
"""

import os
import pathlib
import tempfile
from typing import Any

from fedmf.reports import canvas

# In a matplotlibrc # begins a comment.
_COLORS = [c.lstrip("#") for c in (canvas.BLUE, canvas.RED, canvas.SOFT, canvas.INK)]
STYLE = canvas.STYLE | {
    "axes.prop_cycle": f"cycler('color', {_COLORS})",
    "figure.constrained_layout.use": True,
    "figure.dpi": 160,
    "figure.figsize": f"{canvas.WIDTH}, 2.9",
    "image.cmap": "RdBu",
}


def setup(app: Any) -> dict[str, bool]:
    """Writes the style into a file that the kernels' matplotlib reads."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="fedmf-charts-")) / "matplotlibrc"
    lines = (
        f"{name}: {value}" if "," in str(value) else f'{name}: "{value}"'
        for name, value in STYLE.items()
    )
    path.write_text("\n".join(lines))
    os.environ["MATPLOTLIBRC"] = str(path)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
