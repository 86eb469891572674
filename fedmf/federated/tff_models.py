"""TFF's VariableModel and FunctionalModel as the model of a task. No other module knows them.

A task's model is used as a tf.keras.Model is: variables, outputs of inputs, and a loss of labels
and outputs. TFF's models compute their loss themselves, a VariableModel together with the outputs,
in `forward_pass`. So their outputs here are `Outputs`, not yet computed.
"""

import abc
import collections
import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.federated.tensorflow_import import keras3_error_note, keras3_note, rewritten
from fedmf.training.examples import errors_of


def loop_model(name: str, build_model: Callable[[int], Any], brings_own: bool, seed: int) -> Any:
    """The model that `build_model` gives: a tf.keras.Model, or a TFF model as a `TffModel`.

    Args:
      name: of the task.
      build_model: of the task.
      brings_own: the task has no loss and metrics.
      seed: of the initial weights.

    Raises:
      TypeError: any other model.
      ValueError: loss and metrics are missing, or given beside a model that brings its own.
    """
    with errors_of(f"build_model of task {name!r}"):
        try:
            model = build_model(seed)
        except (TypeError, ValueError) as error:
            if note := keras3_error_note(error):
                raise TypeError(f"build_model of task {name!r} takes a layer{note}") from error
            raise
    # Where TFF was not imported nothing is a model of it.
    if (tff := sys.modules.get("tensorflow_federated")) is not None:
        if isinstance(model, tff.learning.models.FunctionalModel):
            model = _OfFunctionalModel(model, tff.learning.models)
        elif isinstance(model, tff.learning.models.VariableModel):
            model = _OfVariableModel(model)
    if note := keras3_note(model):
        raise TypeError(f"build_model of task {name!r} gives a model{note}")
    if not isinstance(model, tf.keras.Model | TffModel):
        raise TypeError(
            f"build_model of task {name!r} gives a {type(model).__name__}: return a "
            "tf.keras.Model, or a VariableModel or FunctionalModel of tff.learning.models"
        )
    if isinstance(model, tf.keras.Model) and not model.built:
        raise ValueError(
            f"build_model of task {name!r} gives a model without weights: begin it with "
            "tf.keras.Input, or call it once"
        )
    if isinstance(model, tf.keras.Model) and (note := _keras3_variable_note(model)):
        raise TypeError(
            f"build_model of task {name!r} gives a model that computes with a variable{note}"
        )
    if isinstance(model, TffModel) and not brings_own:
        raise ValueError(
            f"task {name!r} has loss or metrics beside a {model.kind} of TFF, which brings "
            "its own: leave both out"
        )
    if brings_own and not isinstance(model, TffModel):
        raise ValueError(
            f"task {name!r} has neither loss nor metrics, which a tf.keras.Model needs: give both"
        )
    return model


def _keras3_variable_note(model: tf.keras.Model) -> str:
    """Returns a clause on a variable of Keras 3 that the model computes with; empty without one.

    Keras 2 takes the function of a layer of Keras 3 into its graph, and does not train the layer's
    variables.
    """
    for layer in model.layers:
        for node in layer.inbound_nodes:
            for value in tf.nest.flatten((node.call_args, node.call_kwargs)):
                if note := keras3_note(value):
                    return note
    return ""


class TffModel(abc.ABC):
    """A TFF model in the form of a tf.keras.Model."""

    kind: str
    losses: Sequence[Any] = ()  # of Keras's layers; those of TFF's models are in their loss
    trainable_variables: Sequence[tf.Variable]
    non_trainable_variables: Sequence[tf.Variable]
    local_variables: Sequence[tf.Variable] = ()

    @property
    def variables(self) -> list[tf.Variable]:
        """The trained weights, and behind them the others."""
        return [*self.trainable_variables, *self.non_trainable_variables]

    def __call__(self, x: Any, training: bool = False) -> "Outputs":
        """The outputs of a batch."""
        return Outputs(model=self, x=x, training=training)

    def get_weights(self) -> list[np.ndarray]:
        """The values of `variables`."""
        return [variable.numpy() for variable in self.variables]

    def set_weights(self, weights: Sequence[np.ndarray]) -> None:
        """The inverse of `get_weights`."""
        for variable, weight in zip(self.variables, weights, strict=True):
            variable.assign(weight)

    @abc.abstractmethod
    def predictions(self, x: Any, training: bool) -> Any:
        """What the model says of a batch."""

    @abc.abstractmethod
    def batch_loss(self, x: Any, y: Any, training: bool) -> Any:
        """The loss of a batch. Not in training, the batch counts in the metrics."""

    @abc.abstractmethod
    def reset_metrics(self) -> None:
        """Metrics of no batch."""

    @abc.abstractmethod
    def _metrics(self) -> Mapping[str, Any]: ...

    def metric_values(self) -> dict[str, float]:
        """The metrics of all batches since the reset, of those that are single numbers; without
        TFF's counts of examples and batches.
        """
        # TFF's finalizers of Keras metrics make variables at each call, which a tf.function cannot.
        eagerly = tf.config.functions_run_eagerly()
        tf.config.run_functions_eagerly(True)
        try:
            values = self._metrics()
        finally:
            tf.config.run_functions_eagerly(eagerly)
        numbers = {}
        for name, value in values.items():
            array = np.asarray(value)  # of a mapping it holds an object
            counts = name in ("num_examples", "num_batches")
            if not (array.shape or array.dtype == object or counts):
                numbers[name] = float(array)
        return numbers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outputs:
    """The outputs of a TFF model for the inputs of a batch."""

    model: TffModel
    x: Any
    training: bool

    @property
    def predictions(self) -> Any:
        """What the model says of the batch."""
        return self.model.predictions(self.x, self.training)

    def loss(self, labels: Any) -> Any:
        """The loss of the batch."""
        return self.model.batch_loss(self.x, labels, self.training)


