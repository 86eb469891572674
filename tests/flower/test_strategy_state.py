"""State of wrapped strategies: a run that is started again goes on with it, or is refused."""

import collections
import dataclasses
import datetime
import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg, FedAvgM

from fedmf.flower.strategy_state import Unkeepable, pack, unpack
from tests.flower.made_up import ROUNDS, Grid, flat, initial, record, wrapped
from tests.refusals import refusal

NODES = list(range(101, 116))


@dataclasses.dataclass
class Momentum:
    rate: float = 0.5
    velocity: np.ndarray | None = None


class Moving(FedAvg):
    """A strategy with state: `push` changes it, and says how far the average moves by it."""

    def __init__(self, push, **state):
        super().__init__(fraction_evaluate=0.0)
        self.push = push
        vars(self).update(state)

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        parts = [array.numpy() for array in arrays.values()]
        factor = self.push(self, np.concatenate([part.ravel() for part in parts]))
        moved = {n: p * np.float32(factor) for n, p in zip(arrays, parts, strict=True)}
        return record(moved), metrics


def bare_array(own, mean):
    own.v = mean if own.v is None else 0.9 * own.v + 0.1 * mean
    return own.v.mean()


def numbers(own, mean):
    own.count, own.scalar = own.count + 1, np.float32(own.scalar * 0.9)
    return 1 + own.count * float(own.scalar)


def nested(own, mean):
    own.v["layers"][0] = (own.v["layers"][0][0] + 1, mean * own.v["layers"][0][0])
    own.v[7].append(float(mean[0]))
    return 1 + sum(own.v[7]) / 100 + own.v["layers"][0][1].mean()


def an_object(own, mean):
    own.v.velocity = mean if own.v.velocity is None else own.v.velocity + mean
    return 1 + own.v.rate * own.v.velocity.mean()


def random_numbers(own, mean):
    return 1 + own.v.uniform()


def records(own, mean):
    before = own.v["v"].numpy() if own.v else 0 * mean
    own.v = ArrayRecord({"v": Array(before + mean)})
    return 1 + before.mean()


STATES = {
    "bare array": (bare_array, lambda: {"v": None}),
    "numbers": (numbers, lambda: {"count": 0, "scalar": np.float32(1)}),
    "nested": (nested, lambda: {"v": {"layers": [(0, None)], 7: collections.deque(maxlen=2)}}),
    "an object": (an_object, lambda: {"v": Momentum()}),
    "random numbers": (random_numbers, lambda: {"v": np.random.default_rng(3)}),
    "records": (records, lambda: {"v": ArrayRecord()}),
}


@pytest.mark.parametrize("name", STATES)
def test_a_run_that_is_started_again_ends_as_one_that_was_not(name, tmp_path):
    push, state = STATES[name]
    whole = wrapped(strategy=Moving(push, **state())).start(Grid(NODES), initial())
    for rounds in (2, 3, None):
        strategy = wrapped(tmp_path / "server", Moving(push, **state()))
        result = strategy.start(Grid(NODES), initial(), rounds)
        strategy.server.close()
    np.testing.assert_array_equal(flat(result.arrays), flat(whole.arrays))


def test_what_a_wrapped_wrapper_holds_is_kept_too(tmp_path):
    """The momentum of a strategy inside of a strategy."""

    def around():
        inner = FedAvgM(fraction_evaluate=0.0, server_momentum=0.9)
        return DifferentialPrivacyServerSideFixedClipping(inner, 0.0, 1e6, num_sampled_clients=1)

    whole = wrapped(strategy=around()).start(Grid(NODES), initial())
    for rounds in (3, None):
        strategy = wrapped(tmp_path / "server", around())
        result = strategy.start(Grid(NODES), initial(), rounds)
        strategy.server.close()
    np.testing.assert_array_equal(flat(result.arrays), flat(whole.arrays))


class Counting(FedAvg):
    """A strategy that counts the rounds that it makes messages for."""

    count = 0

    def configure_train(self, server_round, arrays, config, grid):
        self.count += 1
        return super().configure_train(server_round, arrays, config, grid)


