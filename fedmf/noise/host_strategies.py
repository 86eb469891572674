"""Strategies that precompute noise vectors on the host, outside any TensorFlow graph. The module
estimates their costs and chooses between them.
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
    without_unread_sums,
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
# Number of noise vectors that one matrix product computes from all draws. Longer blocks are
# multiples of it, so that noise vectors are bitwise identical for every block length.
ROWS_TOGETHER = 128
# Compressing the noise matrix of 2052 rounds takes about this many seconds, and the time grows as
# rounds^3. A matrix is compressed if that saves more time over the run than it takes.
_COMPRESS_SECONDS = 5.0
# A noise matrix whose compression takes less than this many seconds is also compressed if the
# strategy "regenerated" would need much memory.
_SHORT_SECONDS = 0.1
# The strategy with fewer rows is preferred to a cheaper one if its cost is at most this many times
# the lower cost.
_PRICE_RATIO = 1.1
# Largest number of rows (vectors of model size) in the state of a compressed noise matrix, and
# largest number of rounds for which the noise matrix N is formed.
_MAX_COMPRESSED_ROWS = 64
_MAX_CONTRACTED_ROUNDS = 4096
# Block lengths among which the cheapest is chosen. For a compressed noise matrix, the block length
# is always _COMPRESSED_LENGTH.
_BLOCK_LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_COMPRESSED_LENGTH = 16


def host_strategies(
    stream: NoiseStream,
    size: int,
    *,
    memory_bytes: int | None = None,
    folder: str | pathlib.Path | None = None,
) -> list[NoiseStrategy]:
    """Returns both strategies for noise on the host, "recurrent" and "regenerated", with their
    costs. The better one is first, and one that is not possible is last.

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
    should_compress = (is_short and is_large) or saved_seconds > compress_seconds
    recurrent = _recurrent(stream, storage, compress=should_compress)
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
    """Returns the better strategy for noise on the host, or the one called `name`.

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
            # If a user chooses the strategy "recurrent" by name, the noise matrix is compressed
            # however long this takes.
            strategies = [_recurrent(stream, storage, compress=True)]
    best_strategy = strategies[0]
    if not best_strategy.possible:
        strategy_reasons = "; ".join(
            f"{strategy.name}: {strategy.reason}" for strategy in strategies
        )
        raise ValueError(
            f"noise_strategy={name!r} cannot make this noise with memory_bytes={memory_bytes}: "
            f"{strategy_reasons}; allow more memory, or free disk space"
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
        candidate_form = block_form(stream, bounds=equal_blocks(n, 1))
        if candidate_form is not None and candidate_form.width == 0:
            unneeded_reason = "each noise vector is its own draw"
            return NoiseStrategy(
                name="recurrent", length=1, cost=1.0, reason=unneeded_reason, form=candidate_form
            )
    block_lengths: tuple[int, ...] = _BLOCK_LENGTHS
    max_width = None
    if is_contraction:
        block_lengths = (_COMPRESSED_LENGTH,)
        max_width = _MAX_COMPRESSED_ROWS
    max_length = min(n, longest_block(storage.size))
    candidate_strategies = []
    for length in sorted({min(length, max_length) for length in block_lengths}):
        block_bounds = growing_blocks(n, length)
        candidate_form = block_form(stream, bounds=block_bounds, max_width=max_width)
        if candidate_form is None:
            return NoiseStrategy(
                name="recurrent",
                reason=f"it has no recurrence of at most {_MAX_COMPRESSED_ROWS} rows",
            )
        if stream.tree is not None:
            candidate_form = without_unread_sums(candidate_form, stream.tree)
        candidate_strategies.append(
            _recurrent_blocks(with_small_first_states(candidate_form), length, storage)
        )
    return cheapest(candidate_strategies)


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
    tile_layout = TileLayout(
        tile_width=tile_width(storage.size, length),
        waiting_rows=waiting_rows(form.bounds, past_rows) + state_rows,
        longest=L,
    )
    copies_per_round = (r + num_outputs) / L + 1
    product_cost = (L + r) * num_outputs / L / PRODUCTS_PER_DRAW
    recurrent_strategy = NoiseStrategy(
        name="recurrent",
        length=L,
        width=r,
        rows=tile_layout.rows,
        cost=1 + product_cost + COPY_COST * copies_per_round,
        reason=f"{r} rows carry what the future needs of the past",
        bounds=form.bounds,
        layout=tile_layout,
        form=form,
    )
    scratch_bytes = 4 * THREADS * (L + r + num_outputs) * min(storage.size, tile_layout.tile_width)
    return storage.placed(
        recurrent_strategy, scratch_bytes, (FILE_COST - COPY_COST) * copies_per_round
    )


def _regenerated(stream: NoiseStream, storage: Storage) -> NoiseStrategy:
    """Returns the strategy "regenerated", which computes each block of noise vectors from all draws
    so far. It stores some of these draws, and draws the rest again.
    """
    n = stream.rounds
    if stream.contraction is None and n > _MAX_CONTRACTED_ROUNDS:
        reason = f"{n} rounds: the rows of N are not written out beyond {_MAX_CONTRACTED_ROUNDS}"
        return NoiseStrategy(name="regenerated", reason=reason)
    # The number of rows per product and the tile width do not depend on the machine's memory, so
    # that the noise is bitwise identical on every machine.
    product_rows = min(ROWS_TOGETHER, 2 ** (longest_block(storage.size).bit_length() - 1))
    coordinates_per_tile = tile_width(storage.size, min(product_rows, -(-n // 2)))
    scratch_bytes = 4 * THREADS * (n + product_rows) * min(storage.size, coordinates_per_tile)
    candidate_strategies = []
    for max_rows in storage.row_limits(scratch_bytes, has_recurrence=stream.contraction is None):
        for bounds, stored_draws in _partitions(n, product_rows, max_rows):
            regenerated_strategy = _regenerated_blocks(
                bounds,
                product_rows=product_rows,
                width=coordinates_per_tile,
                stored_draws=stored_draws,
            )
            candidate_strategies.append(
                storage.placed(regenerated_strategy, scratch_bytes, 2 * FILE_COST)
            )
    return cheapest(candidate_strategies)


def _partitions(n: int, product_rows: int, max_rows: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yields partitions of the rounds into blocks, each with the number of draws that can be stored
    in memory besides the noise vectors.

    They range from short blocks with many stored draws to the longest possible blocks without any.

    Args:
      n: number of rounds.
      product_rows: number of rows of one product.
      max_rows: number of rows that fit into memory, or into a memory map.
    """
    max_rows = max(2, max_rows)
    length_step = product_rows if product_rows < max_rows else 1
    max_length = min(max_rows - 1, n)
    max_length -= max_length % length_step
    block_length = length_step
    while True:
        block_bounds = growing_blocks(n, block_length)
        free_rows = max_rows - waiting_rows(block_bounds, 0)
        # No later block needs the draws of the last block, so they are not stored.
        stored_draws = max(0, min(free_rows, block_bounds[-2]))
        yield block_bounds, stored_draws
        if block_length >= max_length:
            return
        block_length = min(2 * block_length, max_length)


