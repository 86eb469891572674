"""Rounds of the strategy on a synthetic grid: releases, participants, dropped replies."""

import io
import logging
import re
import zipfile

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp.strategy import FedAvg, FedProx

from fedmf.privacy.stopping import stopped_after
from fedmf.server.metrics_stream import MetricsStream
from tests.flower.made_up import (
    COHORT,
    MODEL,
    ROUNDS,
    Grid,
    answer,
    arrays_of,
    assert_arrays,
    expected,
    failing,
    flat,
    honest,
    initial,
    plan,
    record,
    trained,
    wrapped,
)
from tests.refusals import refusal

NODES = [2**63 + 11, *range(101, 115)]


def test_model_moves_by_the_noisy_mean_alone():
    grid = Grid(NODES)
    strategy = wrapped()
    result = strategy.start(grid, initial(), ROUNDS)
    models = expected(plan(), grid.asked)
    for arrays, model in zip([*grid.sent[1:], result.arrays], models, strict=True):
        assert_arrays(arrays, model)


def test_all_updates_have_equal_weight():
    """FedAvg takes the weights that clients send; here no such number counts."""
    heavy = {
        node: lambda m, n=node: [
            answer(m, trained(n, arrays_of(m)), **{"num-examples": 10**9, "size": 1.0 * n})
        ]
        for node in NODES[::2]
    }
    grid = Grid(NODES, heavy)
    result = wrapped(strategy=FedAvg(fraction_evaluate=0.0, weighted_by_key="size")).start(
        grid, initial(), 2
    )
    assert_arrays(result.arrays, expected(plan(), grid.asked)[-1])


def with_changed_arrays(**changes):
    """Returns a node's behaviour: some arrays of its reply are exchanged, and those of None are
    missing.
    """

    def behave(message):
        arrays = trained(1, arrays_of(message)) | changes
        return [
            answer(message, {name: array for name, array in arrays.items() if array is not None})
        ]

    return behave


def with_raw_bias(data, shape=(2,), dtype="float32", stype="numpy.ndarray"):
    """Returns a node's behaviour: array "bias" of its reply has these bytes."""

    def behave(message):
        [reply] = honest(message)
        reply.content["arrays"]["bias"] = Array(dtype, shape, stype, data)
        return [reply]

    return behave


def npy(header, data=b""):
    text = (str(header) + " " * 64)[:117].encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def archive():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("a.npy", b"0" * 1000)
    return buffer.getvalue()


def of_another_round(message):
    [reply] = honest(message)
    reply.metadata.__dict__["_group_id"] = "0"
    return [reply]


def of_another_node(message):
    [reply] = honest(message)
    reply.metadata.__dict__["_src_node_id"] = 12345
    return [reply]


def two_records(message):
    [reply] = honest(message)
    reply.content["more"] = ArrayRecord({"a": Array(np.ones(1))})
    return [reply]


