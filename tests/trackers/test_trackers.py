"""Trackers get what is committed and nothing that is secret, and a resume continues their run.

The tests with MLflow and Weights & Biases run where these are installed, in .venv-core.
"""

import contextlib
import json
import pathlib
import sys
from typing import ClassVar

import pytest

from fedmf import training
from fedmf.server.journal_reading import committed_rounds
from fedmf.trackers import TRACKERS, MLflow, Tracker, WandB
from fedmf.trackers import base as trackers_base
from tests.cli.program import SECRET, refused
from tests.cli.program import fedmf as program
from tests.refusals import refusal
from tests.training.numpy_task import config, train

ROUNDS = 6
PUBLIC_FILES = ["config.json", "plan.json", "statement.md"]
OWNER_FILES = ["final_statement.json", "final_statement.md", "result.json", "report/report.html"]
TASK = "--task tests.training.numpy_task:linear_task --quiet"
COMMAND = (
    f"{TASK} --rounds {ROUNDS} --cohort-size 4 --min-sep 2 --noise-multiplier 0.3 --clip-norm 0.5 "
    f"--evaluate-every 2 --noise-seed {SECRET}"
)


class MemoryTracker(Tracker):
    """A tracker that keeps everything in memory, by the ids of its runs."""

    name = "memory"
    runs: ClassVar[dict] = {}

    def __init__(self, *, is_on_this_machine=True, **options):
        super().__init__(**options)
        self.is_on_this_machine = is_on_this_machine

    def is_local(self):
        return self.is_on_this_machine

    def open(self, training, run_id):
        self.folder = training.folder.path
        run_id = run_id or f"run {len(self.runs)}"
        default_run = {"parameters": {}, "metrics": [], "files": {}}
        self.run = self.runs.setdefault(run_id, default_run)
        self.run["status"] = "open"
        return run_id

    def log_parameters(self, parameters):
        self.run["parameters"] |= parameters

    def log_metrics(self, metrics, t):
        assert committed_rounds(self.folder) > t
        self.run["metrics"].append((t, dict(metrics)))

    def log_file(self, path, folder):
        assert "private" not in path.parts
        self.run["files"][f"{folder}/{path.name}".removeprefix("/")] = path.read_bytes()

    def close(self, *, is_finished):
        self.run["status"] = "finished" if is_finished else "stopped"


@pytest.fixture
def no_report(monkeypatch):
    """Replaces the report, which takes long to draw."""

    def write_report(runs, folder, *, title):
        (pathlib.Path(folder) / "report.html").write_text(title)

    monkeypatch.setattr(trackers_base, "write_report", write_report)


@pytest.fixture
def runs(no_report, monkeypatch):
    """Returns the tracked runs in memory, by their ids."""
    monkeypatch.setattr(MemoryTracker, "runs", {})
    return MemoryTracker.runs


class CrashAfter(training.Callback):
    """Raises an error in a round, before the callbacks that follow see the round."""

    def __init__(self, rounds):
        self.rounds = rounds

    def on_round(self, training, row):
        if training.done == self.rounds:
            raise OSError("crash")


def names_of(tracked_run):
    return {name for _, metrics in tracked_run["metrics"] for name in metrics}


