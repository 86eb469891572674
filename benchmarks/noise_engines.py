"""The ways to make rows of noise that `benchmarks.noise` times, behind one interface."""

import abc
import functools
import os
from typing import Any

import numpy as np

import fedmf
from benchmarks.noise_cases import Case, mechanism, participation

_SEED = 1  # of noise that protects nothing
# Rounds timed together where no block is made: enough to average over what even and odd rounds of a tree cost.
_WINDOW = 8


class Engine(abc.ABC):
    """One way to make the rows of one mechanism. TensorFlow is imported by the constructor."""

    strategy: str

    @abc.abstractmethod
    def draw(self) -> None:
        """One iid vector, by the generator that the rows are made of."""

    @abc.abstractmethod
    def set_up(self) -> None:
        """What a run does once, before round 0."""

    @abc.abstractmethod
    def block(self, t: int) -> tuple[int, int]:
        """(first round, rounds) of what is made together and holds round t."""

    @abc.abstractmethod
    def jump(self, first: int) -> None:
        """Pretends that the rounds before `first` have been: costs no time that is measured, and what the state holds does not
        change what a round costs.
        """

    @abc.abstractmethod
    def run(self, first: int, count: int) -> None:
        """Makes rows first .. first + count - 1, one after the other."""

    def disk(self) -> int:
        """Bytes on disk."""
        return 0

    def state_bytes(self) -> int:
        """Bytes of state that pass through the graph by value."""
        return 0


class HostEngine(Engine):
    """`fedmf.federated.HostNoise`; the rows come out as numpy arrays."""

    def __init__(self, case: Case, rounds: int, size: int, strategy: str | None) -> None:
        from fedmf.federated.noise.source import gaussian_source

        found = mechanism(case, rounds)
        self._plan = fedmf.Plan(
            mechanism=found, participation=participation(case, rounds), noise_multiplier=1.0, clip_norm=1.0, delta=1e-6
        )
        self._rounds, self._size, self._asked = rounds, size, strategy
        self._draw = compiled(gaussian_source(_SEED, size))

    def draw(self) -> None:
        """See `Engine`."""
        self._draw()

    def set_up(self) -> None:
        """Chooses the strategy and makes the first block; not where the one block of the whole run is timed anyway."""
        from fedmf.federated.noise.host import HostNoise

        self._noise = HostNoise(self._plan, self._size, noise_seed=_SEED, strategy=self._asked)
        self.strategy = self._noise.strategy.name
        if self._noise.strategy.length < self._rounds:
            self._noise.row(0)

    def block(self, t: int) -> tuple[int, int]:
        """See `Engine`."""
        length = self._noise.strategy.length
        first = t // length * length
        return first, min(length, self._rounds - first)

    def jump(self, first: int) -> None:
        """See `Engine`."""
        width, block = self._noise.strategy.width, first // self._noise.strategy.length
        rng = np.random.default_rng(first)
        if self.strategy == "recurrent":
            place, kept = (
                self._noise.snapshot()
            )  # the state itself: filled in place, so that the benchmark's memory is not counted
            place[0] = block
            for row in kept:
                row[:] = rng.standard_normal(self._size, np.float32)
            assert self._noise.restore([place, kept])
        elif width == 0:
            maker: Any = self._noise._maker
            maker._held = range(0)  # redrawn, in memory or in a file. No block is there: the next row makes its own
        else:
            _fill_file(self._noise, max(0, first - width), first, rng)

    def run(self, first: int, count: int) -> None:
        """See `Engine`."""
        for t in range(first, first + count):
            self._noise.row(t)

    def disk(self) -> int:
        """See `Engine`."""
        return self._noise.strategy.disk

    def state_bytes(self) -> int:
        """The row that is handed in."""
        return 4 * self._size


def _fill_file(noise: Any, first: int, end: int, rng: np.random.Generator) -> None:
    """Rows first .. end - 1 of a "spilled" noise's file, as if they had been made; on the disk, so that nobody else's writing is timed."""
    file = noise._maker
    for tile in file._tiles:
        if end > first:
            file._file.write(tile, first, rng.standard_normal((end - first, tile.stop - tile.start), np.float32))
    os.fsync(file._file._descriptor)
    file._write_header(first, end)


