"""The training loop: cohort, client work, noisy mean, server step, metrics, checkpoint; and again
from where it stopped.
"""

import pathlib
import sys
import time
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from fedmf.federated.examples import Epochs, NotFinite, count
from fedmf.federated.execution.base import RunOptions
from fedmf.federated.execution.choice import build_execution
from fedmf.federated.execution.client_data import ClientRound, client_epochs
from fedmf.federated.execution.cluster import Cluster, WorkersLost, check_address, connected
from fedmf.federated.execution.threads import limited_threads
from fedmf.federated.task import Task
from fedmf.federated.training.divergence import (
    DivergedRun,
    DivergenceWatch,
    rate_for_noise,
    rate_warning,
)
from fedmf.federated.training.evaluation import Evaluator
from fedmf.federated.training.model_check import check_model, misfit_reason
from fedmf.federated.training.run_setup import RunSetup, new_run, reopen_run
from fedmf.federated.training.tensorboard import scalars
from fedmf.federated.training.trained_run import TrainedRun, starting_task
from fedmf.privacy.plan import Plan
from fedmf.privacy.stopping import stopped_after
from fedmf.runs.audit import write_final_statement
from fedmf.runs.checkpoint import Checkpoint
from fedmf.runs.config import TrainConfig
from fedmf.runs.folder import Run, RunFolder
from fedmf.terminal import interrupts, progress_bar

if TYPE_CHECKING:
    from fedmf.federated.tff.worker import TffWorker

_ALL_ZEROED = (
    "every client of a round was zeroed, and the model got noise alone: no update is finite, or "
    "none has all entries within zeroing_norm={}; raise it, or lower `client_learning_rate`"
)


class InterruptedRun(interrupts.Interrupted):
    """Ctrl-C: the run has been checkpointed and can be resumed."""


