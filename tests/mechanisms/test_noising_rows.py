"""Rows of N, C and X computed without the matrices are those of the matrices."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from fedmf.mechanisms.noising_rows import (
    NoisingRows,
    encoder_blocks,
    gram_entries,
    has_encoder_rows,
)
from fedmf.mechanisms.toeplitz import ToeplitzMechanism
from tests.mechanisms.registry import every_form

ROUNDS = 300


def join_blocks(blocks, num_rows):
    """Joins blocks of columns into a matrix; entries that no block has are NaN."""
    blocks = dict(blocks)
    width = max(first_column + block.shape[1] for first_column, block in blocks.items())
    matrix = np.full((num_rows, width), np.nan)
    for first_column, block in blocks.items():
        matrix[:, first_column : first_column + block.shape[1]] = block
    return matrix


@every_form
def test_rows_and_norms_are_those_of_the_matrix(build):
    mechanism = build(ROUNDS)
    N = mechanism.noising()
    rows = NoisingRows(mechanism)
    assert rows.num_sources == N.shape[1]
    size = np.abs(N).max()
    starts = np.array([0, 7, 255, 256, 299])
    for row_ends in (starts + 1, np.array([1, 60, 256, 300, 300])):
        expected = np.stack(
            [N[start:end].sum(axis=0) for start, end in zip(starts, row_ends, strict=True)]
        )
        assert_allclose(join_blocks(rows.blocks(starts, row_ends), 5), expected, atol=1e-12 * size)
        assert_allclose(rows.window_deviations(starts, row_ends), np.linalg.norm(expected, axis=1))
    assert_allclose(rows.round_deviations(), np.linalg.norm(N, axis=1))
    assert_allclose(rows.sum_deviations(), np.linalg.norm(np.cumsum(N, axis=0), axis=1))


@every_form
def test_encoder_and_gram_are_those_of_the_matrix(build):
    mechanism = build(ROUNDS)
    C = mechanism.encoder()
    rounds = np.array([0, 7, 8, 255, 299])
    X = (C.T @ C)[np.ix_(rounds, rounds)]
    assert_allclose(gram_entries(mechanism, rounds), X, atol=1e-12 * np.abs(X).max())
    if has_encoder_rows(mechanism):
        assert_allclose(join_blocks(encoder_blocks(mechanism, rounds), 5), C[rounds], atol=1e-14)


def test_rows_of_a_million_rounds_form_no_matrix(monkeypatch):
    """Tests a Toeplitz mechanism with more rounds than any matrix could have."""
    mechanism = ToeplitzMechanism(rounds=1_000_000, coefficients=[1.0, -0.5])
    for name in ("noising", "encoder"):
        monkeypatch.setattr(ToeplitzMechanism, name, lambda self: pytest.fail("formed"))
    rows = NoisingRows(mechanism)
    assert_allclose(rows.round_deviations()[-1] ** 2, 4 / 3)
    assert_allclose(rows.window_deviations([10], [11]) ** 2, 4 / 3, rtol=1e-6)
