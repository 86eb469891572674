"""docs/own_task.md runs as printed, from its arrays to its reports."""

import pathlib
import re
import shlex
import sys

import pytest

from fedmf.cli import main
from fedmf.runs.folder import Run

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "own_task.md").read_text()
# Of ten, two, three and ten classes. The noise is drawn anew each time: at these epsilons
# accuracies are 0.7, 0.9, 0.95 and 0.9.
WELL_ABOVE_CHANCE = {"digits": 0.4, "visits": 0.75, "topics": 0.7, "single": 0.5}


def test_the_page_runs_as_printed(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    names = {"__name__": "own_task"}
    for number, (language, block) in enumerate(re.findall(r"```(python|sh)\n(.*?)```", PAGE, re.S)):
        if language == "sh":
            for line in block.replace("\\\n", " ").splitlines():
                program, *arguments = shlex.split(line)
                assert program == "fedmf"
                main(arguments)
        elif block.startswith("# my_module.py\n"):
            pathlib.Path("my_module.py").write_text(block)
        else:
            exec(compile(block, f"docs/own_task.md block {number}", "exec"), names)
    for name, accuracy in WELL_ABOVE_CHANCE.items():
        assert Run.load(f"runs/{name}").result["test"]["accuracy"] > accuracy
    assert pathlib.Path("report/report.html").exists()
    assert "Channels of the convolution." in capfd.readouterr().out
