"""How a round is executed: two pure state machines over the same task, plan, cohorts and examples.

fast  our loop in this process: client work in one tf.function, the mean by the same DPQuery as in TFF.
tff   TFF's stock build_unweighted_fed_avg with our aggregator, in TFF's own C++ runtime.
"""

import abc
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedmf.accounting import Plan
from fedmf.config import TrainConfig
from fedmf.federated.aggregator import dp_aggregator, mean_query
from fedmf.federated.host_noise import HostNoise
from fedmf.federated.server_optimizer import ScheduledSGDM
from fedmf.federated.task import Examples, Task
from fedmf.federated.workers import guard_workers, keep_freed_memory


class Execution(abc.ABC):
    """init / next over an opaque state; `leaves` and `from_leaves` carry it through a checkpoint bit for bit.

    The noise is made by the host and handed into the state; a round of any number may be asked for, but rounds in order are fast.
    """

    noise: HostNoise

    @abc.abstractmethod
    def init(self) -> Any:
        """State before round 0."""

    @abc.abstractmethod
    def next(self, state: Any, cohort: Sequence[Examples]) -> tuple[Any, dict[str, float]]:
        """One round on the cohort's examples, each (x, y) int32 (m, length).

        Returns:
          The new state and {"examples", "train_loss"} with the query's {"clip_fraction", "zeroed", "noise_stddev"}.
        """

    @abc.abstractmethod
    def weights(self, state: Any) -> list[np.ndarray]:
        """The global model's trainable weights."""

    def leaves(self, state: Any) -> list[np.ndarray]:
        """The state as numpy arrays in a fixed order, and after it what the noise goes on from."""
        return [np.asarray(leaf) for leaf in tf.nest.flatten(state)] + self.noise.snapshot()

    def from_leaves(self, leaves: Sequence[np.ndarray]) -> Any:
        """The inverse of `leaves`. Noise of another strategy is made anew, from the seed.

        Raises:
          ValueError: the leaves are not those of this execution.
        """
        template = self.init()
        count = len(tf.nest.flatten(template))
        leaves, noise = leaves[:count], leaves[count:]
        expected = [(np.shape(leaf), np.asarray(leaf).dtype) for leaf in tf.nest.flatten(template)]
        if expected != [(leaf.shape, leaf.dtype) for leaf in leaves]:
            raise ValueError(
                "the checkpoint's state does not fit this model and mechanism: resume with the version that wrote it"
            )
        self.noise.restore(noise)
        return tf.nest.pack_sequence_as(template, list(leaves))


def _optimizer(config: TrainConfig) -> ScheduledSGDM:
    return ScheduledSGDM(config.server_schedule().learning_rates(), momentum=config.server_momentum)


class FastExecution(Execution):
    """Client work in this process.

    Clients train one after another; the sum of their clipped updates is the only thing kept of them.
    """

    def __init__(self, task: Task, plan: Plan, config: TrainConfig, noise: HostNoise, noise_seed: int) -> None:
        self._task, self._config, self.noise = task, config, noise
        self._model = task.build_model(config.seed)
        self._variables = self._model.trainable_variables
        self._initial = [v.numpy() for v in self._variables]
        specs = [tf.TensorSpec(v.shape, v.dtype) for v in self._variables]
        self._query = mean_query(
            plan,
            specs,
            clients_per_round=config.cohort_size,
            noise_seed=noise_seed,
            zeroing_norm=config.zeroing_norm,
            noise_strategy="handed_in",
        )
        self._optimizer = _optimizer(config)
        self._specs = specs
        batches = tf.TensorSpec([None, task.batch_size, config.sequence_length], tf.int32)
        real = tf.TensorSpec([None, task.batch_size], tf.float32)
        total = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), self._query.initial_sample_state())
        self._client = tf.function(self._client_work, input_signature=[specs, total, batches, batches, real])
        self._server = tf.function(self._server_work)

    def init(self) -> Any:
        """Weights, optimiser state, query state."""
        weights = [tf.constant(w) for w in self._initial]
        return weights, self._optimizer.initialize(self._specs), self._query.initial_global_state()

    def next(self, state: Any, cohort: Sequence[Examples]) -> tuple[Any, dict[str, float]]:
        """See `Execution.next`."""
        weights, optimizer_state, query_state = self.noise.hand_in(state)
        total = self._query.initial_sample_state(self._specs)
        examples, loss = 0, 0.0
        for x, y in cohort:
            examples += len(x)
            xs, ys, real = _in_batches(x, y, self._task.batch_size)
            total, client_loss = self._client(weights, total, xs, ys, real)
            loss += float(client_loss)
        state = self._server(weights, optimizer_state, query_state, total)
        released = self._query.derive_metrics(state[2])
        return state, {"examples": examples, "train_loss": loss / examples if examples else 0.0} | _numbers(released)

    def _client_work(self, weights: Any, total: Any, xs: Any, ys: Any, real: Any) -> Any:
        """One local epoch of SGD; adds the clipped update to `total`. The loss is summed over examples before each step."""
        for variable, weight in zip(self._variables, weights, strict=True):
            variable.assign(weight)
        loss_sum = tf.constant(0.0)
        rate = tf.constant(self._config.client_learning_rate, tf.float32)
        for i in tf.range(tf.shape(xs)[0]):
            with tf.GradientTape() as tape:
                loss = self._task.loss(ys[i], self._model(xs[i], training=True), real[i])
            gradients = tape.gradient(loss, self._variables)
            for variable, gradient in zip(self._variables, gradients, strict=True):
                variable.assign_sub(rate * tf.convert_to_tensor(gradient))
            loss_sum += loss * tf.reduce_sum(real[i])
        # TFF's sign: the "gradient" the server descends is weights before minus weights after.
        update = [w - v for v, w in zip(self._variables, weights, strict=True)]
        params = self._query.derive_sample_params(self._query.initial_global_state())
        return self._query.accumulate_record(params, total, update), loss_sum

    def _server_work(self, weights: Any, optimizer_state: Any, query_state: Any, total: Any) -> Any:
        mean, query_state, _ = self._query.get_noised_result(total, query_state)
        optimizer_state, weights = self._optimizer.next(optimizer_state, weights, mean)
        return weights, optimizer_state, query_state

    def weights(self, state: Any) -> list[np.ndarray]:
        """See `Execution.weights`."""
        return [np.asarray(w) for w in state[0]]


