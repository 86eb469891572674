"""The guarantee of a run folder after the fact, and the statement of the finished run."""

import collections
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmf.audits.guarantee import Audit, audit_ledger, named, with_unrecorded
from fedmf.files import write_atomically
from fedmf.mechanisms import load_mechanism
from fedmf.participation.ledger import ParticipationLedger
from fedmf.participation.schema import Participation
from fedmf.privacy.plan import Plan
from fedmf.privacy.statement import as_text, calibrate_command
from fedmf.runs.folder import Run, RunFolder

FINAL_STATEMENT = "final_statement"
# Rows of metrics hold the standard deviation that TensorFlow had in float32; plan.json holds float64.
_FLOAT32, _FLOAT64 = 1e-6, 1e-9
# Calibration ends within this of the epsilon that was asked for, where epsilon has no jump; accountants of one Gaussian agree to this.
_CALIBRATED, _ACCOUNTED = 0.01, 0.05


def audit_run(folder: str | pathlib.Path | Run, *, plan: Plan | None = None) -> Audit:
    """Audits the rounds of a run that are on disk, finished or not, with the plan it ran with.

    Args:
      folder: of the run, or the run.
      plan: another one; None for `recorded_plan`.

    Raises:
      ValueError: it holds no run, a file of it is damaged or missing, or its files contradict each other: then nothing is known.
    """
    run = folder if isinstance(folder, Run) else Run.load(folder)
    found = []
    if plan is None:
        plan = recorded_plan(run)
        found = [*_plan_against_itself(run, plan), *_plan_against_config(run, plan)]
    ledger = _record(run)
    kept, foreign = _checkpointed(run)
    found += [*foreign, *_rows_against_plan(run, plan), *_rows_against_record(run, ledger)]
    found += [*_record_against_result(run, ledger), *_record_against_checkpoint(run, ledger, kept)]
    if found:
        raise ValueError(
            f"{run.path} does not keep to what it records, so that no guarantee can be stated: {'; '.join(found)}: put the run's own files "
            "back and take out what is damaged or another run's, or run it again in another folder"
        )
    audit = audit_ledger(ledger, plan)
    return with_unrecorded(audit, _unrecorded(run, ledger, kept), "resume the run, and audit it when it is done")


def _record(run: Run) -> ParticipationLedger:
    """participation.csv: all rounds of a finished run; of another those up to the last that is known to be recorded."""
    path = run.path / "participation.csv"
    if not path.exists():
        raise ValueError(f"{run.path} has no participation.csv yet: it is written with the first checkpoint")
    # Cohorts of Poisson sampling vary in size by design.
    cohort_size = None if run.config.sampling == "poisson" else run.config.cohort_size
    try:
        # After a resume from an older checkpoint it may have more rounds than metrics.jsonl.
        ledger = ParticipationLedger.from_csv(path.read_text(), rounds=run.config.rounds, cohort_size=cohort_size)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if run.result is not None:
        return ledger
    # Rounds after the last checkpoint have metrics, and no record yet of who took part. Where nobody did, none is missing.
    empty = {row["round"] for row in run.metrics if row.get("clients") == 0}
    rounds = max((t + 1 for t in range(len(ledger)) if len(ledger.cohort(t))), default=0)
    while rounds in empty:
        rounds += 1
    return ledger.first(rounds)


def _checkpointed(run: Run) -> tuple[ParticipationLedger | None, list[str]]:
    """The ledger of the newest checkpoint, None where there is none to compare with; and what is wrong with that checkpoint."""
    try:
        checkpoint = RunFolder(run.path).load_checkpoint(state=False)
    except (OSError, KeyError):
        # Whoever audits need not have the noise seed, without which nothing ties a checkpoint to its run; a run that goes on replaces
        # its checkpoints; old ones have other entries.
        return None, []
    except ValueError as error:
        # The digests of runs that did not say whose plan they have were made of fewer files.
        return None, [str(error).rpartition(": ")[0]] if "given" in run.plan else []
    return (None if checkpoint is None else checkpoint.ledger), []


