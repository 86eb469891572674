"""FFT mechanisms: the paper's matrices, many rounds without matrices, and sensitivities."""

import numpy as np
import pytest
import scipy.linalg
from numpy.testing import assert_allclose

import fedmf
from fedmf.mechanisms import FFTMechanism
from fedmf.mechanisms.client_sensitivity import ClientSensitivity
from fedmf.mechanisms.error import loss, squared_rows
from fedmf.mechanisms.fft import PRECISION
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.workloads import identity, momentum_sgd, prefix_sum
from tests.mechanisms.schemas import epochs, every_round, fitted, separated, single
from tests.refusals import refusal

SIZES = pytest.mark.parametrize("n", [1, 2, 3, 8, 33])


def complex_factors(n):
    """Returns B, C and F of the multi-epoch paper's App. K and Alg. 1, as written there: (n, 2n),
    (2n, n), (2n, 2n), complex.
    """
    k = np.arange(2 * n)
    F = np.exp(-2j * np.pi * np.outer(k, k) / (2 * n)) / np.sqrt(2 * n)
    v = np.repeat([1.0, 0.0], n)
    sigma = np.array([(v * np.exp(-2j * np.pi * row * k / (2 * n))).sum() for row in k])
    sigma[np.abs(sigma) < 1e-9] = 0.0
    square_root = np.diag(np.sqrt(sigma))
    return F.conj().T[:n] @ square_root, square_root @ F[:, :n], F


@SIZES
def test_encoder_and_plain_decoder_are_the_papers(n):
    """Compares with the complex factors: real (multi-epoch paper, Lem. K.1), B_F C_F (Prop. K.1),
    and circulants (Thm. J.1).
    """
    B, C, F = complex_factors(n)
    assert_allclose(B @ C, np.tri(n), atol=1e-10)
    mechanism = FFTMechanism(rounds=n, decoder="plain")
    assert_allclose(mechanism.encoder(), F.conj().T @ C, atol=1e-10)
    assert_allclose(np.tri(n) @ mechanism.noising(), B @ F, atol=1e-10)


@SIZES
def test_optimal_decoder_is_the_pseudoinverse(n):
    """Compares X, which determines privacy, and the covariance of the noise."""
    optimal_mechanism, plain_mechanism = (
        FFTMechanism(rounds=n, decoder=name) for name in ("optimal", "plain")
    )
    C_F = plain_mechanism.encoder()

    def factors(N):
        return scipy.linalg.eigh(N @ N.T, np.linalg.inv(C_F.T @ C_F), eigvals_only=True)

    assert_allclose(factors(optimal_mechanism.noising()), 1.0, rtol=0, atol=PRECISION)
    if n > 1:  # Negative control: the other decoder has more noise in some direction.
        assert factors(plain_mechanism.noising()).max() > 1.1


def test_the_plain_decoder_inverts_many_rounds_to_all_digits():
    # The even frequencies are zero; computed by an FFT they would be 1e-16 and their roots 1e-8.
    mechanism = FFTMechanism(rounds=1000, decoder="plain")
    assert np.abs(mechanism.noising() @ mechanism.encoder() - np.eye(1000)).max() < 1e-12


def test_fits_take_a_decoder_and_plain_refuses_many_rounds():
    assert fitted(single(6), "fft").decoder == "optimal"
    assert fitted(single(6), "fft", decoder="plain").decoder == "plain"
    plain_mechanism = FFTMechanism(rounds=1_000_000, decoder="plain")
    for form_matrices in (plain_mechanism.encoder, plain_mechanism.noising, plain_mechanism.stream):
        with refusal("rounds=1000000.*plain.*use decoder='optimal'"):
            form_matrices()
    with refusal("GiB"):
        FFTMechanism(rounds=1_000_000).encoder()


