"""The training loop: cohort, examples, one round, metrics, checkpoint; and again from where it stopped."""

import dataclasses
import functools
import hashlib
import pathlib
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedmf.cohorts.availability import availability_from_text
from fedmf.cohorts.controller import ParticipationController
from fedmf.cohorts.devices import DeviceBehavior
from fedmf.federated.execution.choice import Execution, build_execution, parameters
from fedmf.federated.execution.remote_workers import WorkersLost, connected
from fedmf.federated.execution.threads import limited_threads
from fedmf.federated.noise.source import check_noise_seed
from fedmf.federated.task import Examples, Task
from fedmf.federated.training.evaluation import Evaluator
from fedmf.federated.training.model_check import check_model
from fedmf.federated.training.run_setup import check_plan, reopen_run, write_setup
from fedmf.noise.strategies import NoiseStrategy, choose_host_strategy
from fedmf.noise.stream import NoiseStream
from fedmf.participation.ledger import ParticipationLedger
from fedmf.privacy.plan import Plan
from fedmf.runs.audit import write_final_statement
from fedmf.runs.checkpoint import Checkpoint
from fedmf.runs.config import TrainConfig
from fedmf.runs.folder import Run, RunFolder
from fedmf.runs.worker_addresses import worker_addresses
from fedmf.terminal import progress_bar
from fedmf.terminal.interrupts import never_lost, not_swallowed

_ALL_ZEROED = (
    "every client of a round was zeroed, and the model got noise alone: no update is finite, or none has all entries within "
    "zeroing_norm={}; raise it, or lower client_learning_rate"
)


class InterruptedRun(Exception):
    """Ctrl-C: the run has been checkpointed and can be resumed."""


def train(
    task: Task,
    config: TrainConfig,
    *,
    folder: str | pathlib.Path,
    noise_seed: int | str | None = None,
    plan: Plan | None = None,
    resume: bool = False,
    noise_strategy: str | None = None,
    noise_memory: int | None = None,
    threads: int | None = None,
    workers: str | Sequence[str] | None = None,
    progress: bool = True,
    on_round: Callable[[int], None] | None = None,
) -> Run:
    """Trains `task` as `config` says, and leaves a run folder behind.

    The same config, noise seed, threads and software give the same metrics and weights, bit for bit, interrupted or not.

    Args:
      task: from `tasks`.
      config: everything but the noise seed.
      folder: the run's folder; new without `resume`, an existing run's with it.
      noise_seed: a non-negative int, or "os" for one from the operating system. Needed unless `resume`; kept in private/.
      plan: a plan of your own in place of the one `config` describes; must have its rounds and participation.
      resume: go on from the newest checkpoint.
      noise_strategy: how the host makes the noise, "recurrent" or "regenerated"; None chooses. Another one may be named at a
        resume: the noise is the same to float32 rounding.
      noise_memory: bytes that the noise may take in memory, and is in a memory map in private/ beyond; None for a quarter of the
        machine's memory.
      threads: limit on the threads of this process and of the TFF worker it starts; None for one on each processor. See docs/remote.md
        for what it limits and what may differ by float32 rounding.
      workers: with execution="tff-remote", "host:port,host:port" or a sequence of "host:port".
      progress: show a progress bar with rounds, clients/s, time left and the latest metrics.
      on_round: called with t after round t is done; an exception it raises stops the run like a crash.

    Returns:
      The finished run.

    Raises:
      TypeError, ValueError: before anything is trained, for inputs that cannot give the guarantee asked for, a folder that holds another
        run, a damaged checkpoint.
      InterruptedRun: after Ctrl-C, once the last complete round is safely on disk.
      WorkersLost: a worker does not answer at the start, or none is left; the run can be resumed.
    """
    addresses = worker_addresses(workers, config.execution)
    with never_lost(), limited_threads(threads), connected(addresses) as remote:
        made = functools.partial(
            build_execution,
            noise_strategy=noise_strategy,
            noise_memory=noise_memory,
            threads=threads,
            workers=remote,
        )
        strategy_of = functools.partial(
            choose_host_strategy,
            memory_bytes=noise_memory,
            folder=pathlib.Path(folder) / "private",
            name=noise_strategy,
        )
        return _train(task, config, folder, noise_seed, plan, resume, strategy_of, made, progress, on_round)