def train(
    task: Task,
    config: TrainConfig,
    *,
    folder: str | pathlib.Path,
    noise_seed: int | str | None = None,
    plan: Plan | None = None,
    resume: bool = False,
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
      resume: go on from the newest checkpoint.
      options: of `RunOptions`, such as threads=2 or progress=False.

    Returns:
      The finished run, with its metrics, weights and model.

    Raises:
      TypeError, ValueError: before anything is trained, for inputs that cannot give the guarantee
        asked for, a folder that holds another run, a damaged checkpoint.
      InterruptedRun: after Ctrl-C, once the last complete round is safely on disk. A second Ctrl-C
        stops at once.
      WorkersLost: the cluster does not answer at the start, or has no worker left;
        the run can be resumed.
      DivergedRun: the run diverged, and `stop_on_divergence` is among the options; the run can be
        resumed without it.
    """
    machine = RunOptions(**options)
    check_address(machine.cluster, config.execution)
    with (
        limited_threads(machine.threads),
        connected(machine.cluster, machine.threads) as cluster,
        _tff_worker(config.execution, machine.threads) as worker,
    ):
        task = starting_task(task, config, RunFolder.open(folder) if resume else None)
        model = check_model(task, config)
        setup = None if resume else new_run(task, config, folder, noise_seed, plan, model, machine)
        run_folder = RunFolder.open(folder) if setup is None else setup.folder
        with run_folder.locked():
            if setup is None:
                setup = reopen_run(task, config, run_folder, plan, model, machine.stop_at_epsilon)
            else:
                setup.write()
            _Training(setup, machine, cluster or worker).run()
    return TrainedRun.of(Run.load(folder), task)


def _tff_worker(execution: str, threads: int | None) -> AbstractContextManager[Any]:
    """The worker of execution="tff"; None for "fast", which needs neither it nor TFF."""
    if execution != "tff":
        return nullcontext()
    from fedmf.federated.tff.worker import tff_worker

    return tff_worker(threads)


class _Training:
    """A run under way: `state` is that after `done` rounds."""

    def __init__(
        self, setup: RunSetup, options: RunOptions, place: "Cluster | TffWorker | None"
    ) -> None:
        task, config, folder = setup.task, setup.config, setup.folder
        self.task = task
        self.config = config
        self.folder = folder
        self.plan = setup.plan
        self.options = options
        self.execution = build_execution(
            task,
            setup.plan,
            config,
            setup.noise_seed,
            options=options,
            place=place,
            noise_folder=folder.path / "private",
        )
        checkpoint = folder.load_checkpoint()
        self.controller = setup.controller()
        if checkpoint is None:
            self.state, self.done = self.execution.init(), 0
        else:
            self.controller.go_on_from(checkpoint.ledger)
            self.state = self.execution.from_leaves(checkpoint.state)
            self.done = checkpoint.rounds_done
        self.saved = self.done
        # What was released must be in the guarantee
        self.last = max(setup.rounds(), folder.rounds_ever_done())
        if (ended := Run.load(folder.path).ended_after) is not None:
            raise ValueError(
                f"{folder.path} has ended after {ended} rounds, as its `stop_at_epsilon` said, and "
                "states their guarantee: it does not go on; start a new folder for more rounds"
            )
        self.end = min(self.last, options.stop_after or self.last)
        self.evaluator = Evaluator(task, config)
        self.validation: dict[str, float] = {}
        self.not_finite_told = False
        self.digest = folder.digest()
        self.diverged = ""  # what is said of it
        self.divergence: DivergenceWatch
        if options.progress:
            self._announce()

    def run(self) -> None:
        """Trains the rounds that are left, and writes the result after the last one."""
        config, folder = self.config, self.folder
        folder.truncate_rows(self.done)
        run = Run.load(folder.path)
        rows = run.metrics
        self._watch(run)
        started = time.perf_counter()
        hidden = not self.options.progress
        self.bar = progress_bar.bar(
            total=config.rounds, initial=self.done, unit="round", desc=config.family, disable=hidden
        )
        points = (
            scalars(folder.path / "tensorboard", rows)
            if self.options.tensorboard
            else nullcontext(lambda row: None)
        )
        if self.options.on_start is not None:
            self.options.on_start()
        try:
            with (
                interrupts.deferred(),
                self.bar,
                folder.rows("metrics") as self.metric_row,
                folder.rows("timings") as self.timing_row,
                points as self.point,
            ):
                self._check_divergence()
                for t in range(self.done, self.end):
                    self._round(t)
                    self._check_divergence()
                    interrupts.check()
        except (KeyboardInterrupt, WorkersLost, DivergedRun) as stop:
            self._stop(stop)
        # A client's examples do not do: the rounds before are worth keeping
        except (
            TypeError,
            ValueError,
        ):
            if self.done > self.saved:
                self._save()
            raise
        if self.done < self.last:
            self._save()
            return
        self._write_result(time.perf_counter() - started)

    def _round(self, t: int) -> None:
        config, began = self.config, time.perf_counter()
        cohort = self.controller.cohort(t)
        known = len(self.task.client_ids)  # canaries have the indices behind the clients'
        clients = [self._client(t, client) for client in cohort.tolist() if client < known]
        canaries = [client - known for client in cohort.tolist() if client >= known]
        try:
            # Client work, noisy mean of the updates, server step.
            state, metrics = self.execution.next(self.state, clients, canaries)
        except (tf.errors.InvalidArgumentError, *self.execution.errors) as error:
            raise self._misfit(t, cohort[cohort < known]) or error from error
        if metrics.pop("not_finite"):
            self._warn_not_finite(t, cohort[cohort < known])
        row: dict[str, Any] = {"round": t, "clients": len(cohort), **metrics}
        if len(cohort) and metrics.get("zeroed") == len(cohort):
            warnings.warn(_ALL_ZEROED.format(config.zeroing_norm), stacklevel=4)
        if (
            diverged := self.divergence.observe(t, metrics["train_loss"], int(metrics["examples"]))
        ) is not None:
            self.diverged = diverged
            if not self.options.stop_on_divergence:
                warnings.warn(diverged, stacklevel=4)
        if (t + 1) % config.evaluate_every == 0 or t + 1 == self.last:
            row["validation"] = self.validation = self.evaluator(
                self.execution.weights(state), "validation"
            )
        self._record(row, time.perf_counter() - began)
        self.state, self.done = state, t + 1
        if self.done % config.checkpoint_every == 0 or self.done == self.last:
            self._save()
        if self.options.on_round is not None:
            self.options.on_round(t)

    def _warn_not_finite(self, t: int, cohort: np.ndarray) -> None:
        """Once in a run: a run that stopped for a client would tell of its examples."""
        if self.not_finite_told:
            return
        self.not_finite_told = True
        for client_id in (self.task.client_ids[int(client)] for client in cohort):
            try:
                self.task.examples_of(client_id)
            except NotFinite as error:
                warnings.warn(
                    f"round {t}: {error}; its update is zeroed, now and whenever it takes part",
                    stacklevel=5,
                )
                return

    def _watch(self, run: Run) -> None:
        """Begins to watch for divergence; warns before round 0 of a rate
        that the noise hardly allows.
        """
        config = self.config
        rate = rate_for_noise(self.plan, config, run.plan["rmse"])
        if not self.done and (sentence := rate_warning(rate, config)):
            warnings.warn(sentence, stacklevel=4)
        self.divergence = DivergenceWatch(
            server_learning_rate=config.server_learning_rate, rate_for_noise=rate
        )
        for row in run.metrics:
            self.diverged = (
                self.divergence.observe(row["round"], row["train_loss"], row["examples"])
                or self.diverged
            )

    def _check_divergence(self) -> None:
        if self.diverged and self.options.stop_on_divergence:
            raise DivergedRun(self.diverged)

    def _client(self, t: int, client: int) -> Epochs | ClientRound:
        on_workers = self.options.cluster is not None and self.options.worker_task is not None
        return (
            ClientRound(t, client)
            if on_workers
            else client_epochs(self.task, self.config, t, client)
        )

    def _misfit(self, t: int, cohort: np.ndarray) -> ValueError | None:
        """The error of a round in which a client's examples do not fit the model, such as a label
        that it has no output for.
        """
        weights = self.execution.weights(self.state)
        for client_id in (self.task.client_ids[int(client)] for client in cohort):
            try:
                if count(examples := self.task.examples_of(client_id)):
                    self.evaluator.on(weights, examples)
            except NotFinite:
                continue
            except tf.errors.InvalidArgumentError as error:
                return ValueError(
                    f"round {t} cannot train client {client_id!r} of task {self.task.name!r}: "
                    f"{misfit_reason(error)}; make the model's outputs and all labels fit, and "
                    f"start a new run ({self.done} rounds are saved in {self.folder.path})"
                )
        return None

    def _record(self, row: dict[str, Any], seconds: float) -> None:
        self.metric_row(row)
        self.point(row)
        self.timing_row({"round": row["round"], "seconds": round(seconds, 4)})
        latest = {
            "clients/s": f"{row['clients'] / seconds:.1f}",
            "loss": f"{row['train_loss']:.3f}",
        }
        headline = self.task.headline
        if self.validation:
            latest[headline] = f"{self.validation[headline]:.4f}"
        self.bar.set_postfix(latest, refresh=False)
        self.bar.update()

    def _save(self) -> None:
        self.folder.save_checkpoint(
            Checkpoint(
                rounds_done=self.done,
                config_digest=self.digest,
                state=self.execution.leaves(self.state),
                ledger=self.controller.ledger.first(self.done),
            )
        )
        self.saved = self.done

    def _stop(self, stop: BaseException) -> None:
        """Saves the last complete round and raises what the caller of `train` sees."""
        if self.done > self.saved:
            if self.options.progress:
                print(f"\nstopping: saving round {self.done}", file=sys.stderr, flush=True)
            self._save()
        done = f"{self.done} of {self.config.rounds} rounds"
        if isinstance(stop, WorkersLost):
            raise WorkersLost(f"{stop}; {done} are saved in {self.folder.path}") from stop
        if isinstance(stop, DivergedRun):
            self.folder.mark_diverged(self.done)
            raise DivergedRun(
                f"{stop}; {done} are saved in {self.folder.path}, and go on with resume=True and "
                "without `stop_on_divergence`"
            ) from None
        raise InterruptedRun(
            f"interrupted after {done}, all saved in {self.folder.path}: go on with resume=True"
        ) from None

    def _announce(self) -> None:
        noise, private = self.execution.noise, self.folder.path / "private"
        noise.show_progress()
        strategy = noise.strategy
        if strategy.disk:
            print(
                f"noise: {strategy.reason}, {strategy.disk / 1e9:.1f} GB in {private}",
                file=sys.stderr,
            )
        if self.execution.slow:
            print(f"clients: {self.execution.slow}", file=sys.stderr)

    def _write_result(self, seconds: float) -> None:
        weights = self.execution.weights(self.state)
        self.folder.write_weights("model", weights)
        self.folder.write_table()
        if self.config.canaries:
            self.folder.write_canaries(self.execution.canary_evidence(self.state))
        ended = self.done < self.config.rounds
        audit = self.controller.audit(stopped_after(self.plan, self.done) if ended else self.plan)
        # Our controller drew as the plan's sampling says; a ledger alone could not show it.
        epsilon = audit.epsilon if audit.amplified_epsilon is None else audit.amplified_epsilon
        achieved = {
            "epsilon": epsilon if np.isfinite(epsilon) else None,
            "unamplified_epsilon": audit.epsilon if np.isfinite(audit.epsilon) else None,
            "rho": audit.rho if np.isfinite(audit.rho) else None,
            "sensitivity": audit.achieved.sensitivity.value if audit.achieved else 0.0,
        }
        participation = {
            "population": self.controller.population,
            "cohort_size": self.controller.cohort_size,
            **audit.observed.summary(),
            "histogram": {
                str(count): clients for count, clients in audit.observed.histogram.items()
            },
        } | audit.spending()
        self.folder.write_json(
            "result",
            {
                "validation": self.evaluator(weights, "validation"),
                "test": self.evaluator(weights, "test") if self.options.test else {},
                "participation": participation,
                "claimed_cohort": self.config.claimed_cohort,
                # Nobody observed the run that a simulation stands for.
                "achieved": achieved if self.plan.simulation is None else None,
                "seconds": round(seconds, 1),
            }
            | ({"ended_after": self.done} if ended else {}),
        )
        write_final_statement(self.folder.path, audit)
