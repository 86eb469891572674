"""Resuming of a run, after a check that nothing differs from its beginning."""

import pathlib
import warnings
from collections.abc import Mapping
from typing import Any

from fedmf.mechanisms import load_mechanism
from fedmf.privacy.flat_config import differences
from fedmf.privacy.plan import Plan
from fedmf.privacy.same_plan import plan_differences
from fedmf.privacy.statement import version_changes
from fedmf.runs.config import TrainConfig
from fedmf.runs.folder import Run, RunFolder
from fedmf.runs.plan_record import recorded_plan
from fedmf.training.checked_task import CheckedTask
from fedmf.training.execution.base import RunOptions
from fedmf.training.identity import identity_difference, program_difference
from fedmf.training.run_setup import RunSetup, check_trial_folder


def reopen_run(
    checked: CheckedTask,
    config: TrainConfig,
    folder: RunFolder,
    plan: Plan | None,
    options: RunOptions,
    noise_seed: int | str | None = None,
) -> RunSetup:
    """Checks that a run is resumed as it was begun, and returns its setup.

    Args:
      checked: task of the run.
      config: config of the run.
      folder: folder of the run.
      plan: plan of the run, or None for the recorded one.
      options: options of the call that resumes.
      noise_seed: noise seed of that call; None for the recorded one.

    Raises:
      ValueError: the run was begun with another config, plan, mechanism, server optimizer or model,
        or on other data.
    """
    run = Run.load(folder.path)
    _check_config(run, config)
    if run.result is None:
        # A trial that was not selected ends in no other folder.
        check_trial_folder(config, folder.path)
    server_optimizer = options.server_optimizer or config.server_steps()
    recorded_optimizer = run.plan.get("server_optimizer")
    if server_optimizer.record() != recorded_optimizer:
        raise ValueError(
            f"cannot resume {run.path} with server_optimizer={server_optimizer.record()}: the run "
            f"has {recorded_optimizer}; use an equal one, or start a new folder"
        )
    _check_summary(run, checked)
    if run.plan.get("initial_model") != folder.initial_model_digest():
        raise ValueError(
            f"cannot resume {run.path} from another model: its initial_model.npz is missing or "
            "changed; put back the run's own, or start a new folder"
        )
    _check_mechanism_rounds(run, config)
    recorded_seed = _read_noise_seed(folder.path / "private" / "noise_seed")
    if noise_seed not in (None, recorded_seed):
        raise ValueError(
            f"cannot resume {run.path} with another `noise_seed`: the run keeps its own, in "
            "private/; leave it out"
        )
    recorded_identity = folder.identity()
    folder.read_rounds(run, recorded_seed)
    # The run keeps its recorded plan, even if this machine would calibrate slightly different noise
    # today.
    stored_plan = recorded_plan(run)
    _check_plan(run, plan, stored_plan)
    return RunSetup(
        checked=checked,
        config=config,
        plan=stored_plan,
        noise_seed=recorded_seed,
        folder=folder,
        server_optimizer=server_optimizer,
        is_callers_plan=bool(run.plan.get("is_callers_plan")),
        identity=recorded_identity,
        program=_changed_program(run, checked, folder, recorded_identity, options),
    )


def _check_mechanism_rounds(run: Run, config: TrainConfig) -> None:
    """Raises ValueError if the mechanism in the run's folder has another number of rounds than its
    config.
    """
    mechanism_rounds = load_mechanism(run.path / "mechanism.npz").rounds
    if mechanism_rounds != config.rounds:
        raise ValueError(
            f"cannot resume {run.path}: its mechanism.npz has {mechanism_rounds} rounds where its "
            f"config.json has {config.rounds}; put back the mechanism.npz that the run was begun "
            "with"
        )


def _check_config(run: Run, config: TrainConfig) -> None:
    """Raises a ValueError if the config differs from that of the run."""
    # The path of the data may differ from the recorded one, because the contents of the data are
    # compared elsewhere.
    changes_text = differences(
        config.flat(), run.config.flat(), leave_out=("data",), was="the run has"
    )
    if not changes_text:
        return
    advice = ""
    if config.rounds > run.config.rounds:
        advice = (
            ": a decision to train longer depends on what was released, and the guarantee allows "
            "that only within noise that was planned for all rounds beforehand; plan the largest "
            "number of rounds that you may want and end earlier (`stop_after`, `stop_at_epsilon`)"
        )
    if run.config.task is None and config.task is not None:
        advice = (
            ": it was trained in Python, so resume it there, by "
            "federated.train(task, config, folder=..., resume=True)"
        )
    raise ValueError(
        f"cannot resume {run.path} with another config: {changes_text}{advice}; start a new "
        "folder for that"
    )


