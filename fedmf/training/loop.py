"""The training loop. In each round it samples a cohort, trains the clients, and commits the noisy
mean of their clipped updates. Then it takes the server's step and computes metrics.
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
from fedmf.training.faults import ZeroedClients, misfit_error
from fedmf.training.initial_weights import starting_task
from fedmf.training.result import write_result
from fedmf.training.resuming import reopen_run
from fedmf.training.run_setup import new_run
from fedmf.training.task import SPLITS, Task
from fedmf.training.trained_run import TrainedRun
from fedmf.training.under_way import Training


class InterruptedRun(interrupts.Interrupted):
    """The error of a run that was stopped with Ctrl-C. Its rounds are committed, and it can be
    resumed.
    """


def _check_arguments(
    task: Any, config: Any, folder: Any, noise_seed: Any, plan: Any, resume: Any
) -> None:
    """Raises an error if an argument of `train` has the wrong type, before the model is built."""
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


def _check_device(task: Task, options: RunOptions) -> None:
    """Raises a ValueError if the learner of a task cannot train on the device of the options."""
    if options.device is None:
        return
    task.learner.check_device(options.device)
    if options.cluster is not None:
        raise ValueError(
            f"device={options.device!r} is that of this machine, and workers of a cluster train "
            "on their processors: leave one of them out"
        )


def _check_callbacks(value: Any) -> list[Callback]:
    """Returns callbacks as a list, or raises a TypeError if they are not all `Callback` objects."""
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
    """Trains a task's model in federated rounds, and writes the run's folder.

    On the same machine and software, the same config, noise seed and options give bitwise identical
    metrics and weights, also if the run is interrupted and resumed. With execution="fast" the
    clients' updates and their sum are bitwise identical for any `threads` and `cluster` as well.
    Results change by float32 rounding with `noise_strategy` and `noise_memory`, with another
    processor, and with `threads` where a mechanism is fitted or noise is regenerated from all
    draws.

    Args:
      task: a task of fedmf.tasks, or your own.
      config: all settings of the run but the noise seed.
      folder: the run's folder, which must be new, or with `resume` the folder of an existing run.
      noise_seed: a non-negative int, or "os" for one from the operating system; it is stored in
        private/. Required for a new run that adds noise; without noise None means "os".
      plan: a plan that replaces the one described by `config`, with the same rounds and
        participation.
      resume: whether to resume the run after its newest committed round.
      callbacks: callbacks such as `TensorBoard()` or `StopAfter(20)`.
      options: fields of `RunOptions`, such as threads=2, a `server_optimizer` or `round_metrics`.

    Returns:
      The finished run, with its metrics, weights and model.

    Raises:
      TypeError, ValueError: before the first round, if the arguments cannot give the requested
        guarantee, the folder holds another run, or its journal is damaged.
      InterruptedRun: after Ctrl-C, once the current round is committed. A second Ctrl-C stops at
        once.
      WorkersLost: the cluster does not answer at the start, or has no worker left. The run can be
        resumed.
      DivergedRun: the run diverged, and `StopOnDivergence()` is among the callbacks. The run can
        be resumed without it.

    Example:
      >>> import tempfile
      >>> import fedmf, numpy as np
      >>> from fedmf.training import FunctionLearner, Task
      >>> learner = FunctionLearner(
      ...     initial_weights=lambda seed: [np.zeros(1)],
      ...     client_update=lambda weights, epochs, settings: ([np.ones(1)], 0.5),
      ...     evaluate=lambda weights, examples: {"loss": 0.5},
      ... )
      >>> examples = np.ones((4, 1)), np.ones(4)
      >>> task = Task(
      ...     name="ones", learner=learner, batch_size=2, client_ids=["ann", "bo", "cy"],
      ...     client_examples=lambda client: examples, evaluation_examples=lambda split: examples,
      ...     data_version="1",
      ... )
      >>> config = fedmf.TrainConfig(
      ...     rounds=2, cohort_size=1, min_sep=2, epsilon=8.0, server_learning_rate=0.01
      ... )
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     run = fedmf.train(
      ...         task, config, folder=f"{folder}/run", noise_seed=1, progress=False
      ...     )
      ...     print(len(run.metrics), [weight.shape for weight in run.weights])
      2 [(1,)]
    """
    _check_arguments(task, config, folder, noise_seed, plan, resume)
    callbacks = _check_callbacks(callbacks)
    fields.check_names("train", RunOptions, options)
    run_options = RunOptions(**options)
    if run_options.server_optimizer is not None:
        config = config.with_server_optimizer(run_options.server_optimizer)
    check_address(run_options.cluster, config.execution)
    if config.private_metrics and run_options.worker_task is not None:
        raise ValueError(
            f"private_metrics={config.private_metrics} are computed on the machine of the run, "
            "which has no examples with `data_on_workers`: leave one of them out"
        )
    _check_device(task, run_options)
    task.learner.prepare(task, config)
    with task.learner.limited_threads(run_options.threads), numpy_defaults():
        task = starting_task(task, config, RunFolder.open(folder) if resume else None)
        checked_splits = SPLITS if run_options.test else SPLITS[:1]
        checked_task = CheckedTask.of(task, config, splits=() if resume else checked_splits)
        run_setup = (
            None if resume else new_run(checked_task, config, folder, noise_seed, plan, run_options)
        )
        run_folder = RunFolder.open(folder) if run_setup is None else run_setup.folder
        with run_folder.locked():
            run_setup = run_setup or reopen_run(
                checked_task, config, run_folder, plan, run_options, noise_seed
            )
            with build_execution(
                run_setup.task,
                run_setup.plan,
                run_setup.config,
                run_setup.noise_seed,
                options=run_options,
                noise_folder=run_folder.path / "private",
            ) as execution:
                if not resume:
                    run_setup.write()
                _run(Training(run_setup, run_options, execution), callbacks)
    return TrainedRun.of(Run.load(folder), task)


def _run(training: Training, callbacks: Sequence[Callback]) -> None:
    """Trains the remaining rounds, and writes the result after the last round."""
    start_time = time.perf_counter()
    if training.options.progress:
        _print_noise_and_clients(training)
    callbacks = _with_default_callbacks(callbacks, progress=training.options.progress)
    try:
        with interrupts.deferred(), contextlib.ExitStack() as ending:
            for callback in callbacks:
                callback.on_start(training)
                ending.callback(callback.on_end, training)
            while training.done < training.last and not training.stops:
                metrics_row = _round(training)
                for callback in callbacks:
                    callback.on_round(training, metrics_row)
                interrupts.check()
    except (KeyboardInterrupt, WorkersLost, DivergedRun) as stop:
        raise _stopped(training, stop) from (stop if isinstance(stop, WorkersLost) else None)
    if training.done == training.last:
        write_result(training, time.perf_counter() - start_time)
        for callback in callbacks:
            callback.on_result(training)


def _with_default_callbacks(callbacks: Sequence[Callback], *, progress: bool) -> list[Callback]:
    """Returns the caller's callbacks with those that every run has, which are the progress bar and
    the warnings.
    """
    all_callbacks: list[Callback] = [Bar()] if progress else []
    all_callbacks += [ZeroedClients(), *callbacks]
    if not any(isinstance(callback, Divergence) for callback in callbacks):
        all_callbacks.append(Divergence())
    return all_callbacks


def _round(training: Training) -> dict[str, Any]:
    """Computes and commits the next round, and returns its row of metrics.jsonl.

    The noisy mean of the updates is committed first. The server's step, metrics and validation
    follow from what was committed.
    """
    start_time = time.perf_counter()
    t = training.done
    task = training.task
    execution = training.execution
    cohort = training.controller.cohort(t).tolist()
    # Clients have the indices below this number, and canaries the ones from it on.
    num_clients = len(task.client_ids)
    training.cohort = [client for client in cohort if client < num_clients]
    canaries = [client - num_clients for client in cohort if client >= num_clients]
    private_metrics = training.private_metrics
    private_values = None
    weights_before: list[np.ndarray] = []
    if private_metrics is not None or training.options.round_metrics:
        weights_before = training.weights_before_round()
    # The caller's code runs either before the noise of the round is made or after the round is
    # committed, and never in between.
    metric_sum = np.zeros(0)
    if private_metrics is not None:
        metric_sum = private_metrics.sum_of(weights_before, training.cohort)
    client_data = [execution.client(t, client) for client in training.cohort]
    try:
        release = training.collect_release(client_data, canaries)
    except (*task.learner.errors, *execution.errors) as error:
        raise misfit_error(training) or error from error
    if private_metrics is not None:
        private_values = private_metrics.release(t, metric_sum)
    committed_round = training.commit(release, private_values)
    training.not_finite = int(release.statistics["not_finite"])
    training.take_step(release)
    metrics_row = training.add_metrics_row(committed_round, weights_before)
    training.seconds = time.perf_counter() - start_time
    # The durations of a trial would tell an attacker something about all trials.
    if training.plan.selection is None:
        training.folder.add_timing(t, training.seconds)
    return metrics_row


def _stopped(training: Training, stop: BaseException) -> Exception | KeyboardInterrupt:
    """Returns the exception that `train` raises if a run is stopped before its end."""
    run_folder = training.folder
    rounds_text = f"{training.done} of {training.config.rounds} rounds"
    if isinstance(stop, WorkersLost):
        return WorkersLost(f"{stop}; {rounds_text} are saved in {run_folder.path}")
    if isinstance(stop, DivergedRun):
        run_folder.mark_stopped_by_data(training.done)
        stop_note = " (exact losses decided that, which the guarantee does not cover)"
        if training.private_metrics is not None:
            stop_note = ""
        return DivergedRun(
            f"{stop}{stop_note}; {rounds_text} are saved in {run_folder.path}: resume the run with "
            "resume=True and without `stop_on_divergence`"
        )
    return InterruptedRun(
        f"interrupted after {rounds_text}, all saved in {run_folder.path}: resume the run with "
        "resume=True"
    )


def _print_noise_and_clients(training: Training) -> None:
    """Prints where the noise is stored if it is on disk, and why clients train slowly if they
    do.
    """
    execution = training.execution
    execution.noise.show_progress()
    noise_strategy = execution.noise.strategy
    if noise_strategy.disk:
        private_folder = training.folder.path / "private"
        gigabytes = noise_strategy.disk / 1e9
        print(
            f"noise: {noise_strategy.reason}, {gigabytes:.1f} GB in {private_folder}",
            file=sys.stderr,
        )
    if execution.slowness_warning:
        print(f"clients: {execution.slowness_warning}", file=sys.stderr)