def test_a_local_tracker_gets_all_metrics_and_the_files_of_the_owner(runs, tmp_path):
    run = train(tmp_path / "run", callbacks=[MemoryTracker()])
    (tracked_run,) = runs.values()
    assert tracked_run["status"] == "finished"
    assert tracked_run["parameters"]["plan.epsilon"] == run.plan["epsilon"]
    assert tracked_run["parameters"]["cohort_size"] == 4
    *rounds, (last_round, results) = tracked_run["metrics"]
    assert [t for t, _ in rounds] == list(range(ROUNDS))
    for (_, metrics), row in zip(rounds, run.metrics, strict=True):
        assert metrics["not_covered/train_loss"] == row["train_loss"]
        assert metrics["covered/noise_stddev"] == row["noise_stddev"]
    assert last_round == ROUNDS - 1
    assert results["achieved_epsilon"] == run.result["achieved"]["epsilon"]
    assert results["not_covered/test/loss"] == run.result["test"]["loss"]
    files = tracked_run["files"]
    assert sorted(files) == sorted(PUBLIC_FILES + OWNER_FILES)
    assert files["final_statement.md"] == (tmp_path / "run" / "final_statement.md").read_bytes()
    assert (tmp_path / "run" / "trackers.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("tracker_options", [{"is_on_this_machine": False}, {"covered_only": True}])
def test_a_tracker_elsewhere_gets_only_what_the_guarantee_covers(runs, tmp_path, tracker_options):
    settings = config(private_metrics=0.1)
    train(tmp_path / "run", settings, callbacks=[MemoryTracker(**tracker_options)])
    (tracked_run,) = runs.values()
    assert all(name.startswith("covered/") for name in names_of(tracked_run))
    assert "covered/private/loss" in names_of(tracked_run)
    assert sorted(tracked_run["files"]) == PUBLIC_FILES


@pytest.mark.parametrize("crash", [0, 3, ROUNDS])
def test_a_resume_continues_the_tracked_run_with_each_round_once(runs, tmp_path, crash):
    """The crash comes after the commit of a round, and before the tracker has seen it."""
    whole_run = train(tmp_path / "whole", callbacks=[MemoryTracker()])
    with pytest.raises(OSError, match="crash") if crash else contextlib.nullcontext():
        stop = training.StopAfter(1)
        train(tmp_path / "run", callbacks=[CrashAfter(crash) if crash else stop, MemoryTracker()])
    assert len(runs) == 2
    train(tmp_path / "run", resume=True, callbacks=[MemoryTracker()])
    expected_run, resumed_run = runs.values()
    assert resumed_run["metrics"] == expected_run["metrics"]
    assert resumed_run["parameters"] == expected_run["parameters"]
    assert resumed_run["status"] == "finished"
    assert len(whole_run.metrics) == ROUNDS
    # A finished run that is resumed has no more rounds.
    train(tmp_path / "run", resume=True, callbacks=[MemoryTracker()])
    assert resumed_run["metrics"][: ROUNDS + 1] == expected_run["metrics"]
    assert len(runs) == 2


def test_a_missing_package_is_named_before_the_run_begins(tmp_path, monkeypatch):
    for name in TRACKERS:
        monkeypatch.setitem(sys.modules, name, None)
        line = f"train --out {tmp_path}/run {COMMAND} --tracker {name}"
        refused(line, f"--tracker {name} needs ", f"pip install 'fedmf[{name}]'", status=1)
    assert not (tmp_path / "run").exists()


def trained_with(name, folder, monkeypatch):
    """Trains three rounds by the command line, resumes the run, and returns it."""
    line = f"train --out {folder}/run {COMMAND} --tracker {name} --stop-after 3"
    monkeypatch.setattr(sys, "argv", ["fedmf", *line.split()])
    program(line)
    program(f"train --out {folder}/run {TASK} --resume --tracker {name}")
    return training.TrainedRun.load(folder / "run")


def assert_nothing_private(tracker_folder, run_folder):
    """Asserts that no file has a secret of the run, and that all files are the owner's alone."""
    secrets = [SECRET.encode()]
    secrets.append((run_folder / "private" / "rounds.jsonl").read_bytes().splitlines()[0])
    tracker_files = [path for path in tracker_folder.rglob("*") if path.is_file()]
    assert tracker_files
    for path in tracker_files:
        content = path.read_bytes()
        assert not any(secret in content for secret in secrets), path
    # Negative control.
    assert SECRET in (run_folder / "private" / "noise_seed").read_text()
    assert tracker_folder.stat().st_mode & 0o077 == 0


def test_mlflow_has_one_run_of_a_resumed_run(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = trained_with("mlflow", tmp_path, monkeypatch)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow/runs.db")
    experiment = client.get_experiment_by_name("fedmf")
    (tracked_run,) = client.search_runs([experiment.experiment_id])
    assert tracked_run.info.run_name == "run"
    assert tracked_run.info.status == "FINISHED"
    assert tracked_run.data.params["cohort_size"] == "4"
    assert float(tracked_run.data.params["plan.epsilon"]) == run.plan["epsilon"]
    run_id = tracked_run.info.run_id
    history = client.get_metric_history(run_id, "not_covered/train_loss")
    losses = [(metric.step, metric.value) for metric in history]
    assert losses == [(row["round"], row["train_loss"]) for row in run.metrics]
    files = {entry.path for entry in client.list_artifacts(run_id)}
    assert files == {*PUBLIC_FILES, *OWNER_FILES[:3], "report"}
    statement_path = client.download_artifacts(run_id, "final_statement.md", str(tmp_path))
    expected_statement = (tmp_path / "run" / "final_statement.md").read_text()
    assert pathlib.Path(statement_path).read_text() == expected_statement
    assert_nothing_private(tmp_path / "mlflow", tmp_path / "run")


def test_a_run_that_mlflow_lacks_is_refused_in_a_sentence(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    tracker = MLflow(tracking_uri=str(tmp_path / "mlruns"))
    train(tmp_path / "run", callbacks=[training.StopAfter(1)])
    entry = {"run_id": "0" * 32, "rounds": 1}
    (tmp_path / "run" / "trackers.json").write_text(json.dumps({"mlflow": entry}))
    with refusal("MLflow refused a call .*resume the run without `tracker`"):
        train(tmp_path / "run", resume=True, callbacks=[tracker])


def test_mlflow_elsewhere_is_not_local(monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert MLflow().is_local()
    assert MLflow(tracking_uri="/tmp/mlruns").is_local()
    assert not MLflow(tracking_uri="https://tracking.example").is_local()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking.example")
    assert not MLflow().is_local()


def wandb_records(content):
    """Returns the records in a file of Weights & Biases, which has the format of LevelDB's logs.

    After a header of 7 bytes, the file has blocks of 32768 bytes with parts of records. A part has
    a checksum of 4 bytes, its length, and its type: whole, first, middle or last.
    """
    from wandb.proto import wandb_internal_pb2

    records = []
    data = b""
    position = 7
    while position + 7 <= len(content):
        left_in_block = -position % 32768
        if left_in_block < 7 and left_in_block:
            position += left_in_block
            continue
        size = int.from_bytes(content[position + 4 : position + 6], "little")
        part_type = content[position + 6]
        data += content[position + 7 : position + 7 + size]
        position += 7 + size
        if part_type in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            records.append(record)
            data = b""
    return records


def test_wandb_has_one_run_of_a_resumed_run(no_report, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    run = trained_with("wandb", tmp_path, monkeypatch)
    losses = []
    run_ids = set()
    for path in sorted((tmp_path / "wandb").glob("offline-run-*/run-*.wandb")):
        for record in wandb_records(path.read_bytes()):
            if record.WhichOneof("record_type") == "run":
                run_ids.add(record.run.run_id)
            if record.WhichOneof("record_type") == "history":
                row = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }
                if "not_covered/train_loss" in row:
                    losses.append((row["_step"], row["not_covered/train_loss"]))
    assert len(run_ids) == 1
    assert losses == [(row["round"], row["train_loss"]) for row in run.metrics]
    files = {
        path.relative_to(folder).as_posix()
        for folder in (tmp_path / "wandb").glob("offline-run-*/files")
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert {*PUBLIC_FILES, *OWNER_FILES} <= files
    assert_nothing_private(tmp_path / "wandb", tmp_path / "run")
    assert WandB().is_local()
