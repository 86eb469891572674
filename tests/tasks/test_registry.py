"""The registry of tasks: tasks that ship, tasks of other packages, and refusals."""

import importlib.metadata
import os
import pathlib
import subprocess
import sys

import pytest

import fedmf
from fedmf import TrainConfig, tasks
from tests.cli.program import fedmf as program
from tests.cli.program import printed_by, refused

pytestmark = pytest.mark.tensorflow

MODULE = """
import dataclasses
from tests.federated.small_task import small_task

@dataclasses.dataclass(frozen=True, kw_only=True)
class TinyOptions:
    batch_size: int = dataclasses.field(default=4, metadata={"help": "Sequences in a batch."})
    label: str | None = "tiny"

    def __post_init__(self):
        if self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size} must be positive")

def tiny(options: TinyOptions, *, progress):
    name = options.label or "nameless"
    return dataclasses.replace(small_task(), name=name, batch_size=options.batch_size)

def broken(options: TinyOptions):
    raise KeyError("lost")

def nothing():
    return {}

number = 3
"""
OPTIONS = (
    "--rounds 4 --cohort-size 4 --min-sep 2 --noise-multiplier 0.3 --evaluate-every 2 "
    "--noise-seed 1"
)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a user's module into the working folder."""
    (tmp_path / "tiny_task.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("tiny_task", None)


@pytest.mark.usefixtures("clients_in_turn")
def test_a_task_is_one_module_and_its_name(module, monkeypatch):
    monkeypatch.setitem(tasks.TASKS, "tiny", "tiny_task:tiny")
    task_options = "--task tiny -o batch-size=3 -o label=none"
    assert "validation accuracy" in printed_by(f"train --out run --quiet {task_options} {OPTIONS}")
    run = fedmf.Run.load("run")
    assert (run.config.task, run.config.task_options) == ("tiny", {"batch_size": 3, "label": None})
    assert run.plan["task"]["name"] == "nameless"
    program("train --out run --quiet --resume")
    vary = "--vary task-option.batch-size=2,3 --dry-run"
    printed_text = program(f"sweep --task tiny --out sweep {vary} {OPTIONS}").stdout
    assert "task_option.batch_size=3" in printed_text
    assert "Sequences in a batch." in program("train --task tiny --help").stdout


@pytest.mark.parametrize("name", ["tiny", "tiny_task:tiny"])
def test_a_task_of_another_package_is_found(name, module, monkeypatch):
    """A task is found by an entry point, or by the name of its function."""
    point = importlib.metadata.EntryPoint("tiny", "tiny_task:tiny", "fedmf.tasks")
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: [point] * (group == "fedmf.tasks")
    )
    config = TrainConfig(task=name, task_options={"batch_size": 3}, family="none", min_sep=1)
    assert tasks.task_from_config(config, progress=False).batch_size == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("tiny_task:none", "cannot be imported"),
        ("tiny_task:number", "is a int"),
        ("tiny_task:broken", "raises KeyError: 'lost'"),
        ("tiny_task:nothing", "returns a dict"),
        ("dataclasses:replace", "cannot be called (missing a required argument: 'obj')"),
        ("tiny_task:nothing -o batch-size=3", "the task tiny_task:nothing has no options"),
        ("tiny_task:tiny --data corpus.sqlite", "reads no data"),
        ("tiny_task:tiny -o batch-size=0", "--task-option batch-size=0"),
        ("tiny_task:tiny -o sentences=3", "its options are `batch-size`, `label`"),
    ],
)
def test_invalid_tasks_are_refused_in_one_sentence(arguments, words, module):
    refused(f"train --task {arguments} --out run {OPTIONS}", words)
    assert not pathlib.Path("run").exists()


@pytest.mark.slow
def test_a_task_s_own_import_of_tensorflow_is_quiet(tmp_path):
    """The test runs in a process of its own, because TensorFlow is imported once in a process."""
    (tmp_path / "loud.py").write_text("import tensorflow\n")
    environment = {
        name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"
    }
    code = "from fedmf.cli import main; main('train --task loud:absent --help'.split())"
    finished_process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished_process.returncode == 2
    (line,) = finished_process.stderr.splitlines()
    assert "module 'loud' has no attribute 'absent'" in line


@pytest.mark.slow
def test_folders_of_the_user_named_tasks_and_experiments_change_nothing(tmp_path):
    """Packages of these names in the working folder once replaced ours, so that train, demo and
    data synth failed.
    """
    for name in ("tasks", "experiments"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise AssertionError\n")
    commands = [
        "data synth --clients 20 --out c.sqlite --quiet",
        f"train --task regression --out run --quiet {OPTIONS}",
        "demo --help",
    ]
    # `python -m` puts the working folder first. All commands run in one process, which imports
    # TensorFlow once.
    code = (
        "import sys; sys.path.insert(0, ''); from fedmf.cli import main\n"
        "for line in sys.argv[1:]: main(line.split())"
    )
    command = [sys.executable, "-c", code, *commands]
    finished_process = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert finished_process.returncode == 0, finished_process.stderr
    assert "fedmf demo" in finished_process.stdout
