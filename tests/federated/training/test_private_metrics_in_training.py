"""Private metrics of a run equal those of `MetricsStream`, in every execution and after a resume.

The plan pays for them.
"""

import types

import numpy as np
import pytest
import tensorflow as tf

import fedmf
from fedmf import federated
from fedmf.privacy.private_metrics import mean_over
from fedmf.reports import write_report
from fedmf.reports.groups import private_curve
from fedmf.server.metrics_stream import MetricsStream
from fedmf.sweeps import halving
from fedmf.training.evaluation import Evaluator
from fedmf.training.private_metrics import bounded_metrics
from fedmf.training.under_way import Training
from tests.federated.small_runs import (
    assert_same_run,
    broken_off,
    checked_fingerprint,
    config,
    train,
)
from tests.federated.small_task import small_task
from tests.federated.training.test_adaptive_training import BOTH
from tests.refusals import refusal

# This config uses every part of the state between rounds.
SETTINGS = config(private_metrics=0.1, largest_loss=4.0, **BOTH)


class Weights(federated.Callback):
    """A callback that keeps the model before each round."""

    def on_start(self, training):
        self.before = [training.weights()]
        self.cohorts = []

    def on_round(self, training, row):
        self.before.append(training.weights())
        self.cohorts.append(training.cohort)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """Trains an uninterrupted run, and returns it with its callback."""
    callback = Weights()
    folder = tmp_path_factory.mktemp("whole") / "run"
    return train(folder, SETTINGS, callbacks=[callback]), callback


def test_private_metrics_are_sums_of_clients_with_noise_of_their_own_stream(whole_run):
    run, callback = whole_run
    task = small_task()
    evaluator = Evaluator(task, SETTINGS)
    metrics = MetricsStream(SETTINGS.plan(), noise_seed=9)
    for t, row in enumerate(fedmf.Run.load(run.path).metrics):
        total = np.zeros(3)
        for client in callback.cohorts[t]:
            examples = task.examples_of(task.client_ids[client])
            if len(examples[0]):
                client_metrics = evaluator.on(callback.before[t], examples)
                loss = min(client_metrics["loss"], 4.0) / 2 - 1
                total += np.array([1, 2 * client_metrics["accuracy"] - 1, loss]) / np.sqrt(3)
        expected_release = metrics.release(t, total)
        expected = metrics.values(range(t, t + 1), expected_release)
        assert row["private"].pop("stddev") == pytest.approx(expected.pop("stddev"), rel=1e-4)
        assert row["private"] == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(("headline", "worst"), [("accuracy", 0.0), ("error_rate", 1.0)])
def test_metrics_of_a_client_whose_loss_is_not_finite_are_the_worst(headline, worst):
    """test_divergence.py has a run that ends by such losses."""
    for loss in (np.nan, -np.inf):
        assert bounded_metrics({headline: 0.5, "loss": loss}, headline) == {
            "accuracy": worst,
            "loss": np.inf,
        }
    assert bounded_metrics({headline: np.nan, "loss": 2.0}, headline) == {
        "accuracy": worst,
        "loss": 2.0,
    }
    assert bounded_metrics({headline: 0.5, "loss": np.inf}, headline)["accuracy"] == 0.5


def test_a_resume_releases_identical_private_metrics(whole_run, tmp_path):
    run, _ = whole_run
    broken_off(tmp_path / "parts", 3, SETTINGS)
    assert_same_run(run, train(tmp_path / "parts", SETTINGS, resume=True))
    text = run.statement
    assert "Metrics of each round are released as well" in " ".join(text.split())
    assert "The private metrics are covered." in " ".join(text.split())
    assert run.plan["epsilon"] == pytest.approx(config().plan().epsilon)
    assert run.plan["private_metrics"]["share"] == 0.1