def _train(
    task: Task,
    config: TrainConfig,
    folder: str | pathlib.Path,
    noise_seed: int | str | None,
    plan: Plan | None,
    resume: bool,
    strategy_of: Callable[[NoiseStream, int], NoiseStrategy],
    made: Callable[..., Execution],
    progress: bool,
    on_round: Callable[[int], None] | None,
) -> Run:
    check_model(task, config)
    if resume:
        run_folder = RunFolder.open(folder)
        with run_folder.locked():
            plan, seed = reopen_run(task, config, run_folder, plan)
            _run(task, config, run_folder, plan, seed, made, progress, on_round, run_folder.load_checkpoint())
        return Run.load(folder)
    seed = check_noise_seed(noise_seed)
    if config.sampling is None:
        _controller(task, config)  # refuses an impossible participation before a long fit, and before the folder exists
    given = plan is not None
    plan = config.plan(config.fit(show_progress=progress)) if plan is None else plan
    check_plan(plan, config)
    controller_of(task, config, plan, seed)
    # These refuse before the folder exists.
    stream = plan.mechanism.stream().causal()
    strategy_of(stream, parameters(task, config))
    with RunFolder(folder).locked():
        run_folder = RunFolder.create(folder)
        write_setup(run_folder, task, config, plan, seed, given=given)
        _run(task, config, run_folder, plan, seed, made, progress, on_round, None)
    return Run.load(folder)


def _run(
    task: Task,
    config: TrainConfig,
    folder: RunFolder,
    plan: Plan,
    seed: int,
    made: Callable[..., Execution],
    progress: bool,
    on_round: Callable[[int], None] | None,
    checkpoint: Checkpoint | None,
) -> None:
    with not_swallowed():
        execution = made(task, plan, config, seed, noise_folder=folder.path / "private")
    chosen = execution.noise.strategy
    if progress:
        execution.noise.show_progress()
    if progress and chosen.disk:
        print(f"noise: {chosen.reason}, {chosen.disk / 1e9:.1f} GB in {folder.path / 'private'}", file=sys.stderr)
    if progress and execution.slow:
        print(f"clients: {execution.slow}", file=sys.stderr)
    controller = controller_of(task, config, plan, seed, checkpoint.ledger if checkpoint else None)
    state = execution.from_leaves(checkpoint.state) if checkpoint else execution.init()
    done = checkpoint.rounds_done if checkpoint else 0
    checkpoint = None  # it holds rows of noise, hundreds of megabytes
    _loop(task, config, plan, folder, execution, controller, state, done, progress, on_round)


def _controller(task: Task, config: TrainConfig, **options: Any) -> ParticipationController:
    arguments: dict[str, Any] = {
        "participation": config.participation(),
        "population": len(task.client_ids),
        "cohort_size": config.cohort_size,
        "seed": config.seed,
        "availability": availability_from_text(config.availability),
        "behavior": DeviceBehavior(dropout=config.dropout, seed=config.seed),
    }
    arguments |= options
    return ParticipationController(arguments.pop("participation"), **arguments)


def controller_of(
    task: Task, config: TrainConfig, plan: Plan, noise_seed: int, ledger: ParticipationLedger | None = None
) -> ParticipationController:
    """The controller of a run. With sampling it is seeded by the secret seed: who knows the sample owes nothing to amplification.

    Raises:
      ValueError: the task has another number of clients than the sampling, or what the controller refuses.
    """
    if plan.sampling is None:
        return _controller(task, config, ledger=ledger)
    if len(task.client_ids) != plan.sampling.population:
        raise ValueError(
            f"population={plan.sampling.population} but the data has {len(task.client_ids)} clients: set population to that, on which "
            "the amplification depends"
        )
    drawn = dataclasses.replace(plan.sampling, cohort_size=config.cohort_size)
    secret = hashlib.sha256(f"fedmf cohorts {noise_seed}".encode()).digest()
    participation = drawn.participation(config.rounds)
    return _controller(
        task,
        config,
        participation=participation,
        sampling=drawn,
        seed=int.from_bytes(secret[:16], "big"),
        ledger=ledger,
    )


