"""Rounds of our own loop: client work outside TFF's executor, here or on a cluster, and the mean by
the same DPQuery as in TFF.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from fedmf.federated.aggregation.aggregator import mean_query
from fedmf.federated.examples import Epochs
from fedmf.federated.execution.base import Execution, RunOptions, query_metrics
from fedmf.federated.execution.canaries import Canaries
from fedmf.federated.execution.client_setup import ClientSetup, client_kind
from fedmf.federated.execution.client_work import Broadcast
from fedmf.federated.execution.groups import checked, group_size, in_groups
from fedmf.federated.task import Task
from fedmf.federated.training.optimizers import scaling_of, server_optimizer
from fedmf.privacy.plan import Plan
from fedmf.runs.config import TrainConfig
from fedmf.server.rows import HostNoise

if TYPE_CHECKING:
    from fedmf.federated.execution.cluster import Cluster


class FastExecution(Execution):
    """Keeps nothing of the clients but the sum of their clipped updates.

    Args:
      task, plan, config: of the run.
      noise: made with the same plan and noise_seed.
      noise_seed: non-negative int.
      options: its `client_work` and `threads`; the latter change no bit.
      cluster: connected, to train the clients there; None to train them here. It changes no bit.

    Raises:
      ValueError: client_work="compiled" for a task whose compiled epoch does not run here.
    """

    def __init__(
        self,
        task: Task,
        plan: Plan,
        config: TrainConfig,
        noise: HostNoise,
        noise_seed: int,
        options: RunOptions,
        cluster: "Cluster | None" = None,
    ) -> None:
        self.noise = noise
        self._initial = [v.numpy() for v in task.build_model(config.seed).trainable_variables]
        self._specs = [tf.TensorSpec(w.shape, w.dtype) for w in self._initial]
        self.client_work, self.slow = client_kind(task, config, options.client_work)
        setup = ClientSetup(task=task, config=config, kind=self.client_work)
        self._clients = (
            setup.work(options.threads)
            if cluster is None
            else cluster.clients(setup, options.worker_task)
        )
        self._group_size = group_size(
            config.cohort_size, task.batch_size, sum(w.size for w in self._initial)
        )
        self._query = mean_query(
            plan,
            self._specs,
            clients_per_round=config.cohort_size,
            noise_seed=noise_seed,
            zeroing_norm=config.zeroing_norm,
            noise_strategy="precomputed",
        ).with_scaling(scaling_of(config))
        self._query_state = self._query.initial_global_state()
        self._add = tf.function(lambda total, part: tf.nest.map_structure(tf.add, total, part))
        self._optimizer = server_optimizer(config)
        self._server = tf.function(self._server_work)
        self._rounds, self._cohort_size = config.rounds, config.cohort_size
        self._canaries = (
            Canaries(config.canaries, self._query, self._specs, noise_seed)
            if config.canaries
            else None
        )

    def init(self) -> Any:
        """Weights, optimiser state, query state; with canaries the releases so far along their
        directions, float64 (rounds, canaries).
        """
        weights = [tf.constant(w) for w in self._initial]
        # TFF's adaptive optimizers begin with Python numbers, and go on with tensors
        # of other dtypes.
        optimizer_state = tf.nest.map_structure(
            tf.convert_to_tensor, self._optimizer.initialize(self._specs)
        )
        state = weights, optimizer_state, self._query_state
        return (
            state
            if self._canaries is None
            else (*state, np.zeros((self._rounds, len(self._canaries.included))))
        )

    def next(
        self, state: Any, cohort: Sequence[Epochs], canaries: Sequence[int] = ()
    ) -> tuple[Any, dict[str, float]]:
        """See `Execution.next`."""
        weights, optimizer_state, query_state, *releases = self.noise.hand_in(state)
        total, loss, examples, not_finite = self._query.initial_sample_state(), 0.0, 0, 0
        sent = Broadcast(weights, self._query.derive_sample_params(query_state))
        parts = self._clients.sums(sent, in_groups(cohort, self._group_size))
        sizes = [len(group) for group in in_groups(range(len(cohort)), self._group_size)]
        for part in checked(parts, sizes, zero=total, clip_norm=float(sent.params.clip_norm)):
            total = self._add(total, part.total)
            loss += part.loss
            examples += part.examples
            not_finite += part.not_finite
        if self._canaries is not None:
            total = self._canaries.add(total, canaries, sent.params)
        *state, mean = self._server(weights, optimizer_state, query_state, total)
        if self._canaries is not None:
            seen = np.array(releases[0])
            seen[int(query_state.noise.next_round)] = self._cohort_size * self._canaries.released(
                mean, sent.params
            )
            state.append(seen)
        row = {
            "examples": examples,
            "train_loss": loss / examples if examples else 0.0,
            "not_finite": not_finite,
        }
        return tuple(state), row | query_metrics(self._query.derive_metrics(state[2]))

    def _server_work(self, weights: Any, optimizer_state: Any, query_state: Any, total: Any) -> Any:
        mean, query_state, _ = self._query.get_noised_result(total, query_state)
        optimizer_state, weights = self._optimizer.next(optimizer_state, weights, mean)
        return weights, optimizer_state, query_state, mean

    def canary_evidence(self, state: Any) -> dict[str, np.ndarray]:
        """See `Execution.canary_evidence`."""
        if self._canaries is None:
            return {}
        start = self._canaries.projections(self._initial)
        end = self._canaries.projections(self.weights(state))
        return {
            "included": self._canaries.included,
            "releases": np.asarray(state[3]),
            "model": start - end,
        }

    def weights(self, state: Any) -> list[np.ndarray]:
        """See `Execution.weights`."""
        return [np.asarray(w) for w in state[0]]
