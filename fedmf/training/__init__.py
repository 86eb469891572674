"""Simulation of federated training, with tasks, the training loop, callbacks and executions. It
needs no particular framework, because a `Learner` connects one.
"""

from fedmf.training.callbacks import Callback, StopAfter
from fedmf.training.client_work import ClientWork
from fedmf.training.divergence import DivergedRun, StopOnDivergence
from fedmf.training.early_stopping import EarlyStopping
from fedmf.training.examples import ClientData, Weighted
from fedmf.training.execution.base import RunOptions
from fedmf.training.execution.cluster import WorkersLost
from fedmf.training.function_learner import FunctionLearner
from fedmf.training.learner import ClientSettings, Evaluation, Learner, Machine
from fedmf.training.loop import InterruptedRun, train
from fedmf.training.task import Task
from fedmf.training.trained_run import TrainedRun

__all__ = [
    "Callback",
    "ClientData",
    "ClientSettings",
    "ClientWork",
    "DivergedRun",
    "EarlyStopping",
    "Evaluation",
    "FunctionLearner",
    "InterruptedRun",
    "Learner",
    "Machine",
    "RunOptions",
    "StopAfter",
    "StopOnDivergence",
    "Task",
    "TrainedRun",
    "Weighted",
    "WorkersLost",
    "train",
]
