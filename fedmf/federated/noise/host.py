"""Noise made ahead by the host: all of it is independent of the data, so whole blocks of rounds are made at a time.

A block is made in tiles of coordinates, each a few matrix products on arrays that fit the cache. Strategies: `fedmf.noise.strategies`.
"""

import functools
import pathlib
import reprlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import attrs
import numpy as np
import tensorflow as tf

from fedmf import checks
from fedmf.federated.noise.file import NoiseFile, TileFile
from fedmf.federated.noise.rows import NoiseState, plan_mark, state_mark
from fedmf.federated.noise.source import check_noise_seed, noise_key, source_of_key
from fedmf.noise.float32_check import check_float32
from fedmf.noise.strategies import (
    DEFAULT_MEMORY,
    ROWS_TOGETHER,
    TILE,
    NoiseStrategy,
    choose_host_strategy,
    room_for_noise,
)
from fedmf.noise.stream import NoiseStream
from fedmf.privacy.plan import Plan
from fedmf.terminal import progress_bar

# Rows that one call of the source draws.
_DRAWN_TOGETHER = 64
# Coordinates on which a snapshot is compared with the draws, and how far they may be apart, in the largest of them.
_COMPARED, _SAME = 16, 1e-3


class HostNoise:
    """The rows of N Z for one run, made a block ahead and handed into the state of a query with noise_strategy="precomputed".

    The same (seed, round) gives the same row whatever the strategy, up to float32 rounding, and whatever ran before; within one
    strategy bit for bit.

    Args:
      plan: of the run, the aggregator's; its mechanism says what noise is made.
      size: model parameters, d.
      noise_seed: as of `dp_aggregator`; or `key`.
      key: uint64 (2,), the source's, in place of noise_seed.
      strategy: "recurrent", "regenerated", "spilled", or None to choose the cheapest; see `fedmf.noise.strategies`.
      memory_bytes: what the arrays may take; None for 1.5 GB.
      disk_bytes: what the file of "spilled" may take; None for two thirds of what is free in `folder`. With room for all rounds of a
        dense mechanism (33 GB for 2052 of 4,050,000 parameters) they are made at once, and no round costs more than another.
      folder: private folder for the file of "spilled", kept afterwards; None for a file without a name, which goes with this object.

    Raises:
      TypeError, ValueError: naming the argument, and what to do instead; a mechanism whose noise float32 does not hold.

    Example:
      >>> import fedmf
      >>> once = fedmf.Participation(rounds=3, schema="single")
      >>> plan = fedmf.calibrate(fedmf.fit(fedmf.prefix_sum(3), once, family="banded"), once, epsilon=8.0, delta=1e-6)
      >>> noise = HostNoise(plan, 5, noise_seed=1)
      >>> noise.row(2).shape, np.array_equal(noise.row(0), HostNoise(plan, 5, noise_seed=1).row(0))
      ((5,), True)
    """

    def __init__(
        self,
        plan: Plan,
        size: int,
        *,
        noise_seed: int | None = None,
        key: np.ndarray | None = None,
        strategy: str | None = None,
        memory_bytes: int | None = None,
        disk_bytes: int | None = None,
        folder: str | pathlib.Path | None = None,
    ) -> None:
        if not isinstance(plan, Plan):
            raise TypeError(f"plan={reprlib.repr(plan)} must be a fedmf.Plan: make one with fedmf.calibrate")
        if (noise_seed is None) == (key is None):
            raise ValueError("noise_seed and key: give exactly one")
        if noise_seed == "os":
            raise ValueError('noise_seed="os" would differ from the aggregator\'s: use HostNoise.for_state')
        stream = plan.mechanism.stream().causal()
        self.size = checks.integer("size", size, low=0, hint="it is the number of model parameters")
        self.rounds = stream.rounds
        memory = DEFAULT_MEMORY if memory_bytes is None else memory_bytes
        disk = room_for_noise(folder) if disk_bytes is None else disk_bytes
        self.strategy: NoiseStrategy = choose_host_strategy(stream, size, memory, strategy, disk)
        made = form_made(stream, self.strategy)
        self._mark = state_mark(plan_mark(plan), "precomputed", 1)
        self._key = noise_key(check_noise_seed(noise_seed)) if key is None else np.asarray(key, np.uint64)
        self._tiles = tiles = _Tiles(self._key, size)
        self._maker: _Maker
        if self.strategy.name == "recurrent":
            self._maker = _Carried(self.strategy, tiles)
        elif self.strategy.name == "spilled" and stream.recurrence is not None:
            self._maker = NoiseFile(self.strategy, tiles, stream.recurrence, folder)
        else:
            matrix = made.contraction
            assert matrix is not None
            file = TileFile(size, self.strategy.length, folder) if self.strategy.disk else None
            self._maker = _Redrawn(self.strategy, tiles, matrix, file)

    @classmethod
    def for_state(cls, plan: Plan, state: Any, **options: Any) -> "HostNoise":
        """For the run whose state this is: any structure with one NoiseState in it, such as TFF's server state.

        Args:
          plan, options: as of `HostNoise`, without size, noise_seed and key, which the state holds.
        """
        found: list[NoiseState] = []
        _replace(state, lambda noise: found.append(noise) or noise)  # type: ignore[func-returns-value]
        noise = _only(found)
        return cls(plan, int(np.shape(noise.rows)[1]), key=np.asarray(noise.key), **options)

    def show_progress(self) -> None:
        """From now on a bar shows how far a block is that takes more than some seconds."""
        self._tiles.shown = True

    def row(self, t: int) -> np.ndarray:
        """Row t of N Z at unit standard deviation, float32 (size,), a new array.

        Rounds in order cost a block now and then. Any other round costs the blocks before it, except under "regenerated".

        Raises:
          ValueError: t is not in 0 .. rounds - 1.
        """
        hint = f"the noise was planned for rounds={self.rounds}: fit and calibrate a longer mechanism to train on"
        return self._maker.row(checks.integer("t", t, low=0, high=self.rounds - 1, hint=hint))

    def hand_in(self, state: Any) -> Any:
        """`state` with the row of its next round in it; the rest is as it was.

        Args:
          state: any structure with one NoiseState of strategy "precomputed" in it: of a query, an aggregator or a whole TFF process.

        Raises:
          ValueError: no such state, more than one, another key or mechanism, or past the last round.
        """
        count = 0

        def hand(noise: NoiseState) -> NoiseState:
            nonlocal count
            count += 1
            if np.shape(noise.rows) != (1, self.size):
                raise ValueError(
                    f"state holds noise rows of shape {np.shape(noise.rows)}: make the aggregator with noise_strategy='precomputed' "
                    f"for a model of {self.size} parameters"
                )
            if not np.array_equal(np.asarray(noise.key), self._key):
                raise ValueError("the state was made with another noise seed: use HostNoise.for_state(plan, state)")
            if int(noise.mechanism) != self._mark:
                # The aggregator scales the rows by its own plan: noise of another plan would not give what that one claims. And one
                # that makes noise itself would take the row for one of the past, and subtract what it adds.
                raise ValueError(
                    "the state's aggregator was made with another plan, or without noise_strategy='precomputed': make "
                    "both from one plan, and the aggregator with that strategy"
                )
            t = int(noise.next_round)
            return noise._replace(made_for=np.int32(t), rows=self.row(t)[None])

        state = _replace(state, hand)
        _only([None] * count)
        return state

    def snapshot(self) -> list[np.ndarray]:
        """What `restore` needs to go on without making earlier blocks again."""
        return self._maker.snapshot()

    def restore(self, leaves: Sequence[np.ndarray]) -> bool:
        """Takes a snapshot back. False, and nothing done, if it is another strategy's: the next row then makes it all again."""
        return self._maker.restore(leaves)