def _numbers(released: Mapping[str, Any]) -> dict[str, float]:
    """The query's metrics but those that a row of metrics.jsonl has already."""
    return {
        "clip_fraction": float(released["clip_fraction"]),
        "zeroed": int(released["zeroed"]),
        "noise_stddev": float(released["noise_stddev"]),
    }


def _in_batches(x: np.ndarray, y: np.ndarray, batch_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Batches of equal shape: the last one is filled with zeros, and `real` (batches, batch_size) is 0 there."""
    count, length = x.shape
    batches = -(-count // batch_size)
    fill = ((0, batches * batch_size - count), (0, 0))
    shape = (batches, batch_size, length)
    real = (np.arange(batches * batch_size) < count).astype(np.float32).reshape(batches, batch_size)
    return np.pad(x, fill).reshape(shape), np.pad(y, fill).reshape(shape), real


class TffExecution(Execution):
    """TFF's own federated averaging; the worker process it starts is stopped with this one, however this one ends."""

    def __init__(self, task: Task, plan: Plan, config: TrainConfig, noise: HostNoise, noise_seed: int) -> None:
        keep_freed_memory()
        self._task, self._config, self.noise = task, config, noise
        self._initial = [v.numpy() for v in task.build_model(config.seed).trainable_variables]
        aggregator = dp_aggregator(
            plan,
            clients_per_round=config.cohort_size,
            noise_seed=noise_seed,
            zeroing_norm=config.zeroing_norm,
            noise_strategy="handed_in",
        )
        self._process = tff.learning.algorithms.build_unweighted_fed_avg(
            model_fn=lambda: tff_model(task, config.seed, config.sequence_length),
            client_optimizer_fn=tff.learning.optimizers.build_sgdm(config.client_learning_rate),
            server_optimizer_fn=_optimizer(config),
            model_aggregator=aggregator,
        )
        self._state: Any = None

    def init(self) -> Any:
        """TFF's state with our initial weights, the same as the fast path's."""
        if self._state is None:
            state = self._process.initialize()
            guard_workers()
            model = tff.learning.models.ModelWeights(trainable=self._initial, non_trainable=[])
            self._state = self._process.set_model_weights(state, model)
        return self._state

    def next(self, state: Any, cohort: Sequence[Examples]) -> tuple[Any, dict[str, float]]:
        """See `Execution.next`."""
        data = [tf.data.Dataset.from_tensor_slices(examples).batch(self._task.batch_size) for examples in cohort]
        output = self._process.next(self.noise.hand_in(state), data)
        train = output.metrics["client_work"]["train"]
        examples = int(train["num_examples"])
        released = output.metrics["aggregator"]["dp_query_metrics"]
        row = {"examples": examples, "train_loss": float(train["loss"]) if examples else 0.0}
        return output.state, row | _numbers(released)

    def weights(self, state: Any) -> list[np.ndarray]:
        """See `Execution.weights`."""
        return [np.asarray(w) for w in self._process.get_model_weights(state).trainable]


def tff_model(task: Task, seed: int, sequence_length: int) -> tff.learning.models.VariableModel:
    """The task's model and loss as TFF wants them."""

    class TaskLoss(tf.keras.losses.Loss):
        def __init__(self) -> None:
            super().__init__(reduction=tf.keras.losses.Reduction.NONE)

        def call(self, y_true: Any, y_pred: Any) -> Any:
            return task.loss(y_true, y_pred, tf.ones([tf.shape(y_true)[0]], tf.float32))

    spec = tf.TensorSpec([None, sequence_length], tf.int32)
    return tff.learning.models.from_keras_model(task.build_model(seed), loss=TaskLoss(), input_spec=(spec, spec))


def parameters(task: Task, config: TrainConfig) -> int:
    """The number of trainable parameters of the task's model."""
    return sum(int(np.prod(v.shape)) for v in task.build_model(config.seed).trainable_variables)


def build_execution(
    task: Task,
    plan: Plan,
    config: TrainConfig,
    noise_seed: int,
    *,
    noise_strategy: str | None = None,
    noise_memory: int | None = None,
    noise_folder: str | pathlib.Path | None = None,
) -> Execution:
    """The execution that `config.execution` names, with noise made as `HostNoise` explains its strategy, memory_bytes and folder."""
    noise = HostNoise(
        plan,
        parameters(task, config),
        noise_seed=noise_seed,
        strategy=noise_strategy,
        memory_bytes=noise_memory,
        folder=noise_folder,
    )
    kind = {"fast": FastExecution, "tff": TffExecution}[config.execution]
    return kind(task, plan, config, noise, noise_seed)
