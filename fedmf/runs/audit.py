"""Audit of a run folder, which computes the privacy guarantee that the run has achieved from the
run's own records.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmf.audits.achieved import rounds_in_words
from fedmf.audits.audit import Audit
from fedmf.audits.canaries import CanaryAudit, CanaryEvidence, audit_canaries
from fedmf.audits.guarantee import audit_ledger
from fedmf.files import checked_path
from fedmf.mechanisms.storage import READ_ERRORS
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.participation.ledger import ParticipationLedger
from fedmf.privacy.stopping import stopped_after
from fedmf.privacy.systems import Subject
from fedmf.runs.digests import changed_files
from fedmf.runs.folder import CANARIES, Run, RunFolder
from fedmf.runs.plan_record import recorded_plan
from fedmf.runs.rounds import IDENTITY, journal_cohorts
from fedmf.runs.statement import statement_arguments, system_of_run, values_of_folder
from fedmf.server.journal_reading import JOURNAL


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunAudit(Audit):
    """The audit of a run folder, with a privacy statement about the run.

    Attributes:
      run: the audited run.
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
        """Returns the values of the run's privacy statement, as `Audit.statement_values` does.

        Arguments that are passed replace the values of the run folder.
        """
        passed_arguments = {
            "subject": subject,
            "cohort_size": cohort_size,
            "population": population,
            "pretraining": pretraining,
            "canaries": canaries or None,
            "commands": commands,
        }
        arguments_of_run = statement_arguments(self.run, self.planned)
        arguments_of_run |= {name: arg for name, arg in passed_arguments.items() if arg is not None}
        return super().statement_values(**arguments_of_run) | values_of_folder(self.run)


@with_numpy_defaults
def audit_run(folder: str | pathlib.Path | Run) -> RunAudit:
    """Audits the committed rounds of a finished or unfinished run.

    The planned guarantee of an unfinished run is that of its committed rounds, if these have a
    guarantee of their own (`fedmf.privacy.stopping`). If the run was stopped because of its
    results, such as for divergence, it is the guarantee of all rounds.

    Args:
      folder: path of the run folder, or the run.

    Returns:
      The planned, observed and achieved guarantees.

    Raises:
      ValueError: the folder holds no run, a file in it is damaged or missing, or a file of a
        finished run was changed.
    """
    if isinstance(folder, Run):
        run = folder
    else:
        run = Run.load(checked_path("folder", folder, hint="name the folder of a run"))
    audit = _audit(run)
    audit_values = {field.name: getattr(audit, field.name) for field in dataclasses.fields(audit)}
    audit_values["system"] = system_of_run(run.config)
    return RunAudit(**audit_values, run=run)


def _audit(run: Run) -> Audit:
    """Audits the committed rounds of a run, as `audit_run` describes."""
    _check_digests(run)
    released_plan = recorded_plan(run)
    ledger = _participation_record(run)
    _check_bound_files(run)
    _check_numbers_of_clients(run, ledger)
    run_folder = RunFolder(run.path)
    is_partial = run.result is None or run.ended_after is not None
    committed_rounds = run_folder.committed_rounds() if is_partial else 0
    measured_rounds = {row["round"] for row in run.metrics if row.get("clients") != 0}
    later_rounds = {t for t in measured_rounds if t >= len(ledger)}
    unrecorded_rounds = sorted(later_rounds.union(range(len(ledger), committed_rounds)))
    # The number of rounds of a run that was stopped because of its results depends on data. So such
    # a run does not get the guarantee of a shorter plan.
    if run.result is None and run_folder.was_stopped_by_data():
        return audit_ledger(
            ledger,
            released_plan,
            unrecorded=range(len(ledger), released_plan.participation.rounds),
            hint="the run was stopped before them because of its results",
        )
    if is_partial and not unrecorded_rounds and len(ledger) < released_plan.participation.rounds:
        # Plans with sampling, and some mechanisms, have a guarantee only for all rounds together,
        # and raise ValueError here.
        with contextlib.suppress(ValueError):
            released_plan = stopped_after(released_plan, len(ledger))
    return audit_ledger(
        ledger,
        released_plan,
        unrecorded=unrecorded_rounds,
        hint="resume the run, and audit it when it is done",
    )