def form_made(stream: NoiseStream, strategy: NoiseStrategy) -> NoiseStream:
    """A causal stream in the form in which the strategy makes its rows.

    Raises:
      ValueError: float32 does not hold it.
    """
    carried = strategy.name == "recurrent" or (strategy.name == "spilled" and stream.recurrence is not None)
    made = stream if carried else stream.as_contraction()
    check_float32(made, length=strategy.length if carried else 1, form=strategy.form)
    return made


class _Maker(Protocol):
    def row(self, t: int) -> np.ndarray: ...

    def snapshot(self) -> list[np.ndarray]: ...

    def restore(self, leaves: Sequence[np.ndarray]) -> bool: ...


def _only(found: list[Any]) -> Any:
    if len(found) != 1:
        raise ValueError(
            f"state holds {len(found)} NoiseStates where one is needed: pass the state of one process with one fedmf aggregator"
        )
    return found[0]


def _replace(value: Any, change: Callable[[NoiseState], NoiseState]) -> Any:
    """`value` with every NoiseState in it changed."""
    if isinstance(value, NoiseState):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_replace(part, change) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(_replace(part, change) for part in value)
    if isinstance(value, dict):
        return type(value)((name, _replace(part, change)) for name, part in value.items())
    if attrs.has(type(value)):
        parts = {field.name: _replace(getattr(value, field.name), change) for field in attrs.fields(type(value))}
        return attrs.evolve(value, **parts)
    return value


