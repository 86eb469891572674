"""Rounds in this process: client work outside TFF's executor, the mean by the same DPQuery as in TFF."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf import checks
from fedmf.federated.aggregation.aggregator import mean_query
from fedmf.federated.execution.base import Execution, released_numbers, server_optimizer
from fedmf.federated.execution.c_library import COMPILER_VARIABLE
from fedmf.federated.execution.client_work import AutodiffClients, ClientWork, CompiledClients
from fedmf.federated.noise.host import HostNoise
from fedmf.federated.task import Examples, Task
from fedmf.privacy.plan import Plan
from fedmf.runs.config import TrainConfig

CLIENT_WORK = ("hand_written", "differentiated")


class FastExecution(Execution):
    """The sum of the clients' clipped updates is the only thing kept of them.

    Args:
      task, plan, config: of the run.
      noise: made with the same plan and noise_seed.
      noise_seed: non-negative int.
      client_work: "hand_written" takes the task's `local_epoch`; "differentiated" its Keras model; None the former where there is one.
        Both train alike to float32 rounding, and each repeats itself bit for bit.
      threads: clients that train side by side, where they are hand-written; None for one on each processor. It changes no bit.

    Raises:
      TypeError, ValueError: another client_work or threads, or "hand_written" without such an epoch here.
    """

    def __init__(
        self,
        task: Task,
        plan: Plan,
        config: TrainConfig,
        noise: HostNoise,
        noise_seed: int,
        *,
        client_work: str | None = None,
        threads: int | None = None,
    ) -> None:
        if threads is not None:
            checks.integer("threads", threads, low=1, hint="use None for one on each processor")
        epoch = None if task.local_epoch is None or client_work == "differentiated" else task.local_epoch()
        if client_work == "hand_written" and epoch is None:
            raise ValueError(
                f"client_work='hand_written': task {task.name!r} has no local_epoch that runs here (it may need a C compiler): "
                "use client_work='differentiated'"
            )
        if client_work not in (None, *CLIENT_WORK):
            raise ValueError(f"client_work={client_work!r} must be one of {', '.join(CLIENT_WORK)}, or None")
        self.noise = noise
        self.client_work = "differentiated" if epoch is None else "hand_written"
        if client_work is None and epoch is None and task.local_epoch is not None:
            self.slow = (
                f"the compiled epoch of {task.name} does not run here, so its Keras model trains, about half as fast: install a C "
                f"compiler, or name one in {COMPILER_VARIABLE}"
            )
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
            self._clients = AutodiffClients(task, config, self._query, self._specs)
        else:
            self._clients = CompiledClients(epoch, config, self._query, self._specs, threads=threads)
        self._optimizer = server_optimizer(config)
        self._server = tf.function(self._server_work)

    def init(self) -> Any:
        """Weights, optimiser state, query state."""
        weights = [tf.constant(w) for w in self._initial]
        return weights, self._optimizer.initialize(self._specs), self._query.initial_global_state()

    def next(self, state: Any, cohort: Sequence[Examples]) -> tuple[Any, dict[str, float]]:
        """See `Execution.next`."""
        weights, optimizer_state, query_state = self.noise.hand_in(state)
        total, loss = self._clients.add(weights, self._query.initial_sample_state(self._specs), cohort)
        examples = sum(len(x) for x, _ in cohort)
        state = self._server(weights, optimizer_state, query_state, total)
        released = self._query.derive_metrics(state[2])
        row = {"examples": examples, "train_loss": loss / examples if examples else 0.0}
        return state, row | released_numbers(released)

    def _server_work(self, weights: Any, optimizer_state: Any, query_state: Any, total: Any) -> Any:
        mean, query_state, _ = self._query.get_noised_result(total, query_state)
        optimizer_state, weights = self._optimizer.next(optimizer_state, weights, mean)
        return weights, optimizer_state, query_state

    def weights(self, state: Any) -> list[np.ndarray]:
        """See `Execution.weights`."""
        return [np.asarray(w) for w in state[0]]
