"""No function of the user's reaches an array that the library goes on with: clients' data get into
the model by clipped sums with noise alone.
"""

import dataclasses

import numpy as np
import pytest

from fedmf import training
from fedmf.runs.round_metrics import RoundMetric
from fedmf.server import optimizers
from fedmf.server.messages import ClientParams, ClippedSum
from fedmf.server.optimizers import ServerOptimizer, checked_initial_state, checked_step
from fedmf.training.client_work import Broadcast, group_sum, sums_of_copies
from fedmf.training.examples import ClientData
from fedmf.training.execution.groups import check_group_sums
from fedmf.training.fine_tuning import fine_tuned_metrics
from fedmf.training.learner import ClientSettings, Machine
from tests.refusals import assert_one_sentence
from tests.training.numpy_task import config, evaluate, initial_weights, learner, linear_task, train


class PassesArraysOn(training.Learner):
    """Has the functions of the linear task, without the copies of `FunctionLearner`."""

    takes_no_weights = ""

    def __init__(self, *, evaluate=evaluate, client_work=None, weights=None):
        self._evaluate = evaluate
        self._client_work = client_work
        self._weights = initial_weights(3) if weights is None else weights

    def initial_weights(self, seed):
        return self._weights

    def client_work(self, settings, machine):
        return self._client_work or learner().client_work(settings, machine)

    def evaluator(self, settings, machine):
        return lambda weights, examples: training.Evaluation(self._evaluate(weights, examples))

    def metric_names(self, task):
        return ["share within 1", "loss"]

    def check(self, task, config):
        pass

    def fingerprint(self, seed):
        return {}

    def starting_from(self, weights):
        return PassesArraysOn(evaluate=self._evaluate, weights=weights)


def message_of(call, *arguments, **options):
    """Returns the message of a refusal, in one sentence."""
    with pytest.raises((TypeError, ValueError)) as caught:
        call(*arguments, **options)
    assert_one_sentence(caught)
    return str(caught.value)


def overwrite(arrays):
    for array in arrays:
        array += 100.0


def evaluate_and_overwrite(weights, examples):
    values = evaluate(weights, examples)
    overwrite(weights)
    return values


class OverwritingMetric(RoundMetric):
    def __init__(self, name):
        self.name = name

    def compute(self, finished):
        first = float(finished.weights_after[1][0] - finished.weights_before[1][0])
        overwrite([*finished.weights_before, *finished.weights_after])
        finished.client_ids.clear()
        return first


class OverwritingCallback(training.Callback):
    def on_round(self, run, row):
        overwrite(run.weights())


class OverwritingWork(training.ClientWork):
    """Trains the arrays that it was sent in place, as torch.from_numpy shares them."""

    def explain(self):
        return ""

    def sums(self, sent, groups):
        for group in groups:
            sent.weights[0][:] += 1e-3
            zeros = [np.zeros(weight.shape) for weight in sent.weights]
            yield group_sum(group, zeros, clipped=0, zeroed=0, loss_sum=0.0)


@pytest.fixture(scope="module")
def untouched_run(tmp_path_factory):
    settings = config(rounds=3, evaluate_every=1, private_metrics=0.02)
    return train(tmp_path_factory.mktemp("runs") / "run", settings)


@pytest.mark.parametrize(
    "changes",
    [
        {"task": linear_task(learner=PassesArraysOn(evaluate=evaluate_and_overwrite))},
        {"round_metrics": [OverwritingMetric("first"), OverwritingMetric("second")]},
        {"callbacks": [OverwritingCallback(), OverwritingCallback()]},
    ],
    ids=["evaluator", "round metrics", "callbacks"],
)
def test_writes_of_functions_to_their_arrays_change_no_run(tmp_path, untouched_run, changes):
    run = train(tmp_path / "run", untouched_run.config, **changes)
    for weight, expected in zip(run.weights, untouched_run.weights, strict=True):
        np.testing.assert_array_equal(weight, expected)
    for row, expected in zip(run.metrics, untouched_run.metrics, strict=True):
        assert {name: row[name] for name in expected} == expected
        assert row.get("first") == row.get("second")
    assert run.evaluate("test") == untouched_run.evaluate("test")


def test_initial_weights_of_a_task_are_copies():
    own_weights = initial_weights(3)
    task = linear_task(learner=PassesArraysOn(weights=own_weights))
    expected = initial_weights(3)
    warm = task.starting_from(own_weights)
    for written_weights in (own_weights, task.initial_weights(3), warm.initial_weights(3)):
        overwrite(written_weights)
        for same_task in (task, warm):
            np.testing.assert_array_equal(same_task.initial_weights(3)[0], expected[0])


