"""Refuses models that would carry one client's data to another past the clipped sum."""

import re
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from fedmf.federated.evaluation import update_metric
from fedmf.federated.execution.stateless_model import operations
from fedmf.federated.loss import BatchLoss, batch_loss, minimised
from fedmf.federated.model_functions import ModelFunctions, tensor_specs
from fedmf.federated.tff_models import TffModel
from fedmf.runs.config import TrainConfig
from fedmf.runs.executions import execution_kind
from fedmf.training.examples import Examples, take
from fedmf.training.learner import TaskData

# Operations that break the guarantee, what they do, and what to use instead.
_FORBIDDEN = (
    # Moving averages, states of recurrent layers, words seen so far.
    (
        r"Assign|Resource(Scatter|StridedSliceAssign|Apply)|Scatter(Nd)?(Add|Sub|Update)$|LookupTable(Insert|Import|Remove)|Queue(En|De)queue",
        "writes a variable or a table",
        "its layer changes a variable in the forward pass, outside the clipped and noised update, "
        "and so carries what it has seen of one client to the next; leave out layers that keep "
        "something from batch to batch (BatchNormalization, SpectralNormalization, stateful=True)",
    ),
    # Draws from a generator that goes on from call to call; tf.random.stateless_... is not among
    # them. TensorFlow does not count pooling and glimpses among the operations with a state.
    (
        r"Random|Multinomial|Parameterized|TruncatedNormal|Stateful(?!PartitionedCall)|Rng|NonDeterministic|.*CandidateSampler|Fractional"
        r"|ExtractGlimpse|Timestamp",
        "draws random numbers",
        "leave out layers such as Dropout, and sampled losses",
    ),
    # Python inside a graph could do either.
    (r"(Eager)?PyFunc", "calls Python", "write it in TensorFlow"),
)
# All that TensorFlow marks as having a state or an effect, and that keeps nothing from call to
# call. Others are refused, known or not.
_KEEPS_NOTHING = re.compile(
    r"ReadVariableOp|ResourceGather(Nd)?|VariableShape|LookupTable(Find|Size)V2|If|While|Case|StatefulPartitionedCall|DeviceIndex|Assert"
    r"|CheckNumerics(V2)?|PrintV2|StatelessRandomGetAlg|CudnnRNN(Backprop)?(V[23])?"
)
# Of the local variables of a TFF model, which `TffModel` sets back.
_LOCAL_WRITES = {"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"}


# What Keras's own training calls of a model, and fedmf does not.
_OF_FIT = ("train_step", "compute_loss")


