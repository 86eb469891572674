"""`FunctionLearner`: its runs equal training by hand and are deterministic, and functions for which
the guarantee would not hold are refused.
"""

import dataclasses
import pathlib

import numpy as np
import pytest

from fedmf import training
from fedmf.runs.audit import audit_run, audit_run_canaries
from fedmf.server.messages import ClientParams
from fedmf.training.client_data import client_data
from fedmf.training.client_work import Broadcast
from fedmf.training.examples import ClientData
from fedmf.training.learner import Machine
from tests.cli.program import fedmf, printed_by
from tests.refusals import refusal
from tests.training import numpy_task
from tests.training.numpy_task import config, evaluate, linear_task, train

WITHOUT_NOISE = {
    "family": "none",
    "noise_multiplier": None,
    "clip_norm": 1e6,
    "server_momentum": 0.0,
}


class Crash(Exception):
    """Error of a callback, which ends a run like a crash."""


class CrashAfter(training.Callback):
    """Raises `Crash` after a number of rounds."""

    def __init__(self, rounds):
        self._rounds = rounds

    def on_round(self, run, row):
        if run.done == self._rounds:
            raise Crash


def test_a_run_without_noise_equals_federated_averaging_by_hand(tmp_path):
    """Only cohorts and the order of examples are taken from fedmf."""
    settings = config(rounds=4, min_sep=2, **WITHOUT_NOISE)
    task = linear_task()
    run = train(tmp_path / "run", settings)
    slopes, offset = numpy_task.initial_weights(3)
    participation = np.loadtxt(run.path / "participation.csv", delimiter=",", skiprows=1, dtype=int)
    for t in range(settings.rounds):
        learning_rate = settings.server_schedule().learning_rates()[t]
        cohort = participation[participation[:, 0] == t, 1]
        assert len(cohort) == 4
        slope_updates = []
        offset_updates = []
        for client in cohort:
            client_slopes = slopes.copy()
            client_offset = offset.copy()
            [(x, y)] = client_data(task, settings, t, client).epochs
            for start in range(0, len(y), 3):
                batch_x = x[start : start + 3]
                errors = batch_x @ client_slopes + client_offset - y[start : start + 3]
                client_slopes -= 0.1 * (errors[:, None] * batch_x).mean(axis=0)
                client_offset -= 0.1 * errors.mean()
            slope_updates.append(client_slopes - slopes)
            offset_updates.append(client_offset - offset)
        slopes = slopes + learning_rate * np.mean(slope_updates, axis=0)
        offset = offset + learning_rate * np.mean(offset_updates, axis=0)
    # Releases are in float32.
    np.testing.assert_allclose(run.weights[0], slopes, rtol=1e-6)
    np.testing.assert_allclose(run.weights[1], offset, rtol=1e-6, atol=1e-9)
    assert run.result["test"] == evaluate(run.weights, (numpy_task.X[40:80], numpy_task.Y[40:80]))
    assert next(iter(run.result["test"])) == "loss"
    assert run.plan["task"]["headline_metric"] == "share within 1"


ADAPTIVE = {
    "clip_quantile": 0.5, "clip_every": 2, "server_optimizer": "scaled-adam", "canaries": 2,
    "min_sep": 3, "epsilon": 8.0, "noise_multiplier": None,
}  # fmt: skip


@pytest.mark.parametrize("changes", [{}, ADAPTIVE], ids=["plain", "adaptive"])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, changes):
    settings = config(**changes)
    task = linear_task()
    if changes:
        # Directions of canaries need a model of at least ten times as many parameters.
        task = linear_task(
            initial_weights=lambda seed: [np.zeros(3), np.zeros(30)],
            client_update=padded_update,
            evaluate=lambda weights, examples: evaluate(without_padding(weights), examples),
        )
    whole_run = train(tmp_path / "whole", settings, task)
    with pytest.raises(Crash):
        train(tmp_path / "resumed", settings, task, callbacks=[CrashAfter(3)])
    resumed_run = train(tmp_path / "resumed", settings, task, resume=True)
    np.testing.assert_equal(resumed_run.weights, whole_run.weights)
    for name in ("metrics.jsonl", "participation.csv"):
        assert (resumed_run.path / name).read_bytes() == (whole_run.path / name).read_bytes()
    assert audit_run(resumed_run).epsilon == audit_run(whole_run).epsilon
    if changes:
        assert not audit_run_canaries(resumed_run).exceeded


def without_padding(weights):
    """Returns the slopes and the first entry of the offset, which has 30."""
    return [weights[0], weights[1][:1]]


def padded_update(weights, epochs, settings):
    """Trains with the first entry of the offset."""
    (slopes, offset), loss = numpy_task.client_update(without_padding(weights), epochs, settings)
    return [slopes, np.pad(offset, (0, 29))], loss


