"""The simulation: tasks, the loop, callbacks, executions, and what people do with a run."""

import fedmf.federated  # noqa: F401  (while modules here import TensorFlow)