def _regenerated_blocks(
    bounds: tuple[int, ...], *, product_rows: int, width: int, stored_draws: int
) -> NoiseStrategy:
    """Returns the strategy "regenerated" with blocks of rounds between `bounds`. The caller decides
    whether its rows are in memory or on disk.
    """
    n = bounds[-1]
    block_starts = np.array(bounds[:-1])
    block_stops = np.array(bounds[1:])
    num_stored_draws = np.minimum(block_starts, stored_draws)
    num_draws = int((block_stops - num_stored_draws).sum())
    num_products = int(((block_stops - block_starts) * block_stops).sum())
    # A block that needs both stored draws and new ones copies the stored ones into one array.
    num_copies = 2 * n + stored_draws + int(num_stored_draws[block_stops > stored_draws].sum())
    tile_layout = TileLayout(
        tile_width=width,
        waiting_rows=waiting_rows(bounds, 0),
        longest=int((block_stops - block_starts).max()),
        stored_draws=stored_draws,
    )
    if num_draws == n:
        cost_reason = "all draws but the last are stored"
    else:
        cost_reason = (
            f"every {tile_layout.longest} rounds the draws of rounds {stored_draws} on are drawn "
            "again"
        )
    return NoiseStrategy(
        name="regenerated",
        length=tile_layout.longest,
        rows=tile_layout.rows,
        cost=(num_draws + num_products / PRODUCTS_PER_DRAW + COPY_COST * num_copies) / n,
        reason=cost_reason,
        bounds=bounds,
        product_rows=product_rows,
        layout=tile_layout,
    )