class _OfVariableModel(TffModel):
    """A VariableModel. `forward_pass` may write its local variables, which count its metrics.

    Each batch of a training begins with the first values of all variables that are not trained. So
    nothing of a client is carried into another's update, even by a model whose loss
    depends on them.
    """

    kind = "VariableModel"

    def __init__(self, model: Any) -> None:
        self._model = model
        self.trainable_variables = list(model.trainable_variables)
        self.non_trainable_variables = list(model.non_trainable_variables)
        self.local_variables = list(model.local_variables)
        self._keep_first_values()

    def _keep_first_values(self) -> None:
        kept = [*self.non_trainable_variables, *self.local_variables]
        # In TFF's graphs there are no values yet; there each client has variables of its own.
        self._first = (
            [(variable, variable.numpy()) for variable in kept] if tf.executing_eagerly() else []
        )

    def set_weights(self, weights: Sequence[np.ndarray]) -> None:
        """See `TffModel.set_weights`."""
        super().set_weights(weights)
        self._keep_first_values()

    def predictions(self, x: Any, training: bool) -> Any:
        """See `TffModel.predictions`."""
        return rewritten(self._model.predict_on_batch)(x, training=training)

    def batch_loss(self, x: Any, y: Any, training: bool) -> Any:
        """See `TffModel.batch_loss`."""
        if training:
            for variable, value in self._first:
                variable.assign(value)
        named = isinstance(self._model.input_spec, Mapping)
        batch = collections.OrderedDict(x=x, y=y) if named else (x, y)
        return rewritten(self._model.forward_pass)(batch, training=training).loss

    def reset_metrics(self) -> None:
        """See `TffModel.reset_metrics`."""
        self._model.reset_metrics()

    def _metrics(self) -> Mapping[str, Any]:
        counted = self._model.report_local_unfinalized_metrics()
        return {
            name: finalize(counted[name])
            for name, finalize in self._model.metric_finalizers().items()
        }


class _OfFunctionalModel(TffModel):
    """A FunctionalModel with variables for its weights and, in an evaluation, for the state
    of its metrics.
    """

    kind = "FunctionalModel"

    def __init__(self, model: Any, models: Any) -> None:
        self._model, self._models, self._state = model, models, None
        trained, fixed = model.initial_weights
        self.trainable_variables = [tf.Variable(weight) for weight in tf.nest.flatten(trained)]
        self.non_trainable_variables = [
            tf.Variable(weight, trainable=False) for weight in tf.nest.flatten(fixed)
        ]

    def predictions(self, x: Any, training: bool) -> Any:
        """See `TffModel.predictions`."""
        weights = [tf.convert_to_tensor(variable) for variable in self.variables]
        packed = tf.nest.pack_sequence_as(self._model.initial_weights, weights)
        try:
            return rewritten(self._model.predict_on_batch)(packed, x, training)
        except self._models.functional.KerasFunctionalModelError:
            raise ValueError(
                "a FunctionalModel of functional_model_from_keras works in TFF's own computations "
                "only: return its tf.keras.Model, and give the task loss and metrics"
            ) from None

    def batch_loss(self, x: Any, y: Any, training: bool) -> Any:
        """See `TffModel.batch_loss`."""
        outputs = self.predictions(x, training)
        loss = rewritten(self._model.loss)(outputs, y)
        if not training and self._state is not None:
            examples = tf.shape(tf.nest.flatten(y)[0])[0]
            batch = self._models.BatchOutput(loss=loss, predictions=outputs, num_examples=examples)
            before = tf.nest.map_structure(tf.convert_to_tensor, self._state)
            after = rewritten(self._model.update_metrics_state)(before, y, batch)
            tf.nest.map_structure(
                lambda variable, value: variable.assign(value), self._state, after
            )
        return loss

    def reset_metrics(self) -> None:
        """See `TffModel.reset_metrics`."""
        first = self._model.initialize_metrics_state()
        if self._state is None:
            self._state = tf.nest.map_structure(
                lambda value: tf.Variable(value, trainable=False), first
            )
        tf.nest.map_structure(lambda variable, value: variable.assign(value), self._state, first)

    def _metrics(self) -> Mapping[str, Any]:
        values: Mapping[str, Any] = self._model.finalize_metrics(
            tf.nest.map_structure(tf.convert_to_tensor, self._state)
        )
        return values
