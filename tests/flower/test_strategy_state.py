"""State of wrapped strategies: a restarted run restores it, or is refused."""

import collections
import dataclasses
import datetime
import enum
import functools
import io
import json
import logging
import threading
import types

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg, FedAvgM

from fedmf.flower.state import State
from fedmf.flower.strategy_state import StrategyState
from tests.flower.made_up import ROUNDS, Grid, flat, initial, record, wrapped
from tests.refusals import refusal

NODES = list(range(101, 116))


@dataclasses.dataclass
class Momentum:
    rate: float = 0.5
    velocity: np.ndarray | None = None


class Moving(FedAvg):
    """A strategy with state: `push` changes it, and returns how far the average moves by it."""

    def __init__(self, push, **state):
        super().__init__(fraction_evaluate=0.0)
        self.push = push
        vars(self).update(state)

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        leaves = [array.numpy() for array in arrays.values()]
        factor = self.push(self, np.concatenate([leaf.ravel() for leaf in leaves]))
        moved_arrays = {
            name: leaf_array * np.float32(factor)
            for name, leaf_array in zip(arrays, leaves, strict=True)
        }
        return record(moved_arrays), metrics


def bare_array(own, mean):
    own.v = mean if own.v is None else 0.9 * own.v + 0.1 * mean
    return own.v.mean()


def numbers(own, mean):
    own.count = own.count + 1
    own.scalar = np.float32(own.scalar * 0.9)
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


class Optimizer:
    """An object with arrays that its maker may refer to as well."""

    def __init__(self, velocity):
        self.velocity = velocity

    def step(self, mean):
        self.velocity *= 0.9
        self.velocity += mean
        return float(self.velocity.mean())


class Slotted(Optimizer):
    __slots__ = ("velocity",)


class Locked(Optimizer):
    """An object with a lock, like optimizers of libraries."""

    def __init__(self, velocity):
        super().__init__(velocity)
        self.lock = threading.Lock()


def zeros():
    return np.zeros(8, np.float32)


def of_the_optimizer(own, mean):
    return 1 + own.optimizer.step(mean) + float(own.velocity[0])


def shared(kind=Optimizer):
    velocity = zeros()
    return Moving(of_the_optimizer, velocity=velocity, optimizer=kind(velocity))


def shared_later():
    """Makes two objects refer to the same array, which the first round makes."""

    def push(own, mean):
        if own.velocity is None:
            own.velocity = own.optimizer.velocity = 0 * mean
        return of_the_optimizer(own, mean)

    return Moving(push, velocity=None, optimizer=Optimizer(None))


def parted_later():
    """Gives an object a separate array after two rounds, in place of a shared one."""

    def push(own, mean):
        own.count += 1
        if own.count == 2:
            own.velocity = own.velocity.copy() + 1
        return of_the_optimizer(own, mean)

    strategy = shared()
    strategy.push = push
    strategy.count = 0
    return strategy


def views():
    flat = zeros()
    optimizer = Optimizer(flat[2:].reshape(3, 2))
    return Moving(
        lambda own, mean: 1 + own.optimizer.step(mean[0]) / 9 + float(own.flat.sum()) / 9,
        flat=flat,
        optimizer=optimizer,
    )


def in_containers():
    optimizers = [Optimizer(zeros()), Optimizer(zeros())]
    by_name = {"first": optimizers[0], "all": optimizers}

    def push(own, mean):
        return 1 + sum(each.step(mean) for each in own.all) + own.by_name["first"].velocity[0]

    return Moving(push, all=optimizers, by_name=by_name)


def closure():
    velocity = None
    count = 0

    def push(own, mean):
        nonlocal velocity, count
        count += 1
        velocity = mean if velocity is None else velocity * 0.9 + mean
        return 1 + count * velocity.mean()

    return Moving(push)


def bound_method():
    optimizer = Optimizer(zeros())
    return Moving(lambda own, mean: 1 + own.step(mean), step=optimizer.step)


