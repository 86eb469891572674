"""Adapters that let TFF's VariableModel and FunctionalModel be used as Keras models.

The other modules use a task's model as a tf.keras.Model: variables, outputs of inputs, and a loss
of labels and outputs. TFF's models compute their loss themselves, a VariableModel together with the
outputs, in `forward_pass`. Their outputs are therefore `Outputs`, which are computed later.
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


def loop_model(name: str, build_model: Callable[[int], Any], has_own_loss: bool, seed: int) -> Any:
    """Builds the model of a task, and wraps a TFF model in a `TffModel`.

    Args:
      name: name of the task.
      build_model: function of the task.
      has_own_loss: whether the model must have a loss and metrics of its own.
      seed: seed of the initial weights.

    Raises:
      TypeError: the model is neither.
      ValueError: loss and metrics are missing, or the task has them beside those of the model.
    """
    with errors_of(f"build_model of task {name!r}"):
        try:
            model = build_model(seed)
        except (TypeError, ValueError) as error:
            if note := keras3_error_note(error):
                raise TypeError(f"build_model of task {name!r} takes a layer{note}") from error
            raise
    # If TensorFlow Federated (TFF) was not imported, the model cannot be a TFF model.
    tff_module = sys.modules.get("tensorflow_federated")
    if tff_module is not None:
        if isinstance(model, tff_module.learning.models.FunctionalModel):
            model = _FunctionalTffModel(model, tff_module.learning.models)
        elif isinstance(model, tff_module.learning.models.VariableModel):
            model = _VariableTffModel(model)
    _check_model_class(name, model)
    _check_loss_source(name, model, has_own_loss)
    return model


def _check_model_class(name: str, model: Any) -> None:
    """Raises TypeError or ValueError for an object of another class, or a model without weights."""
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


def _check_loss_source(name: str, model: Any, has_own_loss: bool) -> None:
    """Raises ValueError unless loss and metrics come from either the task or a TFF model."""
    if isinstance(model, TffModel) and not has_own_loss:
        raise ValueError(
            f"task {name!r} has loss or metrics beside a {model.kind} of TFF, which brings "
            "its own: leave both out"
        )
    if has_own_loss and not isinstance(model, TffModel):
        raise ValueError(
            f"task {name!r} has neither loss nor metrics, which a tf.keras.Model needs: give both"
        )


def _keras3_variable_note(model: tf.keras.Model) -> str:
    """Returns the end of an error message if a model computes with a variable of Keras 3.

    Keras 2 takes the function of a layer of Keras 3 into its graph, and does not train the layer's
    variables. For other models the text is empty.
    """
    for layer in model.layers:
        for node in layer.inbound_nodes:
            for value in tf.nest.flatten((node.call_args, node.call_kwargs)):
                if note := keras3_note(value):
                    return note
    return ""


class TffModel(abc.ABC):
    """A TFF model with the methods of a tf.keras.Model that training and evaluation use.

    Attributes:
      kind: name of TFF's class, for errors.
      losses: empty; a tf.keras.Model has losses of its layers here, and TFF's models include them
        in their loss.
      trainable_variables, non_trainable_variables, local_variables: those of TFF's model.
    """

    kind: str
    losses: Sequence[Any] = ()
    trainable_variables: Sequence[tf.Variable]
    non_trainable_variables: Sequence[tf.Variable]
    local_variables: Sequence[tf.Variable] = ()

    @property
    def variables(self) -> list[tf.Variable]:
        """Trainable weights, followed by weights that are not trained."""
        return [*self.trainable_variables, *self.non_trainable_variables]

    def __call__(self, x: Any, training: bool = False) -> "Outputs":
        """Returns an object that computes the outputs or the loss of a batch when it is asked."""
        return Outputs(model=self, x=x, training=training)

    def get_weights(self) -> list[np.ndarray]:
        """Returns the values of all variables, in the order of `variables`."""
        return [variable.numpy() for variable in self.variables]

    def set_weights(self, weights: Sequence[np.ndarray]) -> None:
        """Sets all variables to these values, in the order of `variables`."""
        for variable, weight in zip(self.variables, weights, strict=True):
            variable.assign(weight)

    @abc.abstractmethod
    def predictions(self, x: Any, training: bool) -> Any:
        """Computes the model's predictions for a batch."""

    @abc.abstractmethod
    def batch_loss(self, x: Any, y: Any, training: bool) -> Any:
        """Computes the loss of a batch; in an evaluation it also updates the metrics."""

    @abc.abstractmethod
    def reset_metrics(self) -> None:
        """Sets the metrics to their state before the first batch."""

    @abc.abstractmethod
    def _metrics(self) -> Mapping[str, Any]:
        """Computes all metrics of the batches since `reset_metrics` was called."""

    def metric_values(self) -> dict[str, float]:
        """Returns the metrics since `reset_metrics` was called, if they are single numbers.

        TFF's counts of examples and batches are left out.
        """
        # TFF's finalizers of Keras metrics create variables at each call, which a tf.function may
        # not. So they run eagerly.
        runs_eagerly = tf.config.functions_run_eagerly()
        tf.config.run_functions_eagerly(True)
        try:
            value_by_name = self._metrics()
        finally:
            tf.config.run_functions_eagerly(runs_eagerly)
        scalar_by_name = {}
        for name, value in value_by_name.items():
            # If the metric's value is a mapping, the array has the dtype object.
            metric_array = np.asarray(value)
            is_scalar = not metric_array.shape and metric_array.dtype != object
            if is_scalar and name not in ("num_examples", "num_batches"):
                scalar_by_name[name] = float(metric_array)
        return scalar_by_name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outputs:
    """The outputs of a TFF model for a batch, which are computed when they are needed."""

    model: TffModel
    x: Any
    training: bool

    @property
    def predictions(self) -> Any:
        """The predictions for the batch, computed anew at each access."""
        return self.model.predictions(self.x, self.training)

    def loss(self, labels: Any) -> Any:
        """Computes the loss of the batch for these labels."""
        return self.model.batch_loss(self.x, labels, self.training)


