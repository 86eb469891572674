import numpy as np
import pytest
import scipy.stats

from fedmf.cohorts import keyed_random
from tests.cohorts.controllers import FALSE_POSITIVE_RATE

CLIENTS = np.arange(200_000)


def draws(*words, columns=(CLIENTS,)):
    return keyed_random.uniform(keyed_random.key(*words), *columns)


class TestQuality:
    """Each test fails for independent uniform numbers with probability FALSE_POSITIVE_RATE."""

    def test_uniform(self):
        assert scipy.stats.kstest(draws(1, 2, 3), "uniform").pvalue > FALSE_POSITIVE_RATE

    @pytest.mark.parametrize(
        ("first", "second"),
        [((1, 2, 3), (1, 2, 4)), ((1, 2, 3), (2, 2, 3)), ((1, 5, 3), (1, 6, 3))],
        ids=["rounds", "seeds", "purposes"],
    )
    def test_keys_are_unrelated(self, first, second):
        assert abs(self.correlation(draws(*first), draws(*second))) < self.threshold(len(CLIENTS))

    @pytest.mark.parametrize("lag", [1, 2, 64, 1000])
    def test_clients_are_unrelated(self, lag):
        u = draws(9, 1, 1)
        assert abs(self.correlation(u[:-lag], u[lag:])) < self.threshold(len(u) - lag)

    def test_a_round_of_many_keys(self):
        # One client over many rounds, as its coins are used.
        u = np.array([draws(4, 1, t + 1, columns=(np.array([7]),))[0] for t in range(5000)])
        assert scipy.stats.kstest(u, "uniform").pvalue > FALSE_POSITIVE_RATE
        assert abs(self.correlation(u[:-1], u[1:])) < self.threshold(len(u) - 1)

    def test_both_columns_count(self):
        days = np.arange(40)
        grid = draws(1, 1, columns=(np.repeat(np.arange(500), 40), np.tile(days, 500))).reshape(500, 40)
        assert len(np.unique(grid)) == grid.size
        for a, b in ((grid[:, :-1], grid[:, 1:]), (grid[:-1], grid[1:])):
            assert abs(self.correlation(a.ravel(), b.ravel())) < self.threshold(a.size)

    def test_the_tests_see_a_counter(self):
        # Negative control: a plain counter is uniform, and its neighbours are not unrelated.
        counter = (CLIENTS * 0.6180339887498949) % 1
        assert scipy.stats.kstest(counter, "uniform").pvalue > FALSE_POSITIVE_RATE
        assert abs(self.correlation(counter[:-2], counter[2:])) > self.threshold(len(counter) - 2)

    @staticmethod
    def correlation(a, b):
        return np.corrcoef(a, b)[0, 1]

    @staticmethod
    def threshold(n):
        return scipy.stats.norm.isf(FALSE_POSITIVE_RATE / 2) / np.sqrt(n)


def test_a_part_is_answered_as_in_the_whole():
    some = np.array([5, 77, 199_999])
    assert (draws(1, 2, 3)[some] == draws(1, 2, 3, columns=(some,))).all()


def test_the_input_is_left_alone():
    clients = CLIENTS.copy()
    draws(1, 1, columns=(clients, clients))
    assert (clients == CLIENTS).all()
