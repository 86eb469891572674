"""The TensorFlow half of fedmf: noise on tensors, the DPQuery, the aggregation factory and the training loop."""

from fedmf.federated.quiet import import_tensorflow

import_tensorflow()

from fedmf.federated.aggregator import dp_aggregator  # noqa: E402
from fedmf.federated.query import MatrixFactorizationQuery  # noqa: E402
from fedmf.federated.server_optimizer import ScheduledSGDM  # noqa: E402
from fedmf.federated.task import Task  # noqa: E402

__all__ = ["MatrixFactorizationQuery", "ScheduledSGDM", "Task", "dp_aggregator"]
