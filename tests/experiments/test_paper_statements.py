"""Numbered statements of the papers on which no code rests, on small instances."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp
from numpy.testing import assert_allclose

import fedmf
from fedmf.experiments.papers import denisov, multi_epoch
from fedmf.mechanisms import FFTMechanism
from fedmf.participation.vector_bound import vector_sensitivity_bounds
from fedmf.privacy.amplification import sampled_gaussian_epsilon
from fedmf.privacy.gaussian import gaussian_epsilon
from fedmf.privacy.random_allocation import random_allocation_epsilon
from tests.paper_figures import VECTOR_COUNTEREXAMPLE

SIZES = pytest.mark.parametrize("n", [1, 2, 7, 32])


def spectrum(n):
    """Returns v^DFT of the multi-epoch paper's App. J.1."""
    return np.fft.fft(np.repeat([1.0, 0.0], n))


def single(n):
    return fedmf.Participation(rounds=n, schema="single")


@SIZES
def test_algorithm_1_is_rho_zcdp(n):
    """Multi-epoch paper, Thm. J.2: rho at the noise that Algorithm 1 adds for it."""
    rho = 0.3
    variance = np.abs(spectrum(n)).sum() / (4 * n * rho)
    sensitivity = fedmf.sensitivity(FFTMechanism(rounds=n, decoder="plain"), single(n)).value
    assert_allclose(sensitivity**2 / (2 * variance), rho, rtol=1e-12)


@SIZES
def test_algorithm_1_has_the_stated_mean_squared_error(n):
    """Multi-epoch paper, Thm. J.3 and Cor. J.1, at rho = 1/2.

    With unit variance of the real and of the imaginary part, which Thm. J.2 needs, the error of
    both parts is half of the printed formula, and that of the real part, which fedmf adds, a
    quarter.
    """
    norm = np.abs(spectrum(n)).sum()
    printed_error = norm**2 / n**2
    assert_allclose(multi_epoch.analytic_error(n), printed_error, rtol=1e-9)
    # Both parts of F^* sqrt(Sigma) w have this variance in each of the 2n entries.
    both_parts = norm / (2 * n) * (2 * norm / (2 * n))
    assert_allclose(both_parts, printed_error / 2)
    plain = FFTMechanism(rounds=n, decoder="plain")
    real_part = fedmf.rmse(plain, fedmf.prefix_sum(n), single(n)) ** 2
    assert_allclose(real_part, printed_error / 4, rtol=1e-9)


def test_k_participations_cost_at_most_k_squared_rho():
    """Multi-epoch paper, Thm. 4.1, over all patterns of k rounds and all signs."""
    C = FFTMechanism(rounds=7, decoder="plain").encoder()
    once = np.linalg.norm(C, axis=0).max()
    for k in (2, 3):
        signs = np.array(list(itertools.product([-1.0, 1.0], repeat=k)))
        patterns = itertools.combinations(range(7), k)
        largest = max(np.linalg.norm(C[:, p] @ signs.T, axis=0).max() for p in patterns)
        # Negative control: orthogonal columns would have sqrt(k).
        assert 1.1 * math.sqrt(k) * once < largest <= k * once


def gram_and_scalar_sensitivity(C):
    """Returns C^T C and the squared sensitivity for contributions of one dimension."""
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=C.shape[1])))
    return C.T @ C, (np.linalg.norm(C @ signs.T, axis=0) ** 2).max()


@pytest.mark.parametrize("seed", range(8))
def test_contributions_of_one_dimension_decide_the_sensitivity(seed):
    """Multi-epoch paper, Thm. H.1, with the constant that its proof gives."""
    rng = np.random.default_rng(seed)
    for k in (1, 2):
        X, scalar = gram_and_scalar_sensitivity(rng.normal(size=(5, k)))
        assert_allclose(vector_sensitivity_bounds(X)[1], scalar, rtol=1e-5)
    X, scalar = gram_and_scalar_sensitivity(np.abs(rng.normal(size=(5, 4))))
    assert_allclose(vector_sensitivity_bounds(X)[1], scalar, rtol=1e-5)
    C = rng.normal(size=(4, 4))
    X, scalar = gram_and_scalar_sensitivity(C)
    assert np.trace(X) <= scalar * (1 + 1e-12)  # orthogonal rows of G
    # Squared, where the paper prints (pi / 2)^2.
    assert vector_sensitivity_bounds(X)[1] <= math.pi / 2 * scalar
    # Rows of G of l1 norm 1 are mixtures of signed unit vectors.
    units = np.concatenate([np.eye(3), -np.eye(3)])
    for rows in itertools.product(range(6), repeat=4):
        assert np.linalg.norm(C @ units[list(rows)]) ** 2 <= scalar * (1 + 1e-12)


