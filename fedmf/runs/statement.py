"""The privacy statement of a run, with the values that it adds to those of the audit, and the files
that contain it.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from fedmf.audits.audit import Audit
from fedmf.files import expanded, shell_path, write_atomically
from fedmf.privacy.describe import calibrate_command
from fedmf.privacy.plan import Plan
from fedmf.privacy.statement import as_text
from fedmf.privacy.systems import Subject
from fedmf.runs.config import TrainConfig
from fedmf.runs.digests import digests
from fedmf.runs.executions import execution_kind
from fedmf.runs.folder import Run
from fedmf.runs.notes import programs_phrase
from fedmf.server.journal_reading import JOURNAL, committed_rows

FINAL_STATEMENT = "final_statement"


def system_of_run(config: TrainConfig) -> str:
    """Returns the kind of system that computed a run, as statements name it."""
    return "run_tff" if execution_kind(config.execution).in_tff else "run"


def run_statement_values(run: Run, audit: Audit) -> dict[str, Any]:
    """Returns all values of a run's privacy statement, in plain JSON types.

    Args:
      run: the run.
      audit: result of `audit_run`, or audit of the run's controller.
    """
    statement_by_name = Audit.statement_values(audit, **statement_arguments(run, audit.planned))
    return statement_by_name | values_of_folder(run)


def statement_arguments(run: Run, planned: Plan) -> dict[str, Any]:
    """Returns the arguments that `Audit.statement_values` gets for a run."""
    folder_name = run.path.resolve().name
    run_result = run.result or {}
    subject = dataclasses.replace(
        subject_of_run(run.config, run.plan),
        folder=folder_name,
        finished=run_result.get("date"),
        model_sha256=run_result.get("sha256", {}).get("model.npz"),
    )
    return {
        "subject": subject,
        "cohort_size": run.config.cohort_size,
        "population": run.plan["task"]["clients"] + run.config.canaries,
        "canaries": run.config.canaries,
        "pretraining": pretraining(run.config, run.plan),
        "commands": _commands(run, folder_name, planned),
    }


def _commands(run: Run, folder: str, planned: Plan) -> list[str]:
    """Returns the fedmf commands with which a reader can check a run.

    Args:
      run: the run.
      folder: name of its folder.
      planned: plan of the audit.
    """
    check_commands = [
        f"fedmf audit run {shell_path(folder)}",
        calibrate_command(planned, f"{folder}/mechanism.npz"),
    ]
    if run.config.canaries and run.result is not None:
        check_commands.append(f"fedmf audit canaries {shell_path(folder)}")
    return check_commands


def values_of_folder(run: Run) -> dict[str, Any]:
    """Returns the values of a run's statement that come from its folder and not from the audit."""
    task_record = run.plan["task"]
    values: dict[str, Any] = {}
    if "synthetic_clients" in task_record:
        values["synthetic_clients"] = task_record["synthetic_clients"]
    if run.result is not None and "date" in run.result:
        # The statement of a finished run has the date that the run recorded at its end, so that its
        # text is the same whenever it is made again.
        values["date"] = run.result["date"]
    programs_text = programs_phrase(_first_rounds(run), run.config.rounds)
    if programs_text:
        values["programs"] = programs_text
    values |= selection_values(run.config, run.plan)
    return values | {"versions": run.plan["versions"]} | scaling_values(run.config)


def _first_rounds(run: Run) -> list[int]:
    """Returns round 0, and all rounds from which on a changed program computed the run.

    They are read from the journal of an unfinished run, in which edits would be detected.
    """
    if run.result is None and (run.path / JOURNAL).exists():
        committed_row_list = committed_rows(run.path)
        return [0, *(row["round"] for row in committed_row_list if "program" in row)]
    return list(run.plan.get("programs", [0]))


