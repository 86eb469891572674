"""Everything that determines a run before round 0, and checks that it fits together."""

import dataclasses
import pathlib
import reprlib
from collections.abc import Mapping
from typing import Any

from fedmf.cohorts.availability import availability_from_text
from fedmf.cohorts.controller import ParticipationController
from fedmf.cohorts.devices import DeviceBehavior
from fedmf.files import checked_path, write_atomically
from fedmf.mechanisms.budget import Budget
from fedmf.mechanisms.error import rmse
from fedmf.noise.host_strategies import choose_host_strategy
from fedmf.participation.schema import Participation
from fedmf.privacy.config import PlanConfig
from fedmf.privacy.describe import statement_values
from fedmf.privacy.flat_config import differences
from fedmf.privacy.plan import Plan
from fedmf.privacy.statement import installed_versions, markdown, today
from fedmf.privacy.stopping import rounds_within
from fedmf.runs.config import TrainConfig
from fedmf.runs.folder import RunFolder
from fedmf.runs.plan_record import plan_record
from fedmf.runs.selection import is_trial
from fedmf.runs.statement import (
    pretraining,
    scaling_values,
    selection_values,
    subject_of_run,
)
from fedmf.runs.vocabulary import VOCABULARY
from fedmf.server.drawing import CohortSettings
from fedmf.server.optimizers import ServerOptimizer, check_server_optimizer
from fedmf.server.source import check_noise_seed
from fedmf.training.checked_task import CheckedTask
from fedmf.training.examples import digest
from fedmf.training.execution.base import RunOptions
from fedmf.training.execution.canaries import largest_entry
from fedmf.training.task import Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSetup:
    """Task, config, plan, noise seed and folder of a run.

    Attributes:
      checked: the task with what was read of it before round 0.
      config: config of the run.
      plan: plan of the run, which determines its noise.
      noise_seed: secret seed of the noise.
      folder: folder of the run.
      server_optimizer: the caller's, or the one that the config names.
      is_callers_plan: whether the caller passed the plan, in place of the one of the config.
      identity: `task_identity` of the task when the run was begun.
      program: fingerprint of the program that resumes the run, if it differs from that of the
        newest round; None otherwise.
    """

    checked: CheckedTask
    config: TrainConfig
    plan: Plan
    noise_seed: int
    folder: RunFolder
    server_optimizer: ServerOptimizer
    is_callers_plan: bool
    identity: Mapping[str, Any]
    program: Mapping[str, str] | None = None

    @property
    def task(self) -> Task:
        """The task of the run."""
        return self.checked.task

    def controller(self) -> ParticipationController:
        """Returns the participation controller of the run, before its first round."""
        num_clients = self.checked.num_clients
        return run_controller(num_clients, self.config, self.plan, self.noise_seed)

    def rounds(self) -> int:
        """Returns the number of rounds after which the run is finished. With
        `config.stop_at_epsilon` it is the largest number of rounds whose guarantee is within that
        epsilon.

        Raises:
          ValueError: the first round exceeds that epsilon, or the number of rounds cannot be
            computed from the plan.
        """
        if self.config.stop_at_epsilon is None:
            return self.config.rounds
        return rounds_within(self.plan, self.config.stop_at_epsilon, argument="stop_at_epsilon")

    def check(self, options: RunOptions) -> None:
        """Checks the number of rounds, the server optimizer and the canaries, and that there is
        space for the noise.

        Raises:
          TypeError, ValueError: the run cannot end at its epsilon, no resume could read the state
            of the server optimizer, the run has too many canaries, or there is no space for the
            noise.
        """
        check_server_optimizer(self.server_optimizer, self.task.initial_weights(self.config.seed))
        self.rounds()
        self._check_canaries()
        choose_host_strategy(
            self.plan.mechanism.stream().causal(),
            self.checked.num_parameters,
            memory_bytes=options.noise_memory,
            folder=self.folder.path / "private",
            name=options.noise_strategy,
        )

    def _check_canaries(self) -> None:
        """Raises a ValueError if there are too many canaries for the model, or their updates would
        be zeroed.
        """
        num_parameters = self.checked.num_parameters
        canaries = self.config.canaries
        if num_parameters < 10 * canaries:
            raise ValueError(
                f"canaries={canaries} disturb each other in a model of {num_parameters} "
                f"parameters: use at most {num_parameters // 10}"
            )
        canary_entry = largest_entry(self.plan.clip_norm, num_parameters)
        zeroing_norm = self.config.zeroing_norm
        if canaries and zeroing_norm is not None and canary_entry > zeroing_norm:
            raise ValueError(
                f"canaries={canaries} have entries of {canary_entry:.3g}, and "
                f"zeroing_norm={zeroing_norm} would zero them, so that nothing is audited: raise "
                "`zeroing_norm`, or lower `clip_norm`"
            )

    def write(self) -> None:
        """Writes all files that a run has before round 0. config.json is written last, because it
        makes the folder a run.
        """
        folder = self.folder
        folder.prepare()
        plan = self.plan
        plan.mechanism.save(folder.path / "mechanism.npz")
        workload = self.config.fit_workload()
        if self.config.initial_model is not None:
            trained_weights = self.task.initial_weights(self.config.seed)
            all_weights = self.task.learner.all_weights(trained_weights, self.config.seed)
            folder.write_weights("initial_model", all_weights)
        if self.task.vocabulary is not None:
            vocabulary_text = self.task.vocabulary.to_json()
            write_atomically(folder.path / VOCABULARY, vocabulary_text, mode=0o600)
        # The date of a trial would tell an attacker how many trials ran before it.
        date = today() if plan.selection is None else None
        plan_content = plan_record(self.config, plan) | {
            "is_callers_plan": self.is_callers_plan,
            "task": self.checked.summary,
            "workload": workload.name,
            "rmse": rmse(plan.mechanism, workload, plan.participation),
            "initial_model": folder.initial_model_digest(),
            "initial_weights": {
                "digest": digest(self.task.initial_weights(self.config.seed)),
                "given": self.task.has_given_weights,
            },
            "server_optimizer": self.server_optimizer.record(),
            "versions": installed_versions(),
            "date": date,
        }
        frozen_weights = self.task.learner.frozen_weights(self.config.seed)
        if frozen_weights.number:
            plan_content["frozen_weights"] = frozen_weights._asdict()
        folder.write_json("plan", plan_content)
        statement_by_name = statement_values(
            plan,
            population=self.checked.num_clients + self.config.canaries,
            pretraining=pretraining(self.config, plan_content),
            canaries=self.config.canaries,
            subject=subject_of_run(self.config, plan_content),
        )
        statement_by_name |= scaling_values(self.config) | selection_values(
            self.config, plan_content
        )
        statement_by_name["date"] = plan_content["date"]
        statement_by_name |= {"synthetic_clients": self.task.synthetic_clients}
        write_atomically(folder.path / "statement.md", markdown(statement_by_name))
        folder.begin(self.config, plan_content, self.identity, self.noise_seed)


