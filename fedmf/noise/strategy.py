"""The description of one way to compute the noise vectors of a run, and its cost."""

import dataclasses
import math
from typing import Any

from fedmf.noise.blocks import BlockForm
from fedmf.noise.layout import TileLayout

# Seconds for drawing one Gaussian float32 coordinate, measured on one thread of a busy machine (19
# ms for 4,050,000 coordinates). The unit of cost is drawing one vector of model size.
DRAW_SECONDS = 4e-9
# Number of multiply-adds of vectors of model size that cost as much as one draw.
PRODUCTS_PER_DRAW = 200.0
# Estimated cost of copying one vector of model size, and of reading it from a file or writing it to
# one.
COPY_COST = 0.1
FILE_COST = 1.0
# Noise vectors are kept in memory and not in a memory map on disk, unless memory costs more by at
# least this factor.
_DISK_PENALTY = 1.25
# If the noise vectors of two strategies that cost about the same take more bytes than this, the
# strategy with fewer vectors is preferred.
LARGE_MEMORY = 2**28
# Two strategies cost about the same if the ratio of their costs is at most this.
_EQUAL_COST_RATIO = 1.03


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class NoiseStrategy:
    """One way to compute the noise vectors of a run, with its cost and the memory that it takes.

    Attributes:
      name: one of HOST_STRATEGIES or GRAPH_STRATEGIES.
      length: number of rounds that are computed at a time, L.
      width: number of vectors of model size in the state between blocks.
      rows: number of rows of the array that holds a block and the state after it.
      cost: average cost of a round, in draws of one vector of independent Gaussians; infinite if
        the strategy is not possible.
      memory: bytes of arrays.
      disk: bytes of a private memory map that holds the rows; 0 if memory holds them.
      reason: description of what is done, or of why it is not possible.
      bounds: bounds of the blocks; see `BlockForm`.
      product_rows: number of rows that "regenerated" computes in one matrix product.
      layout: layout of the memory; None in a graph, and if every vector is its own draw.
      form: the block form of "recurrent".
    """

    name: str
    length: int = 0
    width: int = 0
    rows: int = 0
    cost: float = math.inf
    memory: int = 0
    disk: int = 0
    reason: str = ""
    bounds: tuple[int, ...] = ()
    product_rows: int = 0
    layout: TileLayout | None = None
    form: BlockForm | None = None

    @property
    def possible(self) -> bool:
        """Whether the strategy can be used, which is the case if its cost is finite."""
        return math.isfinite(self.cost)

    @property
    def price(self) -> float:
        """The cost by which noise strategies are compared, which includes a penalty for a memory
        map on disk.
        """
        return self.cost * _DISK_PENALTY if self.disk else self.cost

    def seconds(self, size: int) -> float:
        """Returns the estimated average time that a round takes on one thread, in seconds, for a
        model of `size` parameters.
        """
        return self.cost * size * DRAW_SECONDS

    def summary(self) -> dict[str, Any]:
        """Returns the name, cost and memory of the strategy, with its other figures, as plain JSON
        types.
        """
        return {
            "name": self.name,
            "length": self.length,
            "width": self.width,
            "rows": self.rows,
            "cost": self.cost if self.possible else None,
            "memory": self.memory,
            "disk": self.disk,
            "reason": self.reason,
            "possible": self.possible,
        }


def row_bytes(size: int) -> int:
    """Returns the number of bytes of one float32 vector of `size` parameters."""
    return 4 * max(1, size)


def cheapest(strategies: list[NoiseStrategy]) -> NoiseStrategy:
    """Returns the strategy with the lowest price.

    If it takes much memory, it returns the one with the fewest rows among those of about the lowest
    price.
    """
    cheapest_strategy = min(strategies, key=lambda strategy: strategy.price)
    if cheapest_strategy.memory + cheapest_strategy.disk <= LARGE_MEMORY:
        return cheapest_strategy
    max_price = _EQUAL_COST_RATIO * cheapest_strategy.price
    near_cheapest = [strategy for strategy in strategies if strategy.price <= max_price]
    return min(near_cheapest, key=lambda strategy: strategy.rows)


def explain(strategies: list[NoiseStrategy]) -> str:
    """Returns a table of noise strategies as text, with a line for each strategy."""
    format_line = "{:<11} {:>6} {:>6} {:>5} {:>9} {:>9}  {}".format
    table_lines = [format_line("strategy", "cost", "block", "state", "memory", "file", "why")]
    for strategy in strategies:
        if strategy.possible:
            strategy_line = format_line(
                strategy.name,
                f"{strategy.cost:.1f}",
                strategy.length,
                strategy.width,
                f"{strategy.memory / 1e6:.0f} MB",
                f"{strategy.disk / 1e6:.0f} MB",
                strategy.reason,
            )
        else:
            strategy_line = format_line(strategy.name, *"-----", f"not possible: {strategy.reason}")
        table_lines.append(strategy_line)
    return "\n".join(table_lines)
