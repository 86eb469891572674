"""`EarlyStopping` stops at the round of its rule, by private losses if there are any."""

import contextlib
import math
import types

import pytest

import fedmf
from fedmf import federated
from tests.federated.small_runs import config, train


def rounds_of_stops(losses, patience, largest_loss=None, resumed=0):
    """Returns the rounds after which the callback stops a run with these validation losses.

    There is one loss after every second round.
    """
    rows = []
    stops = []
    for loss in losses:
        if largest_loss is None:
            rows += [{}, {"validation": {"loss": loss}}]
        else:  # Losses of single rounds go up and down, and their means do not.
            clients = 0.0 if math.isnan(loss) else 2.0
            client_losses = (loss + 1, loss - 1) if clients else (0.0, 0.0)
            rows += [{"private": {"clients": clients, "loss": value}} for value in client_losses]
    metrics = largest_loss and types.SimpleNamespace(largest_loss=largest_loss)
    training = types.SimpleNamespace(
        plan=types.SimpleNamespace(private_metrics=metrics),
        config=types.SimpleNamespace(evaluate_every=2),
        recorded=types.SimpleNamespace(metrics=rows[:resumed]),
        stop=lambda: stops.append(training.done),
        done=resumed,
    )
    callback = federated.EarlyStopping(patience)
    callback.on_start(training)
    while not stops and training.done < len(rows):
        training.done += 1
        callback.on_round(training, rows[training.done - 1])
    return stops


@pytest.mark.parametrize("largest_loss", [None, 20.0])
def test_a_run_stops_after_patience_evaluations_without_improvement(largest_loss):
    def stops_after(losses, patience, resumed=0):
        return rounds_of_stops(losses, patience, largest_loss, resumed)

    assert stops_after([5, 4, 3, 2, 1], 1) == []
    assert stops_after([5, 4, 4, 3], 1) == [6]  # An equal loss is not better.
    assert stops_after([5, 4, 6, 3, 3.5, 3.1, 2], 2) == [12]
    assert stops_after([5, 4, 6, 3, 3.5, 3.1, 2], 3) == []
    assert stops_after([5, math.nan, math.nan, 1], 2) == [6]  # A missing loss is not better.
    if largest_loss is None:  # A private loss is finite.
        assert stops_after([5, -math.inf, -math.inf, 1], 2) == [6]
    # This equals the result before the resume.
    assert stops_after([5, 4, 6, 7, 8], 2, resumed=8) == [8]
    assert stops_after([1], 1) == []


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_run_that_no_longer_improves_ends_and_states_all_rounds(tmp_path, share):
    """With a rate of 50 and noise, validation and private losses increase at once."""
    metric_options = {"private_metrics": share, "largest_loss": 50.0} if share else {}
    settings = config(
        rounds=8,
        noise_multiplier=0.2,
        evaluate_every=1,
        server_learning_rate=50.0,
        **metric_options,
    )
    expected_warning = pytest.warns(UserWarning, match="validation losses decide .* does not cover")
    with contextlib.nullcontext() if share else expected_warning:
        run = train(tmp_path, settings, callbacks=[federated.EarlyStopping(1)])
    assert run.result is None
    assert 1 < run.num_rounds() == len(run.metrics) < 8
    # test_stopping_in_training.py tests the guarantee of such runs.
    assert "because of its results" in fedmf.audit_run(tmp_path).unrecorded