def method_of_a_list():
    history = []

    def push(own, mean):
        own.note(float(mean[0]))
        return 1 + sum(history)

    return Moving(push, note=history.append)


def partial():
    def step(memory, mean, *, options):
        memory["v"] = memory.get("v", 0) * options["rate"] + mean
        options["rate"] *= 0.9
        return memory["v"].mean()

    return Moving(
        lambda own, mean: 1 + own.step(mean),
        step=functools.partial(step, {}, options={"rate": 0.9}),
    )


def class_attribute():
    class Classy(Moving):
        velocity = 0.0

        def move(self, mean):
            type(self).velocity = 0.9 * type(self).velocity + float(mean.mean())
            return 1 + self.velocity

    return Classy(Classy.move)


def mutable_default():
    def push(own, mean, memory={}):  # noqa: B006 (what this is about)
        memory["v"] = memory.get("v", 0) * 0.9 + mean
        return 1 + memory["v"].mean()

    return Moving(push)


def attribute_of_a_function():
    def push(own, mean):
        push.velocity = 0.9 * getattr(push, "velocity", 0) + mean
        return 1 + push.velocity.mean()

    return Moving(push)


def of_a_module():
    """Changes a variable of the module that the strategy's code names."""
    module = {"np": np}
    code = "v = 0.0\ndef push(own, mean):\n    global v\n    v = 0.9 * v + float(mean.mean())\n"
    exec(code + "    return 1 + v", module)
    return Moving(module["push"])


def phases():
    """Replaces a function after two rounds."""

    def early(own, mean):
        own.count += 1
        if own.count == 2:
            own.push = own.late
        return 1.5

    return Moving(early, count=0, late=lambda own, mean: 0.5)


def namespace():
    def push(own, mean):
        own.state.velocity = 0.9 * own.state.velocity + mean
        return 1 + own.state.velocity.mean()

    return Moving(push, state=types.SimpleNamespace(velocity=0.0))


class Phase(enum.Enum):
    EARLY = 1.5
    LATE = 0.5


def constants():
    """Changes to another member of an enum that the strategy's code names."""

    def push(own, mean):
        own.count += 1
        own.phase = Phase.EARLY if own.count < 3 else Phase.LATE
        return own.phase.value if own.last is Phase.EARLY else 2.0

    def early_or_late(own, mean):
        factor = push(own, mean)
        own.last = own.phase
        return factor

    return Moving(early_or_late, count=0, phase=Phase.EARLY, last=Phase.EARLY)


SHARED = {
    "constants": constants,
    "namespace": namespace,
    "an optimizer with the strategy's array": shared,
    "one with slots": lambda: shared(Slotted),
    "one with a lock": lambda: shared(Locked),
    "shared from the first round on": shared_later,
    "shared at first": parted_later,
    "views": views,
    "objects in containers": in_containers,
    "closure": closure,
    "bound method": bound_method,
    "method of a list": method_of_a_list,
    "partial": partial,
    "class attribute": class_attribute,
    "mutable default": mutable_default,
    "attribute of a function": attribute_of_a_function,
    "variable of a module": of_a_module,
    "another function later": phases,
} | {
    name: lambda push=push, state=state: Moving(push, **state())
    for name, (push, state) in STATES.items()
}


@pytest.mark.parametrize("name", SHARED)
def test_restarted_run_ends_bitwise_identically(name, tmp_path):
    """The trial before the first round leaves no change either."""
    untried = wrapped(strategy=SHARED[name]())
    untried._wrapped.is_tried = True
    whole_result = untried.start(Grid(NODES), initial())
    for rounds in (2, 3, None):
        strategy = wrapped(tmp_path / "server", SHARED[name]())
        result = strategy.start(Grid(NODES), initial(), rounds)
        strategy.server.close()
    np.testing.assert_array_equal(flat(result.arrays), flat(whole_result.arrays))


