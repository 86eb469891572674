"""Strategies that precompute noise vectors on the host, outside any graph: their costs, and the
choice between them.
"""

import pathlib
from collections.abc import Iterator

import numpy as np

from fedmf import checks
from fedmf.noise.blocks import (
    BlockForm,
    block_form,
    equal_blocks,
    growing_blocks,
    with_small_first_states,
)
from fedmf.noise.float32_check import check_float32
from fedmf.noise.layout import THREADS, TileLayout, longest_block, tile_width, waiting_rows
from fedmf.noise.storage import Storage
from fedmf.noise.strategy import (
    COPY_COST,
    DRAW_SECONDS,
    FILE_COST,
    LARGE_MEMORY,
    PRODUCTS_PER_DRAW,
    NoiseStrategy,
    cheapest,
)
from fedmf.noise.stream import NoiseStream

HOST_STRATEGIES = ("recurrent", "regenerated")
# Number of noise vectors that one matrix product computes from all draws. The lengths of longer
# blocks are multiples of it, so that a noise vector is bitwise identical for every block length.
ROWS_TOGETHER = 128
# Compressing the noise matrix of 2052 rounds takes about this many seconds, and the time grows as
# rounds^3. A matrix is compressed if that saves more time over the run than it takes.
_COMPRESS_SECONDS = 5.0
# A matrix whose compression takes less than this many seconds is also compressed if the strategy
# "regenerated" would need much memory.
_SHORT_SECONDS = 0.1
# Of the two strategies for computing noise, the one with the higher estimated cost is preferred if
# it has fewer rows, unless its cost is more than this many times that of the other one.
_PRICE_RATIO = 1.1
# Largest number of rows (vectors of model size) in the state of a compressed noise matrix, and
# largest number of rounds for which the noise matrix N is formed.
_MAX_COMPRESSED_ROWS = 64
_MAX_CONTRACTED_ROUNDS = 4096
# The block length with the lowest cost is chosen among these. For a compressed noise matrix, the
# block length is always _COMPRESSED_LENGTH.
_BLOCK_LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_COMPRESSED_LENGTH = 16


def host_strategies(
    stream: NoiseStream,
    size: int,
    *,
    memory_bytes: int | None = None,
    folder: str | pathlib.Path | None = None,
) -> list[NoiseStrategy]:
    """Returns both strategies of the host, "recurrent" and "regenerated". The better one is first,
    and one that is not possible is last.

    The better one is the cheaper one. Rows in memory are preferred to a memory map that is hardly
    cheaper.

    Args:
      stream: noise stream of the mechanism.
      size: number of model parameters, d.
      memory_bytes: bytes that the arrays may take; None for a quarter of the machine's memory.
      folder: folder of a memory map; see `storage.default_disk`.

    Raises:
      TypeError, ValueError: size is not a non-negative int, or memory_bytes not a positive one.

    >>> from fedmf.mechanisms import IdentityMechanism
    >>> stream = IdentityMechanism(rounds=2052).stream()
    >>> best, second = host_strategies(stream, 4_050_748, memory_bytes=10**9)
    >>> best.name, round(best.cost, 1)
    ('recurrent', 1.0)
    """
    n = stream.rounds
    storage = Storage.of(size, memory_bytes, folder)
    regenerated = _regenerated(stream, storage)
    saved_seconds = (regenerated.cost - 1.5) * n * size * DRAW_SECONDS
    compress_seconds = _COMPRESS_SECONDS * (n / 2052) ** 3
    is_short = compress_seconds <= _SHORT_SECONDS
    is_large = regenerated.memory + regenerated.disk > LARGE_MEMORY
    compress = (is_short and is_large) or saved_seconds > compress_seconds
    recurrent = _recurrent(stream, storage, compress=compress)
    best, second = sorted((recurrent, regenerated), key=lambda strategy: strategy.price)
    if second.rows < best.rows and second.price <= _PRICE_RATIO * best.price:
        return [second, best]
    return [best, second]