class GraphEngine(Engine):
    """`fedmf.federated.noise.NoiseRows` in a tf.function."""

    def __init__(self, case: Case, rounds: int, size: int, strategy: str | None) -> None:
        from fedmf.federated.noise.source import gaussian_source

        self._stream, self._rounds = mechanism(case, rounds).stream(), rounds
        self._size, self._asked = size, strategy
        self._draw = compiled(gaussian_source(_SEED, size))

    def draw(self) -> None:
        """See `Engine`."""
        self._draw()

    def set_up(self) -> None:
        """Chooses the strategy and traces a round."""
        import tensorflow as tf

        from fedmf.federated.noise.rows import NoiseRows

        self._noise = NoiseRows(stream=self._stream, size=self._size, noise_seed=_SEED, strategy=self._asked)
        self.strategy = str(self._noise.strategy)
        self._next = tf.function(self._noise.next)
        self._state = self._noise.initial_state()
        self._next(self._state)

    def block(self, t: int) -> tuple[int, int]:
        """See `Engine`."""
        length = self._noise.state_rows if self.strategy == "regenerated" else _WINDOW
        first = t // length * length
        return first, min(length, self._rounds - first)

    def jump(self, first: int) -> None:
        """See `Engine`."""
        import tensorflow as tf

        del self._state
        start = self._noise.initial_state()
        rows = tf.random.stateless_normal(start.rows.shape, seed=[first, 0])
        self._state = start._replace(next_round=tf.constant(first, tf.int32), rows=rows)

    def run(self, first: int, count: int) -> None:
        """See `Engine`."""
        for _ in range(count):
            _, self._state = self._next(self._state)

    def state_bytes(self) -> int:
        """See `Engine`."""
        return 4 * self._noise.state_rows * self._size


class TfpEngine(Engine):
    """TensorFlow Privacy's TreeResidualSumQuery, whose result is a round's noise; efficient is Honaker's from below, as "tree, online"."""

    strategy = "tree"

    def __init__(self, case: Case, rounds: int, size: int, strategy: str | None) -> None:
        from fedmf.federated.tensorflow_import import import_tensorflow

        import_tensorflow()
        import tensorflow as tf
        import tensorflow_privacy as tfp

        del strategy
        self._rounds, self._size, self._options = rounds, size, case.options
        self._specs = tf.TensorSpec([size], tf.float32)
        self._generator = tfp.tree_aggregation.GaussianNoiseGenerator(1.0, self._specs, seed=_SEED)
        self._one = tf.function(self._generator.next)
        self._generated = self._generator.initialize()

    def draw(self) -> None:
        """See `Engine`."""
        _, self._generated = self._one(self._generated)

    def set_up(self) -> None:
        """Builds the query and traces a round."""
        import tensorflow as tf
        import tensorflow_privacy as tfp

        query: Any = tfp.TreeResidualSumQuery(
            self._specs, self._generator, lambda record, _: record, 1.0, use_efficient=self._options["use_efficient"]
        )
        self._restarts = "restart_every" in self._options
        if self._restarts:
            indicator = tfp.restart_query.PeriodicRoundRestartIndicator(self._options["restart_every"])
            query = tfp.RestartQuery(query, indicator)
        self._query, self._zeros = query, tf.zeros([self._size])
        self._next = tf.function(query.get_noised_result, reduce_retracing=True)
        self._state = query.initial_global_state()
        self._next(self._zeros, self._state)

    def block(self, t: int) -> tuple[int, int]:
        """See `Engine`."""
        first = t // _WINDOW * _WINDOW
        return first, min(_WINDOW, self._rounds - first)

    def jump(self, first: int) -> None:
        """The buffer before step t holds a left child for each 1 in the binary digits of t + 1, the lowest first."""
        import tensorflow as tf

        state = self._query.initial_global_state()
        inner = state.inner_query_state if self._restarts else state
        steps = first % self._options["restart_every"] if self._restarts else first
        levels = [i for i in range(32) if (steps + 1) >> i & 1]
        rows = tf.random.stateless_normal([len(levels), self._size], seed=[first, 0])
        tree = inner.tree_state._replace(level_buffer=rows, level_buffer_idx=tf.constant(levels, tf.int32))
        inner = inner._replace(tree_state=tree)
        self._state = inner
        if self._restarts:
            self._state = state._replace(inner_query_state=inner, indicator_state=tf.constant(steps, tf.int32))

    def run(self, first: int, count: int) -> None:
        """See `Engine`."""
        for _ in range(count):
            _, self._state, _ = self._next(self._zeros, self._state)

    def state_bytes(self) -> int:
        """The most rows that a state ever has: one for each level, and the last sum."""
        return 4 * self._size * (1 + self._options.get("restart_every", self._rounds).bit_length())


def compiled(draw: Any) -> Any:
    """() -> row 0 of `draw`, in a tf.function."""
    import tensorflow as tf

    return functools.partial(tf.function(draw), tf.constant(0))


ENGINES: dict[str, Any] = {"host": HostEngine, "graph": GraphEngine, "tfp": TfpEngine}