def new_run(
    checked: CheckedTask,
    config: TrainConfig,
    folder: str | pathlib.Path,
    noise_seed: int | str | None,
    plan: Plan | None,
    options: RunOptions,
) -> RunSetup:
    """Returns the setup of a new run after checking it. Nothing is written.

    Args:
      checked: task of the run.
      config: config of the run.
      folder: path of the run's folder.
      noise_seed: noise seed of `train`.
      plan: the caller's plan, or None for the plan of the config.
      options: options of `train`.

    Raises:
      TypeError, ValueError: the first round cannot be run.
    """
    check_trial_folder(config, folder)
    adds_noise = plan.noise_multiplier > 0 if isinstance(plan, Plan) else config.adds_noise
    if noise_seed is None and not adds_noise:
        noise_seed = "os"
    seed = check_noise_seed(noise_seed)
    if config.sampling is None:
        # If the participation is impossible, this call raises the error before the mechanism is
        # fitted, which may be slow.
        run_controller(checked.num_clients, config)
    is_callers_plan = plan is not None
    if plan is None:
        plan = config.plan(config.fit(show_progress=options.progress))
    check_plan_of_config(plan, config)
    # Making the controller raises an error if the cohorts of the plan cannot be drawn.
    run_controller(checked.num_clients, config, plan, seed)
    run_setup = RunSetup(
        checked=checked,
        config=config,
        plan=plan,
        noise_seed=seed,
        folder=RunFolder(folder),
        server_optimizer=options.server_optimizer or config.server_steps(),
        is_callers_plan=is_callers_plan,
        identity=checked.identity,
    )
    run_setup.check(options)
    return run_setup


