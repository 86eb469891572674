"""The guarantee of a run folder after the fact, and the statement of the finished run."""

import contextlib
import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedmf.audits.achieved import rounds_in_words
from fedmf.audits.audit import Audit
from fedmf.audits.canaries import CanaryAudit, CanaryEvidence, audit_canaries
from fedmf.audits.guarantee import audit_ledger
from fedmf.files import checked_path, expanded, shell_path, write_atomically
from fedmf.mechanisms.storage import READ_ERRORS
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.participation.ledger import ParticipationLedger
from fedmf.privacy.config import PlanConfig
from fedmf.privacy.describe import calibrate_command, plan_summary
from fedmf.privacy.plan import Plan
from fedmf.privacy.statement import as_text, mechanism_digest
from fedmf.privacy.stopping import stopped_after
from fedmf.privacy.systems import Subject
from fedmf.runs.config import TrainConfig
from fedmf.runs.digests import changed_files, digests
from fedmf.runs.executions import execution_kind
from fedmf.runs.folder import CANARIES, Run, RunFolder
from fedmf.runs.notes import programs_phrase
from fedmf.runs.rounds import IDENTITY, journal_cohorts
from fedmf.server.journal_reading import JOURNAL, committed_rows

FINAL_STATEMENT = "final_statement"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunAudit(Audit):
    """The audit of a run folder, whose statement names the run.

    Attributes:
      run: the run.
    """

    run: Run = dataclasses.field(repr=False, compare=False)

    def statement_values(
        self,
        *,
        subject: Subject | None = None,
        cohort_size: int | None = None,
        population: int | None = None,
        pretraining: str | None = None,
        canaries: int = 0,
        commands: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """Returns the statement of the run, as `Audit.statement_values` does; what is passed stands
        in place of what the run's folder says.
        """
        passed = {
            "subject": subject,
            "cohort_size": cohort_size,
            "population": population,
            "pretraining": pretraining,
            "canaries": canaries or None,
            "commands": commands,
        }
        arguments = _statement_arguments(self.run, self.planned)
        arguments |= {name: value for name, value in passed.items() if value is not None}
        return super().statement_values(**arguments) | _other_values(self.run)


@with_numpy_defaults
def audit_run(folder: str | pathlib.Path | Run) -> RunAudit:
    """Audits the rounds of a run that are on disk, finished or not, with the plan it ran with.

    Args:
      folder: of the run, or the run. The plan of one that has not finished is that of its rounds so
        far, where these have a guarantee of their own (`fedmf.privacy.stopping`); of one that
        stopped on divergence it is that of all rounds.

    Returns:
      What was planned, observed and achieved.

    Raises:
      ValueError: it holds no run, a file of it is damaged or missing, or is not the one that the
        finished run left.
    """
    if isinstance(folder, Run):
        run = folder
    else:
        run = Run.load(checked_path("folder", folder, hint="name the folder of a run"))
    audit = _audited(run)
    facts = {field.name: getattr(audit, field.name) for field in dataclasses.fields(audit)}
    return RunAudit(**facts | {"system": system_of_run(run.config)}, run=run)


def system_of_run(config: TrainConfig) -> str:
    """Returns the kind of system that statements of a run of this config are about."""
    return "run_tff" if execution_kind(config.execution).in_tff else "run"


def _audited(run: Run) -> Audit:
    """Audits the rounds on disk; see `audit_run`."""
    _check_digests(run)
    plan, ledger = recorded_plan(run), _record(run)
    _check_begun(run)
    # A run that goes on has no digests yet, and two files that say how many took part.
    known = [
        row
        for row in run.metrics
        if run.result is None and "clients" in row and 0 <= row["round"] < len(ledger)
    ]
    wrong = [row["round"] for row in known if row["clients"] != len(ledger.cohort(row["round"]))]
    if wrong:
        raise ValueError(
            f"{run.path}: participation.csv has other numbers of clients than metrics.jsonl in "
            f"{rounds_in_words(sorted(wrong))}: no guarantee can be "
            "stated; put the run's own files back, or run it again in another folder"
        )
    files, ended = RunFolder(run.path), run.ended_after is not None
    committed = 0
    if run.result is None or ended:
        committed = files.committed_rounds()
    beyond = {
        row["round"]
        for row in run.metrics
        if row.get("clients") != 0 and row["round"] >= len(ledger)
    }
    unrecorded = sorted(beyond.union(range(len(ledger), committed)))
    # An end that the data decided is not that of a shorter plan
    if run.result is None and files.was_stopped_by_data():
        hint = "what the run showed decided that it stopped before them"
        return audit_ledger(
            ledger, plan, unrecorded=range(len(ledger), plan.participation.rounds), hint=hint
        )
    if (run.result is None or ended) and not unrecorded and len(ledger) < plan.participation.rounds:
        # Of some mechanisms, and with sampling, only all rounds have a guarantee
        with contextlib.suppress(ValueError):
            plan = stopped_after(plan, len(ledger))
    return audit_ledger(
        ledger, plan, unrecorded=unrecorded, hint="resume the run, and audit it when it is done"
    )


def _check_digests(run: Run) -> None:
    """Refuses a finished run whose files are not those that it left."""
    if run.result is not None:
        changed = changed_files(run.path, run.result.get("sha256", {}))
        if changed:
            raise ValueError(
                f"{run.path}: {', '.join(changed)} changed after the run had finished, or while "
                "it went on (result.json has other SHA-256 digests): no guarantee can be stated; "
                "put the run's own files back, or run it again in another folder"
            )


def _check_begun(run: Run) -> None:
    """Refuses a run that goes on whose files are not those that it was begun with.

    A copy that was made to be published has no private files to tell.
    """
    if run.result is None and (run.path / IDENTITY).exists():
        try:
            RunFolder(run.path).identity()
        except ValueError as error:
            raise ValueError(f"no guarantee can be stated: {error}") from error


def _record(run: Run) -> ParticipationLedger:
    """Who took part in the rounds of a finished run, by participation.csv, and in the committed
    rounds of another, by its journal; of a copy without one, in those that are known to be
    recorded.
    """
    path = run.path / "participation.csv"
    scheme = run.config.scheme()
    cohort_size = None if scheme is not None and scheme.independent else run.config.cohort_size
    if run.result is None and (run.path / JOURNAL).exists():
        cohorts = journal_cohorts(run.path)
        return ParticipationLedger(cohort_size=cohort_size, cohorts=cohorts)
    if not path.exists():
        raise ValueError(f"{run.path} has no participation.csv: put back the run's own")
    try:
        ledger = ParticipationLedger.from_csv(
            path.read_text(), rounds=run.config.rounds, cohort_size=cohort_size
        )
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if run.result is not None:
        return ledger.first(run.ended_after or run.config.rounds)
    # Where nobody took part, no record is missing.
    empty = {row["round"] for row in run.metrics if row.get("clients") == 0}
    rounds = max((t + 1 for t in range(len(ledger)) if len(ledger.cohort(t))), default=0)
    while rounds in empty:
        rounds += 1
    return ledger.first(rounds)


@with_numpy_defaults
def audit_run_canaries(
    folder: str | pathlib.Path | Run, *, confidence: float = 0.95
) -> CanaryAudit:
    """What the canaries of a finished run prove of its epsilon; see
    `fedmf.audits.canaries.audit_canaries`.

    Raises:
      ValueError: a run without canaries, one that is not finished, or a copy without its private
        files; or what `audit_run` refuses.
    """
    run = folder if isinstance(folder, Run) else Run.load(folder)
    path, count = run.path / CANARIES, run.config.canaries
    if not count:
        raise ValueError(
            f"{run.path} was trained without canaries: train one with some, such as 100"
        )
    if run.result is None:
        raise ValueError(
            f"run {run.path} is not finished, and its canaries are judged at the end: resume it"
        )
    _check_digests(run)
    rounds, ledger = np.zeros((run.config.rounds, count), bool), _record(run)
    for t in range(len(ledger)):
        places = ledger.cohort(t) - run.plan["task"]["clients"]
        rounds[t, places[places >= 0]] = True
    try:
        with np.load(path, allow_pickle=False) as arrays:
            evidence = CanaryEvidence(rounds=rounds, **arrays)
    except FileNotFoundError as error:
        raise ValueError(
            f"{path} is not there, as in a copy of the run that was made to be "
            "published: audit the run itself"
        ) from error
    except (*READ_ERRORS, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): put back the run's own file") from error
    return audit_canaries(recorded_plan(run), evidence, confidence=confidence)


def plan_record(config: TrainConfig, plan: Plan) -> dict[str, Any]:
    """The part of plan.json that says what is promised, in plain JSON types.

    "config" and "mechanism_sha256" are what `recorded_plan` reads; the rest follows from them.
    """
    return plan_summary(plan) | {
        "config": dataclasses.asdict(config.pinned_to(plan)),
        "mechanism_sha256": mechanism_digest(plan.mechanism),
    }


def recorded_plan(run: Run) -> Plan:
    """The plan that a run was started with: that of plan.json, whatever the config asks for.

    Raises:
      ValueError: plan.json and mechanism.npz do not belong together.
    """
    recorded = run.plan
    try:
        config, mechanism = PlanConfig.from_mapping(recorded["config"], "plan.json"), run.mechanism
        noise = config.noise_multiplier or 0.0
        plan = config.plan_with(mechanism, noise)
        # Epsilon may differ where another accountant computed it; what was added may not.
        same = math.isclose(plan.stddev, recorded["stddev"], rel_tol=1e-9)
        same = same and mechanism_digest(mechanism) == recorded["mechanism_sha256"]
        wanted = run.config.plan_with(mechanism, noise)
        if recorded.get("given"):  # a plan of the caller's has a delta of its own
            wanted = dataclasses.replace(wanted, delta=plan.delta)
        if wanted != plan:
            raise ValueError("it is not of the run's config.json")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{run.path / 'plan.json'} is damaged ({error}): nothing can be said about this run"
        ) from error
    if not same:
        raise ValueError(
            f"{run.path}: plan.json records noise of standard deviation {recorded['stddev']}, its "
            f"mechanism.npz needs {plan.stddev}: one of them is another run's, put it back"
        )
    return plan


