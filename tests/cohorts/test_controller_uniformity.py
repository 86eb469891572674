"""Cohorts are uniform samples of the eligible clients.

Each test names the departure that it would detect, and draws as often as that needs.
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
    draws_that_detect,
    is_uncorrelated,
    missed_by_chi_square,
    preference_probabilities,
    trials_that_detect,
)

PREFERENCE = 1.5


def draws_that_see_a_preference(places, size=1):
    return draws_that_detect(*preference_probabilities(places, PREFERENCE, size))


class TestUniformity:
    """Chi-square tests over the cohorts of many seeds.

    Their number suffices to detect one client with PREFERENCE times the weight of the others.
    """

    @pytest.mark.parametrize(
        ("schema", "population", "drawn_before"),
        [
            ({"schema": "min_sep", "min_sep": 2}, 6, []),
            ({"schema": "min_sep", "min_sep": 2}, 8, [[1, 4]]),  # 6 clients are eligible.
            ({"schema": "fixed_epoch", "min_sep": 3}, 6, None),  # The second cohort of the order.
        ],
    )
    @pytest.mark.slow
    def test_all_sets_of_two_clients_are_equally_likely(self, schema, population, drawn_before):
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

        # Not only the clients, but all sets of them are equally likely.
        counts = self._sets(cohort)
        assert len(counts) == 15
        assert scipy.stats.chisquare(counts).pvalue > FALSE_POSITIVE_RATE

    def test_a_preferred_client_fails_the_test(self):
        # Negative control: client 0 has a larger weight.
        weights = np.array([PREFERENCE, 1, 1, 1, 1, 1])
        counts = self._sets(
            lambda seed: np.random.default_rng(seed).choice(
                6, size=2, replace=False, p=weights / weights.sum()
            )
        )
        assert scipy.stats.chisquare(counts).pvalue < FALSE_POSITIVE_RATE

    @pytest.mark.slow
    def test_rounds_are_independent(self):
        # If every round is allowed, client 0 takes part in round 1 independently of round 0.
        participation = every_round(2)
        takes_part = np.zeros((2, 3000))
        for seed in range(takes_part.shape[1]):
            controller = fedmf.ParticipationController(
                participation, population=4, cohort_size=2, seed=seed
            )
            takes_part[:, seed] = [0 in controller.cohort(t) for t in range(2)]
        assert is_uncorrelated(*takes_part, departure=0.2)
        # Negative control: a quarter of the seeds repeat round 0.
        takes_part[1, ::4] = takes_part[0, ::4]
        assert not is_uncorrelated(*takes_part, departure=0.2)

    @staticmethod
    def _sets(cohort_of_seed):
        cohorts = [
            sorted(cohort_of_seed(seed)) for seed in range(draws_that_see_a_preference(6, 2))
        ]
        _, counts = np.unique(cohorts, axis=0, return_counts=True)
        return counts


def pool_of(population, eligible, num_tested=None):
    """Returns a pool with fixed eligible clients; appends the size of each test to `num_tested`."""
    is_eligible = np.zeros(population, bool)
    is_eligible[eligible] = True

    def eligible(clients):
        if num_tested is not None:
            num_tested.append(len(is_eligible[clients]))
        return is_eligible[clients]

    return Pool(
        population=population,
        eligible=eligible,
        available=lambda clients: np.ones(len(clients), bool),
    )


def uniform_subsets_p_value(draws, eligible):
    """Returns the p-value of the hypothesis that every draw is a uniform subset of the eligible.

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


def num_draws_for(eligible, size=60):
    """Returns the number of draws that detects one client in twenty being drawn twice as often."""
    ratio = np.where(np.arange(len(eligible)) % 20 == 0, 2.0, 1.0)
    distance = ((ratio / ratio.mean() - 1) ** 2).sum() * size / (len(eligible) - size)
    return trials_that_detect(
        lambda draws: missed_by_chi_square(draws * distance, len(eligible) - 1)
    )


POPULATION = 40_000
ELIGIBLE = {
    "most": np.flatnonzero(np.arange(POPULATION) % 10 != 3),
    "a tenth": np.arange(3, POPULATION, 10),
    "one in a hundred": np.arange(0, POPULATION, 100),
}


