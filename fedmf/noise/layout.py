"""The tiles of coordinates in which precomputed noise is computed, and the memory that
they take.
"""

import dataclasses
import math

import numpy as np

# Number of threads that compute noise, each of which has its own working memory.
THREADS = 2
# Noise is computed in tiles, which are ranges of coordinates. This is the largest number of
# coordinates of a tile: large enough for an efficient matrix product, and small enough for the
# cache.
TILE = 65_536
# The noise source draws this number of coordinates together. So the width of a tile (a range of
# coordinates) is a multiple of this number.
CHUNK = 1024
# Tiles (ranges of coordinates whose noise is computed together) have at least this many
# coordinates, unless the model is too small for that, because smaller ones cost more in calls than
# in arithmetic.
_SMALL_TILE = 16_384
# Longest block of rounds for a model with few chunks (groups of 1024 coordinates). For such a small
# model, a whole tile is computed at once.
_SHORT_BLOCK = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class TileLayout:
    """The memory that holds blocks of noise while they are computed, and their rows until they are
    used.

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
        """Returns the number of tile-wide rows that the memory has room for."""
        return num_tiles * self.waiting_rows + THREADS * self.longest


def tile_width(size: int, length: int) -> int:
    """Returns the number of coordinates of a tile, for blocks of `length` rounds.

    In a large model, the share of a block that is computed in one round consists of several tiles.
    """
    width = max(size / (THREADS * length), min(_SMALL_TILE, 2 * size / length))
    return min(TILE, CHUNK * max(1, -(-int(width) // CHUNK)))


def longest_block(size: int) -> int:
    """Returns the largest number of rounds that a block may have, for a model of `size` parameters.

    In a longer one, the share that is computed in one round would be less than half a tile.
    """
    return max(_SHORT_BLOCK, 2 * -(-size // CHUNK))


def waiting_rows(bounds: tuple[int, ...], past_rows: int) -> int:
    """Returns the largest number of rows of model size that are in memory at a time, waiting to be
    used or carrying the past.

    In round t these are the rows of its block from t on, those of the next block in the tiles that
    are already computed, and in every tile the rows that carry the past.

    Args:
      bounds: bounds of the blocks; see `BlockForm`.
      past_rows: number of rows before the end of a block that carry the past.
    """
    starts = np.array(bounds[:-1])
    stops = np.array(bounds[1:])
    next_stops = np.append(stops[1:], stops[-1])
    past = np.minimum(past_rows, stops)
    next_past = np.minimum(past_rows, next_stops)
    figures = np.stack((stops - starts, next_stops - starts, past, next_past), axis=1)
    max_rows = 1
    # Most blocks have the same four numbers, so each distinct combination of numbers is evaluated
    # once.
    for num_rounds, num_ahead, num_past, num_next_past in set(map(tuple, figures.tolist())):
        num_used = np.arange(num_rounds)
        rows_in_old_tiles = np.maximum(num_rounds - num_used, num_past)
        rows_in_new_tiles = np.maximum(num_ahead - num_used, num_next_past)
        new_share = (num_used + 1) / num_rounds
        num_rows = (1 - new_share) * rows_in_old_tiles + new_share * rows_in_new_tiles
        max_rows = max(max_rows, math.ceil(np.max(num_rows)))
    return max_rows
