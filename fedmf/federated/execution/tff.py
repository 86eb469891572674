"""Rounds in TFF: its stock build_unweighted_fed_avg with our aggregator, in its own C++ runtime."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from fedmf.federated.aggregation.aggregator import dp_aggregator
from fedmf.federated.execution.base import Execution, released_numbers, server_optimizer
from fedmf.federated.execution.workers import guard_workers, keep_freed_memory
from fedmf.federated.noise.host import HostNoise
from fedmf.federated.task import Examples, Task
from fedmf.federated.tff import tff
from fedmf.privacy.plan import Plan
from fedmf.runs.config import TrainConfig

T = TypeVar("T")


class TffExecution(Execution):
    """TFF's own federated averaging; the worker processes it starts are stopped with this one, however this one ends.

    Args:
      task, plan, config: of the run.
      noise: made with the same plan and noise_seed.
      noise_seed: non-negative int.
      threads: clients that train side by side, in a worker process of this execution's own; None for TFF's default context, without a
        limit. What TensorFlow does within a client is limited by `limited_threads` around `init`.
    """

    def __init__(
        self,
        task: Task,
        plan: Plan,
        config: TrainConfig,
        noise: HostNoise,
        noise_seed: int,
        *,
        threads: int | None = None,
    ) -> None:
        keep_freed_memory()
        guard_workers()
        self._task, self._config, self.noise = task, config, noise
        self._initial = [v.numpy() for v in task.build_model(config.seed).trainable_variables]
        aggregator = dp_aggregator(
            plan,
            clients_per_round=config.cohort_size,
            noise_seed=noise_seed,
            zeroing_norm=config.zeroing_norm,
            noise_strategy="precomputed",
        )
        self._process = tff.learning.algorithms.build_unweighted_fed_avg(
            model_fn=lambda: tff_model(task, config.seed, config.sequence_length),
            client_optimizer_fn=tff.learning.optimizers.build_sgdm(config.client_learning_rate),
            server_optimizer_fn=server_optimizer(config),
            model_aggregator=aggregator,
        )
        self._state: Any = None
        self._context: Any = None
        if threads is not None:
            self._context = tff.backends.native.create_sync_local_cpp_execution_context(
                max_concurrent_computation_calls=threads
            )

    def _run(self, job: Callable[[], T]) -> T:
        """The job's value; its TFF computations run where this execution runs them. TFF's contexts are each thread's own."""
        stack = tff.framework.get_context_stack()
        with contextlib.nullcontext() if self._context is None else stack.install(self._context):
            return job()

    def _round(self, state: Any, data: list[Any]) -> Any:
        return self._run(lambda: self._process.next(state, data))

    def init(self) -> Any:
        """TFF's state with our initial weights, the same as the fast path's."""
        if self._state is None:
            model = tff.learning.models.ModelWeights(trainable=self._initial, non_trainable=[])
            self._state = self._run(lambda: self._process.set_model_weights(self._process.initialize(), model))
        return self._state

    def next(self, state: Any, cohort: Sequence[Examples]) -> tuple[Any, dict[str, float]]:
        """See `Execution.next`."""
        data = [tf.data.Dataset.from_tensor_slices(examples).batch(self._task.batch_size) for examples in cohort]
        output = self._round(self.noise.hand_in(state), data)
        train = output.metrics["client_work"]["train"]
        examples = int(train["num_examples"])
        released = output.metrics["aggregator"]["dp_query_metrics"]
        row = {"examples": examples, "train_loss": float(train["loss"]) if examples else 0.0}
        return output.state, row | released_numbers(released)

    def weights(self, state: Any) -> list[np.ndarray]:
        """See `Execution.weights`."""
        return [np.asarray(w) for w in self._run(lambda: self._process.get_model_weights(state)).trainable]


def tff_model(task: Task, seed: int, sequence_length: int) -> tff.learning.models.VariableModel:
    """The task's model and loss as TFF wants them."""

    class TaskLoss(tf.keras.losses.Loss):
        def __init__(self) -> None:
            super().__init__(reduction=tf.keras.losses.Reduction.NONE)

        def call(self, y_true: Any, y_pred: Any) -> Any:
            return task.loss(y_true, y_pred, tf.ones([tf.shape(y_true)[0]], tf.float32))

    spec = tf.TensorSpec([None, sequence_length], tf.int32)
    return tff.learning.models.from_keras_model(task.build_model(seed), loss=TaskLoss(), input_spec=(spec, spec))