def check_model(functions: ModelFunctions, task: TaskData, config: TrainConfig) -> None:
    """Looks at every operation of the task's model and loss in training, forwards and backwards.

    A written variable or table would carry a client's data into the next client's update without
    being clipped: the sensitivity would not be the plan's. A run with random draws could not be
    repeated. Python may do both.

    Raises:
      ValueError: for such an operation, for trained weights or computations in other than float32,
        and for weights that are not trained in a model for TFF, whose state does not hold them.
    """
    model = functions.build_model(config.seed)
    specs = tensor_specs(task.spec)
    _check_labels(functions, specs)
    _check_dtypes(functions, model)
    _check_inputs(functions, specs, model)
    loss = batch_loss(functions)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
            if value.shape.rank != 0:
                return value, ()
            total_loss = minimised(value, model.losses)
        return value, tape.gradient(total_loss, model.trainable_variables)

    traced_step = tf.function(step)
    try:
        traced = traced_step.get_concrete_function(*specs)
    except tf.errors.OperatorNotAllowedInGraphError as error:
        raise ValueError(
            f"model or loss of task {task.name!r} asks in Python for the value of a tensor "
            f"({_reason(error)}), which a graph has not computed yet: use tf.cond, or leave out "
            "the layer (SpectralNormalization would also carry what it has seen of one client to "
            "the next)"
        ) from error
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"model or loss of task {task.name!r} do not take a batch {specs} of its examples: "
            f"make them fit ({_reason(error)})"
        ) from error
    shape = traced.structured_outputs[0].shape
    if shape.rank != 0:
        raise ValueError(
            f"loss of task {task.name!r} gives the shape {shape} where a scalar is needed: "
            f"{_way_to_a_scalar(functions)}"
        )
    first = take(task.split("validation"), slice(task.batch_size))
    try:
        traced_step(*tf.nest.map_structure(tf.constant, first))
    except tf.errors.InvalidArgumentError as error:
        raise ValueError(
            f"model or loss of task {task.name!r} fail on its validation split: make outputs and "
            f"labels fit ({misfit_reason(error)})"
        ) from error
    _check_metrics(functions, task, model, first)
    if config.private_metrics:
        _check_private(functions, task, model, first)
    found = operations(traced)
    if isinstance(model, TffModel):
        _check_local_variables(functions, model, traced.graph.variables)
        found -= _LOCAL_WRITES
    others = [name for name in found if _has_state(name) and not _KEEPS_NOTHING.fullmatch(name)]
    rest = "|".join(others) or "$", "keeps a state or has an effect", "leave out its layer"
    for pattern, does, instead in (*_FORBIDDEN, rest):
        matching = sorted(operation for operation in found if re.match(pattern, operation))
        if matching:
            raise ValueError(
                f"build_model of task {task.name!r} gives a model that {does} in training "
                f"({', '.join(matching)}), so that the guarantee would not hold: {instead}"
            )
    if not isinstance(model, TffModel):
        _check_outside(functions, model, traced.graph.variables)
    in_tff = execution_kind(config.execution).in_tff
    if in_tff and functions.loss is not None:
        _check_captures(functions, specs, model, loss)
    # The vocabulary of an adapted lookup layer has no name.
    fixed = [getattr(weight, "name", "a vocabulary") for weight in model.non_trainable_variables]
    if fixed and in_tff:
        raise ValueError(
            f"build_model of task {task.name!r} gives a model with weights that are not trained "
            f"({', '.join(fixed)}), which "
            f"execution={config.execution!r} does not take: use execution='fast'"
        )


def _way_to_a_scalar(functions: ModelFunctions) -> str:
    if isinstance(functions.loss, tf.keras.losses.Loss):
        return f'its reduction is {functions.loss.reduction!r}: use "sum_over_batch_size" or "sum"'
    return "take the mean, or pass a tf.keras.losses.Loss"


def _has_state(operation: str) -> bool:
    # None for a function of the graph, whose operations are looked at as well.
    definition = op_def_registry.get(operation)
    return definition is not None and definition.is_stateful


def _reason(error: Exception) -> str:
    """Returns the line of an error that says what is wrong.

    Keras lists a layer's arguments behind it, and names the layer before it.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for number, line in reversed(list(enumerate(lines[:-1]))):
        layer = re.search(r"when calling layer ['\"](.+)['\"] \(type (\w+)\)", line)
        if layer is not None:
            sentence = lines[number + 1].partition(". ")[0].rstrip(".")
            return f"{layer[2]} {layer[1]!r}: {sentence}"
    return lines[-1] if lines else type(error).__name__


def misfit_reason(error: tf.errors.InvalidArgumentError) -> str:
    """What an operation says of its inputs, without nodes' names and places in the code."""
    lines = [line for line in error.message.splitlines() if line.strip() and "[[" not in line]
    return lines[-1].rpartition("}} ")[2].strip()


