"""The TensorFlow half of fedmf: noise on tensors, the DPQuery, the aggregation factory and the
training loop.
"""

from fedmf.federated.tensorflow_import import import_tensorflow

import_tensorflow()

from fedmf.federated.aggregation.aggregator import dp_aggregator  # noqa: E402
from fedmf.federated.aggregation.check_process import check_process  # noqa: E402
from fedmf.federated.aggregation.query import MatrixFactorizationQuery  # noqa: E402
from fedmf.federated.cohort_source import CohortDataSource  # noqa: E402
from fedmf.federated.execution.base import RunOptions  # noqa: E402
from fedmf.federated.execution.cluster import WorkersLost  # noqa: E402
from fedmf.federated.task import CompiledEpoch, Task  # noqa: E402
from fedmf.federated.training.divergence import DivergedRun  # noqa: E402
from fedmf.federated.training.loop import InterruptedRun, train  # noqa: E402
from fedmf.federated.training.optimizers import ScheduledSGDM  # noqa: E402
from fedmf.federated.training.trained_run import TrainedRun  # noqa: E402
from fedmf.server.following import Scaling  # noqa: E402
from fedmf.server.rows import HostNoise  # noqa: E402

__all__ = [
    "CohortDataSource",
    "CompiledEpoch",
    "DivergedRun",
    "HostNoise",
    "InterruptedRun",
    "MatrixFactorizationQuery",
    "RunOptions",
    "Scaling",
    "ScheduledSGDM",
    "Task",
    "TrainedRun",
    "WorkersLost",
    "check_process",
    "dp_aggregator",
    "train",
]
