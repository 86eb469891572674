"""Whoever may come is drawn uniformly: each test names the departure that it would see, and plays
as often as that needs.
"""

import numpy as np
import pytest
import scipy.stats

import fedmf
from fedmf.cohorts import draws as cohort_draws
from fedmf.cohorts.draws import Pool
from fedmf.privacy.sampling.draws import EpochOrder, EpochPlaces
from tests.mechanisms.schemas import every_round
from tests.power import (
    FALSE_POSITIVE_RATE,
    draws_that_see,
    missed_by_chi_square,
    preferring_the_first,
    trials_that_see,
    unrelated,
)

PREFERENCE = 1.5


def draws_that_see_a_preference(places, size=1):
    return draws_that_see(*preferring_the_first(places, PREFERENCE, size))


class TestUniformity:
    """Chi-square over the cohorts of so many seeds that one client of PREFERENCE times the others'
    weight is seen.
    """

    @pytest.mark.parametrize(
        ("schema", "population", "drawn_before"),
        [
            ({"schema": "min_sep", "min_sep": 2}, 6, []),
            ({"schema": "min_sep", "min_sep": 2}, 8, [[1, 4]]),  # the 6 clients that are left
            ({"schema": "fixed_epoch", "min_sep": 3}, 6, None),  # the second cohort of the order
        ],
    )
    @pytest.mark.slow
    def test_over_sets_of_two_out_of_six(self, schema, population, drawn_before):
        def cohort(seed):
            participation = fedmf.Participation(rounds=3, **schema)
            controller = fedmf.ParticipationController(
                participation, population=population, cohort_size=2, seed=seed
            )
            if drawn_before is None:
                controller.cohort(0)
            else:
                cohorts = [np.array(c) for c in drawn_before]
                controller.resume_from(fedmf.ParticipationLedger(cohort_size=2, cohorts=cohorts))
            return controller.cohort(len(controller.ledger))

        # Uniform over the sets and not only over the clients.
        counts = self._sets(cohort)
        assert len(counts) == 15
        assert scipy.stats.chisquare(counts).pvalue > FALSE_POSITIVE_RATE

    def test_a_preference_is_seen(self):
        # Negative control: the same test on draws in which client 0 is preferred.
        weights = np.array([PREFERENCE, 1, 1, 1, 1, 1])
        counts = self._sets(
            lambda seed: np.random.default_rng(seed).choice(
                6, size=2, replace=False, p=weights / weights.sum()
            )
        )
        assert scipy.stats.chisquare(counts).pvalue < FALSE_POSITIVE_RATE

    @pytest.mark.slow
    def test_rounds_are_independent(self):
        # Whether client 0 comes in round 0 says nothing of round 1 when every round is allowed.
        everyone = every_round(2)
        came = np.zeros((2, 3000))
        for seed in range(came.shape[1]):
            controller = fedmf.ParticipationController(
                everyone, population=4, cohort_size=2, seed=seed
            )
            came[:, seed] = [0 in controller.cohort(t) for t in range(2)]
        assert unrelated(*came, departure=0.2)
        # Negative control: a quarter of the rounds are the round before.
        came[1, ::4] = came[0, ::4]
        assert not unrelated(*came, departure=0.2)

    @staticmethod
    def _sets(cohort_of_seed):
        cohorts = [
            sorted(cohort_of_seed(seed)) for seed in range(draws_that_see_a_preference(6, 2))
        ]
        _, counts = np.unique(cohorts, axis=0, return_counts=True)
        return counts


def pool_of(population, eligible, asked=None):
    """A pool in which a fixed set may come; appends to `asked` how many were asked each time."""
    may = np.zeros(population, bool)
    may[eligible] = True

    def eligible(clients):
        if asked is not None:
            asked.append(len(may[clients]))
        return may[clients]

    return Pool(
        population=population,
        eligible=eligible,
        available=lambda clients: np.ones(len(clients), bool),
    )


def p_value_of_uniform_subsets(draws, eligible):
    """Of the hypothesis that each of `draws` is a uniform subset of the eligible, by how often each
    of them was drawn.

    The sum over M clients of (count - expected)^2 / variance, times (M - 1) / M, is chi-square with
    M - 1 degrees of freedom as the number of draws grows: counts are multivariate normal with the
    covariance of sampling without replacement.
    """
    size = len(draws[0])
    assert all(len(set(draw.tolist())) == len(draw) == size for draw in draws)
    assert np.isin(np.concatenate(draws), eligible).all()
    counts = np.bincount(np.searchsorted(eligible, np.concatenate(draws)), minlength=len(eligible))
    share = size / len(eligible)
    statistic = ((counts - len(draws) * share) ** 2).sum() / (len(draws) * share * (1 - share))
    return scipy.stats.chi2.sf(statistic * (1 - 1 / len(eligible)), len(eligible) - 1)


def draws_of(eligible, size=60):
    """So many that one client in twenty, drawn twice as often, is seen by the test above."""
    ratio = np.where(np.arange(len(eligible)) % 20 == 0, 2.0, 1.0)
    distance = ((ratio / ratio.mean() - 1) ** 2).sum() * size / (len(eligible) - size)
    return trials_that_see(lambda draws: missed_by_chi_square(draws * distance, len(eligible) - 1))


POPULATION = 40_000
ELIGIBLE = {
    "most": np.flatnonzero(np.arange(POPULATION) % 10 != 3),
    "a tenth": np.arange(3, POPULATION, 10),
    "one in a hundred": np.arange(0, POPULATION, 100),
}


