"""Precomputed noise vectors, computed in blocks of rounds. Each call for a noise vector also
computes a share of the next block, so that no round waits for a whole block.

A tile is a range of coordinates, small enough for the cache. Its rows are independent of those of
all other tiles. Memory of returned rows is used for the next tiles.

    rounds    0 1 2-3 4-7 8---15 16---23 ...    blocks double up to their full length
    row(2)        |   ==> the first half of the tiles of rounds 4-7
    row(3)        |   ==> their second half
"""

import bisect
import concurrent.futures
import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np
import threadpoolctl

from fedmf.noise.blocks import BlockForm
from fedmf.noise.layout import THREADS, TileLayout
from fedmf.server.noise_store import MakeArray, NoiseStore, NoiseTile
from fedmf.server.source import GaussianSource
from fedmf.terminal import progress_bar

# Threads of numpy's products are limited for the whole process. If two limits overlapped, the one
# that ends last would restore the limit of the other one. So this lock allows one limit at a time.
# It is reentrant, because a signal handler may call for a row of another run.
_ONE_LIMIT = threading.RLock()


def _free_limit_in_child() -> None:
    """Replaces the lock in a forked process, which lacks the thread that may hold it."""
    global _ONE_LIMIT
    _ONE_LIMIT = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_limit_in_child)


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
        row = np.empty((1, self._size), np.float32)
        self._source.fill(row, t)
        scale = np.float32(self._form.matrix(t)[0, 0])
        return row[0] if scale == 1 else row[0] * scale


class _Worker:
    """The working memory of one thread that computes tiles (ranges of coordinates)."""

    def __init__(self, draws: NoiseDraws, work: "TileWork", tile_width: int) -> None:
        self.source = draws.source()
        self.inputs = np.zeros((work.num_inputs, tile_width), np.float32)
        self.outputs = np.zeros((work.num_outputs, tile_width), np.float32)


