"""Rows of the noise matrix N, with their sums and norms. Where possible they are computed without
storing all of N.

N of a long run is too large to be formed: 20,000 rounds take 3 GB, and N N^T as much again. Reports
and servers need a thousand of its rows, or the norm of every row:

- N of a Toeplitz mechanism has the entries N[t, s] = n[t - s];
- N of a recurrence or of running sums is written in blocks of rounds (`fedmf.noise.blocks`),
  [X_b; S_(b+1)] = M_b [Z_b; S_b]. For weights W on the rows, W N follows from the last block to the
  first: with V the weights on S_(b+1), those on Z_b are [W_b, V] M_b[:, :L], and those on S_b are
  [W_b, V] M_b[:, L:]. For a long tree, N stands here for the lower-triangular matrix that
  makes noise of the same distribution from one draw a round;
- other mechanisms compute their noise from N, which is then formed once.
"""

import functools
from collections.abc import Iterator, Sequence

import numpy as np

from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.error import squared_rows
from fedmf.noise.blocks import block_form, equal_blocks
from fedmf.noise.stream import NoiseStream
from fedmf.participation.tree_sensitivity import pair_counts
from fedmf.workloads import Workload, prefix_sum

# Number of columns of the noise matrix N that are computed at a time. A column of N is called a
# source here, because it belongs to one independent draw.
_BLOCK_SOURCES = 256
# For trees of at most this many rounds, the noise matrix N of their nodes is formed.
_MAX_TREE_ROUNDS = 4096


class NoisingRows:
    """The rows of the noise matrix N of one mechanism, with their sums and norms.

    Args:
      mechanism: the mechanism; the recipe of its noise is computed once.

    >>> from fedmf.mechanisms import ToeplitzMechanism
    >>> rows = NoisingRows(ToeplitzMechanism(rounds=3, coefficients=[1.0, 1.0]))
    >>> rows.round_deviations() ** 2
    array([1., 2., 3.])
    >>> rows.window_deviations([1, 0], [3, 3]) ** 2
    array([1., 2.])
    """

    def __init__(self, mechanism: Mechanism) -> None:
        self._mechanism = mechanism
        self._column = mechanism.noising_coefficients()

    @functools.cached_property
    def _stream(self) -> NoiseStream:
        noise_stream = self._mechanism.stream()
        if noise_stream.tree is None:
            return noise_stream
        if noise_stream.rounds <= _MAX_TREE_ROUNDS:
            return noise_stream.as_contraction()
        return noise_stream.causal()

    @property
    def num_sources(self) -> int:
        """The number of columns of the noise matrix N, one for each independent draw."""
        if self._column is not None:
            return self._mechanism.rounds
        return self._stream.sources

    def round_deviations(self) -> np.ndarray:
        """Returns the norm of each row of the noise matrix N, float64 (rounds,). It is the standard
        deviation of the noise of each round if the draws have standard deviation 1.
        """
        identity_rows = np.ones((self._mechanism.rounds, 1))
        return np.sqrt(
            squared_rows(self._mechanism, Workload.from_inverse("identity", identity_rows))
        )

    def sum_deviations(self) -> np.ndarray:
        """Returns for each round t the norm of the sum of rows 0..t of the noise matrix N, float64
        (rounds,).
        """
        return np.sqrt(squared_rows(self._mechanism, prefix_sum(self._mechanism.rounds)))

    def window_deviations(self, starts: Sequence[int], ends: Sequence[int]) -> np.ndarray:
        """Returns the norms of sums of rows of the noise matrix N, float64 (windows,). Window i
        sums the rows starts[i] to ends[i] - 1.
        """
        squared_deviations = np.zeros(len(starts))
        for _, block in self.blocks(np.array(starts), np.array(ends)):
            squared_deviations += np.einsum("ij,ij->i", block, block)
        return np.sqrt(squared_deviations)

    def blocks(self, starts: np.ndarray, ends: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Yields sums of rows of the noise matrix N in blocks of columns, which come in any order.

        Args:
          starts, ends: ints (rows,); row i is the sum of rows starts[i] to ends[i] - 1 of N.

        Yields:
          The index of the block's first source, and the block: float64 (rows, sources of the
          block).
        """
        if self._column is not None:
            yield from _toeplitz_blocks(self._column, starts, ends)
            return
        if self._stream.contraction is not None:
            yield from _contracted_blocks(self._stream.contraction, starts, ends)
            return
        noise_block_form = block_form(
            self._stream, bounds=equal_blocks(self._stream.rounds, _BLOCK_SOURCES)
        )
        assert noise_block_form is not None
        sum_weights = np.zeros((len(starts), noise_block_form.width))
        for number in reversed(range(noise_block_form.num_blocks)):
            block_rounds = np.arange(
                noise_block_form.bounds[number], noise_block_form.bounds[number + 1]
            )
            row_weights = (block_rounds >= starts[:, None]) & (block_rounds < ends[:, None])
            block_product = np.hstack([row_weights, sum_weights]) @ noise_block_form.matrix(number)
            yield int(block_rounds[0]), block_product[:, : len(block_rounds)]
            sum_weights = block_product[:, len(block_rounds) :]


def _toeplitz_blocks(
    column: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the blocks that `NoisingRows.blocks` describes, for the lower-triangular Toeplitz
    matrix whose first column is `column`.
    """
    is_single = bool((ends == starts + 1).all())
    cumulative_sums = np.concatenate([[0.0], np.cumsum(column)])
    for first_source in range(0, len(column), _BLOCK_SOURCES):
        source_indices = np.arange(first_source, min(first_source + _BLOCK_SOURCES, len(column)))
        lags = starts[:, None] - source_indices
        if is_single:
            yield first_source, np.where(lags >= 0, column[np.maximum(lags, 0)], 0.0)
        else:
            # If a draw is later than the first round of a window, its lag is negative. Entry 0 of
            # the cumulative sums, which is 0, is then read instead.
            sums_to_start = cumulative_sums[np.maximum(lags, 0)]
            yield (
                first_source,
                cumulative_sums[np.maximum(ends[:, None] - source_indices, 0)] - sums_to_start,
            )