class TestLargePools:
    """Pools larger than draws.SMALL pick clients at random."""

    @pytest.mark.parametrize("eligible", ELIGIBLE.values(), ids=ELIGIBLE)
    def test_eligible_clients_are_equally_likely(self, eligible):
        pool = pool_of(POPULATION, eligible)
        draws = [
            pool.draw(np.random.default_rng(seed), 60) for seed in range(num_draws_for(eligible))
        ]
        assert uniform_subsets_p_value(draws, eligible) > FALSE_POSITIVE_RATE

    def test_all_sets_of_eligible_clients_are_equally_likely(self, monkeypatch):
        # There are 10 cohorts of 2 of the 5 eligible clients.
        monkeypatch.setattr(cohort_draws, "SMALL", 0)
        pool = pool_of(7, [0, 2, 3, 5, 6])
        seeds = range(draws_that_see_a_preference(5, 2))
        draws = [sorted(pool.draw(np.random.default_rng(seed), 2)) for seed in seeds]
        _, counts = np.unique(draws, axis=0, return_counts=True)
        assert len(counts) == 10
        assert scipy.stats.chisquare(counts).pvalue > FALSE_POSITIVE_RATE

    def test_truncation_after_sorting_fails_the_test(self):
        # Negative control: truncation of a sorted sample prefers small indices.
        eligible = ELIGIBLE["most"]
        seeds = range(num_draws_for(eligible))
        draws = [
            np.unique(np.random.default_rng(seed).choice(eligible, 75, replace=False))[:60]
            for seed in seeds
        ]
        assert uniform_subsets_p_value(draws, eligible) < FALSE_POSITIVE_RATE

    @pytest.mark.parametrize("population", [10**5, 10**6, 10**7])
    def test_the_number_of_tested_clients_is_proportional_to_the_cohort(self, population):
        num_tested = []

        def eligible(clients):
            assert not isinstance(clients, slice), "all clients were tested"
            num_tested.append(len(clients))
            return clients % 4 == 0

        pool = Pool(
            population=population,
            eligible=eligible,
            available=lambda clients: np.ones(len(clients), bool),
        )
        assert len(pool.draw(np.random.default_rng(1), 100)) == 100
        assert sum(num_tested) < 1000  # 400 on average

    @pytest.mark.parametrize("eligible", [0, 1, 59, 60, 61])
    def test_a_dry_pool_returns_all_eligible_clients(self, eligible):
        num_tested = []
        clients = np.random.default_rng(5).choice(POPULATION, eligible, replace=False)
        drawn_clients = pool_of(POPULATION, clients, num_tested).draw(np.random.default_rng(6), 60)
        assert len(drawn_clients) == min(eligible, 60)
        assert set(drawn_clients) <= set(clients)
        assert sum(num_tested) < 3 * POPULATION


class TestOrders:
    def test_every_position_of_the_order_is_uniform(self):
        # Position of client 3 in the order of 8, of which 6 take part.
        claimed_probabilities = np.array([1, 1, 1, 1, 1, 1, 2]) / 8
        # Negative control: the first position is preferred.
        truth = np.array([PREFERENCE, *(claimed_probabilities[1:] * 8 * (8 - PREFERENCE) / 7)]) / 8
        positions = []
        seeds = draws_that_detect(claimed_probabilities, truth)
        for seed in range(seeds):
            order = EpochOrder(population=8, cohort_size=2, epoch=3, seed=seed)
            clients = np.concatenate([order.clients(t) for t in range(3)])
            assert len(set(clients.tolist())) == 6
            position = np.flatnonzero(clients == 3)[0] if 3 in clients else 6
            positions.append(position)
        observed_counts = np.bincount(positions, minlength=7)
        assert (
            scipy.stats.chisquare(observed_counts, seeds * claimed_probabilities).pvalue
            > FALSE_POSITIVE_RATE
        )
        assert (
            scipy.stats.chisquare(seeds * truth, seeds * claimed_probabilities).pvalue
            < FALSE_POSITIVE_RATE
        )


class TestPlaces:
    @pytest.mark.parametrize("partitions", [1, 2, 3])
    def test_every_client_takes_part_once_an_epoch_in_its_partition(self, partitions):
        epoch_places = EpochPlaces(population=50, epoch=12, partitions=partitions, seed=3)
        epochs = [[epoch_places.clients(12 * e + i) for i in range(12)] for e in range(3)]
        for epoch in epochs:
            assert sorted(np.concatenate(epoch).tolist()) == list(range(50))
            assert all(
                (clients % partitions == i % partitions).all() for i, clients in enumerate(epoch)
            )
        # The clients of a round do not depend on the rounds that were requested before.
        new_places = EpochPlaces(population=50, epoch=12, partitions=partitions, seed=3)
        assert (new_places.clients(28) == epochs[2][4]).all()
        assert (new_places.clients(2) == epochs[0][2]).all()

    @pytest.mark.slow
    def test_positions_of_clients_and_epochs_are_independent(self):
        # There are 256 assignments of 4 clients to 2 places in 2 epochs, of which 36 have two
        # clients a round. Negative control: a tenth of the runs has one of these.
        uniform = np.full(256, 1 / 256)
        has_two_clients = np.array(
            [bin(i % 16).count("1") == bin(i // 16).count("1") == 2 for i in range(256)]
        )
        preferring = 0.9 * uniform + 0.1 * has_two_clients / has_two_clients.sum()
        runs = draws_that_detect(uniform, preferring)
        counts = np.zeros(256)
        for seed in range(runs):
            epoch_places = EpochPlaces(population=4, epoch=2, partitions=1, seed=seed)
            is_in_second_place = np.array(
                [np.isin(range(4), epoch_places.clients(t)) for t in (1, 3)]
            ).ravel()
            counts[int(is_in_second_place @ 2 ** np.arange(8))] += 1
        assert scipy.stats.chisquare(counts).pvalue > FALSE_POSITIVE_RATE
        assert (
            scipy.stats.chisquare(np.random.default_rng(1).multinomial(runs, preferring)).pvalue
            < FALSE_POSITIVE_RATE
        )
