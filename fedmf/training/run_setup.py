"""`RunSetup`, what a run is before round 0, made anew or from its folder; refuses what cannot give
the guarantee.
"""

import dataclasses
import pathlib
import reprlib
import warnings
from collections.abc import Mapping
from typing import Any

from fedmf.cohorts.availability import availability_from_text
from fedmf.cohorts.controller import ParticipationController
from fedmf.cohorts.devices import DeviceBehavior
from fedmf.files import write_atomically
from fedmf.mechanisms import load_mechanism
from fedmf.mechanisms.budget import Budget
from fedmf.mechanisms.error import rmse
from fedmf.noise.host_strategies import choose_host_strategy
from fedmf.participation.schema import Participation
from fedmf.privacy.config import PlanConfig
from fedmf.privacy.describe import statement_values
from fedmf.privacy.flat_config import differences
from fedmf.privacy.plan import Plan
from fedmf.privacy.same_plan import plan_differences
from fedmf.privacy.statement import installed_versions, markdown, today, version_changes
from fedmf.privacy.stopping import rounds_within
from fedmf.runs.audit import (
    plan_record,
    pretraining,
    recorded_plan,
    scaling_values,
    subject_of_run,
)
from fedmf.runs.config import TrainConfig
from fedmf.runs.folder import Run, RunFolder
from fedmf.runs.vocabulary import VOCABULARY
from fedmf.server.drawing import CohortSettings
from fedmf.server.optimizers import ServerOptimizer
from fedmf.server.source import check_noise_seed
from fedmf.training.checked_task import CheckedTask
from fedmf.training.execution.base import RunOptions
from fedmf.training.execution.canaries import largest_entry
from fedmf.training.identity import difference, program_difference
from fedmf.training.task import Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSetup:
    """Task, config, plan and noise seed of a run, and its folder.

    Attributes:
      checked: the task, as it was read before round 0.
      server_optimizer: the caller's, or the one that the config names.
      plan_given: the plan is the caller's and not the config's.
      identity: of the task, when the run was begun; see `task_identity`.
      program: the fingerprint of what goes on with the run, where it is another than before.
    """

    checked: CheckedTask
    config: TrainConfig
    plan: Plan
    noise_seed: int
    folder: RunFolder
    server_optimizer: ServerOptimizer
    plan_given: bool
    identity: Mapping[str, Any]
    program: Mapping[str, str] | None = None

    @property
    def task(self) -> Task:
        """The task of the run."""
        return self.checked.task

    def controller(self) -> ParticipationController:
        """The controller of the run, before its first round."""
        num_clients = self.checked.num_clients
        return run_controller(num_clients, self.config, self.plan, self.noise_seed)

    def rounds(self) -> int:
        """Rounds after which the run is finished: all, or those within `config.stop_at_epsilon`.

        Raises:
          ValueError: an epsilon that the first round passes already, or whose rounds do not follow
            from the plan.
        """
        if self.config.stop_at_epsilon is None:
            return self.config.rounds
        return rounds_within(self.plan, self.config.stop_at_epsilon, argument="stop_at_epsilon")

    def check(self, options: RunOptions) -> None:
        """Refuses an end that cannot be, too many canaries, and noise for which there is no room or
        that float32 does not hold.
        """
        self.rounds()
        size, canaries = self.checked.num_parameters, self.config.canaries
        if size < 10 * canaries:
            raise ValueError(
                f"canaries={canaries} disturb each other in a model of {size} parameters: "
                f"use at most {size // 10}"
            )
        entry, limit = largest_entry(self.plan.clip_norm, size), self.config.zeroing_norm
        if canaries and limit is not None and entry > limit:
            raise ValueError(
                f"canaries={canaries} have entries of {entry:.3g}, and zeroing_norm={limit} would "
                "zero them, so that nothing is audited: raise `zeroing_norm`, or lower `clip_norm`"
            )
        choose_host_strategy(
            self.plan.mechanism.stream().causal(),
            size,
            memory_bytes=options.noise_memory,
            folder=self.folder.path / "private",
            name=options.noise_strategy,
        )

    def write(self) -> None:
        """Writes everything that is known before round 0; config.json last, because it makes the
        folder a run.
        """
        RunFolder.create(self.folder.path)
        folder, plan = self.folder, self.plan
        plan.mechanism.save(folder.path / "mechanism.npz")
        workload = self.config.fit_workload()
        if self.config.initial_model is not None:
            trained = self.task.initial_weights(self.config.seed)
            all_weights = self.task.learner.all_weights(trained, self.config.seed)
            folder.write_weights("initial_model", all_weights)
        if self.task.vocabulary is not None:
            text = self.task.vocabulary.to_json()
            write_atomically(folder.path / VOCABULARY, text, mode=0o600)
        record = plan_record(self.config, plan) | {
            "given": self.plan_given,
            "task": self.checked.summary,
            "workload": workload.name,
            "rmse": rmse(plan.mechanism, workload, plan.participation),
            "initial_model": folder.initial_model_digest(),
            "server_optimizer": self.server_optimizer.record(),
            "versions": installed_versions(),
            "date": today(),
        }
        folder.write_json("plan", record)
        write_atomically(
            folder.path / "statement.md",
            markdown(
                statement_values(
                    plan,
                    population=self.checked.num_clients + self.config.canaries,
                    pretraining=pretraining(self.config),
                    canaries=self.config.canaries,
                    subject=subject_of_run(self.config, record),
                )
                | scaling_values(self.config)
                | {"synthetic_clients": self.task.synthetic_clients}
            ),
        )
        write_atomically(folder.path / "private" / "noise_seed", f"{self.noise_seed}\n", mode=0o600)
        folder.begin(self.config, self.identity)