def test_contributions_of_one_dimension_do_not_decide_it_without_a_condition():
    """Negative control of Thm. H.1: the multi-epoch paper's counterexample of App. H.2."""
    X, scalar = gram_and_scalar_sensitivity(VECTOR_COUNTEREXAMPLE)
    attained, _ = vector_sensitivity_bounds(X)
    assert_allclose([scalar, attained], [1.0, 1.125], rtol=1e-6)


def test_phi_is_a_contraction_at_its_fixed_point():
    """Denisov et al. 2022, Thm. 3.3 and Thm. E.1: the derivative is selfadjoint in a weighted norm,
    so that its norm there is its largest eigenvalue.
    """

    def phi(v):
        return denisov.geometric_mean(gram, v)[1]

    n = 24
    for workload in (fedmf.prefix_sum(n), fedmf.momentum_sgd(n, 0.5)):
        gram = workload.matrix.T @ workload.matrix
        v = np.ones(n)
        for _ in range(200):
            v = phi(v)
        assert_allclose(phi(v), v, rtol=1e-9)
        shifts = 1e-5 * np.diag(v)
        derivative = [(phi(v + s) - phi(v - s)) / (2 * s.max()) for s in shifts]
        eigenvalues = np.linalg.eigvals(np.array(derivative).T)
        assert np.abs(eigenvalues.imag).max() < 1e-6
        largest = np.abs(eigenvalues).max()
        assert largest < 1.0
        # The iteration falls to the fixed point at this rate, and no faster in general.
        distance = 1e-3 * v * np.random.default_rng(0).normal(size=n)
        steps = [v + distance]
        for _ in range(12):
            steps.append(phi(steps[-1]))
        lengths = [np.linalg.norm((step - v) / v) for step in steps]
        assert lengths[-1] < 2 * largest**12 * lengths[0]


def test_sampling_from_parts_gains_four_times_the_square_of_the_probability():
    """Banded paper, Example F.2, in Renyi privacy of order alpha."""
    bands, rounds, clients, batch, sigma = 4, 256, 6400, 16, 4.0
    releases = rounds // bands
    probability = batch * bands / clients
    event = dp_accounting.PoissonSampledDpEvent(probability, dp_accounting.GaussianDpEvent(sigma))
    for alpha in (2, 4, 8):
        accountant = rdp.RdpAccountant([alpha])
        accountant.compose(event, releases)
        (exact,) = accountant._rdp
        bound = 2 * alpha * batch**2 * bands * rounds / (sigma * clients) ** 2
        without_sampling = alpha * releases / (2 * sigma**2)
        assert_allclose(bound, 4 * probability**2 * without_sampling)
        assert bound / 8 < exact <= bound
    # The accountant of fedmf, which is tighter, agrees.
    delta = 1e-6
    orders = range(2, 12)
    renyi = np.array([2 * a * probability**2 * releases / sigma**2 for a in orders])
    from_renyi = rdp.compute_epsilon(list(orders), renyi, delta)[0]
    epsilon = sampled_gaussian_epsilon(sigma, delta, probability=probability, compositions=releases)
    assert epsilon < from_renyi < gaussian_epsilon(sigma / math.sqrt(releases), delta)


def test_shuffling_gains_the_square_root_of_the_number_of_releases():
    """Banded paper, Example F.3, for one epoch in which all other clients contribute nothing.

    Then a random place in a shuffled order is a uniform one of the n / b releases.
    """
    sigma, delta = 4.0, 1e-8
    unshuffled = gaussian_epsilon(sigma, delta)
    places = (16, 64)
    epsilons = [random_allocation_epsilon(sigma, delta, positions=t) for t in places]
    for t, epsilon in zip(places, epsilons, strict=True):
        assert epsilon < unshuffled * math.sqrt(math.log(1 / delta) / t)
    assert epsilons[0] / epsilons[1] == pytest.approx(2.0, rel=0.15)


def test_sums_of_exponentials_are_rational_functions_and_linear_recurrences():
    """slides, Thm. BLT: the coefficients beta_t of two exponentials."""
    alpha = np.array([0.3, 0.2])
    decay = np.array([0.9, 0.5])
    beta = (alpha * decay ** np.arange(12)[:, None]).sum(1)
    q = np.array([decay.sum(), -decay.prod()])
    for t in range(2, 12):
        assert beta[t] == pytest.approx(q @ beta[[t - 1, t - 2]], rel=1e-12)
    # x beta(x) = numerator / denominator as power series, the denominator of degree 2.
    denominator = np.concatenate([[1.0], -q])
    numerator = np.convolve(beta, denominator)[:12]
    assert_allclose(numerator[2:], 0.0, atol=1e-15)
    assert np.abs(numerator[:2]).min() > 0.1
