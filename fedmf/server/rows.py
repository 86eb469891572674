"""Noise made ahead by the host: it does not depend on the data, so whole blocks of rounds are made
at a time.

A block is made in tiles of coordinates, each by a few matrix products on arrays that fit the cache.
Its rows are in memory, or in a memory map of a file without a name, as secret as the seed. The file
goes with the process however that ends, and nothing reads it later. A resumed run regenerates its
rows from the counter-based source, bit for bit: a round that was released has the same noise again,
whatever a killed process had half written. Strategies: `fedmf.noise.host_strategies`.
"""

import math
import os
import pathlib
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from fedmf import checks
from fedmf.files import checked_path, expanded
from fedmf.noise.host_strategies import HOST_STRATEGIES, choose_host_strategy
from fedmf.noise.strategy import NoiseStrategy
from fedmf.noise.stream import NoiseStream
from fedmf.privacy.plan import Plan, noise_size
from fedmf.privacy.source_tail import HOST_END, check_tail
from fedmf.server.noise_blocks import (
    BlockRows,
    Draws,
    IndependentRows,
    RecurrentWork,
    RegeneratedWork,
    TileWork,
)
from fedmf.server.source import check_noise_seed, noise_key
from fedmf.server.state import NoiseState, check_plan, plan_mark, state_mark


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
        `fedmf.noise.host_strategies`.
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
        self._draws = Draws(self._key, size)
        self._lock = threading.RLock()
        self._is_busy = False
        self._rows = self._rows_of(stream, folder)

    def _rows_of(
        self, stream: NoiseStream, folder: str | pathlib.Path | None
    ) -> IndependentRows | BlockRows:
        """Returns what makes the rows by the strategy."""
        strategy = self.strategy
        work: TileWork
        if strategy.layout is None:
            assert strategy.form is not None
            return IndependentRows(strategy.form, self._draws)
        if strategy.form is not None:
            work = RecurrentWork(strategy.form)
        else:
            matrix = stream.as_contraction().contraction
            assert matrix is not None
            work = RegeneratedWork(
                matrix, strategy.bounds, strategy.product_rows, strategy.layout.stored_draws
            )

        def make_array(shape: tuple[int, ...]) -> np.ndarray:
            return _array(shape, mapped=strategy.disk > 0, folder=folder)

        return BlockRows(work, strategy.layout, self._draws, make_array)

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
        self._draws.is_shown = True

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
                return self._rows.row(t)
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


def _array(
    shape: tuple[int, ...], *, mapped: bool, folder: str | pathlib.Path | None
) -> np.ndarray:
    """Float32 of this shape, in memory or in a file without a name, of this process alone."""
    if not mapped or not math.prod(shape):
        return np.zeros(shape, np.float32)
    if folder is not None:
        folder = expanded(folder)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryFile(dir=folder) as file:
        # Now, and not as a bus error in the middle of the run.
        os.posix_fallocate(file.fileno(), 0, 4 * math.prod(shape))
        return np.memmap(file, np.float32, "r+", shape=shape)