def test_client_update_may_overwrite_its_arrays(tmp_path):
    def overwriting_update(weights, epochs, settings):
        update, loss = numpy_task.client_update(weights, epochs, settings)
        for array in (*weights, *epochs[0]):
            array[:] = np.nan
        return update, loss

    run = train(tmp_path / "run")
    task = linear_task(client_update=overwriting_update)
    overwriting_run = train(tmp_path / "overwriting", task=task)
    np.testing.assert_equal(overwriting_run.weights, run.weights)
    losses = [row["train_loss"] for row in run.metrics]
    assert [row["train_loss"] for row in overwriting_run.metrics] == losses


@pytest.mark.parametrize("factor", [1e3, 1e200, np.inf, np.nan])
def test_no_client_changes_the_sum_by_more_than_the_clip_norm(factor):
    def huge_update(weights, epochs, settings):
        update, loss = numpy_task.client_update(weights, epochs, settings)
        if settings.client_seed[-1] == 1:
            update = [factor * array for array in update]
        return update, loss

    task = linear_task(client_update=huge_update)
    settings = config()
    work = task.learner.client_work(task.client_settings(settings), Machine())
    broadcast = Broadcast(task.initial_weights(3), ClientParams(0.5, np.inf, ()))
    clients = [client_data(task, settings, 0, client) for client in range(3)]
    sum_of_three = next(work.sums(broadcast, [clients]))
    sum_of_two = next(work.sums(broadcast, [[clients[0], clients[2]]]))
    changes = [
        array_of_three - array_of_two
        for array_of_three, array_of_two in zip(sum_of_three.values, sum_of_two.values, strict=True)
    ]
    assert np.sqrt(sum(np.sum(change**2) for change in changes)) <= 0.5
    assert sum_of_three.zeroed == (not np.isfinite(factor))
    assert sum_of_three.clients == 3
    assert sum_of_two.clients == 2


def test_seeds_of_clients_differ_between_rounds_and_clients(tmp_path):
    seeds = []

    def recording_update(weights, epochs, settings):
        seeds.append(settings.client_seed)
        return numpy_task.client_update(weights, epochs, settings)

    task = linear_task(client_update=recording_update)
    train(tmp_path / "run", config(rounds=2), task)
    # The last eight calls are those of the four clients in each of the two rounds.
    assert len(set(seeds[-8:])) == 8
    assert {seed[2] for seed in seeds[-8:-4]} == {0}
    np.random.default_rng(seeds[-1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"initial_weights": lambda seed: np.zeros(3)}, "initial_weights returns a ndarray"),
        ({"initial_weights": lambda seed: [np.zeros(3, int)]}, "initial_weights returns int64"),
        ({"initial_weights": lambda seed: []}, "initial_weights returns no number"),
        ({"initial_weights": lambda seed: [np.array([np.nan])]}, "returns NaN or infinity"),
        (
            {"initial_weights": lambda seed: [np.random.default_rng().normal(size=3), np.ones(1)]},
            "returns different weights for the same seed",
        ),
        ({"client_update": lambda w, e, s: w}, "return \\(update, loss\\)"),
        ({"client_update": lambda w, e, s: (w[0], 0.0)}, "returns an update that is a ndarray"),
        ({"client_update": lambda w, e, s: (w[:1], 0.0)}, "update of shapes \\[\\(3,\\)\\]"),
        ({"client_update": lambda w, e, s: (w, "low")}, "returns the loss 'low'"),
        ({"client_update": lambda w, e, s: 1 / 0}, "client_update .* ZeroDivisionError"),
        (
            {"client_update": lambda w, e, s: ([np.random.default_rng().normal(size=3), w[1]], 0)},
            "returns different updates for the same client",
        ),
        ({"evaluate": lambda w, e: 0.5}, "evaluate .* returns a float"),
        ({"evaluate": lambda w, e: {"accuracy": 0.5}}, "returns no loss"),
        ({"evaluate": lambda w, e: {"loss": np.ones(2)}}, "returns 'loss'"),
        (
            {"evaluate": lambda w, e: {"loss": np.random.default_rng().normal()}},
            "returns different metrics for the same examples",
        ),
    ],
)
def test_invalid_functions_are_refused_before_round_0(tmp_path, changes, message):
    with refusal(message, (TypeError, ValueError)):
        train(tmp_path / "run", task=linear_task(**changes))
    assert not (tmp_path / "run").exists()


def test_unsupported_executions_learners_and_private_metrics_are_refused(tmp_path):
    with refusal("has functions: use execution='fast'"):
        train(tmp_path / "run", config(execution="tff"))
    with refusal("learner of task 'linear' is a function", TypeError):
        linear_task(learner=evaluate)
    with refusal("private_metrics=0.1 need a headline metric between 0 and 1, and "):
        task = linear_task(headline_metric="loss", evaluate=lambda weights, examples: {"loss": 2.0})
        train(tmp_path / "run", config(private_metrics=0.1), task)