def _unrecorded(run: Run, ledger: ParticipationLedger, kept: ParticipationLedger | None) -> list[int]:
    """Rounds that were run, with somebody in them or nobody knows whom, and are beyond the record."""
    beyond = {row["round"] for row in run.metrics if row.get("clients") != 0}
    if kept is not None:
        beyond |= {t for t in range(len(kept)) if len(kept.cohort(t))}
    return sorted(t for t in beyond if t >= len(ledger))


def _differs(one: Any, other: Any, tolerance: float) -> bool:
    """Whether two numbers as JSON has them are not the same but for rounding; null is infinite."""
    numbers = [math.inf if value is None else value for value in (one, other)]
    if not all(isinstance(value, int | float) for value in numbers):
        return True
    return not math.isclose(*numbers, rel_tol=tolerance)


def _plan_against_itself(run: Run, plan: Plan) -> list[str]:
    """What plan.json derived from its noise multiplier, and a change of that alone leaves behind."""
    recorded = run.plan
    derived = [("rho", recorded.get("rho", plan.rho), plan.rho, _FLOAT64)]
    if isinstance(value := recorded.get("sensitivity"), dict):
        derived.append(("sensitivity", value.get("value"), plan.sensitivity.value, _FLOAT64))
    if plan.sampling is None:
        derived.append(("epsilon", recorded.get("epsilon", plan.epsilon), plan.epsilon, _ACCOUNTED))
    else:
        # The amplified epsilon may be another accountant's, and what it was computed from may not.
        multiplier = plan.per_query_noise_multiplier
        given = recorded["sampling"].get("per_query_noise_multiplier", multiplier)
        derived.append(("per_query_noise_multiplier", given, multiplier, _FLOAT64))
    return [
        f"plan.json has {name}={has} where its noise_multiplier={plan.noise_multiplier} and mechanism.npz give {gives}"
        for name, has, gives, tolerance in derived
        if _differs(has, gives, tolerance)
    ]


def _plan_against_config(run: Run, plan: Plan) -> list[str]:
    """Where config.json asks for another plan than plan.json has; noise is the config's only where the caller gave no plan."""
    config, recorded = run.config, run.plan
    asked = config.sampling_scheme()
    drawn = recorded.get("sampling") or {}
    pairs: list[tuple[str, Any, Any]] = [
        ("clip_norm", config.clip_norm, plan.clip_norm),
        ("participation", config.participation(), plan.participation),
        ("claimed_cohort", config.claimed_cohort, plan.claimed_cohort),
        ("sampling", None if asked is None else type(asked).__name__, drawn.get("scheme")),
    ]
    if plan.simulated_cohort is not None:
        pairs.append(("cohort_size", config.cohort_size, plan.simulated_cohort))
    if asked is not None and drawn:
        pairs.append(("population", asked.population, drawn.get("population")))
        pairs.append(("cohort_size of the sampling", asked.cohort_size, drawn.get("cohort_size")))
    if recorded.get("given") is False:
        pairs.append(("delta", config.delta, plan.delta))
        if config.epsilon is None:
            pairs.append(("noise_multiplier", config.noise_multiplier or 0.0, plan.noise_multiplier))
        elif _asks_for_another_epsilon(run, plan):
            pairs.append(("epsilon", config.epsilon, plan.epsilon))
    return [
        f"config.json asks for {name}={wanted} where plan.json has {has}"
        for name, wanted, has in pairs
        if wanted != has
    ]


def _asks_for_another_epsilon(run: Run, plan: Plan) -> bool:
    target = run.config.epsilon
    assert target is not None
    if plan.sampling is not None:
        # What was recorded, since today's accountant of sampled queries may be another one; it was never above the target.
        epsilon = run.plan.get("epsilon", target)
        return not isinstance(epsilon, int | float) or epsilon > target * (1 + _FLOAT64)
    if not _differs(plan.epsilon, target, _CALIBRATED):
        return False
    # The accountant's epsilon may jump over the target: then calibration itself ends there.
    return _differs(run.config.plan(plan.mechanism).noise_multiplier, plan.noise_multiplier, _CALIBRATED)


