"""Settings for a first run on a task, each with its reason.

Sizes follow from the number of training clients, and the server rate from the noise of the plan.
The clip norm and the client rate are measured on simulated clients, who hold examples of the
validation split or of public data. Without such data, both are small numbers that suit all tasks.
The examples of training clients are not read.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedmf.mechanisms.error import max_error
from fedmf.privacy.plan import update_noise_multiplier
from fedmf.privacy.rounding import down
from fedmf.runs.config import TrainConfig
from fedmf.server.messages import ClientParams
from fedmf.terminal import progress_bar
from fedmf.training import Machine, Task
from fedmf.training.client_data import client_data
from fedmf.training.client_work import Broadcast, ClientWork, sums_of_copies
from fedmf.training.evaluation import Evaluator
from fedmf.training.example_checks import check_examples
from fedmf.training.examples import Examples, count, take
from fedmf.training.task_checks import OTHERS
from fedmf.workloads import momentum_sgd

MOMENTUM = 0.9
# Clients and rounds without noise with which the client rate is chosen.
_PROBE_CLIENTS = 10
_PROBE_ROUNDS = 10
_CLIENT_RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
# The client rate is this share of the rate that is best for one batch. A client with many batches
# trains stably with it, and for a clipped update of one batch the rate makes no difference.
_STABLE_SHARE = 0.1
_QUANTILE = 0.1
_SEED = 0
# Settings without data on which to measure them.
_SMALL_CLIP_NORM = 0.01
_SMALL_CLIENT_RATE = 0.1
# Bounds on what the server adds to the model (see `_bounded_server_rate`).
_LARGEST_STEP = 0.5
_LARGEST_NOISE = 0.24


@dataclasses.dataclass(frozen=True, kw_only=True)
class FirstSettings:
    """Settings of a first run, and the reason of each.

    Attributes:
      config: the whole configuration.
      reasons: field of the configuration -> the reason of its value.
    """

    config: TrainConfig
    reasons: dict[str, str]

    def command(self) -> str:
        """Returns the `fedmf train` command of the run."""
        flags = " ".join(self.config.flags(always=tuple(self.reasons)))
        return f"fedmf train {flags} --noise-seed os --out runs/first"


def first_settings(
    task: Task, config: TrainConfig, *, public_task: Task | None = None, progress: bool = True
) -> FirstSettings:
    """Returns settings with which a first run on a task learns.

    Args:
      task: the task.
      config: task, data and privacy target; other fields are replaced.
      public_task: the same task on public data, on whose clients the clip norm and the client rate
        are measured.
      progress: show a progress bar.

    Raises:
      ValueError: there are fewer than 20 training clients, or all gradients are 0.
    """
    num_clients = len(task.client_ids)
    sizes = _sizes(num_clients)
    reasons = _size_reasons(sizes, num_clients)
    config = dataclasses.replace(config, server_momentum=MOMENTUM, warmup=0.0, **sizes)
    reasons["server_momentum"] = "averages over some 10 rounds; the papers' 0.95 is for thousands"
    reasons["warmup"] = "the first rounds have no larger steps than later ones"
    measuring = _measuring_task(task, public_task)
    if measuring is None:
        client_values, client_reasons = _unmeasured_settings()
    else:
        with progress_bar.bar(desc="simulating", unit="rate", disable=not progress) as bar:
            simulation = _Simulation(measuring, config, bar)
            client_values, client_reasons = simulation.settings()
    config = dataclasses.replace(config, **client_values)
    server_rate, server_reason = _bounded_server_rate(config)
    config = dataclasses.replace(config, server_learning_rate=server_rate)
    reasons |= client_reasons | {"server_learning_rate": server_reason}
    return FirstSettings(config=config, reasons=reasons)


def _sizes(num_clients: int) -> dict[str, Any]:
    """Returns cohort size, separation and rounds for a number of training clients.

    A cohort is twice as large as the separation, and their product is the number of clients.
    """
    if num_clients < 20:
        raise ValueError(
            f"the task has {num_clients} training clients, in whose sum the noise would hide every "
            "update: bring 20 clients at least"
        )
    cohort_size = round(math.sqrt(2 * num_clients))
    min_sep = num_clients // cohort_size
    num_participations = min(8, max(3, round(120 / min_sep)))
    return {
        "cohort_size": cohort_size,
        "min_sep": min_sep,
        "rounds": num_participations * min_sep,
    }


def _size_reasons(sizes: dict[str, int], num_clients: int) -> dict[str, str]:
    """Returns the reasons of cohort size, separation and rounds."""
    cohort_size = sizes["cohort_size"]
    min_sep = sizes["min_sep"]
    num_participations = sizes["rounds"] // min_sep
    return {
        "cohort_size": f"the root of twice the {num_clients} training clients; a larger cohort has "
        "less noise in its mean, a smaller one leaves more rounds",
        "min_sep": f"{cohort_size} * {min_sep} clients are at most the {num_clients} that train, "
        "so that clients are eligible in every round",
        "rounds": f"each client takes part {num_participations} times",
    }


def _unmeasured_settings() -> tuple[dict[str, Any], dict[str, str]]:
    """Returns clip norm and client rate without data on which to measure them, and their
    reasons.
    """
    values = {"client_learning_rate": _SMALL_CLIENT_RATE, "clip_norm": _SMALL_CLIP_NORM}
    reasons = {
        "client_learning_rate": "small, so that clients with many batches train stably; clipping "
        "removes the size of their updates",
        "clip_norm": "so small that nearly all updates are clipped to it, as there are no public "
        "data on which to measure their norms",
    }
    return values, reasons


def _bounded_server_rate(config: TrainConfig) -> tuple[float, str]:
    """Returns the server rate of a run, and its reason.

    A clipped update has the clip norm as its norm, whatever the task. So the server rate times the
    clip norm is the largest step of a round, and the noise is proportional to the same product.
    The rate is the largest one that satisfies a bound on each. A clip norm that follows a quantile
    has no such bound: noise that moves the model too far raises the norms of the updates, these
    raise the clip norm, and it raises the noise.

    Args:
      config: config of the run, with all other settings.
    """
    unit_config = dataclasses.replace(config, server_learning_rate=1.0)
    noise_of_unit_rate = _largest_weight_noise(unit_config)
    largest_rate = min(_LARGEST_STEP / config.clip_norm, _LARGEST_NOISE / noise_of_unit_rate)
    server_rate = float(down(largest_rate, digits=2))
    reason = (
        "the largest rate with which the step of a round, before momentum, has a norm of at most "
        f"{_LARGEST_STEP:g} (here {server_rate * config.clip_norm:.2g}), and the noise in each "
        f"weight of the model has a standard deviation of at most {_LARGEST_NOISE:g} (here "
        f"{server_rate * noise_of_unit_rate:.2g})"
    )
    return server_rate, reason


def _largest_weight_noise(config: TrainConfig) -> float:
    """Returns the standard deviation of the noise in each weight of the model, in the round in
    which it is largest.
    """
    plan = config.plan()
    workload = momentum_sgd(
        config.rounds,
        momentum=config.server_momentum,
        learning_rates=config.server_schedule().learning_rates(),
    )
    noise_of_mean = update_noise_multiplier(plan) * config.clip_norm / config.cohort_size
    return noise_of_mean * max_error(plan.mechanism, workload, plan.participation)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Measuring:
    """Simulated clients on whom the clip norm and the client rate are measured.

    Attributes:
      task: the task with as many simulated clients as train, who hold other examples.
      source: the origin of the examples, as a phrase.
    """

    task: Task
    source: str


def _measuring_task(task: Task, public_task: Task | None) -> _Measuring | None:
    """Returns simulated clients, or None if there are no examples that they may hold."""
    num_clients = len(task.client_ids)
    if public_task is not None:
        public_ids = np.random.default_rng(_SEED).permutation(public_task.client_ids).tolist()

        def public_examples(client_id: str) -> Examples:
            return public_task.client_examples(public_ids[int(client_id) % len(public_ids)])

        public_validation = public_task.evaluation_examples("validation")
        return _Measuring(
            task=_simulated(task, num_clients, public_examples, public_validation),
            source=f"{len(public_ids)} clients of the public data",
        )
    if task.validation_clients != OTHERS:
        return None
    examples = check_examples(task.evaluation_examples("validation"), "the validation split")
    num_training = count(examples) // 2
    if num_training < 1:
        return None
    evaluation_half = take(examples, slice(num_training, None))

    def drawn_examples(client_id: str) -> Examples:
        client_rng = np.random.default_rng([_SEED, int(client_id)])
        return take(examples, client_rng.integers(0, num_training, task.batch_size))

    return _Measuring(
        task=_simulated(task, num_clients, drawn_examples, evaluation_half),
        source="the validation split, whose clients do not train",
    )


def _simulated(
    task: Task,
    num_clients: int,
    client_examples: Callable[[str], Examples],
    evaluation_examples: Examples,
) -> Task:
    """Returns a task with simulated clients, whose validation and test splits are equal."""
    return dataclasses.replace(
        task,
        client_ids=tuple(str(i) for i in range(num_clients)),
        client_examples=client_examples,
        evaluation_examples=lambda split: evaluation_examples,
        sample_weight=None,
        synthetic_clients=f"{num_clients} simulated clients",
        data_version="simulated",
    )


class _Simulation:
    """Measurement of the clip norm and of the client rate on simulated clients.

    Args:
      measuring: the simulated clients.
      config: config of the run, with its sizes and its privacy target.
      bar: progress bar, updated for each rate.
    """

    def __init__(self, measuring: _Measuring, config: TrainConfig, bar: Any) -> None:
        self._task = measuring.task
        self._source = measuring.source
        self._config = config
        self._evaluator = Evaluator(self._task, self._config)
        self._gradient_config = dataclasses.replace(
            self._config, client_learning_rate=1.0, client_batches=1, client_optimizer="sgd"
        )
        self._bar = bar

    def settings(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Returns the clip norm and the client rate, and the reason of each."""
        client_rate = self._client_rate()
        clip_norm = self._clip_norm(client_rate)
        reasons = {
            "client_learning_rate": f"{_STABLE_SHARE} times the one of {len(_CLIENT_RATES)} rates "
            f"with the least loss after {_PROBE_ROUNDS} rounds of {_PROBE_CLIENTS} simulated "
            f"clients without noise, who hold a batch each of {self._source}; clients with many "
            "batches train stably with it",
            "clip_norm": f"the {_QUANTILE:.0%} quantile of the norms of updates of clients who "
            f"hold examples of {self._source}: no norm of a training client was read",
        }
        return {"client_learning_rate": client_rate, "clip_norm": clip_norm}, reasons

    def _clip_norm(self, rate: float) -> float:
        """Returns a quantile of the norms of updates of the initial model, with two digits."""
        weights = self._task.initial_weights(self._config.seed)
        norms = [
            rate * math.sqrt(sum(float((array**2).sum()) for array in gradient))
            for t in range(_PROBE_ROUNDS)
            for gradient in self._gradient_sums(weights, t, group_size=1)
        ]
        clip_norm = float(np.quantile(norms, _QUANTILE))
        if clip_norm == 0:
            raise ValueError(
                f"updates of clients who hold examples of {self._source} are 0: name other data"
            )
        return float(f"{clip_norm:.2g}")

    def _client_rate(self) -> float:
        """Returns a share of the rate with the least loss after some rounds without noise."""
        loss_by_rate = {}
        for rate in _CLIENT_RATES:
            loss_by_rate[rate] = self._loss_without_noise(rate)
            self._bar.update()
        best_rate = min(_CLIENT_RATES, key=loss_by_rate.__getitem__)
        return float(f"{_STABLE_SHARE * best_rate:.1g}")

    def _loss_without_noise(self, rate: float) -> float:
        """Returns the loss after some rounds in which the model moves by the mean update of some
        clients; infinity if it is not finite.
        """
        weights = self._task.initial_weights(self._config.seed)
        for t in range(_PROBE_ROUNDS):
            (gradient_sum,) = self._gradient_sums(weights, t, group_size=_PROBE_CLIENTS)
            for i, gradient in enumerate(gradient_sum):
                mean_gradient = gradient / _PROBE_CLIENTS
                weights[i] = (weights[i] - rate * mean_gradient).astype(weights[i].dtype)
            if not all(np.isfinite(weight).all() for weight in weights):
                return math.inf
        loss = self._evaluator.on_marked(weights, self._task.split("validation"))["loss"]
        return loss if math.isfinite(loss) else math.inf

    @functools.cached_property
    def _client_work(self) -> ClientWork:
        """The client work with rate 1 and one batch, whose updates are gradients."""
        learner = self._task.learner
        settings = self._task.client_settings(self._gradient_config)
        settings = dataclasses.replace(settings, work_kind=learner.work_kind(settings))
        return learner.client_work(settings, Machine())

    def _gradient_sums(
        self, weights: list[np.ndarray], t: int, *, group_size: int
    ) -> list[Sequence[np.ndarray]]:
        """Returns the sums of the gradients of groups of clients of a round, neither clipped nor
        noised. A client's update in one batch is its gradient times the client rate.
        """
        client_params = ClientParams(clip_norm=math.inf, zeroing_norm=math.inf, scales=[])
        num_clients = len(self._task.client_ids)
        clients = [
            client_data(self._task, self._gradient_config, t, client % num_clients)
            for client in range(t * _PROBE_CLIENTS, (t + 1) * _PROBE_CLIENTS)
        ]
        groups = [clients[i : i + group_size] for i in range(0, _PROBE_CLIENTS, group_size)]
        sent = Broadcast(weights, client_params)
        return [group_sum.values for group_sum in sums_of_copies(self._client_work, sent, groups)]
