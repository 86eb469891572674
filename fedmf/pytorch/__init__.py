"""Federated training of PyTorch models with correlated noise.

The package has `Task`, which describes data and model, and `train`, which runs the training loop.
"""

try:
    from fedmf.pytorch.state_arrays import arrays_of_state, state_of_arrays
    from fedmf.pytorch.task import Task
except ImportError as error:
    raise ImportError(
        f"fedmf.pytorch needs PyTorch 2.4 or newer ({error}): install it with "
        "`pip install 'fedmf[torch]'`, on Python 3.11 to 3.13"
    ) from error

from fedmf.training.callbacks import Callback, StopAfter
from fedmf.training.divergence import DivergedRun, StopOnDivergence
from fedmf.training.early_stopping import EarlyStopping
from fedmf.training.execution.base import RunOptions
from fedmf.training.execution.cluster import WorkersLost
from fedmf.training.loop import InterruptedRun, train
from fedmf.training.trained_run import TrainedRun

__all__ = [
    "Callback",
    "DivergedRun",
    "EarlyStopping",
    "InterruptedRun",
    "RunOptions",
    "StopAfter",
    "StopOnDivergence",
    "Task",
    "TrainedRun",
    "WorkersLost",
    "arrays_of_state",
    "state_of_arrays",
    "train",
]
