"""Rounds in TFF: its stock build_unweighted_fed_avg with our aggregator, in TFF's C++ worker."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.federated.aggregation.aggregator import dp_aggregator
from fedmf.federated.examples import Epochs
from fedmf.federated.execution.base import Execution, query_metrics
from fedmf.federated.execution.tff_worker import TffWorker
from fedmf.federated.noise.host import HostNoise
from fedmf.federated.task import Task, mean_loss
from fedmf.federated.tff import tff
from fedmf.federated.training.optimizers import client_optimizer, server_optimizer
from fedmf.privacy.plan import Plan
from fedmf.runs.config import TrainConfig


class TffExecution(Execution):
    """TFF's own federated averaging on a worker.

    Args:
      task, plan, config: of the run.
      noise: made with the same plan and noise_seed.
      noise_seed: non-negative int.
      worker: the caller closes it.
    """

    def __init__(
        self, task: Task, plan: Plan, config: TrainConfig, noise: HostNoise, noise_seed: int, worker: TffWorker
    ) -> None:
        self._task, self.noise, self._worker = task, noise, worker
        self._initial = [v.numpy() for v in task.build_model(config.seed).trainable_variables]
        aggregator = dp_aggregator(
            plan,
            clients_per_round=config.cohort_size,
            noise_seed=noise_seed,
            zeroing_norm=config.zeroing_norm,
            noise_strategy="precomputed",
        )
        self._process = tff.learning.algorithms.build_unweighted_fed_avg(
            model_fn=functools.partial(tff_model, task, config.seed, task.spec),
            client_optimizer_fn=client_optimizer(config),
            server_optimizer_fn=server_optimizer(config),
            model_aggregator=aggregator,
        )
        self._state: Any = None

    def init(self) -> Any:
        """TFF's state with our initial weights, the same as the fast path's."""
        if self._state is None:
            model = tff.learning.models.ModelWeights(trainable=self._initial, non_trainable=[])
            self._state = self._worker.run(lambda: self._process.set_model_weights(self._process.initialize(), model))
        return self._state

    def next(self, state: Any, cohort: Sequence[Epochs], canaries: Sequence[int] = ()) -> tuple[Any, dict[str, float]]:
        """See `Execution.next`. There are no canaries: TFF does not hand out what it releases."""
        state, data = self.noise.hand_in(state), [self._dataset(epochs) for epochs in cohort]
        output = self._worker.run(lambda: self._process.next(state, data))
        train = output.metrics["client_work"]["train"]
        examples = int(train["num_examples"])
        row = {"examples": examples, "train_loss": float(train["loss"]) if examples else 0.0}
        return output.state, row | query_metrics(output.metrics["aggregator"]["dp_query_metrics"])

    def _dataset(self, epochs: Epochs) -> tf.data.Dataset:
        batches = (tf.data.Dataset.from_tensor_slices(epoch).batch(self._task.batch_size) for epoch in epochs)
        return functools.reduce(tf.data.Dataset.concatenate, batches)

    def weights(self, state: Any) -> list[np.ndarray]:
        """See `Execution.weights`."""
        weights = self._worker.run(lambda: self._process.get_model_weights(state))
        return [np.asarray(w) for w in weights.trainable]


def tff_model(task: Task, seed: int, spec: Any) -> tff.learning.models.VariableModel:
    """The task's model and loss as a TFF model; `spec` is the task's, which cannot be read while TFF traces."""
    loss = mean_loss(task)

    class TaskLoss(tf.keras.losses.Loss):
        def __init__(self) -> None:
            super().__init__(reduction=tf.keras.losses.Reduction.NONE)

        def call(self, y_true: Any, y_pred: Any) -> Any:
            return loss(y_true, y_pred, tf.ones(tf.shape(tf.nest.flatten(y_true)[0])[:1], tf.float32))

    return tff.learning.models.from_keras_model(task.build_model(seed), loss=TaskLoss(), input_spec=spec)