def run_statement_values(run: Run, audit: Audit) -> dict[str, Any]:
    """The statement of a run and its audit, in plain JSON types.

    Args:
      run: the run.
      audit: from `audit_run`, or of the controller that served the run.
    """
    values = Audit.statement_values(audit, **_statement_arguments(run, audit.planned))
    return values | _other_values(run)


def _statement_arguments(run: Run, planned: Plan) -> dict[str, Any]:
    """Returns what the folder of a run says for `Audit.statement_values`."""
    folder = run.path.resolve().name
    result = run.result or {}
    subject = dataclasses.replace(
        subject_of_run(run.config, run.plan),
        folder=folder,
        finished=result.get("date"),
        model_sha256=result.get("sha256", {}).get("model.npz"),
    )
    return {
        "subject": subject,
        "cohort_size": run.config.cohort_size,
        "population": run.plan["task"]["clients"] + run.config.canaries,
        "canaries": run.config.canaries,
        "pretraining": pretraining(run.config),
        "commands": _commands(run, folder, planned),
    }


def _commands(run: Run, folder: str, planned: Plan) -> list[str]:
    """Returns the commands that check the run in the folder of this name."""
    commands = [
        f"fedmf audit run {shell_path(folder)}",
        calibrate_command(planned, f"{folder}/mechanism.npz"),
    ]
    if run.config.canaries and run.result is not None:  # canaries are judged at the end
        commands.append(f"fedmf audit canaries {shell_path(folder)}")
    return commands


