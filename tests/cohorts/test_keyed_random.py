"""Keyed random numbers are uniform, and unrelated for other keys, clients and columns."""

import numpy as np
import pytest

from fedmf.cohorts import keyed_random
from tests.power import has_distribution, is_uncorrelated

CLIENTS = np.arange(200_000)


def uniform_draws(*words, columns=(CLIENTS,)):
    """Returns the uniform numbers of a key."""
    return keyed_random.uniform(keyed_random.key(*words), *columns)


class TestQuality:
    """Each test fails for independent uniform numbers with probability FALSE_POSITIVE_RATE."""

    def test_numbers_are_uniform(self):
        assert has_distribution(uniform_draws(1, 2, 3), "uniform", departure=0.015)

    @pytest.mark.parametrize(
        ("first_key", "second_key"),
        [((1, 2, 3), (1, 2, 4)), ((1, 2, 3), (2, 2, 3)), ((1, 5, 3), (1, 6, 3))],
        ids=["rounds", "seeds", "purposes"],
    )
    def test_keys_are_unrelated(self, first_key, second_key):
        assert is_uncorrelated(
            uniform_draws(*first_key), uniform_draws(*second_key), departure=0.025
        )

    @pytest.mark.parametrize("lag", [1, 2, 64, 1000])
    def test_clients_are_unrelated(self, lag):
        uniform_numbers = uniform_draws(9, 1, 1)
        assert is_uncorrelated(uniform_numbers[:-lag], uniform_numbers[lag:], departure=0.025)

    def test_one_client_over_many_rounds_has_unrelated_numbers(self):
        uniform_numbers = np.array(
            [uniform_draws(4, 1, t + 1, columns=(np.array([7]),))[0] for t in range(5000)]
        )
        assert has_distribution(uniform_numbers, "uniform", departure=0.08)
        assert is_uncorrelated(uniform_numbers[:-1], uniform_numbers[1:], departure=0.15)

    def test_rows_that_differ_in_one_column_are_unrelated(self):
        days = np.arange(40)
        columns = (np.repeat(np.arange(500), 40), np.tile(days, 500))
        grid = uniform_draws(1, 1, columns=columns).reshape(500, 40)
        assert len(np.unique(grid)) == grid.size
        assert is_uncorrelated(grid[:, :-1].ravel(), grid[:, 1:].ravel(), departure=0.075)
        assert is_uncorrelated(grid[:-1].ravel(), grid[1:].ravel(), departure=0.075)

    def test_a_plain_counter_fails_the_tests(self):
        # Negative control: a plain counter is uniform, and its neighbours are not unrelated.
        counter = (CLIENTS * 0.6180339887498949) % 1
        assert has_distribution(counter, "uniform", departure=0.015)
        assert not is_uncorrelated(counter[:-2], counter[2:], departure=0.025)
        assert not has_distribution(counter**1.05, "uniform", departure=0.015)


def test_a_number_does_not_depend_on_the_other_rows():
    clients = np.array([5, 77, 199_999])
    assert (uniform_draws(1, 2, 3)[clients] == uniform_draws(1, 2, 3, columns=(clients,))).all()
