"""Privacy of single examples: a step of gradients that are clipped one by one and summed, of the
published network for CIFAR-10.

    python -m benchmarks.gradients            500 gradients a step
    python -m benchmarks.gradients --small    a check of this program, measures nothing

Ways:
  side by side  a round of --execution fast, whose clients hold one example each
  loop          a tf.function for each gradient, which clips it and adds it
  batch         one gradient of the whole batch, nothing clipped: single gradients cost more
  TF Privacy    its VectorizedDPKerasSGDOptimizer, in batches of --tf-privacy-batch: its jacobian
                goes back through the whole batch once for each example, so that 500 would take
                32 GB in one layer

They take turns in one process, after a step that is not counted. On a machine that others use as
well, CPU time says more than time.
"""

import json
import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np

from benchmarks.clients import random_examples

WAYS = ("side by side", "loop", "batch", "TF Privacy")


def steps_of(examples: int, batch: int) -> dict[str, Callable[[], Any]]:
    """Way -> a step on the same examples from the same weights."""
    from fedmf.federated.tensorflow_import import import_tensorflow

    import_tensorflow()
    import tensorflow as tf

    import fedmf
    from fedmf.federated.tff import tfp
    from fedmf.training.execution.base import RunOptions
    from fedmf.training.execution.choice import build_execution

    task = random_examples("cifar10", examples)
    config = fedmf.TrainConfig(
        rounds=2, cohort_size=examples, family="identity", schema="every_round",
        noise_multiplier=1e-6, clip_norm=1.0,
        client_learning_rate=1.0, seed=0,
    )  # fmt: skip
    execution = build_execution(
        task, config.plan(config.fit(show_progress=False)), config, 1, options=RunOptions()
    )
    state = execution.init()
    cohort = [execution.client(0, client) for client in range(examples)]
    examples_of = map(task.client_examples, task.client_ids)
    x, y = (tf.constant(np.concatenate(parts)) for parts in zip(*examples_of, strict=True))
    model, loss = (
        task.build_model(0),
        tf.keras.losses.SparseCategoricalCrossentropy(True, reduction="none"),
    )
    variables = model.trainable_variables
    optimizer = tfp.VectorizedDPKerasSGDOptimizer(
        1.0, 0.0, num_microbatches=batch, learning_rate=0.0
    )

    def losses(x: Any, y: Any) -> Any:
        return loss(y, model(x, training=True))

    @tf.function
    def gradient(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(losses(x, y))
        return tape.gradient(total, variables)

    @tf.function
    def add(total: Any, x: Any, y: Any) -> Any:
        clipped, _ = tf.clip_by_global_norm(gradient(x, y), 1.0)
        return [a + b for a, b in zip(total, clipped, strict=True)]

    def loop() -> Any:
        total = [tf.zeros_like(variable) for variable in variables]
        for i in range(examples):
            total = add(total, x[i : i + 1], y[i : i + 1])
        return total

    @tf.function
    def minimize(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            each = losses(x, y)
        optimizer.minimize(each, variables, tape=tape)

    def tf_privacy() -> None:
        for i in range(0, examples, batch):
            minimize(x[i : i + batch], y[i : i + batch])

    steps = (
        lambda: execution.step(state, execution.collect_release(state, cohort)),
        loop,
        lambda: gradient(x, y)[-1].numpy(),
        tf_privacy,
    )
    return dict(zip(WAYS, steps, strict=True))


def measure(
    steps: dict[str, Callable[[], Any]], passes: int
) -> dict[str, list[tuple[float, float]]]:
    """Seconds and CPU seconds of the counted steps of each way."""
    costs: dict[str, list[tuple[float, float]]] = {way: [] for way in steps}
    for turn in range(passes + 1):
        for way in list(steps)[:: 1 if turn % 2 else -1]:
            began = time.perf_counter(), time.process_time()
            steps[way]()
            if turn:
                costs[way].append((time.perf_counter() - began[0], time.process_time() - began[1]))
    return costs


@click.command()
@click.option(
    "--examples",
    type=click.IntRange(min=1),
    default=500,
    show_default=True,
    help="Gradients a step.",
)
@click.option(
    "--tf-privacy-batch",
    "batch",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Divides them.",
)
@click.option(
    "--passes",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Counted steps of each way.",
)
@click.option(
    "--small", is_flag=True, help="Four gradients, one pass: checks this program, measures nothing."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(examples: int, batch: int, passes: int, small: bool, as_json: bool) -> None:
    """Print the cost of a gradient, a row for each way."""
    if small:
        examples, batch, passes = 4, 2, 1
    costs = measure(steps_of(examples, batch), passes)
    if as_json:
        print(json.dumps(costs))
        return
    print(f"{'':<14}{'gradients/s':>12}{'ms':>8}{'CPU ms':>8}{'x ours':>8}{'x ours, CPU':>13}")
    ours = [sum(column) for column in zip(*costs[WAYS[0]], strict=True)]
    for way, rows in costs.items():
        seconds, cpu = (sum(column) for column in zip(*rows, strict=True))
        gradients = passes * examples
        print(
            f"{way:<14}{gradients / seconds:>12.0f}"
            f"{1e3 * seconds / gradients:>8.2f}{1e3 * cpu / gradients:>8.2f}"
            f"{seconds / ours[0]:>8.2f}{cpu / ours[1]:>13.2f}"
        )


if __name__ == "__main__":
    main()
