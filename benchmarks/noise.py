"""What a row of correlated noise costs, side by side with one iid Gaussian vector from the same generator.

    make bench-noise                              all rows at full size; takes about an hour
    python -m benchmarks.noise --case dense       some rows

Ways to make a row:
  host   rows made ahead by the host, `fedmf.federated.HostNoise`: what our own training loops use.
  graph  rows made in the graph with the state by value, `NoiseRows`: what a TFF pipeline of one's own uses by default, where it can.
  tfp    TensorFlow Privacy's tree aggregation (TreeResidualSumQuery) with its own generator.

Each row of the table runs in a process of its own. n = 2052 rounds, k = 6, min_sep = 342, d = 4,050,000 coordinates. "ms" is the time of a
row: the median over blocks of rounds made together, once the rows kept from block to block are there. "ms, last" is that of the last block,
where it costs more than others. "x iid" is the time over that of one iid vector by the row's own generator, drawn in the same process
before each block. Memory is the peak of resident memory, set-up included, over what the process needs with TensorFlow, the mechanism and
one vector.
"""

import abc
import contextlib
import ctypes
import functools
import gc
import pathlib
import statistics
import warnings
from typing import Any, NamedTuple

import fedmf
from benchmarks.core import MIB, memory_bytes, table, timed

ROUNDS, MIN_SEP, SIZE = 2052, 342, 4_050_000
SMALL_ROUNDS, SMALL_SIZE = 48, 1000
_SEED = 1  # of noise that protects nothing
# A measurement is repeated until it has lasted so many seconds, or so many times.
_SECONDS, _REPETITIONS, _DRAWS = 2.0, 7, 5
# Rounds timed together where blocks are shorter: enough to average over what even and odd rounds of a tree cost.
_WINDOW = 8


class Mechanism(NamedTuple):
    """One mechanism as it is fitted for use: arguments of `fedmf.fit`. Bands shrink with the rounds of a small run."""

    family: str
    options: dict[str, Any]
    schema: str = "min_sep"


MECHANISMS = {
    "identity": Mechanism("identity", {}),
    "banded, 8 bands": Mechanism("banded", {"bands": 8, "tolerance": 1e-3}),
    "banded, 32 bands": Mechanism("banded", {"bands": 32, "tolerance": 1e-3}),
    "banded, 342 bands": Mechanism("banded", {"bands": 342, "tolerance": 1e-3}),
    "dense": Mechanism("dense", {"tolerance": 2e-3}, "fixed_epoch"),
    "tree, online": Mechanism("tree", {"decoder": "online"}),
    "tree, full": Mechanism("tree", {"decoder": "full"}),
    "blt, 4 buffers": Mechanism("blt", {"buffers": 4}),
    "low_rank": Mechanism("low_rank", {}),
    "toeplitz, 342 bands": Mechanism("toeplitz", {"bands": 342, "coefficients": "sqrt"}),
    "toeplitz, full": Mechanism("toeplitz", {"coefficients": "sqrt"}),
    "fft": Mechanism("fft", {}),
}
# Mechanisms whose state is small enough to pass through a graph by value.
IN_GRAPH = ("identity", "banded, 8 bands", "tree, online", "tree, full", "blt, 4 buffers")
# Honaker's estimator from below, the plain tree, and one that is restarted each epoch.
TFP: dict[str, dict[str, Any]] = {
    "efficient tree / tfp": {"use_efficient": True},
    "plain tree / tfp": {"use_efficient": False},
    "efficient tree, restarts / tfp": {"use_efficient": True, "restart_every": MIN_SEP},
}


