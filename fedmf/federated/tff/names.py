"""Public names of the TFF integration, which `fedmf.federated` exports at their first use."""

from fedmf.federated.tff.aggregator import dp_aggregator
from fedmf.federated.tff.check_process import check_process
from fedmf.federated.tff.cohort_source import CohortDataSource
from fedmf.federated.tff.optimizers import ScheduledSGDM
from fedmf.federated.tff.planned_process import PlannedProcess
from fedmf.federated.tff.query import MatrixFactorizationQuery

# TFF leaves its worker process running when a program ends, and the worker keeps the program's
# standard output open. This import registers a function that ends the worker at exit.
from fedmf.federated.tff.worker import end_workers as _end_workers  # noqa: F401

__all__ = [
    "CohortDataSource",
    "MatrixFactorizationQuery",
    "PlannedProcess",
    "ScheduledSGDM",
    "check_process",
    "dp_aggregator",
]
