"""Evaluation on clients: no reply of one node ends a run."""

import logging

import pytest
from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from tests.flower.made_up import Grid, failing, honest, initial, wrapped

NODES = list(range(101, 116))
ROUNDS = 3
GOOD = {"num-examples": 1, "loss": 2.0}
ODD = {
    "other names": [{"num-examples": 1, "accuracy": 1.0}],
    "no weight": [{"loss": 1.0}],
    "a list as weight": [{"num-examples": [1, 2], "loss": 1.0}],
    "a list as loss": [{"num-examples": 1, "loss": [1.0, 2.0]}],
    "two records": [GOOD, GOOD],
    "no record": [],
    "a weight that makes the sum 0": [{"num-examples": -14, "loss": 1.0}],
    "a negative weight": [{"num-examples": -5, "loss": 1.0}],
    "a weight that is not finite": [{"num-examples": float("inf"), "loss": 1.0}],
    "a weight that is no number": [{"num-examples": float("nan"), "loss": 1.0}],
}


def replying(records):
    """Returns a node's behaviour: these records for an evaluation, else honest training."""

    def behave(message):
        if message.metadata.message_type != "evaluate":
            return honest(message)
        content = {f"metrics{i}": MetricRecord(record) for i, record in enumerate(records)}
        return [Message(RecordDict(content), reply_to=message)]

    return behave


def run(behaviours, caplog, **options):
    """Returns the evaluations of a run, and its warnings."""
    strategy = wrapped(strategy=FedAvg(**options))
    with caplog.at_level(logging.WARNING, "flwr"):
        result = strategy.start(Grid(NODES, behaviours), initial(), ROUNDS)
    assert strategy.server.round == ROUNDS
    return [dict(metrics) for metrics in result.evaluate_metrics_clientapp.values()]


@pytest.mark.parametrize("name", ODD)
def test_invalid_evaluation_of_a_node_is_dropped_and_counted(name, caplog):
    behaviours = dict.fromkeys(NODES, replying([GOOD])) | {NODES[0]: replying(ODD[name])}
    assert run(behaviours, caplog) == [{"loss": pytest.approx(2.0)}] * ROUNDS
    assert caplog.text.count("evaluation after round 2: dropped: 1 with") == 1


def test_invalid_evaluations_of_all_nodes_are_dropped(caplog):
    empty = {"num-examples": 0, "loss": 1.0}
    assert run(dict.fromkeys(NODES, replying([empty])), caplog) == []
    words = f"dropped: {len(NODES)} that the strategy cannot aggregate (division by zero)"
    assert caplog.text.count(words) == ROUNDS


def test_valid_evaluations_go_to_the_strategy(caplog):
    """Failed replies are no reason to drop valid ones, and nothing is logged."""

    def fails(message):
        return (failing if message.metadata.message_type == "evaluate" else honest)(message)

    behaviours = dict.fromkeys(NODES, replying([GOOD])) | {NODES[0]: fails}
    assert run(behaviours, caplog) == [{"loss": pytest.approx(2.0)}] * ROUNDS
    assert "evaluation after round" not in caplog.text


def test_failing_metrics_function_does_not_end_the_run(caplog):
    def fails(contents, key):
        raise KeyError("accuracy")

    behaviours = dict.fromkeys(NODES, replying([GOOD]))
    assert run(behaviours, caplog, evaluate_metrics_aggr_fn=fails) == []
    assert "cannot aggregate ('accuracy')" in caplog.text


def test_evaluation_with_too_few_nodes_is_left_out(caplog, monkeypatch):
    """Flower's strategies would wait without limit."""
    monkeypatch.setattr("flwr.serverapp.strategy.strategy_utils.sleep", lambda seconds: None)
    strategy = wrapped(strategy=FedAvg(min_evaluate_nodes=99))
    with caplog.at_level(logging.WARNING, "flwr"):
        strategy.start(Grid(NODES), initial(), ROUNDS, timeout=0.05)
    assert strategy.server.round == ROUNDS
    assert caplog.text.count("is not evaluated on clients: 15 nodes were connected") == ROUNDS


class Lowering(FedAvg):
    """A strategy that depends on its evaluations, like a schedule that lowers a learning rate on a
    plateau.
    """

    evaluations = 0
    steps = ()

    def aggregate_train(self, server_round, replies):
        self.steps = (*self.steps, self.evaluations)
        return super().aggregate_train(server_round, replies)

    def aggregate_evaluate(self, server_round, replies):
        self.evaluations += 1
        return super().aggregate_evaluate(server_round, replies)


@pytest.mark.parametrize("reply", [[GOOD], ODD["no weight"]], ids=["good", "odd"])
def test_changes_by_an_evaluation_survive_a_restart(reply, tmp_path):
    """They are made once, also where the strategy aggregates twice because one reply is invalid. A
    restart evaluates the newest model first, and a finished run evaluates nothing.
    """
    grid = Grid(NODES, dict.fromkeys(NODES, replying([GOOD])) | {NODES[0]: replying(reply)})
    for rounds in (1, 3, 4, 6, 6):
        strategy = wrapped(tmp_path / "server", Lowering())
        result = strategy.start(grid, initial(), rounds)
        strategy.server.close()
    assert strategy.strategy.steps[:6] == (0, 1, 2, 3, 4, 5)
    assert result.evaluate_metrics_clientapp == {}


def test_resumed_run_has_the_evaluation_of_its_newest_model(tmp_path):
    grid = Grid(NODES, dict.fromkeys(NODES, replying([GOOD])))
    strategy = wrapped(tmp_path / "server", FedAvg())
    strategy.start(grid, initial(), 3)
    strategy.server.close()
    strategy = wrapped(tmp_path / "server", FedAvg())
    result = strategy.start(grid, initial(), 5)
    assert sorted(result.evaluate_metrics_clientapp) == [3, 4, 5]
    result = strategy.start(grid, initial(), 6)
    assert sorted(result.evaluate_metrics_clientapp) == [6]