@functools.cache
def plan_of(name: str, rounds: int) -> fedmf.Plan:
    """A mechanism of the table under six participations; full-size fits come from fedmf's cache after the first time.

    The noise is as small as rounding.
    """
    family, options, schema = MECHANISMS[name]
    if "bands" in options:
        options = options | {"bands": max(2, options["bands"] * rounds // ROUNDS)}
    participation = fedmf.Participation(rounds=rounds, schema=schema, min_sep=rounds * MIN_SEP // ROUNDS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of bands or tolerances; the cost is the subject here
        mechanism = fedmf.fit(fedmf.prefix_sum(rounds), participation, family=family, **options)
    return fedmf.Plan(
        mechanism=mechanism, participation=participation, noise_multiplier=1e-6, clip_norm=1.0, delta=1e-6
    )


class Engine(abc.ABC):
    """One way to make the rows of one mechanism; the constructor makes all that is no part of the noise.

    Attributes:
      strategy: in words.
      length: rounds that are made together.
      history: rounds until the rows that are kept are all there.
      grows: whether late blocks cost more.
      disk, state: bytes on disk, and bytes of state that pass through the graph by value.
    """

    strategy, length, history, grows, disk, state = "tree", _WINDOW, 1, False, 0, 0

    @abc.abstractmethod
    def __init__(self, name: str, rounds: int, size: int) -> None: ...

    @abc.abstractmethod
    def draw(self) -> None:
        """One iid vector, by the generator that the rows are made of."""

    @abc.abstractmethod
    def set_up(self) -> None:
        """What a run does once before round 0."""

    @abc.abstractmethod
    def run(self, rounds: range) -> None:
        """Makes rows, one after the other."""


class Host(Engine):
    """`fedmf.federated.HostNoise`; the rows come out as numpy arrays."""

    def __init__(self, name: str, rounds: int, size: int) -> None:
        self._plan, self._size, self._iid = plan_of(name, rounds), size, iid(size)

    def draw(self) -> None:
        """See `Engine`."""
        self._iid()

    def set_up(self) -> None:
        """Chooses the strategy."""
        from fedmf.federated.noise.host import HostNoise

        # At toy size all noise fits into memory and would be regenerated.
        strategy = "recurrent" if self._size < SIZE and self._plan.mechanism.family != "dense" else None
        self._noise = HostNoise(self._plan, self._size, noise_seed=_SEED, strategy=strategy)
        chosen = self._noise.strategy
        self.strategy, self.length, self.disk, self.state = chosen.name, chosen.length, chosen.disk, 4 * self._size
        self.grows, self.history = chosen.name == "regenerated", max(1, chosen.width)

    def run(self, rounds: range) -> None:
        """See `Engine`."""
        for t in rounds:
            self._noise.row(t)


class Graph(Engine):
    """`fedmf.federated.noise.NoiseRows` in a tf.function."""

    def __init__(self, name: str, rounds: int, size: int) -> None:
        self._stream, self._size, self._iid = plan_of(name, rounds).mechanism.stream(), size, iid(size)

    def draw(self) -> None:
        """See `Engine`."""
        self._iid()

    def set_up(self) -> None:
        """Chooses the strategy and traces a round."""
        import tensorflow as tf

        from fedmf.federated.noise.rows import NoiseRows

        noise = NoiseRows(stream=self._stream, size=self._size, noise_seed=_SEED)
        self.strategy, self.state = str(noise.strategy), 4 * noise.state_rows * self._size
        self._next, self._state = tf.function(noise.next), noise.initial_state()
        self._next(self._state)

    def run(self, rounds: range) -> None:
        """See `Engine`."""
        for _ in rounds:
            _, self._state = self._next(self._state)


class Tfp(Engine):
    """TensorFlow Privacy's TreeResidualSumQuery, whose result is a round's noise; its rows cost more in later rounds than timed here."""

    def __init__(self, name: str, rounds: int, size: int) -> None:
        import tensorflow as tf

        from fedmf.federated.tff import tfp

        self._options, self._specs, self._zeros = TFP[name], tf.TensorSpec([size], tf.float32), tf.zeros([size])
        self._generator = tfp.tree_aggregation.GaussianNoiseGenerator(1.0, self._specs, seed=_SEED)
        self._one, self._generated = tf.function(self._generator.next), self._generator.initialize()
        self.state = 4 * size * (1 + self._options.get("restart_every", rounds).bit_length())  # at most

    def draw(self) -> None:
        """See `Engine`."""
        _, self._generated = self._one(self._generated)

    def set_up(self) -> None:
        """Builds the query and traces a round."""
        import tensorflow as tf

        from fedmf.federated.tff import tfp

        query: Any = tfp.TreeResidualSumQuery(
            self._specs, self._generator, lambda record, _: record, 1.0, use_efficient=self._options["use_efficient"]
        )
        if "restart_every" in self._options:
            indicator = tfp.restart_query.PeriodicRoundRestartIndicator(self._options["restart_every"])
            query = tfp.RestartQuery(query, indicator)
        self._query = query  # a tf.function of a method does not keep its object alive
        self._next = tf.function(query.get_noised_result, reduce_retracing=True)
        self._state = query.initial_global_state()
        self._next(self._zeros, self._state)

    def run(self, rounds: range) -> None:
        """See `Engine`."""
        for _ in rounds:
            _, self._state, _ = self._next(self._zeros, self._state)


def iid(size: int) -> Any:
    """() -> one iid vector of our generator, in a tf.function."""
    from fedmf.federated.noise.source import gaussian_source
    from fedmf.federated.tensorflow_import import import_tensorflow

    import_tensorflow()
    import tensorflow as tf

    return functools.partial(tf.function(gaussian_source(_SEED, size)), tf.constant(0))


def forget_peak() -> int:
    """Starts the peak of memory anew; returns the resident bytes, without what only the allocator still holds."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    return memory_bytes(field="VmRSS")


CASES: dict[str, tuple[type[Engine], str]] = {
    **{f"{name} / host": (Host, name) for name in MECHANISMS},
    **{f"{name} / graph": (Graph, name) for name in IN_GRAPH},
    **{name: (Tfp, name) for name in TFP},
}


def measure(case: tuple[type[Engine], str], small: bool) -> dict[str, Any]:
    """Times one way to make the rows of one mechanism here."""
    rounds, size = (SMALL_ROUNDS, SMALL_SIZE) if small else (ROUNDS, SIZE)
    kind, name = case
    engine = kind(name, rounds, size)
    engine.draw()
    before = forget_peak()
    setup = timed(engine.set_up)
    step = engine.length * -(-_WINDOW // engine.length)
    starts = range(0, rounds, step)
    draws: list[float] = []
    seconds: list[float] = []

    def block(start: int) -> float:
        draws.extend(timed(engine.draw) for _ in range(_DRAWS))
        made = range(start, min(start + step, rounds))
        return timed(lambda: engine.run(made)) / len(made)

    for start in starts:
        taken = block(start)
        if start >= engine.history or start == starts[-1]:
            seconds.append(taken)
        if len(seconds) == _REPETITIONS or sum(seconds) * step > _SECONDS:
            break
    row = statistics.median(seconds)
    last = block(starts[-1]) if engine.grows and len(starts) > 1 else row
    vector = statistics.median(draws)
    return {
        "strategy": f"{engine.strategy} ({engine.length})",
        "ms": 1000 * row,
        "last": 1000 * last,
        "iid": 1000 * vector,
        "ratio": row / vector,
        "last_ratio": last / vector,
        "memory": (memory_bytes() - before) / MIB,
        "disk": engine.disk / MIB,
        "state": engine.state / MIB,
        "setup": setup,
    }


COLUMNS = {
    "strategy (block)": "{strategy}",
    "ms": "{ms:.1f}",
    "ms, last": "{last:.1f}",
    "iid ms": "{iid:.1f}",
    "x iid": "{ratio:.2f}",
    "x, last": "{last_ratio:.2f}",
    "peak MiB": "{memory:.0f}",
    "disk MiB": "{disk:.0f}",
    "state MiB": "{state:.0f}",
    "set-up s": "{setup:.1f}",
}
main = table("noise", CASES, measure, COLUMNS, __doc__)

if __name__ == "__main__":
    main()
