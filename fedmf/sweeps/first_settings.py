"""Settings for a first run on a task, each with its reason.

Sizes follow from the number of training clients. Rates and the clip norm are measured on simulated
clients, which hold examples of the validation split or of public data, with the noise of the run.
The examples of training clients are not read. Without such data, the clip norm follows a private
quantile of the updates' norms, and the rates are rules of thumb.
"""

import dataclasses
import functools
import math
import tempfile
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedmf.runs.config import TrainConfig
from fedmf.server.messages import ClientParams
from fedmf.terminal import progress_bar
from fedmf.training import DivergedRun, Machine, StopOnDivergence, Task, train
from fedmf.training.client_data import client_data
from fedmf.training.client_work import Broadcast, ClientWork, sums_of_copies
from fedmf.training.evaluation import Evaluator
from fedmf.training.example_checks import check_examples
from fedmf.training.examples import Examples, count, take
from fedmf.training.task_checks import OTHERS

MOMENTUM = 0.9
# Clients and rounds without noise with which the client rate is chosen.
_PROBE_CLIENTS = 10
_PROBE_ROUNDS = 10
_CLIENT_RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
# The client rate is this share of the rate that is best for one batch. A client with many batches
# trains stably with it, and for a clipped update of one batch the rate makes no difference.
_STABLE_SHARE = 0.1
# First of the server rates that are tried (see `_server_rate`), and most moves of the search.
_FIRST_STEP = 1
_MOST_STEPS = 6
_QUANTILE = 0.1
_SEED = 0


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
      public_task: the same task on public data, on whose clients rates and clip norm are measured.
      progress: show a progress bar.

    Raises:
      ValueError: there are fewer than 20 training clients, all gradients are 0, or all simulated
        runs diverge.
    """
    num_clients = len(task.client_ids)
    sizes = _sizes(num_clients)
    reasons = _size_reasons(sizes, num_clients)
    config = dataclasses.replace(config, server_momentum=MOMENTUM, warmup=0.0, **sizes)
    reasons["server_momentum"] = "averages over some 10 rounds; the papers' 0.95 is for thousands"
    reasons["warmup"] = "the first rounds have no larger steps than later ones"
    measuring = _measuring_task(task, public_task)
    if measuring is None:
        measured_values, measured_reasons = _rules_of_thumb()
    else:
        with progress_bar.bar(desc="simulating", unit="rate", disable=not progress) as bar:
            simulation = _Simulation(measuring, config, bar)
            measured_values, measured_reasons = simulation.settings()
    config = dataclasses.replace(config, **measured_values)
    return FirstSettings(config=config, reasons=reasons | measured_reasons)


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


def _rules_of_thumb() -> tuple[dict[str, Any], dict[str, str]]:
    """Returns clip norm and rates without data on which to measure them, and their reasons."""
    rules = {
        "clip_norm": 0.1,
        "clip_quantile": 0.5,
        "clip_every": 5,
        "client_learning_rate": 0.1,
        "server_learning_rate": 0.5,
    }
    reasons = {
        "clip_norm": "of the first rounds; afterwards it follows the private quantile",
        "clip_quantile": "the median of the updates' norms, a private quantile whose cost is part "
        "of epsilon: there are no public data on which to measure a clip norm",
        "clip_every": "finds the median within the rounds of a small run",
        "client_learning_rate": "a rule of thumb, as nothing was measured: try 0.03 and 0.3 too",
        "server_learning_rate": "a rule of thumb, as nothing was measured: try 0.2 and 1 too",
    }
    return rules, reasons


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Measuring:
    """Simulated clients on whom rates and the clip norm are measured.

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
    """Measurement of the clip norm and of the rates on simulated clients.

    Args:
      measuring: the simulated clients.
      config: config of the run, with its sizes and its privacy target.
      bar: progress bar, updated for each rate.
    """

    def __init__(self, measuring: _Measuring, config: TrainConfig, bar: Any) -> None:
        self._task = measuring.task
        self._source = measuring.source
        self._config = dataclasses.replace(config, evaluate_every=config.rounds)
        self._evaluator = Evaluator(self._task, self._config)
        self._gradient_config = dataclasses.replace(
            self._config, client_learning_rate=1.0, client_batches=1, client_optimizer="sgd"
        )
        self._bar = bar

    def settings(self) -> tuple[dict[str, float], dict[str, str]]:
        """Returns the clip norm and the rates, and the reason of each."""
        client_rate = self._client_rate()
        clip_norm = self._clip_norm(client_rate)
        self._config = dataclasses.replace(
            self._config, client_learning_rate=client_rate, clip_norm=clip_norm
        )
        loss_by_rate = self._searched_server_rates()
        server_rate = min(loss_by_rate, key=loss_by_rate.__getitem__)
        if not math.isfinite(loss_by_rate[server_rate]):
            raise ValueError(
                f"simulated runs diverged with all of {len(loss_by_rate)} server rates: use a "
                f"larger epsilon than {self._config.epsilon}, or a smaller model"
            )
        tried_text = ", ".join(f"{rate:g}" for rate in sorted(loss_by_rate))
        reasons = {
            "client_learning_rate": f"{_STABLE_SHARE} times the one of {len(_CLIENT_RATES)} rates "
            f"with the least loss after {_PROBE_ROUNDS} rounds of {_PROBE_CLIENTS} simulated "
            f"clients without noise, who hold a batch each of {self._source}; clients with many "
            "batches train stably with it",
            "clip_norm": f"the {_QUANTILE:.0%} quantile of the norms of updates of clients who "
            f"hold examples of {self._source}: no norm of a training client was read",
            "server_learning_rate": f"of {tried_text} the rate with the least loss at the end of a "
            f"simulated run with the noise of this plan ({loss_by_rate[server_rate]:.3g})",
        }
        values = {
            "client_learning_rate": client_rate,
            "clip_norm": clip_norm,
            "server_learning_rate": server_rate,
        }
        return values, reasons

    def _clip_norm(self, rate: float) -> float:
        """Returns a quantile of the norms of updates of the initial model, with two digits."""
        weights = self._task.initial_weights(self._config.seed)
        norms = [
            rate * math.sqrt(sum(float((array**2).sum()) for array in gradient))
            for t in range(_PROBE_ROUNDS)
            for gradient in self._gradients(weights, t)
        ]
        clip_norm = float(np.quantile(norms, _QUANTILE))
        if clip_norm == 0:
            raise ValueError(
                f"updates of clients who hold examples of {self._source} are 0: name other data"
            )
        return float(f"{clip_norm:.2g}")

    def _searched_server_rates(self) -> dict[float, float]:
        """Returns the losses of simulated runs by server rate. The search moves to a neighbouring
        rate as long as the loss there is smaller.
        """
        loss_by_step: dict[int, float] = {}

        def loss_at(step: int) -> float:
            if step not in loss_by_step:
                loss_by_step[step] = self._loss_of_run(_server_rate(step))
                self._bar.update()
            return loss_by_step[step]

        best_step = _FIRST_STEP
        for _ in range(_MOST_STEPS):
            better_steps = (
                step
                for step in (best_step - 1, best_step + 1)
                # Of equal losses, such as those of diverged runs, the smaller rate is better.
                if (loss_at(step), step) < (loss_at(best_step), best_step)
            )
            next_step = next(better_steps, None)
            if next_step is None:
                break
            best_step = next_step
        return {_server_rate(step): loss for step, loss in loss_by_step.items()}

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
            gradients = self._gradients(weights, t)
            for i in range(len(weights)):
                mean_gradient = np.mean([gradient[i] for gradient in gradients], axis=0)
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

    def _gradients(self, weights: list[np.ndarray], t: int) -> list[Sequence[np.ndarray]]:
        """Returns the gradients of the clients of a round, neither clipped nor noised. A client's
        update in one batch is its gradient times the client rate.
        """
        client_params = ClientParams(clip_norm=math.inf, zeroing_norm=math.inf, scales=[])
        num_clients = len(self._task.client_ids)
        groups = [
            [client_data(self._task, self._gradient_config, t, client % num_clients)]
            for client in range(t * _PROBE_CLIENTS, (t + 1) * _PROBE_CLIENTS)
        ]
        sent = Broadcast(weights, client_params)
        return [group_sum.values for group_sum in sums_of_copies(self._client_work, sent, groups)]

    def _loss_of_run(self, server_rate: float) -> float:
        """Returns the validation loss at the end of a simulated run with noise; infinity if it
        diverges.
        """
        config = dataclasses.replace(self._config, server_learning_rate=server_rate)
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                run = train(
                    self._task,
                    config,
                    folder=f"{folder}/run",
                    noise_seed=_SEED,
                    progress=False,
                    test=False,
                    callbacks=[StopOnDivergence()],
                )
            except DivergedRun:
                return math.inf
        assert run.result is not None
        loss: float = run.result["validation"]["loss"]
        return loss if math.isfinite(loss) else math.inf


def _server_rate(step: int) -> float:
    """Returns the server rate of a step of the search: 1 for step 0, about 3 for step 1."""
    return float(f"{10 ** (step / 2):.1g}")