def _drawn(width: int, together: int, key: Any, first: Any, start: Any) -> Any:
    draw = source_of_key(key, width, start)
    return tf.stack([draw(first + i) for i in range(together)])


@functools.lru_cache(maxsize=64)
def _rows_function(width: int, together: int) -> Any:
    """(key, first, start) -> rows first .. first + together - 1 of Z from coordinate start on, traced once for all seeds."""
    # Partial: TensorFlow would take several functions of one body for one that is traced again and again, and warn.
    return tf.function(functools.partial(_drawn, width, together))


class _Tiles:
    """Draws of the source in tiles of coordinates."""

    def __init__(self, key: np.ndarray, size: int) -> None:
        self.key, self.size, self.shown = key, size, False

    def __iter__(self) -> Iterator[slice]:
        for start in range(0, self.size, TILE):
            yield slice(start, min(start + TILE, self.size))

    def watched(self) -> Iterator[slice]:
        """The tiles, with a bar for whoever asked to see one."""
        tiles = -(-self.size // TILE)
        yield from progress_bar.bar(
            self, desc="noise", total=tiles, unit="tile", leave=False, delay=3, disable=not self.shown
        )

    def draw(self, first: int, count: int, tile: slice, out: np.ndarray) -> None:
        """Rows first .. first + count - 1 of Z in `tile` into out, float32 (count, coordinates)."""
        key, start = tf.constant(self.key, tf.uint64), tf.constant(tile.start, tf.int64)
        row = 0
        while row < count:
            # Powers of two: few functions are traced for any count.
            together = min(_DRAWN_TOGETHER, 1 << ((count - row).bit_length() - 1))
            function = _rows_function(tile.stop - tile.start, together)
            out[row : row + together] = function(key, tf.constant(first + row, tf.int64), start).numpy()
            row += together


class _Carried:
    """[X_b; S_(b+1)] = M_b [Z_b; S_b] on tiles."""

    def __init__(self, strategy: NoiseStrategy, tiles: _Tiles) -> None:
        assert strategy.form is not None
        self._form, self._tiles = strategy.form, tiles
        L, r = strategy.length, strategy.width
        self._block, self._made = 0, False  # of `_start`; whether `_rows` and `_end` are there
        self._rows = np.zeros((L, tiles.size), np.float32)
        self._start, self._end = np.zeros((2, r, tiles.size), np.float32)

    def row(self, t: int) -> np.ndarray:
        block, phase = divmod(t, self._form.length)
        if block < self._block:
            self._block, self._made = 0, False
            self._start[:] = 0
        while self._block < block or not self._made:
            if self._made:
                self._start, self._end = self._end, self._start
                self._block, self._made = self._block + 1, False
            self._make()
        return self._rows[phase].copy()

    def _make(self) -> None:
        L, r = self._form.length, self._form.width
        M = self._form.matrix(self._block).astype(np.float32)
        stacked, product = np.empty((2, L + r, min(TILE, self._tiles.size)), np.float32)
        for tile in self._tiles:
            count = tile.stop - tile.start
            now, out = stacked[:, :count], product[:, :count]
            self._tiles.draw(self._block * L, L, tile, now[:L])
            now[L:] = self._start[:, tile]
            np.matmul(M, now, out=out)
            self._rows[:, tile], self._end[:, tile] = out[:L], out[L:]
        self._made = True

    def snapshot(self) -> list[np.ndarray]:
        return [np.array([self._block, self._form.length], np.int64), self._start]

    def restore(self, leaves: Sequence[np.ndarray]) -> bool:
        if len(leaves) != 2 or leaves[1].shape != self._start.shape or int(leaves[0][1]) != self._form.length:
            return False
        block, start = int(leaves[0][0]), leaves[1]
        # What the rows of the state mean may depend on who found the form: its basis comes from a singular value decomposition.
        tile = slice(0, min(_COMPARED, self._tiles.size))
        expected = self._state_before(block, tile)
        scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
        if not float(np.abs(start[:, tile] - expected).max(initial=0.0)) <= _SAME * scale:  # negated for a NaN
            return False
        self._block, self._made = block, False
        self._start[:] = start
        return True

    def _state_before(self, block: int, tile: slice) -> np.ndarray:
        """S of a block from the draws before it, float64 (width, coordinates)."""
        L, count = self._form.length, tile.stop - tile.start
        S, drawn = np.zeros((self._form.width, count)), np.empty((L, count), np.float32)
        for b in range(block):
            self._tiles.draw(b * L, L, tile, drawn)
            S = self._form.matrix(b)[L:] @ np.vstack([drawn, S])
        return S


class _Redrawn:
    """L rows at a time, contracted from all the draws up to them; kept in memory or in a file."""

    def __init__(self, strategy: NoiseStrategy, tiles: _Tiles, matrix: np.ndarray, file: TileFile | None) -> None:
        self._tiles, self._length, self._matrix, self._file = tiles, strategy.length, matrix, file
        self._held = range(0)
        self._rows = np.zeros((strategy.length if file is None else 0, tiles.size), np.float32)

    def row(self, t: int) -> np.ndarray:
        if t not in self._held:
            self._make(t)
        place = t - self._held.start
        return self._rows[place].copy() if self._file is None else self._file.row(place, len(self._held))

    def _make(self, t: int) -> None:
        """Row t and those behind it. The products are the same whichever row is asked for first."""
        self._held = range(0)  # until it is done: an interrupt must not leave half a block
        together = min(ROWS_TOGETHER, self._length)
        start = t // together * together
        end = min(start + self._length, len(self._matrix))
        N = self._matrix[start:end, :end].astype(np.float32)
        drawn, product = (np.empty((rows, min(TILE, self._tiles.size)), np.float32) for rows in (end, together))
        for tile in self._tiles.watched():
            z, count = drawn[:, : tile.stop - tile.start], tile.stop - tile.start
            self._tiles.draw(0, end, tile, z)
            rows = self._rows[: len(N), tile] if self._file is None else z[start:]
            for i in reversed(range(start, end, together)):  # a row of z is written over when only later rows needed it
                stop = min(i + together, end)
                out = product[: stop - i, :count]
                rows[i - start : stop - start] = np.matmul(N[i - start : stop - start, :stop], z[:stop], out=out)
            if self._file is not None:
                self._file.write(tile, 0, rows)
        self._held = range(start, end)

    def snapshot(self) -> list[np.ndarray]:
        return []

    def restore(self, leaves: Sequence[np.ndarray]) -> bool:
        return not leaves