class _BlockMatrix(NamedTuple):
    """The number b of a block of rounds, and its matrix, which `TileWork.matrix` returns."""

    block: int
    matrix: np.ndarray


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
        worker: _Worker,
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
        """Returns the matrix M_b, without the rows that only copy a rolling state."""
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
        worker: _Worker,
        first: int,
    ) -> None:
        """Computes block b for one tile, as `TileWork.make` describes."""
        start = self.bounds[b]
        stop = self.bounds[b + 1]
        num_rounds = stop - start
        if self._form.is_rolling:
            past_rounds = range(start - 1, max(start - self._form.width, 0) - 1, -1)
            state_slots = [tile.row_slots[t] for t in past_rounds]
        else:
            state_slots = tile.state_slots
        # Before round 0 the state is 0, and no slots of the store hold it.
        num_inputs = num_rounds + len(state_slots)
        inputs = worker.inputs[:num_inputs, : tile.width]
        worker.source.fill(inputs[:num_rounds], start, tile.columns.start)
        for row, slot in zip(inputs[num_rounds:], state_slots, strict=True):
            store.read(slot, row)
        outputs = worker.outputs[: len(matrix), : tile.width]
        np.matmul(matrix[:, :num_inputs], inputs, out=outputs)
        first = max(start, min(first, stop - self.num_past_rows))
        slots = store.write(outputs[first - start : num_rounds])
        tile.row_slots.update(zip(range(first, stop), slots, strict=True))
        if not self._form.is_rolling:
            store.free(tile.state_slots)
            tile.state_slots = store.write(outputs[num_rounds:])


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
        """Returns the rows of N for the rounds of block b."""
        start = self.bounds[b]
        stop = self.bounds[b + 1]
        return self._matrix[start:stop, :stop].astype(np.float32)

    def make(
        self,
        store: NoiseStore,
        tile: NoiseTile,
        b: int,
        matrix: np.ndarray,
        worker: _Worker,
        first: int,
    ) -> None:
        """Computes block b for one tile, as `TileWork.make` describes."""
        start = self.bounds[b]
        stop = self.bounds[b + 1]
        stored_draws = store.draws[tile.index][:, : tile.width]
        if stop <= self._stored_draws:
            z = stored_draws[:stop]
        else:
            z = worker.inputs[:stop, : tile.width]
            z[: tile.num_draws] = stored_draws[: tile.num_draws]
        if tile.num_draws < stop:
            worker.source.fill(z[tile.num_draws :], tile.num_draws, tile.columns.start)
        if stop > self._stored_draws:
            stored_draws[tile.num_draws :] = z[tile.num_draws : self._stored_draws]
        tile.num_draws = max(tile.num_draws, min(stop, self._stored_draws))
        for group_start in range(start, stop, len(worker.outputs)):
            group_stop = min(group_start + len(worker.outputs), stop)
            outputs = worker.outputs[: group_stop - group_start, : tile.width]
            rows = matrix[group_start - start : group_stop - start, :group_stop]
            np.matmul(rows, z[:group_stop], out=outputs)
            group_first = max(group_start, min(first, group_stop))
            slots = store.write(outputs[group_first - group_start :])
            tile.row_slots.update(zip(range(group_first, group_stop), slots, strict=True))


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
        self._free_workers: list[_Worker] = []
        self._newest_matrix = _BlockMatrix(-1, np.zeros((0, 0), np.float32))
        # Finding the libraries takes milliseconds, which are spent here, before round 0.
        _blas_libraries()
        self._begin()

    def _begin(self) -> None:
        """Begins again with block 0, in new memory."""
        self._store = NoiseStore(self._layout, self._draws.size, self._make_array)
        self._block = 0  # The number of the block that is being computed.
        self._num_tiles_done = 0
        self._is_torn = False

    def row(self, t: int) -> np.ndarray:
        """Returns the noise vector of round t, row t of N Z, as a new array, float32 (size,). It
        also computes a share of the next block.

        To go back to an earlier round, sequential work computes all blocks from round 0 on again.
        """
        bounds = self._work.bounds
        block_index = bisect.bisect_right(bounds, t) - 1
        self._make_block(block_index, t)
        row = np.empty(self._draws.size, np.float32)
        for tile in self._store.tiles:
            self._store.read(tile.row_slots[t], row[tile.columns])
        if self._block == block_index + 1 < len(bounds) - 1:
            num_rounds = bounds[block_index + 1] - bounds[block_index]
            num_tiles = len(self._store.tiles) * (t - bounds[block_index] + 1) // num_rounds
            self._make_tiles(num_tiles, t)
        return row

    def _make_block(self, number: int, t: int) -> None:
        """Computes block `number` from round t on, after the earlier blocks that it needs."""
        if self._is_torn or (self._work.is_sequential and t < self._oldest_row()):
            self._begin()
        if not self._work.is_sequential and (t < self._oldest_row() or number > self._block):
            self._restart_at(number)
        for tile in self._store.tiles:
            self._drop_rows(tile, t)
        blocks: Iterable[int] = range(self._block, number + 1)
        if number > self._block:
            is_hidden = not self._draws.is_shown
            blocks = progress_bar.bar(
                blocks, desc="noise", unit="block", delay=3, disable=is_hidden
            )
        for _ in blocks:
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
        b = self._block
        store = self._store
        pending = store.tiles[self._num_tiles_done : num_tiles]
        if not pending:
            return
        if self._newest_matrix.block != b:
            # Block number and matrix are set in one assignment, so that they belong together even
            # if an interrupt comes.
            self._newest_matrix = _BlockMatrix(b, self._work.matrix(b))
        matrix = self._newest_matrix.matrix
        stop = self._work.bounds[b + 1]

        def make(tile: NoiseTile) -> None:
            worker = self._take_worker()
            self._work.make(store, tile, b, matrix, worker, first)
            tile.end = stop
            self._drop_rows(tile, first)
            self._free_workers.append(worker)

        # After an error threads may still write to the memory. The flag makes the next call start
        # with new memory.
        self._is_torn = True
        _for_each(make, pending)
        self._is_torn = False
        self._num_tiles_done = num_tiles
        if num_tiles == len(store.tiles):
            self._block += 1
            self._num_tiles_done = 0

    def _take_worker(self) -> _Worker:
        """Returns working memory that no other thread is using."""
        try:
            return self._free_workers.pop()
        except IndexError:
            return _Worker(self._draws, self._work, self._layout.tile_width)


def _for_each(work: Callable[[NoiseTile], None], tiles: Sequence[NoiseTile]) -> None:
    """Calls `work` for every tile. It uses two threads if numpy's products may use more than one.

    Each product uses one thread, so that its bits do not depend on the number of processors, and no
    idle thread of it keeps a processor from the draws.

    A first Ctrl-C waits for tiles that have begun, a second one does not: after an error threads
    may still write where `work` writes.
    """
    with _ONE_LIMIT, _one_thread_a_product() as allowed:
        num_threads = min(allowed, THREADS, len(tiles))
        if num_threads == 1:
            for tile in tiles:
                work(tile)
            return
        pool = concurrent.futures.ThreadPoolExecutor(num_threads, "noise")
        try:
            for job in [pool.submit(work, tile) for tile in tiles]:
                job.result()
        finally:
            pool.shutdown(cancel_futures=True)


@functools.cache
def _blas_libraries() -> tuple[Any, ...]:
    """Returns the controllers of the BLAS libraries in this process, which set the number of
    threads of numpy's products. Finding them takes milliseconds.
    """
    blas = threadpoolctl.ThreadpoolController().select(user_api="blas")
    return tuple(blas.lib_controllers)


@contextmanager
def _one_thread_a_product() -> Iterator[int]:
    """Limits numpy's products to one thread each inside the block, and yields their old limit."""
    libraries = _blas_libraries()
    past_limits = [library.num_threads for library in libraries]
    try:
        for library in libraries:
            library.set_num_threads(1)
        yield max(past_limits, default=1)
    finally:
        for library, num_threads in zip(libraries, past_limits, strict=True):
            library.set_num_threads(num_threads)
