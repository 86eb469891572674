"""Metrics of personal models: a run's model before and after more training on the examples of one
client.

Such training stays on the client's device: no update is clipped, and no noise is added. Rates that
suit a run are too large for it, because there the clipping makes them harmless. So its default is a
tenth of the run's, and no step is longer than the run's clip norm.
"""

import collections
import contextlib
import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedmf import checks
from fedmf.runs.config import TrainConfig
from fedmf.server.messages import ClientParams, ClippedSum
from fedmf.terminal import progress_bar
from fedmf.training.client_data import shuffled_epochs
from fedmf.training.client_work import Broadcast, ClientWork
from fedmf.training.evaluation import Evaluator, mean_and_deciles
from fedmf.training.examples import ClientData, Examples, NotFinite, count, take
from fedmf.training.execution.groups import in_groups
from fedmf.training.learner import Machine
from fedmf.training.task import Task

_AT_ONCE = 32  # clients whose examples are in memory
# Of a generator: apart from the orders of training, which have 2 in the same place.
_HALVES, _SAMPLE, _QUARTERS, _TRAINING = 3, 4, 5, 7
# Asks for a choice of the rate, from these multiples of the default.
SEARCH = "search"
_SEARCHED_FACTORS = (0.1, 0.3, 1.0, 3.0)


def halves(task: Task, config: TrainConfig, client_id: str) -> tuple[ClientData, Examples]:
    """A client's epochs over a random half of its examples, and the other half: a pure function of
    (config.seed, client_id). Of an odd number the first half has one more.

    Args:
      task: of the run.
      config: its epochs are those of the fine-tuning.
      client_id: of a client with at least two examples; with fewer the other half is empty.

    Raises:
      NotFinite: as `Task.examples_of` does.
    """
    first, other, rng = _first_half(task, config, client_id)
    epochs = shuffled_epochs(first, config, task.batch_size, rng)
    return ClientData(epochs, (config.seed, _TRAINING, *client_id.encode())), other


def quarters(task: Task, config: TrainConfig, client_id: str) -> tuple[ClientData, Examples]:
    """Returns epochs over a random half of the examples that `halves` trains on, and the others of
    these: what a rate is chosen by. The half that results are measured on is in neither.
    """
    first, _, _ = _first_half(task, config, client_id)
    rng = np.random.default_rng([config.seed, _QUARTERS, *client_id.encode()])
    trained_on, validated_on = _divided(first, rng)
    epochs = shuffled_epochs(trained_on, config, task.batch_size, rng)
    return ClientData(epochs, (config.seed, _TRAINING, *client_id.encode())), validated_on


def _first_half(
    task: Task, config: TrainConfig, client_id: str
) -> tuple[Examples, Examples, np.random.Generator]:
    """Returns the half of a client's examples that is trained on, the other one, and the generator
    for the order of training.
    """
    rng = np.random.default_rng([config.seed, _HALVES, *client_id.encode()])
    first, other = _divided(task.examples_of(client_id), rng)
    return first, other, rng


def _divided(examples: Examples, rng: np.random.Generator) -> tuple[Examples, Examples]:
    order = rng.permutation(count(examples))
    middle = (count(examples) + 1) // 2
    return take(examples, order[:middle]), take(examples, order[middle:])


def learning_rates(value: Any, config: TrainConfig) -> list[float]:
    """Returns the rates that fine-tuning trains with, or chooses from where there are several.

    Args:
      value: None for a tenth of the run's client rate, a rate, several, or "search".
      config: of the run.

    Raises:
      TypeError, ValueError: naming `learning_rate` and the value.
    """
    tenth = config.client_learning_rate / 10
    if value is None:
        return [tenth]
    if isinstance(value, str) and value == SEARCH:
        return [tenth * factor for factor in _SEARCHED_FACTORS]
    hint = f"give a rate, several, or {SEARCH!r}; {tenth:g} is the default"
    several = value if isinstance(value, list | tuple) else [value]
    rates = [checks.positive("learning_rate", rate, hint) for rate in several]
    if not rates:
        raise ValueError(f"learning_rate={value!r} holds no rate: {hint}")
    return sorted(set(rates))


def fine_tuned_metrics(
    task: Task,
    config: TrainConfig,
    weights: list[np.ndarray],
    *,
    rates: Sequence[float],
    clients: int,
    split: str | None,
    progress: bool,
) -> dict[str, Any]:
    """See `TrainedRun.evaluate_fine_tuned`; `config.client_epochs` are those of the fine-tuning.

    Of several `rates` one is chosen for all clients, by examples of the half that is trained on.
    The examples on which results are reported decide nothing.
    """
    evaluator = Evaluator(task, config)
    chosen = sample(task, clients, config.seed)
    passes = 1 if len(rates) == 1 else len(rates) + 1
    with progress_bar.bar(
        total=passes * len(chosen), unit="client", desc="fine-tuning", disable=not progress
    ) as bar:
        tuning = _Tuning(task, config, weights, evaluator, bar)
        searched: dict[str, float] = {}
        if len(rates) == 1:
            rate = rates[0]
        else:
            rate, searched = tuning.choose_rate(rates, chosen)
        result = tuning.measure(rate, chosen, split)
    return {"learning_rate": rate, "searched": searched, **result}


