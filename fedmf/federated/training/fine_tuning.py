"""Metrics of personal models: a run's model before and after more training on the examples of one
client.

Such training stays on the client's device: nothing of it is clipped, and no noise is added.
"""

import collections
import math
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.federated.examples import Epochs, Examples, NotFinite, count, take
from fedmf.federated.execution.client_data import shuffled_epochs
from fedmf.federated.execution.client_setup import ClientSetup
from fedmf.federated.execution.client_work import broadcast
from fedmf.federated.execution.groups import in_groups
from fedmf.federated.task import Task
from fedmf.federated.training.evaluation import Evaluator, mean_and_deciles
from fedmf.runs.config import TrainConfig
from fedmf.terminal import progress_bar

_AT_ONCE = 32  # clients whose examples are in memory
# Of a generator: apart from the orders of training, which have 2 in the same place.
_HALVES, _SAMPLE = 3, 4


def halves(task: Task, config: TrainConfig, client_id: str) -> tuple[Epochs, Examples]:
    """A client's epochs over a random half of its examples, and the other half: a pure function of
    (config.seed, client_id). Of an odd number the first half has one more.

    Args:
      task: of the run.
      config: its epochs are those of the fine-tuning.
      client_id: of a client with at least two examples; with fewer the other half is empty.

    Raises:
      NotFinite: as `Task.examples_of` does.
    """
    examples = task.examples_of(client_id)
    rng = np.random.default_rng([config.seed, _HALVES, *client_id.encode()])
    order, middle = rng.permutation(count(examples)), (count(examples) + 1) // 2
    first, other = take(examples, order[:middle]), take(examples, order[middle:])
    return shuffled_epochs(first, config, task.batch_size, rng), other


def fine_tuned_metrics(
    task: Task,
    config: TrainConfig,
    weights: list[np.ndarray],
    *,
    clients: int,
    split: str | None,
    progress: bool,
) -> dict[str, Any]:
    """See `TrainedRun.evaluate_fine_tuned`; `config.client_epochs` are those of the fine-tuning."""
    evaluator = Evaluator(task, config)
    work = ClientSetup.here(task, config).work(None)
    # Neither a norm to clip to nor scales
    scales = [np.ones_like(w) for w in weights] if config.scaling() else ()
    sent = broadcast(weights, math.inf, math.inf, scales)
    measured = None if split is None else task.split(split)
    everywhere = None if measured is None else _values(evaluator, weights, measured)
    chosen = sample(task, clients, config.seed)
    left_out = collections.Counter(too_few_examples=0, examples_not_finite=0, training_not_finite=0)
    found: list[tuple[dict[str, float], dict[str, float]]] = []
    with progress_bar.bar(
        total=len(chosen), unit="client", desc="fine-tuning", disable=not progress
    ) as bar:
        for some in in_groups(chosen, _AT_ONCE):
            divided: list[tuple[Epochs, Examples]] = []
            for client_id in some:
                try:
                    divided.append(halves(task, config, client_id))
                except NotFinite:
                    left_out["examples_not_finite"] += 1
            trained = [(epochs, other) for epochs, other in divided if count(other)]
            left_out["too_few_examples"] += len(divided) - len(trained)
            bar.update(len(some) - len(trained))
            sums = work.sums(sent, [[epochs] for epochs, _ in trained])
            for (_, other), part in zip(trained, sums, strict=True):
                bar.update()
                if int(part.total.zeroed):
                    left_out["training_not_finite"] += 1
                    continue
                examples = other if measured is None else measured
                before = everywhere or _values(evaluator, weights, examples)
                found.append((before, _values(evaluator, _after(weights, part.total), examples)))
    if not found:
        raise ValueError(
            f"none of clients={len(chosen)} of task {task.name!r} has two examples, all finite, "
            "and finite weights after training on one half: take more clients, or a smaller rate"
        )
    names = found[0][0]
    return {
        "clients": len(found),
        "population": len(task.client_ids),
        "left_out": dict(left_out),
        "metrics": {
            name: _summary(*np.array([[values[name] for values in pair] for pair in found]).T)
            for name in names
        },
    }


def _after(weights: list[np.ndarray], total: Any) -> list[np.ndarray]:
    """The weights after training; the update of a client is weights before minus after."""
    return [
        (w - np.asarray(update)).astype(w.dtype)
        for w, update in zip(weights, tf.nest.flatten(total.record), strict=True)
    ]


def sample(task: Task, clients: int, seed: int) -> list[str]:
    """So many clients, or all where there are fewer, drawn without replacement."""
    rng = np.random.default_rng([seed, _SAMPLE])
    population = len(task.client_ids)
    chosen = rng.choice(population, min(clients, population), replace=False)
    return [task.client_ids[i] for i in np.sort(chosen)]


def _values(
    evaluator: Evaluator, weights: list[np.ndarray], examples: Examples
) -> dict[str, float]:
    """The metrics; NaN for one that is not defined on these examples."""
    return {
        name: value if evaluator.is_defined(name) else math.nan
        for name, value in evaluator.on(weights, examples).items()
    }


def _summary(before: np.ndarray, after: np.ndarray) -> dict[str, Any]:
    """Of a metric, float64 (clients,) each. Clients without a finite value in both are left out."""
    kept = np.isfinite(before) & np.isfinite(after)
    before, after = before[kept], after[kept]
    counts = {"clients": int(kept.sum()), "clients_undefined": int((~kept).sum())}
    columns = {"before": before, "after": after, "change": after - before}
    return counts | (
        {name: mean_and_deciles(values) for name, values in columns.items()} if len(before) else {}
    )