HUGE = {"descr": "<f4", "fortran_order": False, "shape": (2**40,)}
PICKLE = {"descr": "|O", "fortran_order": False, "shape": (2,)}
HOSTILE = {
    "failing": (failing, "failed"),
    "late": (of_another_round, "of another round"),
    "stranger": (of_another_node, "of nodes that were not drawn"),
    "missing array": (with_changed_arrays(bias=None), "with other arrays"),
    "more arrays": (with_changed_arrays(extra=np.ones(2)), "with other arrays"),
    "another shape": (with_changed_arrays(bias=np.ones(3)), "with other arrays"),
    "broadcasts": (with_changed_arrays(bias=np.ones(())), "with other arrays"),
    "integers": (with_changed_arrays(bias=np.ones(2, np.int64)), "with other arrays"),
    "complex": (with_changed_arrays(bias=np.ones(2) * 1j), "with other arrays"),
    "two records": (two_records, "with other arrays"),
    "no records": (lambda m: [Message(RecordDict(), reply_to=m)], "with other arrays"),
    "garbage": (with_raw_bias(b"garbage"), "with other arrays"),
    "empty": (with_raw_bias(b""), "with other arrays"),
    "another serializer": (with_raw_bias(b"", stype="pickle"), "with other arrays"),
    "a bomb": (with_raw_bias(npy(HUGE)), "with other arrays"),
    "a pickle": (with_raw_bias(npy(PICKLE, b"cos\nsystem\n(S'true'\ntR.")), "with other arrays"),
    "an archive": (with_raw_bias(archive()), "with other arrays"),
    "silent": (lambda m: [], "missing"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_invalid_reply_is_dropped_and_logged(name, caplog):
    behave, why = HOSTILE[name]
    hostile = set(NODES[::3])
    grid = Grid(NODES, dict.fromkeys(hostile, behave))
    strategy = wrapped(seed=3)
    with caplog.at_level(logging.INFO, "flwr"):
        result = strategy.start(grid, initial())
    valid_nodes = [[node for node in nodes if node not in hostile] for nodes in grid.asked]
    assert sum(map(len, valid_nodes)) < sum(map(len, grid.asked))
    assert_arrays(result.arrays, expected(plan(), valid_nodes, seed=3)[-1])
    log_lines = [line for line in caplog.messages if re.match("fedmf: round .* updates", line)]
    for line, nodes in zip(log_lines, grid.asked, strict=True):
        number = len(hostile & set(nodes))
        assert (f"{number} {why}" in line) == (number > 0), line


def test_first_of_two_replies_counts(caplog):
    def twice(message):
        return [
            *honest(message),
            answer(message, {name: 9 * array for name, array in arrays_of(message).items()}),
        ]

    grid = Grid(NODES, dict.fromkeys(NODES[::2], twice))
    with caplog.at_level(logging.INFO, "flwr"):
        result = wrapped().start(grid, initial())
    assert_arrays(result.arrays, expected(plan(), grid.asked)[-1])
    assert "come twice" in caplog.text


@pytest.mark.parametrize("size", [np.nan, 3.0])
def test_client_moves_a_release_by_at_most_clip_norm(size):
    """Two runs have the same seed, one with the client and one without."""
    far = {name: np.full(shape, size, np.float32) for name, shape in MODEL.items()}
    final_models = []
    for behave in (lambda m: [answer(m, far)], lambda m: [answer(m, arrays_of(m))]):
        grid = Grid(NODES[:2], {NODES[0]: behave, NODES[1]: failing})
        final_models.append(flat(wrapped().start(grid, initial(np.float64), 1).arrays))
    shift_norm = np.linalg.norm(final_models[0] - final_models[1]) * COHORT
    assert shift_norm <= plan().clip_norm * (1 + 1e-6)
    assert (shift_norm > 0.9 * plan().clip_norm) == (size == 3.0)


def test_hostile_clients_do_not_stop_a_run_that_has_worked():
    """A round in which all replies have other arrays is noise alone."""
    odd = with_changed_arrays(bias=np.ones(3))
    strategy = wrapped()

    def later_odd(message):
        return odd(message) if strategy.server.round else honest(message)

    strategy.start(Grid(NODES, dict.fromkeys(NODES, later_odd)), initial(), 3)
    assert strategy.server.round == 3
    assert strategy.server.ledger.observed().participations == COHORT


def test_run_stops_where_no_reply_has_the_arrays_and_resumes(tmp_path):
    strategy = wrapped(tmp_path / "server")
    grid = Grid(NODES, dict.fromkeys(NODES, with_changed_arrays(bias=np.ones(3))))
    with refusal(r"no reply of round 1 has the arrays .*'bias' has shape \(3,\) and not \(2,\)"):
        strategy.start(grid, initial())
    assert strategy.server.round == 0
    strategy.server.close()
    good = Grid(NODES)
    result = wrapped(tmp_path / "server").start(good, initial())
    assert good.asked[0] == grid.asked[0]
    assert_arrays(result.arrays, expected(plan(), good.asked)[-1])


def test_round_without_replies_is_noise_alone(caplog):
    grid = Grid(NODES, dict.fromkeys(NODES, failing))
    result = wrapped().start(grid, initial(), 1)
    assert_arrays(result.arrays, expected(plan(), [[]])[-1])
    assert "moves by noise alone" in caplog.text


def test_counters_are_refused_by_name():
    model = record({"weights": np.ones(2), "bn.num_batches_tracked": np.array(3)})
    grid = Grid(NODES)
    with refusal(r"arrays\['bn.num_batches_tracked'\] holds int64 entries.*leave counters"):
        wrapped().start(grid, model)
    assert grid.asked == []


def test_model_that_changes_its_shape_is_refused():
    strategy = wrapped()
    grid = Grid(NODES)
    strategy.start(grid, initial(), 1)
    with refusal("the run's are"):
        strategy.configure_train(2, record({"weights": np.ones((2, 2))}), ConfigRecord(), grid)


def test_aggregate_train_needs_configure_train():
    with refusal("no round is under way"):
        wrapped().aggregate_train(1, [])
    with refusal("has no server yet"):
        wrapped().server  # noqa: B018


def test_rounds_beyond_the_plan_are_refused():
    for number in (ROUNDS + 1, 0):
        with refusal(f"num_rounds={number} must be in 1..{ROUNDS}"):
            wrapped().start(Grid(NODES), initial(), number)


class PerNode(FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        for i, message in enumerate(super().configure_train(server_round, arrays, config, grid)):
            content = RecordDict({"arrays": arrays, "n": record({"n": np.array([1.0 * i])})})
            yield Message(content, message.metadata.dst_node_id, MessageType.TRAIN)


def test_invalid_strategies_and_settings_are_refused():
    with refusal("strategy='fedavg' is no flwr", TypeError):
        wrapped(strategy="fedavg")
    with refusal("train_metrics_aggr_fn=.*does not cover"):
        wrapped(strategy=FedAvg(train_metrics_aggr_fn=lambda records, key: None))
    with refusal("strategy=FedAvg sends no message for training"):
        wrapped(strategy=FedAvg(fraction_train=0.0)).start(Grid(NODES), initial())
    with refusal("strategy=PerNode sends nodes messages of their own"):
        wrapped(strategy=PerNode()).start(Grid(NODES), initial())
    with refusal("clients_per_round=0 must be in 1"):
        wrapped(clients_per_round=0)
    with refusal("population=0 must be in 1"):
        wrapped(population=0)


def test_extra_records_of_the_strategy_reach_the_nodes():
    received_records = []

    def look(message):
        [config] = message.content.config_records.values()
        received_records.append((config["server-round"], config["proximal-mu"]))
        return honest(message)

    grid = Grid(NODES, dict.fromkeys(NODES, look))
    strategy = FedProx(fraction_evaluate=0.0, proximal_mu=0.25)
    wrapped(strategy=strategy).start(grid, initial(), 2)
    assert received_records == [(1, 0.25)] * COHORT + [(2, 0.25)] * COHORT


def test_log_has_epsilon_and_dropped_replies_once(caplog):
    def talks(message):
        if message.metadata.message_type == "evaluate":
            reply_content = answer(message, {}, loss=1.0).content
            del reply_content["arrays"]
            return [Message(reply_content, reply_to=message)]
        return [answer(message, trained(1, arrays_of(message)), loss=2.0)]

    grid = Grid(NODES, dict.fromkeys(NODES, talks))
    strategy = wrapped(strategy=FedAvg())
    with caplog.at_level(logging.INFO, "flwr"):
        result = strategy.start(grid, initial())
    assert result.train_metrics_clientapp == {}
    assert [
        dict(round_metrics) for round_metrics in result.evaluate_metrics_clientapp.values()
    ] == [{"loss": pytest.approx(1.0)}] * ROUNDS
    matching_lines = [line for line in caplog.messages if "exact functions of" in line]
    assert len(matching_lines) == 2
    expected_text = f"epsilon {strategy.plan.epsilon:.4g} in all {ROUNDS} rounds, delta 1e-05"
    rounds = [line for line in caplog.messages if re.match("fedmf: round .* updates", line)]
    assert len(rounds) == ROUNDS
    assert all(line.endswith(expected_text) for line in rounds)
    first_epsilon = stopped_after(strategy.plan, 2).epsilon
    assert first_epsilon < strategy.plan.epsilon
    assert f"epsilon {first_epsilon:.4g} after 2 rounds" in rounds[1]
    assert "after 6 rounds" not in rounds[-1]
    assert any("Noise multiplier 0.7" in line for line in caplog.messages)


def test_second_start_resumes_and_numbers_rounds_over_the_run():
    round_numbers = []
    grid = Grid(NODES)
    strategy = wrapped()
    strategy.start(grid, initial(), 2)
    result = strategy.start(
        grid, initial(), 4, evaluate_fn=lambda number, arrays: round_numbers.append(number)
    )
    assert round_numbers == [2, 3, 4]
    assert_arrays(result.arrays, expected(plan(), grid.asked)[-1])


def test_private_metrics_are_noisy_means_of_the_clients():
    """They are those of a Server; of hostile clients only numbers count."""
    metric_plan = plan(private_metrics=0.5, largest_loss=4.0)

    def tells(message):
        return [answer(message, arrays_of(message), accuracy=0.25, loss=3)]

    def lies(message):
        return [answer(message, arrays_of(message), accuracy=[0.5], loss=float("inf"))]

    grid = Grid(NODES, dict.fromkeys(NODES, tells) | dict.fromkeys(NODES[::3], lies))
    result = wrapped(given=metric_plan).start(grid, initial())
    stream = MetricsStream(metric_plan, noise_seed=7)
    contribution = stream.contribution({"accuracy": 0.25, "loss": 3.0})
    for t, asked_nodes in enumerate(grid.asked):
        honest_ones = sum(node not in NODES[::3] for node in asked_nodes)
        expected_metrics = stream.values(
            range(t, t + 1), stream.release(t, honest_ones * contribution)
        )
        released_metrics = dict(result.train_metrics_clientapp[t + 1])
        for name in ("clients", "accuracy", "loss"):
            assert released_metrics[name] == pytest.approx(expected_metrics[name], rel=1e-5)
            assert released_metrics[f"{name}_stddev"] == pytest.approx(
                expected_metrics["stddev"][name], rel=1e-5
            )


def test_statement_describes_a_flower_app():
    strategy = wrapped()
    strategy.start(Grid(NODES), initial(), 1)
    text = " ".join(strategy.server.statement().split())
    assert "A Flower app with `fedmf.flower.MatrixFactorizationDP`" in text
    assert "a node id, which Flower assigns to a registration" in text
