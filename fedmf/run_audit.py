"""The guarantee of a run folder after the fact, and the statement of the finished run."""

import pathlib
from typing import Any

from fedmf.accounting import Plan
from fedmf.audit import Audit, audit_ledger
from fedmf.ledger import ParticipationLedger
from fedmf.mechanisms import load_mechanism
from fedmf.runs import Run, write_atomically
from fedmf.statement import as_text

FINAL_STATEMENT = "final_statement"


def audit_run(folder: str | pathlib.Path | Run, *, plan: Plan | None = None) -> Audit:
    """Audits the rounds of a run that are on disk, finished or not, with the plan of its config.

    Args:
      folder: of the run, or the run.
      plan: another one, for a run that was given a plan of its own.

    Raises:
      ValueError: it holds no run, or a file of it is damaged or missing.
    """
    run = folder if isinstance(folder, Run) else Run.load(folder)
    if plan is None:
        plan = run.config.plan(load_mechanism(run.path / "mechanism.npz"))
    path = run.path / "participation.csv"
    if not path.exists():
        raise ValueError(f"{run.path} has no participation.csv yet: it is written with the first checkpoint")
    # Cohorts of Poisson sampling vary in size by design.
    cohort_size = None if run.config.sampling == "poisson" else run.config.cohort_size
    ledger = ParticipationLedger.from_csv(path.read_text(), rounds=len(run.metrics), cohort_size=cohort_size)
    if run.result is None:
        # Rounds after the last checkpoint have metrics, and no record yet of who took part.
        ledger = ledger.first(max((t + 1 for t in range(len(ledger)) if len(ledger.cohort(t))), default=0))
    return audit_ledger(ledger, plan)


def run_statement_values(run: Run, audit: Audit, **options: Any) -> dict[str, Any]:
    """The statement of a run and its audit, in plain JSON types.

    Args:
      run: the run.
      audit: from `audit_run`, or of the controller that served the run.
      **options: those of `fedmf.statement.plan_values`, in place of what the run says of itself.
    """
    known: dict[str, Any] = {
        "cohort_size": run.config.cohort_size,
        "population": run.plan["task"]["clients"],
        "pretraining": f"none, the initial model is drawn with seed {run.config.seed}",
        "versions": run.plan["versions"],
        "commands": [
            "fedmf train --config config.json --out RUN --noise-seed os",
            "fedmf audit RUN --statement statement.md",
        ],
    }
    return audit.statement_values(**(known | options))


def write_final_statement(folder: str | pathlib.Path, audit: Audit | None = None) -> None:
    """Writes final_statement.md and final_statement.json into a run folder: what was planned, observed and achieved.

    Args:
      folder: of the run; its files but result.json must be there.
      audit: of the controller that served the run; None to read the participation from the folder.
    """
    run = Run.load(folder)
    values = run_statement_values(run, audit_run(run) if audit is None else audit)
    for suffix in (".md", ".json"):
        write_atomically(run.path / f"{FINAL_STATEMENT}{suffix}", as_text(values, suffix))
