"""Makes the execution, which is the code that computes rounds, that a config names.

fast   clients are trained by the task's learner, in this process or on a cluster; the server
       computes in numpy.
tff    TFF's build_unweighted_fed_avg with fedmf's aggregator, in TFF's C++ runtime.
"""

import pathlib
import pkgutil

from fedmf.privacy.plan import Plan
from fedmf.runs.config import TrainConfig
from fedmf.runs.executions import execution_kind
from fedmf.training.execution.base import Execution, RunOptions
from fedmf.training.task import Task


def build_execution(
    task: Task,
    plan: Plan,
    config: TrainConfig,
    noise_seed: int,
    *,
    options: RunOptions = RunOptions(),  # noqa: B008  (frozen)
    noise_folder: str | pathlib.Path | None = None,
) -> Execution:
    """Returns the execution that `config.execution` names. The arguments become its attributes.

    Raises:
      TypeError: the registered path is no subclass of `Execution`.
    """
    class_path = execution_kind(config.execution).path
    execution_class = pkgutil.resolve_name(class_path)
    if not isinstance(execution_class, type) or not issubclass(execution_class, Execution):
        raise TypeError(
            f"execution={config.execution} is {class_path}, which is no subclass of "
            "fedmf.training.execution.base.Execution: register another path"
        )
    return execution_class(
        task=task,
        config=config,
        plan=plan,
        noise_seed=noise_seed,
        options=options,
        noise_folder=noise_folder,
    )
