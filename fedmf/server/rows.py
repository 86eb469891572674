"""Noise made ahead by the host: it does not depend on the data, so whole blocks of rounds are made
at a time.

A block is made in tiles of coordinates, each by a few matrix products on arrays that fit the cache.
Its rows are in memory, or in a memory map of a file without a name, as secret as the seed. The file
goes with the process however that ends, and nothing reads it later. A resumed run regenerates its
rows from the counter-based source, bit for bit: a round that was released has the same noise again,
whatever a killed process had half written. Strategies: `fedmf.noise.strategies`.
"""

import concurrent.futures
import os
import pathlib
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import threadpoolctl

from fedmf import checks
from fedmf.files import checked_path, expanded
from fedmf.noise.blocks import BlockForm
from fedmf.noise.strategies import (
    HOST_STRATEGIES,
    ROWS_TOGETHER,
    TILE,
    NoiseStrategy,
    choose_host_strategy,
)
from fedmf.privacy.plan import Plan, noise_size
from fedmf.privacy.source_tail import HOST_END, check_tail
from fedmf.server.source import GaussianSource, check_noise_seed, noise_key
from fedmf.server.state import NoiseState, check_plan, plan_mark, state_mark
from fedmf.terminal import progress_bar

# Each has working memory, of which the strategy's `memory` counts two.
_THREADS = 2
# A limit on products is the process's: of two that overlap, the last to end would leave its own.
# Its own thread may take it again: a signal handler may ask other noise for a row.
_ONE_LIMIT = threading.RLock()


def _free_limit_in_child() -> None:
    """A forked process has no thread that would give the lock free."""
    global _ONE_LIMIT
    _ONE_LIMIT = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_limit_in_child)


