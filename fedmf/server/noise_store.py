"""Memory for precomputed noise. It has tiles, which are ranges of coordinates, and slots, each of
which holds one row of a tile.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from fedmf.noise.layout import TileLayout

# A function of a shape that returns float32 zeros, in memory or in a private memory map.
MakeArray = Callable[[tuple[int, ...]], np.ndarray]


@dataclasses.dataclass
class NoiseTile:
    """A range of coordinates, with the memory slots of its noise rows and of the state of its
    recursion.

    Attributes:
      index: number of the tile.
      columns: coordinates of the tile, as a slice.
      end: the round after the last one whose row was computed.
      oldest: the first round whose row is in memory.
      row_slots: slots of the rows of rounds oldest .. end - 1, by round.
      state_slots: slots of the state after round end - 1.
      num_draws: rounds whose draws are in memory.
    """

    index: int
    columns: slice
    end: int = 0
    oldest: int = 0
    row_slots: dict[int, int] = dataclasses.field(default_factory=dict)
    state_slots: list[int] = dataclasses.field(default_factory=list)
    num_draws: int = 0

    @property
    def width(self) -> int:
        """The number of coordinates in the tile."""
        return self.columns.stop - self.columns.start


class NoiseStore:
    """The memory of a run's precomputed noise, which has slots for one row of one tile each, and
    stored draws.

    A store whose block was interrupted is not used again, because threads may still write to it.

    Args:
      layout: layout of the memory.
      size: coordinates of a row, d.
      make_array: makes the memory.
    """

    def __init__(self, layout: TileLayout, size: int, make_array: MakeArray) -> None:
        tile_starts = range(0, size, layout.tile_width)
        self.tiles = [
            NoiseTile(index, slice(start, min(start + layout.tile_width, size)))
            for index, start in enumerate(tile_starts)
        ]
        num_slots = layout.num_slots(len(self.tiles))
        self._slots = make_array((num_slots, layout.tile_width))
        self.draws = make_array((len(self.tiles), layout.stored_draws, layout.tile_width))
        self._free_slots = list(range(num_slots))

    def write(self, rows: np.ndarray) -> list[int]:
        """Copies rows of a tile into free slots, and returns the numbers of these slots."""
        free_slots = [self._free_slots.pop() for _ in rows]
        for slot, row in zip(free_slots, rows, strict=True):
            self._slots[slot, : len(row)] = row
        return free_slots

    def read(self, slot: int, out: np.ndarray) -> None:
        """Copies the row in a slot into `out`."""
        out[:] = self._slots[slot, : len(out)]

    def free(self, slots: Sequence[int]) -> None:
        """Marks slots as free."""
        self._free_slots.extend(slots)

    def drop_rows(self, tile: NoiseTile, first: int) -> None:
        """Frees the slots of a tile's rows of rounds before round `first`."""
        end_round = min(first, tile.end)
        for t in range(tile.oldest, end_round):
            slot = tile.row_slots.pop(t, None)
            if slot is not None:
                self._free_slots.append(slot)
        tile.oldest = max(tile.oldest, end_round)
