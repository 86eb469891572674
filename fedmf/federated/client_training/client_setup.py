"""Choice of how clients of a Keras or TFF model train, which is compiled, vectorised or in threads.

The choice is made on each machine that trains clients, which may be a worker of a cluster.
"""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator

import tensorflow as tf

from fedmf.federated.client_training.in_threads import CompiledClient, KerasClient
from fedmf.federated.client_training.records import Records
from fedmf.federated.client_training.vectorised import VectorisedClients
from fedmf.federated.model_functions import CompiledEpoch, ModelFunctions
from fedmf.training import vectorised_sizes
from fedmf.training.client_work import ClientWork, cores
from fedmf.training.execution.in_threads import ClientsInThreads
from fedmf.training.learner import ClientSettings

_NOT_COMPILED = (
    "task {!r} has a compiled epoch on the machine where the run began, and it does not run on "
    "this machine: install a C compiler here too, or train the task without its `compiled_epoch`"
)
_SLOW = (
    "the compiled epoch of {} does not run here, so its Keras model trains, about half as fast: "
    "install a C compiler, or name one in FEDMF_CC"
)


def compiled_epoch(functions: ModelFunctions, settings: ClientSettings) -> CompiledEpoch | None:
    """Returns the task's function for a compiled epoch, or None if it cannot be used.

    It is None if the task has no such function, if the function does not run on this machine, or if
    clients do not train for one epoch of plain SGD.
    """
    if functions.compiled_epoch is None or not _is_plain_sgd(settings):
        return None
    return functions.compiled_epoch()


def _is_plain_sgd(settings: ClientSettings) -> bool:
    """Returns whether clients train for one epoch of SGD without momentum and proximal term."""
    is_one_epoch = settings.optimizer == "sgd" and settings.epochs == 1
    return is_one_epoch and not settings.momentum and not settings.proximal_strength


def work_kind(functions: ModelFunctions, settings: ClientSettings) -> str:
    """Returns "compiled" if the task's compiled epoch runs on this machine, else "autodiff"."""
    return "autodiff" if compiled_epoch(functions, settings) is None else "compiled"


def slowness_warning(functions: ModelFunctions, settings: ClientSettings) -> str:
    """Returns a warning if this machine cannot run the compiled epoch of the task, else ""."""
    could_be_compiled = functions.compiled_epoch is not None and _is_plain_sgd(settings)
    if could_be_compiled and settings.work_kind == "autodiff":
        return _SLOW.format(functions.name)
    return ""


def client_work(
    functions: ModelFunctions, settings: ClientSettings, threads: int | None
) -> ClientWork:
    """Returns the object that trains clients, by the kind of client work in the settings.

    Small models, and clients of one gradient each, are vectorised: they train in one call. Other
    clients train in parallel, each on one thread.

    Args:
      functions: the task's functions.
      settings: the run's settings.
      threads: number of parallel clients; None for one on each processor.

    Raises:
      ValueError: the compiled epoch does not run here.
    """
    initial_model = functions.build_model(settings.seed)
    records = Records([variable.numpy() for variable in initial_model.trainable_variables])
    num_threads = cores() if threads is None else threads
    make_work_in_threads = functools.partial(
        ClientsInThreads,
        shapes=[tuple(spec.shape) for spec in records.flat_specs],
        threads=num_threads,
    )
    if settings.work_kind != "compiled":
        make_client = functools.partial(KerasClient, functions, settings, records)

        def make_fallback(reason: str) -> ClientWork:
            return make_work_in_threads(make_client, reason=reason)

        return _vectorised_work(functions, settings, records, make_fallback)
    epoch_function = compiled_epoch(functions, settings)
    if epoch_function is None:
        raise ValueError(_NOT_COMPILED.format(functions.name))
    return make_work_in_threads(
        functools.partial(CompiledClient, epoch_function, settings, records),
        reason="the task's compiled epoch runs here",
    )


@contextlib.contextmanager
def _quiet_tensorflow() -> Iterator[None]:
    """Silences TensorFlow's logger, which reports each operation without a vectorised form.

    Clients of such a model train one by one.
    """
    logger = tf.get_logger()
    previous_level = logger.level
    logger.setLevel("CRITICAL")
    try:
        yield
    finally:
        logger.setLevel(previous_level)


def _vectorised_work(
    functions: ModelFunctions,
    settings: ClientSettings,
    records: Records,
    make_fallback: Callable[[str], ClientWork],
) -> ClientWork:
    """Returns client work that is vectorised if the model supports it, else the fallback.

    A model that should be vectorised and cannot be is logged once, with the reason.
    """
    if not vectorised_sizes.is_small(records.size) and settings.batch_size > 1:
        return make_fallback(
            f"the model has {records.size} parameters, and vectorised steps are slower from "
            f"{vectorised_sizes.SMALL_MODEL} on"
        )
    if records.size * vectorised_sizes.SLOT_MULTIPLE > vectorised_sizes.MAX_PRODUCTS:
        return make_fallback(
            f"the model has {records.size} parameters, and {vectorised_sizes.SLOT_MULTIPLE} "
            "clients of it in one call would need too much memory"
        )
    # Clients with a single example may be vectorised although other clients of the cohort have
    # several examples, for which the fallback is needed.
    fallback_for_many = functools.partial(make_fallback, "they have several examples each")
    try:
        with _quiet_tensorflow():
            return VectorisedClients(functions, settings, records, fallback_for_many)
    except Exception as error:
        # Any type of error is caught, because TensorFlow may raise any type when it traces a user's
        # model.
        first_line = next(iter(str(error).splitlines()), "")
        fallback_reason = f"the model cannot be vectorised ({type(error).__name__}: {first_line})"
        _log_once(f"task {functions.name!r}: clients train one by one, for {fallback_reason}")
        return make_fallback(fallback_reason)


@functools.cache
def _log_once(sentence: str) -> None:
    """Logs a sentence as a warning, unless this process has logged it before."""
    logging.getLogger("fedmf").warning(sentence)
