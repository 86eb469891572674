"""Documentation pages whose code trains run as printed, from top to bottom."""

import asyncio
import pathlib
import re
import shlex
import sys

import pytest

import fedmf
from fedmf.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clients_in_turn")]

DOCS = pathlib.Path(__file__).parents[2] / "docs"


@pytest.fixture
def run_page(tmp_path, monkeypatch):
    """Runs a page in an empty folder, and returns the variables of its code by name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    # asyncio.run removes the event loop, which TFF needs.
    asyncio.set_event_loop(asyncio.new_event_loop())

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


def test_the_page_own_data_runs(run_page, capfd):
    run_page("own_data", "python|sh")
    # The task has ten classes. The noise is drawn anew each time, and the accuracy is about 0.7.
    assert fedmf.Run.load("runs/digits").result["test"]["accuracy"] > 0.4
    assert pathlib.Path("report/report.html").exists()
    assert "Channels of the convolution." in capfd.readouterr().out


# The tasks have three and ten classes; the accuracies are about 0.95 and 0.9.
@pytest.mark.parametrize(
    ("page", "name", "min_accuracy"),
    [("text", "topics", 0.7), ("examples_as_clients", "single", 0.5)],
)
def test_a_page_with_a_task_runs(run_page, page, name, min_accuracy):
    run_page(page)
    assert fedmf.Run.load(f"runs/{name}").result["test"]["accuracy"] > min_accuracy


def test_the_page_tff_runs(run_page, capfd):
    names = run_page("tff")
    assert names["mean"].shape == [3]
    assert len(names["training"].ledger) == 4
    assert len(names["source"].controller.ledger) == 4
    assert names["audit"].epsilon <= names["plan"].epsilon
    assert "`federated.PlannedProcess` enforces this" in " ".join(names["statement"].split())
    assert "pipeline" in names["program_statement"]
    assert names["sums"].round == 12
    assert "('clip_fraction', " in capfd.readouterr().out
    assert len(names["run"].metrics) == 4


def test_the_page_adaptive_runs(run_page, capfd):
    names = run_page("adaptive")
    assert float(capfd.readouterr().out.splitlines()[1]) > 0  # the drift of the scales
    norms = names["run"].table()["clip_norm"]
    plan = names["run"].plan
    assert norms[0] == pytest.approx(names["config"].clip_norm)
    assert all(len(set(norms[start : start + 5])) == 1 for start in range(0, 20, 5))
    # A norm can return, since the noise is counted in whole steps. It is practically impossible
    # that the norm never moves.
    assert len(set(norms)) > 1
    assert plan["epsilon"] == pytest.approx(8.0, rel=1e-3)
    assert plan["quantile_clipping"]["update_noise_multiplier"] > plan["noise_multiplier"]


def test_the_page_resume_runs(run_page):
    run_page("resume")
    statement = pathlib.Path("runs/tuned/final_statement.md").read_text()
    statement_text = " ".join(statement.split())
    assert "the initial model is table.keras (SHA-256 digest " in statement_text
    assert "which was trained before this run; for clients whose data it was trained" in (
        statement_text
    )
