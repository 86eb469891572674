"""What a run folder has before round 0, and what a resume compares with it."""

import dataclasses
import pathlib
import reprlib
from typing import Any

from fedmf.federated.task import Task
from fedmf.files import write_atomically
from fedmf.mechanisms import load_mechanism
from fedmf.mechanisms.error import rmse
from fedmf.privacy.plan import Plan
from fedmf.privacy.statement import installed_versions, mechanism_digest
from fedmf.runs.audit import recorded_plan
from fedmf.runs.config import TrainConfig
from fedmf.runs.folder import Run, RunFolder


def check_plan(plan: Plan, config: TrainConfig) -> None:
    """Refuses a plan that is not of the run that the config describes.

    Raises:
      TypeError, ValueError: saying where they differ, or that float32 cannot hold the noise's scale.
    """
    if not isinstance(plan, Plan):
        raise TypeError(
            f"plan={reprlib.repr(plan)} must be a fedmf.Plan, or None for the one that the config describes"
        )
    _ = plan.stddev  # refuses what float32 cannot hold
    if plan.participation != config.participation():
        raise ValueError(
            f"plan is for {plan.participation} but the config trains {config.participation()}: calibrate the plan for the run"
        )
    asked, given = config.sampling_scheme(), plan.sampling
    if (asked is None) != (given is None) or (
        asked is not None and given is not None and dataclasses.replace(given, groups=None) != asked
    ):
        raise ValueError(f"plan has sampling={given} but the config asks for {asked}: calibrate the plan for the run")
    if plan.simulated_cohort not in (None, config.cohort_size):
        raise ValueError(
            f"plan simulates simulated_cohort={plan.simulated_cohort} clients a round but the config trains cohort_size="
            f"{config.cohort_size}: make them agree"
        )
    if plan.clip_norm != config.clip_norm or plan.claimed_cohort != config.claimed_cohort:
        raise ValueError(
            f"plan has clip_norm={plan.clip_norm} and claimed_cohort={plan.claimed_cohort} but the config clip_norm={config.clip_norm} "
            f"and claimed_cohort={config.claimed_cohort}: make them agree"
        )


def _task_summary(task: Task) -> dict[str, Any]:
    return {
        "name": task.name,
        "description": task.description,
        "headline_metric": task.headline_metric,
        "clients": len(task.client_ids),
        "data_version": task.data_version,
    }


def write_setup(folder: RunFolder, task: Task, config: TrainConfig, plan: Plan, seed: int, *, given: bool) -> None:
    """Everything that is known before round 0; config.json last, because it makes the folder a run.

    Args:
      folder, task, config: of the run.
      plan: what it will add as noise.
      seed: of that noise.
      given: the plan is the caller's and not the config's.
    """
    plan.mechanism.save(folder.path / "mechanism.npz")
    workload = config.workload()
    folder.write_json(
        "plan",
        plan.summary()
        | {
            "given": given,
            "task": _task_summary(task),
            "workload": workload.name,
            "rmse": rmse(plan.mechanism, workload, plan.participation),
            "versions": installed_versions(),
        },
    )
    write_atomically(folder.path / "statement.md", plan.statement(population=len(task.client_ids)))
    write_atomically(folder.path / "private" / "noise_seed", f"{seed}\n", mode=0o600)
    write_atomically(folder.path / "config.json", config.to_json())


def reopen_run(task: Task, config: TrainConfig, folder: RunFolder, plan: Plan | None) -> tuple[Plan, int]:
    """The plan and the noise seed with which a run goes on.

    Raises:
      ValueError: it was begun with another config, plan or mechanism, or on other data.
    """
    run = Run.load(folder.path)
    # Where the data lie may change; what they are is compared below.
    if dataclasses.replace(run.config, data=config.data) != config:
        changed = [
            f"{f.name}={getattr(config, f.name)!r} (the run has {getattr(run.config, f.name)!r})"
            for f in dataclasses.fields(config)
            if f.name != "data" and getattr(config, f.name) != getattr(run.config, f.name)
        ]
        raise ValueError(
            f"cannot resume {folder.path} with another config: {', '.join(changed)}; start a new folder for that"
        )
    _check_same_task(run, task)
    stored = load_mechanism(folder.path / "mechanism.npz")
    if stored.rounds != config.rounds:
        raise ValueError(
            f"cannot resume {folder.path}: its mechanism.npz has {stored.rounds} rounds where its config.json has {config.rounds}; put "
            "back the mechanism.npz that the run was begun with"
        )
    if plan is None:
        plan = recorded_plan(run) if run.plan.get("given") else config.plan(stored)
    other = any(run.plan[key] != value for key, value in plan.summary().items())
    if other or mechanism_digest(plan.mechanism) != mechanism_digest(stored):
        raise ValueError(
            f"cannot resume {folder.path} with another plan: its plan.json or mechanism.npz differs; start a new folder for that"
        )
    return plan, _kept_seed(folder.path / "private" / "noise_seed")


def _check_same_task(run: Run, task: Task) -> None:
    """Raises unless the run was begun on this task: resumed rounds repeat their noise, and on other data the difference of the two
    releases would be free of it."""
    recorded, given = run.plan["task"], _task_summary(task)
    if recorded == given:
        return
    of_run = recorded if isinstance(recorded, dict) else {}
    changed = [
        f"{name}={given[name]!r} (the run has {of_run.get(name)!r})"
        for name in given
        if given[name] != of_run.get(name)
    ]
    raise ValueError(
        f"cannot resume {run.path} on other data: {', '.join(changed) or 'its plan.json describes more'}; start a new folder for that"
    )


def _kept_seed(path: pathlib.Path) -> int:
    """The noise seed that the run was begun with.

    Raises:
      ValueError: it is not there, or is none. The message says nothing of what the file holds, and no other error is behind it.
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
    # Not within the except clauses: what was raised there would be this error's context, and may quote the seed.
    raise ValueError(
        f"the noise seed {path} {wrong}; without it nobody can make the same noise again: put the run's own back, or start a new folder"
    )
