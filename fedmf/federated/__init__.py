"""Federated training of Keras and TensorFlow Federated (TFF) models with correlated noise.

The package has `Task`, which describes data and model, and `train`, which runs the training loop.
Where TensorFlow Federated is installed, it also has a DPQuery, an aggregation factory and a check
for TFF's own programs.
"""

from typing import TYPE_CHECKING, Any

from fedmf.federated.tensorflow_import import import_tensorflow

import_tensorflow()

from fedmf.federated.model_functions import CompiledEpoch  # noqa: E402
from fedmf.federated.task import Task  # noqa: E402
from fedmf.federated.tensorboard import TensorBoard  # noqa: E402
from fedmf.server.following import Scaling  # noqa: E402
from fedmf.server.host_noise import HostNoise  # noqa: E402
from fedmf.training.callbacks import Callback, StopAfter  # noqa: E402
from fedmf.training.divergence import DivergedRun, StopOnDivergence  # noqa: E402
from fedmf.training.early_stopping import EarlyStopping  # noqa: E402
from fedmf.training.execution.base import RunOptions  # noqa: E402
from fedmf.training.execution.cluster import WorkersLost  # noqa: E402
from fedmf.training.loop import InterruptedRun, train  # noqa: E402
from fedmf.training.trained_run import TrainedRun  # noqa: E402

if TYPE_CHECKING:
    from fedmf.federated.tff.names import (
        CohortDataSource,
        MatrixFactorizationQuery,
        PlannedProcess,
        ScheduledSGDM,
        check_process,
        dp_aggregator,
    )


def __getattr__(name: str) -> Any:
    """Imports TensorFlow Federated when a name that needs it is used, and returns the object.

    The import is delayed because TensorFlow Federated runs on Python 3.11 alone.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fedmf.federated.tff import names

    return getattr(names, name)


__all__ = [
    "Callback",
    "CohortDataSource",
    "CompiledEpoch",
    "DivergedRun",
    "EarlyStopping",
    "HostNoise",
    "InterruptedRun",
    "MatrixFactorizationQuery",
    "PlannedProcess",
    "RunOptions",
    "Scaling",
    "ScheduledSGDM",
    "StopAfter",
    "StopOnDivergence",
    "Task",
    "TensorBoard",
    "TrainedRun",
    "WorkersLost",
    "check_process",
    "dp_aggregator",
    "train",
]
