"""Which client work a Keras or TFF model gets, on this machine or on a worker of a cluster."""

import functools

from fedmf.federated.execution.in_threads import CompiledClient, KerasClient
from fedmf.federated.execution.records import Records
from fedmf.federated.execution.side_by_side import side_by_side
from fedmf.federated.model_functions import CompiledEpoch, ModelFunctions
from fedmf.training.client_work import ClientWork, cores
from fedmf.training.execution.in_threads import ClientsInThreads
from fedmf.training.learner import ClientSettings

_NOT_COMPILED = (
    "task {!r} has no compiled epoch that runs on this machine, as it does where the run was "
    "begun: install a C compiler here too, or train the task without its `compiled_epoch`"
)
_SLOW = (
    "the compiled epoch of {} does not run here, so its Keras model trains, about half as fast: "
    "install a C compiler, or name one in FEDMF_CC"
)


def compiled_epoch(functions: ModelFunctions, settings: ClientSettings) -> CompiledEpoch | None:
    """Returns the task's compiled epoch; None where it has none for this client work, or none that
    runs here.
    """
    if functions.compiled_epoch is None or not _is_plain(settings):
        return None
    return functions.compiled_epoch()


def _is_plain(settings: ClientSettings) -> bool:
    """Returns whether clients make one epoch of plain SGD, which is what compiled epochs do."""
    plain = settings.optimizer == "sgd" and settings.epochs == 1
    return plain and not settings.momentum and not settings.proximal_strength


def work_kind(functions: ModelFunctions, settings: ClientSettings) -> str:
    """Returns "compiled" where a compiled epoch runs on this machine, else "autodiff"."""
    return "autodiff" if compiled_epoch(functions, settings) is None else "compiled"


def slow(functions: ModelFunctions, settings: ClientSettings) -> str:
    """Returns why client work of this kind is slow, where a compiled epoch does not run here."""
    could_be_compiled = functions.compiled_epoch is not None and _is_plain(settings)
    if could_be_compiled and settings.work_kind == "autodiff":
        return _SLOW.format(functions.name)
    return ""


def client_work(
    functions: ModelFunctions, settings: ClientSettings, threads: int | None
) -> ClientWork:
    """Returns the client work of the kind that the settings say, with so many clients at a time,
    each on one thread; None for one on each processor.

    Small models, and clients of one gradient each, train vectorised in one call.

    Raises:
      ValueError: the compiled epoch does not run here.
    """
    model = functions.build_model(settings.seed)
    records = Records([variable.numpy() for variable in model.trainable_variables])
    in_threads = functools.partial(
        ClientsInThreads,
        shapes=[tuple(spec.shape) for spec in records.flat_specs],
        threads=cores() if threads is None else threads,
    )
    if settings.work_kind != "compiled":
        one_client = functools.partial(KerasClient, functions, settings, records)

        def others(reason: str) -> ClientWork:
            return in_threads(one_client, reason=reason)

        return side_by_side(functions, settings, records, others)
    epoch = compiled_epoch(functions, settings)
    if epoch is None:
        raise ValueError(_NOT_COMPILED.format(functions.name))
    return in_threads(
        functools.partial(CompiledClient, epoch, settings, records),
        reason="the task's compiled epoch runs here",
    )