class _VariableTffModel(TffModel):
    """A VariableModel of TFF, whose `forward_pass` may write variables that hold metrics.

    Each batch in training begins with the first values of all variables that are not trained. So
    no variable carries a client's data into another client's update, even in a model whose loss
    depends on it.
    """

    kind = "VariableModel"

    def __init__(self, model: Any) -> None:
        self._model = model
        self.trainable_variables = list(model.trainable_variables)
        self.non_trainable_variables = list(model.non_trainable_variables)
        self.local_variables = list(model.local_variables)
        self._save_first_values()

    def _save_first_values(self) -> None:
        """Saves the values of the untrained variables. Each training batch begins with these
        values.
        """
        self._first_values: list[tuple[tf.Variable, np.ndarray]] = []
        # While TFF builds a graph, variables have no values yet, and each client has its own
        # variables.
        if tf.executing_eagerly():
            for variable in (*self.non_trainable_variables, *self.local_variables):
                self._first_values.append((variable, variable.numpy()))

    def set_weights(self, weights: Sequence[np.ndarray]) -> None:
        """Sets all weights, and saves the untrained ones for the start of each training batch."""
        super().set_weights(weights)
        self._save_first_values()

    def predictions(self, x: Any, training: bool) -> Any:
        """Computes predictions by TFF's `predict_on_batch`."""
        return rewritten(self._model.predict_on_batch)(x, training=training)

    def batch_loss(self, x: Any, y: Any, training: bool) -> Any:
        """Computes the loss by TFF's `forward_pass`, which also updates the metrics."""
        if training:
            for variable, value in self._first_values:
                variable.assign(value)
        is_mapping = isinstance(self._model.input_spec, Mapping)
        batch = collections.OrderedDict(x=x, y=y) if is_mapping else (x, y)
        return rewritten(self._model.forward_pass)(batch, training=training).loss

    def reset_metrics(self) -> None:
        """Resets the metrics, which the TFF model keeps in variables."""
        self._model.reset_metrics()

    def _metrics(self) -> Mapping[str, Any]:
        unfinalized_metrics = self._model.report_local_unfinalized_metrics()
        return {
            name: finalize(unfinalized_metrics[name])
            for name, finalize in self._model.metric_finalizers().items()
        }


class _FunctionalTffModel(TffModel):
    """A FunctionalModel of TFF, to which variables for weights and metrics are added."""

    kind = "FunctionalModel"

    def __init__(self, model: Any, models_module: Any) -> None:
        self._model = model
        self._models_module = models_module
        # The state of the metrics is None until `reset_metrics` creates it at the first evaluation.
        self._metrics_state: Any = None
        trained, frozen = model.initial_weights
        self.trainable_variables = [tf.Variable(weight) for weight in tf.nest.flatten(trained)]
        self.non_trainable_variables = [
            tf.Variable(weight, trainable=False) for weight in tf.nest.flatten(frozen)
        ]

    def predictions(self, x: Any, training: bool) -> Any:
        """Computes predictions with the current values of the variables."""
        weight_tensors = [tf.convert_to_tensor(variable) for variable in self.variables]
        model_weights = tf.nest.pack_sequence_as(self._model.initial_weights, weight_tensors)
        try:
            return rewritten(self._model.predict_on_batch)(model_weights, x, training)
        except self._models_module.functional.KerasFunctionalModelError:
            raise ValueError(
                "a FunctionalModel of functional_model_from_keras works in TFF's own computations "
                "only: return its tf.keras.Model, and give the task loss and metrics"
            ) from None

    def batch_loss(self, x: Any, y: Any, training: bool) -> Any:
        """Computes the loss of the predictions; in an evaluation it also updates the metrics."""
        batch_predictions = self.predictions(x, training)
        loss = rewritten(self._model.loss)(batch_predictions, y)
        if not training and self._metrics_state is not None:
            batch_output = self._models_module.BatchOutput(
                loss=loss,
                predictions=batch_predictions,
                num_examples=tf.shape(tf.nest.flatten(y)[0])[0],
            )
            old_state = tf.nest.map_structure(tf.convert_to_tensor, self._metrics_state)
            new_state = rewritten(self._model.update_metrics_state)(old_state, y, batch_output)
            _assign(self._metrics_state, new_state)
        return loss

    def reset_metrics(self) -> None:
        """Sets the variables of the metrics to their initial values, and creates them at first."""
        initial_state = self._model.initialize_metrics_state()
        if self._metrics_state is None:
            self._metrics_state = tf.nest.map_structure(
                lambda value: tf.Variable(value, trainable=False), initial_state
            )
        _assign(self._metrics_state, initial_state)

    def _metrics(self) -> Mapping[str, Any]:
        values: Mapping[str, Any] = self._model.finalize_metrics(
            tf.nest.map_structure(tf.convert_to_tensor, self._metrics_state)
        )
        return values


def _assign(variables: Any, values: Any) -> None:
    """Assigns values to variables; both are nested structures of the same form."""
    tf.nest.map_structure(lambda variable, value: variable.assign(value), variables, values)
