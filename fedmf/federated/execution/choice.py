"""The execution that a config names: pure state machines over the same task, plan,
cohorts and examples.

fast   our loop: client work outside TFF's executor, in this process or on a cluster; what the
       server does is numpy's.
tff    TFF's stock build_unweighted_fed_avg with our aggregator, in TFF's own C++ runtime.
"""

import functools
import pathlib

from fedmf.federated.execution.base import Execution, RunOptions
from fedmf.federated.execution.in_process import FastExecution
from fedmf.federated.task import Task
from fedmf.privacy.plan import Plan
from fedmf.runs.config import TrainConfig
from fedmf.server.rows import HostNoise


def parameters(task: Task, config: TrainConfig) -> int:
    """The number of trainable parameters of the task's model."""
    return sum(weight.size for weight in task.initial_weights(config.seed))


def build_execution(
    task: Task,
    plan: Plan,
    config: TrainConfig,
    noise_seed: int,
    *,
    options: RunOptions = RunOptions(),  # noqa: B008  (frozen)
    noise_folder: str | pathlib.Path | None = None,
) -> Execution:
    """The execution that `config.execution` names.

    Args:
      task, plan, config, noise_seed: of the run.
      options: how this machine runs it.
      noise_folder: private folder for a memory map of noise; None for one that ends
        with the execution.
    """
    make_noise = functools.partial(
        HostNoise,
        plan,
        parameters(task, config),
        noise_seed=noise_seed,
        strategy=options.noise_strategy,
        memory_bytes=options.noise_memory,
        folder=noise_folder,
    )
    if config.execution == "fast":
        return FastExecution(task, config, plan, make_noise, noise_seed, options)
    from fedmf.federated.tff.execution import TffExecution

    return TffExecution(task, config, plan, make_noise, noise_seed, options)
