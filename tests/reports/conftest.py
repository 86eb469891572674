"""Runs that were never trained, with real plans, mechanisms, cohorts and statements.

Their accuracy curves follow a formula.
"""

import contextlib
import dataclasses
import functools
import json
import pathlib

import numpy as np
import pytest

import fedmf
from fedmf.reports import canvas, client_plots, command_pictures, metric_plots, noise_plots
from fedmf.runs.plan_record import plan_record

ROUNDS = 24
COHORT = 5
POPULATION = 60
_FINAL = {"none": 0.24, "identity": 0.13, "tree": 0.185, "fft": 0.17, "banded": 0.21, "dense": 0.2}


_fitted = functools.lru_cache(maxsize=None)(fedmf.TrainConfig.fit)


def make_run(
    family,
    *,
    seed=0,
    stop=None,
    task="stackoverflow_nwp",
    description="a synthetic corpus",
    **config_values,
):
    """Returns a run of 24 rounds; `stop` leaves it unfinished after this number of rounds."""
    if family != "none" and "noise_multiplier" not in config_values:
        config_values.setdefault("epsilon", 8.0)
    default_min_sep = None if "sampling" in config_values else 8
    config_values.setdefault("min_sep", default_min_sep)
    config = fedmf.TrainConfig(
        family=family,
        seed=seed,
        rounds=ROUNDS,
        cohort_size=COHORT,
        evaluate_every=4,
        **config_values,
    )
    plan = config.plan(_fitted(dataclasses.replace(config, seed=0)))
    controller = fedmf.ParticipationController(
        config.participation(), population=POPULATION, cohort_size=COHORT, seed=seed
    )
    rng = np.random.default_rng([seed, *family.encode()])
    num_rounds = ROUNDS if stop is None else stop
    rows = [
        {
            "round": t,
            "clients": len(controller.cohort(t)),
            "examples": 900,
            "train_loss": 4.0 - 0.05 * t,
            "clip_fraction": 1.0 - 0.02 * t,
        }
        for t in range(num_rounds)
    ]
    for row in rows[3::4]:
        final_accuracy = _FINAL[family] * (1 - np.exp(-(row["round"] + 1) / 8))
        accuracy = float(final_accuracy + 0.002 * rng.standard_normal())
        row["validation"] = {"accuracy": accuracy, "loss": 4.1}
    result = None
    if stop is None:
        audit = controller.audit(plan)
        histogram = controller.ledger.observed().histogram
        validation = rows[-1]["validation"]
        result = {
            "validation": validation,
            "test": {"accuracy": validation["accuracy"] - 0.004, "loss": 4.2},
            "participation": {
                "population": POPULATION,
                "cohort_size": COHORT,
                **audit.observed.summary(),
                "histogram": {str(count): clients for count, clients in sorted(histogram.items())},
            },
            "achieved": {"epsilon": audit.epsilon if np.isfinite(audit.epsilon) else None},
            "seconds": 61.5,
        }
    plan_values = plan_record(config, plan) | {
        "task": {
            "name": task,
            "description": description,
            "headline_metric": "accuracy",
            "clients": POPULATION,
        },
        "workload": "prefix_sum",
        "rmse": fedmf.rmse(plan.mechanism, config.fit_workload(), plan.participation),
        "versions": {"fedmf": "0.1.0", "tensorflow": "2.14.1"},
    }
    return fedmf.Run(
        path=pathlib.Path("/runs") / f"{family}-{seed}",
        config=config,
        plan=json.loads(json.dumps(plan_values)),  # A report reads values that were JSON.
        metrics=rows,
        timings=[],
        statement=fedmf.statement(plan),
        mechanism=plan.mechanism,
        result=result,
    )


@pytest.fixture(scope="module", autouse=True)
def _coarse_plots(coarse_plots):
    """Draws plots with fewer pixels."""


@pytest.fixture
def figures(monkeypatch):
    """Returns a list to which every figure is added after it was laid out."""
    drawn_figures = []
    draw_canvas = canvas.canvas

    @contextlib.contextmanager
    def watched(*size_and_note):
        with draw_canvas(*size_and_note) as (figure, png):
            yield figure, png
        drawn_figures.append(figure)

    for module in (metric_plots, client_plots, noise_plots, command_pictures):
        monkeypatch.setattr(module, "canvas", watched)
    return drawn_figures


@pytest.fixture(scope="session")
def demo_runs():
    """Returns the runs that `fedmf demo` compares, over two seeds."""
    return [
        make_run(family, seed=seed)
        for family in ("none", "identity", "tree", "banded")
        for seed in (0, 1)
    ]


@pytest.fixture(name="make_run")
def make_run_fixture():
    """Returns the function that makes a run."""
    return make_run
