"""The rounds of a run as TFF's federated averaging with `dp_aggregator`."""

import collections
import functools
import math
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
import tensorflow as tf

from fedmf.federated.loss import BatchLoss, batch_loss, minimised, outputs_and_losses
from fedmf.federated.model_functions import ModelFunctions, tensor_specs
from fedmf.federated.tff import tff
from fedmf.federated.tff.aggregator import dp_aggregator
from fedmf.federated.tff.optimizers import tff_client_optimizer, tff_server_optimizer
from fedmf.federated.tff.worker import TffWorker
from fedmf.server.host_noise import replace_noise
from fedmf.training.examples import ClientData
from fedmf.training.execution.base import Execution, Release, packed_like


class TffExecution(Execution):
    """Execution of a run's rounds by TFF's build_unweighted_fed_avg.

    TFF computes in a C++ worker, a process that ends with the run.
    """

    errors = (grpc.RpcError,)

    def __post_init__(self) -> None:
        config = self.config
        self._worker = TffWorker(self.options.threads)
        self._started.callback(self._worker.close)
        aggregator = dp_aggregator(
            self.plan,
            clients_per_round=config.cohort_size,
            noise_seed=self.noise_seed,
            zeroing_norm=config.zeroing_norm,
            noise_strategy="precomputed",
        ).with_scaling(config.scaling())
        self._process = tff.learning.algorithms.build_unweighted_fed_avg(
            model_fn=functools.partial(
                tff_model, self._model_functions(), config.seed, tensor_specs(self.task.spec)
            ),
            client_optimizer_fn=tff_client_optimizer(config),
            server_optimizer_fn=tff_server_optimizer(config),
            model_aggregator=aggregator,
        )
        self._state: Any = None

    def _model_functions(self) -> ModelFunctions:
        """Returns the task's learner as `ModelFunctions`, or raises TypeError if it does not use
        TensorFlow.
        """
        learner = self.task.learner
        if not isinstance(learner, ModelFunctions):
            raise TypeError(
                f"execution=tff trains models of Keras and TFF, and task {self.task.name!r} has a "
                f"{type(learner).__name__}: use execution='fast'"
            )
        return learner

    def explain(self) -> str:
        """Returns a sentence on how clients are trained."""
        return "TFF's own federated averaging trains them: execution is tff"

    def init(self) -> Any:
        """Returns TFF's state before round 0, with the same initial weights as other executions."""
        if self._state is None:
            initial_weights = self.task.initial_weights(self.config.seed)
            initial_model_weights = tff.learning.models.ModelWeights(
                trainable=initial_weights, non_trainable=[]
            )
            self._state = self._worker.run(
                lambda: self._process.set_model_weights(
                    self._process.initialize(), initial_model_weights
                )
            )
        return self._state

    def collect_release(
        self, state: Any, cohort: Sequence[ClientData], canaries: Sequence[int] = ()
    ) -> Release:
        """Runs a round in TFF, and returns its release.

        Its arrays are the leaves of TFF's state after the round, without the key and the rows of
        the noise. Canaries are not supported, because TFF does not return the released sums.
        """
        state = self.noise.hand_in(state)
        datasets = [self._dataset(client) for client in cohort]
        round_output = self._worker.run(lambda: self._process.next(state, datasets))
        state_leaves = zip(tf.nest.flatten(round_output.state), self._is_released, strict=True)
        released_arrays = [np.asarray(leaf) for leaf, is_released in state_leaves if is_released]
        num_not_finite = sum(not client.epochs for client in cohort)
        round_statistics = _statistics(round_output.metrics, num_not_finite)
        return Release(arrays=released_arrays, statistics=round_statistics, canaries=np.zeros(0))

    def step(self, state: Any, release: Release) -> Any:
        """Returns TFF's state after the server's step, which TFF took within the round.

        The state consists of the release, and of the noise's key and rows from the initial state.
        """
        state_template = self.init()
        released_arrays = iter(release.arrays)
        leaf_pairs = zip(tf.nest.flatten(state_template), self._is_released, strict=True)
        state_leaves = [
            next(released_arrays) if is_released else leaf for leaf, is_released in leaf_pairs
        ]
        return tf.nest.pack_sequence_as(state_template, state_leaves)

    def before(self, state: Any) -> list[np.ndarray]:
        """Returns the weights before a step.

        Only the metrics of a round need them. The step itself does not, because a release of TFF is
        a complete state.
        """
        return self.weights(state)

    def from_before(self, arrays: Sequence[np.ndarray]) -> Any:
        """Restores a state from the weights before a step, for the metrics of the round."""
        state_template = self.init()
        weights = packed_like(self.weights(state_template), arrays)
        model_weights = tff.learning.models.ModelWeights(trainable=weights, non_trainable=[])
        return self._worker.run(
            lambda: self._process.set_model_weights(state_template, model_weights)
        )

    @functools.cached_property
    def _is_released(self) -> list[bool]:
        """Whether each leaf of TFF's state is part of a release.

        All leaves are, except the noise's key and rows.
        """
        secret_marker = object()
        marked_state = replace_noise(
            self.init(),
            lambda noise_state: noise_state._replace(key=secret_marker, rows=secret_marker),
        )
        return [leaf is not secret_marker for leaf in tf.nest.flatten(marked_state)]

    def _dataset(self, client: ClientData) -> tf.data.Dataset:
        """Returns the batches of a client as a dataset, which is empty if its examples are not
        finite.
        """
        no_examples = tf.nest.map_structure(
            lambda spec: tf.zeros([0, *spec.shape[1:]], spec.dtype), tensor_specs(self.task.spec)
        )
        epoch_datasets = []
        for epoch in client.epochs or [no_examples]:
            epoch_leaves = tuple(tf.nest.flatten(epoch))
            epoch_examples = tf.data.Dataset.from_tensor_slices(epoch_leaves)
            epoch_datasets.append(epoch_examples.batch(self.task.batch_size))
        return functools.reduce(tf.data.Dataset.concatenate, epoch_datasets)

    def weights(self, state: Any) -> list[np.ndarray]:
        """Returns the trainable weights of the global model in TFF's state."""
        weights = self._worker.run(lambda: self._process.get_model_weights(state))
        return [np.asarray(weight) for weight in weights.trainable]


