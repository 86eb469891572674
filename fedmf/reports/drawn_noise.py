"""Matrices of noise as pictures show them: whole ones of short runs, and of a long run the rows of
a thousand rounds.
"""

import dataclasses

import numpy as np

from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.noise_rows import NoisingRows, encoder_blocks, gram_entries, has_encoder_rows
from fedmf.reports.canvas import PIXELS, without_specks

# Rounds that a picture is drawn from.
MAX_DRAWN_ROUNDS = 1000
# Rounds of mechanisms whose C is formed for a picture: half a gigabyte.
MAX_FORMED_ROUNDS = 8192


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrawnMatrix:
    """A matrix for a heat map.

    Attributes:
      entries: float64; of a large matrix chosen rows, and of their entries the one of the largest
        size in each of a few hundred blocks of columns.
      size: shape of the matrix itself.
    """

    entries: np.ndarray
    size: tuple[int, int]


def whole(matrix: np.ndarray) -> DrawnMatrix:
    """Returns a matrix that is drawn as it is."""
    return DrawnMatrix(entries=matrix, size=(matrix.shape[0], matrix.shape[1]))


def drawn_rounds(rounds: int, limit: int = MAX_DRAWN_ROUNDS) -> np.ndarray:
    """Returns the rounds that a picture is drawn from: all, or some at equal distances.

    >>> drawn_rounds(10, 4)
    array([0, 3, 6, 9])
    """
    return np.arange(0, rounds, -(-rounds // limit))


def drawn_noise(
    mechanism: Mechanism, scale: float, limit: int = MAX_DRAWN_ROUNDS
) -> tuple[DrawnMatrix, DrawnMatrix]:
    """Returns scale * N, and the correlation of the noise of two rounds.

    Args:
      mechanism: with N.
      scale: positive.
      limit: rounds that are drawn at most.
    """
    n = mechanism.rounds
    if n <= limit:
        weights = scale * mechanism.noising()
        return whole(weights), whole(correlation(weights))
    rounds = drawn_rounds(n, limit)
    rows = NoisingRows(mechanism)
    pooled = PooledColumns(len(rounds), rows.num_sources)
    covariance = np.zeros((len(rounds), len(rounds)))
    for first, block in rows.blocks(rounds, rounds + 1):
        # Rows of rounds before the block are 0 where N is causal.
        active = np.flatnonzero(block.any(axis=1))
        if len(active):
            start = active[0]
            covariance[start:, start:] += block[start:] @ block[start:].T
        pooled.add(first, block)
    weights = scale * pooled.entries
    return (
        DrawnMatrix(entries=weights, size=(n, rows.num_sources)),
        DrawnMatrix(entries=correlation_of(covariance), size=(n, n)),
    )


def is_drawable(mechanism: Mechanism) -> bool:
    """Returns whether C, N and X can be drawn in seconds: rows of them by formula, or whole."""
    return has_encoder_rows(mechanism) or mechanism.rounds <= MAX_FORMED_ROUNDS


def drawn_encoder(mechanism: Mechanism, scale: float, limit: int = MAX_DRAWN_ROUNDS) -> DrawnMatrix:
    """Returns scale * C."""
    n = mechanism.rounds
    if n <= limit or not has_encoder_rows(mechanism):
        return whole(scale * mechanism.encoder())
    rounds = drawn_rounds(n, limit)
    pooled = PooledColumns(len(rounds), n)
    for first, block in encoder_blocks(mechanism, rounds):
        pooled.add(first, block)
    return DrawnMatrix(entries=scale * pooled.entries, size=(n, n))


def drawn_gram(mechanism: Mechanism, scale: float, limit: int = MAX_DRAWN_ROUNDS) -> DrawnMatrix:
    """Returns scale^2 * X."""
    n = mechanism.rounds
    X = gram_entries(mechanism, drawn_rounds(n, limit))
    return DrawnMatrix(entries=scale**2 * X, size=(n, n))


class PooledColumns:
    """Rows of a wide matrix, given in blocks of columns: of every few columns the entry of the
    largest size.

    >>> pooled = PooledColumns(1, 4, limit=2)
    >>> pooled.add(1, np.array([[-3.0, 1.0, 2.0]]))
    >>> pooled.entries
    array([[-3.,  2.]])
    """

    def __init__(self, num_rows: int, num_columns: int, limit: int = PIXELS) -> None:
        self._num_columns = num_columns
        self.entries = np.zeros((num_rows, min(limit, num_columns)))

    def add(self, first: int, block: np.ndarray) -> None:
        """Takes the columns from `first` on."""
        columns = first + np.arange(block.shape[1])
        places = columns * self.entries.shape[1] // self._num_columns
        starts = np.flatnonzero(np.diff(places, prepend=-1))
        high = np.maximum.reduceat(block, starts, axis=1)
        low = np.minimum.reduceat(block, starts, axis=1)
        largest = np.where(high >= -low, high, low)
        places = places[starts]
        before = self.entries[:, places]
        self.entries[:, places] = np.where(np.abs(largest) > np.abs(before), largest, before)


def correlation(noising: np.ndarray) -> np.ndarray:
    """Returns the correlation of the rows of N Z, (rounds, rounds); 0 for a round without noise."""
    return correlation_of(noising @ noising.T)


def correlation_of(covariance: np.ndarray) -> np.ndarray:
    """Returns the correlation of noise with this covariance; 0 for a round without noise."""
    deviation = np.sqrt(np.diag(covariance))
    scale = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 0)
    return without_specks(covariance * scale[:, None] * scale[None, :])
