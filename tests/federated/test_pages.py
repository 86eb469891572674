"""Pages whose code trains run as printed, from top to bottom."""

import asyncio
import pathlib
import re
import shlex
import sys
import unittest.mock

import pytest

import fedmf
from fedmf import federated
from fedmf.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clients_in_turn")]

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


@pytest.fixture
def loggers(monkeypatch):
    """MLflow and Weights and Biases, which keep what they are called with."""
    modules = [unittest.mock.MagicMock(__spec__=None) for _ in range(2)]
    for name, module in zip(("mlflow", "wandb"), modules, strict=True):
        monkeypatch.setitem(sys.modules, name, module)
    return modules


def logged(mlflow, wandb):
    """Of each the points by step, one dict for each run; every run has ended."""
    found = []
    for module, begin, log, end in (
        (mlflow, "start_run", "log_metrics", "end_run"),
        (wandb, "init", "init().log", "init().finish"),
    ):
        runs = []
        for name, arguments, options in module.mock_calls:
            if name == begin:
                runs.append({})
            elif name == log:
                assert options["step"] == len(runs[-1])  # W&B drops a step that was there
                (runs[-1][options["step"]],) = arguments
        names = [name for name, _, _ in module.mock_calls if name in (begin, end)]
        assert names == [begin, end] * len(runs)
        numbers = [number for run in runs for point in run.values() for number in point.items()]
        # What MLflow takes
        assert all(re.fullmatch(r"[\w./ -]+", name) for name, _ in numbers)
        assert {type(value) for _, value in numbers} <= {int, float}
        found.append(runs)
    return found


def check_logged(loggers, names):
    """Every round of a run once, named by whether it is covered, in both; and after a resume."""
    run, config = names["followed"], names["looked_at"]
    mlflow, wandb = loggers
    assert wandb.init.call_args.kwargs["config"]["private_metrics"] == 0.1
    assert mlflow.log_params.call_args.args[0]["private_metrics"] == 0.1
    (everything,), (covered,) = logged(*loggers)
    for t, row in enumerate(run.metrics):
        assert covered[t]["covered/private/loss"] == row["private"]["loss"]
        assert everything[t].items() > covered[t].items()
        assert everything[t]["not_covered/train_loss"] == row["train_loss"]
        assert not any("not_" in name for name in covered[t])
    assert len(everything) == len(covered) == 6
    assert "not_covered/validation/accuracy" in everything[1]

    callbacks = [names["MLflow"](), names["WandB"](), federated.StopAfter(3)]
    options = {"folder": "runs/resumed", "progress": False}
    federated.train(names["task"], config, noise_seed=1, callbacks=callbacks, **options)
    federated.train(names["task"], config, resume=True, callbacks=callbacks[:2], **options)
    for _, before, after in logged(*loggers):
        assert list(before) == [0, 1, 2]
        assert list(after) == [0, 1, 2, 3, 4, 5]
        assert {t: after[t] for t in before} == before


def test_run_folder(run_page, loggers):
    names = run_page("run_folder")
    check_logged(loggers, names)
    statement = pathlib.Path("runs/tuned/final_statement.md").read_text()
    said = "table.keras, which was trained before this run; for clients whose data it was trained"
    assert said in " ".join(statement.split())
