"""Resumed runs and eligible nodes, in one process, on a synthetic grid."""

import dataclasses
import itertools

import numpy as np
import pytest
from flwr.app import ArrayRecord, Error, Message
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi

import fedmf
from tests.flower.made_up import (
    APART,
    COHORT,
    MODEL,
    ROUNDS,
    Grid,
    Odd,
    failing,
    flat,
    initial,
    plan,
    record,
    wrapped,
)
from tests.refusals import refusal

NODES = list(range(101, 116))
STRATEGIES = {
    "FedAvg": lambda: FedAvg(fraction_evaluate=0.0),
    "FedAvgM": lambda: FedAvgM(
        fraction_evaluate=0.0, server_learning_rate=0.5, server_momentum=0.9
    ),
    "FedAdam": lambda: FedAdam(fraction_evaluate=0.0),
    "FedYogi": lambda: FedYogi(fraction_evaluate=0.0),
    "FedAdagrad": lambda: FedAdagrad(fraction_evaluate=0.0),
}


class Killed(Exception):
    """The end of a process, with the effects on the disk that a kill would have."""


# The call of the third round in which the process dies, whether it dies after the call, and the
# rounds that were requested before.
POINTS = {
    "sent": ("send_and_receive", False, 2),
    "replied": ("send_and_receive", True, 3),
    "released": ("aggregate_train", False, 3),
    "aggregated": ("aggregate_train", True, 3),
}


def run_until(point, strategy, grid):
    name, is_after, rounds = POINTS[point]
    # The attribute is not the strategy's own, because it would be a part of its state.
    instance = grid if name == "send_and_receive" else strategy.strategy
    owner = type(instance)
    call = getattr(owner, name)

    def dying(self, *args, **options):
        if not is_after and len(grid.asked) == rounds:
            raise Killed
        result = call(self, *args, **options)
        if is_after and len(grid.asked) == rounds:
            raise Killed
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, dying)
        with pytest.raises(Killed):
            strategy.start(grid, initial())
    strategy.server.close()


# Each kill point is tested with each kind of arrays that a strategy keeps.
@pytest.mark.parametrize(
    ("name", "point"),
    [
        *(("FedAvgM", point) for point in POINTS),
        *((name, "aggregated") for name in STRATEGIES if name != "FedAvgM"),
    ],
)
def test_resumed_run_ends_bitwise_identically(name, point, tmp_path):
    whole_grid = Grid(NODES)
    whole_result = wrapped(strategy=STRATEGIES[name]()).start(whole_grid, initial())
    grid = Grid(NODES)
    folder = tmp_path / "server"
    run_until(point, wrapped(folder, STRATEGIES[name]()), grid)
    resumed_strategy = wrapped(folder, STRATEGIES[name]())
    result = resumed_strategy.start(
        grid, record({n: np.zeros(shape, np.float32) for n, shape in MODEL.items()})
    )
    done_twice = [grid.asked[2]] if point == "replied" else []
    assert grid.asked == [*whole_grid.asked[:3], *done_twice, *whole_grid.asked[3:]]
    np.testing.assert_array_equal(flat(result.arrays), flat(whole_result.arrays))
    assert resumed_strategy.server.round == ROUNDS


def test_finished_run_returns_its_model_again(tmp_path):
    strategy = wrapped(tmp_path / "server")
    first_result = strategy.start(Grid(NODES), initial())
    strategy.server.close()
    grid = Grid(NODES)
    second_result = wrapped(tmp_path / "server").start(grid, initial())
    assert grid.asked == []
    np.testing.assert_array_equal(flat(second_result.arrays), flat(first_result.arrays))


def test_run_without_a_release_begins_again(tmp_path):
    """A crash came before the first message."""
    strategy = wrapped(tmp_path / "server")
    with refusal("0 nodes were connected", TimeoutError):
        wrapped_start(strategy, Grid([]))
    strategy.server.close()
    assert wrapped(tmp_path / "server").start(Grid(NODES), initial()).arrays


