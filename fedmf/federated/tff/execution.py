"""Rounds in TFF: its build_unweighted_fed_avg with `dp_aggregator`, in TFF's C++ worker."""

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
from fedmf.server.rows import replace_noise
from fedmf.training.examples import ClientData
from fedmf.training.execution.base import Execution, Release, packed_like


class TffExecution(Execution):
    """An execution of rounds by TFF's federated averaging, on a worker process of the run."""

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
        """Returns the task's learner, which must be of TensorFlow."""
        learner = self.task.learner
        if not isinstance(learner, ModelFunctions):
            raise TypeError(
                f"execution=tff trains models of Keras and TFF, and task {self.task.name!r} has a "
                f"{type(learner).__name__}: use execution='fast'"
            )
        return learner

    def explain(self) -> str:
        """See `Execution.explain`."""
        return "TFF's own federated averaging trains them: execution is tff"

    def init(self) -> Any:
        """Returns TFF's state with the task's initial weights, as in the fast execution."""
        if self._state is None:
            initial = self.task.initial_weights(self.config.seed)
            model = tff.learning.models.ModelWeights(trainable=initial, non_trainable=[])
            self._state = self._worker.run(
                lambda: self._process.set_model_weights(self._process.initialize(), model)
            )
        return self._state

    def collect_release(
        self, state: Any, cohort: Sequence[ClientData], canaries: Sequence[int] = ()
    ) -> Release:
        """See `Execution.collect_release`. There are no canaries: TFF does not return its releases.

        The arrays are the leaves of TFF's state after the round, without the noise's key and rows.
        """
        state = self.noise.hand_in(state)
        datasets = [self._dataset(client) for client in cohort]
        output = self._worker.run(lambda: self._process.next(state, datasets))
        leaves = zip(tf.nest.flatten(output.state), self._is_released, strict=True)
        arrays = [np.asarray(leaf) for leaf, is_released in leaves if is_released]
        num_not_finite = sum(not client.epochs for client in cohort)
        row = _metrics_row(output.metrics, num_not_finite)
        return Release(arrays=arrays, row=row, canaries=np.zeros(0))

    def step(self, state: Any, release: Release) -> Any:
        """See `Execution.step`. TFF took the step already: the result is its state after it.

        The noise's key in it follows from the seed, and there is no row of noise.
        """
        template = self.init()
        arrays = iter(release.arrays)
        pairs = zip(tf.nest.flatten(template), self._is_released, strict=True)
        leaves = [next(arrays) if is_released else leaf for leaf, is_released in pairs]
        return tf.nest.pack_sequence_as(template, leaves)

    def before(self, state: Any) -> list[np.ndarray]:
        """See `Execution.before`. Only the metrics of a round need these weights, and the step
        does not: a release of TFF is a complete state.
        """
        return self.weights(state)

    def from_before(self, arrays: Sequence[np.ndarray]) -> Any:
        """See `Execution.from_before`."""
        template = self.init()
        weights = packed_like(self.weights(template), arrays)
        model = tff.learning.models.ModelWeights(trainable=weights, non_trainable=[])
        return self._worker.run(lambda: self._process.set_model_weights(template, model))

    @functools.cached_property
    def _is_released(self) -> list[bool]:
        """Whether a leaf of TFF's state is part of a release: all but the noise's key and rows."""
        secret = object()
        state = replace_noise(
            self.init(), lambda noise_state: noise_state._replace(key=secret, rows=secret)
        )
        return [leaf is not secret for leaf in tf.nest.flatten(state)]

    def _dataset(self, client: ClientData) -> tf.data.Dataset:
        """Returns the batches of a client; none where its examples are not finite."""
        no_examples = tf.nest.map_structure(
            lambda spec: tf.zeros([0, *spec.shape[1:]], spec.dtype), tensor_specs(self.task.spec)
        )
        datasets = []
        for epoch in client.epochs or [no_examples]:
            leaves = tuple(tf.nest.flatten(epoch))
            examples = tf.data.Dataset.from_tensor_slices(leaves)
            datasets.append(examples.batch(self.task.batch_size))
        return functools.reduce(tf.data.Dataset.concatenate, datasets)

    def weights(self, state: Any) -> list[np.ndarray]:
        """See `Execution.weights`."""
        weights = self._worker.run(lambda: self._process.get_model_weights(state))
        return [np.asarray(weight) for weight in weights.trainable]


# Metrics of the query that a round's row has, if the query has them.
_QUERY_METRICS = ("scale_drift", "clip_norm", "clip_fraction", "zeroed", "noise_stddev")


def _metrics_row(metrics: Any, num_not_finite: int) -> dict[str, float]:
    """Returns the row of a round from TFF's metrics.

    Args:
      metrics: of a LearningProcessOutput.
      num_not_finite: number of clients whose examples are not finite.
    """
    train_metrics = metrics["client_work"]["train"]
    num_examples = int(train_metrics["num_examples"])
    row = {
        "examples": num_examples,
        "train_loss": float(train_metrics["loss"]) if num_examples else math.nan,
        "not_finite": num_not_finite,
    }
    query_metrics = metrics["aggregator"]["dp_query_metrics"]
    for name in _QUERY_METRICS:
        if name in query_metrics:
            row[name] = float(query_metrics[name])
    # The query sees zeros from these clients and does not count them as zeroed.
    row["zeroed"] += num_not_finite + int(train_metrics["zeroed"])
    return row


def tff_model(functions: ModelFunctions, seed: int, spec: Any) -> tff.learning.models.VariableModel:
    """Returns the task's model and loss as a TFF model.

    Args:
      functions: the task's functions.
      seed: seed of the initial weights.
      spec: the task's tensor specs, which cannot be read while TFF traces.
    """
    return _TrainedModel(functions.build_model(seed), batch_loss(functions), spec)


class _TrainedModel(tff.learning.models.VariableModel):
    """A model and its loss as TFF trains them.

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
        loss = self._loss(y, outputs)
        num_examples = tf.shape(batch_input[0])[0]
        self._loss_sum.assign_add(loss * tf.cast(num_examples, tf.float32))
        self._num_examples.assign_add(num_examples)
        total_loss = minimised(loss, model_losses)
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
        # TFF calls it where a client's update is not finite. The loss remains, as in the fast
        # execution, because it shows that the model diverged.
        self._zeroed.assign(1)
