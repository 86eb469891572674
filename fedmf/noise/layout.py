"""The tiles of coordinates in which precomputed noise is computed, and the memory that
they take.
"""

import dataclasses
import math

import numpy as np

# Number of threads that compute noise, each of which has its own working memory.
THREADS = 2
# Largest number of coordinates of a tile, a range of coordinates whose noise is computed together.
# It is large enough for an efficient matrix product, and small enough for the cache.
TILE = 65_536
# Number of coordinates that the noise source draws together. The width of a tile (a range of
# coordinates) is a multiple of it.
CHUNK = 1024
# Smallest number of coordinates of a tile, unless the model is too small. Smaller tiles cost more
# in calls than in arithmetic.
_SMALL_TILE = 16_384
# Longest block of rounds for a model with few chunks (groups of 1024 coordinates). For such a small
# model, a whole tile is computed at once.
_SHORT_BLOCK = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class TileLayout:
    """The memory for blocks of noise vectors, from their computation until their rounds use them.

    Attributes:
      tile_width: number of coordinates of a tile.
      waiting_rows: largest number of rows of model size that wait or carry the past.
      longest: rows of the longest block, which a thread writes before it frees earlier ones.
      stored_draws: number of rounds whose draws are stored.
    """

    tile_width: int
    waiting_rows: int
    longest: int
    stored_draws: int = 0

    @property
    def rows(self) -> int:
        """The number of rows of model size in memory, not counting the few tiles that threads are
        writing.
        """
        return self.waiting_rows + self.stored_draws

    def num_slots(self, num_tiles: int) -> int:
        """Returns the number of rows of one tile's width that the memory has room for."""
        return num_tiles * self.waiting_rows + THREADS * self.longest


def tile_width(size: int, length: int) -> int:
    """Returns the number of coordinates of a tile, for blocks of `length` rounds.

    In a large model, the share of a block that is computed in one round consists of several tiles.
    """
    ideal_width = max(size / (THREADS * length), min(_SMALL_TILE, 2 * size / length))
    return min(TILE, CHUNK * max(1, -(-int(ideal_width) // CHUNK)))


def longest_block(size: int) -> int:
    """Returns the largest number of rounds that a block may have, for a model of `size` parameters.

    In a longer one, the share that is computed in one round would be less than half a tile.
    """
    return max(_SHORT_BLOCK, 2 * -(-size // CHUNK))


def waiting_rows(bounds: tuple[int, ...], past_rows: int) -> int:
    """Returns the largest number of noise vectors in memory at a time, which wait for their rounds
    or which later blocks depend on.

    In round t these are the noise vectors of its block from round t on, those of the next block in
    the tiles that are already computed, and in every tile the earlier vectors that later blocks
    depend on.

    Args:
      bounds: bounds of the blocks; see `BlockForm`.
      past_rows: number of rows before the end of a block that carry the past.
    """
    block_starts = np.array(bounds[:-1])
    block_stops = np.array(bounds[1:])
    next_stops = np.append(block_stops[1:], block_stops[-1])
    num_past_rows = np.minimum(past_rows, block_stops)
    num_next_past_rows = np.minimum(past_rows, next_stops)
    block_figures = np.stack(
        (block_stops - block_starts, next_stops - block_starts, num_past_rows, num_next_past_rows),
        axis=1,
    )
    max_rows = 1
    # Most blocks have the same number of rounds, rows ahead and past rows, so each distinct
    # combination is evaluated once.
    for num_rounds, num_ahead, num_past, num_next_past in set(map(tuple, block_figures.tolist())):
        num_used = np.arange(num_rounds)
        rows_in_old_tiles = np.maximum(num_rounds - num_used, num_past)
        rows_in_new_tiles = np.maximum(num_ahead - num_used, num_next_past)
        fraction_of_new_tiles = (num_used + 1) / num_rounds
        num_rows = (
            1 - fraction_of_new_tiles
        ) * rows_in_old_tiles + fraction_of_new_tiles * rows_in_new_tiles
        max_rows = max(max_rows, math.ceil(np.max(num_rows)))
    return max_rows
