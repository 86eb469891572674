"""What a row of correlated noise costs, side by side with one iid Gaussian vector from
the same generator.

    make bench-noise                              all rows at full size; takes about an hour
    python -m benchmarks.noise --case dense       some rows

Ways to make a row:
  host   rows made ahead by the host, `fedmf.federated.HostNoise`: what our own training loops use.
  graph  rows made in the graph with the state by value, `GraphNoise`: what a TFF pipeline of one's
         own uses by default, where it can.
  tfp    TensorFlow Privacy's tree aggregation (TreeResidualSumQuery) with its own generator.

Each row of the table runs in a process of its own. n = 2052 rounds, k = 6, min_sep = 342, d =
4,050,000 coordinates. "ms" is the time of a row: the median over blocks of rounds made together,
once the rows kept from block to block are there. "ms, last" is that of the last block, where it
costs more than others. "x iid" is the time over that of one iid vector by the row's own generator,
drawn in the same process before each block. Memory is the peak of resident memory, set-up included,
over what the process needs with TensorFlow, the mechanism and one vector.
"""

import contextlib
import ctypes
import functools
import gc
import pathlib
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import fedmf
from benchmarks.core import MIB, memory_bytes, table, timed

ROUNDS, MIN_SEP, SIZE = 2052, 342, 4_050_000
SMALL_ROUNDS, SMALL_SIZE = 48, 1000
_SEED = 1  # of noise that protects nothing
# A measurement is repeated until it has lasted so many seconds, or so many times.
_SECONDS, _REPETITIONS, _DRAWS = 2.0, 7, 5
# Rounds timed together where blocks are shorter: enough to average over what even and odd rounds of
# a tree cost.
_WINDOW = 8


class Mechanism(NamedTuple):
    """One mechanism as it is fitted for use: arguments of `fedmf.fit`.

    Bands shrink with the rounds of a small run.
    """

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