def _check_dtypes(functions: ModelFunctions, model: Any) -> None:
    """Refuses what clipped float32 updates do not hold, and float16, in which small
    gradients are zero.
    """
    layers = () if isinstance(model, TffModel) else model._flatten_layers()
    half = [
        f"{layer.name} computes in float16" for layer in layers if layer.compute_dtype == "float16"
    ]
    others = [
        f"{v.name} is {v.dtype.name}" for v in model.trainable_variables if v.dtype != tf.float32
    ]
    if half or others:
        raise ValueError(
            f"build_model of task {functions.name!r} gives a model that is not all float32 "
            f"({', '.join(others or half)}): build it with "
            "float32 weights, under the Keras policy float32 or mixed_bfloat16"
        )
    own = [
        name
        for name in _OF_FIT
        if getattr(type(model), name, None) is not getattr(tf.keras.Model, name)
    ]
    if own and not isinstance(model, TffModel):
        raise ValueError(
            f"build_model of task {functions.name!r} gives a model with a {' and a '.join(own)} "
            "of its "
            "own, which fedmf does not call: put what "
            "it minimises into the task's loss, or into add_loss"
        )
    bound = [
        v.name for v in model.trainable_variables if getattr(v, "constraint", None) is not None
    ]
    if bound:
        raise ValueError(
            f"build_model of task {functions.name!r} gives a model with constraints on weights "
            f"({', '.join(bound)}), which nobody applies "
            "between a client's steps: leave them out, or use a regulariser"
        )
    if not model.trainable_variables:
        raise ValueError(
            f"build_model of task {functions.name!r} gives a model of which nothing is trained: "
            "leave a layer trainable"
        )


def _check_labels(functions: ModelFunctions, specs: Any) -> None:
    """Refuses texts as labels of a Keras loss."""
    texts = [spec for spec in tf.nest.flatten(specs[1]) if spec.dtype == tf.string]
    if texts and isinstance(functions.loss, tf.keras.losses.Loss):
        raise TypeError(
            f"the labels of task {functions.name!r} are texts, which no Keras loss takes: number "
            "them, "
            "as by classes, y = np.unique(y, return_inverse=True)"
        )


def _check_inputs(functions: ModelFunctions, specs: Any, model: Any) -> None:
    """Refuses examples of which Keras would drop a part without a word, such as 0.7 for an input of
    whole numbers.
    """
    taken = tf.nest.flatten(getattr(model, "input", ()))
    given = tf.nest.flatten(specs[0])
    for spec, tensor in zip(given, taken, strict=True) if len(given) == len(taken) else ():
        fractions = spec.dtype.is_floating and not (
            tensor.dtype.is_floating or tensor.dtype.is_complex
        )
        if fractions or (spec.dtype.is_complex and not tensor.dtype.is_complex):
            raise TypeError(
                f"the examples of task {functions.name!r} are {spec.dtype.name} where its model "
                "takes "
                f"{tensor.dtype.name} ({tensor.name}), "
                "which would drop a part of each number: convert one of them"
            )


def _check_outside(functions: ModelFunctions, model: Any, used: Any) -> None:
    """Refuses a variable that is no weight: a program may change it between rounds, and a resume
    would not know its value.
    """
    # By handle: mixed precision wraps each variable that the model lists, and the graph has the
    # wrapped one. The vocabulary of an adapted lookup layer is listed, and is a table.
    weights = {id(variable.handle) for variable in model.variables if hasattr(variable, "handle")}
    outside = [variable.name for variable in used if id(variable.handle) not in weights]
    if outside:
        raise ValueError(
            f"model or loss of task {functions.name!r} read a variable that is no weight of the "
            "model "
            f"({', '.join(outside)}), which may change "
            "while a run goes on: make it a number, or a weight that is not trained"
        )


def _check_captures(functions: ModelFunctions, specs: Any, model: Any, loss: BatchLoss) -> None:
    """Refuses a loss that uses a tensor or a variable from outside, which the graphs that TFF
    builds cannot hold.
    """
    x, y = specs
    outputs = (
        tf.function(lambda x: model(x, training=True)).get_concrete_function(x).structured_outputs
    )
    output_specs = tf.nest.map_structure(
        lambda output: tf.TensorSpec(output.shape, output.dtype), outputs
    )
    if tf.function(loss).get_concrete_function(y, output_specs).captured_inputs:
        raise ValueError(
            f"loss of task {functions.name!r} uses a tensor or a variable that was made outside "
            "of it, "
            "which execution='tff' does not take: "
            "make it a numpy array or a number, or use execution='fast'"
        )


