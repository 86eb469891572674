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


def error(noise, eta=0.1, spectrum=ONE, **sampled):
    return theory.stationary_error(noise, eta, spectrum, **sampled)


@pytest.mark.parametrize("eta", [0.001, 0.1, 0.5])
def test_mean_estimation_has_the_closed_forms(eta):
    K = scipy.special.ellipk((1 - eta) ** 2)  # of the modulus 1 - eta
    optimum = eta**2 / 2 * (2 / np.pi * K) ** 2
    nu = 1 - np.sqrt(2 * eta) / 2
    anti = eta**2 / 2 * (1 + nu**2 - 2 * nu * (1 - eta)) / ((1 - nu**2) * eta * (2 - eta))
    for noise, expected in (
        (theory.independent(), eta / (2 * (2 - eta))),
        (theory.damped(eta), optimum),
        (theory.best(eta, ONE, sampled=False), optimum),
        (theory.anti_pgd(nu), anti),
    ):
        assert error(noise, eta) == pytest.approx(expected, rel=1e-12)


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
    assert error(noise, eta, LOW) == pytest.approx(float(LOW @ variances), rel=1e-9)


def simulated(noise, spectrum, chains, **options):
    rounds = theory.rounds_for(noise, 0.1, spectrum)
    return theory.simulated(noise, 0.1, spectrum, rounds=rounds, chains=chains, **options)


@pytest.mark.parametrize("name", ["independent", "nu-FTRL", "anti-PGD"])
def test_simulated_mean_estimation_is_that_of_the_formula(name):
    """Exact chi-square test that would see a tenth more; its control is noise of another nu."""
    chains = power.trials_that_detect(lambda n: power.missed_by_variance(n, 1.1))
    total = simulated(NOISES[name], ONE, chains, seed=3).sum()
    right, wrong = error(NOISES[name]), error(theory.damped(0.5))

    def p(expected):
        chi2 = scipy.stats.chi2
        return 2 * min(chi2.cdf(total / expected, chains), chi2.sf(total / expected, chains))

    assert p(right) > power.FALSE_POSITIVE_RATE
    assert abs(wrong / right - 1) > 0.1
    assert p(wrong) < power.FALSE_POSITIVE_RATE


@pytest.mark.parametrize("name", ["independent", "nu-FTRL"])
def test_simulated_regression_is_that_of_the_formula_with_the_examples_own_variance(name):
    """A normal test of a mean at 5 standard errors; 10 of them are less than the departure, the
    slides' formula without examples.
    """
    spectrum, chains = np.ones(4), 6000
    found = simulated(NOISES[name], spectrum, chains, seed=5, sampled=True)
    deviation = found.std(ddof=1) / np.sqrt(chains)
    right, wrong = (error(NOISES[name], 0.1, spectrum, sampled=of) for of in (True, False))
    assert right - wrong > 10 * deviation
    assert abs(found.mean() - right) < 5 * deviation
    assert abs(found.mean() - wrong) > 5 * deviation


@pytest.mark.parametrize("sampled", [False, True])
def test_no_noise_beats_the_best(sampled):
    least = error(theory.best(0.1, LOW, sampled=sampled), 0.1, LOW, sampled=sampled)
    others = [theory.damped(nu) for nu in (0.01, 0.025, 0.1, 0.5)]
    for noise in (*others, theory.anti_pgd(0.7), theory.independent()):
        assert error(noise, 0.1, LOW, sampled=sampled) > least


def test_rates_at_which_examples_diverge_are_refused():
    with refusal(r"eta=0\.4 is too large"):
        error(theory.independent(), 0.4, np.ones(4), sampled=True)
