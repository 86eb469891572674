"""The ways to make noise, ahead on the host or in a TensorFlow graph: what each costs, and which is taken."""

import dataclasses
import functools
import pathlib
import shutil
import tempfile
from typing import Any

from fedmf import checks
from fedmf.noise.blocks import BlockForm, block_form
from fedmf.noise.stream import NoiseStream

HOST_STRATEGIES = ("recurrent", "regenerated", "spilled")
GRAPH_STRATEGIES = ("recurrent", "regenerated", "precomputed")
# Rows that pass through a graph's state: at most this many, and at most this many bytes. TFF copies its server state many times a
# round, between processes: 0.1 to 0.9 s a row of 16 MB, depending on the allocator.
MAX_STATE_ROWS = 32
MAX_STATE_BYTES = 128 * 2**20
_PASSED = 5.0
DEFAULT_MEMORY = 1_500_000_000
# Coordinates that are worked on together: large enough for a matrix product, small enough for the cache.
TILE = 65_536
# Rows that are contracted from all draws in one product. Blocks are whole multiples, so that no bit depends on their length.
ROWS_TOGETHER = 128
# The unit of cost is drawing one row of Gaussians. Measured on two cores, 4,050,000 float32 coordinates, one draw 42-45 ms:
# multiply-adds of a row of coordinates that take as long (80 to 100 billion operations a second in blocks, 110 to 130 where all draws
# are contracted), and what a row costs that is copied, or read from a file or written to one.
_PRODUCTS_A_DRAW, _CONTRACTED_A_DRAW = 300.0, 600.0
_COPY, _FILE = 0.2, 0.4
# Compressing a noising matrix takes some seconds too: about so many for 2052 rounds, and as n^3. It is done where it saves more.
_DRAW_SECONDS, _COMPRESS_SECONDS = 1.1e-8, 5.0
# A strategy that needs less memory is taken where it costs at most this many times as much.
_FRUGAL = 1.25
_MAX_CARRIED = 64
_MAX_REDRAWN = 4096
# Rows that are read at a time from a file, of so many bytes together.
_ROWS_AHEAD, _BYTES_AHEAD = 8, 128 * 2**20
# The file's name in its folder.
NOISE_FILE = "noise_history"
_CARRIED_BLOCKS = (1, 2, 4, 8, 16, 32, 64)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class NoiseStrategy:
    """One way to make the rows of a run.

    Attributes:
      name: one of HOST_STRATEGIES or GRAPH_STRATEGIES.
      length: rounds made at a time, L.
      width: rows of model size that are kept from block to block.
      cost: of a round on average over the run, in draws of one row of independent Gaussians.
      memory: bytes of arrays.
      disk: bytes of a private file; 0 for none.
      reason: in words, what is done, or why it cannot be.
      possible: whether it can be used here.
      form: the block form of "recurrent".
    """

    name: str
    length: int = 0
    width: int = 0
    cost: float = float("inf")
    memory: int = 0
    disk: int = 0
    reason: str = ""
    possible: bool = True
    form: BlockForm | None = None

    def seconds(self, size: int) -> float:
        """What a round costs for `size` parameters on the machine that the unit of cost was measured on."""
        return self.cost * size * _DRAW_SECONDS

    def summary(self) -> dict[str, Any]:
        """All but the form, as JSON takes it."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "form"}
        return fields | {"cost": self.cost if self.possible else None}


def host_strategies(
    stream: NoiseStream, size: int, memory_bytes: int = DEFAULT_MEMORY, disk_bytes: int | None = None
) -> list[NoiseStrategy]:
    """All strategies, the best first and those that are not possible last.

    Best is the cheapest that stays in memory, unless the one with a file saves more than half.

    Args:
      stream: of the mechanism.
      size: model parameters, d.
      memory_bytes: what the arrays may take.
      disk_bytes: what a file may take; None for as much as is best: the whole run where C is not banded, its history where it is.

    Raises:
      TypeError, ValueError: size, memory_bytes or disk_bytes is no positive int.

    >>> from fedmf.mechanisms import IdentityMechanism
    >>> best, *others = host_strategies(IdentityMechanism(rounds=2052).stream(), 4_050_748)
    >>> best.name, round(best.cost, 1)
    ('recurrent', 1.3)
    """
    checks.integer("size", size, low=0, hint="it is the number of model parameters")
    checks.integer("memory_bytes", memory_bytes, low=1, hint="give bytes, such as 1_500_000_000")
    if disk_bytes is not None:
        checks.integer("disk_bytes", disk_bytes, low=1, hint="give bytes, such as 10_000_000_000, or None")
    redrawn, spilled = _redrawn(stream, size, memory_bytes), _spilled(stream, size, disk_bytes)
    if spilled.possible and spilled.memory > memory_bytes:
        reason = f"needs {spilled.memory / 1e6:.0f} MB"
        spilled = NoiseStrategy(name="spilled", possible=False, reason=reason)
    n = stream.rounds
    saved = (redrawn.cost - 1.5) * n * size * _DRAW_SECONDS
    carried = _carried(stream, size, memory_bytes, compress=saved > _COMPRESS_SECONDS * (n / 2052) ** 3)

    def price(strategy: NoiseStrategy) -> tuple[bool, float]:
        return not strategy.possible, strategy.cost * (2 if strategy.disk else 1)

    return sorted((carried, redrawn, spilled), key=price)


def choose_host_strategy(
    stream: NoiseStream,
    size: int,
    memory_bytes: int = DEFAULT_MEMORY,
    name: str | None = None,
    disk_bytes: int | None = None,
) -> NoiseStrategy:
    """The best strategy, or the one called `name`.

    Raises:
      ValueError: no such strategy, or not possible for this mechanism, size, memory and disk; says why.
    """
    found = host_strategies(stream, size, memory_bytes, disk_bytes)
    if name is not None:
        checks.one_of("noise_strategy", name, HOST_STRATEGIES)
        found = [strategy for strategy in found if strategy.name == name]
        if name == "recurrent" and not found[0].possible:  # asked for, it may take its time
            found = [_carried(stream, size, memory_bytes, compress=True)]
    if not found[0].possible:
        reasons = "; ".join(f"{strategy.name}: {strategy.reason}" for strategy in found)
        raise ValueError(
            f"noise_strategy={name!r} cannot make this noise with memory_bytes={memory_bytes} and disk_bytes={disk_bytes}: {reasons}; "
            "allow more memory or disk"
        )
    return found[0]


def short_of_disk(chosen: NoiseStrategy, stream: NoiseStream, size: int) -> str:
    """What a larger file would save over `chosen`, as a sentence; empty where that is not more than half."""
    roomy = _spilled(stream, size, None)
    if not roomy.possible or chosen.cost <= 2 * roomy.cost:
        return ""
    return (
        f"{chosen.seconds(size):.2g} s a round, {chosen.reason}; with a file of {roomy.disk / 1e9:.1f} GB it would be "
        f"{roomy.seconds(size):.2g} s: free more disk, or allow more (noise_disk)"
    )


def free_for_noise(folder: pathlib.Path) -> int:
    """Bytes that a file of noise could take in `folder`, which need not be there yet: what is free, and what an older such file takes."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    path = folder / NOISE_FILE
    return shutil.disk_usage(there).free + (path.stat().st_blocks * 512 if path.exists() else 0)


