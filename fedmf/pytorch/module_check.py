"""Checks that training carries a client's data to other clients through the clipped sum only."""

import random
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fedmf.pytorch.batches import as_tensors
from fedmf.pytorch.client_training.one_client import ModuleClient
from fedmf.pytorch.evaluation import ModuleEvaluator
from fedmf.pytorch.fingerprint import frozen_digest
from fedmf.pytorch.module_functions import ModuleFunctions
from fedmf.pytorch.module_tensors import as_array, frozen_tensors, trained_parameters
from fedmf.pytorch.recorded_training import (
    NoBatchStatistics,
    RecordedOperations,
    recorded_autocasts,
)
from fedmf.pytorch.torch_settings import process_settings, training_mode
from fedmf.runs.config import TrainConfig
from fedmf.runs.executions import execution_kind
from fedmf.training.evaluation import check_evaluation
from fedmf.training.examples import Examples, count, digest, take
from fedmf.training.learner import ClientSettings, Evaluation, TaskData

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
    module = functions.build(config.seed)
    check_module(functions.name, module)
    _check_second_module(functions, module, config.seed)
    module.train()
    _check_layers(functions.name, module)
    with process_settings(torch.device("cpu")):
        _check_training(functions, task, config)
        _check_evaluation(functions, task, config)


def check_module(task_name: str, module: Any) -> None:
    """Checks the type and the parameters of the module that a task builds.

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
        if getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise ValueError(
                f"parameter {name!r} of task {task_name!r} has a hook after the accumulation of "
                "its gradient, which is not called because clients accumulate none: leave it out, "
                "or use `register_hook`"
            )
        if parameter.requires_grad and parameter.dtype not in _DTYPES:
            raise TypeError(
                f"parameter {name!r} of task {task_name!r} is {parameter.dtype}, in which steps "
                "and noise would be rounded away: train in float32"
            )
    _check_buffers(task_name, module)
    _check_memory(task_name, module)
    if not sum(parameter.numel() for parameter in trained_parameters(module).values()):
        raise ValueError(
            f"the model of task {task_name!r} has no parameter that requires a gradient: there is "
            "nothing to train"
        )


def _check_buffers(task_name: str, module: torch.nn.Module) -> None:
    """Raises a TypeError if a buffer cannot become an array, for the fingerprint of a run."""
    for name, buffer in module.named_buffers():
        try:
            as_array(buffer)
        except (TypeError, RuntimeError) as error:
            raise TypeError(
                f"buffer {name!r} of task {task_name!r} is {buffer.dtype} with the layout "
                f"{buffer.layout} on the device {buffer.device}, and cannot become an array: make "
                "it a dense tensor on the processor"
            ) from error


class _MemorySpan(NamedTuple):
    """The addresses between the first and the last entry of a tensor, and its name in a module."""

    start: int
    end: int
    name: str

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> Self:
        """Returns the span of a tensor with entries."""
        dimensions = zip(tensor.stride(), tensor.shape, strict=True)
        num_spanned = 1 + sum(stride * (size - 1) for stride, size in dimensions)
        start = tensor.data_ptr()
        return cls(start, start + num_spanned * tensor.element_size(), name)


def _check_memory(task_name: str, module: torch.nn.Module) -> None:
    """Raises a ValueError if trained parameters share memory with other tensors or among their own
    entries, so that a step of one would change the other.
    """
    trained_tensors = trained_parameters(module)
    all_tensors = {**trained_tensors, **frozen_tensors(module), **_plain_tensors(module)}
    spans = [
        _MemorySpan.of(name, tensor)
        for name, tensor in all_tensors.items()
        if tensor.numel() and tensor.layout == torch.strided
    ]
    for span in spans:
        if span.name not in trained_tensors:
            continue
        tensor = trained_tensors[span.name]
        if span.end - span.start < tensor.numel() * tensor.element_size():
            raise ValueError(
                f"entries of parameter {span.name!r} of task {task_name!r} share memory, as those "
                "of an expanded tensor do: make it of a copy (`tensor.clone()`)"
            )
        for neighbour in spans:
            is_apart = neighbour.end <= span.start or span.end <= neighbour.start
            if neighbour is not span and not is_apart:
                raise ValueError(
                    f"{span.name!r} and {neighbour.name!r} of task {task_name!r} share memory, and "
                    "a step of one would change the other: assign the same Parameter to both "
                    "modules, or make one of a copy (`tensor.clone()`)"
                )


def _plain_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns the tensors by name that are attributes of a module or its submodules, or entries of
    lists among these, and neither parameters nor buffers.
    """
    registered_ids = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    tensor_by_name = {}
    for module_name, submodule in module.named_modules():
        for name, value in vars(submodule).items():
            for number, tensor in enumerate(pytree.tree_leaves(value)):
                if isinstance(tensor, torch.Tensor) and id(tensor) not in registered_ids:
                    tensor_by_name[f"{module_name}.{name} {number}"] = tensor
    return tensor_by_name


def _check_second_module(functions: ModuleFunctions, module: torch.nn.Module, seed: int) -> None:
    """Raises a ValueError if a second module of the same seed has other weights, or shares a part
    with the first.
    """
    second_module = functions.build(seed)
    _check_parts(functions.name, module, second_module)
    if digest(_trained_weights(module)) != digest(_trained_weights(second_module)) or (
        frozen_digest(module) != frozen_digest(second_module)
    ):
        raise ValueError(
            f"model of task {functions.name!r} builds other weights for the same seed: draw them "
            "by torch's, numpy's or Python's default generator"
        )