class HostNoise:
    """The rows of N Z for one run, made a block ahead and handed into the state
    of a query with noise_strategy="precomputed".

    The same (seed, round) gives the same row whatever ran before, bit for bit within one strategy
    and block length, and up to float32 rounding otherwise.

    Args:
      plan: of the run, the aggregator's; its mechanism says what noise is made.
      size: model parameters, d.
      noise_seed: as of `dp_aggregator`; or `key`.
      key: uint64 (4,), the source's, in place of noise_seed.
      strategy: "recurrent", "regenerated", or None for the cheaper one; see
        `fedmf.noise.strategies`.
      memory_bytes: what the arrays may take; None for a quarter of the machine's memory. Rows that
        need more are in a memory map.
      folder: private folder for the memory map; None for the system's folder of temporary files.

    Raises:
      TypeError, ValueError: naming the argument, and what to do instead; a mechanism whose noise
        float32 does not hold.

    Example:
      >>> import fedmf
      >>> once = fedmf.Participation(rounds=3, schema="single")
      >>> plan = fedmf.calibrate(
      ...     fedmf.fit(fedmf.prefix_sum(3), once, family="banded"), once, epsilon=8.0, delta=1e-6
      ... )
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
        folder: str | pathlib.Path | None = None,
    ) -> None:
        check_plan(plan)
        if (noise_seed is None) == (key is None):
            raise ValueError("`noise_seed` and key: give exactly one")
        if isinstance(noise_seed, str) and noise_seed == "os":
            raise ValueError(
                'noise_seed="os" would differ from the aggregator\'s: use HostNoise.for_state'
            )
        stream = plan.mechanism.stream().causal()
        hint = "it is the number of model parameters"
        size = checks.integer("size", size, low=0, high=checks.MAX_SIZE, hint=hint)
        if folder is not None:
            folder = checked_path("folder", folder, hint="name a private folder, or give None")
        if strategy is not None:
            checks.one_of("strategy", strategy, HOST_STRATEGIES)
        self.size = size = noise_size(plan, size)
        self.rounds = stream.rounds
        check_tail(plan, HOST_END, entries=self.rounds * size)
        self.strategy: NoiseStrategy = choose_host_strategy(
            stream, size, memory_bytes=memory_bytes, folder=folder, name=strategy
        )
        self._mark = state_mark(plan_mark(plan), "precomputed", 1, size)
        self._key = noise_key(check_noise_seed(noise_seed)) if key is None else _checked_key(key)
        self._tiles, self._lock = _Tiles(self._key, size), threading.RLock()
        self._is_busy = False

        def make_array() -> np.ndarray:
            is_mapped = self.strategy.disk > 0
            return _array(self.strategy.rows, size, mapped=is_mapped, folder=folder)

        self._maker: _Independent | _Recurrent | _Regenerated
        form = self.strategy.form
        if form is not None and (form.length, form.width) == (1, 0):
            self._maker = _Independent(form, self._tiles)
        elif form is not None:
            self._maker = _Recurrent(form, self._tiles, make_array)
        else:
            matrix = stream.as_contraction().contraction
            assert matrix is not None
            self._maker = _Regenerated(matrix, self._tiles, make_array())

    @classmethod
    def for_state(cls, plan: Plan, state: Any) -> "HostNoise":
        """For the run whose state this is: any structure with one NoiseState in it, such as TFF's
        server state.

        Args:
          plan: as of `HostNoise`.
          state: holds size and key.
        """
        check_plan(plan)
        noise = _the_noise(state)
        size = int(np.shape(noise.rows)[1]) - noise_size(plan, 0)
        return cls(plan, size, key=np.asarray(noise.key))

    def show_progress(self) -> None:
        """From now on a bar shows the progress of a block that takes more than some seconds."""
        self._tiles.shown = True

    def row(self, t: int) -> np.ndarray:
        """Row t of N Z at unit standard deviation, float32 (size,), a new array.

        Rounds in order cost a block now and then. Any other round costs the blocks before it,
        except under "regenerated".

        Raises:
          ValueError: t is not in 0 .. rounds - 1; or this is called within a call of it.
        """
        hint = (
            f"the noise was planned for rounds={self.rounds}: fit and calibrate a "
            "longer mechanism to train on"
        )
        t = checks.integer("t", t, low=0, high=self.rounds - 1, hint=hint)
        with self._lock:  # the source and the blocks are of one round at a time
            if self._is_busy:
                raise ValueError(
                    f"t={t}: the noise of another round is being made: do not ask for a row from "
                    "within a call, as a signal handler does"
                )
            try:
                self._is_busy = True
                return self._maker.row(t)
            finally:
                self._is_busy = False

    def hand_in(self, state: Any) -> Any:
        """`state` with the row of its next round in it; the rest is as it was.

        Args:
          state: any structure with one NoiseState of strategy "precomputed" in it: of a query, an
            aggregator or a whole TFF process.

        Raises:
          ValueError: no such state, more than one, another key or mechanism,
            or past the last round.
        """
        noise = _the_noise(state)
        if np.shape(noise.rows) != (1, self.size):
            raise ValueError(
                f"state holds noise rows of shape {np.shape(noise.rows)}: make the aggregator with "
                f"noise_strategy='precomputed' for a model of {self.size} parameters"
            )
        if not np.array_equal(np.asarray(noise.key), self._key):
            raise ValueError(
                "the state was made with another noise seed: use HostNoise.for_state(plan, state)"
            )
        if int(noise.mechanism) != self._mark:
            # The aggregator scales the rows by its own plan: noise of another plan would not give
            # the guarantee of that one. And one that makes noise itself would take the row for one
            # of the past, and subtract it.
            raise ValueError(
                "the state's aggregator was made with another plan, or without "
                "noise_strategy='precomputed': make both from one plan, "
                "and the aggregator with that strategy"
            )
        t = int(noise.next_round)
        # Not within: the tree's error would show the state, and the key in it
        row = self.row(t)[None]
        return replace_noise(state, lambda noise: noise._replace(made_for=np.int32(t), rows=row))


def _checked_key(key: Any) -> np.ndarray:
    key = np.asarray(key)
    if key.shape != (4,) or key.dtype != np.uint64:
        raise ValueError(
            f"key has shape {key.shape} and dtype {key.dtype}: give the uint64 (4,) of a state"
        )
    return key


def _the_noise(state: Any) -> NoiseState:
    noises: list[NoiseState] = []
    replace_noise(state, lambda noise: noises.append(noise) or noise)  # type: ignore[func-returns-value]
    if len(noises) != 1:
        raise ValueError(
            f"state holds {len(noises)} NoiseStates where one is needed: pass the state of one "
            "process with one fedmf aggregator"
        )
    return noises[0]


def replace_noise(state: Any, change: Callable[[NoiseState], NoiseState]) -> Any:
    """Returns the state with every NoiseState in it changed."""
    import tree  # comes with TensorFlow, whose states these are

    return tree.traverse(lambda part: change(part) if isinstance(part, NoiseState) else None, state)


def _array(rows: int, size: int, *, mapped: bool, folder: str | pathlib.Path | None) -> np.ndarray:
    """Float32 (rows, size), in memory or in a file without a name, of this process alone."""
    if not mapped:
        # Zeros: an early state reaches before round 0, with weights of 0, and no NaN may be there.
        return np.zeros((rows, size), np.float32)
    if folder is not None:
        folder = expanded(folder)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryFile(dir=folder) as file:
        # Now, and not as a bus error in the middle of the run.
        os.posix_fallocate(file.fileno(), 0, 4 * rows * size)
        return np.memmap(file, np.float32, "r+", shape=(rows, size))


class _Tiles:
    """Draws of the source in tiles of coordinates."""

    def __init__(self, key: np.ndarray, size: int) -> None:
        self._key, self._own, self.size, self.shown = key, threading.local(), size, False

    def __iter__(self) -> Iterator[slice]:
        """The tiles, with a progress bar if it is to be shown."""
        tiles = [slice(start, min(start + TILE, self.size)) for start in range(0, self.size, TILE)]
        yield from progress_bar.bar(
            tiles, desc="noise", unit="tile", delay=3, disable=not self.shown
        )

    def draw(self, first: int, tile: slice, out: np.ndarray) -> None:
        """Rows first, first + 1, ... of Z in `tile` into out, float32 (rows, coordinates)."""
        if not hasattr(self._own, "source"):
            self._own.source = GaussianSource(self._key)  # with working memory of its own
        self._own.source.fill(out, first, tile.start)

    def each(self, work: Callable[[slice], None]) -> None:
        """Does the work of every tile, in two threads where numpy's products may take more than
        one.

        Its products take one each: they have the same bits on any number of processors, and no
        thread of theirs takes a processor from the draws while it waits.

        A first Ctrl-C waits for the tiles that are begun, a second one does not: after an error
        threads may still write where `work` writes.
        """
        with _ONE_LIMIT:
            blas = threadpoolctl.ThreadpoolController().select(user_api="blas")
            allowed = max((library["num_threads"] for library in blas.info()), default=1)
            pool = concurrent.futures.ThreadPoolExecutor(min(allowed, _THREADS), "noise")
            with blas.limit(limits=1):
                try:
                    for job in [pool.submit(work, tile) for tile in self]:
                        job.result()
                finally:
                    pool.shutdown(cancel_futures=True)


class _Independent:
    """Rows that need nothing of the past: each is its own draw, scaled."""

    def __init__(self, form: BlockForm, tiles: _Tiles) -> None:
        self._form, self._tiles = form, tiles

    def row(self, t: int) -> np.ndarray:
        row = np.empty((1, self._tiles.size), np.float32)
        scale = np.float32(self._form.matrix(t)[0, 0])
        self._tiles.draw(t, slice(0, None), row)
        return row[0] if scale == 1 else row[0] * scale


class _Recurrent:
    """[X_b; S_(b+1)] = M_b [Z_b; S_b] on tiles, in an array that holds X_b and S_(b+1).

    A block takes the place of the rows it is made from: an interrupted one is lost with its state,
    and the next row starts from round 0, in an array of its own, because threads of the interrupted
    one may still write. A rolling state is the last r rows of N Z, so the array is a ring of
    max(L, r) of them.
    """

    def __init__(
        self, form: BlockForm, tiles: _Tiles, make_array: Callable[[], np.ndarray]
    ) -> None:
        self._form, self._tiles, self._make_array = form, tiles, make_array
        self._array: np.ndarray | None = make_array()
        self._made = range(0)
        self._next = 0  # the block whose state is there

    def row(self, t: int) -> np.ndarray:
        L = self._form.length
        if t not in self._made and t < self._next * L:
            self._next = 0
        while t not in self._made:
            self._make()
        assert self._array is not None
        return np.array(self._array[t % (len(self._array) if self._form.rolling else L)])

    def _make(self) -> None:
        L, r, b = self._form.length, self._form.width, self._next
        array = self._array
        # Until it is done: an error leaves no block, and no array that its threads may write to.
        self._made, self._next = range(0), 0
        self._array = None
        if array is None:
            b = 0
            array = self._make_array()
        if self._form.rolling:
            written, state = (
                (b * L + rounds) % len(array) for rounds in (np.arange(L), -1 - np.arange(r))
            )
        else:
            written, state = np.arange(L + r), np.arange(L, L + r)
        M = self._form.matrix(b)[: len(written)].astype(np.float32)
        # Rows around the end of the ring are in two parts.
        cut = int(np.argmin(written)) or len(written)
        parts = [rows for rows in (slice(0, cut), slice(cut, len(written))) if len(written[rows])]
        own = threading.local()

        def make(tile: slice) -> None:
            if not hasattr(own, "stacked"):
                own.stacked = np.zeros((L + r, min(TILE, self._tiles.size)), np.float32)
            inputs = own.stacked[:, : tile.stop - tile.start]
            self._tiles.draw(b * L, tile, inputs[:L])
            for i, place in enumerate(state if b else ()):
                inputs[L + i] = array[place, tile]
            for rows in parts:
                places = written[rows]
                np.matmul(M[rows], inputs, out=array[places[0] : places[-1] + 1, tile])

        self._tiles.each(make)
        self._array = array
        self._made, self._next = range(b * L, (b + 1) * L), b + 1


class _Regenerated:
    """L rows at a time, contracted from all the draws up to them."""

    def __init__(self, matrix: np.ndarray, tiles: _Tiles, rows: np.ndarray) -> None:
        self._matrix, self._tiles, self._rows = matrix, tiles, rows
        self._made = range(0)

    def row(self, t: int) -> np.ndarray:
        if t not in self._made:
            self._make(t)
        return np.array(self._rows[t - self._made.start])

    def _make(self, t: int) -> None:
        """Row t and those behind it. The products are the same whichever row is asked for first."""
        self._made = range(0)  # until it is done: an interrupt must not leave half a block
        together = min(ROWS_TOGETHER, len(self._rows))
        start = t // together * together
        end = min(start + len(self._rows), len(self._matrix))
        N = self._matrix[start:end, :end].astype(np.float32)
        drawn, product = (
            np.empty((rows, min(TILE, self._tiles.size)), np.float32) for rows in (end, together)
        )
        for tile in self._tiles:
            z, count = drawn[:, : tile.stop - tile.start], tile.stop - tile.start
            self._tiles.draw(0, tile, z)
            for i in range(start, end, together):
                stop = min(i + together, end)
                rows = slice(i - start, stop - start)
                np.matmul(N[rows, :stop], z[:stop], out=product[: stop - i, :count])
                self._rows[rows, tile] = product[: stop - i, :count]
        self._made = range(start, end)