class TestWithoutListingEverybody:
    """Pools larger than draws.SMALL are asked about clients picked at random."""

    @pytest.mark.parametrize("eligible", ELIGIBLE.values(), ids=ELIGIBLE)
    def test_uniform(self, eligible):
        pool = pool_of(POPULATION, eligible)
        draws = [pool.draw(np.random.default_rng(seed), 60) for seed in range(draws_of(eligible))]
        assert p_value_of_uniform_subsets(draws, eligible) > FALSE_POSITIVE_RATE

    def test_uniform_over_sets(self, monkeypatch):
        # All 10 cohorts of 2 out of the 5 that may come, and not only the clients.
        monkeypatch.setattr(cohort_draws, "SMALL", 0)
        pool = pool_of(7, [0, 2, 3, 5, 6])
        seeds = range(draws_that_see_a_preference(5, 2))
        draws = [sorted(pool.draw(np.random.default_rng(seed), 2)) for seed in seeds]
        _, counts = np.unique(draws, axis=0, return_counts=True)
        assert len(counts) == 10
        assert scipy.stats.chisquare(counts).pvalue > FALSE_POSITIVE_RATE

    def test_the_smallest_of_those_picked_is_caught(self):
        # Negative control: the mistake of cutting off after sorting, which prefers small indices.
        eligible = ELIGIBLE["most"]
        seeds = range(draws_of(eligible))
        draws = [
            np.unique(np.random.default_rng(seed).choice(eligible, 75, replace=False))[:60]
            for seed in seeds
        ]
        assert p_value_of_uniform_subsets(draws, eligible) < FALSE_POSITIVE_RATE

    @pytest.mark.parametrize("population", [10**5, 10**6, 10**7])
    def test_the_work_is_proportional_to_the_cohort(self, population):
        asked = []

        def eligible(clients):
            assert not isinstance(clients, slice), "everybody was asked"
            asked.append(len(clients))
            return clients % 4 == 0

        pool = Pool(
            population=population,
            eligible=eligible,
            available=lambda clients: np.ones(len(clients), bool),
        )
        assert len(pool.draw(np.random.default_rng(1), 100)) == 100
        assert sum(asked) < 1000  # 400 on average

    @pytest.mark.parametrize("eligible", [0, 1, 59, 60, 61])
    def test_a_pool_that_runs_dry_is_found_to_the_last_client(self, eligible):
        asked = []
        clients = np.random.default_rng(5).choice(POPULATION, eligible, replace=False)
        drawn = pool_of(POPULATION, clients, asked).draw(np.random.default_rng(6), 60)
        assert len(drawn) == min(eligible, 60)
        assert set(drawn) <= set(clients)
        assert sum(asked) < 3 * POPULATION


class TestOrders:
    def test_every_place_is_uniform(self):
        # Client 3's place in the order of 8, of which 6 are dealt out.
        claimed = np.array([1, 1, 1, 1, 1, 1, 2]) / 8
        # The first place preferred
        truth = np.array([PREFERENCE, *(claimed[1:] * 8 * (8 - PREFERENCE) / 7)]) / 8
        places, seeds = [], draws_that_see(claimed, truth)
        for seed in range(seeds):
            order = EpochOrder(population=8, cohort_size=2, epoch=3, seed=seed)
            dealt = np.concatenate([order.clients(t) for t in range(3)])
            assert len(set(dealt.tolist())) == 6
            places.append(np.flatnonzero(dealt == 3)[0] if 3 in dealt else 6)
        observed = np.bincount(places, minlength=7)
        assert scipy.stats.chisquare(observed, seeds * claimed).pvalue > FALSE_POSITIVE_RATE
        assert scipy.stats.chisquare(seeds * truth, seeds * claimed).pvalue < FALSE_POSITIVE_RATE


class TestPlaces:
    @pytest.mark.parametrize("partitions", [1, 2, 3])
    def test_every_client_once_an_epoch_in_its_part(self, partitions):
        places = EpochPlaces(population=50, epoch=12, partitions=partitions, seed=3)
        epochs = [[places.clients(12 * e + i) for i in range(12)] for e in range(3)]
        for epoch in epochs:
            assert sorted(np.concatenate(epoch).tolist()) == list(range(50))
            assert all(
                (clients % partitions == i % partitions).all() for i, clients in enumerate(epoch)
            )
        # Not one after the other, but asked for at once: the same.
        again = EpochPlaces(population=50, epoch=12, partitions=partitions, seed=3)
        assert (again.clients(28) == epochs[2][4]).all()
        assert (again.clients(2) == epochs[0][2]).all()

    @pytest.mark.slow
    def test_places_are_independent_of_those_of_others_and_of_other_epochs(self):
        # All 256 ways of 4 clients in 2 places and 2 epochs. A deal of two clients a round has 36
        # of them; here it is had once in ten runs.
        uniform = np.full(256, 1 / 256)
        two = np.array([bin(i % 16).count("1") == bin(i // 16).count("1") == 2 for i in range(256)])
        mostly = 0.9 * uniform + 0.1 * two / two.sum()
        runs, counts = draws_that_see(uniform, mostly), np.zeros(256)
        for seed in range(runs):
            places = EpochPlaces(population=4, epoch=2, partitions=1, seed=seed)
            second = np.array([np.isin(range(4), places.clients(t)) for t in (1, 3)]).ravel()
            counts[int(second @ 2 ** np.arange(8))] += 1
        assert scipy.stats.chisquare(counts).pvalue > FALSE_POSITIVE_RATE
        assert (
            scipy.stats.chisquare(np.random.default_rng(1).multinomial(runs, mostly)).pvalue
            < FALSE_POSITIVE_RATE
        )