def test_resume_refuses_another_function_unless_it_is_accepted(tmp_path):
    train(tmp_path / "run", callbacks=[training.StopAfter(2)])
    changed_task = linear_task(client_update=lambda w, e, s: numpy_task.client_update(w, e, s))
    with refusal("client_update is .*lambda"):
        train(tmp_path / "run", task=changed_task, resume=True)
    run = train(tmp_path / "run", task=changed_task, resume=True, accept_changed_task=True)
    assert run.result is not None


def test_a_run_of_functions_can_be_evaluated_fine_tuned_and_continued(tmp_path):
    run = train(tmp_path / "run", config(private_metrics=0.1))
    assert run.evaluate("test") == run.result["test"]
    assert run.evaluate_clients()["clients"] == numpy_task.CLIENTS
    assert all("loss" in row["private"] for row in run.metrics)
    fine_tuned = run.evaluate_fine_tuned(3, clients=5, learning_rate=[0.01, 0.05])
    assert fine_tuned["clients"] == 5
    assert fine_tuned["metrics"]["loss"]["change"]["mean"] < 0
    with refusal("has functions and no model"):
        run.model()
    with refusal("has functions and no model"):
        run.export(tmp_path / "model.keras")
    warm_started = train(tmp_path / "warm", config(initial_model=str(run.path), rounds=2))
    np.testing.assert_equal(warm_started.task.initial_weights(0), run.weights)
    with refusal("reads no model files"):
        (tmp_path / "model.pt").touch()
        train(tmp_path / "other", config(initial_model=str(tmp_path / "model.pt")))


def test_steps_of_fine_tuning_are_bounded():
    task = linear_task()
    settings = config()
    broadcast = Broadcast(task.initial_weights(3), ClientParams(np.inf, np.inf, ()))
    client = client_data(task, dataclasses.replace(settings, client_epochs=2), 0, 1)

    def update_norm(client_settings):
        work = task.learner.client_work(client_settings, Machine())
        [update_sum] = work.sums(broadcast, [[client]])
        return np.sqrt(sum(np.sum(array**2) for array in update_sum.values))

    # Two epochs of three batches are six steps.
    bounded_norm = update_norm(task.client_settings(settings, max_step_norm=1e-3))
    assert 1e-3 < bounded_norm <= 6e-3 * (1 + 1e-9)
    assert update_norm(task.client_settings(settings)) > 0.05


def test_client_update_gets_the_weights_of_examples():
    def weighted_update(weights, epochs, settings):
        x, y = epochs[0]
        assert isinstance(y, training.Weighted)
        assert (y.weights == np.float32(0.5)).all()
        return numpy_task.client_update(weights, [(x, y.labels)], settings)

    task = linear_task(
        client_update=weighted_update,
        sample_weight=np.full(len(numpy_task.X), 0.5),
        evaluate=lambda weights, examples: evaluate(weights, (examples[0], examples[1].labels)),
    )
    client = ClientData([task.examples_of("0")])
    settings = task.client_settings(config())
    update, _ = task.learner.client_update(task.initial_weights(3), client.epochs, settings)
    assert np.abs(update[0]).max() > 0


def test_commands_accept_a_task_of_functions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = pathlib.Path(__file__).parents[2]
    (tmp_path / "own.py").write_text(
        f"import sys\n\nsys.path.append({str(root)!r})\n"
        "from tests.training.numpy_task import linear_task as task\n"
    )
    run = "--task own:task --rounds 4 --cohort-size 4 --min-sep 2 --family banded --quiet"
    rates = "--client-learning-rate 0.1 --server-learning-rate 0.02 --noise-seed 5"
    printed_by(f"train {run} {rates} --epsilon 8 --out run")
    assert printed_by("evaluate run --split test --quiet")["test loss"] > 0
    assert printed_by("audit run run")["epsilon_achieved"] <= 8
    assert printed_by("report run --out report")["report"]
    assert "Privacy statement" in (tmp_path / "run" / "final_statement.md").read_text()
    fedmf(f"sweep {run} {rates} --vary epsilon=4,8 --jobs 1 --out grid")
    assert (tmp_path / "grid" / "results.csv").read_text().count("\n") == 3


@pytest.mark.slow
@pytest.mark.cluster
def test_a_run_on_a_cluster_equals_one_in_this_process(tmp_path):
    pytest.importorskip("ray")
    run = train(tmp_path / "process")
    cluster_run = train(tmp_path / "cluster", cluster="local")
    np.testing.assert_equal(cluster_run.weights, run.weights)
    metrics = (run.path / "metrics.jsonl").read_bytes()
    assert (cluster_run.path / "metrics.jsonl").read_bytes() == metrics