def room_for_noise(folder: str | pathlib.Path | None) -> int:
    """Bytes that a file of noise may take unasked: two thirds of `free_for_noise`; None is the system's folder of temporary files."""
    return max(1, free_for_noise(pathlib.Path(tempfile.gettempdir() if folder is None else folder)) * 2 // 3)


def affordable_rows(rounds: int, size: int) -> int:
    """Rows of model size that a graph's state may have."""
    return max(1, min(MAX_STATE_ROWS, rounds, MAX_STATE_BYTES // _row_bytes(size)))


def rows_ahead(size: int) -> int:
    """Rows that are read at a time from a file."""
    return max(1, min(_ROWS_AHEAD, _BYTES_AHEAD // _row_bytes(size)))


def graph_strategies(stream: NoiseStream, size: int, name: str | None = None) -> list[NoiseStrategy]:
    """The strategies inside a graph whose state passes through TFF, the choice first; "precomputed" is never chosen unasked.

    Args:
      stream, size: as of `host_strategies`.
      name: only this one, or None for all.

    Raises:
      ValueError: there is none of that name, or it is not possible; says why.
    """
    n, rows = stream.rounds, affordable_rows(stream.rounds, size)
    found = []
    if name is not None:
        checks.one_of("noise_strategy", name, GRAPH_STRATEGIES)
    if name in (None, "recurrent"):
        most = rows if name is None else MAX_STATE_ROWS
        form = block_form(stream, length=1, most_width=most)
        if form is not None:
            width = form.width
            found.append(
                NoiseStrategy(
                    name="recurrent",
                    length=1,
                    width=width,
                    cost=1 + (1 + width) ** 2 / _PRODUCTS_A_DRAW + _PASSED * width,
                    memory=_row_bytes(size) * width,
                    reason=f"{width} rows in the state carry what the future needs of the past",
                    form=form,
                )
            )
        elif name is None:
            reason = f"rounds share more of the past than the {most} rows that a state may have"
            found.append(NoiseStrategy(name="recurrent", possible=False, reason=reason))
        else:
            raise ValueError(
                f"noise_strategy='carried' needs a mechanism whose rounds share at most {most} rows: use 'redrawn', or 'precomputed' "
                "with federated.HostNoise"
            )
    if name in (None, "regenerated"):
        redrawn = NoiseStrategy(
            name="regenerated",
            length=rows,
            width=rows,
            cost=(n / rows + 1) / 2 + n / 2 / _PRODUCTS_A_DRAW + _PASSED * rows,
            memory=_row_bytes(size) * rows,
            reason=f"every {rows} rounds all earlier draws are made again, in the graph",
        )
        found.append(redrawn)
    if name in (None, "precomputed"):
        reason = "made by the host, one row in the state: see the other table"
        handed = NoiseStrategy(
            name="precomputed", length=1, width=1, cost=_PASSED, memory=_row_bytes(size), reason=reason
        )
        found.append(handed)
    return sorted(found, key=lambda way: (not way.possible, way.name == "precomputed", way.cost))


def explain(strategies: list[NoiseStrategy]) -> str:
    """A table of the strategies in the order of choice."""
    lines = [f"{'strategy':<9} {'cost':>6} {'block':>6} {'kept':>5} {'memory':>9} {'file':>9}  why"]
    for strategy in strategies:
        if not strategy.possible:
            lines.append(
                f"{strategy.name:<9} {'-':>6} {'-':>6} {'-':>5} {'-':>9} {'-':>9}  not possible: {strategy.reason}"
            )
            continue
        numbers = f"{strategy.cost:>6.1f} {strategy.length:>6} {strategy.width:>5}"
        space = f"{strategy.memory / 1e6:>6.0f} MB {strategy.disk / 1e6:>6.0f} MB"
        lines.append(f"{strategy.name:<9} {numbers} {space}  {strategy.reason}")
    return "\n".join(lines)


def _row_bytes(size: int) -> int:
    return 4 * max(1, size)


def _carried(stream: NoiseStream, size: int, memory_bytes: int, compress: bool) -> NoiseStrategy:
    n = stream.rounds
    lengths = sorted({min(length, n) for length in _CARRIED_BLOCKS})
    if stream.contraction is not None:
        if not compress:
            return NoiseStrategy(name="recurrent", possible=False, reason="not looked for: redrawing costs little")
        longest = min(n, 16)
        form = block_form(stream, length=longest, most_width=_MAX_CARRIED)
        lengths = [longest]
    else:
        form = block_form(stream, length=1, most_width=_MAX_CARRIED)
    if form is None:
        return NoiseStrategy(
            name="recurrent",
            possible=False,
            reason=f"rounds share more than {_MAX_CARRIED} rows of the past",
        )
    width = form.width

    def option(length: int) -> NoiseStrategy:
        side = length + width
        return NoiseStrategy(
            name="recurrent",
            length=length,
            width=width,
            cost=1 + side * side / length / _PRODUCTS_A_DRAW + _COPY * (side + width + 2) / length,
            # The block, the state before and after it, and two tiles.
            memory=_row_bytes(size) * (length + 2 * width) + 8 * side * min(size, TILE),
            reason=f"{width} rows carry what the future needs of the past",
        )

    affordable = [found for found in map(option, lengths) if found.memory <= memory_bytes]
    if not affordable:
        need = min(option(length).memory for length in lengths)
        return NoiseStrategy(name="recurrent", possible=False, reason=f"needs {need / 1e6:.0f} MB")
    best = min(affordable, key=lambda found: found.cost)
    if best.length != form.length:
        form = block_form(stream, length=best.length)
    return dataclasses.replace(best, form=form)


def _redrawn(stream: NoiseStream, size: int, memory_bytes: int) -> NoiseStrategy:
    n = stream.rounds
    impossible = functools.partial(NoiseStrategy, name="regenerated", possible=False)
    if stream.contraction is None and n > _MAX_REDRAWN:
        return impossible(reason=f"{n} rounds: the rows of N are not written out beyond {_MAX_REDRAWN}")
    tile = 4 * (n + ROWS_TOGETHER) * min(size, TILE)
    longest = min(n, (memory_bytes - tile) // _row_bytes(size))
    if longest < 1:
        return impossible(reason=f"needs {(tile + _row_bytes(size)) / 1e6:.0f} MB")
    blocks = fewest = -(-n // _block_length(n, longest))
    while _redrawing(blocks + 1, n) <= _FRUGAL * _redrawing(fewest, n) and blocks < n:
        blocks += 1
    length = _block_length(n, max(-(-n // blocks), min(longest, ROWS_TOGETHER)))
    blocks = -(-n // length)
    return NoiseStrategy(
        name="regenerated",
        length=length,
        cost=_redrawing(blocks, n),
        memory=_row_bytes(size) * length + tile,
        reason=f"every {length} rounds all earlier draws are made again" if blocks > 1 else "the whole run at once",
    )


def _redrawing(blocks: int, n: int) -> float:
    """Draws a round; block j of `blocks` draws j blocks of rows."""
    return (blocks + 1) / 2 + n / 2 / _CONTRACTED_A_DRAW


def _block_length(n: int, longest: int) -> int:
    """Rounds of a block, at most `longest`: of blocks as equal as whole multiples of ROWS_TOGETHER are."""
    whole = ROWS_TOGETHER <= longest < n
    if whole:
        longest -= longest % ROWS_TOGETHER
    length = -(-n // -(-n // longest))
    return -(-length // ROWS_TOGETHER) * ROWS_TOGETHER if whole else length


def _spilled(stream: NoiseStream, size: int, disk_bytes: int | None) -> NoiseStrategy:
    n, tile = stream.rounds, min(size, TILE)
    most = 2 * n if disk_bytes is None else disk_bytes // _row_bytes(size)
    if stream.recurrence is None:
        if stream.contraction is None and n > _MAX_REDRAWN:
            reason = f"{n} rounds: the rows of N are not written out beyond {_MAX_REDRAWN}"
            return NoiseStrategy(name="spilled", possible=False, reason=reason)
        if most < 1:
            return NoiseStrategy(
                name="spilled", possible=False, reason=f"needs a file of {_row_bytes(size) / 1e6:.0f} MB"
            )
        length = _block_length(n, min(n, most))
        blocks = -(-n // length)
        return NoiseStrategy(
            name="spilled",
            length=length,
            cost=_redrawing(blocks, n) + _FILE * 2,
            memory=4 * (n + ROWS_TOGETHER) * tile + (2 + rows_ahead(size)) * _row_bytes(size),
            disk=_row_bytes(size) * length,
            reason=f"every {length} rounds all earlier draws are made again, into a private file"
            if blocks > 1
            else "the whole run at once, into a private file",
        )
    width = stream.recurrence.shape[1] - 1
    if width == 0:
        return NoiseStrategy(name="spilled", possible=False, reason="there is no history to keep")
    if most <= width:
        reason = f"needs a file of {_row_bytes(size) * (width + 1) / 1e6:.0f} MB"
        return NoiseStrategy(name="spilled", possible=False, reason=reason)
    # Half as many rounds as rows, in blocks of one length: a short last block would read as much for fewer rounds.
    length = min(most - width, -(-n // min(n, max(1, round(2 * n / width)))))
    return NoiseStrategy(
        name="spilled",
        length=length,
        width=width,
        cost=1 + (length + width) / _PRODUCTS_A_DRAW + _FILE * (width / length + 2),
        memory=4 * (width + 2 * length) * tile + (2 + rows_ahead(size)) * _row_bytes(size),
        disk=_row_bytes(size) * (width + length),
        reason=f"the last {width} rows are kept in a private file",
    )