def _rows_against_plan(run: Run, plan: Plan) -> list[str]:
    """The noise that each row of metrics says was added, where it says so, and the plan's."""
    rows = [row for row in run.metrics if "noise_stddev" in row]
    wrong = [row for row in rows if _differs(row["noise_stddev"], plan.stddev, _FLOAT32)]
    if not wrong:
        return []
    return [
        f"metrics.jsonl has noise_stddev={wrong[0]['noise_stddev']} in {named(_rounds_of(wrong))} where the plan "
        f"(plan.json and mechanism.npz) has stddev={plan.stddev}"
    ]


def _rounds_of(rows: Sequence[dict[str, Any]]) -> list[int]:
    return sorted({row["round"] for row in rows})


def _rows_against_record(run: Run, ledger: ParticipationLedger) -> list[str]:
    """Rows of metrics: rounds from 0 on, each once, all of them if the run is finished, with as many clients as the record has."""
    rounds = [row["round"] for row in run.metrics]
    n = run.config.rounds
    due = set(range(n if run.result is not None else max(rounds, default=-1) + 1))
    found = []
    for what, which in (
        ("no row", due - set(rounds)),
        ("more than one row", {t for t, times in collections.Counter(rounds).items() if times > 1}),
        (f"rows beyond the rounds={n} of config.json,", {t for t in rounds if not 0 <= t < n}),
    ):
        if which:
            found.append(f"metrics.jsonl has {what} of {named(sorted(which))}")
    recorded = [row for row in run.metrics if 0 <= row["round"] < len(ledger)]
    wrong = [row for row in recorded if "clients" in row and row["clients"] != len(ledger.cohort(row["round"]))]
    if wrong:
        t, clients = wrong[0]["round"], wrong[0]["clients"]
        found.append(
            f"metrics.jsonl has clients={clients} in round {t} where participation.csv has {len(ledger.cohort(t))}, and they differ in "
            f"{named(_rounds_of(wrong))}"
        )
    return found + _missing_without_rows(run, ledger)


def _missing_without_rows(run: Run, ledger: ParticipationLedger) -> list[str]:
    """Rounds of a finished run without anybody in the record, where the config leaves no way to that; for rows that do not say it."""
    config = run.config
    if run.result is None or config.sampling == "poisson" or config.availability != "always" or config.dropout > 0:
        return []
    silent = {row["round"] for row in run.metrics if "clients" not in row}
    missing = [t for t in range(len(ledger)) if t in silent and not len(ledger.cohort(t))]
    if not missing:
        return []
    return [f"participation.csv has nobody in {named(missing)} of a finished run whose cohorts are never empty"]


def _record_against_result(run: Run, ledger: ParticipationLedger) -> list[str]:
    """The summary in result.json, the clients of the task, and the record."""
    found = []
    summary = (run.result or {}).get("participation", {})
    observed = ledger.observed().summary()
    for name in ("rounds", "participations", "clients", "max_participations", "min_separation"):
        if name in summary and summary[name] != observed[name]:
            found.append(f"participation.csv has {name}={observed[name]} where result.json has {summary[name]}")
    population = (run.plan.get("task") or {}).get("clients")
    largest = max((int(ledger.cohort(t).max(initial=-1)) for t in range(len(ledger))), default=-1)
    if isinstance(population, int) and largest >= population:
        found.append(
            f"participation.csv has client {largest} where plan.json has a task of {population} clients, counted from 0"
        )
    return found


def _record_against_checkpoint(run: Run, ledger: ParticipationLedger, kept: ParticipationLedger | None) -> list[str]:
    """Who took part as the newest checkpoint has it, in the rounds that both have."""
    if kept is None:
        return []
    wrong = [
        t
        for t in range(min(len(ledger), len(kept)))
        if not np.array_equal(np.sort(ledger.cohort(t)), np.sort(kept.cohort(t)))
    ]
    if not wrong:
        return []
    return [f"participation.csv has other clients in {named(wrong)} than the newest checkpoint"]


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
      **options: those of `fedmf.privacy.statement.plan_values`, in place of what the run says of itself.
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