def wrapped_start(strategy, grid, seconds=0.0):
    """Starts a run that does not wait for nodes."""
    strategy.strategy.min_available_nodes = strategy.strategy.min_train_nodes = 0
    return strategy.start(grid, initial(), timeout=seconds)


def begun(folder, **changes):
    strategy = wrapped(folder, **changes)
    strategy.start(Grid(NODES), initial(), 2)
    strategy.server.close()
    return folder


def test_resume_refuses_other_settings(tmp_path):
    folder = begun(tmp_path / "server")
    with refusal("begun with clients_per_round=4 and not 5"):
        wrapped(folder, clients_per_round=5).start(Grid(NODES), initial())
    with refusal("begun with population=None and not 20"):
        wrapped(folder, population=20).start(Grid(NODES), initial())
    with refusal("begun with shapes="):
        wrapped(folder).start(Grid(NODES), record({"weights": np.ones(3)}))
    with refusal("begun with the arrays .*'bias'.* and not .*'other'"):
        names = {"weights": np.ones((3, 2)), "other": np.ones(2)}
        wrapped(folder).start(Grid(NODES), record(names))
    pattern_by_changes = {
        r"noise_multiplier=0.8 \(was 0.7\)": plan(noise_multiplier=0.8),
        r"noise_multiplier=0.700000007 \(was 0.7\)": plan(noise_multiplier=0.700000007),
        r"min_sep=2 \(was 3\)": plan(min_sep=2),
        "noise_multiplier=0.98.*private_metrics=0.5": plan(
            noise_multiplier=0.7 * 2**0.5, private_metrics=0.5
        ),
    }
    for changes, error_pattern in pattern_by_changes.items():
        with refusal(rf"keeps another plan than the one given \(.*{changes}"):
            wrapped(folder, given=error_pattern).start(Grid(NODES), initial())
    assert wrapped(folder).start(Grid(NODES), initial()).arrays


@pytest.mark.parametrize(("error", "is_same"), [(1e-13, True), (1e-6, False)])
def test_resume_accepts_a_mechanism_within_fit_tolerance(error, is_same, tmp_path):
    """Another version of SciPy may fit other last digits."""
    fitted_plan = plan()
    diagonals = fitted_plan.mechanism.diagonals * (1 + error)
    mechanism = dataclasses.replace(fitted_plan.mechanism, diagonals=diagonals)
    refitted = dataclasses.replace(fitted_plan, mechanism=mechanism)
    folder = begun(tmp_path / "server")
    if is_same:
        assert wrapped(folder, given=refitted).start(Grid(NODES), initial()).arrays
        return
    with refusal("keeps another plan than the one given"):
        wrapped(folder, given=refitted).start(Grid(NODES), initial())


def backwards(arrays):
    return dict(reversed(list(arrays.items())))


@pytest.mark.parametrize("rounds", [0, 3])
def test_order_of_array_names_changes_nothing(rounds, tmp_path):
    """The strategy and the initial model have another order, also at a restart: before the first
    round and later.
    """
    whole_result = wrapped().start(Grid(NODES), initial())
    reversed_arrays = ArrayRecord(backwards(initial()))
    strategy = wrapped(tmp_path / "server", Odd(backwards))
    if rounds:
        strategy.start(Grid(NODES), initial(), rounds)
    else:
        strategy._begin(initial())
    strategy.server.close()
    strategy = wrapped(tmp_path / "server", Odd(backwards))
    result = strategy.start(Grid(NODES), reversed_arrays)
    assert list(result.arrays) == list(MODEL)
    np.testing.assert_array_equal(flat(result.arrays), flat(whole_result.arrays))


def test_resume_waits_for_a_node_that_took_part(tmp_path):
    """A simulation gives its nodes new ids, and so does a SuperNode without a registered key."""
    folder = begun(tmp_path / "server")
    with refusal("none of them took part before .*give a population", TimeoutError):
        wrapped_start(wrapped(folder), Grid([node + 1000 for node in NODES]))
    other_nodes = begun(tmp_path / "other")
    grid = Grid([node + 1000 for node in NODES[1:]] + NODES)
    wrapped(other_nodes).start(grid, initial(), 3)
    assert len(grid.asked) == 1


