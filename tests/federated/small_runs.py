"""Runs of the small task: uninterrupted, interrupted and resumed ones."""

import numpy as np
import pytest

from fedmf import federated
from tests.federated.run_small import config
from tests.federated.small_task import small_task


class Crash(Exception):
    """An error that ends a run from outside of the training loop."""


class Calls(federated.Callback):
    """A callback that calls functions, before the first round and with t after round t."""

    def __init__(self, on_round=lambda t: None, on_start=lambda: None):
        self._on_round = on_round
        self._on_start = on_start

    def on_start(self, training):
        self._on_start()

    def on_round(self, training, row):
        assert row["round"] == training.done - 1
        self._on_round(row["round"])


def train(folder, settings=None, task=None, **options):
    """Trains the small task without a progress bar, and with a noise seed unless it resumes.

    Options may be those of `Calls`, and stop_after.
    """
    noise_seed = None if options.get("resume") else 9
    options = {"noise_seed": noise_seed, "progress": False} | options
    callbacks = [*options.pop("callbacks", ())]
    if "stop_after" in options:
        callbacks.append(federated.StopAfter(options.pop("stop_after")))
    call_names = [name for name in ("on_round", "on_start") if name in options]
    callbacks.append(Calls(**{name: options.pop(name) for name in call_names}))
    options["callbacks"] = callbacks
    return federated.train(task or small_task(), settings or config(), folder=folder, **options)


def broken_off(folder, rounds, settings=None, task=None, *, error=Crash, **options):
    """Trains so many rounds of a run, breaks it off by an error, and returns its folder."""

    def end(t):
        if t + 1 == rounds:
            raise error

    expected_error = federated.InterruptedRun if error is KeyboardInterrupt else error
    with pytest.raises(expected_error):
        train(folder, settings, task, on_round=end, **options)
    return folder


def checked_fingerprint(task, settings):
    """Checks the task by its learner as before round 0, and returns the learner's fingerprint."""
    task.learner.check(task, settings)
    return task.learner.fingerprint(settings.seed)


def start_of(task, seed=3):
    """Returns the initial weights of a task."""
    return [variable.numpy() for variable in task.build_model(seed).trainable_variables]


def assert_close(actual, expected, **tolerance):
    for actual_array, expected_array in zip(actual, expected, strict=True):
        np.testing.assert_allclose(actual_array, expected_array, **tolerance)


def assert_same_model(runs, start, *, rtol=1e-4, atol=1e-5, min_change=0.02):
    """Asserts that runs have equal weights, in any order, and metrics, up to rounding.

    Every weight must have changed, too.
    """
    expected_weights, *other_weights = (sorted(run.weights, key=np.shape) for run in runs)
    for weight, initial in zip(expected_weights, sorted(start, key=np.shape), strict=True):
        assert np.abs(weight - initial).max() > min_change
    for weights in other_weights:
        assert_close(weights, expected_weights, rtol=rtol, atol=atol)
    expected_run, *other_runs = runs
    for run in other_runs:
        for row, expected in zip(run.metrics, expected_run.metrics, strict=True):
            assert row["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-4)
            for name in ("examples", "clients", "clip_fraction", "zeroed"):
                assert row[name] == expected[name]


def assert_same_run(expected_run, run):
    """Asserts that two runs are bitwise identical."""
    for name in ("metrics.jsonl", "participation.csv"):
        assert (run.path / name).read_bytes() == (expected_run.path / name).read_bytes()
    np.testing.assert_equal(run.weights, expected_run.weights)
    assert _result_without_seconds(run) == _result_without_seconds(expected_run)


def _result_without_seconds(run):
    """Returns a run's result without times, and without digests of files with times."""
    return {name: run.result[name] for name in run.result if name not in ("seconds", "sha256")}