class _Tuning:
    """Fine-tuning of clients from the same weights.

    Args:
      task, config: of the run.
      weights: of its model.
      evaluator: of the task.
      bar: moved on for each client.
    """

    def __init__(
        self,
        task: Task,
        config: TrainConfig,
        weights: list[np.ndarray],
        evaluator: Evaluator,
        bar: Any,
    ) -> None:
        self._task, self._config, self._weights = task, config, weights
        self._evaluator, self._bar = evaluator, bar
        # Updates are neither clipped to a norm nor scaled; steps are bounded.
        scales = [np.ones_like(w, np.float32) for w in weights] if config.scaling() else ()
        self._sent = Broadcast(weights, ClientParams(math.inf, math.inf, scales))

    def choose_rate(
        self, rates: Sequence[float], client_ids: Sequence[str]
    ) -> tuple[float, dict[str, float]]:
        """Returns the rate with the lowest mean loss over the clients, and the loss of each rate.

        Each client trains on one half of the examples that it is fine-tuned on, and is measured on
        the other half of these. A client whose training is not finite makes its rate the worst. The
        smallest rate is taken where no client has enough examples.
        """
        work_by_rate = {rate: self._work(rate) for rate in rates}
        losses_by_rate: dict[float, list[float]] = {rate: [] for rate in rates}
        for group in in_groups(client_ids, _AT_ONCE):
            pairs = [
                (epochs, rest)
                for epochs, rest in self._examples(group, quarters)
                if count(rest) and not math.isnan(self._loss(self._weights, rest))
            ]
            for rate, work in work_by_rate.items():
                for weights, (_, rest) in zip(self._trained(work, pairs), pairs, strict=True):
                    loss = math.inf if weights is None else self._loss(weights, rest)
                    losses_by_rate[rate].append(loss)
                self._bar.update(len(group))
        means = {
            rate: float(np.mean(losses)) if losses else math.nan
            for rate, losses in losses_by_rate.items()
        }
        finite = {rate: loss for rate, loss in means.items() if math.isfinite(loss)}
        chosen_rate = min(finite, key=lambda rate: finite[rate]) if finite else min(rates)
        return chosen_rate, {f"{rate:g}": loss for rate, loss in means.items()}

    def measure(self, rate: float, client_ids: Sequence[str], split: str | None) -> dict[str, Any]:
        """Returns the metrics before and after training with a rate, and who is left out.

        Raises:
          ValueError: nobody is measured.
        """
        task, weights, evaluator = self._task, self._weights, self._evaluator
        measured = None if split is None else task.split(split)
        everywhere = None if measured is None else evaluator.on_marked(weights, measured)
        work = self._work(rate)
        left_out = collections.Counter(
            too_few_examples=0, examples_not_finite=0, training_not_finite=0
        )
        pairs: list[tuple[dict[str, float], dict[str, float]]] = []
        for group in in_groups(client_ids, _AT_ONCE):
            divided = self._examples(group, halves)
            trained = [(epochs, other) for epochs, other in divided if count(other)]
            left_out["examples_not_finite"] += len(group) - len(divided)
            left_out["too_few_examples"] += len(divided) - len(trained)
            self._bar.update(len(group) - len(trained))
            for after, (_, other) in zip(self._trained(work, trained), trained, strict=True):
                self._bar.update()
                if after is None:
                    left_out["training_not_finite"] += 1
                    continue
                examples = other if measured is None else measured
                before = everywhere or evaluator.on_marked(weights, examples)
                pairs.append((before, evaluator.on_marked(after, examples)))
        if not pairs:
            raise ValueError(
                f"none of clients={len(client_ids)} of task {task.name!r} has two examples, all "
                "finite, and finite weights after training on one half: take more clients, or a "
                "smaller rate"
            )
        _warn_of_worse_losses(pairs, left_out["training_not_finite"], rate, split)
        summary_by_metric = {
            name: _summary(*np.array([[values[name] for values in pair] for pair in pairs]).T)
            for name in pairs[0][0]
        }
        _warn_of_values_not_finite(summary_by_metric)
        return {
            "clients": len(pairs),
            "population": len(task.client_ids),
            "left_out": dict(left_out),
            "metrics": summary_by_metric,
        }

    def _work(self, rate: float) -> ClientWork:
        """Returns client work with this rate, whose steps are no longer than the clip norm."""
        config = dataclasses.replace(self._config, client_learning_rate=rate)
        learner = self._task.learner
        settings = self._task.client_settings(config, max_step_norm=config.clip_norm)
        settings = dataclasses.replace(settings, work_kind=learner.work_kind(settings))
        return learner.client_work(settings, Machine())

    def _examples(
        self,
        client_ids: Sequence[str],
        divide: Callable[[Task, TrainConfig, str], tuple[ClientData, Examples]],
    ) -> list[tuple[ClientData, Examples]]:
        """Returns the divided examples of the clients whose examples are finite."""
        divided = []
        for client_id in client_ids:
            with contextlib.suppress(NotFinite):
                divided.append(divide(self._task, self._config, client_id))
        return divided

    def _loss(self, weights: list[np.ndarray], examples: Examples) -> float:
        """Returns the mean loss on examples; NaN where it is not defined, infinity where it is
        defined and not finite.
        """
        return self._evaluator.on_marked(weights, examples)["loss"]

    def _trained(
        self, work: ClientWork, pairs: Sequence[tuple[ClientData, Examples]]
    ) -> Iterator[list[np.ndarray] | None]:
        """Yields the weights of each client after its epochs; None where they are not finite."""
        for part in work.sums(self._sent, [[client] for client, _ in pairs]):
            yield None if part.zeroed else _after(self._weights, part)


