"""The training loop: cohort, client work, noisy mean, commit; and then the server's step and
metrics. It goes on where it stopped.
"""

import contextlib
import os
import pathlib
import reprlib
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmf import checks, fields
from fedmf.numpy_errors import numpy_defaults
from fedmf.privacy.plan import Plan, check_plan
from fedmf.runs.config import TrainConfig
from fedmf.runs.folder import Run, RunFolder
from fedmf.server.source import check_noise_seed
from fedmf.terminal import interrupts
from fedmf.training.callbacks import Bar, Callback
from fedmf.training.checked_task import CheckedTask
from fedmf.training.divergence import DivergedRun, Divergence
from fedmf.training.execution.base import RunOptions
from fedmf.training.execution.choice import build_execution
from fedmf.training.execution.cluster import WorkersLost, check_address
from fedmf.training.faults import ZeroedClients, misfit
from fedmf.training.initial_weights import starting_task
from fedmf.training.result import write_result
from fedmf.training.run_setup import new_run, reopen_run
from fedmf.training.task import SPLITS, Task
from fedmf.training.trained_run import TrainedRun
from fedmf.training.under_way import Training


class InterruptedRun(interrupts.Interrupted):
    """Ctrl-C: all rounds are committed, and the run can be resumed."""


def _check_arguments(
    task: Any, config: Any, folder: Any, noise_seed: Any, plan: Any, resume: Any
) -> None:
    """Refuses arguments of the wrong kind, before the seconds that a look at the model takes."""
    if not isinstance(task, Task):
        raise TypeError(
            f"task={reprlib.repr(task)} must be a federated.Task or a training.Task: make one with "
            "Task.from_arrays, or from a name in a config with fedmf.tasks.task_from_config"
        )
    if not isinstance(config, TrainConfig):
        raise TypeError(
            f"config={reprlib.repr(config)} must be a fedmf.TrainConfig: make one with "
            "fedmf.TrainConfig(rounds=..., cohort_size=..., ...)"
        )
    if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
        raise TypeError(f"folder={folder!r} must be the path of the run's folder")
    if noise_seed is not None:
        check_noise_seed(noise_seed)
    if plan is not None:
        check_plan(plan)
    checks.boolean("resume", resume)


def _checked_callbacks(value: Any) -> list[Callback]:
    hint = "give a list of callbacks, such as [federated.StopAfter(20)]"
    callbacks = checks.entries("callbacks", value, hint=hint)
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise TypeError(
                f"callbacks holds {reprlib.repr(callback)}, which is no federated.Callback: make "
                "an object of a class that inherits from it"
            )
    return callbacks


