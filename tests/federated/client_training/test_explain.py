"""`Execution.explain` says how clients train, and for which reason."""

import dataclasses
import logging

import numpy as np
import pytest
import tensorflow as tf

from fedmf import federated
from fedmf.federated.client_training import client_setup
from fedmf.training import vectorised_sizes
from fedmf.training.execution.choice import build_execution
from tests.federated.run_small import config
from tests.federated.small_task import task_of_arrays

layers = tf.keras.layers
X = np.zeros((2, 4), np.float32)
Y = np.zeros(2, np.int64)


def task(layer=layers.Flatten, **changes):
    """Returns a task with a model of ten parameters."""

    def model():
        return tf.keras.Sequential([tf.keras.Input((4,)), layer(), layers.Dense(2)])

    return dataclasses.replace(task_of_arrays(X, Y, model, batch_size=2), **changes)


def rolled():
    return layers.Lambda(lambda x: tf.roll(x, 1, axis=-1))


def explanation_of(task):
    """Returns what an execution of the task says."""
    plan = config().plan()
    options = federated.RunOptions(threads=3)
    with build_execution(task, plan, config(), 9, options=options) as execution:
        return execution.explain()


def test_a_small_model_is_vectorised():
    assert explanation_of(task()).startswith("vectorised: many clients of a model of 10 parameters")


def test_a_large_model_trains_one_client_a_thread(monkeypatch):
    monkeypatch.setattr(vectorised_sizes, "SMALL_MODEL", 9)
    sentence = explanation_of(task())
    assert sentence.startswith("one client a thread, 3 at a time: the model has 10 parameters")


def test_a_model_that_cannot_be_vectorised_is_logged_once_with_the_reason(caplog):
    client_setup._log_once.cache_clear()
    with caplog.at_level(logging.WARNING, "fedmf"):
        sentences = [explanation_of(task(rolled)) for _ in range(2)]
    [record] = caplog.records
    assert "clients train one by one, for the model cannot be vectorised (" in record.message
    assert "Roll" in record.message
    for sentence in sentences:
        assert sentence.startswith("one client a thread, 3 at a time: the model cannot be")
    # Negative control: a model that is vectorised is not logged.
    caplog.clear()
    explanation_of(task())
    assert not caplog.records


def test_a_compiled_epoch_trains_one_client_a_thread():
    compiled = task(compiled_epoch=lambda: lambda *arguments: 0.0)
    assert explanation_of(compiled) == (
        "one client a thread, 3 at a time: the task's compiled epoch runs here"
    )


@pytest.mark.usefixtures("tff")
def test_tff_explains_its_execution():
    with build_execution(task(), config().plan(), config("tff"), 9) as execution:
        assert "TFF's own federated averaging" in execution.explain()