def test_resume_after_empty_rounds_waits_for_no_past_node(tmp_path):
    strategy = wrapped(tmp_path / "server")
    strategy.start(Grid(NODES, behave=dict.fromkeys(NODES, failing)), initial(), 1)
    strategy.server.close()
    restarted_strategy = wrapped(tmp_path / "server")
    restarted_strategy.start(Grid([node + 1000 for node in NODES]), initial(), 2, timeout=5.0)
    assert restarted_strategy.server.round == 2
    assert len(restarted_strategy.server.clients) == COHORT


def test_relative_folder_stays_when_the_working_folder_changes(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    strategy = wrapped("server")

    def leave(number, arrays):
        monkeypatch.chdir(tmp_path / "elsewhere")

    strategy.start(Grid(NODES), initial(), 3, evaluate_fn=leave)
    strategy.server.close()
    assert not list((tmp_path / "elsewhere").iterdir())
    resumed_strategy = wrapped(tmp_path / "server")
    resumed_strategy.start(Grid(NODES), initial(), 4)
    assert resumed_strategy.server.round == 4


class Paused(FedAvgM):
    """A strategy whose learning rate is 0 in round 4."""

    def __init__(self):
        super().__init__(fraction_evaluate=0.0, server_learning_rate=0.5, server_momentum=0.0)

    def aggregate_train(self, server_round, replies):
        self.server_learning_rate = 0.0 if server_round == 4 else 0.5
        return super().aggregate_train(server_round, replies)


def test_resumed_run_need_not_move_the_model(tmp_path):
    strategy = wrapped(tmp_path / "server", Paused())
    strategy.start(Grid(NODES), initial(), 3)
    strategy.server.close()
    restarted_strategy = wrapped(tmp_path / "server", Paused())
    restarted_strategy.start(Grid(NODES), initial(), 5)
    assert restarted_strategy.server.round == 5


def test_start_without_eligible_nodes_times_out():
    strategy = wrapped()
    words = "waited for 0 s, and of 4 connected nodes none .* may take part again yet"
    with refusal(words, TimeoutError):
        wrapped_start(strategy, Grid(NODES[:COHORT]))
    assert strategy.server.round == 1


def test_start_waits_until_a_node_is_connected(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: looks.append(seconds))
    looks = []
    grid = Grid(lambda: NODES[: COHORT + (len(looks) >= 5)])
    strategy = wrapped()
    strategy.strategy.min_available_nodes = strategy.strategy.min_train_nodes = 0
    strategy.start(grid, initial(), 2)
    assert len(looks) == 5
    assert [len(nodes) for nodes in grid.asked] == [COHORT, 1]


def test_timeout_limits_the_wait_of_the_wrapped_strategy(monkeypatch):
    strategy = wrapped(strategy=FedAvg(min_available_nodes=99, fraction_evaluate=0.0))
    monkeypatch.setattr("flwr.serverapp.strategy.strategy_utils.sleep", lambda seconds: None)
    with refusal("15 nodes were connected after 0.05 s, fewer than .*min_available", TimeoutError):
        strategy.start(Grid(NODES), initial(), timeout=0.05)


class TestPopulation:
    """Tests with partition ids, which the nodes tell."""

    def test_server_draws_partitions_under_any_node_ids(self, tmp_path):
        asked_clients = []
        for shift in (0, 1000):
            grid = Grid(
                [node + shift for node in NODES], partition_of=lambda n, s=shift: n - 101 - s
            )
            strategy = wrapped(tmp_path / "server", population=15)
            strategy.start(grid, initial(), 3 + 3 * (shift > 0))
            asked_clients += [[node - 101 - shift for node in nodes] for nodes in grid.asked]
            ledger = strategy.server.ledger
            strategy.server.close()
        assert [len(nodes) for nodes in asked_clients] == [COHORT] * ROUNDS
        assert [sorted(ledger.cohort(t).tolist()) for t in range(ROUNDS)] == asked_clients
        for client in range(15):
            client_rounds = [t for t, nodes in enumerate(asked_clients) if client in nodes]
            assert all(b - a >= APART for a, b in itertools.pairwise(client_rounds))

    def test_unconnected_partitions_are_missing_in_the_round(self):
        grid = Grid(NODES[:8], partition_of=lambda node: node - 101)
        strategy = wrapped(population=15)
        strategy.start(grid, initial(), 3)
        selected_clients = [strategy.server.ledger.selected(t) for t in range(3)]
        expected = [
            [101 + client for client in sorted(cohort) if client < 8] for cohort in selected_clients
        ]
        assert grid.asked == expected

    def test_one_of_two_nodes_with_the_same_partition_takes_part(self):
        grid = Grid([*NODES, 999], partition_of=lambda node: 3 if node == 999 else node - 101)
        wrapped(population=15).start(grid, initial())
        asked_nodes = {node for nodes in grid.asked for node in nodes}
        assert 104 in asked_nodes
        assert 999 not in asked_nodes

    @pytest.mark.parametrize("partition_id", [15, -1, True, 0.5, "3"])
    def test_node_with_an_invalid_partition_does_not_take_part(self, partition_id):
        grid = Grid(NODES, partition_of=lambda node: partition_id if node == 104 else node - 101)
        wrapped(population=15).start(grid, initial())
        assert 104 not in {node for nodes in grid.asked for node in nodes}

    def test_round_without_connected_clients_is_noise_alone(self, tmp_path, caplog):
        """It does not wait, because clients that left for good would be waited for at every
        restart.
        """
        long_plan = plan(rounds=12, min_sep=2)
        grid = Grid(NODES[:4], partition_of=lambda node: node - 101)
        strategy = wrapped(given=long_plan, population=15, clients_per_round=2)
        strategy.start(grid, initial(), timeout=0)
        ledger = strategy.server.ledger
        cohorts = [ledger.cohort(t).tolist() for t in range(12)]
        selected_clients = [ledger.selected(t) for t in range(12)]
        assert cohorts == [
            [client for client in sorted(clients) if client < 4] for clients in selected_clients
        ]
        assert caplog.text.count("moves by noise alone") == cohorts.count([]) > 0

    @pytest.mark.parametrize("query", [3, None], ids=["late", "never"])
    def test_round_waits_for_a_slow_node_within_limits(self, query, monkeypatch):
        """A round without clients would lose a node whose answer is under way."""
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        queries = []

        class Slow(Grid):
            def _query(self, message):
                queries.append(message.metadata.dst_node_id)
                is_silent = query is None or queries.count(102) < query
                if message.metadata.dst_node_id == 102 and is_silent:
                    return Message(Error(1, "busy"), reply_to=message)
                return super()._query(message)

        # Client 0 is drawn in one of two rounds, and client 1 in the other.
        strategy = wrapped(given=plan(rounds=2, min_sep=2), population=2, clients_per_round=1)
        grid = Slow([101, 102], partition_of=lambda node: node - 101)
        strategy.start(grid, initial())
        cohort_sizes = [len(strategy.server.ledger.cohort(t)) for t in range(2)]
        assert sorted(cohort_sizes) == [int(query is not None), 1]

    def test_error_names_nodes_without_partition(self):
        with refusal("none tells a partition id: call fedmf.flower.tell_partition", TimeoutError):
            wrapped_start(wrapped(population=15), Grid(NODES))

    def test_sampled_round_may_be_empty(self):
        """Each client is drawn by an independent coin."""
        coins = {"sampling": "poisson", "population": 15, "cohort_size": 1}
        config = fedmf.PlanConfig(
            rounds=ROUNDS, family="identity", epsilon=8.0, delta=1e-3, **coins
        )
        grid = Grid(NODES, partition_of=lambda node: node - 101)
        strategy = wrapped(given=config.plan(), population=15, clients_per_round=1)
        strategy.start(grid, initial())
        sizes = [len(strategy.server.ledger.cohort(t)) for t in range(ROUNDS)]
        assert strategy.server.round == ROUNDS
        assert 0 in sizes
