"""Checks that training carries a client's data to other clients through the clipped sum only."""

import dataclasses
from typing import Any

import tensorflow as tf

from fedmf.federated.client_training.stateless_model import operations
from fedmf.federated.forbidden_operations import check_operations
from fedmf.federated.loss import BatchLoss, batch_loss, minimised
from fedmf.federated.metrics_check import check_metrics, check_private_metrics
from fedmf.federated.model_functions import ModelFunctions, tensor_specs
from fedmf.federated.tensorflow_errors import error_reason, misfit_reason
from fedmf.federated.tff_models import TffModel
from fedmf.runs.config import TrainConfig
from fedmf.runs.executions import execution_kind
from fedmf.training.examples import Examples, take
from fedmf.training.learner import TaskData

# A TFF model may write its local variables by these operations, because `TffModel` restores their
# values.
_LOCAL_WRITES = {"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"}
# Methods of a model that Keras's own training calls, and fedmf's training does not.
_FIT_METHODS = ("train_step", "compute_loss")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _CheckedModel:
    """The model that is checked, with the task and the config that it is trained for.

    Attributes:
      functions: the task's functions.
      task: the task's data.
      config: the run's config.
      model: the model for the seed of the run.
      x_specs, y_specs: tensor specs of a batch.
      loss: the task's loss.
      name: name of the task.
    """

    functions: ModelFunctions
    task: TaskData
    config: TrainConfig
    model: Any
    x_specs: Any
    y_specs: Any
    loss: BatchLoss

    @property
    def name(self) -> str:
        return self.functions.name


def check_model(functions: ModelFunctions, task: TaskData, config: TrainConfig) -> None:
    """Checks that a task's model and loss can be trained, and that the guarantee holds for them.

    Every TensorFlow operation of a training step is checked, forwards and backwards.

    A variable or table that the model writes would carry a client's data into the next client's
    update without clipping: the sensitivity would not be the plan's. A run with random draws could
    not be repeated. Python code may do both.

    Raises:
      ValueError: for such an operation, for trained weights or computations in other than float32,
        and for frozen weights in a model for TFF, whose state does not hold them.
    """
    x_specs, y_specs = tensor_specs(task.spec)
    checked_model = _CheckedModel(
        functions=functions,
        task=task,
        config=config,
        model=functions.build_model(config.seed),
        x_specs=x_specs,
        y_specs=y_specs,
        loss=batch_loss(functions),
    )
    _check_labels(checked_model)
    _check_dtypes(checked_model)
    _check_training(checked_model)
    _check_inputs(checked_model)
    training_step = tf.function(_training_step(checked_model))
    traced_step = _traced(checked_model, training_step)
    _check_loss_shape(checked_model, traced_step)
    first_batch = take(task.split("validation"), slice(task.batch_size))
    _check_fit(checked_model, training_step, first_batch)
    check_metrics(functions, task, checked_model.model, first_batch)
    if config.private_metrics:
        check_private_metrics(functions, task, checked_model.model, first_batch)
    _check_operations(checked_model, traced_step)
    if execution_kind(config.execution).in_tff:
        _check_for_tff(checked_model)


def _training_step(checked: _CheckedModel) -> Any:
    """Returns a function that computes the loss of a batch (x, y) and its gradients."""

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = checked.loss(y, checked.model(x, training=True))
            if loss.shape.rank != 0:
                return loss, ()
            total_loss = minimised(loss, checked.model.losses)
        return loss, tape.gradient(total_loss, checked.model.trainable_variables)

    return step


def _traced(checked: _CheckedModel, training_step: Any) -> Any:
    """Traces the training step on a batch of unknown size, and returns its graph.

    Raises:
      ValueError: the step cannot be traced.
    """
    try:
        return training_step.get_concrete_function(checked.x_specs, checked.y_specs)
    except tf.errors.OperatorNotAllowedInGraphError as error:
        raise ValueError(
            f"model or loss of task {checked.name!r} asks in Python for the value of a tensor "
            f"({error_reason(error)}), which a graph has not computed yet: use tf.cond, or leave "
            "out the layer (SpectralNormalization would also carry what it has seen of one client "
            "to the next)"
        ) from error
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"model or loss of task {checked.name!r} do not take a batch "
            f"{(checked.x_specs, checked.y_specs)} of its examples: make them fit "
            f"({error_reason(error)})"
        ) from error