@functools.cache
def plan_of(name: str, rounds: int) -> fedmf.Plan:
    """A mechanism of the table under six participations; full-size fits come from fedmf's cache
    after the first time.

    The noise is as small as rounding.
    """
    family, options, schema = MECHANISMS[name]
    if "bands" in options:
        options = options | {"bands": max(2, options["bands"] * rounds // ROUNDS)}
    participation = fedmf.Participation(
        rounds=rounds, schema=schema, min_sep=rounds * MIN_SEP // ROUNDS
    )
    with warnings.catch_warnings():
        # Of bands or tolerances; the cost is the subject here
        warnings.simplefilter("ignore", RuntimeWarning)
        mechanism = fedmf.fit(fedmf.prefix_sum(rounds), participation, family=family, **options)
    return fedmf.Plan(
        mechanism=mechanism,
        participation=participation,
        noise_multiplier=1e-6,
        clip_norm=1.0,
        delta=1e-6,
    )


class Rows(NamedTuple):
    """One way to make the rows of one mechanism, ready for round 0.

    Attributes:
      strategy: in words.
      run: makes the rows of these rounds, one after the other.
      length: rounds that are made together.
      history: rounds until the rows that are kept are all there.
      grows: whether late blocks cost more.
      disk, state: bytes on disk, and bytes of state that pass through the graph by value.
    """

    strategy: str
    run: Callable[[range], None]
    length: int = _WINDOW
    history: int = 1
    grows: bool = False
    disk: int = 0
    state: int = 0


# (name, rounds, size) -> what draws one iid vector by the generator that the rows are made of, and
# what a run does once before round 0.
Way = Callable[[str, int, int], tuple[Callable[[], Any], Callable[[], Rows]]]


def host(name: str, rounds: int, size: int) -> tuple[Callable[[], Any], Callable[[], Rows]]:
    """`fedmf.federated.HostNoise`; the rows come out as numpy arrays."""
    plan = plan_of(name, rounds)

    def set_up() -> Rows:
        from fedmf.server.host_noise import HostNoise

        # At toy size all noise fits into memory and would be regenerated.
        strategy = "recurrent" if size < SIZE and plan.mechanism.family != "dense" else None
        noise = HostNoise(plan, size, noise_seed=_SEED, strategy=strategy)
        chosen = noise.strategy

        def run(rounds: range) -> None:
            for t in rounds:
                noise.row(t)

        grows, history = chosen.name == "regenerated", max(1, chosen.width)
        return Rows(chosen.name, run, chosen.length, history, grows, chosen.disk, 4 * size)

    return iid(size), set_up


def graph(name: str, rounds: int, size: int) -> tuple[Callable[[], Any], Callable[[], Rows]]:
    """`fedmf.federated.tff.noise.GraphNoise` in a tf.function."""
    stream = plan_of(name, rounds).mechanism.stream()

    def set_up() -> Rows:
        import tensorflow as tf

        from fedmf.federated.tff.noise import GraphNoise
        from fedmf.server.source import noise_key

        noise = GraphNoise(stream=stream, size=size)
        following, state = tf.function(noise.next), noise.initial_state(noise_key(_SEED))
        following(state)

        def run(rounds: range) -> None:
            nonlocal state
            for _ in rounds:
                _, state = following(state)

        return Rows(str(noise.strategy), run, state=4 * noise.state_rows * size)

    return iid_in_graph(size), set_up


def tfp_tree(name: str, rounds: int, size: int) -> tuple[Callable[[], Any], Callable[[], Rows]]:
    """TensorFlow Privacy's TreeResidualSumQuery, whose result is a round's noise; its rows cost
    more in later rounds than timed here.
    """
    import tensorflow as tf

    from fedmf.federated.tff import tfp

    specs, zeros = tf.TensorSpec([size], tf.float32), tf.zeros([size])
    generator = tfp.tree_aggregation.GaussianNoiseGenerator(1.0, specs, seed=_SEED)
    one, generated = tf.function(generator.next), generator.initialize()

    def draw() -> None:
        nonlocal generated
        _, generated = one(generated)

    def set_up() -> Rows:
        # Honaker's estimator from below.
        query: Any = tfp.TreeResidualSumQuery(
            specs, generator, lambda record, _: record, 1.0, use_efficient=True
        )
        following, state = (
            tf.function(query.get_noised_result, reduce_retracing=True),
            query.initial_global_state(),
        )
        following(zeros, state)

        def run(
            rounds: range, query: Any = query
        ) -> None:  # a tf.function of a method does not keep its object alive
            nonlocal state
            for _ in rounds:
                _, state, _ = following(zeros, state)

        return Rows("tree", run, state=4 * size * (1 + rounds.bit_length()))  # at most

    return draw, set_up


def iid(size: int) -> Callable[[], Any]:
    """() -> one iid vector of the host's generator."""
    from fedmf.server.source import GaussianSource, noise_key

    source = GaussianSource(noise_key(_SEED))
    return lambda: source.fill(np.empty((1, size), np.float32), 0)


def iid_in_graph(size: int) -> Callable[[], Any]:
    """() -> one iid vector of the graph's generator, in a tf.function."""
    from fedmf.federated.tensorflow_import import import_tensorflow

    import_tensorflow()
    import tensorflow as tf

    from fedmf.federated.tff.noise_source import source_of_key
    from fedmf.server.source import noise_key

    return functools.partial(tf.function(source_of_key(noise_key(_SEED), size)), tf.constant(0))


def forget_peak() -> int:
    """Starts the peak of memory anew; returns the resident bytes, without what only the allocator
    still holds.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    return memory_bytes(field="VmRSS")


CASES: dict[str, tuple[Way, str]] = {
    **{f"{name} / host": (host, name) for name in MECHANISMS},
    **{f"{name} / graph": (graph, name) for name in IN_GRAPH},
    "efficient tree / tfp": (tfp_tree, ""),
}


def measure(case: tuple[Way, str], small: bool) -> dict[str, Any]:
    """Times one way to make the rows of one mechanism here."""
    rounds, size = (SMALL_ROUNDS, SMALL_SIZE) if small else (ROUNDS, SIZE)
    way, name = case
    draw, set_up = way(name, rounds, size)
    draw()
    before = forget_peak()
    began = time.perf_counter()
    made = set_up()
    setup = time.perf_counter() - began
    step = made.length * -(-_WINDOW // made.length)
    starts = range(0, rounds, step)
    draws: list[float] = []
    seconds: list[float] = []

    def seconds_a_row(start: int) -> float:
        draws.extend(timed(draw) for _ in range(_DRAWS))
        block = range(start, min(start + step, rounds))
        return timed(lambda: made.run(block)) / len(block)

    for start in starts:
        taken = seconds_a_row(start)
        if start >= made.history or start == starts[-1]:
            seconds.append(taken)
        if len(seconds) == _REPETITIONS or sum(seconds) * step > _SECONDS:
            break
    row = statistics.median(seconds)
    last = seconds_a_row(starts[-1]) if made.grows and len(starts) > 1 else row
    vector = statistics.median(draws)
    return {
        "strategy": f"{made.strategy} ({made.length})",
        "ms": 1000 * row,
        "last": 1000 * last,
        "iid": 1000 * vector,
        "ratio": row / vector,
        "last_ratio": last / vector,
        "memory": (memory_bytes() - before) / MIB,
        "disk": made.disk / MIB,
        "state": made.state / MIB,
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