def subject_of_run(config: TrainConfig, record: Mapping[str, Any]) -> Subject:
    """Returns the subject of a run's statement, with its task, its data and its date.

    Args:
      config: config of the run.
      record: contents of plan.json.
    """
    task_record = record["task"]
    return Subject(
        system=system_of_run(config),
        task=task_record["name"],
        data=task_record["description"],
        begun=record["date"],
    )


def scaling_values(config: TrainConfig) -> dict[str, str]:
    """Returns the values of a statement that describe scaled updates; empty if updates are not
    scaled.
    """
    if config.scaling() is None:
        return {}
    return {"server_optimizer": config.server_optimizer}


def selection_values(config: TrainConfig, record: Mapping[str, Any]) -> dict[str, str]:
    """Returns the values of a statement that say by what a private selection chooses; empty for a
    single run.

    Args:
      config: config of the run.
      record: contents of plan.json.
    """
    if config.mean_trials is None:
        return {}
    score_text = "the validation loss, and the task declares nothing of whose examples these are"
    if record["task"]["validation_clients"] == "others":
        score_text = (
            "the validation loss, over examples of people who are no training clients, as the task "
            "declares"
        )
    if config.private_metrics:
        score_text = "the last private loss"
    return {"selection_score": f"minus {score_text}"}


def pretraining(config: TrainConfig, record: Mapping[str, Any]) -> str:
    """Returns a statement's sentence on the data that the initial model and the weights that are
    not trained were trained on before the run.

    It claims no more than the run can know.

    Args:
      config: config of the run.
      record: contents of plan.json.
    """
    initial_model_phrase = _initial_model_phrase(config, record)
    frozen_record = record.get("frozen_weights", {})
    if not frozen_record.get("number"):
        return initial_model_phrase
    return (
        f"{initial_model_phrase}; {frozen_record['number']} further numbers of the model (SHA-256 "
        f"digest {frozen_record['digest']}) are not trained, and are neither sent nor noised: the "
        "guarantee does not cover the data that they were trained on"
    )


def _initial_model_phrase(config: TrainConfig, record: Mapping[str, Any]) -> str:
    """Returns a phrase on the origin of a run's initial weights, as `pretraining` describes."""
    initial_weights_record = record.get("initial_weights", {})
    digest_phrase = (
        f" (SHA-256 digest {initial_weights_record['digest']})"
        if "digest" in initial_weights_record
        else ""
    )
    if config.initial_model is None:
        origin_phrase = f"that the task makes with seed {config.seed}"
        if initial_weights_record.get("given"):
            origin_phrase = "that the task was given by starting_from"
        return (
            f"the initial weights are those {origin_phrase}{digest_phrase}, and the run does not "
            "know whether they were trained before; for clients whose data they were trained on as "
            "well, the losses add up"
        )
    model_path = expanded(config.initial_model)
    if model_path.suffix in (".keras", ".pt"):
        return (
            f"the initial model is {model_path.name}{digest_phrase}, which was trained before this "
            "run; for clients whose data it was trained on as well, the losses add up"
        )
    return (
        f"the initial model is that of the run {model_path.name}{digest_phrase}, which has a "
        "statement of its own; for clients who took part in both runs the losses add up"
    )


def write_final_statement(
    folder: str | pathlib.Path, audit: Audit, result: dict[str, Any] | None = None
) -> None:
    """Writes final_statement.md and final_statement.json, which state the planned, observed and
    achieved guarantees of a run.

    Args:
      folder: path of the run folder; all files of the run but result.json must exist.
      audit: audit of the run's controller.
      result: future contents of result.json; None if it exists.
    """
    run = Run.load(folder)
    if result is not None:
        run = dataclasses.replace(run, result=result | {"sha256": digests(run.path)})
    statement_by_name = run_statement_values(run, audit)
    for suffix in (".md", ".json"):
        statement_path = run.path / f"{FINAL_STATEMENT}{suffix}"
        write_atomically(statement_path, as_text(statement_by_name, suffix), mode=0o600)
