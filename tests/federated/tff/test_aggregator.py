"""`dp_aggregator` inside TFF's own processes."""

import collections
import copy
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedmf import federated
from fedmf.mechanisms import IdentityMechanism
from tests.federated.plans import noise_of_sums, plan_of
from tests.mechanisms.registry import MECHANISMS
from tests.refusals import refusal

TYPE = tff.to_type(
    collections.OrderedDict(w=tff.TensorType(np.float32, [2, 3]), b=tff.TensorType(np.float32, []))
)
ZERO = collections.OrderedDict(w=np.zeros([2, 3], np.float32), b=np.float32(0))
SIZE = 7
PLAN = plan_of(IdentityMechanism(rounds=4))


def process_of(plan, value_type=TYPE, *, clients_per_round=1, noise_seed=2, **options):
    factory = federated.dp_aggregator(
        plan, clients_per_round=clients_per_round, noise_seed=noise_seed, **options
    )
    return factory.create(value_type)


def flat(result):
    return np.concatenate([np.ravel(leaf) for leaf in tf.nest.flatten(result)])


def run(process, rounds, updates=(ZERO, ZERO), state=None):
    state = process.initialize() if state is None else state
    rows = []
    for _ in range(rounds):
        output = process.next(state, list(updates))
        state = output.state
        rows.append(flat(output.result))
    return np.array(rows), state


def test_zero_updates_come_out_as_the_plans_noise_also_after_a_restore():
    """The plan simulates a larger cohort; test_noise_rows.py has every kind of mechanism."""
    rounds = 35
    clients = 4
    plan = plan_of(MECHANISMS["tree full"](rounds)).simulating(simulated=clients, claimed=40)
    process, resumed_process = (process_of(plan, clients_per_round=clients) for _ in range(2))
    first_rows, state = run(process, 33)
    resumed_rows, _ = run(resumed_process, 2, state=tf.nest.map_structure(np.array, state))
    expected = noise_of_sums(plan, SIZE, seed=2) / clients
    np.testing.assert_allclose(
        np.concatenate([first_rows, resumed_rows]),
        expected,
        rtol=0,
        atol=1e-6 * np.abs(expected).max(),
    )


def test_updates_are_zeroed_clipped_summed_and_divided_by_the_fixed_number():
    silent = plan_of(IdentityMechanism(rounds=2), noise_multiplier=0.0)
    process = process_of(silent, clients_per_round=10)
    values = (0.25, 3.0, 99.0, 101.0, np.nan, -np.inf)
    updates = [ZERO | {"b": np.float32(value)} for value in values]
    result = process.next(process.initialize(), updates).result
    assert not result["w"].any()
    assert result["b"] == pytest.approx((0.25 + 0.5 + 0.5) / 10, rel=3e-6)


@pytest.mark.slow
def test_each_process_of_a_factory_has_noise_of_its_own_and_the_key_in_its_state():
    """The same noise for two parts of a model would give away the difference of their updates."""

    factory = federated.dp_aggregator(PLAN, clients_per_round=1, noise_seed=2)
    copies = factory, factory.with_scaling(None), copy.deepcopy(factory)
    process, *other_processes = (each_factory.create(TYPE) for each_factory in (factory, *copies))
    first_noise, state = run(process, 1)
    # The same process, initialised again, has new noise each time.
    noises = [
        first_noise,
        *(run(process, 1)[0] for process in (*other_processes, process, process)),
    ]
    assert all(
        not np.isclose(noise, other_noise).any()
        for noise, other_noise in itertools.combinations(noises, 2)
    )
    # Negative control: the first process of another factory has the noise of the seed.
    np.testing.assert_array_equal(run(process_of(PLAN), 1)[0], first_noise)
    # A restored state continues with its own key, in any process.
    resumed_noise, same_noise = (
        run(process, 1, state=state)[0] for process in (other_processes[0], process)
    )
    np.testing.assert_array_equal(resumed_noise, same_noise)


@pytest.fixture(scope="module")
def processes_and_states():
    """Returns processes of several plans, and the state of each after one round."""
    plans = {
        "tree": plan_of(MECHANISMS["tree online"](8)),
        "banded": plan_of(MECHANISMS["banded"](4)),
        "banded, other noise": plan_of(MECHANISMS["banded"](4), noise_multiplier=3.0),
    }
    processes = {name: process_of(plan) for name, plan in plans.items()}
    return {name: (process, run(process, 1)[1]) for name, process in processes.items()}


@pytest.mark.parametrize(
    ("plan_name", "state_name"),
    [("banded", "tree"), ("tree", "banded"), ("banded", "banded, other noise")],
)
def test_a_state_of_another_family_or_noise_is_refused(processes_and_states, plan_name, state_name):
    """The plans are compared before TFF compares the shapes of the noise's rows."""
    process, own_state = processes_and_states[plan_name]
    _, other_state = processes_and_states[state_name]
    shapes = [np.shape(state[0].noise.rows) for state in (own_state, other_state)]
    assert (shapes[0] == shapes[1]) == (state_name == "banded, other noise")
    with pytest.raises(Exception, match="noise is that of another mechanism") as caught:
        process.next(other_state, [ZERO])
    assert "Failed to serialize" not in str(caught.value)
    # Negative control: the process continues from its own state.
    assert np.isfinite(run(process, 1, state=own_state)[0]).all()


def test_refusals_name_the_argument():
    with refusal("clients_per_round=3 .*4"):
        process_of(PLAN.simulating(simulated=4, claimed=40), clients_per_round=3)
    adaptive_process = tff.aggregators.PrivateQuantileEstimationProcess.no_noise(0.1, 0.5, 0.2)
    with pytest.raises(TypeError, match="zeroing_norm"):
        process_of(PLAN, zeroing_norm=adaptive_process)
