"""Messages to the nodes and replies from them: types, arrays, times, and changes by other code."""

import math

import numpy as np
import pytest
from flwr.app import Array, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from tests.flower.made_up import Grid, arrays_of, flat, honest, initial, record, wrapped
from tests.refusals import refusal

NODES = list(range(101, 116))


class Sending(FedAvg):
    """A strategy that changes the messages of FedAvg."""

    def __init__(self, change):
        super().__init__(fraction_evaluate=0.0)
        self.change = change

    def configure_train(self, server_round, arrays, config, grid):
        messages = super().configure_train(server_round, arrays, config, grid)
        return [self.change(message) for message in messages]


def of_type(message_type, seconds=None):
    return lambda message: Message(
        message.content, message.metadata.dst_node_id, message_type, ttl=seconds
    )


def with_arrays(change):
    def changed(message):
        arrays = {name: change(array) for name, array in arrays_of(message).items()}
        content = RecordDict({"arrays": record(arrays), "config": message.content["config"]})
        return Message(content, message.metadata.dst_node_id, "train")

    return changed


class Looking(Grid):
    """A grid that records the newest messages."""

    messages = ()

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        self.messages = messages or self.messages
        self.timeout = timeout
        return super().send_and_receive(messages, timeout=timeout)


def test_messages_have_the_type_and_time_to_live_of_the_strategy():
    grid = Looking(NODES)
    strategy = wrapped(strategy=Sending(of_type("train.lora", 77.0)))
    strategy.start(grid, initial(), 1)
    message_metadata = [
        (message.metadata.message_type, message.metadata.ttl) for message in grid.messages
    ]
    assert set(message_metadata) == {("train.lora", 77.0)}
    assert strategy.server.ledger.cohort(0).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (of_type("evaluate"), "sends messages of the type 'evaluate' for training"),
        (of_type("query.partition"), "sends messages of the type 'query.partition' for training"),
        (with_arrays(lambda a: a + 10), "sends other arrays than those of the model"),
        (with_arrays(lambda a: a.astype(np.float64)), "sends other arrays than those of the mod"),
        (with_arrays(lambda a: a[:1]), "sends other arrays than those of the model"),
        (
            lambda m: Message(RecordDict({}), m.metadata.dst_node_id, "train"),
            "sends other arrays than those of the model",
        ),
    ],
)
def test_messages_that_do_not_train_the_model_are_refused_before_the_first_round(change, words):
    strategy = wrapped(strategy=Sending(change))
    grid = Grid(NODES)
    with refusal(f"strategy=Sending {words}"):
        strategy.start(grid, initial())
    assert (strategy.server.round, grid.asked) == (0, [])


def test_messages_of_two_types_are_refused():
    def change(message):
        kind = "train.a" if message.metadata.dst_node_id == NODES[0] else "train.b"
        return of_type(kind)(message)

    with refusal("strategy=Sending sends nodes messages of their own"):
        wrapped(strategy=Sending(change)).start(Grid(NODES), initial())


def test_replies_of_another_type_are_dropped(caplog):
    def evaluates(message):
        [reply] = honest(message)
        reply.metadata.__dict__["_message_type"] = "evaluate"
        return [reply]

    caplog.set_level("INFO", "flwr")
    strategy = wrapped()
    strategy.start(Grid(NODES, dict.fromkeys(NODES[:-1], evaluates)), initial(), 1)
    assert "of another type than asked for" in caplog.text
    assert strategy.server.ledger.observed().participations < 4


class TestArraysThatSomebodyChanges:
    """Tests that records which other code gets are copies."""

    def spoil(self, arrays):
        for name in list(arrays):
            arrays[name].data = b""
            arrays[name] = Array(np.zeros(1, np.float32))

    def check(self, strategy, grid, evaluate_fn=None, after=lambda result: None):
        for rounds in (1, 3):
            result = strategy.start(grid, initial(), rounds, evaluate_fn=evaluate_fn)
            models = [flat(result.arrays)]
            after(result)
        plain_grid = Grid(NODES)
        expected = flat(wrapped().start(plain_grid, initial(), 3).arrays)
        np.testing.assert_array_equal(models[-1], expected)
        for sent_message, plain_message in zip(grid.sent, plain_grid.sent, strict=True):
            np.testing.assert_array_equal(sent_message["weights"], plain_message["weights"])

    def test_arrays_changed_by_evaluate_fn_do_not_change_the_model(self):
        numbers = []

        def evaluate(number, arrays):
            numbers.append(number)
            self.spoil(arrays)

        self.check(wrapped(), Grid(NODES), evaluate)
        assert numbers == [0, 1, 1, 2, 3]

    def test_arrays_changed_in_the_result_do_not_change_the_model(self):
        self.check(wrapped(), Grid(NODES), after=lambda result: self.spoil(result.arrays))

    def test_arrays_changed_by_the_strategy_do_not_change_the_model(self):
        spoil = self.spoil

        class Spoiling(FedAvg):
            def configure_evaluate(self, server_round, arrays, config, grid):
                spoil(arrays)
                return []

        self.check(wrapped(strategy=Spoiling()), Grid(NODES))


class TestTimeout:
    def test_timeout_none_is_no_limit(self):
        grid = Looking(NODES)
        strategy = wrapped(population=15)
        grid._partition_of = lambda node: node - 101
        assert strategy.start(grid, initial(), 1, timeout=None).arrays
        assert grid.timeout is None
        assert strategy._patience == math.inf

    @pytest.mark.parametrize("timeout", ["60", float("nan"), -1, True])
    def test_invalid_timeouts_are_refused(self, timeout):
        with refusal("timeout=.*give a number of seconds, or None", (TypeError, ValueError)):
            wrapped().start(Grid(NODES), initial(), timeout=timeout)


def test_silent_node_is_asked_after_longer_and_longer_intervals(monkeypatch):
    """Each query may take a minute, during which the round waits."""
    query_rounds = []

    class Silent(Grid):
        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            if messages and messages[0].metadata.message_type == "query.partition":
                query_rounds.append(
                    (strategy.server.round, [message.metadata.dst_node_id for message in messages])
                )
                return [
                    self._query(message)
                    for message in messages
                    if message.metadata.dst_node_id != 104
                ]
            return super().send_and_receive(messages, timeout=timeout)

    strategy = wrapped(population=15)
    strategy.start(Silent(NODES, partition_of=lambda node: node - 101), initial())
    assert [(t, nodes) for t, nodes in query_rounds if t] == [(1, [104]), (3, [104])]
    assert strategy.server.ledger.observed().participations > 12