def _check_metrics(
    functions: ModelFunctions, task: TaskData, model: Any, examples: Examples
) -> None:
    """Refuses metrics that do not take the outputs, that are no single numbers, or of which two
    have one name.
    """
    if functions.metrics is None:
        return
    _ = task.headline  # refuses what is no metric
    metrics = list(functions.metrics())
    x, y = tf.nest.map_structure(tf.constant, examples)
    names = [metric.name for metric in metrics]
    for metric in metrics:
        if names.count(metric.name) > 1:
            raise ValueError(
                f"metric {metric.name!r} of task {task.name!r} is there twice: name one otherwise"
            )
        try:
            update_metric(metric, y, model(x, training=False))
            shape = np.asarray(metric.result()).shape
        except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
            raise ValueError(
                f"metric {metric.name!r} of task {task.name!r} fails on its validation split: make "
                f"it fit outputs and labels ({_reason(error)})"
            ) from error
        if shape:
            raise ValueError(
                f"metric {metric.name!r} of task {task.name!r} has a result of shape "
                f"{shape}: give one number"
            )


def _check_private(
    functions: ModelFunctions, task: TaskData, model: Any, examples: Examples
) -> None:
    """Refuses an evaluation in which a client's metrics would not follow from its own examples: the
    sum of private metrics would be more sensitive than the plan says.
    """
    specs = tensor_specs(task.spec)
    cannot = f"private_metrics do not go with task {task.name!r}"
    if isinstance(model, TffModel) or functions.metrics is None:
        raise ValueError(f"{cannot}: give it a Keras model, and a metric between 0 and 1")
    metrics = list(functions.metrics())
    traced = tf.function(lambda x: model(x, training=False)).get_concrete_function(specs[0])

    def update(x: Any, y: Any) -> None:
        for metric in metrics:
            update_metric(metric, y, model(x, training=False))

    drawn = operations(tf.function(update).get_concrete_function(*specs))
    kept = [n for n in operations(traced) if _has_state(n) and not _KEEPS_NOTHING.fullmatch(n)]
    (_, _, _), (random, _, _), (python, _, _) = _FORBIDDEN
    kept += [name for name in drawn if re.match(f"{random}|{python}", name)]
    if kept:
        raise ValueError(
            f"{cannot}, whose evaluation keeps a state, draws random numbers or calls Python "
            f"({', '.join(sorted(set(kept)))}): evaluate by a pure function"
        )
    before = [np.copy(value) for metric in metrics for value in metric.get_weights()]
    update(*tf.nest.map_structure(tf.constant, examples))
    headline = next(metric for metric in metrics if metric.name == task.headline)
    if not 0 <= float(headline.result()) <= 1:
        raise ValueError(f"{cannot}, whose {task.headline} is not between 0 and 1: put one first")
    for metric in metrics:
        metric.reset_state()
    after = [value for metric in metrics for value in metric.get_weights()]
    if not all(np.array_equal(a, b) for a, b in zip(before, after, strict=True)):
        raise ValueError(f"{cannot}, of whose metrics one is not as new after `reset_state`")


def _check_local_variables(functions: ModelFunctions, model: TffModel, used: Any) -> None:
    """Refuses a TFF model that changes a weight, or keeps numbers in a variable that it does not
    list: nothing sets it back.
    """
    weights = [*model.trainable_variables, *model.non_trainable_variables]
    listed = {id(variable.handle) for variable in (*weights, *model.local_variables)}
    hidden = [variable.name for variable in used if id(variable.handle) not in listed]
    if hidden:
        raise ValueError(
            f"build_model of task {functions.name!r} gives a {model.kind} that uses the variables "
            f"{', '.join(hidden)} and lists them neither as "
            "weights nor as local_variables: list them"
        )
