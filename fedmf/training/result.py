"""Writer of the files of a finished run, as weights, table, result.json and final statement."""

from typing import Any

import numpy as np

from fedmf.audits.audit import Audit
from fedmf.privacy.statement import today
from fedmf.privacy.stopping import stopped_after
from fedmf.runs.folder import Run
from fedmf.runs.statement import write_final_statement
from fedmf.training.under_way import Training


def write_result(training: Training, seconds: float) -> None:
    """Writes the files of a finished run. result.json comes last, because it marks the run as
    finished.

    Args:
      training: the run after its last round.
      seconds: time in which this process trained.
    """
    config = training.config
    folder = training.folder
    final_weights = training.weights()
    folder.write_weights("model", final_weights)
    folder.write_table()
    if config.canaries:
        folder.write_canaries(training.canary_evidence())
    has_ended_early = training.done < config.rounds
    plan = training.plan
    if has_ended_early:
        plan = stopped_after(plan, training.done)
    audit = training.controller.audit(plan)
    test_metrics: dict[str, float] = {}
    if training.options.test:
        test_metrics = training.evaluator(final_weights, "test")
    # If a finished run is resumed, for example to write events or its table, it keeps the date of
    # its earlier result.
    earlier_result = Run.load(folder.path).result or {}
    result: dict[str, Any] = {
        "validation": training.evaluator(final_weights, "validation"),
        "test": test_metrics,
        "participation": _participation_values(training, audit),
        "claimed_cohort": config.claimed_cohort,
        # A simulation of a larger cohort has no achieved guarantee, because only the simulated run
        # was observed.
        "achieved": _achieved_values(audit) if plan.simulation is None else None,
    }
    # The date and the duration of a trial would tell an attacker something about all trials.
    if plan.selection is None:
        result["seconds"] = round(seconds, 1)
        result["date"] = earlier_result.get("date", today())
    if has_ended_early:
        result["ended_after"] = training.done
    write_final_statement(folder.path, audit, result)
    # The file result.json has the digests of the other result files, so it is written last.
    folder.write_json("result", result)


def _participation_values(training: Training, audit: Audit) -> dict[str, Any]:
    """Returns the population, the cohort size and the observed participation for result.json."""
    num_clients_by_count = audit.observed.histogram
    return {
        "population": training.controller.population,
        "cohort_size": training.controller.cohort_size,
        **audit.observed.summary(),
        "histogram": {str(count): num for count, num in num_clients_by_count.items()},
        **audit.spending(),
    }


def _achieved_values(audit: Audit) -> dict[str, Any]:
    """Returns the values of the achieved guarantee for result.json."""
    # The epsilon with amplification holds, because the run's controller sampled the cohorts by the
    # plan's scheme. A ledger alone could not prove this.
    achieved_epsilon = audit.epsilon if audit.amplified_epsilon is None else audit.amplified_epsilon
    achieved_sensitivity = 0.0
    if audit.achieved:
        achieved_sensitivity = audit.achieved.sensitivity.value
    return {
        "epsilon": _finite_or_none(achieved_epsilon),
        "unamplified_epsilon": _finite_or_none(audit.epsilon),
        "rho": _finite_or_none(audit.rho),
        "sensitivity": achieved_sensitivity,
    }


def _finite_or_none(value: float) -> float | None:
    return value if np.isfinite(value) else None
