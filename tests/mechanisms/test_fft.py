import numpy as np
import pytest
from numpy.testing import assert_allclose

import fedmf
from fedmf.mechanisms import FFTMechanism
from fedmf.workloads import momentum_sgd, prefix_sum
from tests.mechanisms.schemas import single

SIZES = pytest.mark.parametrize("n", [1, 2, 3, 8, 33])


def complex_factors(n):
    """B and C of the multi-epoch paper's App. K as written there, and F; (n, 2n), (2n, n), (2n,
    2n), complex.
    """
    k = np.arange(2 * n)
    F = np.exp(-2j * np.pi * np.outer(k, k) / (2 * n)) / np.sqrt(2 * n)
    v = np.repeat([1.0, 0.0], n)
    sigma = np.array([(v * np.exp(-2j * np.pi * row * k / (2 * n))).sum() for row in k])
    sigma[np.abs(sigma) < 1e-9] = 0.0
    root = np.diag(np.sqrt(sigma))
    return F.conj().T[:n] @ root, root @ F[:, :n], F


@SIZES
def test_encoder_and_plain_decoder_are_the_papers(n):
    B, C, F = complex_factors(n)
    assert_allclose(B @ C, np.tri(n), atol=1e-10)
    mechanism = FFTMechanism(rounds=n, decoder="plain")
    assert_allclose(mechanism.encoder(), F.conj().T @ C, atol=1e-10)  # Lem. K.1: real
    assert_allclose(np.tri(n) @ mechanism.noising(), B @ F, atol=1e-10)


@SIZES
def test_optimal_decoder_is_the_pseudoinverse(n):
    mechanism = FFTMechanism(rounds=n)
    assert_allclose(mechanism.noising(), np.linalg.pinv(mechanism.encoder()), atol=1e-10)


def test_many_rounds_keep_all_digits():
    # The even frequencies are zero; computed by an FFT they would be 1e-16 and their roots 1e-8.
    mechanism = FFTMechanism(rounds=1000, decoder="plain")
    assert np.abs(mechanism.noising() @ mechanism.encoder() - np.eye(1000)).max() < 1e-12


@SIZES
def test_error_in_closed_form(n):
    # Multi-epoch paper, Eq. 45: the norm of the spectrum is n plus 1 / sin(pi k / 2n) over the n
    # odd k below 2n (Eq. 46 is misprinted: its sum ends halfway; Cor. J.1 has the right end). A
    # column of C_F and a row of B_F have 1 / 2n of it.
    norm = n + (1.0 / np.sin(np.pi * np.arange(1, 2 * n, 2) / (2 * n))).sum()
    mechanism = FFTMechanism(rounds=n, decoder="plain")
    assert_allclose(fedmf.sensitivity(mechanism, single(n)).value ** 2, norm / (2 * n), rtol=1e-12)
    assert_allclose(fedmf.loss(mechanism, prefix_sum(n), single(n)), norm**2 / (4 * n), rtol=1e-12)


@pytest.mark.parametrize("n", [512])
def test_near_the_lower_bound_of_all_factorizations(n):
    # Multi-epoch paper, App. J (Henzinger et al., Theorem 2), rho = 1/2: the noise is "within a
    # factor of 1.2x".
    bound = ((2.0 + np.log((2 * n + 1) / 3) + np.log(2 * n + 1) / (2 * n)) / np.pi) ** 2
    for decoder in ("plain", "optimal"):
        mean_squared = (
            fedmf.loss(FFTMechanism(rounds=n, decoder=decoder), prefix_sum(n), single(n)) / n
        )
        assert bound < mean_squared < 1.2**2 * bound


def test_fit():
    assert fedmf.fit(prefix_sum(6), single(6), family="fft").decoder == "optimal"
    assert fedmf.fit(momentum_sgd(6), single(6), family="fft", decoder="plain").decoder == "plain"
