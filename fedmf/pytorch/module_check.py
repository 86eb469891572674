"""Checks that training carries a client's data to other clients through the clipped sum only."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fedmf.pytorch.batches import as_tensors
from fedmf.pytorch.client_training.one_client import ModuleClient
from fedmf.pytorch.evaluation import ModuleEvaluator
from fedmf.pytorch.fingerprint import frozen_digest
from fedmf.pytorch.module_functions import ModuleFunctions
from fedmf.pytorch.module_tensors import as_array, frozen_tensors, trained_parameters
from fedmf.pytorch.one_thread import one_thread, training_mode
from fedmf.runs.config import TrainConfig
from fedmf.runs.executions import execution_kind
from fedmf.training.examples import Examples, count, digest, take
from fedmf.training.learner import ClientSettings, TaskData

_NORMALISATION_HINT = (
    "use torch.nn.GroupNorm, or keep the layer in evaluation mode by a `train` method of the module"
)
_DTYPES = (torch.float32, torch.float64)


def check_trainable(functions: ModuleFunctions, task: TaskData, config: TrainConfig) -> None:
    """Checks that a task's module and loss can be trained, and that the guarantee holds for them.

    Raises:
      TypeError, ValueError: the guarantee would not hold, or training would fail.
    """
    if execution_kind(config.execution).in_tff:
        raise ValueError(
            f"execution={config.execution!r} trains models of TFF, and task {task.name!r} has a "
            "PyTorch model: use execution='fast'"
        )
    module = functions.build_model(config.seed)
    check_module(functions.name, module)
    _check_same_weights(functions, module, config.seed)
    _check_layers(functions.name, module.train())
    with one_thread():
        _check_training(functions, task, config)
        _check_evaluation(functions, task, config)


def check_module(task_name: str, module: Any) -> None:
    """Checks the type and the parameters of what a task builds.

    Raises:
      TypeError: it is no module, or a parameter has another dtype than float32 or float64.
      ValueError: it has no parameter to train, or its parameters have no values yet.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(
            f"model of task {task_name!r} returns a {type(module).__name__}: return a "
            "torch.nn.Module"
        )
    for name, parameter in module.named_parameters():
        if torch.nn.parameter.is_lazy(parameter):
            raise ValueError(
                f"parameter {name!r} of task {task_name!r} is lazy and has no shape yet: give its "
                "layer the number of inputs"
            )
        if parameter.device.type != "cpu":
            raise ValueError(
                f"parameter {name!r} of task {task_name!r} is on the device {parameter.device}: "
                "build the model on the processor; device='cuda' of `train` moves it"
            )
        if not parameter.dtype.is_floating_point:
            raise TypeError(
                f"parameter {name!r} of task {task_name!r} is {parameter.dtype}, and updates are "
                "real numbers: make it a buffer, or two real parameters of a complex one"
            )
        if parameter.requires_grad and parameter.dtype not in _DTYPES:
            raise TypeError(
                f"parameter {name!r} of task {task_name!r} is {parameter.dtype}, in which steps "
                "and noise would be rounded away: train in float32"
            )
    if not sum(parameter.numel() for parameter in trained_parameters(module).values()):
        raise ValueError(
            f"the model of task {task_name!r} has no parameter that requires a gradient: there is "
            "nothing to train"
        )


def _check_same_weights(functions: ModuleFunctions, module: torch.nn.Module, seed: int) -> None:
    """Raises a ValueError if a second module of the same seed has other weights."""
    built_again = functions.build_model(seed)
    if digest(_trained_weights(module)) != digest(_trained_weights(built_again)) or (
        frozen_digest(module) != frozen_digest(built_again)
    ):
        raise ValueError(
            f"model of task {functions.name!r} builds other weights for the same seed: draw them "
            "by torch's, numpy's or Python's default generator"
        )


def _check_layers(task_name: str, module: torch.nn.Module) -> None:
    """Raises a ValueError if a layer of a module in training mode uses statistics of a batch, or
    random numbers.
    """
    for name, layer in module.named_modules():
        layer_text = f"layer {name!r} ({type(layer).__name__}) of task {task_name!r}"
        if not layer.training:
            continue
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm):
            raise ValueError(
                f"{layer_text} computes with statistics of a batch, which are no trained "
                f"parameters: {_NORMALISATION_HINT}"
            )
        if _dropout_rate(layer):
            raise ValueError(
                f"{layer_text} draws random numbers in training, so that no run could be "
                "repeated: leave out dropout, or set its rate to 0"
            )


def _dropout_rate(layer: torch.nn.Module) -> float:
    """Returns the rate of a dropout layer, or of the dropout within a layer; 0 without dropout."""
    if isinstance(layer, torch.nn.modules.dropout._DropoutNd):
        return float(layer.p)
    if isinstance(layer, torch.nn.RNNBase | torch.nn.MultiheadAttention):
        return float(layer.dropout)
    return 0.0


