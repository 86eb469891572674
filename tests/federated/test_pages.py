"""Pages whose code trains run as printed, from top to bottom."""

import asyncio
import pathlib
import re
import shlex
import sys

import pytest

import fedmf
from fedmf.cli import main

pytestmark = pytest.mark.slow

DOCS = pathlib.Path(__file__).parents[2] / "docs"


@pytest.fixture
def run_page(tmp_path, monkeypatch):
    """Runs a page in an empty folder; what its code leaves, by name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    asyncio.set_event_loop(asyncio.new_event_loop())  # which asyncio.run takes away, and TFF needs

    def run(page, languages="python"):
        names = {"__name__": page}
        text = (DOCS / f"{page}.md").read_text()
        blocks = re.findall(rf"```({languages})\n(.*?)```", text, re.S)
        assert blocks
        for number, (language, block) in enumerate(blocks):
            if language == "sh":
                for line in block.replace("\\\n", " ").splitlines():
                    program, *arguments = shlex.split(line)
                    assert program == "fedmf"
                    main(arguments)
            elif block.startswith("# my_module.py\n"):
                pathlib.Path("my_module.py").write_text(block)
            else:
                exec(compile(block, f"docs/{page}.md block {number}", "exec"), names)
        return names

    return run


def test_own_task(run_page, capfd):
    run_page("own_task", "python|sh")
    # Of ten, two, three and ten classes. The noise is drawn anew each time: at these epsilons
    # accuracies are 0.7, 0.9, 0.95 and 0.9.
    least = {"digits": 0.4, "visits": 0.75, "topics": 0.7, "single": 0.5}
    for name, accuracy in least.items():
        assert fedmf.Run.load(f"runs/{name}").result["test"]["accuracy"] > accuracy
    assert pathlib.Path("report/report.html").exists()
    assert "Channels of the convolution." in capfd.readouterr().out


def test_pipeline(run_page, capfd):
    names = run_page("pipeline")
    assert names["mean"].shape == [3]
    assert len(names["data_of_round_3"]) == 2
    assert len(names["source"].controller.ledger) == 4
    assert "('clip_fraction', 0.5)" in capfd.readouterr().out
    assert len(names["run"].metrics) == 12
    assert names["model"].count_params() == 4


def test_adaptive(run_page, capfd):
    names = run_page("adaptive")
    assert float(capfd.readouterr().out.splitlines()[1]) > 0  # the drift of the scales
    norms, plan = names["run"].table()["clip_norm"], names["run"].plan
    assert norms[0] == pytest.approx(names["config"].clip_norm)
    assert all(len(set(norms[start : start + 5])) == 1 for start in range(0, 20, 5))
    # A norm can come back, as the noise is counted in whole steps; that it never moves is as good
    # as impossible.
    assert len(set(norms)) > 1
    assert plan["epsilon"] == pytest.approx(8.0, rel=1e-3)
    assert plan["quantile_clipping"]["update_noise_multiplier"] > plan["noise_multiplier"]


def test_run_folder(run_page):
    run_page("run_folder")
    statement = pathlib.Path("runs/tuned/final_statement.md").read_text()
    said = "table.keras, which was trained before this run; for clients whose data it was trained"
    assert said in " ".join(statement.split())