def new_run(
    checked: CheckedTask,
    config: TrainConfig,
    folder: str | pathlib.Path,
    noise_seed: int | str | None,
    plan: Plan | None,
    options: RunOptions,
) -> RunSetup:
    """The setup of a new run; nothing is written.

    Raises:
      TypeError, ValueError: for whatever would stop it before the first round.
    """
    noisy = plan.noise_multiplier > 0 if isinstance(plan, Plan) else config.adds_noise
    seed = check_noise_seed("os" if noise_seed is None and not noisy else noise_seed)
    if config.sampling is None:
        # Refuses an impossible participation before a long fit
        run_controller(checked.num_clients, config)
    plan_given = plan is not None
    if plan is None:
        plan = config.plan(config.fit(show_progress=options.progress))
    check_plan(plan, config)
    run_controller(checked.num_clients, config, plan, seed)  # refuses what cannot be drawn
    setup = RunSetup(
        checked=checked,
        config=config,
        plan=plan,
        noise_seed=seed,
        folder=RunFolder(folder),
        server_optimizer=options.server_optimizer or config.server_steps(),
        plan_given=plan_given,
        identity=checked.identity,
    )
    setup.check(options)
    return setup


def run_controller(
    num_clients: int, config: TrainConfig, plan: Plan | None = None, noise_seed: int = 0
) -> ParticipationController:
    """Returns the controller of a run.

    Args:
      num_clients: of the task; the canaries of the run join them.
      config: of the run.
      plan: None before there is one, to refuse an impossible participation before a long fit.
      noise_seed: secret.

    Raises:
      ValueError: the task has another number of clients than the plan's sampling scheme, or the
        controller refuses its arguments.
    """
    rule: Participation | Budget = config.participation()
    sampling = None
    if plan is not None:
        rule = config.budget_with(plan.mechanism) or rule
        sampling = plan.sampling
    population = num_clients + config.canaries
    if sampling is not None:
        if population != sampling.population:
            canaries = f" and the run {config.canaries} canaries" if config.canaries else ""
            raise ValueError(
                f"population={sampling.population} but the data has {num_clients} "
                f"clients{canaries}: set population to "
                f"{population}, on which the amplification depends"
            )
        # A simulation of a larger cohort draws the smaller one.
        sampling = sampling.resized(population=population, cohort_size=config.cohort_size)
    settings = CohortSettings(
        rule=rule,
        sampling=sampling,
        population=population,
        cohort_size=config.cohort_size,
        noise_seed=noise_seed,
        public_seed=config.seed,
        availability=availability_from_text(config.availability),
        behavior=DeviceBehavior(dropout=config.dropout, seed=config.seed),
    )
    return settings.controller()


