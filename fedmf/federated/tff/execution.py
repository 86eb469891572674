"""Rounds in TFF: its stock build_unweighted_fed_avg with our aggregator, in TFF's C++ worker."""

import collections
import functools
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
import tensorflow as tf

from fedmf.federated.loss import BatchLoss, batch_loss, minimised, outputs_and_losses
from fedmf.federated.model_functions import ModelFunctions, tensor_specs
from fedmf.federated.tff import tff
from fedmf.federated.tff.aggregator import dp_aggregator
from fedmf.federated.tff.optimizers import client_optimizer, server_optimizer
from fedmf.federated.tff.worker import TffWorker
from fedmf.server.rows import replace_noise
from fedmf.training.examples import ClientData
from fedmf.training.execution.base import Execution, Release, packed_like


class TffExecution(Execution):
    """TFF's own federated averaging on a worker of its own."""

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
                tff_model, self._functions(), config.seed, tensor_specs(self.task.spec)
            ),
            client_optimizer_fn=client_optimizer(config),
            server_optimizer_fn=server_optimizer(config),
            model_aggregator=aggregator,
        )
        self._state: Any = None

    def _functions(self) -> ModelFunctions:
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
        """TFF's state with our initial weights, the same as the fast path's."""
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
        """See `Execution.collect_release`. There are no canaries: TFF does not hand out what it
        releases.

        The arrays are the leaves of TFF's state after the round, without the noise's key and rows.
        """
        state, data = self.noise.hand_in(state), [self._dataset(client) for client in cohort]
        output = self._worker.run(lambda: self._process.next(state, data))
        train = output.metrics["client_work"]["train"]
        examples = int(train["num_examples"])
        not_finite = sum(not client.epochs for client in cohort)
        # Whose updates are zero before the query sees them
        zeroed = not_finite + int(train["zeroed"])
        row = {
            "examples": examples,
            "train_loss": float(train["loss"]) if examples else 0.0,
            "not_finite": not_finite,
        }
        query = output.metrics["aggregator"]["dp_query_metrics"]
        of_query = ("scale_drift", "clip_norm", "clip_fraction", "zeroed", "noise_stddev")
        row |= {name: float(query[name]) for name in of_query if name in query}
        row["zeroed"] += zeroed
        leaves = zip(tf.nest.flatten(output.state), self._is_released, strict=True)
        arrays = [np.asarray(leaf) for leaf, is_released in leaves if is_released]
        return Release(arrays=arrays, row=row, canaries=np.zeros(0))

    def step(self, state: Any, release: Release) -> Any:
        """See `Execution.step`. TFF took it already: this is the state after it, with the key that
        follows from the seed and without a row of noise.
        """
        template = self.init()
        arrays = iter(release.arrays)
        pairs = zip(tf.nest.flatten(template), self._is_released, strict=True)
        leaves = [next(arrays) if is_released else leaf for leaf, is_released in pairs]
        return tf.nest.pack_sequence_as(template, leaves)

    def before(self, state: Any) -> list[np.ndarray]:
        """See `Execution.before`. The step needs none of it: a release of TFF's is a whole state.
        Metrics of a round compare its weights with those before.
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
        marked = replace_noise(self.init(), lambda n: n._replace(key=secret, rows=secret))
        return [leaf is not secret for leaf in tf.nest.flatten(marked)]

    def _dataset(self, client: ClientData) -> tf.data.Dataset:
        none = tf.nest.map_structure(
            lambda spec: tf.zeros([0, *spec.shape[1:]], spec.dtype), tensor_specs(self.task.spec)
        )
        leaves = (tuple(tf.nest.flatten(epoch)) for epoch in client.epochs or [none])
        batches = (
            tf.data.Dataset.from_tensor_slices(epoch).batch(self.task.batch_size)
            for epoch in leaves
        )
        return functools.reduce(tf.data.Dataset.concatenate, batches)

    def weights(self, state: Any) -> list[np.ndarray]:
        """See `Execution.weights`."""
        weights = self._worker.run(lambda: self._process.get_model_weights(state))
        return [np.asarray(w) for w in weights.trainable]


def tff_model(functions: ModelFunctions, seed: int, spec: Any) -> tff.learning.models.VariableModel:
    """The task's model and loss as a TFF model; `spec` is the task's, which cannot be read while
    TFF traces.
    """
    return _TrainedModel(functions.build_model(seed), batch_loss(functions), spec)


class _TrainedModel(tff.learning.models.VariableModel):
    """A model and its loss; the metrics are the loss, the number of examples, and whether TFF
    zeroed the client's update.

    A batch is the tuple of the leaves of inputs and labels: TFF's own structures have an order,
    which a dict's keys do not.
    """

    def __init__(self, model: Any, loss: BatchLoss, spec: Any) -> None:
        self._model, self._loss, self._spec = model, loss, spec
        self._loss_sum = tf.Variable(0.0, trainable=False)
        self._examples = tf.Variable(0, trainable=False)
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
            self._examples,
            self._zeroed,
            *getattr(self._model, "local_variables", ()),
        ]

    @property
    def input_spec(self) -> Any:
        return tuple(tf.nest.flatten(self._spec))

    @tf.function
    def forward_pass(self, batch_input: Any, training: bool = True) -> Any:
        x, y = tf.nest.pack_sequence_as(self._spec, batch_input)
        outputs, own = outputs_and_losses(self._model, x)
        loss, examples = self._loss(y, outputs), tf.shape(batch_input[0])[0]
        self._loss_sum.assign_add(loss * tf.cast(examples, tf.float32))
        self._examples.assign_add(examples)
        return tff.learning.models.BatchOutput(minimised(loss, own), (), examples)

    def predict_on_batch(self, batch_input: Any, training: bool = True) -> Any:
        return self._model(batch_input, training=training)

    @tf.function
    def report_local_unfinalized_metrics(self) -> Any:
        total, examples = self._loss_sum.read_value(), self._examples.read_value()
        loss = [total, tf.cast(examples, tf.float32)]
        return collections.OrderedDict(
            loss=loss, num_examples=examples, zeroed=self._zeroed.read_value()
        )

    def metric_finalizers(self) -> Any:
        ratio = tf.function(lambda sums: sums[0] / sums[1])
        same = tf.function(lambda number: number)
        return collections.OrderedDict(loss=ratio, num_examples=same, zeroed=same)

    @tf.function
    def reset_metrics(self) -> None:
        # TFF calls it where a client's update is not finite. Its loss stays, as in the fast
        # execution: it shows that the model diverged.
        self._zeroed.assign(1)