def _check_loss_shape(checked: _CheckedModel, traced_step: Any) -> None:
    """Raises ValueError unless the loss of a batch is a scalar."""
    loss, _ = traced_step.structured_outputs
    if loss.shape.rank == 0:
        return
    way_out = "take the mean, or pass a tf.keras.losses.Loss"
    if isinstance(checked.functions.loss, tf.keras.losses.Loss):
        loss_reduction = checked.functions.loss.reduction
        way_out = f'its reduction is {loss_reduction!r}: use "sum_over_batch_size" or "sum"'
    raise ValueError(
        f"loss of task {checked.name!r} gives the shape {loss.shape} where a scalar is needed: "
        f"{way_out}"
    )


def _check_fit(checked: _CheckedModel, training_step: Any, examples: Examples) -> None:
    """Raises ValueError if the training step fails on real examples, whose labels may not fit."""
    try:
        training_step(*tf.nest.map_structure(tf.constant, examples))
    except tf.errors.InvalidArgumentError as error:
        raise ValueError(
            f"model or loss of task {checked.name!r} fail on its validation split: make outputs "
            f"and labels fit ({misfit_reason(error)})"
        ) from error


def _check_operations(checked: _CheckedModel, traced_step: Any) -> None:
    """Raises ValueError for operations that break the guarantee, and for unlisted variables."""
    operation_types = operations(traced_step)
    used_variables = traced_step.graph.variables
    if isinstance(checked.model, TffModel):
        _check_local_variables(checked, used_variables)
        check_operations(checked.name, operation_types - _LOCAL_WRITES)
    else:
        check_operations(checked.name, operation_types)
        _check_outside_variables(checked, used_variables)


def _check_for_tff(checked: _CheckedModel) -> None:
    """Raises ValueError for a loss or for weights that execution='tff' does not support."""
    if checked.functions.loss is not None:
        _check_captures(checked)
    # The weights that are not trained include the vocabulary of an adapted lookup layer. The
    # vocabulary has no name, so the message calls it "a vocabulary".
    frozen_names = [
        getattr(weight, "name", "a vocabulary") for weight in checked.model.non_trainable_variables
    ]
    if frozen_names:
        raise ValueError(
            f"build_model of task {checked.name!r} gives a model with weights that are not trained "
            f"({', '.join(frozen_names)}), which execution={checked.config.execution!r} does not "
            "take: use execution='fast'"
        )


def _check_dtypes(checked: _CheckedModel) -> None:
    """Raises ValueError if weights or computations of the model are not in float32.

    Clipped updates are float32, and small gradients are zero in float16.
    """
    model = checked.model
    model_layers = () if isinstance(model, TffModel) else model._flatten_layers()
    half_precision_reasons = [
        f"{layer.name} computes in float16"
        for layer in model_layers
        if layer.compute_dtype == "float16"
    ]
    dtype_reasons = [
        f"{weight.name} is {weight.dtype.name}"
        for weight in model.trainable_variables
        if weight.dtype != tf.float32
    ]
    reasons = dtype_reasons or half_precision_reasons
    if reasons:
        raise ValueError(
            f"build_model of task {checked.name!r} gives a model that is not all float32 "
            f"({', '.join(reasons)}): build it with float32 weights, under the Keras policy "
            "float32 or mixed_bfloat16"
        )


def _check_training(checked: _CheckedModel) -> None:
    """Raises ValueError for a model with training rules that fedmf does not apply.

    These are methods such as train_step, and constraints on weights. A model without trainable
    weights is refused as well.
    """
    model = checked.model
    overridden_methods = [
        name
        for name in _FIT_METHODS
        if getattr(type(model), name, None) is not getattr(tf.keras.Model, name)
    ]
    if overridden_methods and not isinstance(model, TffModel):
        raise ValueError(
            f"build_model of task {checked.name!r} gives a model with a "
            f"{' and a '.join(overridden_methods)} of its own, which fedmf does not call: put what "
            "it minimises into the task's loss, or into add_loss"
        )
    constrained_names = [
        weight.name
        for weight in model.trainable_variables
        if getattr(weight, "constraint", None) is not None
    ]
    if constrained_names:
        raise ValueError(
            f"build_model of task {checked.name!r} gives a model with constraints on weights "
            f"({', '.join(constrained_names)}), which nobody applies between a client's steps: "
            "leave them out, or use a regulariser"
        )
    if not model.trainable_variables:
        raise ValueError(
            f"build_model of task {checked.name!r} gives a model of which nothing is trained: "
            "leave a layer trainable"
        )


