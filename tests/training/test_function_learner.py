"""A run of three functions in numpy: by hand the same, deterministic, and refused where it could
not keep the guarantee.
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

PLAIN = {"family": "none", "noise_multiplier": None, "clip_norm": 1e6, "server_momentum": 0.0}


class Crash(Exception):
    """Ends a run from outside of the loop."""


class CrashAfter(training.Callback):
    def __init__(self, rounds):
        self._rounds = rounds

    def on_round(self, run, row):
        if run.done == self._rounds:
            raise Crash


def test_without_noise_it_is_federated_averaging_by_hand(tmp_path):
    """Nothing of fedmf but its cohorts and the order of examples."""
    settings, task = config(rounds=4, min_sep=2, **PLAIN), linear_task()
    run = train(tmp_path / "run", settings)
    slopes, offset = numpy_task.initial_weights(3)
    table = np.loadtxt(run.path / "participation.csv", delimiter=",", skiprows=1, dtype=int)
    for t in range(settings.rounds):
        rate, models = settings.server_schedule().learning_rates()[t], []
        cohort = table[table[:, 0] == t, 1]
        for client in cohort:
            a, b = slopes.copy(), offset.copy()
            [(x, y)] = client_data(task, settings, t, client).epochs
            for start in range(0, len(y), 3):
                xs, ys = x[start : start + 3], y[start : start + 3]
                error = xs @ a + b - ys
                a -= 0.1 * (error[:, None] * xs).mean(axis=0)
                b -= 0.1 * error.mean()
            models.append((a, b))
        assert len(models) == 4
        slopes = slopes + rate * np.mean([a - slopes for a, _ in models], axis=0)
        offset = offset + rate * np.mean([b - offset for _, b in models], axis=0)
    # The release is in float32.
    np.testing.assert_allclose(run.weights[0], slopes, rtol=1e-6)
    np.testing.assert_allclose(run.weights[1], offset, rtol=1e-6, atol=1e-9)
    assert run.result["test"] == evaluate(run.weights, (numpy_task.X[40:80], numpy_task.Y[40:80]))
    assert next(iter(run.result["test"])) == "loss"
    assert run.plan["task"]["headline_metric"] == "share within 1"


ALL = {
    "clip_quantile": 0.5, "clip_every": 2, "server_optimizer": "scaled-adam", "canaries": 2,
    "min_sep": 3, "epsilon": 8.0, "noise_multiplier": None,
}  # fmt: skip


@pytest.mark.parametrize("changes", [{}, ALL], ids=["plain", "all that adapts"])
def test_a_run_that_crashed_is_the_run_that_did_not(tmp_path, changes):
    settings = config(**changes)
    if changes:  # a direction of a canary needs more numbers
        wide = {"initial_weights": lambda seed: [np.zeros(3), np.zeros(30)]}
        wide["client_update"] = wide_update
        wide["evaluate"] = lambda weights, examples: evaluate(narrow(weights), examples)
    task = linear_task(**wide) if changes else linear_task()
    whole = train(tmp_path / "whole", settings, task)
    with pytest.raises(Crash):
        train(tmp_path / "parts", settings, task, callbacks=[CrashAfter(3)])
    parts = train(tmp_path / "parts", settings, task, resume=True)
    np.testing.assert_equal(parts.weights, whole.weights)
    for name in ("metrics.jsonl", "participation.csv"):
        assert (parts.path / name).read_bytes() == (whole.path / name).read_bytes()
    assert audit_run(parts).epsilon == audit_run(whole).epsilon
    if changes:
        assert not audit_run_canaries(parts).exceeded


def narrow(weights):
    return [weights[0], weights[1][:1]]


def wide_update(weights, epochs, settings):
    (slopes, offset), loss = numpy_task.client_update(narrow(weights), epochs, settings)
    return [slopes, np.pad(offset, (0, 29))], loss


def test_what_a_client_writes_to_its_arrays_reaches_nobody(tmp_path):
    def careless(weights, epochs, settings):
        update, loss = numpy_task.client_update(weights, epochs, settings)
        for array in (*weights, *epochs[0]):
            array[:] = np.nan
        return update, loss

    clean, written = (
        train(tmp_path / name, task=linear_task(client_update=function))
        for name, function in (("clean", numpy_task.client_update), ("written", careless))
    )
    np.testing.assert_equal(written.weights, clean.weights)
    assert [row["train_loss"] for row in written.metrics] == [
        row["train_loss"] for row in clean.metrics
    ]


@pytest.mark.parametrize("size", [1e3, 1e200, np.inf, np.nan])
def test_no_client_moves_the_sum_by_more_than_the_clip_norm(size):
    def huge(weights, epochs, settings):
        update, loss = numpy_task.client_update(weights, epochs, settings)
        return [size * part for part in update] if settings.client_seed[-1] == 1 else update, loss

    task, settings = linear_task(client_update=huge), config()
    work = task.learner.client_work(task.client_settings(settings), Machine())
    sent = Broadcast(task.initial_weights(3), ClientParams(0.5, np.inf, ()))
    clients = [client_data(task, settings, 0, client) for client in range(3)]
    with_it, without = (
        next(work.sums(sent, [group])) for group in (clients, [clients[0], clients[2]])
    )
    moved = [a - b for a, b in zip(with_it.values, without.values, strict=True)]
    assert np.sqrt(sum(np.sum(part**2) for part in moved)) <= 0.5
    assert with_it.zeroed == (not np.isfinite(size))
    assert (with_it.clients, without.clients) == (3, 2)


def test_random_numbers_of_a_client_follow_from_the_run_the_round_and_the_client(tmp_path):
    seeds = []

    def noted(weights, epochs, settings):
        seeds.append(settings.client_seed)
        return numpy_task.client_update(weights, epochs, settings)

    task = linear_task(client_update=noted)
    train(tmp_path / "run", config(rounds=2), task)
    *_, of_round_0, of_round_1 = seeds[-8:-4], seeds[-4:]
    assert len({*of_round_0, *of_round_1}) == 8
    assert {seed[2] for seed in of_round_0} == {0}
    np.random.default_rng(of_round_1[0])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"initial_weights": lambda seed: np.zeros(3)}, "initial_weights returns a ndarray"),
        ({"initial_weights": lambda seed: [np.zeros(3, int)]}, "initial_weights returns int64"),
        ({"initial_weights": lambda seed: []}, "initial_weights returns no number"),
        ({"initial_weights": lambda seed: [np.array([np.nan])]}, "returns NaN or infinity"),
        (
            {"initial_weights": lambda seed: [np.random.default_rng().normal(size=3), np.ones(1)]},
            "returns other weights for the same seed",
        ),
        ({"client_update": lambda w, e, s: w}, "return \\(update, loss\\)"),
        ({"client_update": lambda w, e, s: (w[0], 0.0)}, "returns an update that is a ndarray"),
        ({"client_update": lambda w, e, s: (w[:1], 0.0)}, "update of shapes \\[\\(3,\\)\\]"),
        ({"client_update": lambda w, e, s: (w, "low")}, "returns the loss 'low'"),
        ({"client_update": lambda w, e, s: 1 / 0}, "client_update .* ZeroDivisionError"),
        (
            {"client_update": lambda w, e, s: ([np.random.default_rng().normal(size=3), w[1]], 0)},
            "returns another update for the same client",
        ),
        ({"evaluate": lambda w, e: 0.5}, "evaluate .* returns a float"),
        ({"evaluate": lambda w, e: {"accuracy": 0.5}}, "returns no loss"),
        ({"evaluate": lambda w, e: {"loss": np.ones(2)}}, "returns 'loss'"),
        (
            {"evaluate": lambda w, e: {"loss": np.random.default_rng().normal()}},
            "returns other metrics for the same examples",
        ),
    ],
)
def test_functions_that_cannot_be_are_refused_before_round_0(tmp_path, changes, words):
    with refusal(words, (TypeError, ValueError)):
        train(tmp_path / "run", task=linear_task(**changes))
    assert not (tmp_path / "run").exists()


def test_other_executions_and_learners_are_refused(tmp_path):
    with refusal("has functions: use execution='fast'"):
        train(tmp_path / "run", config(execution="tff"))
    with refusal("learner of task 'linear' is a function", TypeError):
        linear_task(learner=evaluate)
    with refusal("`private_metrics` do not go with task 'linear'"):
        train(
            tmp_path / "run",
            config(private_metrics=0.1),
            linear_task(headline_metric="loss", evaluate=lambda w, e: {"loss": 2.0}),
        )


def test_another_function_is_refused_at_a_resume(tmp_path):
    train(tmp_path / "run", callbacks=[training.StopAfter(2)])
    other = linear_task(client_update=lambda w, e, s: numpy_task.client_update(w, e, s))
    with refusal("client_update is .*lambda"):
        train(tmp_path / "run", task=other, resume=True)
    run = train(tmp_path / "run", task=other, resume=True, accept_changed_task=True)
    assert run.result is not None


def test_people_use_a_run_as_any_other(tmp_path):
    """Evaluation, clients one by one, fine-tuning, a warm start, private metrics."""
    run = train(tmp_path / "run", config(private_metrics=0.1))
    assert run.evaluate("test") == run.result["test"]
    assert run.evaluate_clients()["clients"] == numpy_task.CLIENTS
    assert all("loss" in row["private"] for row in run.metrics)
    tuned = run.evaluate_fine_tuned(3, clients=5, learning_rate=[0.01, 0.05])
    assert tuned["clients"] == 5
    assert tuned["metrics"]["loss"]["change"]["mean"] < 0
    with refusal("has functions and no model"):
        run.model()
    with refusal("has functions and no model"):
        run.export(tmp_path / "model.keras")
    warm = train(tmp_path / "warm", config(initial_model=str(run.path), rounds=2))
    first = warm.task.initial_weights(0)
    np.testing.assert_equal(first, run.weights)
    with refusal("reads no model files"):
        (tmp_path / "model.pt").touch()
        train(tmp_path / "other", config(initial_model=str(tmp_path / "model.pt")))


def test_steps_of_fine_tuning_are_bounded():
    task, settings = linear_task(), config()
    bounded = task.client_settings(settings, max_step_norm=1e-3)
    weights = task.initial_weights(3)
    sent = Broadcast(weights, ClientParams(np.inf, np.inf, ()))
    client = client_data(task, dataclasses.replace(settings, client_epochs=2), 0, 1)
    [part] = task.learner.client_work(bounded, Machine()).sums(sent, [[client]])
    length = np.sqrt(sum(np.sum(array**2) for array in part.values))
    assert 1e-3 < length <= 6e-3 * (1 + 1e-9)  # two epochs of three batches
    unbounded = task.client_settings(settings)
    [free] = task.learner.client_work(unbounded, Machine()).sums(sent, [[client]])
    assert np.sqrt(sum(np.sum(array**2) for array in free.values)) > 0.05


def test_weights_of_examples_reach_the_function(tmp_path):
    def weighted(weights, epochs, settings):
        x, y = epochs[0]
        assert isinstance(y, training.Weighted)
        assert (y.weights == np.float32(0.5)).all()
        return numpy_task.client_update(weights, [(x, y.labels)], settings)

    task = linear_task(
        client_update=weighted,
        sample_weight=np.full(len(numpy_task.X), 0.5),
        evaluate=lambda weights, examples: evaluate(weights, (examples[0], examples[1].labels)),
    )
    client = ClientData([task.examples_of("0")])
    settings = task.client_settings(config())
    update, _ = task.learner.client_update(task.initial_weights(3), client.epochs, settings)
    assert np.abs(update[0]).max() > 0


def test_the_commands_take_such_a_task(tmp_path, monkeypatch):
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
def test_a_cluster_trains_the_same_run(tmp_path):
    pytest.importorskip("ray")
    here, there = (
        train(tmp_path / name, cluster=cluster) for name, cluster in (("a", None), ("b", "local"))
    )
    np.testing.assert_equal(there.weights, here.weights)
    assert (there.path / "metrics.jsonl").read_bytes() == (here.path / "metrics.jsonl").read_bytes()
