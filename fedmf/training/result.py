"""What a run leaves behind after its last round: weights, table, result.json, final statement."""

from typing import Any

import numpy as np

from fedmf.privacy.statement import today
from fedmf.privacy.stopping import stopped_after
from fedmf.runs.audit import write_final_statement
from fedmf.runs.folder import Run
from fedmf.training.under_way import Training


def write_result(training: Training, seconds: float) -> None:
    """Writes the files of a finished run; result.json says that it is one.

    Args:
      training: after its last round.
      seconds: that this process trained.
    """
    config, folder, plan, done = training.config, training.folder, training.plan, training.done
    controller, weights = training.controller, training.weights()
    folder.write_weights("model", weights)
    folder.write_table()
    if config.canaries:
        releases = np.array(training.canary_releases)
        evidence = training.execution.canary_evidence(training.state, releases)
        folder.write_canaries(evidence)
    ended = done < config.rounds
    audit = controller.audit(stopped_after(plan, done) if ended else plan)
    # Our controller drew as the plan's sampling says; a ledger alone could not show it.
    epsilon = audit.epsilon if audit.amplified_epsilon is None else audit.amplified_epsilon
    achieved = {
        "epsilon": _finite(epsilon),
        "unamplified_epsilon": _finite(audit.epsilon),
        "rho": _finite(audit.rho),
        "sensitivity": audit.achieved.sensitivity.value if audit.achieved else 0.0,
    }
    histogram = {str(count): clients for count, clients in audit.observed.histogram.items()}
    participation = {
        "population": controller.population,
        "cohort_size": controller.cohort_size,
        **audit.observed.summary(),
        "histogram": histogram,
        **audit.spending(),
    }
    # A finished run that is resumed, for its events or its table, was finished before.
    earlier = Run.load(folder.path).result or {}
    result: dict[str, Any] = {
        "validation": training.evaluator(weights, "validation"),
        "test": training.evaluator(weights, "test") if training.options.test else {},
        "participation": participation,
        "claimed_cohort": config.claimed_cohort,
        # Nobody observed the run that a simulation stands for.
        "achieved": achieved if plan.simulation is None else None,
        "seconds": round(seconds, 1),
        "date": earlier.get("date", today()),
    }
    if ended:
        result["ended_after"] = done
    write_final_statement(folder.path, audit, result)
    folder.write_json("result", result)  # with the digests of all before it


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
