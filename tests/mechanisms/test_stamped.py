import numpy as np
import pytest
from numpy.testing import assert_allclose

import fedmf
from fedmf.mechanisms import (
    FFTMechanism,
    TreeMechanism,
    stamp,
)
from tests.mechanisms.registry import every_mechanism
from tests.mechanisms.schemas import epochs, single

RECTANGULAR = [
    TreeMechanism(rounds=5, decoder="online"),
    TreeMechanism(rounds=5, decoder="online", completion="virtual"),
    FFTMechanism(rounds=5, decoder="plain"),
]
RECTANGULAR_PARTS = pytest.mark.parametrize(
    "part", RECTANGULAR, ids=["tree", "completed tree", "fft"]
)


@RECTANGULAR_PARTS
def test_restarted_prefix_sums_fix_the_sums_of_finished_parts(part):
    # Multi-epoch paper, App. D.4: B on the block diagonal, its last row again and again below.
    n, times = part.rounds, 3
    B = np.tri(n) @ part.noising()
    m = B.shape[1]
    expected = np.zeros((times * n, times * m))
    for i in range(times):
        expected[i * n : (i + 1) * n, i * m : (i + 1) * m] = B
        expected[(i + 1) * n :, i * m : (i + 1) * m] = B[-1]
    found = np.tri(times * n) @ stamp(part, times, decoder="restarted").noising()
    assert_allclose(found, expected, atol=1e-12)


@RECTANGULAR_PARTS
def test_optimal_decoder_is_the_pseudoinverse_of_the_whole(part):
    mechanism = stamp(part, 3, decoder="optimal")
    assert_allclose(mechanism.noising(), np.linalg.pinv(mechanism.encoder()), atol=1e-10)
    participation = epochs(15, 5)
    for workload in (fedmf.prefix_sum(15), fedmf.momentum_sgd(15)):
        restarted = stamp(part, 3, decoder="restarted")
        assert fedmf.loss(mechanism, workload, participation) < fedmf.loss(
            restarted, workload, participation
        )


@every_mechanism
def test_every_family_can_be_stamped(build):
    part = build(4)
    mechanism = stamp(part, 3, decoder="restarted")
    assert np.array_equal(mechanism.encoder(), np.kron(np.eye(3), part.encoder()))
    assert_allclose(mechanism.noising(), np.kron(np.eye(3), part.noising()), atol=1e-12)
    assert mechanism.stream().rounds == 12


def test_a_client_of_one_part_sees_one_part():
    part = TreeMechanism(rounds=4)
    once = fedmf.sensitivity(part, single(4)).value
    assert fedmf.sensitivity(stamp(part, 3), single(12)).value == once
    # One participation in each part: independent parts, so that squares add up.
    assert_allclose(
        fedmf.sensitivity(stamp(part, 3), epochs(12, 4)).value ** 2, 3 * once**2, rtol=1e-12
    )
