"""What the aggregator adds to a TFF training round: the whole round beside one with a plain mean, and the difference in parts.

    make bench-aggregator                             100 clients, the StackOverflow model; about half an hour on two cores
    python -m benchmarks.aggregator --clients 10      smaller cohorts: the share is then of a shorter round
    python -m benchmarks.aggregator --sentences 1     clients with next to nothing to learn: what the aggregator adds stands out
    python -m benchmarks.aggregator --parts           the parts alone; a few minutes
    python -m benchmarks.aggregator --small           a check of this program, measures nothing
    FEDMF_ALLOCATOR=system python -m benchmarks.aggregator ...   with the system's memory settings as they are

Rounds run in one process and one TFF worker on the same cohort: one of each kind and again, each pass in the opposite order, after a
first pass that is not counted. So slow drifts of the machine cancel in the differences, whose mean and standard error are printed.
Rows of kind "precomputed" are made by the host, outside TFF, a block of rounds at a time. They are timed by themselves, over a whole
block, and added to what the rounds take: a few rounds would have all of a block in them or nothing.

A difference of rounds cannot be told from nothing when it is smaller than its error. What the aggregator adds does not depend on how long
clients train, so that rounds of clients with one sentence show it, and rounds of one such client what it adds once. The parts are small
computations that are repeated, outside a training process; their sum has come out smaller than what such rounds show. With many kinds the
plain mean is first or last in every pass: its own spread is then in all differences, and one kind at a time has smaller errors.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np

import fedmf
from benchmarks.noise_cases import CASES, Case, mechanism, participation

_SEED = 1  # of noise that protects nothing
_SENTENCES, _BATCH = 64, 16
_FULL: dict[str, int] = {}
_SMALL = {"vocabulary_size": 50, "embedding_size": 4, "lstm_size": 8}


class Bench:
    """The model, a cohort, and TFF processes on them."""

    def __init__(self, clients: int, small: bool, sentences: int = _SENTENCES) -> None:
        from fedmf.federated.tensorflow_import import import_tensorflow

        import_tensorflow()
        from fedmf import federated
        from fedmf.federated.execution.workers import keep_freed_memory
        from fedmf.tasks.stackoverflow.model import build_model, make_loss, make_metrics
        from fedmf.tasks.stackoverflow.preprocessing import SpecialIds

        keep_freed_memory()  # as our own executions do
        sizes = _SMALL if small else _FULL
        vocabulary = sizes.get("vocabulary_size", 10_000)
        self.clients, self.rounds = clients, 48 if small else 2052
        sentences = _BATCH if small else sentences

        def examples(name: str) -> tuple[np.ndarray, np.ndarray]:
            words = np.random.default_rng(int(name)).integers(1, vocabulary, (sentences, 21), dtype=np.int32)
            return words[:, :-1], words[:, 1:]

        self.task = federated.Task(
            name="random sentences",
            description="the papers' model; what the words are does not change what they cost",
            client_ids=[str(i) for i in range(clients)],
            client_examples=examples,
            evaluation_examples=examples,
            build_model=lambda seed: build_model(seed, **sizes),
            loss=make_loss("published"),
            metrics=make_metrics("published", SpecialIds(vocabulary)),
            headline_metric="accuracy",
            batch_size=_BATCH,
        )
        self.shapes = [v.shape for v in self.task.build_model(0).trainable_variables]
        self.size = sum(int(np.prod(shape)) for shape in self.shapes)

    def plan(self, case: Case) -> fedmf.Plan:
        """The mechanism at the run's length; no more noise than rounding, so that the model trains on what it is given."""
        return fedmf.Plan(
            mechanism=mechanism(case, self.rounds),
            participation=participation(case, self.rounds),
            noise_multiplier=1e-6,
            clip_norm=1.0,
            delta=1e-6,
        )

    def rounds_of(self, aggregator: Any, noise: Any) -> Callable[[], float]:
        """() -> seconds of one round of a training process of its own, the row at hand; the next call goes on from there."""
        import tensorflow as tf
        import tensorflow_federated as tff

        from fedmf.federated.execution.choice import tff_model
        from fedmf.federated.execution.workers import guard_workers

        process = tff.learning.algorithms.build_unweighted_fed_avg(
            model_fn=lambda: tff_model(self.task, 0, 20),
            client_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
            server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0, momentum=0.95),
            model_aggregator=aggregator,
        )
        examples = [self.task.client_examples(name) for name in self.task.client_ids]
        data = [tf.data.Dataset.from_tensor_slices(pair).batch(_BATCH) for pair in examples]
        guard_workers()
        state = process.initialize()

        def run() -> float:
            nonlocal state
            if noise is not None:
                state = noise.hand_in(state)
            began = time.perf_counter()
            state = process.next(state, data).state
            return time.perf_counter() - began

        return run

    def kinds(self, names: tuple[str, ...]) -> dict[str, tuple[Any, Any]]:
        """Kind of round -> (aggregator, HostNoise or None); the host's rows are those of one mechanism, which no round can tell."""
        import tensorflow_federated as tff

        from fedmf import federated

        kinds: dict[str, tuple[Any, Any]] = {"plain mean": (tff.aggregators.UnweightedMeanFactory(), None)}
        noise = None
        for name in names:
            plan = self.plan(case_of(name))
            handed = name.endswith(" / precomputed")
            aggregator = federated.dp_aggregator(
                plan,
                clients_per_round=self.clients,
                noise_seed=_SEED,
                noise_strategy="precomputed" if handed else None,
            )
            if handed and noise is None:
                noise = self.host_noise(name)
            kinds[name] = (aggregator, noise if handed else None)
        return kinds

    def host_noise(self, name: str) -> Any:
        """Of the mechanism of this kind."""
        from fedmf import federated

        return federated.HostNoise(self.plan(case_of(name)), self.size, noise_seed=_SEED)