def train(
    task: Task,
    config: TrainConfig,
    *,
    folder: str | pathlib.Path,
    noise_seed: int | str | None = None,
    plan: Plan | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> TrainedRun:
    """Trains `task` as `config` says, and leaves a run folder behind.

    The same config, noise seed, threads and software give the same metrics and weights, bit for
    bit, interrupted or not.

    Args:
      task: one of fedmf.tasks, or your own.
      config: everything but the noise seed.
      folder: the run's folder; new without `resume`, an existing run's with it.
      noise_seed: a non-negative int, or "os" for one from the operating system; kept in private/.
        Needed for a new run that adds noise; without noise None is "os".
      plan: a plan of your own in place of the one `config` describes;
        must have its rounds and participation.
      resume: go on after the newest round that was committed.
      callbacks: what else follows the run, such as `TensorBoard()` or `StopAfter(20)`.
      options: of `RunOptions`, such as threads=2, a `server_optimizer` or `round_metrics`.

    Returns:
      The finished run, with its metrics, weights and model.

    Raises:
      TypeError, ValueError: before anything is trained, for inputs that cannot give the guarantee
        asked for, a folder that holds another run, a damaged journal.
      InterruptedRun: after Ctrl-C, once the last complete round is safely on disk. A second Ctrl-C
        stops at once.
      WorkersLost: the cluster does not answer at the start, or has no worker left;
        the run can be resumed.
      DivergedRun: the run diverged, and `StopOnDivergence()` is among the callbacks; the run can
        be resumed without it.
    """
    _check_arguments(task, config, folder, noise_seed, plan, resume)
    callbacks = _checked_callbacks(callbacks)
    fields.check_names("train", RunOptions, options)
    machine = RunOptions(**options)
    if machine.server_optimizer is not None:
        config = config.with_server_optimizer(machine.server_optimizer)
    check_address(machine.cluster, config.execution)
    if config.private_metrics and machine.worker_task is not None:
        raise ValueError(
            f"private_metrics={config.private_metrics} are computed where the run is, and with "
            "`data_on_workers` its clients' examples are not: leave one of them out"
        )
    task.learner.prepare(task, config)
    with task.learner.limited_threads(machine.threads), numpy_defaults():
        task = starting_task(task, config, RunFolder.open(folder) if resume else None)
        splits = SPLITS if machine.test else SPLITS[:1]
        checked = CheckedTask.of(task, config, splits=() if resume else splits)
        setup = None if resume else new_run(checked, config, folder, noise_seed, plan, machine)
        run_folder = RunFolder.open(folder) if setup is None else setup.folder
        with run_folder.locked():
            setup = setup or reopen_run(checked, config, run_folder, plan, machine)
            with build_execution(
                setup.task,
                setup.plan,
                setup.config,
                setup.noise_seed,
                options=machine,
                noise_folder=run_folder.path / "private",
            ) as execution:
                if not resume:
                    setup.write()
                _run(Training(setup, machine, execution), callbacks)
    return TrainedRun.of(Run.load(folder), task)


def _run(training: Training, callbacks: Sequence[Callback]) -> None:
    """Trains the rounds that are left, and writes the result after the last one."""
    began, shown = time.perf_counter(), training.options.progress
    if shown:
        _announce(training)
    watch = () if any(isinstance(one, Divergence) for one in callbacks) else (Divergence(),)
    callbacks = (*((Bar(),) if shown else ()), ZeroedClients(), *callbacks, *watch)
    try:
        with interrupts.deferred(), contextlib.ExitStack() as ending:
            for callback in callbacks:
                callback.on_start(training)
                ending.callback(callback.on_end, training)
            while training.done < training.last and not training.stops:
                row = _round(training)
                for callback in callbacks:
                    callback.on_round(training, row)
                interrupts.check()
    except (KeyboardInterrupt, WorkersLost, DivergedRun) as stop:
        raise _stopped(training, stop) from (stop if isinstance(stop, WorkersLost) else None)
    if training.done == training.last:
        write_result(training, time.perf_counter() - began)


def _round(training: Training) -> dict[str, Any]:
    """Returns the row of the next round: client work and noisy mean of the updates, which are
    committed; and then the server's step, metrics and validation, which follow from them.
    """
    began, t = time.perf_counter(), training.done
    task, execution = training.task, training.execution
    cohort = training.controller.cohort(t).tolist()
    known = len(task.client_ids)  # canaries have the indices behind the clients'
    training.cohort = [client for client in cohort if client < known]
    canaries = [client - known for client in cohort if client >= known]
    metrics, private = training.private_metrics, None
    weights_before: list[np.ndarray] = []
    if metrics is not None or training.options.round_metrics:
        weights_before = training.weights()
    # Whatever is the caller's own program comes before the noise, or after the commit.
    metric_sum = np.zeros(0)
    if metrics is not None:
        metric_sum = metrics.sum_of(weights_before, training.cohort)
    clients = [execution.client(t, client) for client in training.cohort]
    try:
        release = execution.collect_release(training.state, clients, canaries)
    except (*task.learner.errors, *execution.errors) as error:
        raise misfit(training) or error from error
    if metrics is not None:
        private = metrics.release(t, metric_sum)
    committed = training.commit(release, private)
    training.not_finite = int(release.row["not_finite"])
    training.state = execution.step(training.state, release)
    training.done = t + 1
    row = training.add_record(committed, weights_before)
    training.seconds = time.perf_counter() - began
    training.folder.add_timing(t, training.seconds)
    return row


def _stopped(training: Training, stop: BaseException) -> Exception | KeyboardInterrupt:
    """Returns what the caller of `train` sees of a run that was stopped."""
    folder = training.folder
    done = f"{training.done} of {training.config.rounds} rounds"
    if isinstance(stop, WorkersLost):
        return WorkersLost(f"{stop}; {done} are saved in {folder.path}")
    if isinstance(stop, DivergedRun):
        folder.mark_stopped_by_data(training.done)
        uncovered = " (exact losses decided that, which the guarantee does not cover)"
        why = "" if training.private_metrics else uncovered
        return DivergedRun(
            f"{stop}{why}; {done} are saved in {folder.path}, and go on with resume=True and "
            "without `stop_on_divergence`"
        )
    return InterruptedRun(
        f"interrupted after {done}, all saved in {folder.path}: go on with resume=True"
    )


def _announce(training: Training) -> None:
    execution, private = training.execution, training.folder.path / "private"
    execution.noise.show_progress()
    strategy = execution.noise.strategy
    if strategy.disk:
        print(
            f"noise: {strategy.reason}, {strategy.disk / 1e9:.1f} GB in {private}", file=sys.stderr
        )
    if execution.slow:
        print(f"clients: {execution.slow}", file=sys.stderr)