def _check_parts(
    task_name: str, first_module: torch.nn.Module, second_module: torch.nn.Module
) -> None:
    """Raises a ValueError if two modules have a layer or the memory of a parameter in common."""
    first_layers = {id(layer) for layer in first_module.modules()}
    shared_names = [
        name for name, layer in second_module.named_modules() if id(layer) in first_layers
    ]
    first_addresses = {
        parameter.data_ptr() for parameter in first_module.parameters() if parameter.numel()
    }
    shared_names += [
        name
        for name, parameter in second_module.named_parameters()
        if parameter.data_ptr() in first_addresses
    ]
    if shared_names:
        shared_name = shared_names[0] or "the same module"
        raise ValueError(
            f"model of task {task_name!r} returns {shared_name!r} a second time, and several "
            "clients would train in it at once: build a new module at each call, such as by "
            "copy.deepcopy"
        )


def _check_layers(task_name: str, module: torch.nn.Module) -> None:
    """Raises a ValueError if a layer of a module in training mode uses statistics of a batch, or
    random numbers.
    """
    for name, layer in module.named_modules():
        layer_text = f"layer {name!r} ({type(layer).__name__}) of task {task_name!r}"
        if type(layer).__name__ == "OptimizedModule":
            raise ValueError(
                f"{layer_text} is compiled by torch.compile, and each client trains in a copy: "
                "leave out torch.compile"
            )
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
      ValueError: training fails, changes the module's buffers, draws random numbers, or gives a
        client another update after another client.
    """
    settings = task.client_settings(config)
    first_client, second_client = _two_clients(task)
    module_client = ModuleClient(functions, settings, torch.device("cpu"))
    states_before = module_client.states()
    weights = _trained_weights(functions.build(config.seed))
    _check_outputs(task.name, module_client.copied_module(), first_client)
    _check_operations(module_client, weights, first_client, settings)
    update_digests = [
        _update_digest(trained_client, weights, client, settings)
        for trained_client, client in (
            (module_client, first_client),
            (module_client, second_client),
            (module_client, first_client),
            (ModuleClient(functions, settings, torch.device("cpu")), second_client),
        )
    ]
    if module_client.states() != states_before:
        raise ValueError(
            f"a hook or function of the model of task {task.name!r} writes to the module that "
            "`model` returned, and not to its copy in which a client trains: let it use the module "
            "that it is called with"
        )
    if update_digests[:2] != update_digests[2:]:
        raise ValueError(
            f"training of task {task.name!r} gives a client another update after another client "
            "has trained: let the module and the loss keep no state between calls, and draw no "
            "random numbers"
        )


def _check_operations(
    module_client: ModuleClient,
    weights: Sequence[np.ndarray],
    client: Examples,
    settings: ClientSettings,
) -> None:
    """Trains a client, and checks the operations of its steps.

    Raises:
      ValueError: training fails, draws random numbers, uses statistics of a batch, or caches casts.
    """
    generators_before = _generator_states()
    batch_statistics_message = (
        f"training of task {settings.task!r} computes with statistics of a batch, which are no "
        f"trained parameters: {_NORMALISATION_HINT}"
    )
    with (
        RecordedOperations() as operations,
        NoBatchStatistics(batch_statistics_message),
        recorded_autocasts() as caches,
    ):
        _update_digest(module_client, weights, client, settings)
    if operations.random_names or _generator_states() != generators_before:
        names_text = ", ".join(sorted(operations.random_names)) or "from a default generator"
        raise ValueError(
            f"training of task {settings.task!r} draws random numbers ({names_text}), so that no "
            "run could be repeated: leave out dropout and other random layers"
        )
    if any(caches):
        raise ValueError(
            f"training of task {settings.task!r} uses an autocast that caches casts of weights, "
            "which all threads share: enter torch.autocast in `forward`, and not as a decorator or "
            "with cache_enabled=True"
        )


def _generator_states() -> str:
    """Returns a text that changes when the default generator of PyTorch, numpy or Python draws."""
    numpy_state = np.random.get_state()  # noqa: NPY002  (the models of users draw from it)
    return repr((torch.get_rng_state().tolist(), numpy_state, random.getstate()))


def _update_digest(
    module_client: ModuleClient,
    weights: Sequence[np.ndarray],
    client: Examples,
    settings: ClientSettings,
) -> str:
    """Trains a client, and returns a digest of its update."""
    with training_mode(torch.device("cpu")):
        update, _ = _trained(module_client, weights, client, settings)
    return digest([as_array(leaf) for leaf in update])


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


def _check_evaluation(functions: ModuleFunctions, task: TaskData, config: TrainConfig) -> None:
    """Checks that module and metrics are pure functions, and fit the validation split.

    Raises:
      ValueError: a metric fails or is no pure function, or private metrics are not between 0 and 1.
    """
    evaluator = ModuleEvaluator(functions, task.client_settings(config))

    def evaluate(weights: Sequence[np.ndarray], examples: Examples) -> Evaluation:
        try:
            return evaluator(weights, examples)
        except Exception as error:
            raise ValueError(
                f"evaluation of task {task.name!r} fails on its validation split "
                f"({type(error).__name__}: {error}): make metrics fit outputs and labels"
            ) from error

    check_evaluation(evaluate, _trained_weights(functions.build(config.seed)), task, config)


def _trained_weights(module: torch.nn.Module) -> list[np.ndarray]:
    """Returns copies of the trained parameters of a module."""
    return [as_array(parameter) for parameter in trained_parameters(module).values()]
