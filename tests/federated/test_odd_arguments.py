"""Odd arguments of the calls that need TensorFlow; no model is trained or built.

tests/test_odd_arguments.py has those of all other calls.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from fedmf import federated
from tests.federated.small_runs import config
from tests.federated.small_task import small_task
from tests.test_odd_arguments import PLAN, REAL, RUN, SEED, SHARE, call, stop

TASK = small_task()
CONFIG = config()
X = np.ones((4, 2), np.float32)
Y = np.array([0, 1, 0, 1])
ARRAYS = {
    "x": X, "y": Y, "client_ids": np.arange(4), "validation": (X, Y), "test": (X, Y),
    "model": lambda: tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=(2,))]),
    "sample_weight": None, "name": "arrays", "loss": TASK.loss, "metrics": TASK.metrics,
    "batch_size": 2,
}  # fmt: skip
OF_ARRAYS = federated.Task.from_arrays(**ARRAYS)
RUN_OPTIONS = {
    "noise_strategy": None, "noise_memory": None, "threads": None, "cluster": None,
    "worker_task": None, "test": True, "progress": False, "server_optimizer": None,
}  # fmt: skip
RUN_ACCEPTS = {
    **dict.fromkeys(("noise_strategy", "noise_memory", "threads"), "None"),
    "cluster": "None text", "worker_task": "None function class", "test": "True",
    "progress": "True", "server_optimizer": "None",
}  # fmt: skip
TEXT = "empty text"
TASK_FIELDS = {
    field.name: getattr(TASK, field.name) for field in dataclasses.fields(TASK) if field.init
}
TASK_FIELDS["build_model"] = lambda seed: tf.keras.Sequential()
TRAINED = federated.TrainedRun(**RUN, task=OF_ARRAYS)
NOISE = federated.HostNoise(PLAN, 3, noise_seed=1)
CALLS = {
    "EarlyStopping": call(federated.EarlyStopping, {"patience": "10**20"}, patience=2),
    "HostNoise": call(
        federated.HostNoise,
        {
            "size": "0", "noise_seed": SEED, "key": "None", "strategy": "None",
            "memory_bytes": "None 10**20", "folder": "None text",
        },
        plan=PLAN, size=3, noise_seed=1, key=None, strategy=None, memory_bytes=None, folder=None,
    ),
    "HostNoise.row": call(NOISE.row, {"t": "0"}, t=0),
    "RunOptions": call(federated.RunOptions, RUN_ACCEPTS, **RUN_OPTIONS),
    "Scaling": call(
        federated.Scaling, {"epsilon": "0.5", "decay": SHARE},
        rule="adam", epsilon=1e-3, decay=0.9, every=1,
    ),
    "StopAfter": call(federated.StopAfter, {"rounds": "10**20"}, rounds=2),
    "Task": call(
        federated.Task,
        {
            "name": "text", "client_ids": "texts", "metrics": "function",
            "compiled_epoch": "None function class",
            **dict.fromkeys(("description", "synthetic_clients", "headline_metric"), TEXT),
            **dict.fromkeys(("metric_note", "data_version"), TEXT),
            **dict.fromkeys(("sample_weight", "class_weight", "export_model"), "None"),
            "vocabulary": "None",
        },
        **TASK_FIELDS,
    ),
    "Task.examples_of": call(TASK.examples_of, client_id="client 1"),
    "Task.from_arrays": call(
        federated.Task.from_arrays,
        {
            "model": "function", "sample_weight": "None", "name": "text", "metrics": "function",
        },
        **ARRAYS,
    ),
    "Task.initial_weights": call(OF_ARRAYS.initial_weights, {"seed": SEED}, seed=0),
    "Task.split": call(TASK.split, name="test"),
    "Task.starting_from": call(
        OF_ARRAYS.starting_from, weights=[np.zeros((2, 2), np.float32), np.zeros(2, np.float32)]
    ),
    "TrainedRun": call(
        lambda task: federated.TrainedRun(**RUN, task=task), task=TASK
    ),
    "TrainedRun.evaluate": call(TRAINED.evaluate, split="test"),
    "TrainedRun.evaluate_clients": call(
        TRAINED.evaluate_clients, {"progress": "True"}, progress=False
    ),
    "TrainedRun.evaluate_fine_tuned": call(
        TRAINED.evaluate_fine_tuned,
        {
            "clients": "10**20", "split": "None", "learning_rate": f"None {REAL}",
            "proximal_strength": f"None 0 {REAL}", "progress": "True",
        },
        epochs=1, clients=2, split=None, learning_rate=None, proximal_strength=None,
        progress=False,
    ),
    "TrainedRun.export": call(TRAINED.export, {"path": "text"}, path="model.keras"),
    "train": call(
        federated.train,
        {
            **RUN_ACCEPTS, "folder": "text", "noise_seed": f"None {SEED}", "plan": "None",
            "callbacks": "[] generator", "cluster": "None",
        },
        task=TASK, config=CONFIG, folder="run", noise_seed=1, plan=None, resume=False,
        callbacks=(), **RUN_OPTIONS,
    ),
}  # fmt: skip
# Without arguments, classes of errors, and a protocol that tasks implement.
NOT_CALLED = {
    *("Callback", "StopOnDivergence", "TensorBoard", "CompiledEpoch"),
    *("DivergedRun", "InterruptedRun", "WorkersLost"),
}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """Changes to an empty working folder; no case begins, reads or evaluates a run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedmf.federated.learner.check_model", stop)
    monkeypatch.setattr(federated.TrainedRun, "weights", property(stop))


@pytest.mark.parametrize("name", CALLS)
def test_odd_arguments_are_refused_in_a_sentence_that_names_them(name):
    CALLS[name].run()
    assert CALLS[name].faults() == []


def test_every_public_name_has_a_case():
    """tests/federated/tff/test_odd_arguments.py has those that are imported when asked for."""
    names = set(federated.__all__) & set(vars(federated))
    assert names - set(CALLS) - NOT_CALLED == set()
