"""Functions that compute the matrices of a mechanism which reports show as heat maps.

The letters are C for the encoder, N for the noise matrix and X for C^T C. Z is a matrix of
independent standard normals. Of long runs, at most a thousand rounds at equal distances are drawn.
"""

import dataclasses

import numpy as np

from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.noising_rows import (
    NoisingRows,
    encoder_blocks,
    gram_entries,
    has_encoder_rows,
)
from fedmf.reports.canvas import PIXELS, without_specks

# Largest number of rows (rounds) in a heat map.
MAX_DRAWN_ROUNDS = 1000
# The encoder C of a mechanism with more rounds is not computed for a picture, because it would take
# more than half a gigabyte.
MAX_FORMED_ROUNDS = 8192


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrawnMatrix:
    """Matrix for a heat map, which has only some of the entries of a large matrix.

    Attributes:
      entries: float64; for a large matrix, some of its rows, with the entry of the largest absolute
        value in each of a few hundred blocks of columns.
      size: shape of the full matrix.
    """

    entries: np.ndarray
    size: tuple[int, int]


def full_matrix(matrix: np.ndarray) -> DrawnMatrix:
    """Wraps a matrix whose entries are all shown in the heat map."""
    return DrawnMatrix(entries=matrix, size=(matrix.shape[0], matrix.shape[1]))


def drawn_rounds(rounds: int, limit: int = MAX_DRAWN_ROUNDS) -> np.ndarray:
    """Returns the rounds that a heat map shows, which are all rounds, or some at equal distances.

    >>> drawn_rounds(10, 4)
    array([0, 3, 6, 9])
    """
    return np.arange(0, rounds, -(-rounds // limit))


def drawn_noise(
    mechanism: Mechanism, scale: float, limit: int = MAX_DRAWN_ROUNDS
) -> tuple[DrawnMatrix, DrawnMatrix]:
    """Returns the noise matrix N times a scale, and the correlation of noise between rounds.

    Args:
      mechanism: with N.
      scale: positive.
      limit: number of drawn rounds, at most.
    """
    n = mechanism.rounds
    if n <= limit:
        noise_weights = scale * mechanism.noising()
        return full_matrix(noise_weights), full_matrix(correlation(noise_weights))
    plotted_rounds = drawn_rounds(n, limit)
    noise_rows = NoisingRows(mechanism)
    pooled_columns = PooledColumns(len(plotted_rounds), noise_rows.num_sources)
    covariance = np.zeros((len(plotted_rounds), len(plotted_rounds)))
    for first_column, block in noise_rows.blocks(plotted_rounds, plotted_rounds + 1):
        # If the noise matrix N is lower triangular, the rows of rounds before this block of columns
        # are 0.
        nonzero_rows = np.flatnonzero(block.any(axis=1))
        if len(nonzero_rows):
            first_nonzero_row = nonzero_rows[0]
            covariance[first_nonzero_row:, first_nonzero_row:] += (
                block[first_nonzero_row:] @ block[first_nonzero_row:].T
            )
        pooled_columns.add(first_column, block)
    noise_weights = scale * pooled_columns.entries
    return (
        DrawnMatrix(entries=noise_weights, size=(n, noise_rows.num_sources)),
        DrawnMatrix(entries=correlation_of(covariance), size=(n, n)),
    )


def is_drawable(mechanism: Mechanism) -> bool:
    """Returns whether the encoder C, the noise matrix N and X = C^T C can be computed in seconds.

    Either there are formulas for their rows, or they are small.
    """
    return has_encoder_rows(mechanism) or mechanism.rounds <= MAX_FORMED_ROUNDS


def drawn_encoder(mechanism: Mechanism, scale: float, limit: int = MAX_DRAWN_ROUNDS) -> DrawnMatrix:
    """Returns the encoder C times a scale."""
    n = mechanism.rounds
    if n <= limit or not has_encoder_rows(mechanism):
        return full_matrix(scale * mechanism.encoder())
    plotted_rounds = drawn_rounds(n, limit)
    pooled_columns = PooledColumns(len(plotted_rounds), n)
    for first_column, block in encoder_blocks(mechanism, plotted_rounds):
        pooled_columns.add(first_column, block)
    return DrawnMatrix(entries=scale * pooled_columns.entries, size=(n, n))


def drawn_gram(mechanism: Mechanism, scale: float, limit: int = MAX_DRAWN_ROUNDS) -> DrawnMatrix:
    """Returns X = C^T C times the square of a scale, where C is the encoder."""
    n = mechanism.rounds
    X = gram_entries(mechanism, drawn_rounds(n, limit))
    return DrawnMatrix(entries=scale**2 * X, size=(n, n))


class PooledColumns:
    """Reduction of a wide matrix to fewer columns, by the largest of neighbouring entries.

    The matrix is added in blocks of columns. "Largest" is by absolute value.

    >>> pooled = PooledColumns(1, 4, limit=2)
    >>> pooled.add(1, np.array([[-3.0, 1.0, 2.0]]))
    >>> pooled.entries
    array([[-3.,  2.]])
    """

    def __init__(self, num_rows: int, num_columns: int, limit: int = PIXELS) -> None:
        self._num_columns = num_columns
        self.entries = np.zeros((num_rows, min(limit, num_columns)))

    def add(self, first_column: int, block: np.ndarray) -> None:
        """Adds a block of columns, the first of which has index `first_column`."""
        column_indices = first_column + np.arange(block.shape[1])
        pooled_columns = column_indices * self.entries.shape[1] // self._num_columns
        pool_starts = np.flatnonzero(np.diff(pooled_columns, prepend=-1))
        highest_values = np.maximum.reduceat(block, pool_starts, axis=1)
        lowest_values = np.minimum.reduceat(block, pool_starts, axis=1)
        largest_by_magnitude = np.where(
            highest_values >= -lowest_values, highest_values, lowest_values
        )
        pooled_columns = pooled_columns[pool_starts]
        previous_values = self.entries[:, pooled_columns]
        is_larger = np.abs(largest_by_magnitude) > np.abs(previous_values)
        self.entries[:, pooled_columns] = np.where(is_larger, largest_by_magnitude, previous_values)


def correlation(noising: np.ndarray) -> np.ndarray:
    """Returns the correlation between rounds of the noise N Z, where N is the noise matrix.

    Entries of rounds without noise are 0.
    """
    return correlation_of(noising @ noising.T)


def correlation_of(covariance: np.ndarray) -> np.ndarray:
    """Converts a covariance matrix of rounds to a correlation matrix.

    Entries of rounds without noise are 0.
    """
    round_stds = np.sqrt(np.diag(covariance))
    inverse_std = np.divide(1.0, round_stds, out=np.zeros_like(round_stds), where=round_stds > 0)
    return without_specks(covariance * inverse_std[:, None] * inverse_std[None, :])
