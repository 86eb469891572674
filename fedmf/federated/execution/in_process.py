"""Rounds in this process: client work outside TFF's executor, the mean by the same DPQuery as in TFF."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.federated.aggregation.aggregator import mean_query
from fedmf.federated.examples import Epochs, count
from fedmf.federated.execution.base import Execution, RunOptions, query_metrics
from fedmf.federated.execution.canaries import Canaries
from fedmf.federated.execution.client_work import AutodiffClients, ClientWork, CompiledClients
from fedmf.federated.noise.host import HostNoise
from fedmf.federated.task import Task
from fedmf.federated.training.optimizers import server_optimizer
from fedmf.privacy.plan import Plan
from fedmf.runs.config import TrainConfig


class FastExecution(Execution):
    """Keeps nothing of the clients but the sum of their clipped updates.

    Args:
      task, plan, config: of the run.
      noise: made with the same plan and noise_seed.
      noise_seed: non-negative int.
      options: its `client_work` and `threads`; the latter change no bit.

    Raises:
      ValueError: client_work="compiled" for a task whose compiled epoch does not run here.
    """

    def __init__(
        self, task: Task, plan: Plan, config: TrainConfig, noise: HostNoise, noise_seed: int, options: RunOptions
    ) -> None:
        wanted = options.client_work
        plain = config.client_optimizer == "sgd" and not config.client_momentum and config.client_epochs == 1
        compilable = task.compiled_epoch if plain and not config.proximal_strength else None
        epoch = None if compilable is None or wanted == "autodiff" else compilable()
        if wanted == "compiled" and epoch is None:
            raise ValueError(
                f"client_work='compiled': task {task.name!r} has no compiled epoch that runs here (it needs a C compiler, and one epoch of "
                "plain SGD): use client_work='autodiff'"
            )
        if wanted is None and epoch is None and compilable is not None:
            self.slow = (
                f"the compiled epoch of {task.name} does not run here, so its Keras model trains, about half as fast: install a C "
                "compiler, or name one in FEDMF_CC"
            )
        self.noise = noise
        self._initial = [v.numpy() for v in task.build_model(config.seed).trainable_variables]
        self._specs = [tf.TensorSpec(w.shape, w.dtype) for w in self._initial]
        self._query = mean_query(
            plan,
            self._specs,
            clients_per_round=config.cohort_size,
            noise_seed=noise_seed,
            zeroing_norm=config.zeroing_norm,
            noise_strategy="precomputed",
        )
        self._clients: ClientWork
        if epoch is None:
            self.client_work = "autodiff"
            self._clients = AutodiffClients(task, config, self._query, self._specs)
        else:
            self.client_work = "compiled"
            self._clients = CompiledClients(epoch, config, self._query, self._specs, options.threads)
        self._optimizer = server_optimizer(config)
        self._server = tf.function(self._server_work)
        self._rounds, self._cohort_size = config.rounds, config.cohort_size
        self._canaries = Canaries(config.canaries, self._query, self._specs, noise_seed) if config.canaries else None

    def init(self) -> Any:
        """Weights, optimiser state, query state; with canaries the releases so far along their directions, float64 (rounds, canaries)."""
        weights = [tf.constant(w) for w in self._initial]
        state = weights, self._optimizer.initialize(self._specs), self._query.initial_global_state()
        return state if self._canaries is None else (*state, np.zeros((self._rounds, len(self._canaries.included))))

    def next(self, state: Any, cohort: Sequence[Epochs], canaries: Sequence[int] = ()) -> tuple[Any, dict[str, float]]:
        """See `Execution.next`."""
        weights, optimizer_state, query_state, *releases = self.noise.hand_in(state)
        total, loss = self._clients.add(weights, self._query.initial_sample_state(self._specs), cohort)
        if self._canaries is not None:
            total = self._canaries.add(total, canaries)
        *state, mean = self._server(weights, optimizer_state, query_state, total)
        if self._canaries is not None:
            seen = np.array(releases[0])
            seen[int(query_state.noise.next_round)] = self._cohort_size * self._canaries.projections(mean)
            state.append(seen)
        examples = sum(count(epoch) for epochs in cohort for epoch in epochs)
        row = {"examples": examples, "train_loss": loss / examples if examples else 0.0}
        return tuple(state), row | query_metrics(self._query.derive_metrics(state[2]))

    def _server_work(self, weights: Any, optimizer_state: Any, query_state: Any, total: Any) -> Any:
        mean, query_state, _ = self._query.get_noised_result(total, query_state)
        optimizer_state, weights = self._optimizer.next(optimizer_state, weights, mean)
        return weights, optimizer_state, query_state, mean

    def canary_evidence(self, state: Any) -> dict[str, np.ndarray]:
        """See `Execution.canary_evidence`."""
        if self._canaries is None:
            return {}
        start, end = self._canaries.projections(self._initial), self._canaries.projections(self.weights(state))
        return {"included": self._canaries.included, "releases": np.asarray(state[3]), "model": start - end}

    def weights(self, state: Any) -> list[np.ndarray]:
        """See `Execution.weights`."""
        return [np.asarray(w) for w in state[0]]
