"""How a round is executed: pure state machines over the same task, plan, cohorts and examples.

fast        our loop in this process: client work outside TFF's executor, the mean by the same DPQuery as in TFF.
tff         TFF's stock build_unweighted_fed_avg with our aggregator, in TFF's own C++ runtime.
tff-remote  the same process, with the clients of a round shared out to TFF workers on other machines.
"""

import pathlib

import numpy as np

from fedmf.federated.execution.base import Execution
from fedmf.federated.execution.in_process import FastExecution
from fedmf.federated.execution.remote import RemoteTffExecution
from fedmf.federated.execution.remote_workers import RemoteWorkers
from fedmf.federated.execution.tff import TffExecution, tff_model
from fedmf.federated.noise.host import HostNoise
from fedmf.federated.task import Task
from fedmf.privacy.plan import Plan
from fedmf.runs.config import TrainConfig

__all__ = [
    "Execution",
    "FastExecution",
    "RemoteTffExecution",
    "TffExecution",
    "build_execution",
    "parameters",
    "tff_model",
]


def parameters(task: Task, config: TrainConfig) -> int:
    """The number of trainable parameters of the task's model."""
    return sum(int(np.prod(v.shape)) for v in task.build_model(config.seed).trainable_variables)


def build_execution(
    task: Task,
    plan: Plan,
    config: TrainConfig,
    noise_seed: int,
    *,
    noise_strategy: str | None = None,
    noise_memory: int | None = None,
    noise_folder: str | pathlib.Path | None = None,
    client_work: str | None = None,
    threads: int | None = None,
    workers: RemoteWorkers | None = None,
) -> Execution:
    """The execution that `config.execution` names.

    Args:
      task, plan, config, noise_seed: of the run.
      noise_strategy, noise_memory, noise_folder: how noise is made, as `HostNoise` explains its strategy, memory_bytes and folder.
      client_work: see `FastExecution`; the others take no notice of it.
      threads: clients that train side by side in this process or its worker; see `limited_threads` for the rest.
      workers: connected, for tff-remote.

    Raises:
      ValueError: tff-remote without workers.
    """
    if (workers is None) == (config.execution == "tff-remote"):
        raise ValueError(
            f"workers={workers} do not go with execution={config.execution}: tff-remote needs them, no other takes them"
        )
    noise = HostNoise(
        plan,
        parameters(task, config),
        noise_seed=noise_seed,
        strategy=noise_strategy,
        memory_bytes=noise_memory,
        folder=noise_folder,
    )
    if config.execution == "fast":
        return FastExecution(task, plan, config, noise, noise_seed, client_work=client_work, threads=threads)
    if workers is not None:
        return RemoteTffExecution(task, plan, config, noise, noise_seed, workers)
    return TffExecution(task, plan, config, noise, noise_seed, threads=threads)