def test_a_round_that_is_done_again_is_counted_once(tmp_path):
    class Killed(BaseException):
        pass

    def dying(message):
        raise Killed

    strategy = wrapped(tmp_path / "server", Counting(fraction_evaluate=0.0))
    strategy.start(Grid(NODES), initial(), 2)
    with pytest.raises(Killed):
        strategy.start(Grid(NODES, dict.fromkeys(NODES, dying)), initial())
    strategy.server.close()
    strategy = wrapped(tmp_path / "server", Counting(fraction_evaluate=0.0))
    strategy.start(Grid(NODES), initial())
    assert strategy.strategy.count == ROUNDS


def test_what_rounds_leave_alone_is_the_programs_own(tmp_path):
    """Another learning rate of a program that is started again counts."""
    strategy = wrapped(tmp_path / "server", FedAvgM(server_momentum=0.9, fraction_evaluate=0.0))
    strategy.start(Grid(NODES), initial(), 2)
    strategy.server.close()
    again = FedAvgM(server_momentum=0.9, server_learning_rate=0.25, fraction_evaluate=0.0)
    wrapped(tmp_path / "server", again).start(Grid(NODES), initial(), 3)
    assert again.server_learning_rate == 0.25
    assert again.momentum_vector is not None


class Buffer:
    """A type that no file without pickles holds; `Momentum` stands for those that it holds."""

    __slots__ = ("value",)


def test_state_that_a_folder_cannot_keep_is_refused_before_the_first_round(tmp_path):
    def push(own, mean):
        own.v = Buffer()
        return 1.5

    strategy = wrapped(tmp_path / "server", Moving(push, v=None))
    with refusal(r"strategy.v \(Buffer\) changes from round to round, and folder=.*does not keep"):
        strategy.start(Grid(NODES), initial())
    assert strategy.server.round == 0
    assert wrapped(None, Moving(push, v=None)).start(Grid(NODES), initial()).arrays


def test_state_that_turns_up_later_or_cannot_be_seen_is_said(tmp_path, caplog):
    def push(own, mean):
        own.count += 1
        own.v = Buffer() if own.count > 2 else None
        return 1.5

    strategy = wrapped(tmp_path / "server", Moving(push, v=None, count=0, hidden=Buffer()))
    with caplog.at_level(logging.WARNING, "flwr"):
        strategy.start(Grid(NODES), initial())
    assert caplog.text.count("does not keep strategy.v (Buffer)") == 1
    assert caplog.text.count("does not keep strategy.hidden (Buffer)") == 1


def test_another_strategy_than_the_folders_is_refused(tmp_path):
    folder = tmp_path / "server"
    strategy = wrapped(folder, Moving(an_object, v=Momentum()))
    strategy.start(Grid(NODES), initial(), 2)
    strategy.server.close()
    with refusal("keeps strategy.v.velocity, which strategy=FedAvg has no place for"):
        wrapped(folder).start(Grid(NODES), initial())


VALUES = [
    None,
    True,
    10**40,
    float("inf"),
    -0.0,
    1j,
    "text",
    b"\x00\xff",
    np.float64(0.1),
    np.bool_(True),
    np.arange(6).reshape(2, 3)[:, ::2],
    np.array("text"),
    [1, [2.5, None]],
    (1, (2,)),
    {"a": {1: [np.int8(3)]}, (2, 3): "b"},
    {1, 2},
    frozenset({"a"}),
    collections.OrderedDict(a=1),
    collections.Counter("aab"),
    collections.defaultdict(list, a=[1]),
    collections.deque([1, 2], maxlen=2),
    MetricRecord({"a": 1.5, "b": [1, 2]}),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_come_back_as_they_were(value):
    packed = pack(value)
    back = unpack(packed)
    assert type(back) is type(value)
    np.testing.assert_equal(back, value)
    assert pack(back).same_as(packed)


@pytest.mark.parametrize(
    "value",
    [object(), np.array([None]), [object()], {1: lambda: 0}, datetime.date(2020, 1, 1), Momentum()],
    ids=str,
)
def test_what_a_file_does_not_hold_is_named(value):
    with pytest.raises(Unkeepable):
        pack(value)


def test_a_list_within_itself_is_not_kept():
    endless = []
    endless.append(endless)
    with pytest.raises(Unkeepable, match="list"):
        pack(endless)
