"""Documentation pages whose code trains run as printed, from top to bottom."""

import asyncio
import pathlib
import re
import shlex
import sys
import types

import pytest

import fedmf
from fedmf import federated
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


class Logged:
    """A substitute for a run of MLflow or Weights and Biases, and for their modules."""

    def __init__(self):
        self.settings = {}
        self.points = {}
        self.open = True

    def add(self, numbers, step):
        assert self.open
        assert type(step) is int
        assert step == len(self.points)  # Weights and Biases drops a repeated step.
        for name, value in numbers.items():
            assert re.fullmatch(r"[\w./ -]+", name)  # MLflow takes these values.
            assert type(value) in (int, float)
        self.points[step] = dict(numbers)


@pytest.fixture
def loggers(monkeypatch):
    """Replaces MLflow and Weights and Biases by substitutes, and returns the runs of each."""
    runs = {"mlflow": [], "wandb": []}

    def begun(client, **facts):
        assert not any(run.open for run in runs[client])
        runs[client].append(Logged())
        runs[client][-1].settings = facts
        return runs[client][-1]

    def ended(run):
        assert run.open
        run.open = False

    mlflow = types.ModuleType("mlflow")
    wandb = types.ModuleType("wandb")
    mlflow.start_run = lambda *, run_name: begun("mlflow", name=run_name)
    mlflow.log_params = lambda params: runs["mlflow"][-1].settings.update(config=dict(params))
    mlflow.log_metrics = lambda metrics, *, step: runs["mlflow"][-1].add(metrics, step)
    mlflow.end_run = lambda: ended(runs["mlflow"][-1])

    def init(*, project, name, config):
        run = begun("wandb", name=name, config=config)
        run.log = lambda data, *, step: run.add(data, step)
        run.finish = lambda: ended(run)
        return run

    wandb.init = init
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    return runs


def check_logged(loggers, names):
    """Asserts that both loggers have each round once, named by whether the guarantee covers it.

    A resume must log each round once, too.
    """
    run = names["followed"]
    config = names["private_config"]
    rows = [(t, row["train_loss"], row["private"]["loss"]) for t, row in enumerate(run.metrics)]
    assert len(rows) == 6
    for client in loggers:
        (logged,) = loggers[client]
        assert not logged.open
        assert logged.settings["name"] == "followed"
        assert logged.settings["config"]["private_metrics"] == 0.1
        for t, metric_values, private_values in rows:
            point = logged.points[t]
            assert point["covered/private/loss"] == private_values
            assert point.get("not_covered/train_loss") == (
                metric_values if client == "mlflow" else None
            )
        assert len(logged.points) == 6
    assert "not_covered/validation/accuracy" in loggers["mlflow"][0].points[1]
    assert not any(
        "not_" in name for points in loggers["wandb"][0].points.values() for name in points
    )

    # A crash after the third round: both loggers see each round once.
    class Crash(federated.Callback):
        def on_round(self, training, row):
            if training.done == 3:
                raise OSError

    kinds = [names["MLflow"], names["WandB"]]
    options = {"folder": "runs/resumed", "progress": False}
    with pytest.raises(OSError):  # noqa: PT011
        federated.train(
            names["task"], config, noise_seed=1, callbacks=[*(k() for k in kinds), Crash()],
            **options,
        )  # fmt: skip
    federated.train(names["task"], config, resume=True, callbacks=[k() for k in kinds], **options)
    for runs in loggers.values():
        _, first_log, resumed_log = runs
        assert not first_log.open
        assert not resumed_log.open
        assert list(first_log.points) == [0, 1, 2]
        assert list(resumed_log.points) == [0, 1, 2, 3, 4, 5]
        assert {t: resumed_log.points[t] for t in first_log.points} == first_log.points


def test_the_page_resume_runs(run_page, loggers):
    names = run_page("resume")
    check_logged(loggers, names)
    statement = pathlib.Path("runs/tuned/final_statement.md").read_text()
    statement_text = " ".join(statement.split())
    assert "the initial model is table.keras (SHA-256 digest " in statement_text
    assert "which was trained before this run; for clients whose data it was trained" in (
        statement_text
    )