def _check_labels(checked: _CheckedModel) -> None:
    """Raises TypeError if the labels are texts, which no Keras loss takes."""
    has_texts = any(spec.dtype == tf.string for spec in tf.nest.flatten(checked.y_specs))
    if has_texts and isinstance(checked.functions.loss, tf.keras.losses.Loss):
        raise TypeError(
            f"the labels of task {checked.name!r} are texts, which no Keras loss takes: number "
            "them, as by classes, y = np.unique(y, return_inverse=True)"
        )


def _check_inputs(checked: _CheckedModel) -> None:
    """Raises TypeError if Keras would silently drop a part of each number in the examples.

    For example, Keras takes 0.7 as 0 where a model's input has an integer dtype.
    """
    example_specs = tf.nest.flatten(checked.x_specs)
    model_inputs = tf.nest.flatten(getattr(checked.model, "input", ()))
    if len(example_specs) != len(model_inputs):
        return
    for spec, model_input in zip(example_specs, model_inputs, strict=True):
        takes_complex = model_input.dtype.is_complex
        takes_fractions = model_input.dtype.is_floating or takes_complex
        drops_fraction = spec.dtype.is_floating and not takes_fractions
        drops_imaginary_part = spec.dtype.is_complex and not takes_complex
        if drops_fraction or drops_imaginary_part:
            raise TypeError(
                f"the examples of task {checked.name!r} are {spec.dtype.name} where its model "
                f"takes {model_input.dtype.name} ({model_input.name}), which would drop a part of "
                "each number: convert one of them"
            )


def _check_outside_variables(checked: _CheckedModel, used_variables: Any) -> None:
    """Raises ValueError if the training step reads a variable that is no weight of the model.

    A program may change it between rounds, and a resume would not know its value.
    """
    # Variables are compared by their handles, because with mixed precision the model lists wrappers
    # of the graph's variables. The vocabulary of an adapted lookup layer is listed too, but has no
    # handle.
    weight_handles = {
        id(variable.handle) for variable in checked.model.variables if hasattr(variable, "handle")
    }
    outside_names = [
        variable.name for variable in used_variables if id(variable.handle) not in weight_handles
    ]
    if outside_names:
        raise ValueError(
            f"model or loss of task {checked.name!r} read a variable that is no weight of the "
            f"model ({', '.join(outside_names)}), which may change during a run: make it a "
            "number, or a weight that is not trained"
        )


def _check_captures(checked: _CheckedModel) -> None:
    """Raises ValueError if the loss uses a tensor or a variable that was made outside of it.

    The graphs that TFF builds cannot contain such a value.
    """
    forward_pass = tf.function(lambda x: checked.model(x, training=True))
    model_outputs = forward_pass.get_concrete_function(checked.x_specs).structured_outputs
    output_specs = tf.nest.map_structure(
        lambda output: tf.TensorSpec(output.shape, output.dtype), model_outputs
    )
    traced_loss = tf.function(checked.loss).get_concrete_function(checked.y_specs, output_specs)
    if traced_loss.captured_inputs:
        raise ValueError(
            f"loss of task {checked.name!r} uses a tensor or a variable that was made outside of "
            "it, which execution='tff' does not take: make it a numpy array or a number, or use "
            "execution='fast'"
        )


def _check_local_variables(checked: _CheckedModel, used_variables: Any) -> None:
    """Raises ValueError if a TFF model uses a variable that it does not list.

    Nothing would restore the value of that variable after a batch.
    """
    model: TffModel = checked.model
    listed_handles = {
        id(variable.handle) for variable in (*model.variables, *model.local_variables)
    }
    hidden_names = [
        variable.name for variable in used_variables if id(variable.handle) not in listed_handles
    ]
    if hidden_names:
        raise ValueError(
            f"build_model of task {checked.name!r} gives a {model.kind} that uses the variables "
            f"{', '.join(hidden_names)} and lists them neither as weights nor as local_variables: "
            "list them"
        )
