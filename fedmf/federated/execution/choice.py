"""The execution that a config names: pure state machines over the same task, plan,
cohorts and examples.

fast   our loop: client work outside TFF's executor, in this process or on a cluster; what the
       server does is numpy's.
tff    TFF's stock build_unweighted_fed_avg with our aggregator, in TFF's own C++ runtime.
"""

import pathlib

from fedmf.federated.execution.base import Execution, RunOptions
from fedmf.federated.execution.in_process import FastExecution
from fedmf.federated.task import Task
from fedmf.privacy.plan import Plan
from fedmf.runs.config import TrainConfig


def build_execution(
    task: Task,
    plan: Plan,
    config: TrainConfig,
    noise_seed: int,
    *,
    options: RunOptions = RunOptions(),  # noqa: B008  (frozen)
    noise_folder: str | pathlib.Path | None = None,
) -> Execution:
    """The execution that `config.execution` names, with these attributes; see `Execution`."""
    kind: type[Execution] = FastExecution
    if config.execution == "tff":
        from fedmf.federated.tff.execution import TffExecution

        kind = TffExecution
    return kind(
        task=task,
        config=config,
        plan=plan,
        noise_seed=noise_seed,
        options=options,
        noise_folder=noise_folder,
    )