def _check_numbers_of_clients(run: Run, ledger: ParticipationLedger) -> None:
    """Raises a ValueError if participation and metrics of an unfinished run disagree on numbers of
    clients.

    The files of an unfinished run have no digests yet.
    """
    if run.result is not None:
        return
    counted_rows = [
        row for row in run.metrics if "clients" in row and 0 <= row["round"] < len(ledger)
    ]
    differing_rounds = [
        row["round"] for row in counted_rows if row["clients"] != len(ledger.cohort(row["round"]))
    ]
    if differing_rounds:
        raise ValueError(
            f"{run.path}: participation.csv has other numbers of clients than metrics.jsonl in "
            f"{rounds_in_words(sorted(differing_rounds))}: no guarantee can be "
            "stated; put the run's own files back, or run it again in another folder"
        )


def _check_digests(run: Run) -> None:
    """Raises a ValueError if files of a finished run have changed since it finished."""
    if run.result is not None:
        changed_names = changed_files(run.path, run.result.get("sha256", {}))
        if changed_names:
            raise ValueError(
                f"{run.path}: {', '.join(changed_names)} changed after the run had finished, or "
                "while it was trained (result.json has other SHA-256 digests): no guarantee can be "
                "stated; put the run's own files back, or run it again in another folder"
            )


def _check_bound_files(run: Run) -> None:
    """Raises a ValueError if files of an unfinished run have changed since the run was begun.

    A copy for publication lacks the private files with which that could be checked.
    """
    if run.result is None and (run.path / IDENTITY).exists():
        try:
            RunFolder(run.path).identity()
        except ValueError as error:
            raise ValueError(f"no guarantee can be stated: {error}") from error


def _participation_record(run: Run) -> ParticipationLedger:
    """Returns the clients of each round. For a finished run they are read from participation.csv,
    and for the committed rounds of an unfinished run from its journal.

    For a copy of an unfinished run without a journal, it is the participation in the rounds that
    are certainly recorded.
    """
    participation_path = run.path / "participation.csv"
    sampling_scheme = run.config.scheme()
    cohort_size = (
        None
        if sampling_scheme is not None and sampling_scheme.independent
        else run.config.cohort_size
    )
    if run.result is None and (run.path / JOURNAL).exists():
        cohorts = journal_cohorts(run.path)
        return ParticipationLedger(cohort_size=cohort_size, cohorts=cohorts)
    if not participation_path.exists():
        raise ValueError(f"{run.path} has no participation.csv: put back the run's own")
    try:
        ledger = ParticipationLedger.from_csv(
            participation_path.read_text(), rounds=run.config.rounds, cohort_size=cohort_size
        )
    except ValueError as error:
        raise ValueError(f"{participation_path} is damaged: {error}") from error
    if run.result is not None:
        return ledger.first(run.ended_after or run.config.rounds)
    # A round without clients has no row in participation.csv.
    empty_rounds = {row["round"] for row in run.metrics if row.get("clients") == 0}
    num_rounds = max((t + 1 for t in range(len(ledger)) if len(ledger.cohort(t))), default=0)
    while num_rounds in empty_rounds:
        num_rounds += 1
    return ledger.first(num_rounds)


@with_numpy_defaults
def audit_run_canaries(
    folder: str | pathlib.Path | Run, *, confidence: float = 0.95
) -> CanaryAudit:
    """Audits the epsilon of a finished run by its canaries, as
    `fedmf.audits.canaries.audit_canaries` does.

    Args:
      folder: path of the run folder, or the run.
      confidence: confidence of the lower bound.

    Raises:
      ValueError: the run has no canaries, is not finished, or is a copy without its private files;
        or as `audit_run` does.
    """
    run = folder if isinstance(folder, Run) else Run.load(folder)
    canaries_path = run.path / CANARIES
    num_canaries = run.config.canaries
    if not num_canaries:
        raise ValueError(
            f"{run.path} was trained without canaries: train one with some, such as 100"
        )
    if run.result is None:
        raise ValueError(
            f"run {run.path} is not finished, and canaries are audited at the end: resume it"
        )
    _check_digests(run)
    ledger = _participation_record(run)
    takes_part = np.zeros((run.config.rounds, num_canaries), bool)
    for t in range(len(ledger)):
        # Canaries have the client indices after those of all real clients.
        canary_indices = ledger.cohort(t) - run.plan["task"]["clients"]
        takes_part[t, canary_indices[canary_indices >= 0]] = True
    try:
        with np.load(canaries_path, allow_pickle=False) as arrays:
            evidence = CanaryEvidence(rounds=takes_part, **arrays)
    except FileNotFoundError as error:
        raise ValueError(
            f"{canaries_path} is missing, as in a copy of the run that was made for publication: "
            "audit the run itself"
        ) from error
    except (*READ_ERRORS, TypeError) as error:
        raise ValueError(
            f"{canaries_path} is damaged ({error}): put back the run's own file"
        ) from error
    return audit_canaries(recorded_plan(run), evidence, confidence=confidence)
