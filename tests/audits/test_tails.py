"""Tests of the tails of noise: noise that ends or that has other tails is seen with the stated
power, and honest noise passes at the stated rate.
"""

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
    trials_that_see,
)

THRESHOLD = FALSE_POSITIVE_RATE / 64
ENTRIES = tails.entries_to_see(4.0, threshold=THRESHOLD)


def cut_noise(cut, size, rng):
    """Standard normals that are drawn again beyond `cut`, scaled to variance 1."""
    z = scipy.stats.truncnorm(-cut, cut).rvs(size, random_state=rng)
    return z * (tails.end_of_noise(cut) / cut)


def worst_p_value(values):
    return min(finding.p_value for finding in tails.tail_findings(values))


def test_p_values_of_honest_noise_are_as_rare_as_they_say():
    """Of each test a share of at most 0.05 of the p-values is below 0.05."""
    rng = np.random.default_rng(7)
    rate = FALSE_POSITIVE_RATE / (2 * tails.NUM_TESTS)
    num_games = trials_that_see(lambda games: missed_by_count(games, 0.05, 0.15, rate))
    p_values = np.array(
        [
            [finding.p_value for finding in tails.tail_findings(rng.standard_normal(20_000))]
            for _ in range(num_games)
        ]
    )
    assert p_values.shape[1] == tails.NUM_TESTS
    limit = scipy.stats.binom.isf(rate, num_games, 0.05)
    assert ((p_values < 0.05).sum(axis=0) <= limit).all()
    # And they do fall below: a test whose p-values never did could not fail.
    assert (p_values.min(axis=0) < 0.05).all()


def test_moment_bound_is_above_the_exact_p_value():
    """Of a single entry the exact p-values are those of its size."""
    for size in (2.5, 3.0, 3.5, 3.99):
        mean = size**4 - 6 * size**2
        assert 2 * scipy.stats.norm.sf(size) <= tails.moment_p_value(mean, 1) <= 1
    # f falls from 0 to -9 at sqrt(3), and rises.
    below = -8.99
    roots = np.sqrt(3 + np.array([-1.0, 1.0]) * math.sqrt(9 + below))
    exact = 2 * float(np.diff(scipy.stats.norm.cdf(roots))[0])
    assert exact < tails.moment_p_value(below, 1) < 1
    # Beyond all values that a mean can have, it is small and still a number.
    assert 0 <= tails.moment_p_value(-10.0, 1000) < 1e-100
    assert 0 <= tails.moment_p_value(161.0, 1000) < 1e-100


@pytest.mark.parametrize("cut", [2.5, 3.0, 3.5, 4.0])
def test_noise_that_ends_is_seen_with_certainty(cut):
    entries = tails.entries_to_see(cut, threshold=THRESHOLD)
    assert tails.power(cut, entries, threshold=THRESHOLD) == 1
    assert tails.power(cut, entries // 2, threshold=THRESHOLD) < 0.999
    rng = np.random.default_rng(1)
    assert worst_p_value(cut_noise(cut, entries, rng)) < THRESHOLD
    assert worst_p_value(rng.standard_normal(entries)) > THRESHOLD
    unseen = tails.smallest_unseen_cut(entries, threshold=THRESHOLD)
    assert cut <= unseen < cut + 0.01
    assert tails.smallest_unseen_cut(100, threshold=THRESHOLD) == 0


@pytest.mark.parametrize("left", [0.0, 1e-3])
def test_noise_that_one_entry_in_a_thousand_lacks_is_seen(left):
    """All of it, or all but a thousandth: as many more are within 0.001 standard deviations."""
    within = float(scipy.special.erf(1e-3 / math.sqrt(2)))
    share = 1e-3 * (scipy.stats.norm.cdf(1) * 2 - 1 if left else 1)
    assert missed_by_count(ENTRIES, within, within + share, THRESHOLD) <= MISS_RATE
    rng = np.random.default_rng(1)
    z = rng.standard_normal(ENTRIES)
    assert worst_p_value(np.where(rng.random(ENTRIES) < 1e-3, left, 1) * z) < THRESHOLD


@pytest.mark.parametrize("step", [2e-3, 1e-3, 1e-4, 1e-6])
def test_noise_on_a_grid_passes(step):
    """Near zero a coarse grid has a step more or less than it should."""
    z = np.random.default_rng(1).standard_normal(ENTRIES)
    assert worst_p_value(np.round(z / step) * step) > THRESHOLD


def irwin_hall_tail(terms, distance):
    """Chance that a sum of uniforms, scaled to variance 1, is beyond `distance`."""
    x = terms / 2 - distance * math.sqrt(terms / 12)
    parts = [
        (-1) ** k * math.comb(terms, k) * (x - k) ** terms for k in range(max(0, math.ceil(x)))
    ]
    return 2 * sum(parts) / math.factorial(terms)


def sum_of_uniforms(terms):
    def drawn(size, rng):
        total = sum(rng.random(size) for _ in range(terms))
        return (total - terms / 2) / math.sqrt(terms / 12)

    return drawn, lambda distance: irwin_hall_tail(terms, distance)


def of_scipy(distribution):
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
def test_noise_with_other_tails_is_seen(drawn, chance):
    missed = [
        missed_by_count(
            ENTRIES, 2 * scipy.stats.norm.sf(distance), float(chance(distance)), THRESHOLD
        )
        for distance in tails.DISTANCES
    ]
    assert min(missed) <= MISS_RATE
    assert worst_p_value(drawn(ENTRIES, np.random.default_rng(2))) < THRESHOLD


def test_a_sum_of_twelve_uniforms_is_seen_by_its_fourth_moment():
    """Its fourth moment is 3 - 1.2 / 12, and f varies less than of normal noise."""
    drawn, _ = sum_of_uniforms(12)
    assert tails.moment_p_value(-3.06, ENTRIES) < THRESHOLD
    assert scipy.stats.norm.sf((3.1 - 3.06) / math.sqrt(24 / ENTRIES)) < 1e-5
    *_, moment = tails.tail_findings(drawn(ENTRIES, np.random.default_rng(2)))
    assert moment.p_value < THRESHOLD


def test_all_runs_of_an_audit_show_the_tails_together():
    rng = np.random.default_rng(3)
    shape = (2, 30, ENTRIES // 60 + 1)
    leaves = (shape[2],)
    honest = audit_noise(rng.standard_normal(shape), leaves=leaves)
    assert honest.consistent
    assert honest.threshold > THRESHOLD
    ended = audit_noise(cut_noise(4.0, shape, rng), leaves=leaves)
    assert {finding.name.partition(":")[0] for finding in ended.contradictions} == {"tails"}
