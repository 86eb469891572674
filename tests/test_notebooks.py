"""The cells of docs/notebooks run from top to bottom, without TensorFlow, and draw the pictures
that the page promises.
"""

import pathlib
import re
import subprocess
import sys

import pytest

NOTEBOOKS = pathlib.Path(__file__).parents[1] / "docs" / "notebooks"
FIGURES = {"ten_pictures": 10, "plan_a_run": 1}
_PROGRAM = """
import pathlib, re, sys
for name in ("tensorflow", "tensorflow_federated", "tensorflow_privacy", "keras", "jax"):
    sys.modules[name] = None
import matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plt
names = {"__name__": "notebook"}
text = pathlib.Path(sys.argv[1]).read_text()
for number, cell in enumerate(re.findall(r"```{code-cell} ipython3\\n(.*?)```", text, re.S)):
    exec(compile(cell, f"{sys.argv[1]} cell {number}", "exec"), names)
for number in plt.get_fignums():
    plt.figure(number).savefig(f"{number}.png", dpi=60)
    assert all(ax.get_xlabel() for ax in plt.figure(number).axes), number
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_notebook(name, tmp_path):
    command = [sys.executable, "-c", _PROGRAM, str(NOTEBOOKS / f"{name}.md")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(list(tmp_path.glob("*.png"))) == FIGURES[name]


def test_every_notebook_is_run_and_every_section_of_the_pictures_has_one():
    assert {path.stem for path in NOTEBOOKS.glob("*.md")} == set(FIGURES)
    page = (NOTEBOOKS / "ten_pictures.md").read_text()
    assert re.findall(r"^## (\d+)\. ", page, re.M) == [str(number) for number in range(1, 11)]