def _check_summary(run: Run, checked: CheckedTask) -> None:
    """Raises a ValueError if the task's summary differs from that in plan.json."""
    recorded_summary = run.plan["task"]
    if recorded_summary == checked.summary:
        return
    old_values = recorded_summary if isinstance(recorded_summary, dict) else {}
    changes_text = ", ".join(
        f"{name}={value!r} (the run has {old_values.get(name)!r})"
        for name, value in checked.summary.items()
        if value != old_values.get(name)
    )
    raise ValueError(
        f"cannot resume {run.path} on other data: "
        f"{changes_text or 'its plan.json describes more'}; "
        "start a new folder for that"
    )


def _check_plan(run: Run, plan: Plan | None, stored_plan: Plan) -> None:
    """Raises a ValueError if the caller passed a plan that differs from the recorded plan."""
    if plan is None:
        return
    changes_text = plan_differences(plan, stored_plan)
    if changes_text:
        raise ValueError(
            f"cannot resume {run.path} with another plan: {changes_text}{_version_note(run)}; "
            "leave the plan out, for the run keeps its own, or start a new folder for that"
        )


def _changed_program(
    run: Run,
    checked: CheckedTask,
    folder: RunFolder,
    identity: Mapping[str, Any],
    options: RunOptions,
) -> Mapping[str, str] | None:
    """Checks that the task is the one with which the run was begun, and finds out whether its
    program changed.

    Returns:
      The fingerprint of another program, if `options` accept one; None for the same program.

    Raises:
      ValueError: the task differs, or its program does and `options` do not accept that.
    """
    way_out = f"use the run's own{_version_note(run)}, or start a new folder"
    difference = identity_difference(identity, checked.identity)
    if difference is not None:
        raise ValueError(f"cannot resume {folder.path} {difference}; {way_out}")
    if not checked.task.data_version:
        warnings.warn(
            f"task {checked.task.name!r} has no data_version, so that other data would go "
            "unnoticed: set Task.data_version to a text that changes with the data",
            stacklevel=4,
        )
    program: Mapping[str, str] = checked.identity["program"]
    newest_program = identity["program"]
    for row in folder.committed.rows:
        newest_program = row.get("program", newest_program)
    difference = program_difference(newest_program, program)
    if difference is None:
        return None
    if not options.accept_changed_task:
        raise ValueError(
            f"cannot resume {folder.path} with another program: {difference}; {way_out}, or resume "
            "with accept_changed_task=True, which plan.json and the statement will record"
        )
    warnings.warn(
        f"{folder.path} is resumed with another program ({difference}): resume no copy of this "
        "folder, or the noise of a round is released under two sums",
        stacklevel=4,
    )
    return program


def _version_note(run: Run) -> str:
    """Returns a note in brackets on package versions that changed since the run was begun; empty if
    none changed.
    """
    changes_text = version_changes(run.plan.get("versions", {}))
    return f" (it was begun with {changes_text}, which may differ)" if changes_text else ""


def _read_noise_seed(path: pathlib.Path) -> int:
    """Reads the noise seed with which the run was begun.

    Raises:
      ValueError: it is missing or damaged. The message quotes nothing of the file, and the error
        has no other error as its context.
    """
    problem = "is damaged: it must hold one whole number"
    try:
        seed_text = path.read_text(encoding="ascii").strip()
        if seed_text.isdecimal():
            return int(seed_text)
    except FileNotFoundError:
        problem = "is missing, as in a copy of the run that was made for publication"
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    # These errors mean that the seed file is no text, or that its number has too many digits.
    except ValueError:
        pass
    # The error is raised outside of the except clauses, because otherwise its traceback would show
    # the caught error, which may quote the seed.
    raise ValueError(
        f"the noise seed {path} {problem}; without it the noise cannot be computed again: put back "
        "the run's own, or start a new folder"
    )