def check_plan(plan: Plan, config: TrainConfig) -> None:
    """Refuses a plan for another run than the config's.

    Raises:
      TypeError, ValueError: saying where they differ, or that float32 cannot hold
        the noise's scale.
    """
    if not isinstance(plan, Plan):
        raise TypeError(
            f"plan={reprlib.repr(plan)} must be a fedmf.Plan, or None for the one "
            "that the config describes"
        )
    _ = plan.stddev  # refuses what float32 cannot hold
    wanted = config.plan_with(plan.mechanism, plan.noise_multiplier)
    differs = differences(
        PlanConfig.of(plan).flat(),
        PlanConfig.of(wanted).flat(),
        leave_out=("delta",),
        was="the config has",
    )
    if differs:
        raise ValueError(f"plan has {differs}: calibrate it for the run, or make them agree")
    if dataclasses.replace(wanted, delta=plan.delta) != plan:
        raise ValueError(
            f"plan={reprlib.repr(plan)} is not the plan of a whole run: give one of "
            "fedmf.calibrate, fedmf.Plan or config.plan, and end the run earlier with `stop_after` "
            "or `stop_at_epsilon`"
        )


def reopen_run(
    checked: CheckedTask,
    config: TrainConfig,
    folder: RunFolder,
    plan: Plan | None,
    options: RunOptions,
) -> RunSetup:
    """The setup with which a run goes on.

    Args:
      checked: the task of the run.
      config, folder, plan: of the run.
      options: of the call that resumes.

    Raises:
      ValueError: the run was begun with another config, plan, mechanism, server optimizer or model,
        or on other data.
    """
    run = Run.load(folder.path)
    cannot = f"cannot resume {folder.path}"
    # Where the data lie may change; what they are is compared below.
    changes = differences(config.flat(), run.config.flat(), leave_out=("data",), was="the run has")
    if changes:
        why = ""
        if config.rounds > run.config.rounds:
            why = (
                ": whether to go on is decided by what was released, which a guarantee allows only "
                "within noise that was made for all rounds beforehand; plan the most rounds that "
                "you may want and end earlier (`stop_after`, `stop_at_epsilon`)"
            )
        if run.config.task is None and config.task is not None:
            why = (
                ": it was trained in Python, so go on there, by "
                "federated.train(task, config, folder=..., resume=True)"
            )
        raise ValueError(
            f"{cannot} with another config: {changes}{why}; start a new folder for that"
        )
    server_optimizer = options.server_optimizer or config.server_steps()
    recorded_optimizer = run.plan.get("server_optimizer")
    if server_optimizer.record() != recorded_optimizer:
        raise ValueError(
            f"{cannot} with server_optimizer={server_optimizer.record()}: the run has "
            f"{recorded_optimizer}; give an equal one, or start a new folder"
        )
    recorded_task, now = run.plan["task"], checked.summary
    if recorded_task != now:
        old = recorded_task if isinstance(recorded_task, dict) else {}
        changes = ", ".join(
            f"{name}={new!r} (the run has {old.get(name)!r})"
            for name, new in now.items()
            if new != old.get(name)
        )
        raise ValueError(
            f"{cannot} on other data: {changes or 'its plan.json describes more'}; "
            "start a new folder for that"
        )
    if run.plan.get("initial_model") != folder.initial_model_digest():
        raise ValueError(
            f"{cannot} from another model: its initial_model.npz is missing or changed; put back "
            "the run's own, or start a new folder"
        )
    stored = load_mechanism(folder.path / "mechanism.npz")
    if stored.rounds != config.rounds:
        raise ValueError(
            f"{cannot}: its mechanism.npz has {stored.rounds} rounds where its config.json has "
            f"{config.rounds}; put back the mechanism.npz that the run was begun with"
        )
    seed = _stored_seed(folder.path / "private" / "noise_seed")
    identity = folder.identity()
    folder.read_rounds()
    # The recorded plan goes on, whatever this machine would calibrate today: the noise stays.
    recorded = recorded_plan(run)
    if plan is not None and (changes := plan_differences(plan, recorded)):
        raise ValueError(
            f"{cannot} with another plan: {changes}{_begun_with(run)}; leave the plan out, for "
            "the run keeps its own, or start a new folder for that"
        )
    setup = RunSetup(
        checked=checked,
        config=config,
        plan=recorded,
        noise_seed=seed,
        folder=folder,
        server_optimizer=server_optimizer,
        plan_given=bool(run.plan.get("given")),
        identity=identity,
    )
    program = _checked_program(setup, options)
    return dataclasses.replace(setup, program=program)


