"""Precomputed noise of a run, one vector for each round. Noise vectors do not depend on the data,
so the host computes blocks of rounds before they are needed.

A block is computed in tiles of coordinates, each by a few matrix products on arrays that fit the
cache. Its rows are in memory, or in a memory map of a file without a name, which is as secret as
the seed. The file disappears with the process however that ends, and nothing reads it later. A
resumed run regenerates bitwise identical rows from the counter-based source, whatever a killed
process left unfinished. Noise strategies: `fedmf.noise.host_strategies`.
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
from fedmf.server.noise_blocks import BlockRows, IndependentRows
from fedmf.server.noise_tiles import NoiseDraws, RecurrentWork, RegeneratedWork, TileWork
from fedmf.server.source import check_noise_seed, noise_key
from fedmf.server.state import NoiseState, check_plan, plan_fingerprint, state_fingerprint


class HostNoise:
    """The noise vectors of one run, for a server or for a query with noise_strategy="precomputed".
    They are the rows of N Z, where N is the plan's noise matrix and Z has standard normal entries.

    The same (seed, round) gives the same row in any order of rounds: bitwise within one strategy
    and block length, and up to float32 rounding otherwise.

    Args:
      plan: plan of the run and its aggregator; its mechanism has the noise matrix N.
      size: model parameters, d.
      noise_seed: noise seed as `dp_aggregator` takes it; or `key`.
      key: uint64 (4,), of the source, in place of noise_seed.
      strategy: "recurrent", "regenerated", or None for the cheaper one; see
        `fedmf.noise.host_strategies`.
      memory_bytes: limit of the arrays; None for a quarter of the machine's memory. Rows that need
        more are in a memory map.
      folder: private folder for the memory map; None for the system's folder of temporary files.

    Raises:
      TypeError: plan is not a `fedmf.Plan`, or an argument has another type.
      ValueError: neither or both of noise_seed and key are passed, size is too large, strategy is
        unknown, memory_bytes does not suffice, the noise exceeds float32, or the tail of the
        generator does not suffice for the plan.

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
        self._fingerprint = state_fingerprint(plan_fingerprint(plan), "precomputed", 1, size)
        if key is None:
            self._key = noise_key(check_noise_seed(noise_seed))
        else:
            self._key = _checked_key(key)
        self._draws = NoiseDraws(self._key, size)
        self._lock = threading.RLock()
        self._is_busy = False
        self._rows = self._rows_of(stream, folder)

    def _rows_of(
        self, stream: NoiseStream, folder: str | pathlib.Path | None
    ) -> IndependentRows | BlockRows:
        """Returns the object that computes the noise vectors by the chosen strategy."""
        strategy = self.strategy
        noise_work: TileWork
        if strategy.layout is None:
            assert strategy.form is not None
            return IndependentRows(strategy.form, self._draws)
        if strategy.form is not None:
            noise_work = RecurrentWork(strategy.form)
        else:
            noise_matrix = stream.as_contraction().contraction
            assert noise_matrix is not None
            noise_work = RegeneratedWork(
                noise_matrix, strategy.bounds, strategy.product_rows, strategy.layout.stored_draws
            )

        def make_array(shape: tuple[int, ...]) -> np.ndarray:
            return _zeros(shape, is_mapped=strategy.disk > 0, folder=folder)

        return BlockRows(noise_work, strategy.layout, self._draws, make_array)

    @classmethod
    def for_state(cls, plan: Plan, state: Any) -> "HostNoise":
        """Returns the noise of the run that a state belongs to, by the key in the state.

        Args:
          plan: plan of the run, as for `HostNoise`.
          state: any structure with one NoiseState in it, such as TFF's server state; it has the
            size and the key.
        """
        check_plan(plan)
        noise_state = noise_state_of(state)
        size = int(np.shape(noise_state.rows)[1]) - noise_size(plan, 0)
        return cls(plan, size, key=np.asarray(noise_state.key))

    def show_progress(self) -> None:
        """Shows progress bars from now on, for blocks that take more than some seconds."""
        self._draws.is_shown = True

    def row(self, t: int) -> np.ndarray:
        """Returns the noise vector of round t, row t of N Z, where Z has unit standard deviation.
        It is a new array, float32 (size,).

        If rounds are read in order, each one computes a share of the next block. A round that is
        read out of order computes all blocks before it again, except under "regenerated".

        Raises:
          ValueError: t is not in 0 .. rounds - 1; or this is called within another call of it.
        """
        hint = (
            f"the noise was planned for rounds={self.rounds}: fit and calibrate a "
            "longer mechanism to train on"
        )
        t = checks.integer("t", t, low=0, high=self.rounds - 1, hint=hint)
        # The lock is needed because the Gaussian source and the blocks of noise can serve only one
        # call at a time.
        with self._lock:
            if self._is_busy:
                raise ValueError(
                    f"t={t}: the noise of another round is being made, or its call was "
                    "interrupted: do not ask for a row from within a call, as a signal handler "
                    "does; after an interrupt make the object again"
                )
            try:
                self._is_busy = True
                return self._rows.row(t)
            finally:
                self._is_busy = False

    def hand_in(self, state: Any) -> Any:
        """Returns a state that has the noise vector of its next round, and is otherwise unchanged.

        Args:
          state: any structure with one NoiseState of strategy "precomputed" in it: of a query, an
            aggregator or a whole TFF process.

        Raises:
          ValueError: no such state, more than one, another key or mechanism,
            or past the last round.
        """
        noise = noise_state_of(state)
        if np.shape(noise.rows) != (1, self.size):
            raise ValueError(
                f"state holds noise rows of shape {np.shape(noise.rows)}: make the aggregator with "
                f"noise_strategy='precomputed' for a model of {self.size} parameters"
            )
        if not np.array_equal(np.asarray(noise.key), self._key):
            raise ValueError(
                "the state was made with another noise seed: use HostNoise.for_state(plan, state)"
            )
        if int(noise.mechanism) != self._fingerprint:
            # An aggregator of another plan would scale the noise differently, and its guarantee
            # would not hold. An aggregator that computes its own noise would treat this noise
            # vector as one of an earlier round, and subtract it.
            raise ValueError(
                "the state's aggregator was made with another plan, or without "
                "noise_strategy='precomputed': make both from one plan, "
                "and the aggregator with that strategy"
            )
        t = int(noise.next_round)
        # The noise vector is computed before the state is traversed, because the traceback of an
        # error inside the traversal would show the state, and with it the secret key.
        noise_row = self.row(t)[None]
        return replace_noise(
            state, lambda noise: noise._replace(made_for=np.int32(t), rows=noise_row)
        )