def choose_host_strategy(
    stream: NoiseStream,
    size: int,
    *,
    memory_bytes: int | None = None,
    folder: str | pathlib.Path | None = None,
    name: str | None = None,
) -> NoiseStrategy:
    """Returns the better strategy of the host, or the one called `name`.

    Args:
      stream, size, memory_bytes, folder: see `host_strategies`.
      name: one of HOST_STRATEGIES, or None.

    Raises:
      ValueError: the name is unknown; the strategy is not possible for this mechanism, size and
        memory; or float32 cannot represent the noise.
    """
    if name is None:
        strategies = host_strategies(stream, size, memory_bytes=memory_bytes, folder=folder)
    else:
        checks.one_of("noise_strategy", name, HOST_STRATEGIES)
        storage = Storage.of(size, memory_bytes, folder)
        if name == "regenerated":
            strategies = [_regenerated(stream, storage)]
        else:
            # A user who chooses the recurrence by name accepts any time that the compression takes.
            strategies = [_recurrent(stream, storage, compress=True)]
    best_strategy = strategies[0]
    if not best_strategy.possible:
        reasons = "; ".join(f"{strategy.name}: {strategy.reason}" for strategy in strategies)
        raise ValueError(
            f"noise_strategy={name!r} cannot make this noise with memory_bytes={memory_bytes}: "
            f"{reasons}; allow more memory, or free disk space"
        )
    causal_stream = stream.causal()
    if best_strategy.form is None:
        causal_stream = causal_stream.as_contraction()
    check_float32(causal_stream, best_strategy.form)
    return best_strategy


def _recurrent(stream: NoiseStream, storage: Storage, compress: bool) -> NoiseStrategy:
    """Returns the strategy "recurrent", which computes each block of noise vectors from the draws
    of its own rounds and a state of few rows.

    Its block length is the one of the lowest cost.

    Args:
      stream: noise stream of the mechanism.
      storage: limits on memory and disk space.
      compress: whether an explicit noise matrix may be compressed.
    """
    n = stream.rounds
    is_contraction = stream.contraction is not None
    if is_contraction and not compress:
        return NoiseStrategy(name="recurrent", reason="not computed: drawing again costs little")
    if not is_contraction:
        form = block_form(stream, bounds=equal_blocks(n, 1))
        if form is not None and form.width == 0:
            reason = "each noise vector is its own draw"
            return NoiseStrategy(name="recurrent", length=1, cost=1.0, reason=reason, form=form)
    lengths: tuple[int, ...] = _BLOCK_LENGTHS
    max_width = None
    if is_contraction:
        lengths = (_COMPRESSED_LENGTH,)
        max_width = _MAX_COMPRESSED_ROWS
    max_length = min(n, longest_block(storage.size))
    candidates = []
    for length in sorted({min(length, max_length) for length in lengths}):
        bounds = growing_blocks(n, length)
        form = block_form(stream, bounds=bounds, max_width=max_width)
        if form is None:
            return NoiseStrategy(
                name="recurrent",
                reason=f"it has no recurrence of at most {_MAX_COMPRESSED_ROWS} rows",
            )
        candidates.append(_recurrent_blocks(with_small_first_states(form), length, storage))
    return cheapest(candidates)


def _recurrent_blocks(form: BlockForm, length: int, storage: Storage) -> NoiseStrategy:
    """Returns the strategy "recurrent" with the blocks of `form`, which have at most `length`
    rounds.
    """
    L = form.length
    r = form.width
    if form.is_rolling:
        # The state of a block in rolling form consists of earlier noise vectors, which are in
        # memory anyway.
        num_outputs = L
        past_rows = r
        state_rows = 0
    else:
        num_outputs = L + r
        past_rows = 0
        state_rows = r
    layout = TileLayout(
        tile_width=tile_width(storage.size, length),
        waiting_rows=waiting_rows(form.bounds, past_rows) + state_rows,
        longest=L,
    )
    num_copies = (r + num_outputs) / L + 1
    product_cost = (L + r) * num_outputs / L / PRODUCTS_PER_DRAW
    strategy = NoiseStrategy(
        name="recurrent",
        length=L,
        width=r,
        rows=layout.rows,
        cost=1 + product_cost + COPY_COST * num_copies,
        reason=f"{r} rows carry what the future needs of the past",
        bounds=form.bounds,
        layout=layout,
        form=form,
    )
    scratch = 4 * THREADS * (L + r + num_outputs) * min(storage.size, layout.tile_width)
    return storage.placed(strategy, scratch, (FILE_COST - COPY_COST) * num_copies)