def _warn_of_worse_losses(
    pairs: Sequence[tuple[dict[str, float], dict[str, float]]],
    not_finite: int,
    rate: float,
    split: str | None,
) -> None:
    """Warns where the mean loss rose, or that of most clients.

    Args:
      pairs: metrics before and after, of each client that is measured.
      not_finite: clients whose training was not finite.
      rate: that they were trained with.
      split: that they are measured on; None for examples of their own.
    """
    losses = np.array([[values["loss"] for values in pair] for pair in pairs])
    # NaN is a loss that a client's examples do not define; infinity one that is not finite.
    before, after = losses[~np.isnan(losses).any(axis=1)].T
    clients = len(before) + not_finite
    worse = int(np.sum(~(after <= before))) + not_finite
    if not len(before) or (2 * worse <= clients and after.mean() <= before.mean()):
        return
    warnings.warn(
        f"fine-tuning made the loss of {worse} of {clients} clients worse on "
        f"{split or 'their other half'}: its mean went from {before.mean():.4g} to "
        f"{after.mean():.4g}; take a smaller `learning_rate` than {rate:g}, or "
        f"learning_rate={SEARCH}, which chooses one",
        stacklevel=2,
    )


def _after(weights: list[np.ndarray], part: ClippedSum) -> list[np.ndarray]:
    """Returns the weights after training; an update is the weights before minus those after it."""
    return [
        (weight - update).astype(weight.dtype)
        for weight, update in zip(weights, part.values, strict=True)
    ]


def sample(task: Task, clients: int, seed: int) -> list[str]:
    """So many clients, or all where there are fewer, drawn without replacement."""
    rng = np.random.default_rng([seed, _SAMPLE])
    population = len(task.client_ids)
    chosen = rng.choice(population, min(clients, population), replace=False)
    return [task.client_ids[i] for i in np.sort(chosen)]


def _summary(before: np.ndarray, after: np.ndarray) -> dict[str, Any]:
    """Returns counts, means and deciles of a metric over clients, float64 (clients,) each.

    Two kinds of clients are left out and counted apart: those on whose examples the metric is not
    defined (NaN), and those for whom it is defined and not finite (infinity).
    """
    undefined = np.isnan(before) | np.isnan(after)
    not_finite = ~undefined & (np.isinf(before) | np.isinf(after))
    measured = ~undefined & ~not_finite
    before, after = before[measured], after[measured]
    counts = {
        "clients": int(measured.sum()),
        "clients_undefined": int(undefined.sum()),
        "clients_not_finite": int(not_finite.sum()),
    }
    columns = {"before": before, "after": after, "change": after - before}
    return counts | (
        {name: mean_and_deciles(values) for name, values in columns.items()} if len(before) else {}
    )


def _warn_of_values_not_finite(summary_by_metric: Mapping[str, Mapping[str, Any]]) -> None:
    """Warns of metrics whose means leave clients out because the model's values are not finite."""
    counts = [
        f"{name} of {summary['clients_not_finite']} clients"
        for name, summary in summary_by_metric.items()
        if summary["clients_not_finite"]
    ]
    if counts:
        warnings.warn(
            f"not finite before or after fine-tuning: {', '.join(counts)}; the means and deciles "
            "leave these clients out, and look better than the models are",
            stacklevel=4,
        )
