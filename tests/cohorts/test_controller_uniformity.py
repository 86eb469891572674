"""Whoever may come is drawn uniformly: each test names the departure that it would see, and plays
as often as that needs.
"""

import numpy as np
import pytest
import scipy.stats

import fedmf
from fedmf.cohorts import draws as cohort_draws
from fedmf.cohorts.draws import Pool
from fedmf.privacy.sampling.draws import EpochPlaces
from tests.mechanisms.schemas import every_round
from tests.power import (
    FALSE_POSITIVE_RATE,
    draws_that_see,
    preferring_the_first,
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
                controller.go_on_from(fedmf.ParticipationLedger(cohort_size=2, cohorts=cohorts))
            return controller.cohort(len(controller.ledger))

        # Uniform over the sets and not only over the clients.
        counts = self._sets(cohort)
        assert len(counts) == 15
        assert scipy.stats.chisquare(counts).pvalue > FALSE_POSITIVE_RATE

    def test_a_preference_is_seen(self):
        # Negative control: the same test on draws in which client 0 is preferred.
        weights = np.array([PREFERENCE, 1, 1, 1, 1, 1])
        share = weights / weights.sum()
        counts = self._sets(
            lambda seed: np.random.default_rng(seed).choice(6, 2, replace=False, p=share)
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


class TestWithoutListingEverybody:
    """Pools larger than draws.SMALL are asked about clients picked at random."""

    def pool(self, population, eligible):
        """In which a fixed set may come."""
        may, everybody = np.isin(np.arange(population), eligible), np.ones(population, bool)
        return Pool(
            population=population, eligible=may.__getitem__, available=everybody.__getitem__
        )

    def test_uniform_over_sets(self, monkeypatch):
        # All 10 cohorts of 2 out of the 5 that may come, picked three at a time.
        for name, value in (("SMALL", 0), ("_SCANS_PER_PICK", 0), ("_BATCH_CLIENTS", 3)):
            monkeypatch.setattr(cohort_draws, name, value)
        pool = self.pool(7, [0, 2, 3, 5, 6])
        seeds = range(draws_that_see_a_preference(5, 2))
        draws = [sorted(pool.draw(np.random.default_rng(seed), 2)) for seed in seeds]
        _, counts = np.unique(draws, axis=0, return_counts=True)
        assert len(counts) == 10
        assert scipy.stats.chisquare(counts).pvalue > FALSE_POSITIVE_RATE

    def test_the_work_is_proportional_to_the_cohort(self):
        asked = []

        def eligible(clients):
            assert not isinstance(clients, slice), "everybody was asked"
            asked.append(len(clients))
            return clients % 4 == 0

        pool = Pool(population=10**7, eligible=eligible, available=lambda clients: clients >= 0)
        assert len(pool.draw(np.random.default_rng(1), 100)) == 100
        assert sum(asked) < 1000  # 400 on average

    @pytest.mark.parametrize("eligible", [0, 1, 59, 60, 61])
    def test_a_pool_that_runs_dry_is_found_to_the_last_client(self, eligible):
        clients = np.random.default_rng(5).choice(40_000, eligible, replace=False)
        drawn = self.pool(40_000, clients).draw(np.random.default_rng(6), 60)
        assert len(drawn) == min(eligible, 60)
        assert set(drawn) <= set(clients)


class TestPlaces:
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
        dealt = np.random.default_rng(1).multinomial(runs, mostly)
        assert scipy.stats.chisquare(dealt).pvalue < FALSE_POSITIVE_RATE
