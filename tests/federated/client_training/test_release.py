"""The step of a round follows from its release alone: a step that is repeated after a crash is
identical.
"""

import numpy as np
import pytest

from fedmf.training.execution.base import RunOptions
from fedmf.training.execution.choice import build_execution
from tests.federated.small_runs import config, small_task
from tests.federated.training.test_adaptive_training import BOTH
from tests.refusals import refusal

pytestmark = pytest.mark.usefixtures("clients_in_turn")
ROUNDS = 3


def execution_of(settings):
    options = RunOptions(server_optimizer=settings.server_steps())
    return build_execution(small_task(), settings.plan(), settings, 9, options=options)


def committed(release):
    """Returns a release as a journal restores it: its arrays, in memory of their own."""
    fields = {
        "arrays": [np.array(array) for array in release.arrays],
        "statistics": {},
        "canaries": None,
    }
    return type(release)(**fields)


def assert_same_state(execution, state, other_state):
    for read_arrays in (execution.before, execution.weights):
        for array, other_array in zip(read_arrays(state), read_arrays(other_state), strict=True):
            assert array.dtype == other_array.dtype
            np.testing.assert_array_equal(array, other_array)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"server_optimizer": "sgd", "server_momentum": 0.9}, id="sgd"),
        pytest.param({"server_optimizer": "adam", "canaries": 3} | BOTH, id="adam, all adapts"),
        pytest.param({"server_optimizer": "adagrad"}, id="adagrad"),
        pytest.param({"server_optimizer": "yogi"}, id="yogi"),
        pytest.param({"execution": "tff"} | BOTH, id="tff", marks=pytest.mark.slow),
    ],
)
def test_a_repeated_step_and_the_rounds_after_it_are_identical(changes):
    settings = config(**changes)
    with execution_of(settings) as execution:
        state = execution.init()
        start = execution.weights(state)
        for t in range(ROUNDS):
            cohort = [execution.client(t, client) for client in range(4)]
            arrays_before = [np.array(array) for array in execution.before(state)]
            weights_before = execution.weights(execution.from_before(arrays_before))
            np.testing.assert_equal(weights_before, execution.weights(state))
            release = execution.collect_release(state, cohort, range(settings.canaries))
            repeated_release = execution.collect_release(state, cohort, range(settings.canaries))
            for array, repeated_array in zip(release.arrays, repeated_release.arrays, strict=True):
                np.testing.assert_array_equal(array, repeated_array)
            assert release.canaries.shape == (settings.canaries,)
            stepped = execution.step(state, release)
            assert_same_state(execution, execution.step(state, repeated_release), stepped)
            resumed_arrays = execution.step(
                execution.from_before(arrays_before), committed(release)
            )
            assert_same_state(execution, resumed_arrays, stepped)
            np.testing.assert_equal(execution.weights(resumed_arrays), execution.weights(stepped))
            state = resumed_arrays
        for initial_weight, final_weight in zip(start, execution.weights(state), strict=True):
            assert not np.array_equal(initial_weight, final_weight)


def test_arrays_of_another_model_or_optimizer_are_refused():
    adam, sgd = (execution_of(config(server_optimizer=name)) for name in ("adam", "sgd"))
    with refusal("weights and optimizer state of this task have nothing"):
        sgd.from_before(adam.before(adam.init()))
