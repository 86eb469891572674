"""Odd arguments of fedmf.training, as in tests/test_odd_arguments.py; nothing is trained."""

import dataclasses

import pytest

import fedmf
from fedmf import training
from tests.test_odd_arguments import SEED, call, stop
from tests.training import numpy_task

TASK = numpy_task.linear_task()
FIELDS = {field.name: getattr(TASK, field.name) for field in dataclasses.fields(TASK)}
TEXT_ATTRIBUTES = (
    "description",
    "synthetic_clients",
    "headline_metric",
    "metric_note",
    "data_version",
)
ARRAYS = {
    "x": numpy_task.X, "y": numpy_task.Y, "client_ids": numpy_task.OWNERS,
    "validation": (numpy_task.X, numpy_task.Y), "test": (numpy_task.X, numpy_task.Y),
    "sample_weight": None, "name": "arrays", "learner": TASK.learner, "batch_size": 2,
}  # fmt: skip
CALLS = {
    "FunctionLearner": call(
        training.FunctionLearner,
        initial_weights=numpy_task.initial_weights,
        client_update=numpy_task.client_update,
        evaluate=numpy_task.evaluate,
    ),
    "Task": call(
        training.Task,
        {
            "name": "text", "client_ids": "texts", **dict.fromkeys(TEXT_ATTRIBUTES, "empty text"),
            **dict.fromkeys(("sample_weight", "class_weight", "vocabulary"), "None"),
        },
        **FIELDS,
    ),
    "Task.from_arrays": call(
        training.Task.from_arrays, {"sample_weight": "None", "name": "text"}, **ARRAYS
    ),
    "Task.initial_weights": call(TASK.initial_weights, {"seed": SEED}, seed=0),
    "Task.starting_from": call(TASK.starting_from, weights=TASK.initial_weights(0)),
    "train": call(
        fedmf.train,
        {
            "folder": "text", "noise_seed": f"None {SEED}", "plan": "None",
            "callbacks": "[] generator",
        },
        task=TASK, config=numpy_task.config(), folder="run", noise_seed=1, plan=None, resume=False,
        callbacks=(),
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """Stops each run before round 0."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training.FunctionLearner, "check", stop)


@pytest.mark.parametrize("name", CALLS)
def test_odd_arguments_are_refused_in_a_sentence_that_names_them(name):
    CALLS[name].run()
    assert CALLS[name].faults() == []
