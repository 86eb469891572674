"""Tests of the tails: cut noise and other tails are detected, honest noise passes."""

import math

import numpy as np
import pytest
import scipy.special
import scipy.stats

from fedmf.audits import tails
from fedmf.audits.noise import audit_noise
from tests.power import (
    FALSE_POSITIVE_RATE,
    MISS_RATE,
    missed_by_count,
    trials_that_detect,
)

THRESHOLD = FALSE_POSITIVE_RATE / 64
ENTRIES = tails.entries_to_see(4.0, threshold=THRESHOLD)


def cut_noise(cut, size, rng):
    """Draws standard normals again if they are beyond `cut`, and scales them to variance 1."""
    truncated_noise = scipy.stats.truncnorm(-cut, cut).rvs(size, random_state=rng)
    return truncated_noise * (tails.end_of_noise(cut) / cut)


def worst_p_value(values):
    """Returns the smallest p-value of the tests of the tails."""
    return min(finding.p_value for finding in tails.tail_findings(values))


def test_p_values_of_honest_noise_are_valid():
    """Counts p-values below 0.05 of each test: at most one in twenty."""
    rng = np.random.default_rng(7)
    error_rate = FALSE_POSITIVE_RATE / (2 * tails.NUM_TESTS)
    num_audits = trials_that_detect(lambda audits: missed_by_count(audits, 0.05, 0.15, error_rate))
    p_values = np.array(
        [
            [finding.p_value for finding in tails.tail_findings(rng.standard_normal(20_000))]
            for _ in range(num_audits)
        ]
    )
    assert p_values.shape[1] == tails.NUM_TESTS
    max_count = scipy.stats.binom.isf(error_rate, num_audits, 0.05)
    assert ((p_values < 0.05).sum(axis=0) <= max_count).all()
    # The p-values do fall below the level: a test whose p-values never did could not fail.
    assert (p_values.min(axis=0) < 0.05).all()


def test_moment_bound_is_above_the_exact_p_value():
    """Compares with the exact p-values of a single entry."""
    for size in (2.5, 3.0, 3.5, 3.99):
        mean = size**4 - 6 * size**2
        assert 2 * scipy.stats.norm.sf(size) <= tails.moment_p_value(mean, 1) <= 1
    # The function f falls from 0 to -9 at sqrt(3), and then rises.
    low_mean = -8.99
    roots = np.sqrt(3 + np.array([-1.0, 1.0]) * math.sqrt(9 + low_mean))
    exact_p_value = 2 * float(np.diff(scipy.stats.norm.cdf(roots))[0])
    assert exact_p_value < tails.moment_p_value(low_mean, 1) < 1
    # Beyond all values of a mean the bound is small, and still a number.
    assert 0 <= tails.moment_p_value(-10.0, 1000) < 1e-100
    assert 0 <= tails.moment_p_value(161.0, 1000) < 1e-100


