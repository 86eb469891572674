"""Runs of the small task: whole, broken off, gone on with."""

import numpy as np
import pytest

from fedmf import federated
from tests.federated.run_small import config
from tests.federated.small_task import small_task


class Crash(Exception):
    """Ends a run from outside of the loop."""


class Calls(federated.Callback):
    """Calls functions: before the first round, and with t after round t."""

    def __init__(self, on_round=lambda t: None, on_start=lambda: None):
        self._on_round, self._on_start = on_round, on_start

    def on_start(self, training):
        self._on_start()

    def on_round(self, training, row):
        assert row["round"] == training.done - 1
        self._on_round(row["round"])


def train(folder, settings=None, task=None, **options):
    """Without a bar; with a noise seed, unless it goes on.

    Options may be those of `Calls`, and stop_after.
    """
    options = {"noise_seed": None if options.get("resume") else 9, "progress": False} | options
    callbacks = [*options.pop("callbacks", ())]
    if "stop_after" in options:
        callbacks.append(federated.StopAfter(options.pop("stop_after")))
    callbacks.append(Calls(**{n: options.pop(n) for n in ("on_round", "on_start") if n in options}))
    options["callbacks"] = callbacks
    return federated.train(task or small_task(), settings or config(), folder=folder, **options)


def broken_off(folder, rounds, settings=None, task=None, *, error=Crash, **options):
    """The folder of a run that so many rounds were trained of."""

    def end(t):
        if t + 1 == rounds:
            raise error

    said = federated.InterruptedRun if error is KeyboardInterrupt else error
    with pytest.raises(said):
        train(folder, settings, task, on_round=end, **options)
    return folder


def checked(task, settings):
    """What the task's learner says of it before round 0: its fingerprint, if it refuses nothing."""
    task.learner.check(task, settings)
    return task.learner.fingerprint(settings.seed)


def start_of(task, seed=3):
    return [v.numpy() for v in task.build_model(seed).trainable_variables]


def assert_close(found, expected, **tolerance):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


def assert_same_model(runs, start, *, rtol=1e-4, atol=1e-5, least=0.02):
    """Up to rounding, the first run's weights, in any order, and metrics; each weight has moved."""
    first, *others = (sorted(run.weights, key=np.shape) for run in runs)
    for weight, before in zip(first, sorted(start, key=np.shape), strict=True):
        assert np.abs(weight - before).max() > least
    for weights in others:
        assert_close(weights, first, rtol=rtol, atol=atol)
    first, *others = runs
    for run in others:
        for row, expected in zip(run.metrics, first.metrics, strict=True):
            assert row["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-4)
            for name in ("examples", "clients", "clip_fraction", "zeroed"):
                assert row[name] == expected[name]


def assert_same_run(one, other):
    """To the last bit."""
    for name in ("metrics.jsonl", "participation.csv"):
        assert (one.path / name).read_bytes() == (other.path / name).read_bytes()
    np.testing.assert_equal(one.weights, other.weights)
    # Seconds, also those of the fit in plan.json, are of each run.
    first, second = (
        {k: v for k, v in run.result.items() if k not in ("seconds", "sha256")}
        for run in (one, other)
    )
    assert first == second
