"""The guarantee of a run folder after the fact, and the statement of the finished run."""

import math
import pathlib
from typing import Any

from fedmf.accounting import Plan
from fedmf.audit import Audit, audit_ledger
from fedmf.ledger import ParticipationLedger
from fedmf.mechanisms import load_mechanism
from fedmf.participation import Participation
from fedmf.runs import Run, write_atomically
from fedmf.statement import as_text, calibrate_command

FINAL_STATEMENT = "final_statement"


def audit_run(folder: str | pathlib.Path | Run, *, plan: Plan | None = None) -> Audit:
    """Audits the rounds of a run that are on disk, finished or not, with the plan it ran with.

    Args:
      folder: of the run, or the run.
      plan: another one; None for `recorded_plan`.

    Raises:
      ValueError: it holds no run, or a file of it is damaged or missing.
    """
    run = folder if isinstance(folder, Run) else Run.load(folder)
    if plan is None:
        plan = recorded_plan(run)
    path = run.path / "participation.csv"
    if not path.exists():
        raise ValueError(f"{run.path} has no participation.csv yet: it is written with the first checkpoint")
    # Cohorts of Poisson sampling vary in size by design.
    cohort_size = None if run.config.sampling == "poisson" else run.config.cohort_size
    try:
        ledger = ParticipationLedger.from_csv(path.read_text(), rounds=len(run.metrics), cohort_size=cohort_size)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if run.result is None:
        # Rounds after the last checkpoint have metrics, and no record yet of who took part.
        ledger = ledger.first(max((t + 1 for t in range(len(ledger)) if len(ledger.cohort(t))), default=0))
    return audit_ledger(ledger, plan)


def recorded_plan(run: Run) -> Plan:
    """The plan that a run was started with: the noise that plan.json records, which need not be what the config asks for.

    Raises:
      ValueError: plan.json and mechanism.npz do not belong together.
    """
    mechanism, recorded, sampling = load_mechanism(run.path / "mechanism.npz"), run.plan, run.config.sampling_scheme()
    try:
        if sampling is not None:
            sampling = sampling.in_groups(recorded["sampling"]["groups"])
        plan = Plan(
            mechanism=mechanism,
            participation=Participation(**recorded["participation"]),
            noise_multiplier=recorded["noise_multiplier"],
            clip_norm=recorded["clip_norm"],
            delta=recorded["delta"],
            sampling=sampling,
            simulated_cohort=recorded["simulated_cohort"],
            claimed_cohort=recorded["claimed_cohort"],
        )
        # Epsilon may differ where another accountant computed it; what was added may not.
        same = math.isclose(plan.stddev, recorded["stddev"], rel_tol=1e-9)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{run.path / 'plan.json'} is damaged ({error}): nothing can be said about this run"
        ) from error
    if not same:
        raise ValueError(
            f"{run.path}: plan.json records noise of standard deviation {recorded['stddev']}, its mechanism.npz needs {plan.stddev}: one "
            "of them is another run's, put it back"
        )
    return plan


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
        # The config of a run with a plan of its caller's says nothing of its noise.
        "commands": [
            calibrate_command(audit.planned, "RUN/mechanism.npz")
            if run.plan.get("given")
            else "fedmf train --config config.json --out RUN --noise-seed os",
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