def test_state_within_a_wrapped_wrapper_is_restored(tmp_path):
    """It is the momentum of a strategy within a strategy."""

    def around():
        inner = FedAvgM(fraction_evaluate=0.0, server_momentum=0.9)
        return DifferentialPrivacyServerSideFixedClipping(inner, 0.0, 1e6, num_sampled_clients=1)

    whole_result = wrapped(strategy=around()).start(Grid(NODES), initial())
    for rounds in (3, None):
        strategy = wrapped(tmp_path / "server", around())
        result = strategy.start(Grid(NODES), initial(), rounds)
        strategy.server.close()
    np.testing.assert_array_equal(flat(result.arrays), flat(whole_result.arrays))


class Counting(FedAvg):
    """A strategy that counts the rounds for which it makes messages."""

    count = 0

    def configure_train(self, server_round, arrays, config, grid):
        self.count += 1
        return super().configure_train(server_round, arrays, config, grid)


def test_repeated_round_is_counted_once(tmp_path):
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


def test_unchanged_attributes_are_those_of_the_restarted_program(tmp_path):
    """A restarted program with another learning rate trains with that one."""
    strategy = wrapped(tmp_path / "server", FedAvgM(server_momentum=0.9, fraction_evaluate=0.0))
    strategy.start(Grid(NODES), initial(), 2)
    strategy.server.close()
    restarted_strategy = FedAvgM(
        server_momentum=0.9, server_learning_rate=0.25, fraction_evaluate=0.0
    )
    wrapped(tmp_path / "server", restarted_strategy).start(Grid(NODES), initial(), 3)
    assert restarted_strategy.server_learning_rate == 0.25
    assert restarted_strategy.momentum_vector is not None


class Buffer:
    """A type of the strategy's author, of which no file can hold objects."""


def test_state_that_a_folder_cannot_hold_is_refused(tmp_path):
    def push(own, mean):
        own.v = Buffer()
        return 1.5

    strategy = wrapped(tmp_path / "server", Moving(push, v=None))
    with refusal(r"strategy.v \(Buffer\) changes from round to round, and folder=.*does not keep"):
        strategy.start(Grid(NODES), initial())
    assert strategy.server.round == 0
    assert wrapped(None, Moving(push, v=None)).start(Grid(NODES), initial()).arrays


def numbers_of_a_generator():
    yield from range(100)


def of_a_view(own, mean):
    own.flat = mean.copy()
    own.view = own.flat[:2]
    return 1.5


UNKEPT = {
    "generator": (lambda own, mean: 1 + next(own.v), numbers_of_a_generator, r"v \(generator\)"),
    "iterator": (lambda own, mean: 1 + next(own.v), lambda: iter([1.0] * 99), "v .list_iterator"),
    "buffer of a library": (lambda own, mean: 1 + own.v.write("x"), io.StringIO, "v .StringIO"),
    "method of a library's object": (
        lambda own, mean: 1 + own.v("x"),
        lambda: io.StringIO().write,
        "v.__self__ .StringIO",
    ),
    "partial of one": (
        lambda own, mean: 1 + own.v(),
        lambda: functools.partial(io.StringIO().write, "x"),
        "v.func.__self__ .StringIO",
    ),
    "partial with one": (
        lambda own, mean: 1 + own.v(out=own.v.keywords["out"]),
        lambda: functools.partial(lambda *, out: out.write("x"), out=io.StringIO()),
        r"v.keywords\['out'\] .StringIO",
    ),
    "day": (
        lambda own, mean: setattr(own, "v", datetime.date(2020, 1, int(own.v.day) + 1)) or 1.5,
        lambda: datetime.date(2020, 1, 1),
        "v .date",
    ),
    "new views": (of_a_view, lambda: None, "view .an array that shares the memory of another"),
}


