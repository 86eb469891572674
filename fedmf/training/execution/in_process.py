"""Rounds of our own loop: client work of the task's learner, here or on a cluster; sums, noise and
the server's step in numpy.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from fedmf import nest
from fedmf.server.means import MeansState, NoisyMeans, check_zeroing_norm, in_shapes
from fedmf.server.optimizers import checked_step
from fedmf.training.client_data import ClientRound
from fedmf.training.client_work import Broadcast, ClientWork
from fedmf.training.examples import ClientData
from fedmf.training.execution.base import Execution, Release, packed_like, parameters
from fedmf.training.execution.canaries import Canaries
from fedmf.training.execution.cluster import ClusterClients, WorkerSetup, connected
from fedmf.training.execution.groups import checked, group_size, in_groups
from fedmf.training.learner import Machine


class FastState(NamedTuple):
    """The state of a run between rounds.

    Attributes:
      weights: trainable weights of the model.
      optimizer: state of the server optimizer, a nest of arrays.
      means: what follows from the releases so far; None in a state that is for `step` alone.
    """

    weights: list[np.ndarray]
    optimizer: Any
    means: MeansState | None


class FastExecution(Execution):
    """Keeps nothing of the clients but the sum of their clipped updates.

    It connects to the cluster of its options when it is entered. Threads and cluster change no bit.
    """

    def __post_init__(self) -> None:
        task, config, plan = self.task, self.config, self.plan
        self._initial, size = task.initial_weights(config.seed), parameters(task, config)
        self._shapes = [w.shape for w in self._initial]
        settings = task.client_settings(config)
        self.work_kind = task.learner.work_kind(settings)
        self._settings = dataclasses.replace(settings, work_kind=self.work_kind)
        self.slow = task.learner.slow(self._settings)
        self._clients: ClientWork
        if self.options.cluster is None:
            machine = Machine(threads=self.options.threads)
            self._clients = task.learner.client_work(self._settings, machine)
        self._group_size = group_size(config.cohort_size, task.batch_size, size)
        self._means = NoisyMeans(
            plan=plan,
            size=size,
            clients_per_round=config.cohort_size,
            zeroing_norm=check_zeroing_norm(config.zeroing_norm),
            scaling=config.scaling(),
        )
        self._means_structure = nest.map_leaves(lambda leaf: None, self._means.initial())
        self._optimizer = self.options.server_optimizer or config.server_steps()
        self._rates = config.server_schedule().learning_rates()
        self._canaries = Canaries(config.canaries, plan, size, self.noise_seed)

    def __enter__(self) -> Self:
        if (address := self.options.cluster) is not None:
            cluster = self._started.enter_context(connected(address, self.options.threads))
            setup = WorkerSetup(
                learner=self.task.learner.on_workers(),
                settings=self._settings,
                config=self.config,
                data_version=self.task.data_version,
                make_task=self.options.worker_task,
            )
            self._clients = ClusterClients(cluster, setup)
        return self

    def client(self, t: int, client: int) -> ClientData | ClientRound:
        """See `Execution.client`. Workers with a task of their own read the examples themselves."""
        by_workers = self.options.cluster is not None and self.options.worker_task is not None
        return ClientRound(t, client) if by_workers else super().client(t, client)

    def explain(self) -> str:
        """See `Execution.explain`. With a cluster only once it is connected."""
        return self._clients.explain()

    def init(self) -> FastState:
        """See `Execution.init`."""
        initial = list(self._initial)
        return FastState(initial, self._optimizer.init(self._initial), self._means.initial())

    def collect_release(
        self, state: FastState, cohort: Sequence[Any], canaries: Sequence[int] = ()
    ) -> Release:
        """See `Execution.collect_release`. Of the arrays the first is the noisy mean; the others
        are the state of the means after it.
        """
        means = state.means
        assert means is not None, "a state of `from_before` is for `step` alone"
        t, sent = int(means.next_round), self._means.client_params(means)
        total, loss, examples, not_finite = self._means.empty_sum(), 0.0, 0, 0
        scales = in_shapes(sent.scales, self._shapes) if len(sent.scales) else ()
        groups = list(in_groups(cohort, self._group_size))
        broadcast = Broadcast(state.weights, sent._replace(scales=scales))
        parts = self._clients.sums(broadcast, groups)
        sizes = list(map(len, groups))
        for part in checked(parts, sizes, shapes=self._shapes, clip_norm=sent.clip_norm):
            total.add_clipped(part.values, part.clients, part.clipped, part.zeroed)
            loss += part.loss_sum
            examples += part.examples
            not_finite += part.not_finite
        self._canaries.add(total, canaries, sent)
        mean, means = self._means.release(means, total, self.noise.row(t))
        row = {
            "examples": examples,
            "train_loss": loss / examples if examples else 0.0,
            "not_finite": not_finite,
        }
        along_canaries: np.ndarray = np.zeros(0)
        if self.config.canaries:
            divisor = self._means.clients_per_round
            along_canaries = divisor * self._canaries.released(mean, sent)
        return Release(
            arrays=[mean, *nest.flatten(means)],
            row=row | self._means.metrics(means, total),
            canaries=along_canaries,
        )

    def step(self, state: FastState, release: Release) -> FastState:
        """See `Execution.step`."""
        mean, *leaves = release.arrays
        means = nest.unflatten(self._means_structure, leaves)
        update = [
            part.astype(w.dtype)
            for part, w in zip(in_shapes(mean, self._shapes), state.weights, strict=True)
        ]
        learning_rate = float(self._rates[int(means.next_round) - 1])
        optimizer_state, stepped = self._optimizer.step(
            state.optimizer, state.weights, update, learning_rate
        )
        weights = checked_step(self._optimizer, stepped, state.weights)
        return FastState(weights, optimizer_state, means)

    def before(self, state: FastState) -> list[np.ndarray]:
        """See `Execution.before`."""
        return [np.asarray(leaf) for leaf in nest.flatten((state.weights, state.optimizer))]

    def from_before(self, arrays: Sequence[np.ndarray]) -> FastState:
        """See `Execution.from_before`."""
        template = list(self._initial), self._optimizer.init(self._initial)
        weights, optimizer_state = packed_like(template, arrays)
        return FastState(weights, optimizer_state, None)

    def canary_evidence(self, state: FastState, releases: np.ndarray) -> dict[str, np.ndarray]:
        """See `Execution.canary_evidence`."""
        if not self.config.canaries:
            return {}
        start = self._canaries.projections(self._initial)
        end = self._canaries.projections(self.weights(state))
        return {
            "included": self._canaries.included,
            "releases": releases,
            "model": start - end,
        }

    def weights(self, state: FastState) -> list[np.ndarray]:
        """See `Execution.weights`."""
        return [np.asarray(w) for w in state.weights]
