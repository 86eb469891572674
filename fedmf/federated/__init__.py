"""The TensorFlow half of fedmf: noise on tensors, the DPQuery, the aggregation factory and the training loop."""

from fedmf.federated.quiet import import_tensorflow

import_tensorflow()

from fedmf.federated import workers  # noqa: E402, F401  (ends TFF's workers at exit)
from fedmf.federated.aggregator import dp_aggregator  # noqa: E402
from fedmf.federated.host_noise import HostNoise  # noqa: E402
from fedmf.federated.keras_optimizer import keras_optimizer  # noqa: E402
from fedmf.federated.query import MatrixFactorizationQuery  # noqa: E402
from fedmf.federated.remote_workers import WorkersLost  # noqa: E402
from fedmf.federated.server_optimizer import ScheduledSGDM  # noqa: E402
from fedmf.federated.task import ClientEpoch, LocalEpoch, Task  # noqa: E402
from fedmf.federated.training import InterruptedRun, train  # noqa: E402

__all__ = [
    "ClientEpoch",
    "HostNoise",
    "InterruptedRun",
    "LocalEpoch",
    "MatrixFactorizationQuery",
    "ScheduledSGDM",
    "Task",
    "WorkersLost",
    "dp_aggregator",
    "keras_optimizer",
    "train",
]
