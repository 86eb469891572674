"""The slides' stationary errors: closed forms, the time domain, and simulation with power."""

import numpy as np
import pytest
import scipy.special
import scipy.stats

import fedmf
from fedmf.experiments.papers import slides_theory as theory
from tests import power
from tests.refusals import refusal

ONE = np.ones(1)
LOW = np.array([1.0, 0.25, 0.25, 0.25])


@pytest.mark.parametrize("eta", [0.01, 0.1, 0.5])
def test_closed_forms_of_mean_estimation(eta):
    independent, optimum = (
        theory.stationary_error(theory.independent(), eta, ONE),
        theory.stationary_error(theory.damped(eta), eta, ONE),
    )
    assert independent == pytest.approx(eta / (2 * (2 - eta)), rel=1e-12)
    K = scipy.special.ellipk((1 - eta) ** 2)  # of the modulus 1 - eta
    assert optimum == pytest.approx(eta**2 / 2 * (2 / np.pi * K) ** 2, rel=1e-12)
    assert theory.stationary_error(theory.best(eta, ONE, sampled=False), eta, ONE) == pytest.approx(
        optimum, rel=1e-12
    )
    nu = 1 - np.sqrt(2 * eta) / 2
    expected = eta**2 / 2 * (1 + nu**2 - 2 * nu * (1 - eta)) / ((1 - nu**2) * eta * (2 - eta))
    assert theory.stationary_error(theory.anti_pgd(nu), eta, ONE) == pytest.approx(
        expected, rel=1e-12
    )


def test_orders_of_mean_estimation():
    eta = 1e-3
    assert theory.stationary_error(theory.damped(eta), eta, ONE) == pytest.approx(
        eta**2 * np.log(8 / eta) ** 2 / (2 * np.pi**2), rel=2e-3
    )
    assert theory.stationary_error(
        theory.anti_pgd(1 - np.sqrt(2 * eta)), eta, ONE
    ) == pytest.approx(eta**1.5 / np.sqrt(8), rel=2e-2)


NOISES = {
    "independent": theory.independent(),
    "nu-FTRL": theory.damped(0.1),
    "anti-PGD": theory.anti_pgd(0.6),
    "best": theory.best(0.1, LOW, sampled=False),
}


@pytest.mark.parametrize("name", NOISES)
def test_the_formula_is_the_limit_of_the_time_domain(name):
    """The last error is a linear function of the draws: its variance is a sum of squares of a row
    of N.
    """
    noise, eta, n = NOISES[name], 0.1, 600
    mechanism = noise.mechanism(n)
    sensitivity = fedmf.sensitivity(mechanism, fedmf.Participation(rounds=n, schema="single")).value
    decay = np.power.outer(1 - eta * LOW, np.arange(n)[::-1])
    variances = np.square(eta * sensitivity * decay @ mechanism.noising()).sum(axis=1) / 2
    assert theory.stationary_error(noise, eta, LOW) == pytest.approx(
        float(LOW @ variances), rel=1e-9
    )


@pytest.mark.parametrize("name", ["independent", "nu-FTRL", "anti-PGD"])
def test_simulated_mean_estimation_is_that_of_the_formula(name):
    """Exact chi-square test that would see a tenth more; its control is noise of another nu."""
    noise, eta = NOISES[name], 0.1
    chains = power.trials_that_see(lambda n: power.missed_by_variance(n, 1.1))
    found = theory.simulated(
        noise, eta, ONE, rounds=theory.rounds_for(noise, eta, ONE), chains=chains, seed=3
    )

    def p(expected):
        tails = (
            scipy.stats.chi2.cdf(found.sum() / expected, chains),
            scipy.stats.chi2.sf(found.sum() / expected, chains),
        )
        return 2 * min(tails)

    assert p(theory.stationary_error(noise, eta, ONE)) > power.FALSE_POSITIVE_RATE
    other = theory.damped(0.5)
    assert (
        abs(theory.stationary_error(other, eta, ONE) / theory.stationary_error(noise, eta, ONE) - 1)
        > 0.1
    )
    assert p(theory.stationary_error(other, eta, ONE)) < power.FALSE_POSITIVE_RATE


@pytest.mark.parametrize("name", ["independent", "nu-FTRL"])
def test_simulated_regression_is_that_of_the_formula_with_the_examples_own_variance(name):
    """A normal test of a mean at 5 standard errors; 10 of them are less than the departure, the
    slides' formula without examples.
    """
    noise, eta, spectrum, chains = NOISES[name], 0.1, np.ones(4), 6000
    rounds = theory.rounds_for(noise, eta, spectrum)
    found = theory.simulated(
        noise, eta, spectrum, rounds=rounds, chains=chains, seed=5, sampled=True
    )
    deviation = found.std(ddof=1) / np.sqrt(chains)
    right, wrong = (
        theory.stationary_error(noise, eta, spectrum, sampled=sampled) for sampled in (True, False)
    )
    assert right - wrong > 10 * deviation
    assert abs(found.mean() - right) < 5 * deviation
    assert abs(found.mean() - wrong) > 5 * deviation


def test_no_noise_beats_the_best():
    for sampled in (False, True):
        least = theory.stationary_error(
            theory.best(0.1, LOW, sampled=sampled), 0.1, LOW, sampled=sampled
        )
        others = [theory.damped(nu) for nu in (0.01, 0.025, 0.1, 0.5)] + [
            theory.anti_pgd(0.7),
            theory.independent(),
        ]
        assert all(
            theory.stationary_error(noise, 0.1, LOW, sampled=sampled) > least for noise in others
        )


def test_rates_at_which_examples_diverge_are_refused():
    with refusal(r"eta=0\.4 is too large"):
        theory.stationary_error(theory.independent(), 0.4, np.ones(4), sampled=True)