def case_of(name: str) -> Case:
    """The mechanism of a kind of round."""
    return next(case for case in CASES if case.name == name.partition(" / ")[0])


def measure_rounds(bench: Bench, names: tuple[str, ...], passes: int) -> dict[str, list[float]]:
    """Seconds of the rounds of each kind; place i of all lists belongs to pass i."""
    runs = {name: bench.rounds_of(*parts) for name, parts in bench.kinds(names).items()}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(passes + 1):
        for name in list(runs)[:: 1 if number % 2 else -1]:
            taken = runs[name]()
            print(f"pass {number} of {passes}, {name}: {taken:.2f} s", file=sys.stderr, flush=True)
            if number:
                seconds[name].append(taken)
    return seconds


def making_a_row(noise: Any) -> float:
    """Seconds that a HostNoise takes for a row: of its second block, which has a history, or of its only one."""
    length = noise.strategy.length
    block = range(length, min(2 * length, noise.rounds)) or range(noise.rounds)
    if block.start:
        noise.row(0)

    def rows() -> None:
        for t in block:
            noise.row(t)

    return _timed(rows) / len(block)


def measure_parts(bench: Bench, case: Case) -> dict[str, float]:
    """Seconds that each part of the aggregator adds to a round of `bench.clients`."""
    import tensorflow as tf

    from fedmf import federated

    specs = [tf.TensorSpec(shape, tf.float32) for shape in bench.shapes]
    plan = bench.plan(case)
    query = federated.MatrixFactorizationQuery(
        plan, specs, noise_seed=_SEED, zeroing_norm=100.0, noise_strategy="precomputed", divisor=bench.clients
    )
    update = [tf.random.stateless_normal(spec.shape, seed=[1, i]) for i, spec in enumerate(specs)]
    state = query.initial_global_state()
    params = query.derive_sample_params(state)

    plain = tf.function(lambda total, record: [a + b for a, b in zip(total, record, strict=True)])
    clipped = tf.function(lambda total, record: query.accumulate_record(params, total, record))
    zeros, sample = [tf.zeros_like(leaf) for leaf in update], query.initial_sample_state()
    clients = _difference(lambda: clipped(sample, update), lambda: plain(zeros, update)) * bench.clients

    noise = federated.HostNoise(plan, bench.size, noise_seed=_SEED)
    making = making_a_row(noise)

    handed = noise.hand_in(state)
    mean = tf.function(lambda total: [leaf / float(bench.clients) for leaf in total])
    noised = tf.function(query.get_noised_result)
    adding = _difference(lambda: noised(sample, handed)[:2], lambda: mean(update))
    return {
        "zeroing and clipping": clients,
        "making the row": making,
        "state through TFF": state_seconds(bench.size),
        "adding and dividing": adding,
    }


