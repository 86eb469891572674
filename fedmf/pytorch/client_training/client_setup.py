"""Choice of how clients train, which is many in a call or one in each thread.

The choice is made on each machine that trains clients, which may be a worker of a cluster.
"""

import contextlib
import functools
import logging
import textwrap
import weakref
from collections.abc import Callable
from typing import NamedTuple

import torch

from fedmf.pytorch.client_training.on_device import ClientsOnDevice
from fedmf.pytorch.client_training.one_client import ModuleClient
from fedmf.pytorch.client_training.stacked import ClientStack, stacked_operations
from fedmf.pytorch.module_functions import ModuleFunctions
from fedmf.pytorch.module_tensors import trained_parameters
from fedmf.pytorch.torch_settings import TorchWork, process_settings
from fedmf.training import vectorised_sizes
from fedmf.training.client_work import ClientWork, cores
from fedmf.training.execution.groups import group_size
from fedmf.training.execution.in_threads import ClientsInThreads
from fedmf.training.execution.one_step_clients import OneStepClients
from fedmf.training.learner import ClientSettings, Machine

# Models with at most this many parameters are stacked on a processor. With larger models the
# arithmetic takes more time than the calls of operations, and stacked convolutions and recurrent
# layers are slower: 16 stacked clients took 0.3 of the time of single ones with a perceptron of
# 27,000 parameters, 0.8 with an LSTM of 21,000, and 1.5 with a convolutional network of 59,000.
SMALL_MODEL = 30_000
# Largest number of weights of all clients of a call on a GPU, of which a step holds about five
# copies: 20 GB.
MAX_GPU_PRODUCTS = 2**30
# Maximal length of an error's text in the reason for a kind of client work.
_MAX_CHARACTERS = 200
# The results of `_stacking_error`, which takes seconds: functions of a task -> what the result
# depends on -> result. Fine-tuning makes client work for each learning rate, for example.
_stacking_errors: weakref.WeakKeyDictionary[ModuleFunctions, dict[str, str]] = (
    weakref.WeakKeyDictionary()
)


def choose_client_work(
    functions: ModuleFunctions, settings: ClientSettings, machine: Machine
) -> ClientWork:
    """Returns the object that trains clients, and logs how it trains them and why. A model that
    could be stacked but for torch.vmap is a warning.

    Args:
      functions: the task's functions.
      settings: settings of the run.
      machine: threads and device of the client work.
    """
    device = torch.device(machine.device or "cpu")
    parameters = trained_parameters(functions.build(settings.seed)).values()
    num_parameters = sum(parameter.numel() for parameter in parameters)
    shapes = [tuple(parameter.shape) for parameter in parameters]
    make_work: Callable[..., ClientWork]
    if device.type == "cpu":
        num_threads = cores() if machine.threads is None else machine.threads
        make_work = functools.partial(ClientsInThreads, shapes=shapes, threads=num_threads)
    else:
        make_work = functools.partial(ClientsOnDevice, shapes=shapes, device=device)
    make_single_clients = functools.partial(
        make_work, functools.partial(ModuleClient, functions, settings, device)
    )
    log_work = functools.partial(_logged, functions.name, device)
    kind = _choose_kind(settings, num_parameters, device)
    if kind.num_slots == 1:
        return log_work(make_single_clients(reason=kind.reason), contextlib.nullcontext)
    make_stack = functools.partial(
        ClientStack, functions, settings, kind.num_slots, device, has_one_step=kind.has_one_step
    )
    # Gradients depend on nothing else, and optimizers compute each entry by itself.
    facts = (settings.spec, settings.batch_size, settings.seed, kind, device)
    errors_of_functions = _stacking_errors.setdefault(functions, {})
    if repr(facts) not in errors_of_functions:
        errors_of_functions[repr(facts)] = _stacking_error(make_stack, device)
    stacking_error = errors_of_functions[repr(facts)]
    if stacking_error:
        work = make_single_clients(reason=stacking_error)
        return log_work(work, contextlib.nullcontext, logging.WARNING)
    stacks = make_work(make_stack, reason=kind.reason, clients_per_call=kind.num_slots)
    if not kind.has_one_step:
        return log_work(stacks, stacked_operations)
    reason = "they have several examples each"
    work_of_both = OneStepClients(stacks, functools.partial(make_single_clients, reason=reason))
    return log_work(work_of_both, stacked_operations)


class _WorkKind(NamedTuple):
    """A kind of client work.

    Attributes:
      num_slots: number of slots of a stack of clients; 1 if clients train one by one.
      has_one_step: whether clients of a stack have one example each, and share the weights.
      reason: the reason for this kind.
    """

    num_slots: int
    has_one_step: bool
    reason: str


def _choose_kind(settings: ClientSettings, num_parameters: int, device: torch.device) -> _WorkKind:
    """Returns the kind of client work that is fastest for a model that torch.vmap can run."""
    if device.type != "cpu":
        # A GPU has no best width, and computes a whole group of clients in one call.
        clients_per_group = group_size(settings.cohort_size, settings.batch_size, num_parameters)
        num_clients = min(clients_per_group, settings.cohort_size)
        if num_parameters * num_clients <= MAX_GPU_PRODUCTS:
            return _WorkKind(num_clients, False, "a GPU computes many clients at once")
        return _WorkKind(1, False, f"the weights of {num_clients} clients take too much memory")
    num_slots = vectorised_sizes.slots_per_call(settings, num_parameters)
    if num_parameters <= SMALL_MODEL:
        reason = f"the model has {num_parameters} parameters, at most {SMALL_MODEL}"
        return _WorkKind(num_slots, False, reason)
    has_memory = num_parameters * num_slots <= vectorised_sizes.MAX_PRODUCTS
    if settings.batch_size == settings.epochs == 1 and has_memory:
        return _WorkKind(num_slots, True, "clients have one example each")
    reason = (
        f"the model has {num_parameters} parameters, and stacked steps are slower from "
        f"{SMALL_MODEL} on"
    )
    return _WorkKind(1, False, reason)


def _logged(
    task_name: str,
    device: torch.device,
    work: ClientWork,
    settings_of_round: Callable[[], contextlib.AbstractContextManager[None]],
    level: int = logging.INFO,
) -> ClientWork:
    """Logs how client work trains clients, once in this process, and returns it for PyTorch."""
    _log_once(f"task {task_name!r}: {work.explain()}", level)
    return TorchWork(work, device, settings_of_round)


def _stacking_error(make_stack: Callable[[], ClientStack], device: torch.device) -> str:
    """Returns the reason for which clients cannot be stacked; empty if they can."""
    try:
        with process_settings(device), stacked_operations():
            make_stack().check()
    except Exception as error:
        # Any type of error is caught, because a user's module may raise any type under torch.vmap.
        error_text = textwrap.shorten(str(error), _MAX_CHARACTERS, placeholder="...")
        return f"clients cannot be stacked ({type(error).__name__}: {error_text})"
    return ""


@functools.cache
def _log_once(sentence: str, level: int) -> None:
    """Logs a sentence, unless this process has logged it before."""
    logging.getLogger("fedmf").log(level, sentence)