# The statistics of a round contain these metrics of the query, if the query computes them.
_QUERY_METRICS = ("scale_drift", "clip_norm", "clip_fraction", "zeroed", "noise_stddev")


def _statistics(metrics: Any, num_not_finite: int) -> dict[str, float]:
    """Converts TFF's metrics of a round to the statistics of a `Release`.

    Args:
      metrics: of a LearningProcessOutput.
      num_not_finite: number of clients whose examples are not finite.
    """
    train_metrics = metrics["client_work"]["train"]
    num_examples = int(train_metrics["num_examples"])
    round_statistics = {
        "examples": num_examples,
        "train_loss": float(train_metrics["loss"]) if num_examples else math.nan,
        "not_finite": num_not_finite,
    }
    query_metrics = metrics["aggregator"]["dp_query_metrics"]
    for name in _QUERY_METRICS:
        if name in query_metrics:
            round_statistics[name] = float(query_metrics[name])
    # Clients whose examples or updates are not finite send zeros to the query, which does not
    # count them as zeroed.
    round_statistics["zeroed"] += num_not_finite + int(train_metrics["zeroed"])
    return round_statistics


def tff_model(functions: ModelFunctions, seed: int, spec: Any) -> tff.learning.models.VariableModel:
    """Builds the task's model, and returns it with the loss as a TFF VariableModel.

    Args:
      functions: the task's functions.
      seed: seed of the initial weights.
      spec: the task's tensor specs, which cannot be read while TFF traces.
    """
    return _TrainedModel(functions.build_model(seed), batch_loss(functions), spec)


class _TrainedModel(tff.learning.models.VariableModel):
    """A TFF VariableModel made of a task's model and loss.

    The metrics are the loss, the number of examples, and whether TFF zeroed the client's update.

    A batch is the tuple of the leaves of inputs and labels, because TFF's structures are ordered
    and the keys of a dict are not.
    """

    def __init__(self, model: Any, loss: BatchLoss, spec: Any) -> None:
        self._model = model
        self._loss = loss
        self._spec = spec
        self._loss_sum = tf.Variable(0.0, trainable=False)
        self._num_examples = tf.Variable(0, trainable=False)
        self._zeroed = tf.Variable(0, trainable=False)

    @property
    def trainable_variables(self) -> Any:
        return self._model.trainable_variables

    @property
    def non_trainable_variables(self) -> Any:
        return self._model.non_trainable_variables

    @property
    def local_variables(self) -> Any:
        return [
            self._loss_sum,
            self._num_examples,
            self._zeroed,
            *getattr(self._model, "local_variables", ()),
        ]

    @property
    def input_spec(self) -> Any:
        return tuple(tf.nest.flatten(self._spec))

    @tf.function
    def forward_pass(self, batch_input: Any, training: bool = True) -> Any:
        x, y = tf.nest.pack_sequence_as(self._spec, batch_input)
        outputs, model_losses = outputs_and_losses(self._model, x)
        batch_loss = self._loss(y, outputs)
        num_examples = tf.shape(batch_input[0])[0]
        self._loss_sum.assign_add(batch_loss * tf.cast(num_examples, tf.float32))
        self._num_examples.assign_add(num_examples)
        total_loss = minimised(batch_loss, model_losses)
        return tff.learning.models.BatchOutput(total_loss, (), num_examples)

    def predict_on_batch(self, batch_input: Any, training: bool = True) -> Any:
        return self._model(batch_input, training=training)

    @tf.function
    def report_local_unfinalized_metrics(self) -> Any:
        num_examples = self._num_examples.read_value()
        loss_ratio = [self._loss_sum.read_value(), tf.cast(num_examples, tf.float32)]
        return collections.OrderedDict(
            loss=loss_ratio, num_examples=num_examples, zeroed=self._zeroed.read_value()
        )

    def metric_finalizers(self) -> Any:
        divide = tf.function(lambda ratio: ratio[0] / ratio[1])
        identity = tf.function(lambda number: number)
        return collections.OrderedDict(loss=divide, num_examples=identity, zeroed=identity)

    @tf.function
    def reset_metrics(self) -> None:
        # TFF calls this method if a client's update is not finite. The loss is not reset, because
        # it shows that the model has diverged.
        self._zeroed.assign(1)
