"""Matrices of long runs are drawn from some of their rounds, with the values of the whole ones."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from fedmf.reports.canvas import PIXELS, pool
from fedmf.reports.drawn_noise import (
    PooledColumns,
    correlation,
    drawn_encoder,
    drawn_gram,
    drawn_noise,
    drawn_rounds,
    is_drawable,
)
from tests.mechanisms.registry import MECHANISMS

ROUNDS = 500
LIMIT = 100


@pytest.mark.parametrize("name", ["identity", "banded", "toeplitz", "blt", "tree full", "low rank"])
def test_drawn_values_are_those_of_the_whole_matrices(name):
    mechanism = MECHANISMS[name](ROUNDS)
    N = mechanism.noising()
    rounds = drawn_rounds(ROUNDS, LIMIT)
    assert len(rounds) == LIMIT
    assert rounds[0] == 0
    weights, correlations = drawn_noise(mechanism, 2.0, LIMIT)
    assert (weights.size, correlations.size) == (N.shape, (ROUNDS, ROUNDS))
    pooled = PooledColumns(LIMIT, N.shape[1])
    pooled.add(0, 2 * N[rounds])
    assert_allclose(weights.entries, pooled.entries, atol=1e-12 * np.abs(N).max())
    assert_allclose(
        correlations.entries, correlation(N)[np.ix_(rounds, rounds)], rtol=1e-9, atol=1e-12
    )
    C = mechanism.encoder()
    assert is_drawable(mechanism)
    drawn_C = drawn_encoder(mechanism, 0.5, LIMIT)
    assert drawn_C.size == C.shape
    if len(drawn_C.entries) == LIMIT:
        assert_allclose(drawn_C.entries, 0.5 * C[rounds], atol=1e-14)
    else:
        assert_array_equal(drawn_C.entries, 0.5 * C)
    drawn_X = drawn_gram(mechanism, 0.5, LIMIT)
    X = 0.25 * C.T @ C
    assert_allclose(drawn_X.entries, X[np.ix_(rounds, rounds)], atol=1e-12 * X.max())


def test_columns_are_pooled_whatever_their_blocks():
    rng = np.random.default_rng(1)
    matrix = rng.standard_normal((3, 5 * PIXELS + 7))
    pooled = PooledColumns(3, matrix.shape[1])
    for first_column in range(0, matrix.shape[1], 100)[::-1]:
        pooled.add(first_column, matrix[:, first_column : first_column + 100])
    assert_array_equal(np.abs(pooled.entries).max(axis=1), np.abs(matrix).max(axis=1))
    pooled_columns = np.arange(matrix.shape[1]) * PIXELS // matrix.shape[1]
    for pooled_column in (0, 17, PIXELS - 1):
        columns = matrix[:, pooled_columns == pooled_column]
        largest_entries = columns[np.arange(3), np.abs(columns).argmax(axis=1)]
        assert_array_equal(pooled.entries[:, pooled_column], largest_entries)
    assert pool(matrix, PIXELS).shape == pooled.entries.shape
