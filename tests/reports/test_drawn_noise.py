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

ROUNDS, LIMIT = 500, 100


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
    encoder = drawn_encoder(mechanism, 0.5, LIMIT)
    assert encoder.size == C.shape
    if len(encoder.entries) == LIMIT:
        assert_allclose(encoder.entries, 0.5 * C[rounds], atol=1e-14)
    else:
        assert_array_equal(encoder.entries, 0.5 * C)
    gram = drawn_gram(mechanism, 0.5, LIMIT)
    X = 0.25 * C.T @ C
    assert_allclose(gram.entries, X[np.ix_(rounds, rounds)], atol=1e-12 * X.max())


def test_columns_are_pooled_whatever_their_blocks():
    rng = np.random.default_rng(1)
    matrix = rng.standard_normal((3, 5 * PIXELS + 7))
    pooled = PooledColumns(3, matrix.shape[1])
    for first in range(0, matrix.shape[1], 100)[::-1]:
        pooled.add(first, matrix[:, first : first + 100])
    assert_array_equal(np.abs(pooled.entries).max(axis=1), np.abs(matrix).max(axis=1))
    places = np.arange(matrix.shape[1]) * PIXELS // matrix.shape[1]
    for place in (0, 17, PIXELS - 1):
        columns = matrix[:, places == place]
        largest = columns[np.arange(3), np.abs(columns).argmax(axis=1)]
        assert_array_equal(pooled.entries[:, place], largest)
    assert pool(matrix, PIXELS).shape == pooled.entries.shape