@pytest.mark.parametrize(
    ("changes", "covered"),
    [
        (
            {},
            "covered/clip_norm covered/noise_stddev covered/private/loss covered/scale_drift",
        ),
        ({"family": "none", "noise_multiplier": None}, ""),
        # The guarantee is that of the claimed cohort, and the noise is less.
        ({"claimed_cohort": 40}, ""),
    ],
)
def test_metrics_are_named_by_whether_the_guarantee_covers_them(changes, covered):
    row = {
        "round": 3, "train_loss": 1.0, "clients": 4, "noise_stddev": 0.1, "clip_norm": 0.2,
        "scale_drift": 0.3, "private": {"loss": 2.0}, "validation": {"loss": 3.0}, "new": None,
    }  # fmt: skip
    scalars = Training.scalars(types.SimpleNamespace(plan=config(**changes).plan()), row)
    assert [name for name in sorted(scalars) if name.startswith("covered/")] == covered.split()
    assert {name.split("covered/")[1]: scalars[name] for name in scalars} == {
        "train_loss": 1.0, "clients": 4, "noise_stddev": 0.1, "clip_norm": 0.2, "scale_drift": 0.3,
        "private/loss": 2.0, "validation/loss": 3.0,
    }  # fmt: skip


def test_settings_that_exclude_private_metrics_are_refused(tmp_path):
    with refusal("private_metrics=0.1 are computed on the machine of the run"):
        train(tmp_path / "run", SETTINGS, cluster="local", worker_task=small_task)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_reports_and_halving_use_private_metrics_averaged_over_windows(tmp_path):
    """tests/server/test_private_metrics.py has the means over rounds."""
    settings = config(private_metrics=0.9, largest_loss=4.0, noise_multiplier=0.2)
    run = train(tmp_path / "runs" / "one", settings)
    rows = [row["private"] for row in run.metrics]
    rounds, means, _ = private_curve(run, "accuracy")
    assert rounds.tolist() == [2, 4, 6]
    assert means == pytest.approx(
        [mean_over(rows[end - 2 : end], "accuracy", largest_loss=4.0) for end in rounds]
    )
    assert halving.uncovered_note([run], "Halving") == ""
    losses, measure = halving._curve(run)
    assert measure == "private loss"
    assert losses[4] == mean_over(rows[2:4], "loss", largest_loss=4.0)
    page = write_report([run], tmp_path / "report", title="private").read_text()
    assert "the guarantee covers them" in page
    assert (tmp_path / "report" / "plots" / "private_metrics.png").exists()


class Other(tf.keras.metrics.SparseCategoricalAccuracy):
    """A metric that counts every prediction as right."""

    def update_state(self, labels, outputs, sample_weight=None):
        super().update_state(labels, tf.one_hot(labels, outputs.shape[-1]), sample_weight)


class Keeps(tf.keras.metrics.SparseCategoricalAccuracy):
    """A metric that does not begin anew for each client."""

    def reset_state(self):
        pass


class Draws(tf.keras.metrics.SparseCategoricalAccuracy):
    """A metric of a random half of the examples."""

    def update_state(self, labels, outputs, sample_weight=None):
        is_in_half = tf.cast(tf.random.uniform(tf.shape(labels)) < 0.5, tf.float32)
        super().update_state(labels, outputs, is_in_half)


def with_metric(metric):
    return small_task(metrics=lambda: [metric("accuracy")])


@pytest.mark.slow
def test_a_private_metric_is_committed_with_its_round_and_never_computed_again(tmp_path):
    """Another metric has another sum, and the same noise under both would give both away."""
    broken_off(tmp_path, 3, SETTINGS)
    rows_before = [row["private"] for row in fedmf.Run.load(tmp_path).metrics]
    # The folder is as after a kill before the newest row was written.
    rows = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_text("".join(rows[:2]))
    run = train(tmp_path, SETTINGS, with_metric(Other), resume=True)
    assert [row["private"] for row in run.metrics[:3]] == rows_before


@pytest.mark.parametrize(
    ("metric", "match"),
    [
        (Keeps, "has a metric that is not in its first state after `reset_state`"),
        (Draws, "draws random numbers or calls Python .*RandomUniform"),
        (tf.keras.metrics.SparseCategoricalCrossentropy, "is not between 0 and"),
    ],
)
def test_an_evaluation_that_mixes_clients_is_refused(metric, match):
    with refusal(match):
        checked_fingerprint(with_metric(metric), SETTINGS)
