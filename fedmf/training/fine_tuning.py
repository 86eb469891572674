"""Metrics of personal models, where the run's model is measured before and after fine-tuning on the
examples of one client.

Fine-tuning happens on the client's device: no update is clipped, and no noise is added. Learning
rates of a run are too large for it, because only clipping makes them harmless. So the default rate
is a tenth of the run's, and no step is longer than the run's clip norm.
"""

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedmf import checks
from fedmf.runs.config import TrainConfig
from fedmf.server.messages import ClientParams
from fedmf.terminal import progress_bar
from fedmf.training.client_work import Broadcast, ClientWork, sums_of_copies
from fedmf.training.evaluation import Evaluator, mean_and_deciles
from fedmf.training.examples import Examples, NotFinite, count
from fedmf.training.execution.groups import in_groups
from fedmf.training.fine_tuning_data import (
    SplitExamples,
    sample_clients,
    split_for_search,
    split_in_halves,
)
from fedmf.training.learner import Machine
from fedmf.training.task import Task

# Number of clients whose examples are in memory at a time.
_GROUP_SIZE = 32
# The value "search" of a learning rate means that the best of these multiples of the default is
# chosen.
SEARCH = "search"
_SEARCHED_FACTORS = (0.1, 0.3, 1.0, 3.0)


class Change(NamedTuple):
    """The metrics of a client before and after fine-tuning."""

    before: Mapping[str, float]
    after: Mapping[str, float]


def learning_rates(value: Any, config: TrainConfig) -> list[float]:
    """Checks the setting of the learning rate of fine-tuning, and returns the rates to try. If
    there are several, the best is chosen later.

    Args:
      value: None for a tenth of the run's client rate, a rate, several, or "search".
      config: config of the run.

    Raises:
      TypeError, ValueError: the value is invalid.
    """
    default_rate = config.client_learning_rate / 10
    if value is None:
        return [default_rate]
    if isinstance(value, str) and value == SEARCH:
        return [default_rate * factor for factor in _SEARCHED_FACTORS]
    hint = f"give a rate, several, or {SEARCH!r}; {default_rate:g} is the default"
    listed_values = value if isinstance(value, list | tuple) else [value]
    checked_rates = [checks.positive("learning_rate", rate, hint) for rate in listed_values]
    if not checked_rates:
        raise ValueError(f"learning_rate={value!r} holds no rate: {hint}")
    return sorted(set(checked_rates))


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
    """Fine-tunes clients and returns their metrics, as `TrainedRun.evaluate_fine_tuned` describes.

    If there are several rates, one is chosen for all clients by examples of the training half. The
    examples on which results are measured have no influence on the choice.

    Args:
      task: task of the run.
      config: config of the run, with `client_epochs` of the fine-tuning.
      weights: weights of the run's model.
      rates: learning rates to choose from.
      clients: maximal number of clients.
      split: split to measure on, or None for the other half of a client's examples.
      progress: whether to show a bar.
    """
    client_ids = sample_clients(task, clients, config.seed)
    num_passes = 1 if len(rates) == 1 else len(rates) + 1
    with progress_bar.bar(
        total=num_passes * len(client_ids), unit="client", desc="fine-tuning", disable=not progress
    ) as bar:
        tuning = _FineTuning(task, config, weights, bar)
        best_rate = rates[0]
        loss_by_rate: dict[str, float] = {}
        if len(rates) > 1:
            best_rate, loss_by_rate = tuning.choose_rate(rates, client_ids)
        tuned_metrics = tuning.measure(best_rate, client_ids, split)
    return {"learning_rate": best_rate, "searched": loss_by_rate, **tuned_metrics}


