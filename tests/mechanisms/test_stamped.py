"""Stamped mechanisms: their decoders, and stamping of every family."""

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
from tests.mechanisms.schemas import epochs

RECTANGULAR = [
    TreeMechanism(rounds=5, decoder="online"),
    TreeMechanism(rounds=5, decoder="online", completion="virtual"),
    FFTMechanism(rounds=5, decoder="plain"),
]


@pytest.mark.parametrize("stamped_part", RECTANGULAR, ids=["tree", "completed tree", "fft"])
def test_optimal_decoder_is_the_pseudoinverse_of_the_whole(stamped_part):
    mechanism = stamp(stamped_part, 3, decoder="optimal")
    assert_allclose(mechanism.noising(), np.linalg.pinv(mechanism.encoder()), atol=1e-10)
    participation = epochs(15, 5)
    for workload in (fedmf.prefix_sum(15), fedmf.momentum_sgd(15)):
        restarted_mechanism = stamp(stamped_part, 3, decoder="restarted")
        assert fedmf.loss(mechanism, workload, participation) < fedmf.loss(
            restarted_mechanism, workload, participation
        )


@every_mechanism
def test_stamping_repeats_the_matrices_of_every_family(build):
    mechanism_of_part = build(4)
    mechanism = stamp(mechanism_of_part, 3, decoder="restarted")
    assert np.array_equal(mechanism.encoder(), np.kron(np.eye(3), mechanism_of_part.encoder()))
    assert_allclose(
        mechanism.noising(), np.kron(np.eye(3), mechanism_of_part.noising()), atol=1e-12
    )
    assert mechanism.stream().rounds == 12
