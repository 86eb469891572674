"""`EarlyStopping`: at the round that its rule says, by private losses where there are some."""

import contextlib
import math
import types

import pytest

import fedmf
from fedmf import federated
from tests.federated.small_runs import config, train
from tests.refusals import refusal


def stopped_after(losses, patience, every, largest_loss=None, resumed=0):
    """The rounds after which the callback stops a run whose evaluations have these losses."""
    stops = []
    plan = types.SimpleNamespace(
        private_metrics=largest_loss and types.SimpleNamespace(largest_loss=largest_loss)
    )
    rows = []
    for t in range(every * len(losses)):
        loss = losses[t // every]
        row = {"round": t, "train_loss": -t}
        if largest_loss is None:
            row |= {"validation": {"loss": loss}} if (t + 1) % every == 0 else {}
        else:  # the rounds' own losses go up and down, their means do not
            shift = 0.0 if every == 1 else (-1.0) ** (t % every)
            clients = 0.0 if math.isnan(loss) else 2.0
            row["private"] = {"clients": clients, "loss": 0.0 if not clients else loss + shift}
        rows.append(row)
    training = types.SimpleNamespace(
        plan=plan,
        config=types.SimpleNamespace(evaluate_every=every),
        recorded=types.SimpleNamespace(metrics=rows[:resumed]),
        done=resumed,
        stop=lambda: stops.append(training.done),
    )
    callback = federated.EarlyStopping(patience)
    callback.on_start(training)
    for row in rows[resumed:]:
        if stops:
            break
        training.done += 1
        callback.on_round(training, row)
    return stops


@pytest.mark.parametrize("largest_loss", [None, 20.0])
@pytest.mark.parametrize("every", [1, 2])
def test_it_stops_after_so_many_evaluations_that_are_not_better(every, largest_loss):
    def after(losses, patience, resumed=0):
        return stopped_after(losses, patience, every, largest_loss, resumed * every)

    assert after([5, 4, 3, 2, 1], 1) == []
    assert after([5, 4, 4, 3], 1) == [3 * every]  # equal is not better
    assert after([5, 4, 6, 3, 3.5, 3.1, 2], 2) == [6 * every]
    assert after([5, 4, 6, 3, 3.5, 3.1, 2], 3) == []
    assert after([5, math.nan, math.nan, 1], 2) == [3 * every]  # no loss is none that is better
    assert after([5, 4, 6, 7, 8], 2, resumed=4) == [4 * every]  # as before the resume
    assert after([1], 1) == []


@pytest.mark.parametrize("patience", [0, True, 1.5])
def test_patience_is_checked(patience):
    with refusal(f"early_stopping={patience!r}", (TypeError, ValueError)):
        federated.EarlyStopping(patience)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_run_that_no_longer_improves_ends_and_states_all_rounds(tmp_path, share):
    """A rate of 50 with noise: validations and private losses go up at once."""
    private = {"private_metrics": share, "largest_loss": 50.0} if share else {}
    settings = config(
        rounds=8, noise_multiplier=0.05, evaluate_every=1, server_learning_rate=50.0, **private
    )
    said = pytest.warns(UserWarning, match="validation losses decide .* does not cover")
    with contextlib.nullcontext() if share else said:
        run = train(tmp_path, settings, callbacks=[federated.EarlyStopping(1)])
    done = len(run.metrics)
    assert run.result is None
    assert 1 < done < 8
    assert run.saved_rounds() == done
    audit = fedmf.audit_run(tmp_path)
    assert audit.epsilon == audit.planned.epsilon
    assert "what the run showed decided" in audit.unrecorded
    if not share:
        assert len(train(tmp_path, settings, resume=True).metrics) == 8  # without it


def test_a_run_that_ends_by_itself_is_not_stopped_by_data(tmp_path):
    class StopAtTheEnd(federated.Callback):
        def on_round(self, training, row):
            if training.done == 2:
                training.stop()

    run = train(tmp_path, config(rounds=2), callbacks=[StopAtTheEnd()])
    assert run.result is not None
    assert not (tmp_path / "stopped_by_data").exists()