def _regenerated(stream: NoiseStream, storage: Storage) -> NoiseStrategy:
    """Returns the strategy "regenerated", which computes each block of noise vectors from all draws
    so far. It stores some of these draws, and draws the rest again.
    """
    n = stream.rounds
    if stream.contraction is None and n > _MAX_CONTRACTED_ROUNDS:
        reason = f"{n} rounds: the rows of N are not written out beyond {_MAX_CONTRACTED_ROUNDS}"
        return NoiseStrategy(name="regenerated", reason=reason)
    # These two numbers do not depend on the memory of the machine, so that the noise is bitwise
    # identical on every machine.
    product_rows = min(ROWS_TOGETHER, 2 ** (longest_block(storage.size).bit_length() - 1))
    width = tile_width(storage.size, min(product_rows, -(-n // 2)))
    scratch = 4 * THREADS * (n + product_rows) * min(storage.size, width)
    candidates = []
    for max_rows in storage.row_limits(scratch, has_recurrence=stream.contraction is None):
        for bounds, stored_draws in _partitions(n, product_rows, max_rows):
            strategy = _regenerated_blocks(
                bounds, product_rows=product_rows, width=width, stored_draws=stored_draws
            )
            candidates.append(storage.placed(strategy, scratch, 2 * FILE_COST))
    return cheapest(candidates)


def _partitions(n: int, product_rows: int, max_rows: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yields partitions of the rounds into blocks: the bounds of the blocks, and the number of
    draws that can be stored beside them.

    They range from short blocks with many stored draws to the longest possible blocks without any.

    Args:
      n: number of rounds.
      product_rows: number of rows of one product.
      max_rows: number of rows that fit into memory, or into a memory map.
    """
    max_rows = max(2, max_rows)
    step = product_rows if product_rows < max_rows else 1
    max_length = min(max_rows - 1, n)
    max_length -= max_length % step
    length = step
    while True:
        bounds = growing_blocks(n, length)
        free_rows = max_rows - waiting_rows(bounds, 0)
        # The draws of the last block are never needed again, so they are not stored.
        stored_draws = max(0, min(free_rows, bounds[-2]))
        yield bounds, stored_draws
        if length >= max_length:
            return
        length = min(2 * length, max_length)


def _regenerated_blocks(
    bounds: tuple[int, ...], *, product_rows: int, width: int, stored_draws: int
) -> NoiseStrategy:
    """Returns the strategy "regenerated" with these blocks, before memory or a memory map is chosen
    for its rows.
    """
    n = bounds[-1]
    starts = np.array(bounds[:-1])
    stops = np.array(bounds[1:])
    num_stored = np.minimum(starts, stored_draws)
    num_draws = int((stops - num_stored).sum())
    num_products = int(((stops - starts) * stops).sum())
    # A block that needs both stored draws and new ones copies the stored ones into one array.
    num_copies = 2 * n + stored_draws + int(num_stored[stops > stored_draws].sum())
    layout = TileLayout(
        tile_width=width,
        waiting_rows=waiting_rows(bounds, 0),
        longest=int((stops - starts).max()),
        stored_draws=stored_draws,
    )
    if num_draws == n:
        reason = "all draws but the last are stored"
    else:
        reason = (
            f"every {layout.longest} rounds the draws of rounds {stored_draws} on are drawn again"
        )
    return NoiseStrategy(
        name="regenerated",
        length=layout.longest,
        rows=layout.rows,
        cost=(num_draws + num_products / PRODUCTS_PER_DRAW + COPY_COST * num_copies) / n,
        reason=reason,
        bounds=bounds,
        product_rows=product_rows,
        layout=layout,
    )
