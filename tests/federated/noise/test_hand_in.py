"""Rows of the host handed into TFF's state: in their own round and plan only."""

import collections
import traceback
from typing import ClassVar

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tree

from fedmf import federated
from fedmf.server.source import noise_key
from fedmf.server.state import NoiseState
from tests.federated.plans import plan_of
from tests.server.test_rows import banded

pytestmark = pytest.mark.tensorflow
SIZE, SEED = 37, 5


class TestHandingIn:
    TYPE: ClassVar = tff.to_type(
        collections.OrderedDict(
            w=tff.TensorType(np.float32, [5, 7]), b=tff.TensorType(np.float32, [2])
        )
    )
    ZERO: ClassVar = collections.OrderedDict(
        w=np.zeros([5, 7], np.float32), b=np.zeros(2, np.float32)
    )

    def process(self, plan, seed=SEED, strategy="precomputed"):
        factory = federated.dp_aggregator(
            plan, clients_per_round=2, noise_seed=seed, noise_strategy=strategy
        )
        return factory.create(self.TYPE)

    def test_in_a_tff_process(self):
        plan = plan_of(banded(rounds=5, bands=3))
        process = self.process(plan, seed="os")
        state = process.initialize()
        noise = federated.HostNoise.for_state(plan, state)
        for t in range(5):
            output = process.next(noise.hand_in(state), [self.ZERO, self.ZERO])
            flat = np.concatenate([np.ravel(output.result["w"]), np.ravel(output.result["b"])])
            sorted_by_name = np.concatenate(
                [np.ravel(leaf) for leaf in tf.nest.flatten(output.result)]
            )
            expected = noise.row(t) * np.float32(plan.stddev) / 2
            assert any(
                np.allclose(found, expected, rtol=0, atol=1e-6) for found in (flat, sorted_by_name)
            )
            if t == 3:
                with pytest.raises(Exception, match="no noise was handed in"):
                    process.next(output.state, [self.ZERO])
            state = output.state

    def test_no_error_shows_the_key(self):
        plan = plan_of(banded(rounds=5, bands=3))
        state = self.process(plan).initialize()
        noise = federated.HostNoise.for_state(plan, state)
        late = tree.map_structure(lambda leaf: leaf, state)
        late = noise.hand_in(late)
        late = tree.traverse(
            lambda part: (
                part._replace(next_round=np.int32(5)) if isinstance(part, NoiseState) else None
            ),
            late,
        )
        with pytest.raises(ValueError, match="planned for rounds=5") as raised:
            noise.hand_in(late)
        shown = "".join(traceback.format_exception(raised.value))
        assert not any(str(word) in shown for word in noise_key(SEED).tolist())

    def test_refusals(self):
        plan = plan_of(banded(rounds=5, bands=3))
        state = self.process(plan).initialize()
        noise = federated.HostNoise.for_state(plan, state)
        with pytest.raises(ValueError, match="another noise seed"):
            federated.HostNoise(plan, SIZE, noise_seed=SEED + 1).hand_in(state)
        other = plan_of(banded(rounds=5, bands=2))
        for mixed in (
            federated.HostNoise.for_state(other, state),
            federated.HostNoise(other, SIZE, noise_seed=SEED),
        ):
            with pytest.raises(ValueError, match="made with another plan"):
                mixed.hand_in(state)
        with pytest.raises(ValueError, match="holds 0 NoiseStates"):
            noise.hand_in({"weights": [1.0]})
        with pytest.raises(ValueError, match="holds 2 NoiseStates"):
            noise.hand_in([state, state])
        # Two rows in the state, and one
        for mechanism in (
            banded(rounds=5, bands=3),
            banded(rounds=5, bands=2),
        ):
            plan = plan_of(mechanism)
            in_graph = self.process(plan, strategy="recurrent").initialize()
            with pytest.raises(ValueError, match="noise_strategy='precomputed'"):
                federated.HostNoise.for_state(plan, in_graph).hand_in(in_graph)
        with pytest.raises(ValueError, match="noise_seed and key: give exactly one"):
            federated.HostNoise(plan, SIZE)
        with pytest.raises(ValueError, match="use HostNoise.for_state"):
            federated.HostNoise(plan, SIZE, noise_seed="os")
        with pytest.raises(TypeError, match="plan=None"):
            federated.HostNoise(None, SIZE, noise_seed=1)
        with pytest.raises(ValueError, match="planned for rounds=5"):
            noise.row(5)