def _checked_key(key: Any) -> np.ndarray:
    """Checks a noise key, and returns it as a uint64 array.

    Raises:
      ValueError: another shape or dtype.
    """
    key = np.asarray(key)
    if key.shape != (4,) or key.dtype != np.uint64:
        raise ValueError(
            f"key has shape {key.shape} and dtype {key.dtype}: give the uint64 (4,) of a state"
        )
    return key


def noise_state_of(state: Any) -> NoiseState:
    """Returns the NoiseState in a structure, which must have exactly one.

    Raises:
      ValueError: there is none, or there are several.
    """
    noises: list[NoiseState] = []

    def collect(noise: NoiseState) -> NoiseState:
        noises.append(noise)
        return noise

    replace_noise(state, collect)
    if len(noises) != 1:
        raise ValueError(
            f"state holds {len(noises)} NoiseStates where one is needed: pass the state of one "
            "process with one fedmf aggregator"
        )
    return noises[0]


def replace_noise(state: Any, change: Callable[[NoiseState], NoiseState]) -> Any:
    """Returns the structure with `change` applied to every NoiseState in it."""
    import tree  # The package `tree` comes with TensorFlow, which made the state.

    def change_node(node: Any) -> NoiseState | None:
        return change(node) if isinstance(node, NoiseState) else None

    return tree.traverse(change_node, state)


def _zeros(
    shape: tuple[int, ...], *, is_mapped: bool, folder: str | pathlib.Path | None
) -> np.ndarray:
    """Returns a float32 array of zeros, in memory or in a memory map. A mapped file has no name, so
    that no other process can open it.
    """
    if not is_mapped or not math.prod(shape):
        return np.zeros(shape, np.float32)
    if folder is not None:
        folder = expanded(folder)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryFile(dir=folder) as file:
        # All of the file's space is reserved now, so that a full disk raises an error here, and not
        # a bus error in the middle of the run.
        os.posix_fallocate(file.fileno(), 0, 4 * math.prod(shape))
        return np.memmap(file, np.float32, "r+", shape=shape)