def check_trial_folder(config: TrainConfig, folder: str | pathlib.Path) -> None:
    """Raises ValueError if a run states the guarantee of a private selection, and its folder is not
    that of a trial.
    """
    if config.mean_trials is None or is_trial(checked_path("folder", folder, hint="name a folder")):
        return
    raise ValueError(
        f"mean_trials={config.mean_trials} states the guarantee of a private selection, which "
        "`fedmf sweep --private-selection` runs: leave it out for a single run"
    )


def run_controller(
    num_clients: int, config: TrainConfig, plan: Plan | None = None, noise_seed: int = 0
) -> ParticipationController:
    """Returns the participation controller of a run, which draws its cohorts.

    Args:
      num_clients: number of clients of the task, without canaries.
      config: config of the run.
      plan: plan of the run; None to check participation before the mechanism is fitted.
      noise_seed: noise seed of the run, from which the secret seed of sampled cohorts is derived.

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
            canaries_text = ""
            if config.canaries:
                canaries_text = f" and the run {config.canaries} canaries"
            raise ValueError(
                f"population={sampling.population} but the data has {num_clients} clients"
                f"{canaries_text}: set population to {population}, on which the amplification "
                "depends"
            )
        # A run that simulates a larger cohort samples cohorts of `cohort_size` itself.
        sampling = sampling.resized(population=population, cohort_size=config.cohort_size)
    cohort_settings = CohortSettings(
        rule=rule,
        sampling=sampling,
        population=population,
        cohort_size=config.cohort_size,
        noise_seed=noise_seed,
        public_seed=config.seed,
        availability=availability_from_text(config.availability),
        behavior=DeviceBehavior(dropout=config.dropout, seed=config.seed),
    )
    return cohort_settings.controller()


def check_plan_of_config(plan: Plan, config: TrainConfig) -> None:
    """Checks that a plan describes a run with this config.

    Raises:
      TypeError, ValueError: the plan differs from the config, or float32 cannot represent the
        noise's scale.
    """
    if not isinstance(plan, Plan):
        raise TypeError(
            f"plan={reprlib.repr(plan)} must be a fedmf.Plan, or None for the one "
            "that the config describes"
        )
    # Reading `stddev` raises an error if float32 cannot represent the scale of the noise.
    _ = plan.stddev
    expected_plan = config.plan_with(plan.mechanism, plan.noise_multiplier)
    changes_text = differences(
        PlanConfig.of(plan).flat(),
        PlanConfig.of(expected_plan).flat(),
        leave_out=("delta",),
        was="the config has",
    )
    if changes_text:
        raise ValueError(f"plan has {changes_text}: calibrate it for the run, or make them agree")
    if dataclasses.replace(expected_plan, delta=plan.delta) != plan:
        raise ValueError(
            f"plan={reprlib.repr(plan)} is not the plan of a whole run: pass one of "
            "fedmf.calibrate, fedmf.Plan or config.plan, and end the run earlier with `stop_after` "
            "or `stop_at_epsilon`"
        )
