"""Computation of the noise vectors of a block tile by tile, by recursion or from regenerated draws.

A tile is a range of coordinates.
"""

from typing import Protocol

import numpy as np

from fedmf.noise.blocks import BlockForm
from fedmf.server.noise_store import NoiseStore, NoiseTile
from fedmf.server.source import GaussianSource


class NoiseDraws:
    """The random draws of one run, the rows of the standard normal matrix Z.

    Args:
      key: uint64 (4,), of the run's source.
      size: coordinates of a row, d.

    Attributes:
      size: coordinates of a row.
      is_shown: whether a bar shows the progress of blocks that take more than some seconds.
    """

    def __init__(self, key: np.ndarray, size: int) -> None:
        self._key = key
        self.size = size
        self.is_shown = False

    def source(self) -> GaussianSource:
        """Returns a Gaussian source with its own working memory, for one thread."""
        return GaussianSource(self._key)


class TileWorker:
    """The working memory of one thread that computes tiles (ranges of coordinates)."""

    def __init__(self, draws: NoiseDraws, work: "TileWork", tile_width: int) -> None:
        self.source = draws.source()
        self.inputs = np.zeros((work.num_inputs, tile_width), np.float32)
        self.outputs = np.zeros((work.num_outputs, tile_width), np.float32)


class TileWork(Protocol):
    """Interface of a method that computes the noise vectors of a block tile by tile. A tile is a
    range of coordinates.

    Attributes:
      bounds: bounds of the blocks; see `BlockForm`.
      num_inputs, num_outputs: rows of working memory that a thread needs.
      num_past_rows: rows of the rounds before a block from which the block is computed.
      is_sequential: whether the blocks before a block must be computed first.
    """

    bounds: tuple[int, ...]
    num_inputs: int
    num_outputs: int
    num_past_rows: int
    is_sequential: bool

    def matrix(self, b: int) -> np.ndarray:
        """Returns the float32 matrix by which `make` multiplies in block b."""
        ...

    def make(
        self,
        store: NoiseStore,
        tile: NoiseTile,
        b: int,
        matrix: np.ndarray,
        worker: TileWorker,
        first: int,
    ) -> None:
        """Computes block b for one tile, and stores its rows from round `first` on."""
        ...


class RecurrentWork:
    """Computation of noise vectors by recursion over blocks, [X_b; S_(b+1)] = M_b [Z_b; S_b]. X_b
    has the noise vectors of block b, Z_b its standard normal draws, S_b the state before it, and
    M_b is the block's matrix. A rolling state consists of the last noise vectors.
    """

    is_sequential = True

    def __init__(self, form: BlockForm) -> None:
        self.bounds = form.bounds
        self.num_inputs = form.length + form.width
        self.num_outputs = form.length
        self.num_past_rows = 0
        if form.is_rolling:
            self.num_past_rows = form.width
        else:
            self.num_outputs += form.width
        self._form = form

    def matrix(self, b: int) -> np.ndarray:
        """Returns the matrix M_b of block b, without the rows that only copy a rolling state."""
        num_rounds = self.bounds[b + 1] - self.bounds[b]
        M = self._form.matrix(b)
        if self._form.is_rolling:
            M = M[:num_rounds]
        return M.astype(np.float32)

    def make(
        self,
        store: NoiseStore,
        tile: NoiseTile,
        b: int,
        matrix: np.ndarray,
        worker: TileWorker,
        first: int,
    ) -> None:
        """Computes block b for one tile, as `TileWork.make` describes."""
        block_start = self.bounds[b]
        block_end = self.bounds[b + 1]
        num_rounds = block_end - block_start
        if self._form.is_rolling:
            past_rounds = range(block_start - 1, max(block_start - self._form.width, 0) - 1, -1)
            state_slots = [tile.row_slots[t] for t in past_rounds]
        else:
            state_slots = tile.state_slots
        # Before round 0 the state is 0, so no slots of the noise store hold it.
        num_inputs = num_rounds + len(state_slots)
        tile_inputs = worker.inputs[:num_inputs, : tile.width]
        worker.source.fill(tile_inputs[:num_rounds], block_start, tile.columns.start)
        for row, slot in zip(tile_inputs[num_rounds:], state_slots, strict=True):
            store.read(slot, row)
        tile_outputs = worker.outputs[: len(matrix), : tile.width]
        np.matmul(matrix[:, :num_inputs], tile_inputs, out=tile_outputs)
        first = max(block_start, min(first, block_end - self.num_past_rows))
        written_slots = store.write(tile_outputs[first - block_start : num_rounds])
        tile.row_slots.update(zip(range(first, block_end), written_slots, strict=True))
        if not self._form.is_rolling:
            store.free(tile.state_slots)
            tile.state_slots = store.write(tile_outputs[num_rounds:])


class RegeneratedWork:
    """Computation of noise vectors as products of the noise matrix N with all draws up to their
    rounds. The first draws are stored, and later ones are drawn again for each block.

    Rows are bitwise identical for every number of stored draws, and for all block lengths that are
    multiples of `together`, because the products are the same.

    Args:
      matrix: N, float64 (rounds, rounds), lower-triangular.
      bounds: bounds of the blocks.
      together: rows that are computed by one product.
      stored_draws: rounds whose draws are stored.
    """

    is_sequential = False
    num_past_rows = 0

    def __init__(
        self, matrix: np.ndarray, bounds: tuple[int, ...], together: int, stored_draws: int
    ) -> None:
        self.bounds = bounds
        self.num_inputs = bounds[-1]
        self.num_outputs = together
        self._matrix = matrix
        self._stored_draws = stored_draws

    def matrix(self, b: int) -> np.ndarray:
        """Returns the rows of the noise matrix N for the rounds of block b."""
        block_start = self.bounds[b]
        block_end = self.bounds[b + 1]
        return self._matrix[block_start:block_end, :block_end].astype(np.float32)

    def make(
        self,
        store: NoiseStore,
        tile: NoiseTile,
        b: int,
        matrix: np.ndarray,
        worker: TileWorker,
        first: int,
    ) -> None:
        """Computes block b for one tile, as `TileWork.make` describes."""
        block_start = self.bounds[b]
        block_end = self.bounds[b + 1]
        stored_draws = store.draws[tile.index][:, : tile.width]
        if block_end <= self._stored_draws:
            z = stored_draws[:block_end]
        else:
            z = worker.inputs[:block_end, : tile.width]
            z[: tile.num_draws] = stored_draws[: tile.num_draws]
        if tile.num_draws < block_end:
            worker.source.fill(z[tile.num_draws :], tile.num_draws, tile.columns.start)
        if block_end > self._stored_draws:
            stored_draws[tile.num_draws :] = z[tile.num_draws : self._stored_draws]
        tile.num_draws = max(tile.num_draws, min(block_end, self._stored_draws))
        for group_start in range(block_start, block_end, len(worker.outputs)):
            group_stop = min(group_start + len(worker.outputs), block_end)
            tile_outputs = worker.outputs[: group_stop - group_start, : tile.width]
            group_matrix = matrix[group_start - block_start : group_stop - block_start, :group_stop]
            np.matmul(group_matrix, z[:group_stop], out=tile_outputs)
            group_first = max(group_start, min(first, group_stop))
            written_slots = store.write(tile_outputs[group_first - group_start :])
            tile.row_slots.update(zip(range(group_first, group_stop), written_slots, strict=True))