def _loop(
    task: Task,
    config: TrainConfig,
    plan: Plan,
    folder: RunFolder,
    execution: Execution,
    controller: ParticipationController,
    state: Any,
    done: int,
    progress: bool,
    on_round: Callable[[int], None] | None,
) -> None:
    evaluator = Evaluator(task, config)
    saved = done
    folder.truncate_rows(done)
    digest = folder.digest()
    started = time.perf_counter()

    def save(rounds_done: int, state: Any) -> None:
        ledger = controller.ledger.first(rounds_done)
        leaves = execution.leaves(state)
        folder.save_checkpoint(Checkpoint(rounds_done=rounds_done, config_digest=digest, state=leaves, ledger=ledger))

    bar = progress_bar.bar(total=config.rounds, initial=done, unit="round", desc=config.family, disable=not progress)
    validation: dict[str, float] = {}
    with bar, folder.rows("metrics") as metric_row, folder.rows("timings") as timing_row:
        try:
            for t in range(done, config.rounds):
                with not_swallowed():
                    began = time.perf_counter()
                    cohort = controller.cohort(t)
                    examples = [client_examples(task, config, t, int(client)) for client in cohort]
                    new_state, metrics = execution.next(state, examples)
                    row: dict[str, Any] = {"round": t, "clients": len(cohort), **metrics}
                    if len(cohort) and metrics.get("zeroed") == len(cohort):
                        warnings.warn(_ALL_ZEROED.format(config.zeroing_norm), stacklevel=2)
                    if (t + 1) % config.evaluate_every == 0 or t + 1 == config.rounds:
                        validation = evaluator(execution.weights(new_state), "validation")
                        row["validation"] = validation
                    seconds = time.perf_counter() - began
                    metric_row(row)
                    timing_row({"round": t, "seconds": round(seconds, 4)})
                    state, done = new_state, t + 1
                    bar.set_postfix(_latest(task, row, validation, len(cohort) / seconds), refresh=False)
                    bar.update()
                    if done % config.checkpoint_every == 0 or done == config.rounds:
                        save(done, state)
                        saved = done
                    if on_round is not None:
                        on_round(t)
        except (KeyboardInterrupt, WorkersLost) as stop:
            if done > saved:
                if progress:
                    print(f"\nstopping: saving round {done}", file=sys.stderr, flush=True)
                save(done, state)
            if isinstance(stop, WorkersLost):
                raise WorkersLost(f"{stop}; {done} of {config.rounds} rounds are saved in {folder.path}") from stop
            raise InterruptedRun(
                f"interrupted after {done} of {config.rounds} rounds, all saved in {folder.path}: go on with --resume"
            ) from None
    weights = execution.weights(state)
    np.savez(folder.path / "model.npz", **{f"weight_{i}": w for i, w in enumerate(weights)})
    _write_result(task, config, plan, folder, controller, evaluator, weights, time.perf_counter() - started)


def _latest(task: Task, row: dict[str, Any], validation: dict[str, float], speed: float) -> dict[str, str]:
    shown = {"clients/s": f"{speed:.1f}", "loss": f"{row['train_loss']:.3f}"}
    if validation:
        shown[task.headline_metric] = f"{validation[task.headline_metric]:.4f}"
    return shown


def _write_result(
    task: Task,
    config: TrainConfig,
    plan: Plan,
    folder: RunFolder,
    controller: ParticipationController,
    evaluator: Evaluator,
    weights: list[np.ndarray],
    seconds: float,
) -> None:
    audit = controller.audit(plan)
    achieved = audit.achieved
    # Our controller drew as the plan's sampling says; a ledger alone could not show it.
    epsilon = audit.epsilon if audit.amplified_epsilon is None else audit.amplified_epsilon
    folder.write_json(
        "result",
        {
            "validation": evaluator(weights, "validation"),
            "test": evaluator(weights, "test"),
            "participation": {
                "population": controller.population,
                "cohort_size": controller.cohort_size,
                **audit.observed.summary(),
                "histogram": {str(count): clients for count, clients in audit.observed.histogram.items()},
            },
            "claimed_cohort": plan.claimed_cohort,
            # Nobody observed the run that a simulation stands for.
            "achieved": None
            if plan.claimed_cohort is not None
            else {
                "epsilon": epsilon if np.isfinite(epsilon) else None,
                "unamplified_epsilon": audit.epsilon if np.isfinite(audit.epsilon) else None,
                "rho": audit.rho if np.isfinite(audit.rho) else None,
                "sensitivity": achieved.sensitivity.value if achieved else 0.0,
            },
            "seconds": round(seconds, 1),
        },
    )
    write_final_statement(folder.path, audit)


def client_examples(task: Task, config: TrainConfig, t: int, client: int) -> Examples:
    """The client's examples in the order of round t: a pure function of (config.seed, t, client)."""
    x, y = task.client_examples(task.client_ids[client])
    order = np.random.default_rng(np.random.SeedSequence([config.seed, 2, t, client])).permutation(len(x))
    return x[order].astype(np.int32, copy=False), y[order].astype(np.int32, copy=False)