def _contracted_blocks(
    N: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the blocks that `NoisingRows.blocks` describes, from the entries of a noise
    matrix N.
    """
    for first_source in range(0, N.shape[1], _BLOCK_SOURCES):
        block_columns = N[:, first_source : first_source + _BLOCK_SOURCES]
        row_sums = [
            block_columns[start:end].sum(axis=0) for start, end in zip(starts, ends, strict=True)
        ]
        yield first_source, np.stack(row_sums)


def has_encoder_rows(mechanism: Mechanism) -> bool:
    """Returns whether rows of C can be computed without forming C, which is the case if C is
    Toeplitz or banded.
    """
    return mechanism.toeplitz_coefficients() is not None or mechanism.banded_rows() is not None


def encoder_blocks(mechanism: Mechanism, rounds: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yields rows of the encoder C in blocks of columns, each with the first round of the block.

    Args:
      mechanism: a mechanism that `has_encoder_rows`.
      rounds: the indices of the rows, ints.
    """
    first_column = mechanism.toeplitz_coefficients()
    banded_rows = mechanism.banded_rows()
    n = mechanism.rounds
    if first_column is not None:
        padded_column = np.pad(first_column, (0, n - len(first_column)))
        yield from _toeplitz_blocks(padded_column, rounds, rounds + 1)
        return
    assert banded_rows is not None
    for first_round in range(0, n, _BLOCK_SOURCES):
        lags = rounds[:, None] - np.arange(first_round, min(first_round + _BLOCK_SOURCES, n))
        is_inside = (lags >= 0) & (lags < banded_rows.shape[1])
        row_entries = banded_rows[rounds[:, None], np.where(is_inside, lags, 0)]
        yield first_round, np.where(is_inside, row_entries, 0.0)


def gram_entries(mechanism: Mechanism, rounds: np.ndarray) -> np.ndarray:
    """Returns the entries of X = C^T C between the given rounds, float64 (len(rounds),
    len(rounds)), where C is the encoder.

    Raises:
      ValueError: C would have to be formed, and does not fit into memory.

    >>> from fedmf.mechanisms import ToeplitzMechanism
    >>> gram_entries(ToeplitzMechanism(rounds=3, coefficients=[1.0, 0.5]), np.array([0, 2]))
    array([[1.25, 0.  ],
           [0.  , 1.  ]])
    """
    trees = mechanism.binary_trees()
    if trees is not None:
        return pair_counts(trees, rounds)
    n = mechanism.rounds
    num_rounds = len(rounds)
    first_column = mechanism.toeplitz_coefficients()
    banded_rows = mechanism.banded_rows()
    lags = np.abs(rounds[:, None] - rounds)
    if first_column is not None:
        # X[s, t] is the sum of c_i c_(i + |s - t|) over i from 0 to n - 1 - max(s, t).
        padded_column = np.pad(first_column, (0, n - len(first_column)))
        num_terms = n - np.maximum(rounds[:, None], rounds)
        X = np.zeros((num_rounds, num_rounds))
        for lag in np.unique(lags):
            cumulative_sums = np.concatenate(
                [[0.0], np.cumsum(padded_column[: n - lag] * padded_column[lag:])]
            )
            has_lag = lags == lag
            X[has_lag] = cumulative_sums[num_terms[has_lag]]
        return X
    gram = mechanism.toeplitz_gram()
    if gram is not None:
        return gram[lags]
    if banded_rows is None:
        encoder_columns = mechanism.encoder()[:, rounds]
        return encoder_columns.T @ encoder_columns
    X = np.zeros((num_rounds, num_rounds))
    bands = banded_rows.shape[1]
    band_offsets = np.arange(bands)
    for i, j in zip(*np.nonzero(lags < bands), strict=True):
        first_row = max(rounds[i], rounds[j])
        shared_rows = first_row + band_offsets[: bands - lags[i, j]]
        shared_rows = shared_rows[shared_rows < n]
        column_i = banded_rows[shared_rows, shared_rows - rounds[i]]
        X[i, j] = column_i @ banded_rows[shared_rows, shared_rows - rounds[j]]
    return X
