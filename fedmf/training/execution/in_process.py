"""An execution in which the task's learner trains clients, here or on a cluster. Sums, noise and
the server's step are computed in numpy.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from fedmf import nest
from fedmf.server.means import MeansState, NoisyMeans, check_zeroing_norm, in_shapes
from fedmf.server.optimizers import checked_initial_state, checked_step
from fedmf.training.client_data import ClientRound
from fedmf.training.client_work import Broadcast, ClientWork, sums_of_copies
from fedmf.training.examples import ClientData
from fedmf.training.execution.base import Execution, Release, packed_like
from fedmf.training.execution.canaries import Canaries
from fedmf.training.execution.cluster import connected
from fedmf.training.execution.cluster_work import ClusterClients, WorkerSetup
from fedmf.training.execution.groups import check_group_sums, group_size, in_groups
from fedmf.training.learner import Machine


class FastState(NamedTuple):
    """The state of a run between two rounds.

    Attributes:
      weights: trainable weights of the model.
      optimizer: state of the server optimizer, a nest of arrays.
      means: state of the noisy means; None in a state of `from_before`.
    """

    weights: list[np.ndarray]
    optimizer: Any
    means: MeansState | None


class FastExecution(Execution):
    """An execution of rounds with the task's learner and numpy.

    It connects to the cluster of its options when it is entered. The clients' updates and their sum
    are bitwise identical for any number of threads and workers. Of the clients it stores only the
    sum of their clipped updates.
    """

    def __post_init__(self) -> None:
        task = self.task
        config = self.config
        self._initial_weights = task.initial_weights(config.seed)
        self._shapes = [weight.shape for weight in self._initial_weights]
        settings = task.client_settings(config)
        self.work_kind = task.learner.work_kind(settings)
        self._settings = dataclasses.replace(settings, work_kind=self.work_kind)
        self.slowness_warning = task.learner.slowness_warning(self._settings)
        self._client_work: ClientWork
        if self.options.cluster is None:
            machine_settings = Machine(threads=self.options.threads, device=self.options.device)
            self._client_work = task.learner.client_work(self._settings, machine_settings)
        self._group_size = group_size(config.cohort_size, task.batch_size, self.num_parameters)
        self._means = NoisyMeans(
            plan=self.plan,
            size=self.num_parameters,
            clients_per_round=config.cohort_size,
            zeroing_norm=check_zeroing_norm(config.zeroing_norm),
            scaling=config.scaling(),
        )
        self._means_structure = nest.map_leaves(lambda leaf: None, self._means.initial())
        self._optimizer = self.options.server_optimizer or config.server_steps()
        self._learning_rates = config.server_schedule().learning_rates()
        self._canaries = Canaries(config.canaries, self.plan, self.num_parameters, self.noise_seed)

    def __enter__(self) -> Self:
        if self.options.cluster is not None:
            connection = connected(self.options.cluster, self.options.threads)
            cluster = self._started.enter_context(connection)
            worker_setup = WorkerSetup(
                learner=self.task.learner.on_workers(),
                settings=self._settings,
                config=self.config,
                data_version=self.task.data_version,
                make_task=self.options.worker_task,
            )
            self._client_work = ClusterClients(cluster, worker_setup)
        return self

    def client(self, t: int, client: int) -> ClientData | ClientRound:
        """Returns the training data of a client in round t. They contain no examples if workers
        read these with their own task.
        """
        if self.options.cluster is not None and self.options.worker_task is not None:
            return ClientRound(t, client)
        return super().client(t, client)

    def explain(self) -> str:
        """Returns a sentence that says how clients are trained. A cluster must be connected."""
        return self._client_work.explain()

    def init(self) -> FastState:
        """Returns the state before round 0."""
        return FastState(
            weights=list(self._initial_weights),
            optimizer=checked_initial_state(self._optimizer, self._initial_weights),
            means=self._means.initial(),
        )

    def collect_release(
        self, state: FastState, cohort: Sequence[Any], canaries: Sequence[int] = ()
    ) -> Release:
        """Trains the cohort and returns the release of the next round. Its first array is the noisy
        mean, and the other arrays are the state of the means after the round.
        """
        means_state = state.means
        assert means_state is not None, "a state of `from_before` is for `step` only"
        t = int(means_state.next_round)
        client_params = self._means.client_params(means_state)
        scales = in_shapes(client_params.scales, self._shapes) if len(client_params.scales) else ()
        broadcast = Broadcast(state.weights, client_params._replace(scales=scales))
        num_group_clients = self._group_size
        if self._client_work.has_one_group:
            num_group_clients = max(1, len(cohort))
        client_groups = list(in_groups(cohort, num_group_clients))
        group_sums = check_group_sums(
            sums_of_copies(self._client_work, broadcast, client_groups),
            [len(group) for group in client_groups],
            shapes=self._shapes,
            clip_norm=client_params.clip_norm,
        )
        update_sum = self._means.empty_sum()
        loss_sum = 0.0
        num_examples = 0
        num_not_finite = 0
        for group_sum in group_sums:
            update_sum.add_clipped(
                group_sum.values, group_sum.clients, group_sum.clipped, group_sum.zeroed
            )
            loss_sum += group_sum.loss_sum
            num_examples += group_sum.examples
            num_not_finite += group_sum.not_finite
        self._canaries.add(update_sum, canaries, client_params)
        noisy_mean, means_state = self._means.release(means_state, update_sum, self.noise.row(t))
        round_statistics = {
            "examples": num_examples,
            "train_loss": loss_sum / num_examples if num_examples else math.nan,
            "not_finite": num_not_finite,
        }
        canary_products: np.ndarray = np.zeros(0)
        if self.config.canaries:
            clients_per_round = self._means.clients_per_round
            canary_products = clients_per_round * self._canaries.released(noisy_mean, client_params)
        return Release(
            arrays=[noisy_mean, *nest.flatten(means_state)],
            statistics=round_statistics | self._means.metrics(means_state, update_sum),
            canaries=canary_products,
        )

    def step(self, state: FastState, release: Release) -> FastState:
        """Returns the state after the server optimizer's step along the released mean."""
        noisy_mean, *leaves = release.arrays
        means_state = nest.unflatten(self._means_structure, leaves)
        mean_arrays = in_shapes(noisy_mean, self._shapes)
        typed_update = [
            array.astype(weight.dtype)
            for array, weight in zip(mean_arrays, state.weights, strict=True)
        ]
        learning_rate = float(self._learning_rates[int(means_state.next_round) - 1])
        optimizer_state, weights = checked_step(
            self._optimizer, state.optimizer, state.weights, typed_update, learning_rate
        )
        return FastState(weights, optimizer_state, means_state)

    def before(self, state: FastState) -> list[np.ndarray]:
        """Returns the arrays that `step` reads from a state, those of the weights and the optimizer
        state.
        """
        return [np.asarray(leaf) for leaf in nest.flatten((state.weights, state.optimizer))]

    def from_before(self, arrays: Sequence[np.ndarray]) -> FastState:
        """Returns the state from which `step` repeats a committed round. The arrays are those that
        `before` returned in that round.
        """
        optimizer_template = checked_initial_state(self._optimizer, self._initial_weights)
        arrays_template = (list(self._initial_weights), optimizer_template)
        weights, optimizer_state = packed_like(arrays_template, arrays)
        return FastState(weights, optimizer_state, means=None)

    def canary_evidence(self, state: FastState, releases: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the evidence by which the run's canaries are audited."""
        if not self.config.canaries:
            return {}
        initial_products = self._canaries.projections(self._initial_weights)
        final_products = self._canaries.projections(self.weights(state))
        return {
            "included": self._canaries.included,
            "releases": releases,
            "model": initial_products - final_products,
        }

    def weights(self, state: FastState) -> list[np.ndarray]:
        """Returns the trainable weights of the model in a state."""
        return [np.asarray(weight) for weight in state.weights]
