"""Precomputed noise vectors, computed in blocks of rounds. Each call for a noise vector also
computes a share of the next block, so that no round waits for a whole block.

A tile is a range of coordinates, small enough for the cache. Its rows are independent of those of
all other tiles. Memory of returned rows is used for the next tiles.

    rounds    0 1 2-3 4-7 8---15 16---23 ...    blocks double up to their full length
    row(2)        |   ==> the first half of the tiles of rounds 4-7
    row(3)        |   ==> their second half
"""

import bisect
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from fedmf.noise.blocks import BlockForm
from fedmf.noise.layout import TileLayout
from fedmf.server.noise_store import MakeArray, NoiseStore, NoiseTile
from fedmf.server.noise_tiles import NoiseDraws, TileWork, TileWorker
from fedmf.server.product_threads import blas_libraries, for_each
from fedmf.terminal import progress_bar


class IndependentRows:
    """Noise vectors of a run whose noise matrix N is diagonal. Row t of N Z is a scaled row of Z,
    where Z has standard normal entries.

    Args:
      form: form of the noise matrix, in blocks of one round and without a state.
      draws: draws of the run.
    """

    def __init__(self, form: BlockForm, draws: NoiseDraws) -> None:
        self._form = form
        self._size = draws.size
        self._source = draws.source()

    def row(self, t: int) -> np.ndarray:
        """Returns the noise vector of round t, row t of N Z, as float32 (size,)."""
        noise_row = np.empty((1, self._size), np.float32)
        self._source.fill(noise_row, t)
        row_scale = np.float32(self._form.matrix(t)[0, 0])
        return noise_row[0] if row_scale == 1 else noise_row[0] * row_scale


class _BlockMatrix(NamedTuple):
    """The number b of a block of rounds, and the matrix from which its noise is computed."""

    block: int
    matrix: np.ndarray


class BlockRows:
    """The noise vectors of a run, computed in blocks. Each block is computed in shares during the
    rounds before it.

    An interrupt while tiles are computed discards all that is in memory, and the next call computes
    from round 0 on.

    Args:
      work: computes a block.
      layout: layout of the memory.
      draws: draws of the run.
      make_array: makes the memory.
    """

    def __init__(
        self, work: TileWork, layout: TileLayout, draws: NoiseDraws, make_array: MakeArray
    ) -> None:
        self._work = work
        self._layout = layout
        self._draws = draws
        self._make_array = make_array
        self._free_workers: list[TileWorker] = []
        self._newest_matrix = _BlockMatrix(-1, np.zeros((0, 0), np.float32))
        # The BLAS libraries are looked up here, before round 0, because the search takes
        # milliseconds.
        blas_libraries()
        self._begin()

    def _begin(self) -> None:
        """Begins again with block 0, in new memory."""
        self._store = NoiseStore(self._layout, self._draws.size, self._make_array)
        # The number of the block of noise vectors that is being computed.
        self._block = 0
        self._num_tiles_done = 0
        self._is_torn = False

    def row(self, t: int) -> np.ndarray:
        """Returns the noise vector of round t, row t of N Z, as a new float32 array of shape
        (size,). It also computes a share of the next block.

        To go back to an earlier round, sequential work computes all blocks from round 0 on again.
        """
        block_bounds = self._work.bounds
        block_index = bisect.bisect_right(block_bounds, t) - 1
        self._make_block(block_index, t)
        noise_row = np.empty(self._draws.size, np.float32)
        for tile in self._store.tiles:
            self._store.read(tile.row_slots[t], noise_row[tile.columns])
        if self._block == block_index + 1 < len(block_bounds) - 1:
            num_rounds = block_bounds[block_index + 1] - block_bounds[block_index]
            num_tiles = len(self._store.tiles) * (t - block_bounds[block_index] + 1) // num_rounds
            self._make_tiles(num_tiles, t)
        return noise_row

    def _make_block(self, number: int, t: int) -> None:
        """Computes block `number` from round t on, after the earlier blocks that it needs."""
        if self._is_torn or (self._work.is_sequential and t < self._oldest_row()):
            self._begin()
        if not self._work.is_sequential and (t < self._oldest_row() or number > self._block):
            self._restart_at(number)
        for tile in self._store.tiles:
            self._drop_rows(tile, t)
        missing_blocks: Iterable[int] = range(self._block, number + 1)
        if number > self._block:
            is_hidden = not self._draws.is_shown
            missing_blocks = progress_bar.bar(
                missing_blocks, desc="noise", unit="block", delay=3, disable=is_hidden
            )
        for _ in missing_blocks:
            self._make_tiles(len(self._store.tiles), t)

    def _oldest_row(self) -> int:
        """Returns the first round whose noise vector is in memory for every tile."""
        return max((tile.oldest for tile in self._store.tiles[:1]), default=0)

    def _restart_at(self, number: int) -> None:
        """Makes block `number` the next one to compute. It frees all rows and keeps the draws."""
        for tile in self._store.tiles:
            self._store.drop_rows(tile, tile.end)
            tile.oldest = self._work.bounds[number]
            tile.end = tile.oldest
        self._block = number
        self._num_tiles_done = 0

    def _drop_rows(self, tile: NoiseTile, first: int) -> None:
        """Frees a tile's rows of rounds before `first`, but keeps the rows that the next block is
        computed from.
        """
        self._store.drop_rows(tile, min(first, tile.end - self._work.num_past_rows))

    def _make_tiles(self, num_tiles: int, first: int) -> None:
        """Computes block `self._block` from round `first` on for the first `num_tiles` tiles. Tiles
        that are done already are skipped.
        """
        block_number = self._block
        noise_store = self._store
        pending_tiles = noise_store.tiles[self._num_tiles_done : num_tiles]
        if not pending_tiles:
            return
        if self._newest_matrix.block != block_number:
            # Block number and matrix are set in one assignment, so that they belong together even
            # if an interrupt comes.
            self._newest_matrix = _BlockMatrix(block_number, self._work.matrix(block_number))
        block_matrix = self._newest_matrix.matrix
        end_round = self._work.bounds[block_number + 1]

        def make(tile: NoiseTile) -> None:
            free_worker = self._take_worker()
            self._work.make(noise_store, tile, block_number, block_matrix, free_worker, first)
            tile.end = end_round
            self._drop_rows(tile, first)
            self._free_workers.append(free_worker)

        # After an error, threads may still write to the memory of the noise blocks. The flag makes
        # the next call start with new memory.
        self._is_torn = True
        for_each(make, pending_tiles)
        self._num_tiles_done = num_tiles
        if num_tiles == len(noise_store.tiles):
            self._block += 1
            self._num_tiles_done = 0
        self._is_torn = False

    def _take_worker(self) -> TileWorker:
        """Returns working memory that no other thread is using."""
        try:
            return self._free_workers.pop()
        except IndexError:
            return TileWorker(self._draws, self._work, self._layout.tile_width)