@pytest.mark.parametrize("cut", [2.5, 3.0, 3.5, 4.0])
def test_noise_that_is_cut_off_is_detected_with_certainty(cut):
    entries = tails.entries_to_see(cut, threshold=THRESHOLD)
    assert tails.power(cut, entries, threshold=THRESHOLD) == 1
    assert tails.power(cut, entries // 2, threshold=THRESHOLD) < 0.999
    rng = np.random.default_rng(1)
    assert worst_p_value(cut_noise(cut, entries, rng)) < THRESHOLD
    assert worst_p_value(rng.standard_normal(entries)) > THRESHOLD
    unseen_cut = tails.smallest_unseen_cut(entries, threshold=THRESHOLD)
    assert cut <= unseen_cut < cut + 0.01
    assert tails.smallest_unseen_cut(100, threshold=THRESHOLD) == 0


@pytest.mark.parametrize("left", [0.0, 1e-3])
def test_noise_missing_in_one_entry_of_a_thousand_is_detected(left):
    """Tests noise without some entries, or with a thousandth of it: they are within 0.001."""
    chance_within = float(scipy.special.erf(1e-3 / math.sqrt(2)))
    added_chance = 1e-3 * (scipy.stats.norm.cdf(1) * 2 - 1 if left else 1)
    assert (
        missed_by_count(ENTRIES, chance_within, chance_within + added_chance, THRESHOLD)
        <= MISS_RATE
    )
    rng = np.random.default_rng(1)
    z = rng.standard_normal(ENTRIES)
    assert worst_p_value(np.where(rng.random(ENTRIES) < 1e-3, left, 1) * z) < THRESHOLD


@pytest.mark.parametrize("step", [2e-3, 1e-3, 1e-4, 1e-6])
def test_noise_on_a_grid_passes(step):
    """Tests a grid, which may have a step more or less than expected near zero."""
    z = np.random.default_rng(1).standard_normal(ENTRIES)
    assert worst_p_value(np.round(z / step) * step) > THRESHOLD


def irwin_hall_tail(terms, distance):
    """Returns the chance that a sum of uniforms, scaled to variance 1, is beyond `distance`."""
    scaled_distance = terms / 2 - distance * math.sqrt(terms / 12)
    terms_of_sum = [
        (-1) ** k * math.comb(terms, k) * (scaled_distance - k) ** terms
        for k in range(max(0, math.ceil(scaled_distance)))
    ]
    return 2 * sum(terms_of_sum) / math.factorial(terms)


def sum_of_uniforms(terms):
    """Returns a draw of sums of uniform variables, and the chance of their tails."""

    def draw_noise(size, rng):
        uniform_sum = sum(rng.random(size) for _ in range(terms))
        return (uniform_sum - terms / 2) / math.sqrt(terms / 12)

    return draw_noise, lambda distance: irwin_hall_tail(terms, distance)


def of_scipy(distribution):
    """Returns a draw of a distribution scaled to variance 1, and the chance of its tails."""
    scale = distribution.std()
    return (
        lambda size, rng: distribution.rvs(size, random_state=rng) / scale,
        lambda distance: 2 * float(distribution.sf(distance * scale)),
    )


# Departure -> (draws of variance 1, chance beyond so many standard deviations).
DEPARTURES = {
    **{f"{terms} uniforms": sum_of_uniforms(terms) for terms in (3, 4, 6)},
    "Laplace": of_scipy(scipy.stats.laplace()),
    **{f"Student t, {df} degrees": of_scipy(scipy.stats.t(df)) for df in (3, 5, 10, 20)},
    "one side ends at 3": (
        lambda size, rng: np.minimum(rng.standard_normal(size), 3.0),
        lambda distance: scipy.stats.norm.sf(distance) * (1 + (distance < 3)),
    ),
}


@pytest.mark.parametrize(("drawn", "chance"), DEPARTURES.values(), ids=DEPARTURES)
def test_noise_with_other_tails_is_detected(drawn, chance):
    miss_rates = [
        missed_by_count(
            ENTRIES, 2 * scipy.stats.norm.sf(distance), float(chance(distance)), THRESHOLD
        )
        for distance in tails.DISTANCES
    ]
    assert min(miss_rates) <= MISS_RATE
    assert worst_p_value(drawn(ENTRIES, np.random.default_rng(2))) < THRESHOLD


def test_a_sum_of_twelve_uniforms_is_detected_by_its_fourth_moment():
    """Tests a fourth moment of 3 - 1.2 / 12; f varies less than for normal noise."""
    draw_noise, _ = sum_of_uniforms(12)
    assert tails.moment_p_value(-3.06, ENTRIES) < THRESHOLD
    assert scipy.stats.norm.sf((3.1 - 3.06) / math.sqrt(24 / ENTRIES)) < 1e-5
    *_, moment = tails.tail_findings(draw_noise(ENTRIES, np.random.default_rng(2)))
    assert moment.p_value < THRESHOLD


def test_all_runs_of_an_audit_show_the_tails_together():
    rng = np.random.default_rng(3)
    shape = (2, 30, ENTRIES // 60 + 1)
    leaves = (shape[2],)
    honest_audit = audit_noise(rng.standard_normal(shape), leaves=leaves)
    assert honest_audit.consistent
    assert honest_audit.threshold > THRESHOLD
    cut_audit = audit_noise(cut_noise(4.0, shape, rng), leaves=leaves)
    assert {finding.name.partition(":")[0] for finding in cut_audit.contradictions} == {"tails"}