def test_client_work_that_writes_to_its_weights_is_refused_before_the_noise(tmp_path):
    task = linear_task(learner=PassesArraysOn(client_work=OverwritingWork()))
    message = message_of(train, tmp_path / "run", task=task)
    assert "client work wrote to the weights" in message
    assert not (tmp_path / "run" / "metrics.jsonl").read_bytes()
    np.testing.assert_array_equal(task.initial_weights(3)[0], initial_weights(3)[0])
    settings = config()
    message = message_of(
        fine_tuned_metrics, task, settings, initial_weights(3), rates=[0.1], clients=2,
        split=None, progress=False,
    )  # fmt: skip
    assert "client work wrote to the weights" in message


def test_scales_are_copies_too():
    class Scaling(OverwritingWork):
        def sums(self, broadcast, groups):
            broadcast.params.scales[0][:] = 0
            yield from ()

    broadcast = Broadcast([np.full(2, np.nan)], ClientParams(1.0, np.inf, [np.ones(2, np.float32)]))
    assert "wrote to the scales" in message_of(
        lambda: list(sums_of_copies(Scaling(), broadcast, []))
    )
    np.testing.assert_array_equal(broadcast.params.scales[0], 1)


def test_nan_in_weights_does_not_count_as_a_change():
    settings = ClientSettings(task="t", seed=0, batch_size=1, spec=None, cohort_size=1)
    work = learner().client_work(settings, Machine())
    broadcast = Broadcast([np.full(3, np.nan), np.zeros(1)], ClientParams(1.0, np.inf, ()))
    [group_sum] = sums_of_copies(work, broadcast, [[ClientData([])]])
    assert group_sum.zeroed == 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class InPlaceMomentum(ServerOptimizer):
    """Changes all of its arguments, and returns the same arrays."""

    name = "in_place"

    def init(self, weights):
        overwrite(weights)
        return {"velocity": [np.zeros_like(weight) for weight in weights], "steps": 0}

    def step(self, state, weights, update, learning_rate):
        pairs = zip(weights, state["velocity"], update, strict=True)
        for weight, velocity, direction in pairs:
            velocity *= 0.9
            velocity += direction
            direction[:] = np.nan
            weight -= learning_rate * velocity
        state["steps"] += 1
        return state, weights


def test_a_server_optimizer_that_works_in_place_trains_and_resumes(tmp_path, register_optimizer):
    optimizer = register_optimizer(InPlaceMomentum())
    task = linear_task()
    settings = config(rounds=4)
    whole_run = train(tmp_path / "whole", settings, task, server_optimizer=optimizer)
    stop = [training.StopAfter(2)]
    train(tmp_path / "run", settings, task, server_optimizer=optimizer, callbacks=stop)
    resumed_run = train(tmp_path / "run", settings, task, server_optimizer=optimizer, resume=True)
    np.testing.assert_array_equal(resumed_run.weights[0], whole_run.weights[0])
    np.testing.assert_array_equal(task.initial_weights(3)[0], initial_weights(3)[0])
    velocity = 0.0
    weight = np.zeros(2, np.float32)
    state = checked_initial_state(InPlaceMomentum(), [weight])
    for _ in range(3):
        update = np.ones(2, np.float32)
        state, [new_weight] = checked_step(InPlaceMomentum(), state, [weight], [update], 0.5)
        velocity = 0.9 * velocity + 1
        np.testing.assert_allclose(new_weight, weight - 0.5 * velocity, rtol=1e-6)
        np.testing.assert_array_equal(update, 1)
        weight = new_weight


@pytest.fixture
def register_optimizer(monkeypatch):
    """Registers an optimizer for one test."""

    def register(optimizer):
        monkeypatch.setitem(optimizers._CLASS_BY_NAME, optimizer.name, type(optimizer))
        return optimizer

    return register