def _checked_program(setup: RunSetup, options: RunOptions) -> Mapping[str, str] | None:
    """Refuses a task that is not the one that the run was begun with.

    Returns:
      The fingerprint of another program, where that is accepted; None of the same one.
    """
    task, folder, now = setup.task, setup.folder, setup.checked.identity
    own = f"take the run's own{_begun_with(Run.load(folder.path))}, or start a new folder"
    if (reason := difference(setup.identity, now)) is not None:
        raise ValueError(f"cannot resume {folder.path} {reason}; {own}")
    if not task.data_version:
        warnings.warn(
            f"task {task.name!r} has no data_version, so that other data would go unnoticed: set "
            "Task.data_version to a text that changes with the data",
            stacklevel=4,
        )
    reason = program_difference(_newest_program(setup), now["program"])
    if reason is None:
        return None
    if not options.accept_changed_task:
        raise ValueError(
            f"cannot resume {folder.path} with another program: {reason}; {own}, or go on with "
            "accept_changed_task=True, which plan.json and the statement will say"
        )
    warnings.warn(
        f"{folder.path} goes on with another program ({reason}): no copy of this folder may go on "
        "as well, or the noise of a round is released under two sums",
        stacklevel=4,
    )
    program: Mapping[str, str] = now["program"]
    return program


def _newest_program(setup: RunSetup) -> Mapping[str, str]:
    """Returns the fingerprint of the program that computed the newest round."""
    rows = setup.folder.rounds.committed.rows
    programs = [row["program"] for row in rows if "program" in row]
    return programs[-1] if programs else setup.identity["program"]


def _begun_with(run: Run) -> str:
    """Returns the versions of the run's software that differ from those here, in brackets; empty
    where none does.
    """
    changes = version_changes(run.plan.get("versions", {}))
    return f" (it was begun with {changes}, which may differ)" if changes else ""


def _stored_seed(path: pathlib.Path) -> int:
    """The noise seed that the run was begun with.

    Raises:
      ValueError: it is missing or damaged. The message quotes nothing of the file, and no other
        error is its context.
    """
    wrong = "is damaged: it must hold one whole number"
    try:
        text = path.read_text(encoding="ascii").strip()
        if text.isdecimal():
            return int(text)
    except FileNotFoundError:
        wrong = "is not there, as in a copy of the run that was made to be published"
    except OSError as error:
        wrong = f"cannot be read ({error.strerror})"
    except ValueError:  # bytes that are no text, or more digits than Python reads
        pass
    # Outside the except clauses: an error caught there would be this one's context, and may quote
    # the seed.
    raise ValueError(
        f"the noise seed {path} {wrong}; without it the noise cannot be made again: put the run's "
        "own back, or start a new folder"
    )
