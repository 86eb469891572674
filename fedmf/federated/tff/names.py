"""The public names of this package, which `fedmf.federated` hands on."""

from fedmf.federated.tff.aggregator import dp_aggregator
from fedmf.federated.tff.check_process import check_process
from fedmf.federated.tff.cohort_source import CohortDataSource
from fedmf.federated.tff.optimizers import ScheduledSGDM
from fedmf.federated.tff.query import MatrixFactorizationQuery

__all__ = [
    "CohortDataSource",
    "MatrixFactorizationQuery",
    "ScheduledSGDM",
    "check_process",
    "dp_aggregator",
]