def _other_values(run: Run) -> dict[str, Any]:
    """Returns the values of a run's statement that no audit computes."""
    task = run.plan["task"]
    values = {name: task[name] for name in ("synthetic_clients",) if name in task}
    phrase = programs_phrase(_first_rounds(run), run.config.rounds)
    if phrase:
        values["programs"] = phrase
    return values | {"versions": run.plan["versions"]} | scaling_values(run.config)


def _first_rounds(run: Run) -> list[int]:
    """Returns the first round of each program that computed some: of a run that goes on by its
    journal, which nobody can edit unseen.
    """
    if run.result is None and (run.path / JOURNAL).exists():
        rows = committed_rows(run.path)
        return [0, *(row["round"] for row in rows if "program" in row)]
    return list(run.plan.get("programs", [0]))


def subject_of_run(config: TrainConfig, record: Mapping[str, Any]) -> Subject:
    """Returns what a statement says of the run of this config and plan.json."""
    task = record["task"]
    return Subject(
        system=system_of_run(config),
        task=task["name"],
        data=task["description"],
        begun=record["date"],
    )


def scaling_values(config: TrainConfig) -> dict[str, str]:
    """What a statement says of scaled updates; nothing where updates are clipped as they are."""
    return {"server_optimizer": config.server_optimizer} if config.scaling() else {}


def pretraining(config: TrainConfig) -> str:
    """What a statement says of the data that the initial model was trained on."""
    if config.initial_model is None:
        return f"none, the initial model is drawn with seed {config.seed}"
    path = expanded(config.initial_model)
    if path.suffix == ".keras":
        return (
            f"the initial model is {path.name}, which was trained before this run; for clients "
            "whose data it was trained on as well, the losses add up"
        )
    return (
        f"the initial model is that of the run {path.name}, which has a statement of its own; for "
        "clients who took part in both runs the losses add up"
    )


def write_final_statement(
    folder: str | pathlib.Path, audit: Audit, result: dict[str, Any] | None = None
) -> None:
    """Writes final_statement.md and final_statement.json into a run folder: what was planned,
    observed and achieved.

    Args:
      folder: of the run; its files but result.json must be there.
      audit: of the controller that served the run.
      result: what result.json will hold, before it is written; None for what it holds.
    """
    run = Run.load(folder)
    if result is not None:
        run = dataclasses.replace(run, result=result | {"sha256": digests(run.path)})
    values = run_statement_values(run, audit)
    for suffix in (".md", ".json"):
        write_atomically(
            run.path / f"{FINAL_STATEMENT}{suffix}", as_text(values, suffix), mode=0o600
        )
