"""The ways to make noise, ahead on the host or in a TensorFlow graph: what each costs,
and which is taken.
"""

import dataclasses
import math
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedmf import checks
from fedmf.files import expanded
from fedmf.noise.blocks import (
    BlockForm,
    block_form,
    equal_blocks,
    growing_blocks,
    with_small_first_states,
)
from fedmf.noise.float32_check import check_float32
from fedmf.noise.layout import THREADS, TileLayout, longest_block, tile_width, waiting_rows
from fedmf.noise.stream import NoiseStream

HOST_STRATEGIES = ("recurrent", "regenerated")
GRAPH_STRATEGIES = ("recurrent", "precomputed")
# What passes through a graph's state, at most, and the constants of its recurrence. TFF copies its
# server state many times a round, between processes: 0.1 to 0.9 s for 16 MB,
# depending on the allocator.
MAX_STATE_BYTES = 128 * 2**20
_MAX_TABLE_BYTES = 64 * 2**20
# Rows that are contracted from all draws in one product. Longer blocks are whole multiples, so that
# no bit depends on their length.
ROWS_TOGETHER = 128
# The unit of cost is drawing one row of Gaussians: 19 ms for 4,050,000 float32 coordinates on one
# thread of a busy machine. So many multiply-adds of a row of coordinates take as long. A row that
# is copied, is read from a file or written to one, or passes through TFF's state costs so much:
# estimates, not measured one by one.
_PRODUCTS_A_DRAW = 200.0
_COPY, _FILE, _PASSED = 0.1, 1.0, 5.0
# Compressing a noising matrix takes about so many seconds for 2052 rounds, growing as n^3. It is
# done where it saves more.
_DRAW_SECONDS, _COMPRESS_SECONDS = 4e-9, 5.0
# Noise is compressed, too, where that takes at most so many seconds and rows that wait would take
# more than so many bytes.
_SHORT_SECONDS, _LARGE_MEMORY = 0.1, 2**28
# Rows are kept in memory, in shorter blocks, where that costs at most this many times as much as a
# memory map.
_DISK_PENALTY = 1.25
# Of blocks that cost hardly more than the best ones, those with the fewest rows in memory are
# taken.
_HARDLY_MORE = 1.03
# And of two strategies the one with fewer rows, where it costs this many times as much at most.
_LITTLE_MORE = 1.1
# State rows of a compressed matrix, and rounds up to which the rows of N are written out.
_MAX_COMPRESSED_ROWS = 64
_MAX_CONTRACTED_ROUNDS = 4096
_BLOCK_LENGTHS, _COMPRESSED_LENGTH = (1, 2, 4, 8, 16, 32, 64, 128, 256), 16


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class NoiseStrategy:
    """One way to make the rows of a run.

    Attributes:
      name: one of HOST_STRATEGIES or GRAPH_STRATEGIES.
      length: rounds made at a time, L.
      width: rows of model size that are kept from block to block.
      rows: of the array in which a block and the state after it are made.
      cost: of a round on average over the run, in draws of one row of independent Gaussians;
        infinite where it is not possible.
      memory: bytes of arrays.
      disk: bytes of a private memory map that holds the rows; 0 where memory holds them.
      reason: in words, what is done, or why it cannot be.
      bounds: of the blocks; see `BlockForm`.
      together: rows that "regenerated" contracts in one product.
      layout: of the memory; None where a row is its own draw, and in a graph.
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
    together: int = 0
    layout: TileLayout | None = None
    form: BlockForm | None = None

    @property
    def possible(self) -> bool:
        """Whether it can be used here."""
        return math.isfinite(self.cost)

    def seconds(self, size: int) -> float:
        """Of a round of `size` parameters on average, on one thread, about."""
        return self.cost * size * _DRAW_SECONDS

    def summary(self) -> dict[str, Any]:
        """All but how the blocks are made, as JSON takes it."""
        fields = {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if f.name not in ("bounds", "together", "layout", "form")
        }
        return fields | {"cost": self.cost if self.possible else None, "possible": self.possible}


def default_memory() -> int:
    """Bytes that noise may take unasked: a quarter of the memory that this machine
    or its container has.
    """
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = pathlib.Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else "max"
    return (min(physical, int(text)) if text.isdigit() else physical) // 4


def default_disk(folder: str | pathlib.Path | None) -> int:
    """Bytes that a memory map in `folder` may take: two thirds of what is free.

    It need not exist; None is that of temporary files.
    """
    path = expanded(tempfile.gettempdir() if folder is None else folder).absolute()
    return shutil.disk_usage(next(p for p in (path, *path.parents) if p.exists())).free * 2 // 3


def host_strategies(
    stream: NoiseStream,
    size: int,
    *,
    memory_bytes: int | None = None,
    folder: str | pathlib.Path | None = None,
) -> list[NoiseStrategy]:
    """Both strategies, the better one first and an impossible one last.

    Better is the cheaper one. Rows in memory are preferred to a memory map that is hardly cheaper.

    Args:
      stream: of the mechanism.
      size: model parameters, d.
      memory_bytes: what the arrays may take; None for a quarter of the machine's memory.
      folder: where a memory map would be; see `default_disk`.

    Raises:
      TypeError, ValueError: size is no non-negative int, or memory_bytes no positive one.

    >>> from fedmf.mechanisms import IdentityMechanism
    >>> stream = IdentityMechanism(rounds=2052).stream()
    >>> best, other = host_strategies(stream, 4_050_748, memory_bytes=10**9)
    >>> best.name, round(best.cost, 1)
    ('recurrent', 1.0)
    """
    n, room = stream.rounds, _Room.of(size, memory_bytes, folder)
    regenerated = _regenerated(stream, room)
    saved = (regenerated.cost - 1.5) * n * size * _DRAW_SECONDS
    seconds = _COMPRESS_SECONDS * (n / 2052) ** 3
    is_short = seconds <= _SHORT_SECONDS and regenerated.memory + regenerated.disk > _LARGE_MEMORY
    recurrent = _recurrent(stream, room, compress=is_short or saved > seconds)
    best, other = sorted((recurrent, regenerated), key=_price)
    if other.rows < best.rows and _price(other) <= _LITTLE_MORE * _price(best):
        return [other, best]
    return [best, other]


def choose_host_strategy(
    stream: NoiseStream,
    size: int,
    *,
    memory_bytes: int | None = None,
    folder: str | pathlib.Path | None = None,
    name: str | None = None,
) -> NoiseStrategy:
    """The better strategy, or the one called `name`.

    Args:
      stream, size, memory_bytes, folder: as of `host_strategies`.
      name: one of HOST_STRATEGIES, or None.

    Raises:
      ValueError: no such strategy, or not possible for this mechanism, size and memory; float32
        does not hold the noise.
    """
    if name is None:
        strategies = host_strategies(stream, size, memory_bytes=memory_bytes, folder=folder)
    else:
        checks.one_of("noise_strategy", name, HOST_STRATEGIES)
        room = _Room.of(size, memory_bytes, folder)
        # By name, a recurrence may take its time to compute.
        strategies = [
            _regenerated(stream, room)
            if name == "regenerated"
            else _recurrent(stream, room, compress=True)
        ]
    best = strategies[0]
    if not best.possible:
        reasons = "; ".join(f"{strategy.name}: {strategy.reason}" for strategy in strategies)
        raise ValueError(
            f"noise_strategy={name!r} cannot make this noise with memory_bytes={memory_bytes}: "
            f"{reasons}; allow more memory, or free disk space"
        )
    causal = stream.causal()
    check_float32(causal if best.form is not None else causal.as_contraction(), best.form)
    return best


def graph_strategy(stream: NoiseStream, size: int, *, any_state: bool = False) -> NoiseStrategy:
    """The strategy "recurrent" inside a graph whose state passes through TFF.

    Args:
      stream, size: as of `host_strategies`.
      any_state: whether the state may be larger than MAX_STATE_BYTES.
    """
    row = _row_bytes(size)
    most = stream.rounds if any_state else min(stream.rounds, MAX_STATE_BYTES // row)
    # The table of a recurrence that changes has (1 + width)^2 entries a round
    if stream.contraction is not None or (stream.buffers is not None and stream.buffers.feedback):
        most = min(most, math.isqrt(_MAX_TABLE_BYTES // (4 * stream.rounds)) - 1)
    form = block_form(stream, bounds=equal_blocks(stream.rounds, 1), max_width=most)
    if form is None:
        return NoiseStrategy(
            name="recurrent",
            reason=f"it has no recurrence of at most {most} rows, which a state may have",
        )
    return NoiseStrategy(
        name="recurrent",
        length=1,
        width=form.width,
        cost=1 + (1 + form.width) ** 2 / _PRODUCTS_A_DRAW + _PASSED * form.width,
        memory=row * form.width,
        reason=f"{form.width} rows in the state carry what the future needs of the past",
        form=form,
    )


def check_graph_strategy(name: str | None) -> None:
    """Raises unless `name` is a strategy of a graph, or None.

    Raises:
      TypeError, ValueError: naming `noise_strategy`.
    """
    if name is not None:
        checks.one_of("noise_strategy", name, GRAPH_STRATEGIES)


def choose_graph_strategy(stream: NoiseStream, size: int, name: str | None = None) -> NoiseStrategy:
    """The strategy of a graph: "precomputed" by name only, "recurrent" otherwise; by name whatever
    its state takes.

    Raises:
      ValueError: no such strategy, or its state would be too large;
        float32 does not hold the noise.
    """
    check_graph_strategy(name)
    if name == "precomputed":
        return NoiseStrategy(
            name="precomputed", length=1, width=1, cost=_PASSED, memory=_row_bytes(size)
        )
    best = graph_strategy(stream, size, any_state=name is not None)
    if best.form is None:
        raise ValueError(
            f"noise_strategy={name!r} cannot make this noise in the graph: {best.reason}; use "
            "noise_strategy='precomputed' with federated.HostNoise"
        )
    check_float32(stream.causal(), best.form)
    return best


def explain(strategies: list[NoiseStrategy]) -> str:
    """A table of the strategies in the order of choice."""
    line = "{:<11} {:>6} {:>6} {:>5} {:>9} {:>9}  {}".format
    lines = [line("strategy", "cost", "block", "kept", "memory", "file", "why")]
    for s in strategies:
        space = [f"{s.memory / 1e6:.0f} MB", f"{s.disk / 1e6:.0f} MB"]
        if s.possible:
            lines.append(line(s.name, f"{s.cost:.1f}", s.length, s.width, *space, s.reason))
        else:
            lines.append(line(s.name, *"-----", f"not possible: {s.reason}"))
    return "\n".join(lines)


def _row_bytes(size: int) -> int:
    return 4 * max(1, size)


def _price(strategy: NoiseStrategy) -> float:
    return strategy.cost * (_DISK_PENALTY if strategy.disk else 1)


def _cheapest(ways: list[NoiseStrategy]) -> NoiseStrategy:
    """Returns the way of the least price, or where that takes much memory the one with the fewest
    rows among those of about this price.
    """
    cheapest = min(ways, key=_price)
    if cheapest.memory + cheapest.disk <= _LARGE_MEMORY:
        return cheapest
    limit = _HARDLY_MORE * _price(cheapest)
    return min((way for way in ways if _price(way) <= limit), key=lambda way: way.rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Room:
    """Model parameters, and the bytes of memory and disk that their noise may take."""

    size: int
    memory: int
    disk: int

    @classmethod
    def of(cls, size: int, memory_bytes: int | None, folder: str | pathlib.Path | None) -> "_Room":
        size = checks.integer("size", size, low=0, hint="it is the number of model parameters")
        memory = default_memory() if memory_bytes is None else memory_bytes
        hint = "give bytes, such as 1_500_000_000"
        memory = checks.integer("memory_bytes", memory, low=1, hint=hint)
        return cls(size=size, memory=memory, disk=default_disk(folder))

    def place(self, strategy: NoiseStrategy, scratch: int, file_cost: float) -> NoiseStrategy:
        """The strategy with its rows in memory, or in a memory map; an impossible one where neither
        has the room.
        """
        in_rows = strategy.rows * _row_bytes(self.size)
        if scratch + in_rows <= self.memory:
            return dataclasses.replace(strategy, memory=scratch + in_rows)
        if scratch <= self.memory and in_rows <= self.disk:
            reason, cost = f"{strategy.reason}, in a private memory map", strategy.cost + file_cost
            return dataclasses.replace(
                strategy, memory=scratch, disk=in_rows, cost=cost, reason=reason
            )
        return NoiseStrategy(
            name=strategy.name, reason=f"needs {(scratch + in_rows) / 1e6:.3g} MB of memory or disk"
        )


def _recurrent(stream: NoiseStream, room: _Room, compress: bool) -> NoiseStrategy:
    """Blocks of rounds from their own draws and a few rows of the past, of the length
    that costs least.
    """
    n, is_contraction = stream.rounds, stream.contraction is not None
    if is_contraction and not compress:
        return NoiseStrategy(
            name="recurrent", reason="not looked for: making the draws again costs little"
        )
    independent = None if is_contraction else block_form(stream, bounds=equal_blocks(n, 1))
    if independent is not None and independent.width == 0:
        return NoiseStrategy(
            name="recurrent", length=1, cost=1.0, reason="a row is its own draw", form=independent
        )
    lengths = [_COMPRESSED_LENGTH] if is_contraction else _BLOCK_LENGTHS
    most = min(n, longest_block(room.size))
    ways = []
    for length in sorted({min(length, most) for length in lengths}):
        bounds = growing_blocks(n, length)
        form = block_form(
            stream, bounds=bounds, max_width=_MAX_COMPRESSED_ROWS if is_contraction else None
        )
        if form is None:
            return NoiseStrategy(
                name="recurrent",
                reason=f"it has no recurrence of at most {_MAX_COMPRESSED_ROWS} rows",
            )
        form = with_small_first_states(form)
        L, r = form.length, form.width
        # A rolling state consists of rows that were made; another one is made beside them.
        num_made, past_rows, state_rows = (L, r, 0) if form.rolling else (L + r, 0, r)
        layout = TileLayout(
            tile_width=tile_width(room.size, length),
            waiting_rows=waiting_rows(bounds, past_rows) + state_rows,
            longest=L,
        )
        copies = (r + num_made) / L + 1
        way = NoiseStrategy(
            name="recurrent",
            length=L,
            width=r,
            rows=layout.rows,
            cost=1 + (L + r) * num_made / L / _PRODUCTS_A_DRAW + _COPY * copies,
            reason=f"{r} rows carry what the future needs of the past",
            bounds=bounds,
            layout=layout,
            form=form,
        )
        scratch = 4 * THREADS * (L + r + num_made) * min(room.size, layout.tile_width)
        ways.append(room.place(way, scratch, (_FILE - _COPY) * copies))
    return _cheapest(ways)


def _regenerated(stream: NoiseStream, room: _Room) -> NoiseStrategy:
    """Blocks of rounds, each from all draws up to its end, of which the first are kept."""
    n = stream.rounds
    if stream.contraction is None and n > _MAX_CONTRACTED_ROUNDS:
        reason = f"{n} rounds: the rows of N are not written out beyond {_MAX_CONTRACTED_ROUNDS}"
        return NoiseStrategy(name="regenerated", reason=reason)
    # Neither depends on the memory, so that no bit of a row does.
    together = min(ROWS_TOGETHER, 2 ** (longest_block(room.size).bit_length() - 1))
    width = tile_width(room.size, min(together, -(-n // 2)))
    scratch = 4 * THREADS * (n + together) * min(room.size, width)
    limits = [(room.memory - scratch) // _row_bytes(room.size), room.disk // _row_bytes(room.size)]
    if stream.contraction is None and limits[0] >= 1:
        # A recurrence has a map of its history, which is smaller than one of the whole run
        limits = limits[:1]
    ways = []
    for most_rows in limits:
        for bounds, stored_draws in _partitions(n, together, most_rows):
            way = _regenerated_way(bounds, together, width, stored_draws)
            ways.append(room.place(way, scratch, 2 * _FILE))
    return _cheapest(ways)


def _partitions(n: int, together: int, most_rows: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yields bounds of blocks, and how many draws can be kept beside them: from short blocks and
    many draws to blocks as long as there is room for and no draws.
    """
    most_rows = max(2, most_rows)
    step = together if together < most_rows else 1
    length = step
    while True:
        bounds = growing_blocks(n, length)
        room = most_rows - waiting_rows(bounds, 0)
        # The draws of the last block are not needed again.
        yield bounds, max(0, min(room, bounds[-2]))
        longest = min(most_rows - 1, n)
        if length >= longest - longest % step:
            return
        length = min(2 * length, longest - longest % step)


def _regenerated_way(
    bounds: tuple[int, ...], together: int, width: int, stored_draws: int
) -> NoiseStrategy:
    n = bounds[-1]
    starts, stops = np.array(bounds[:-1]), np.array(bounds[1:])
    num_draws = int((stops - np.minimum(starts, stored_draws)).sum())
    num_products = int(((stops - starts) * stops).sum())
    # What is kept is copied where not all of it is.
    num_copies = (
        2 * n + stored_draws + int(np.minimum(starts, stored_draws)[stops > stored_draws].sum())
    )
    layout = TileLayout(
        tile_width=width,
        waiting_rows=waiting_rows(bounds, 0),
        longest=int((stops - starts).max()),
        stored_draws=stored_draws,
    )
    if num_draws == n:
        reason = "all draws but the last are kept"
    else:
        reason = (
            f"every {layout.longest} rounds the draws of rounds {stored_draws} on are made again"
        )
    return NoiseStrategy(
        name="regenerated",
        length=layout.longest,
        rows=layout.rows,
        cost=(num_draws + num_products / _PRODUCTS_A_DRAW + _COPY * num_copies) / n,
        reason=reason,
        bounds=bounds,
        together=together,
        layout=layout,
    )