class _FineTuning:
    """Fine-tuning of several clients, each from the same weights.

    Args:
      task: task of the run.
      config: config of the run, with the epochs of the fine-tuning.
      weights: weights of the run's model.
      bar: progress bar, updated for each client.
    """

    def __init__(
        self,
        task: Task,
        config: TrainConfig,
        weights: list[np.ndarray],
        bar: Any,
    ) -> None:
        self._task = task
        self._config = config
        self._weights = weights
        self._evaluator = Evaluator(task, config)
        self._bar = bar
        # In fine-tuning, updates are neither clipped nor scaled.
        unit_scales: list[np.ndarray] = []
        if config.scaling() is not None:
            unit_scales = [np.ones_like(weight, np.float32) for weight in weights]
        client_params = ClientParams(clip_norm=math.inf, zeroing_norm=math.inf, scales=unit_scales)
        self._broadcast = Broadcast(weights, client_params)

    def choose_rate(
        self, rates: Sequence[float], client_ids: Sequence[str]
    ) -> tuple[float, dict[str, float]]:
        """Returns the learning rate with the lowest mean loss over the clients, and the mean loss
        of each rate.

        Each client is split by `split_for_search`. A rate with which the training of a client does
        not stay finite has an infinite loss. If no client has enough examples, the smallest rate is
        chosen.
        """
        work_by_rate = {rate: self._client_work(rate) for rate in rates}
        losses_by_rate: dict[float, list[float]] = {rate: [] for rate in rates}
        for group in in_groups(client_ids, _GROUP_SIZE):
            searched_splits = [
                client_split
                for client_split in self._split_clients(group, split_for_search)
                if self._has_loss(client_split.evaluation)
            ]
            for rate, client_work in work_by_rate.items():
                tuned_weights = self._train(client_work, searched_splits)
                for weights, client_split in zip(tuned_weights, searched_splits, strict=True):
                    tuned_loss = math.inf
                    if weights is not None:
                        tuned_loss = self._loss(weights, client_split.evaluation)
                    losses_by_rate[rate].append(tuned_loss)
                self._bar.update(len(group))
        mean_by_rate = {
            rate: float(np.mean(losses)) if losses else math.nan
            for rate, losses in losses_by_rate.items()
        }
        finite_rates = [rate for rate, mean in mean_by_rate.items() if math.isfinite(mean)]
        best_rate = min(finite_rates, key=lambda rate: mean_by_rate[rate], default=min(rates))
        return best_rate, {f"{rate:g}": mean for rate, mean in mean_by_rate.items()}

    def _has_loss(self, examples: Examples) -> bool:
        """Returns whether the loss of the run's model on these examples is defined, for which there
        must be at least one.
        """
        return bool(count(examples)) and not math.isnan(self._loss(self._weights, examples))

    def measure(self, rate: float, client_ids: Sequence[str], split: str | None) -> dict[str, Any]:
        """Returns the metrics of clients before and after training with this rate, and counts of
        clients that are left out.

        Raises:
          ValueError: no client is measured.
        """
        task = self._task
        split_examples = None
        split_metrics: dict[str, float] = {}
        if split is not None:
            split_examples = task.split(split)
            split_metrics = self._evaluator.on_marked(self._weights, split_examples)
        client_work = self._client_work(rate)
        omitted_counts = {"too_few_examples": 0, "examples_not_finite": 0, "training_not_finite": 0}
        changes: list[Change] = []
        for group in in_groups(client_ids, _GROUP_SIZE):
            finite_splits = self._split_clients(group, split_in_halves)
            measured_splits = [client for client in finite_splits if count(client.evaluation)]
            omitted_counts["examples_not_finite"] += len(group) - len(finite_splits)
            omitted_counts["too_few_examples"] += len(finite_splits) - len(measured_splits)
            self._bar.update(len(group) - len(measured_splits))
            for tuned_weights, client in zip(
                self._train(client_work, measured_splits), measured_splits, strict=True
            ):
                self._bar.update()
                if tuned_weights is None:
                    omitted_counts["training_not_finite"] += 1
                elif split_examples is None:
                    metrics_before = self._evaluator.on_marked(self._weights, client.evaluation)
                    metrics_after = self._evaluator.on_marked(tuned_weights, client.evaluation)
                    changes.append(Change(metrics_before, metrics_after))
                else:
                    metrics_after = self._evaluator.on_marked(tuned_weights, split_examples)
                    changes.append(Change(split_metrics, metrics_after))
        if not changes:
            raise ValueError(
                f"none of clients={len(client_ids)} of task {task.name!r} has two examples, all "
                "finite, and finite weights after training on one half: use more clients, or a "
                "smaller rate"
            )
        _warn_of_worse_losses(changes, omitted_counts["training_not_finite"], rate, split)
        summary_by_metric = {}
        for name in changes[0].before:
            values_before = np.array([change.before[name] for change in changes])
            values_after = np.array([change.after[name] for change in changes])
            summary_by_metric[name] = _summary(values_before, values_after)
        _warn_of_values_not_finite(summary_by_metric)
        return {
            "clients": len(changes),
            "population": len(task.client_ids),
            "left_out": omitted_counts,
            "metrics": summary_by_metric,
        }

    def _client_work(self, rate: float) -> ClientWork:
        """Returns client work that trains with this rate, and whose steps are at most as long as
        the clip norm.
        """
        tuned_config = dataclasses.replace(self._config, client_learning_rate=rate)
        learner = self._task.learner
        settings = self._task.client_settings(tuned_config, max_step_norm=tuned_config.clip_norm)
        settings = dataclasses.replace(settings, work_kind=learner.work_kind(settings))
        return learner.client_work(settings, Machine())

    def _split_clients(
        self,
        client_ids: Sequence[str],
        split_client: Callable[[Task, TrainConfig, str], SplitExamples],
    ) -> list[SplitExamples]:
        """Splits the examples of each client, and leaves out clients whose examples are not
        finite.
        """
        client_splits = []
        for client_id in client_ids:
            with contextlib.suppress(NotFinite):
                client_splits.append(split_client(self._task, self._config, client_id))
        return client_splits

    def _loss(self, weights: list[np.ndarray], examples: Examples) -> float:
        """Returns the mean loss, on some examples, of the model with these weights. It is NaN if
        the examples do not define it, and infinity if the model's value is not finite.
        """
        return self._evaluator.on_marked(weights, examples)["loss"]

    def _train(
        self, client_work: ClientWork, splits: Sequence[SplitExamples]
    ) -> Iterator[list[np.ndarray] | None]:
        """Trains each client, and yields its weights after the last epoch; None if they are not
        finite.
        """
        one_client_groups = [[client_split.training] for client_split in splits]
        for group_sum in sums_of_copies(client_work, self._broadcast, one_client_groups):
            yield None if group_sum.zeroed else _subtract(self._weights, group_sum.values)


