"""Rounds of our own loop: client work on TensorFlow, here or on a cluster; sums, noise and the
server's step in numpy.
"""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import tensorflow as tf

from fedmf.federated.execution.client_setup import ClientSetup
from fedmf.federated.execution.client_work import ClientWork, broadcast
from fedmf.federated.execution.records import Records
from fedmf.server.means import NoisyMeans, check_zeroing_norm, in_shapes
from fedmf.server.optimizers import checked_step
from fedmf.training.examples import Epochs
from fedmf.training.execution.base import Execution, parameters
from fedmf.training.execution.canaries import Canaries
from fedmf.training.execution.client_data import ClientRound
from fedmf.training.execution.cluster import ClusterClients, connected
from fedmf.training.execution.groups import checked, group_size, in_groups


class FastExecution(Execution):
    """Keeps nothing of the clients but the sum of their clipped updates.

    It connects to the cluster of its options when it is entered. Threads and cluster change no bit.
    """

    def __post_init__(self) -> None:
        task, config, plan = self.task, self.config, self.plan
        self._initial, size = task.initial_weights(config.seed), parameters(task, config)
        self._shapes = [w.shape for w in self._initial]
        self._setup = ClientSetup.here(task, config)
        self.client_work, self.slow = self._setup.kind, self._setup.slow
        self._clients: ClientWork
        if self.options.cluster is None:
            self._clients = self._setup.work(self.options.threads)
        self._group_size = group_size(config.cohort_size, task.batch_size, size)
        self._means = NoisyMeans(
            plan=plan,
            size=size,
            clients_per_round=config.cohort_size,
            zeroing_norm=check_zeroing_norm(config.zeroing_norm),
            scaling=config.scaling(),
        )
        self._zero = Records(self._initial).zero()
        self._optimizer = self.options.server_optimizer or config.server_steps()
        self._rates = config.server_schedule().learning_rates()
        self._canaries = Canaries(config.canaries, plan, size, self.noise_seed)

    def __enter__(self) -> Self:
        if (address := self.options.cluster) is not None:
            cluster = self._started.enter_context(connected(address, self.options.threads))
            self._clients = ClusterClients(cluster, self._setup, self.options.worker_task)
        return self

    def client(self, t: int, client: int) -> Epochs | ClientRound:
        """See `Execution.client`. Workers with a task of their own read the examples themselves."""
        by_workers = self.options.cluster is not None and self.options.worker_task is not None
        return ClientRound(t, client) if by_workers else super().client(t, client)

    def explain(self) -> str:
        """See `Execution.explain`. With a cluster only once it is connected."""
        return self._clients.explain()

    def init(self) -> Any:
        """Weights, optimiser state, state of the means; with canaries the releases so far along
        their directions, float64 (rounds, canaries).
        """
        state = list(self._initial), self._optimizer.init(self._initial), self._means.initial()
        if not self.config.canaries:
            return state
        return *state, np.zeros((len(self._rates), self.config.canaries))

    def next(
        self, state: Any, cohort: Sequence[Any], canaries: Sequence[int] = ()
    ) -> tuple[Any, dict[str, float]]:
        """See `Execution.next`."""
        weights, optimizer_state, means, *releases = state
        t, sent = int(means.next_round), self._means.to_clients(means)
        total, loss, examples, not_finite = self._means.empty_sum(), 0.0, 0, 0
        scales = in_shapes(sent.scales, self._shapes) if len(sent.scales) else ()
        groups = list(in_groups(cohort, self._group_size))
        parts = self._clients.sums(
            broadcast(weights, sent.clip_norm, sent.zeroing_norm, scales), groups
        )
        sizes = list(map(len, groups))
        for part in checked(parts, sizes, zero=self._zero, clip_norm=sent.clip_norm):
            total.add_clipped(tf.nest.flatten(part.total.record), *part.total[1:])
            loss += part.loss
            examples += part.examples
            not_finite += part.not_finite
        self._canaries.add(total, canaries, sent)
        mean, means = self._means.release(means, total, self.noise.row(t))
        if releases:
            releases = [np.array(releases[0])]
            divisor = self._means.clients_per_round
            releases[0][t] = divisor * self._canaries.released(mean, sent)
        update = [
            part.astype(w.dtype)
            for part, w in zip(in_shapes(mean, self._shapes), weights, strict=True)
        ]
        optimizer_state, stepped = self._optimizer.step(
            optimizer_state, weights, update, float(self._rates[t])
        )
        weights = checked_step(self._optimizer, stepped, weights)
        row = {
            "examples": examples,
            "train_loss": loss / examples if examples else 0.0,
            "not_finite": not_finite,
        }
        state = weights, optimizer_state, means, *releases
        return state, row | self._means.metrics(means, total)

    def canary_evidence(self, state: Any) -> dict[str, np.ndarray]:
        """See `Execution.canary_evidence`."""
        if not self.config.canaries:
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