def test_loss_without_matrices_is_that_of_the_pseudoinverse():
    n = 300
    rates = np.linspace(1.0, 0.1, n)
    C_F = FFTMechanism(rounds=n, decoder="plain").encoder()
    N = np.linalg.solve(C_F.T @ C_F, C_F.T)  # multi-epoch paper, Prop. K.2
    for workload in (prefix_sum(n), momentum_sgd(n, 0.9, rates)):
        squared_loss = np.sum((workload.matrix @ N) ** 2)
        for participation in (single(n), epochs(n, n // 20)):
            expected = sensitivity(C_F, participation).value ** 2 * squared_loss
            fft_loss = loss(FFTMechanism(rounds=n), workload, participation)
            assert_allclose(fft_loss, expected, rtol=2 * PRECISION)


def test_noise_of_many_rounds_has_the_covariance_of_the_paper():
    n = 5003
    mechanism = FFTMechanism(rounds=n)
    # X within PRECISION of the paper's: as multiples of |Sigma|, where that is not 0.
    x = mechanism.toeplitz_gram()
    # App. J of the multi-epoch paper, by an FFT.
    spectrum = np.abs(np.fft.fft(np.repeat([1.0, 0.0], n)))
    fft_spectrum = np.zeros(2 * n)
    fft_spectrum[0] = n
    # x - 1/2 changes its sign after n entries.
    fft_spectrum[1::2] = np.fft.fft(np.concatenate([x, 1.0 - x[:1], 1.0 - x[1:]]))[1::2].real
    assert_allclose(fft_spectrum[1::2], spectrum[1::2], rtol=2 * PRECISION)
    # The noise vectors x of N z have x^T X x = |z|^2, as C N = I; X x = C^T z ends with z's last
    # entry.
    stream = mechanism.stream()
    Z = np.random.default_rng(0).standard_normal((n, 2))
    Z[n // 2 :, 1] = 0.0
    rows = np.stack(list(stream.rows(Z.__getitem__)))
    products = scipy.linalg.matmul_toeplitz(x, rows)
    assert_allclose(rows.T @ products, Z.T @ Z, rtol=0, atol=1e-8 * n)
    assert np.abs(products[n // 2 :, 1]).max() < 1e-8
    assert stream.width < 50


@pytest.mark.slow
def test_a_file_of_many_rounds_is_read_without_matrices(tmp_path, monkeypatch):
    FFTMechanism(rounds=20_011).save(tmp_path / "fft.npz")
    monkeypatch.setattr(FFTMechanism, "encoder", lambda self: pytest.fail("a dense encoder"))
    assert fedmf.load_mechanism(tmp_path / "fft.npz").rounds == 20_011
    gram = FFTMechanism.toeplitz_gram
    monkeypatch.setattr(FFTMechanism, "toeplitz_gram", lambda self: 1.001 * gram(self))
    with pytest.raises(ValueError, match="its noise is not that of its Gram matrix"):
        fedmf.load_mechanism(tmp_path / "fft.npz")


@pytest.mark.parametrize("workload", [prefix_sum(500), identity(500), momentum_sgd(500, 0.9)])
def test_errors_in_closed_form_are_those_of_the_noise_that_is_made(workload):
    mechanism = FFTMechanism(rounds=500)
    N = np.linalg.inv(mechanism.encoder())
    expected = np.square(workload.matrix @ N).sum(axis=1)
    assert_allclose(squared_rows(mechanism, workload), expected, rtol=1e-9)
    column = mechanism.stream().buffers.first_column()
    assert_allclose(column, N[:, 0], atol=1e-12)


def attained(x, rounds, signs):
    """Returns the root of the sum of x_|s - t| over pairs of rounds, with these signs."""
    return np.sqrt(signs @ x[np.abs(np.subtract.outer(rounds, rounds))] @ signs)


@pytest.mark.parametrize("decoder", ["plain", "optimal"])
def test_sensitivity_of_many_rounds_is_attained(decoder):
    n = 20_000
    b = 4000
    mechanism = FFTMechanism(rounds=n, decoder=decoder)
    x = mechanism.toeplitz_gram()
    rounds = np.arange(0, n, b)
    bound = sensitivity(mechanism, epochs(n, b))
    assert bound.exact
    assert_allclose(bound.value, attained(x, rounds, np.ones(5)), rtol=1e-12)
    # The first and the last round of all cost more than the first two.
    bound_of_two = sensitivity(mechanism, separated(n, b, 2))
    assert bound_of_two.exact
    attained_by_ends = attained(x, np.array([0, n - 1]), np.array([1, -1]))
    assert_allclose(bound_of_two.value, attained_by_ends, rtol=1e-12)
    many_participations = separated(n, 100, 40)
    attained_value = attained(x, 100 * np.arange(40), np.ones(40))
    assert (
        attained_value <= sensitivity(mechanism, many_participations).value < 1.02 * attained_value
    )
    # A client with too many rounds to sharpen is bounded by the sum of all magnitudes.
    every_round_bound = sensitivity(mechanism, every_round(n))
    assert attained(x, np.arange(5000), np.ones(5000)) <= every_round_bound.value
    assert not every_round_bound.exact


def test_clients_of_many_rounds_are_bounded_by_their_counts():
    mechanism = FFTMechanism(rounds=20_000)
    rounds = np.array([3, 4000, 9000, 19_990])
    attained_value = attained(mechanism.toeplitz_gram(), rounds, np.array([1.0, 1.0, 1.0, -1.0]))
    assert attained_value <= ClientSensitivity(mechanism).of(rounds).value < 1.2 * attained_value