def optimizer_of(init, step=lambda state: state, stepped=lambda weights: weights):
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Own(ServerOptimizer):
        name = "own"

        def init(self, weights):
            return init

        def step(self, state, weights, update, learning_rate):
            return step(state), stepped(weights)

    return Own()


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (
            optimizer_of([np.zeros(3, np.float32)], lambda s: [s[0].astype(np.float64)]),
            "state[0] from float32 (3,) to float64 (3,)",
        ),
        (optimizer_of([], lambda s: [*s, np.ones(1)]), "state[0] from nothing to float64 (1,)"),
        (optimizer_of({"n": 0}, lambda s: {"n": s["n"] + 0.5}), "state['n'] from int64 ()"),
        (optimizer_of([np.ones(1)], lambda s: [np.append(s[0], 1)]), "float64 (1,) to float64 (2,"),
        (optimizer_of({"word": "adam"}), "state['word']='adam'"),
        (optimizer_of(None), "state=None"),
        (optimizer_of({"rng": object()}), "state['rng']"),
        (optimizer_of({"mask": np.ma.zeros(2)}), "state['mask']"),
        (optimizer_of({1: 0.0, "a": 0.0}), "keys cannot be sorted"),
        (optimizer_of((), stepped=lambda w: [a * 1j for a in w]), "complex128"),
        (optimizer_of((), stepped=lambda w: [a.astype(str) for a in w]), "weights that are"),
        (optimizer_of((), stepped=lambda w: [np.ma.array(a) for a in w]), "masked"),
        (optimizer_of((), stepped=lambda w: None), "a NoneType"),
        (optimizer_of((), stepped=lambda w: w[:1]), "shapes"),
    ],
)  # fmt: skip
def test_a_server_optimizer_that_cannot_resume_is_refused_before_round_0(
    tmp_path, register_optimizer, optimizer, words
):
    message = message_of(train, tmp_path / "run", server_optimizer=register_optimizer(optimizer))
    assert words in message
    assert not (tmp_path / "run").exists()


def test_a_state_that_changes_in_a_later_step_is_refused_then(tmp_path, register_optimizer):
    optimizer = optimizer_of(
        {"n": 0}, lambda s: {"n": s["n"] + 1 if s["n"] < 3 else np.float32(s["n"])}
    )
    message = message_of(train, tmp_path / "run", server_optimizer=register_optimizer(optimizer))
    assert "state['n'] from int64 () to float32 ()" in message
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes().count(b"\n") == 3


class ReadTwice:
    """Is zero when it is read first, and large afterwards."""

    def __init__(self):
        self.num_reads = 0

    def __array__(self, dtype=None, copy=None):
        self.num_reads += 1
        return np.zeros(3) if self.num_reads == 1 else np.full(3, 1e9)


def group_of(**changes):
    values = {"values": [np.zeros(3)], "clients": 2, "clipped": 0, "zeroed": 1, "loss_sum": 0.5}
    return ClippedSum(**(values | changes))


def test_the_checked_sum_of_a_group_is_the_added_one():
    buffer = np.full(3, 0.5)
    [copied_sum] = check_group_sums(
        [group_of(values=[ReadTwice()])], [2], shapes=[(3,)], clip_norm=1.0
    )
    np.testing.assert_array_equal(copied_sum.values[0], 0)
    for copied_sum in check_group_sums(
        [group_of(values=[buffer])], [2], shapes=[(3,)], clip_norm=1.0
    ):
        buffer[:] = 1e9
        np.testing.assert_array_equal(copied_sum.values[0], 0.5)
        assert type(copied_sum.values[0]) is np.ndarray


def test_counts_of_a_group_are_numbers_of_python():
    group_sum = group_of(
        clients=np.int64(2), zeroed=np.int32(1), not_finite=np.uint8(1), examples=np.int64(7),
        loss_sum=np.array(0.5, np.float32),
    )  # fmt: skip
    [copied_sum] = check_group_sums([group_sum], [2], shapes=[(3,)], clip_norm=1.0)
    assert [type(number) for number in copied_sum[1:7]] == [int, int, int, int, float, int]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss_sum": np.zeros(1)}, "loss_sum=array([0.])"),
        ({"loss_sum": "0.5"}, "loss_sum='0.5'"),
        ({"loss_sum": None}, "loss_sum=None"),
        ({"examples": 1.5}, "examples=1.5"),
        ({"examples": -1}, "counts -1 examples"),
        ({"zeroed": None}, "zeroed=None"),
        ({"not_finite": 2}, "2 clients whose examples are not finite among 1 zeroed"),
        ({"values": [np.ma.zeros(3)]}, "masked"),
        ({"values": [np.zeros(3, np.float32)]}, "float32 (3,) and not of float64 (3,)"),
        ({"values": [np.full(3, np.nan)]}, "the norm is nan"),
    ],
)
def test_a_group_that_is_no_sum_is_refused_before_the_noise(changes, words):
    group_sums = check_group_sums([group_of(**changes)], [2], shapes=[(3,)], clip_norm=1.0)
    assert words in message_of(lambda: list(group_sums))


@pytest.mark.parametrize("name", ["client_examples", "evaluation_examples"])
def test_a_task_from_arrays_takes_no_other_examples(name):
    # `data_version` is a digest of the arrays, so that other examples would go unnoticed.
    with pytest.raises(TypeError, match=name):
        linear_task(**{name: lambda key: (np.ones((2, 3)), np.ones(2))})
