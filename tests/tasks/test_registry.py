"""A task is one folder and one line of the registry; a user's own folders named tasks and experiments are nobody's business."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest

import fedmf
from fedmf import tasks
from fedmf.cli import main
from tests.federated.run_small import config
from tests.federated.small_task import small_task

pytestmark = pytest.mark.tensorflow

MODULE = """
import dataclasses
from tests.federated.small_task import small_task

def task_from_config(config, *, progress):
    return dataclasses.replace(small_task(), name="tiny", batch_size=config.batch_size)
"""
OPTIONS = "--rounds 4 --cohort-size 4 --min-sep 2 --noise-multiplier 0.3 --sequence-length 5 --batch-size 4 --evaluate-every 2"


def test_a_task_is_one_module_and_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "tiny_task.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(tasks.TASKS, "tiny", "tiny_task:task_from_config")
    settings = config(task="tiny")
    run = fedmf.federated.train(
        tasks.task_from_config(settings), settings, folder=tmp_path / "run", noise_seed=1, progress=False
    )
    assert run.plan["task"]["name"] == "tiny"
    folder = str(tmp_path / "by command")
    main(["train", "--task", "tiny", "--out", folder, "--noise-seed", "1", "--quiet", "--json", *OPTIONS.split()])
    assert "validation accuracy" in json.loads(capsys.readouterr().out)
    main(["train", "--out", folder, "--resume", "--quiet", "--json"])
    main(["audit", folder])


def test_a_task_that_is_none_is_one_sentence(tmp_path, capsys):
    arguments = ["train", "--task", "weather", "--out", str(tmp_path / "run"), "--noise-seed", "1", *OPTIONS.split()]
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert "weather" in error
    assert "stackoverflow_nwp" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8])
@pytest.mark.parametrize("part", ["clients", "validation"])
def test_examples_of_another_dtype_are_refused_before_the_folder_exists(part, dtype, tmp_path):
    """They were cut to int32 without a word: features between 0 and 1 became 0."""
    task = small_task()

    def cast(examples):
        return lambda name: tuple(array.astype(dtype) for array in examples(name))

    changes = (
        {"client_examples": cast(task.client_examples)}
        if part == "clients"
        else {"evaluation_examples": cast(task.evaluation_examples)}
    )
    with pytest.raises(TypeError, match=rf"task 'small'.*{np.dtype(dtype)}.*int32"):
        fedmf.federated.train(
            dataclasses.replace(task, **changes), config(), folder=tmp_path / "run", noise_seed=1, progress=False
        )
    assert not (tmp_path / "run").exists()


def test_folders_of_ones_own_named_tasks_and_experiments_are_left_alone(tmp_path):
    """Packages of these names in the working folder shadowed ours, and killed train, demo and data synth."""
    for name in ("tasks", "experiments"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise AssertionError('the user\\'s own package was imported')\n")
    train = (
        "train --data c.sqlite --out run --noise-seed 1 --quiet --vocabulary-size 30 --embedding-size 4 --lstm-size 6"
    )
    small = "--validation-sentences 20 --test-sentences 20 --max-sentences 8 --evaluate-every 4"
    commands = ["data synth --clients 20 --out c.sqlite --quiet", f"{train} {small} {OPTIONS}", "demo --help"]
    # As `python -m` does it: the working folder comes first. All in one process, which imports TensorFlow once.
    program = (
        "import sys; sys.path.insert(0, ''); from fedmf.cli import main\nfor line in sys.argv[1:]: main(line.split())"
    )
    command = [sys.executable, "-c", program, *commands]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "result.json").exists()
    assert "fedmf demo" in done.stdout
