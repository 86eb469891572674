"""A noise vector of the host enters TFF's state in its own round and plan only."""

import traceback

import numpy as np
import pytest
import tensorflow_federated as tff
import tree

from fedmf import federated
from fedmf.server.source import noise_key
from fedmf.server.state import NoiseState
from tests.federated.plans import plan_of
from tests.refusals import refusal
from tests.server.test_host_noise import banded

SIZE = 37
SEED = 5
ZERO = [np.zeros([5, 7], np.float32), np.zeros(2, np.float32)]
PLAN, NARROW = (plan_of(banded(rounds=5, bands=bands)) for bands in (3, 2))


def process_of(plan=PLAN, seed=SEED, strategy="precomputed"):
    factory = federated.dp_aggregator(
        plan, clients_per_round=2, noise_seed=seed, noise_strategy=strategy
    )
    return factory.create(tff.to_type([(np.float32, [5, 7]), (np.float32, [2])]))


def test_a_tff_process_adds_the_noise_that_is_handed_in():
    process = process_of(seed="os")
    state = process.initialize()
    noise = federated.HostNoise.for_state(PLAN, state)
    for t in range(5):
        output = process.next(noise.hand_in(state), [ZERO, ZERO])
        result = np.concatenate([np.ravel(leaf) for leaf in output.result])
        expected = noise.row(t) * np.float32(PLAN.stddev) / 2
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-6)
        if t == 3:
            with pytest.raises(Exception, match="no noise was handed in"):
                process.next(output.state, [ZERO])
        state = output.state


def test_no_error_shows_the_key():
    state = process_of().initialize()
    noise = federated.HostNoise.for_state(PLAN, state)

    def after_last_round(component):
        return (
            component._replace(next_round=np.int32(5))
            if isinstance(component, NoiseState)
            else None
        )

    with refusal("planned for rounds=5") as raised:
        noise.hand_in(tree.traverse(after_last_round, noise.hand_in(state)))
    traceback_text = "".join(traceback.format_exception(raised.value))
    assert not any(str(word) in traceback_text for word in noise_key(SEED).tolist())


def test_states_of_another_plan_or_seed_are_refused():
    state = process_of().initialize()
    host = federated.HostNoise
    noise = host.for_state(PLAN, state)
    # The graph has two rows in the state of one plan, and one in that of the other.
    recurrent_states = [
        (plan, process_of(plan, strategy="recurrent").initialize()) for plan in (PLAN, NARROW)
    ]
    for host_noise, some_state, match in (
        (host(PLAN, SIZE, noise_seed=SEED + 1), state, "another noise seed"),
        (host.for_state(NARROW, state), state, "another plan"),
        (host(NARROW, SIZE, noise_seed=SEED), state, "another plan"),
        (noise, {"weights": [1.0]}, "holds 0 NoiseStates"),
        (noise, [state, state], "holds 2 NoiseStates"),
        *(
            (host.for_state(*plan_and_state), plan_and_state[1], "noise_strategy='precomputed'")
            for plan_and_state in recurrent_states
        ),
    ):
        with refusal(match):
            host_noise.hand_in(some_state)


def test_host_noise_without_a_seed_is_refused():
    with refusal("`noise_seed` and key"):
        federated.HostNoise(PLAN, SIZE)
    with refusal("HostNoise.for_state"):
        federated.HostNoise(PLAN, SIZE, noise_seed="os")
