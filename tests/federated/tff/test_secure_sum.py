"""Secure summation in the aggregator has the same sum, and clips no update too long."""

import numpy as np
import pytest
import tensorflow_federated as tff

from fedmf import QuantileClipping, federated
from tests.federated.plans import plan_of
from tests.mechanisms.registry import MECHANISMS
from tests.refusals import refusal

_KEPT: list[object] = []


@pytest.fixture(autouse=True, scope="module")
def _runtime_with_secure_sums():
    """Replaces TFF's default runtime, which has no secure sum, by one that adds the same integers
    openly.
    """
    # Both runtimes are referenced: a dropped runtime waits for its worker process, which may never
    # end.
    default_context = tff.framework.get_context_stack().current
    tff.backends.test.set_sync_test_cpp_execution_context()
    _KEPT.extend([default_context, tff.framework.get_context_stack().current])
    yield
    tff.framework.set_default_context(default_context)


def rounds_of(value_type, rounds, *, secure_sum=True, **changes):
    plan = plan_of(MECHANISMS["banded"](3), **changes)
    factory = federated.dp_aggregator(
        plan, clients_per_round=3, noise_seed=1, secure_sum=secure_sum
    )
    process = factory.create(tff.to_type(value_type))
    assert process.next.type_signature.result.result.member == tff.to_type(value_type)
    state = process.initialize()
    outputs = []
    for updates in rounds:
        outputs.append(process.next(state, updates))
        state = outputs[-1].state
    return outputs


@pytest.mark.slow
def test_secure_sum_and_metrics_equal_those_of_the_open_sum():
    kind = [(np.float16, [4]), (np.float32, []), (np.float32, [0])]
    rng = np.random.default_rng(0)

    def update(scale):
        half_array = (scale * rng.standard_normal(4)).astype(np.float16)
        return [half_array, np.float32(scale), np.zeros(0, np.float32)]

    rounds = [[update(0.1), update(9.0), update(np.inf)], [], [update(1e-4)]]
    outputs = (rounds_of(kind, rounds, secure_sum=secure_output) for secure_output in (True, False))
    for secure_output, open_output in zip(*outputs, strict=True):
        # A few steps of 2^-32 of the clip norm, and the rounding of the result itself.
        for secure_leaf, plain_leaf, rtol in zip(
            secure_output.result, open_output.result, (2.0**-10, 1e-6, 0), strict=True
        ):
            np.testing.assert_allclose(secure_leaf, plain_leaf, rtol=rtol, atol=1e-8)
        assert (
            secure_output.measurements["dp_query_metrics"]
            == open_output.measurements["dp_query_metrics"]
        )
        assert secure_output.measurements["dp"]["records"]["secure_upper_clipped_count"] == 0


def test_an_adaptive_clip_norm_is_refused():
    with refusal("does not go with secure_sum=True"):
        rounds_of(tff.TensorType(np.float32, [3]), [], quantile_clipping=QuantileClipping())


@pytest.mark.slow
@pytest.mark.parametrize("clip_norm", [0.1, 30.0])
def test_rounding_to_integers_does_not_lift_an_update_over_the_clip_norm(clip_norm):
    size = 50_000
    rng = np.random.default_rng(1)
    updates = [np.ones(size), rng.standard_normal(size), np.where(np.arange(size) == 7, 90.0, 0.0)]
    rounds = [[update.astype(np.float32)] for update in updates]
    kind = tff.TensorType(np.float32, [size])
    for output in rounds_of(kind, rounds, noise_multiplier=0.0, clip_norm=clip_norm):
        length = 3 * np.linalg.norm(output.result.astype(np.longdouble))
        # The mean itself is rounded to float32 after the sum, by 2^-24 at most.
        assert clip_norm * (1 - 1e-5) < length <= clip_norm * (1 + 2.0**-24)