@pytest.mark.parametrize("name", UNKEPT)
def test_detected_change_of_unreadable_state_is_refused(name, tmp_path):
    push, value, words = UNKEPT[name]
    strategy = wrapped(tmp_path / "server", Moving(push, v=value()))
    with refusal(f"strategy.{words}.* changes from round to round, and folder="):
        strategy.start(Grid(NODES), initial())
    assert strategy.server.round == 0
    untried = wrapped(None, Moving(push, v=value()))
    untried._wrapped.is_tried = True
    whole_result = untried.start(Grid(NODES), initial())
    result = wrapped(None, Moving(push, v=value())).start(Grid(NODES), initial())
    np.testing.assert_array_equal(flat(result.arrays), flat(whole_result.arrays))


def test_change_by_messages_that_no_file_holds_is_refused(tmp_path):
    class Logging(FedAvg):
        def configure_train(self, server_round, *args):
            self.out.write("round")
            return super().configure_train(server_round, *args)

    strategy = Logging(fraction_evaluate=0.0)
    strategy.out = io.StringIO()
    with refusal(r"strategy.out \(StringIO\) changes from round to round"):
        wrapped(tmp_path / "server", strategy).start(Grid(NODES), initial())


def test_state_that_appears_later_or_is_unreadable_is_logged(tmp_path, caplog):
    def push(own, mean):
        own.count += 1
        own.v = Buffer() if own.count > 2 else None
        return 1.5

    strategy = wrapped(tmp_path / "server", Moving(push, v=None, count=0, hidden=io.StringIO()))
    with caplog.at_level(logging.WARNING, "flwr"):
        strategy.start(Grid(NODES), initial())
    assert caplog.text.count("does not keep strategy.v (Buffer)") == 1
    assert caplog.text.count("does not keep strategy.hidden (StringIO)") == 1


def test_resume_refuses_another_strategy(tmp_path):
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


def stored_and_read(state):
    """Returns a state after it was written to a file and read."""
    tree, arrays = state.to_arrays()
    return State.from_arrays(json.loads(json.dumps(tree)), arrays)


def restored_after(change):
    """Returns a strategy that got the state of a changed one from a file, and its state."""
    changed_strategy, restored_strategy = (FedAvg(fraction_evaluate=0.0) for _ in range(2))
    states = StrategyState(changed_strategy), StrategyState(restored_strategy)
    change(changed_strategy)
    states[1].restore(stored_and_read(states[0].changes().state))
    return restored_strategy, states[1]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_are_restored(value):
    restored_strategy, _ = restored_after(lambda strategy: setattr(strategy, "v", value))
    assert type(restored_strategy.v) is type(value)
    np.testing.assert_equal(restored_strategy.v, value)


def test_values_that_refer_to_themselves_are_restored():
    endless = [1]
    endless.append(endless)
    restored_strategy, _ = restored_after(lambda strategy: setattr(strategy, "v", endless))
    assert restored_strategy.v[0] == 1
    assert restored_strategy.v[1] is restored_strategy.v


def test_deleted_attributes_stay_deleted():
    restored_strategy, state = restored_after(lambda strategy: delattr(strategy, "fraction_train"))
    assert not hasattr(restored_strategy, "fraction_train")
    state.restore()
    assert restored_strategy.fraction_train == 1.0


@pytest.mark.parametrize(
    "value",
    [np.array([None]), [Momentum()], {1: lambda: 0}, io.StringIO(), Momentum()],
    ids=str,
)
def test_error_names_values_that_a_file_cannot_hold(value):
    strategy = FedAvg(fraction_evaluate=0.0)
    state = StrategyState(strategy)
    strategy.v = value
    lost = state.changes().lost
    assert list(lost) == [("v",)]


def test_object_that_cannot_be_copied_is_not_tried(tmp_path, caplog):
    """A trial writes no line to a file that is open for writing."""
    path = tmp_path / "log"

    def push(own, mean):
        own.out.write("round\n")
        return 1.5

    with open(path, "w") as open_file, caplog.at_level(logging.INFO, "flwr"):
        wrapped(None, Moving(push, out=open_file)).start(Grid(NODES), initial(), 2)
    assert path.read_text() == "round\n" * 2
    assert (
        "is not tried before the first round, because strategy.out (TextIOWrapper)" in caplog.text
    )