def _subtract(weights: list[np.ndarray], update: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns weights minus an update, in the dtypes of the weights."""
    return [
        (weight - array).astype(weight.dtype) for weight, array in zip(weights, update, strict=True)
    ]


def _warn_of_worse_losses(
    changes: Sequence[Change], not_finite: int, rate: float, split: str | None
) -> None:
    """Warns if fine-tuning made the mean loss worse, or the loss of most clients.

    Args:
      changes: metrics of the measured clients.
      not_finite: number of clients whose training was not finite.
      rate: learning rate of the training.
      split: split that the clients are measured on; None for the other half of their examples.
    """
    losses_before = np.array([change.before["loss"] for change in changes])
    losses_after = np.array([change.after["loss"] for change in changes])
    is_defined = ~(np.isnan(losses_before) | np.isnan(losses_after))
    losses_before = losses_before[is_defined]
    losses_after = losses_after[is_defined]
    num_clients = len(losses_before) + not_finite
    num_worse = int(np.sum(~(losses_after <= losses_before))) + not_finite
    if not len(losses_before):
        return
    mean_before = losses_before.mean()
    mean_after = losses_after.mean()
    if 2 * num_worse <= num_clients and mean_after <= mean_before:
        return
    warnings.warn(
        f"fine-tuning made the loss of {num_worse} of {num_clients} clients worse on "
        f"{split or 'their other half'}: its mean went from {mean_before:.4g} to "
        f"{mean_after:.4g}; use a smaller `learning_rate` than {rate:g}, or "
        f"learning_rate={SEARCH}, which chooses one",
        stacklevel=2,
    )


def _summary(before: np.ndarray, after: np.ndarray) -> dict[str, Any]:
    """Returns counts, means and deciles over clients of a metric before and after fine-tuning. Both
    arguments are float64 arrays (clients,).

    Two kinds of clients are left out and counted: those on whose examples the metric is not defined
    (NaN), and those for whom it is defined and not finite (infinity).
    """
    is_undefined = np.isnan(before) | np.isnan(after)
    is_infinite = ~is_undefined & (np.isinf(before) | np.isinf(after))
    is_measured = ~is_undefined & ~is_infinite
    summary: dict[str, Any] = {
        "clients": int(is_measured.sum()),
        "clients_undefined": int(is_undefined.sum()),
        "clients_not_finite": int(is_infinite.sum()),
    }
    if is_measured.any():
        measured_before = before[is_measured]
        measured_after = after[is_measured]
        summary["before"] = mean_and_deciles(measured_before)
        summary["after"] = mean_and_deciles(measured_after)
        summary["change"] = mean_and_deciles(measured_after - measured_before)
    return summary


def _warn_of_values_not_finite(summary_by_metric: Mapping[str, Mapping[str, Any]]) -> None:
    """Warns of metrics whose means leave out clients, because the model's values for them are not
    finite.
    """
    metric_phrases = [
        f"{name} of {summary['clients_not_finite']} clients"
        for name, summary in summary_by_metric.items()
        if summary["clients_not_finite"]
    ]
    if metric_phrases:
        warnings.warn(
            f"not finite before or after fine-tuning: {', '.join(metric_phrases)}; the means and "
            "deciles leave these clients out, and look better than the models are",
            stacklevel=4,
        )
