"""Tiles of coordinates in which precomputed noise is made, and the memory that they take."""

import dataclasses
import math

import numpy as np

# Each has working memory of its own.
THREADS = 2
# Coordinates that are worked on together, at most: large enough for a matrix product, small enough
# for the cache.
TILE = 65_536
# The source draws so many coordinates together, so that tiles are whole multiples.
CHUNK = 1024
# Smaller tiles cost more in calls than in arithmetic.
_SMALL_TILE = 16_384
# A model of few chunks makes a whole tile at a time, in blocks that are no longer than this.
_SHORT_BLOCK = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class TileLayout:
    """The memory in which blocks are made and their rows wait to be used.

    Attributes:
      tile_width: coordinates of a tile.
      waiting_rows: rows of model size that wait or carry the past, at most.
      longest: rows of the longest block, which a thread writes before it frees others.
      stored_draws: rounds whose draws are kept.
    """

    tile_width: int
    waiting_rows: int
    longest: int
    stored_draws: int = 0

    @property
    def rows(self) -> int:
        """Rows of model size that it takes, but for some tiles."""
        return self.waiting_rows + self.stored_draws

    def num_slots(self, num_tiles: int) -> int:
        """Returns how many rows of tiles there is room for."""
        return num_tiles * self.waiting_rows + THREADS * self.longest


def tile_width(size: int, length: int) -> int:
    """Returns the coordinates of a tile, for blocks of `length` rounds: a row's share of a block is
    some tiles, where there are so many coordinates.
    """
    width = max(size / (THREADS * length), min(_SMALL_TILE, 2 * size / length))
    return min(TILE, CHUNK * max(1, -(-int(width) // CHUNK)))


def longest_block(size: int) -> int:
    """Returns the most rounds that a block may have: with more of them a round's share of a block
    would be less than half a tile.
    """
    return max(_SHORT_BLOCK, 2 * -(-size // CHUNK))


def waiting_rows(bounds: tuple[int, ...], past_rows: int) -> int:
    """Returns how many rows of model size wait at most: those of round t's block from t on, those
    of the next block in the tiles that are made, and of every tile the `past_rows` before its end.
    """
    starts, stops = np.array(bounds[:-1]), np.array(bounds[1:])
    next_stops = np.append(stops[1:], stops[-1])
    past, next_past = np.minimum(past_rows, stops), np.minimum(past_rows, next_stops)
    columns = (stops - starts, next_stops - starts, past, next_past)
    most = 1
    # Most blocks are alike.
    for num_rounds, num_ahead, num_past, num_next_past in {
        tuple(case) for case in np.stack(columns, axis=1).tolist()
    }:
        used = np.arange(num_rounds)
        waiting = np.maximum(num_rounds - used, num_past)
        ahead = np.maximum(num_ahead - used, num_next_past)
        part_made = (used + 1) / num_rounds
        most = max(most, math.ceil(np.max((1 - part_made) * waiting + part_made * ahead)))
    return most