def _check_training(functions: ModuleFunctions, task: TaskData, config: TrainConfig) -> None:
    """Trains two clients in turn on examples of the validation split, and compares their updates.

    Raises:
      ValueError: training fails, changes the module's state, draws random numbers, or gives a
        client another update after another client.
    """
    settings = task.client_settings(config)
    first_client, second_client = _two_clients(task)
    module_client = ModuleClient(functions, settings, torch.device("cpu"))
    module = module_client.module
    weights = _trained_weights(module)
    _check_outputs(task.name, module, first_client)
    frozen_before = frozen_digest(module)
    generator_state = torch.get_rng_state()
    update_digests = []
    for client in (first_client, second_client, first_client):
        with training_mode(torch.device("cpu")):
            update, _ = _trained(module_client, weights, client, settings)
        update_digests.append(digest([as_array(leaf) for leaf in update]))
    if not torch.equal(generator_state, torch.get_rng_state()):
        raise ValueError(
            f"training of task {task.name!r} draws random numbers, so that no run could be "
            "repeated: leave out dropout and other random layers"
        )
    if frozen_digest(module) != frozen_before:
        raise ValueError(
            f"training of task {task.name!r} changes {_changed_names(functions, module, settings)},"
            " which would carry a client's data to other clients without clipping: "
            f"{_NORMALISATION_HINT}"
        )
    if update_digests[0] != update_digests[2]:
        raise ValueError(
            f"training of task {task.name!r} gives a client another update after another client "
            "has trained: let the module and the loss keep no state between calls, and draw no "
            "random numbers"
        )


def _two_clients(task: TaskData) -> tuple[Examples, Examples]:
    """Returns examples of the validation split for two clients. The first has a full batch and one
    example more, and the second has one example.
    """
    examples = task.split("validation")
    first_rows = np.arange(min(task.batch_size + 1, count(examples)))
    return take(examples, first_rows), take(examples, np.array([count(examples) - 1]))


def _trained(
    module_client: ModuleClient,
    weights: Sequence[np.ndarray],
    client: Examples,
    settings: ClientSettings,
) -> tuple[list[torch.Tensor], float]:
    """Trains a client, and returns its update and loss.

    Raises:
      ValueError: the module or the loss fails.
    """
    try:
        return module_client.train(weights, [client])
    except (RuntimeError, IndexError, TypeError, AttributeError, NotImplementedError) as error:
        raise ValueError(
            f"the model of task {settings.task!r} cannot be trained on its validation split "
            f"({type(error).__name__}: {error}): make inputs, outputs, labels and loss fit"
        ) from error


def _check_outputs(task_name: str, module: torch.nn.Module, examples: Examples) -> None:
    """Raises a ValueError if the first axis of an output does not count examples."""
    x, _ = as_tensors(examples, torch.device("cpu"))
    try:
        with torch.no_grad():
            outputs = module(x)
    except Exception as error:
        raise ValueError(
            f"the model of task {task_name!r} fails on its validation split "
            f"({type(error).__name__}: {error}): make the inputs fit, such as float32 in place of "
            "float64"
        ) from error
    for output in pytree.tree_leaves(outputs):
        shape = tuple(getattr(output, "shape", ()))
        if not isinstance(output, torch.Tensor) or shape[:1] != (count(examples),):
            raise ValueError(
                f"the model of task {task_name!r} has an output of shape {shape} for "
                f"{count(examples)} examples: return tensors whose first axis counts examples"
            )


def _changed_names(
    functions: ModuleFunctions, module: torch.nn.Module, settings: ClientSettings
) -> str:
    """Returns the names of buffers and frozen parameters that training has changed."""
    untrained_tensors = frozen_tensors(functions.build_model(settings.seed))
    changed_names = [
        name
        for name, tensor in frozen_tensors(module).items()
        if name not in untrained_tensors or not torch.equal(tensor, untrained_tensors[name])
    ]
    return ", ".join(changed_names)


def _check_evaluation(functions: ModuleFunctions, task: TaskData, config: TrainConfig) -> None:
    """Evaluates a batch, another one, and the first one again.

    Raises:
      ValueError: a metric fails or is no pure function, or private metrics are not between 0 and 1.
    """
    settings = task.client_settings(config)
    evaluate = ModuleEvaluator(functions, settings)
    examples = task.split("validation")
    batch = take(examples, slice(0, task.batch_size))
    last_example = take(examples, np.array([count(examples) - 1]))
    weights = _trained_weights(functions.build_model(config.seed))
    try:
        metric_values = evaluate(weights, batch).values
        evaluate(weights, last_example)
        repeated_values = evaluate(weights, batch).values
    except Exception as error:
        raise ValueError(
            f"evaluation of task {task.name!r} fails on its validation split "
            f"({type(error).__name__}: {error}): make metrics fit outputs and labels"
        ) from error
    if not np.array_equal([*metric_values.values()], [*repeated_values.values()], equal_nan=True):
        raise ValueError(
            f"evaluation of task {task.name!r} gives different metrics for the same examples: make "
            "module and metrics pure functions"
        )
    if config.private_metrics and not 0 <= metric_values[task.headline] <= 1:
        raise ValueError(
            f"private_metrics={config.private_metrics} need a headline metric between 0 and 1, "
            f"and {task.headline} of task {task.name!r} is {metric_values[task.headline]:g}: "
            "put a metric first that is, such as an accuracy"
        )


def _trained_weights(module: torch.nn.Module) -> list[np.ndarray]:
    """Returns copies of the trained parameters of a module."""
    return [as_array(parameter) for parameter in trained_parameters(module).values()]