def state_seconds(size: int) -> float:
    """Seconds that a row of `size` adds to a call of TFF as part of the state, in and out by value.

    It lies as deep as in the state of a training process: TFF copies it into the message of every structure around it.
    """
    import collections

    import tensorflow as tf
    import tensorflow_federated as tff

    def step(size: int) -> Callable[[], Any]:
        def nested(row: Any) -> Any:
            for name in ("noise", "query", "aggregator"):
                row = collections.OrderedDict({name: row})
            return row

        kind = tff.types.to_type(nested(tff.TensorType(np.float32, [1, size])))

        @tff.tensorflow.computation(kind)
        def next_state(state: Any) -> Any:
            return tf.nest.map_structure(tf.identity, state)

        @tff.federated_computation(tff.FederatedType(kind, tff.SERVER))
        def call(state: Any) -> Any:
            return tff.federated_map(next_state, state)

        state: Any = nested(np.ones([1, size], np.float32))

        def run() -> None:
            nonlocal state
            state = call(state)

        return run

    return _difference(step(size), step(1), repetitions=9)


def _timed(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _difference(run: Callable[[], Any], base: Callable[[], Any], repetitions: int = 15) -> float:
    """Median seconds of `run` less that of `base`, one after the other, after one call of each."""
    run(), base()
    pairs = [(_timed(run), _timed(base)) for _ in range(repetitions)]
    return statistics.median(a for a, _ in pairs) - statistics.median(b for _, b in pairs)


def paired(seconds: list[float], plain: list[float]) -> tuple[float, float]:
    """Mean of the differences, pass by pass, and its standard error (NaN for one pass)."""
    differences = [a - b for a, b in zip(seconds, plain, strict=True)]
    error = statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else float("nan")
    return statistics.mean(differences), error


@click.command()
@click.option("--clients", type=click.IntRange(min=1), default=100, show_default=True, help="Clients a round.")
@click.option(
    "--sentences",
    type=click.IntRange(min=1),
    default=_SENTENCES,
    show_default=True,
    help="Of a client; with 1 the aggregator's share is large.",
)
@click.option("--passes", type=click.IntRange(min=1), default=3, show_default=True, help="Counted rounds of each kind.")
@click.option(
    "--kind",
    "names",
    multiple=True,
    default=("blt, 4 buffers / precomputed", "blt, 4 buffers / graph"),
    show_default=True,
    help='"MECHANISM / precomputed" or "MECHANISM / graph", beside the plain mean; may be repeated.',
)
@click.option("--parts", is_flag=True, help="The parts alone.")
@click.option("--small", is_flag=True, help="A toy model: checks this program, measures nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON at the end.")
def main(
    clients: int, sentences: int, passes: int, names: tuple[str, ...], parts: bool, small: bool, as_json: bool
) -> None:
    """Print both tables."""
    known = {f"{case.name} / {where}" for case in CASES for where in ("precomputed", "graph")}
    for name in names:
        if name not in known:
            raise click.UsageError(f"kind={name!r} is unknown: choose one of {'; '.join(sorted(known))}")
    bench = Bench(clients, small, sentences)
    found: dict[str, Any] = {"clients": clients, "size": bench.size, "rounds": {}, "rows": {}}
    if not parts:
        found["rounds"] = measure_rounds(bench, names, passes)
        for name in found["rounds"]:
            handed = name.endswith(" / precomputed")
            found["rows"][name] = making_a_row(bench.host_noise(name)) if handed else 0.0
    case = case_of(names[0])
    found["parts"] = measure_parts(bench, case)
    if as_json:
        print(json.dumps(found))
        return
    print(f"{clients} clients, {bench.size} parameters")
    plain = found["rounds"].get("plain mean", [])
    for name, seconds in found["rounds"].items():
        mean, error = paired(seconds, plain)
        made, whole = found["rows"][name], statistics.mean(plain)
        added = f"  adds {mean:6.2f} +- {error:.2f} s and {made:.2f} s of the host"
        share = f"  {100 * (mean + made) / whole:5.2f} +- {100 * error / whole:.2f} %"
        print(f"{name:<32} {statistics.mean(seconds):8.2f} s" + ("" if name == "plain mean" else added + share))
    if len(found["rounds"]) > 2:
        means = [
            statistics.mean(some)
            for some in zip(*(s for n, s in found["rounds"].items() if n != "plain mean"), strict=True)
        ]
        mean, error = paired(means, plain)
        share = f"{100 * mean / whole:5.2f} +- {100 * error / whole:.2f} %"
        print(
            f"{'mean of them, without the host':<32} {statistics.mean(means):8.2f} s  adds {mean:6.2f} +- {error:.2f} s  {share}"
        )
    print(f"parts of {case.name} / precomputed, seconds a round")
    for part, taken in [*found["parts"].items(), ("together", sum(found["parts"].values()))]:
        share_of_round = f"  {100 * taken / statistics.mean(plain):5.2f} %" if plain else ""
        print(f"  {part:<30} {taken:8.3f} s{share_of_round}")


if __name__ == "__main__":
    main()
