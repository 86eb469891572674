"""A column of metrics.jsonl is one class that is passed to `train`."""

import json
import math

import numpy as np
import pytest

from fedmf import federated
from fedmf.runs.round_metrics import (
    FinishedRound,
    RoundMetric,
    check_round_metrics,
    compute_round_metrics,
)
from tests.federated.small_runs import config, train
from tests.refusals import refusal


class StepLength(RoundMetric):
    name = "step_length"

    def compute(self, finished):
        pairs = zip(finished.weights_after, finished.weights_before, strict=True)
        return math.hypot(
            *(np.linalg.norm(weight_after - weight_before) for weight_after, weight_before in pairs)
        )


class FirstClient(RoundMetric):
    name = "first_client"

    def compute(self, finished):
        return int(finished.client_ids[0].removeprefix("client "))


def named(name, value=1.0):
    return type("Named", (RoundMetric,), {"name": name, "compute": lambda *_: value})()


@pytest.mark.tensorflow
@pytest.mark.usefixtures("clients_in_turn")
def test_a_metric_has_a_column_that_the_guarantee_does_not_cover(tmp_path):
    names = set()

    class Names(federated.Callback):
        def on_round(self, training, row):
            names.update(training.scalars(row))

    metrics = [StepLength(), FirstClient()]
    run = train(tmp_path / "run", config(), round_metrics=metrics, callbacks=[Names()])
    assert {"not_covered/step_length", "not_covered/first_client"} <= names
    rows = list(map(json.loads, (run.path / "metrics.jsonl").read_text().splitlines()))
    assert all(row["step_length"] > 0 for row in rows)
    assert "step_length" in run.table()
    # The participants of each round, in the task's order.
    participation_rows = [
        line.split(",") for line in (run.path / "participation.csv").read_text().split()[1:]
    ]
    assert rows[2]["first_client"] == min(
        int(client) for t, client in participation_rows if t == "2"
    )
    # Negative control: a run without the metric has no such column.
    assert "step_length" not in train(tmp_path / "bare", config()).table()


def test_invalid_metrics_are_refused():
    check_round_metrics("round_metrics", [named("a"), named("b")])
    for invalid_metric in (None, "loss", StepLength(), [StepLength], [len]):
        with refusal("round_metrics", TypeError):
            check_round_metrics("round_metrics", invalid_metric)
    for name in ("train_loss", "private", "round", "two words", None, ""):
        with refusal(f"name={name!r}"):
            check_round_metrics("round_metrics", [named(name)])
    with refusal("name='a', which is a column already"):
        check_round_metrics("round_metrics", [named("a"), named("a")])
    finished_round = FinishedRound(3, [], [], [])
    for value in (None, "1", True, np.ones(2), [1.0]):
        with refusal("round metric a returned .* in round 3: return one number", TypeError):
            compute_round_metrics([named("a", value)], finished_round)
    assert compute_round_metrics([named("a", np.float32(2.0))], finished_round) == {"a": 2.0}
