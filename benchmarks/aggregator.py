"""What the aggregator adds to a TFF training round: the whole round beside one with a plain mean.

    make bench-aggregator                             100 clients, the StackOverflow model;
                                                      about half an hour on two cores
    python -m benchmarks.aggregator --sentences 1     clients with next to nothing to learn: what
                                                      the aggregator adds stands out
    python -m benchmarks.aggregator --small           a check of this program, measures nothing

Rounds run in one process and one TFF worker on the same cohort: one of each kind in turn, each pass
in the opposite order, after a first pass that is not counted. Slow drifts of the machine cancel in
the differences, whose mean and standard error are printed. Rows of kind "precomputed" are made by
the host, outside TFF, a block of rounds at a time. They are timed by themselves, over a whole
block, and added.

A difference of rounds cannot be told from nothing when it is smaller than its error. What the
aggregator adds does not depend on how long clients train: rounds of clients with one sentence show
it with smaller errors, and rounds of one such client show what it adds once.
"""

import functools
import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

import click
import numpy as np

from benchmarks.clients import BATCH, SENTENCES, random_sentences
from benchmarks.core import paired, timed
from benchmarks.noise import MECHANISMS, ROUNDS, SMALL_ROUNDS, plan_of

_SEED = 1  # of noise that protects nothing
WAYS = ("precomputed", "graph")


def round_of(task: Any, aggregator: Any, noise: Any) -> Callable[[], float]:
    """() -> seconds of one round of a training process of its own, with the row at hand; the next
    call goes on from there.
    """
    import tensorflow as tf

    from fedmf.federated.model_functions import tensor_specs
    from fedmf.federated.tff import tff
    from fedmf.federated.tff.execution import tff_model

    process = tff.learning.algorithms.build_unweighted_fed_avg(
        model_fn=functools.partial(tff_model, task.learner, 0, tensor_specs(task.spec)),
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0, momentum=0.95),
        model_aggregator=aggregator,
    )
    examples = [task.client_examples(name) for name in task.client_ids]
    data = [tf.data.Dataset.from_tensor_slices(pair).batch(task.batch_size) for pair in examples]
    state = process.initialize()

    def run() -> float:
        nonlocal state
        if noise is not None:
            state = noise.hand_in(state)
        outputs: list[Any] = []
        seconds = timed(lambda: outputs.append(process.next(state, data)))
        state = outputs[0].state
        return seconds

    return run


def making_a_row(noise: Any) -> float:
    """Seconds that a HostNoise takes for a row: of its second block, which has a history, or of its
    only one.
    """
    length = noise.strategy.length
    block = range(length, min(2 * length, noise.rounds)) or range(noise.rounds)
    for t in range(block.start):
        noise.row(t)
    return timed(lambda: [noise.row(t) for t in block]) / len(block)


def measure(
    kinds: tuple[str, ...], clients: int, sentences: int, passes: int, small: bool
) -> dict[str, Any]:
    """Seconds of the rounds of each kind, where place i of all lists belongs to pass i, and of
    making a row.
    """
    from fedmf.federated.tensorflow_import import import_tensorflow

    import_tensorflow()
    from fedmf import federated
    from fedmf.federated.tff import tff

    task = random_sentences("demo" if small else "full", clients, count=sentences)
    size = sum(int(np.prod(v.shape)) for v in task.build_model(0).trainable_variables)
    runs = {"plain mean": round_of(task, tff.aggregators.UnweightedMeanFactory(), None)}
    rows = {"plain mean": 0.0}
    for kind in kinds:
        name, way = kind.split(" / ")
        plan, precomputed = plan_of(name, SMALL_ROUNDS if small else ROUNDS), way == "precomputed"
        aggregator = federated.dp_aggregator(
            plan,
            clients_per_round=clients,
            noise_seed=_SEED,
            noise_strategy="precomputed" if precomputed else None,
        )
        noise = federated.HostNoise(plan, size, noise_seed=_SEED) if precomputed else None
        runs[kind] = round_of(task, aggregator, noise)
        rows[kind] = (
            making_a_row(federated.HostNoise(plan, size, noise_seed=_SEED)) if precomputed else 0.0
        )
    seconds: dict[str, list[float]] = {kind: [] for kind in runs}
    for number in range(passes + 1):
        for kind in list(runs)[:: 1 if number % 2 else -1]:
            taken = runs[kind]()
            print(f"pass {number} of {passes}, {kind}: {taken:.2f} s", file=sys.stderr, flush=True)
            if number:
                seconds[kind].append(taken)
    return {"clients": clients, "size": size, "rounds": seconds, "rows": rows}


@click.command()
@click.option(
    "--clients", type=click.IntRange(min=1), default=100, show_default=True, help="Clients a round."
)
@click.option(
    "--sentences",
    type=click.IntRange(min=1),
    default=SENTENCES["full"],
    show_default=True,
    help="Of a client.",
)
@click.option(
    "--passes",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Counted rounds of each kind.",
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice([f"{name} / {way}" for name in MECHANISMS for way in WAYS]),
    default=("blt, 4 buffers / precomputed", "blt, 4 buffers / graph"),
    show_default=True,
    help="Beside the plain mean; may be repeated.",
)
@click.option(
    "--small",
    is_flag=True,
    help="The demo's model and two clients: checks this program, measures nothing.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON at the end.")
def main(
    clients: int, sentences: int, passes: int, kinds: tuple[str, ...], small: bool, as_json: bool
) -> None:
    """Print a row for each kind of round."""
    results = measure(
        kinds, 2 if small else clients, BATCH["demo"] if small else sentences, passes, small
    )
    if as_json:
        print(json.dumps(results))
        return
    print(f"{results['clients']} clients, {results['size']} parameters")
    plain = results["rounds"]["plain mean"]
    whole = statistics.mean(plain)
    for kind, seconds in results["rounds"].items():
        line = f"{kind:<32} {statistics.mean(seconds):8.2f} s"
        if kind != "plain mean":
            (mean, error), row = paired(seconds, plain), results["rows"][kind]
            line += f"  adds {mean:6.2f} +- {error:.2f} s and {row:.2f} s of the host"
            line += f"  {100 * (mean + row) / whole:5.2f} +- {100 * error / whole:.2f} %"
        print(line)


if __name__ == "__main__":
    main()
