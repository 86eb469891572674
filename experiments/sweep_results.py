"""What a sweep found: a row for every run, the best settings, and what all runs reveal together."""

import csv
import dataclasses
import io
import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmf.privacy.gaussian import gaussian_epsilon
from fedmf.reports.groups import final_metric, simulation_note, validation_curve
from fedmf.reports.labels import TUNED
from fedmf.reports.text import metric_name, plain
from fedmf.runs.config import TrainConfig
from fedmf.runs.folder import Run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Best:
    """The best setting of the tuned fields for one thing compared.

    Attributes:
      compared: field -> value, of the fields that vary and are not tuned.
      tuned: field -> value, of those that are.
      validation, test: the headline metric, a value for each seed; validation is what the setting was chosen by.
      settings: how many were tried.
      at_edge: the tuned fields whose best value is the smallest or largest of three or more that were tried.
    """

    compared: dict[str, Any]
    tuned: dict[str, Any]
    validation: list[float]
    test: list[float]
    settings: int
    at_edge: list[str]


def varying(runs: Sequence[Run]) -> list[str]:
    """The fields in which the runs differ; where the data lies is none."""
    names = [field.name for field in dataclasses.fields(TrainConfig) if field.name != "data"]
    return [name for name in names if len({getattr(run.config, name) for run in runs}) > 1]


def results_csv(runs: Sequence[Run], smoothed_over: int = 0) -> str:
    """A line for every finished run: its folder, the fields that vary, the guarantee, and what it reached.

    Smoothed is the validation of `validation_of`, where it is over several rounds. Of a simulation the guarantee is that of the cohort in
    simulated_for_cohort, and achieved_epsilon is empty.
    """
    names = varying(runs)
    metric = runs[0].plan["task"]["headline_metric"]
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    guarantee = [
        "plan_epsilon",
        "plan_delta",
        "plan_noise_multiplier",
        "prefix_sum_rmse",
        "achieved_epsilon",
        "simulated_for_cohort",
    ]
    smoothed = [f"smoothed_validation_{metric}"] if smoothed_over else []
    rows.writerow(["run", *names, *guarantee, f"validation_{metric}", *smoothed, f"test_{metric}", "seconds"])
    for run in runs:
        assert run.result is not None
        plan = run.plan
        said = [
            plan["epsilon"],
            plan["delta"],
            *([None] * 2 if run.config.family == "none" else [plan["noise_multiplier"], plan["rmse"]]),
            None if (of := run.config.claimed_cohort) is not None else run.result["achieved"]["epsilon"],
            of,
        ]
        chosen_by = [validation_of(run, smoothed_over)] if smoothed_over else []
        reached = [run.result["validation"][metric], *chosen_by, run.result["test"][metric], run.result["seconds"]]
        rows.writerow([run.path.name, *(getattr(run.config, name) for name in names), *said, *reached])
    return out.getvalue()


def validation_of(run: Run, smoothed_over: int = 0) -> float:
    """The headline metric on the validation set: the last value, or the mean of those after the last `smoothed_over` rounds."""
    last = _metric(run, "validation")
    rounds, values = validation_curve(run)
    kept = list(values[rounds > run.config.rounds - smoothed_over])
    if not len(rounds) or rounds[-1] < run.config.rounds:
        kept.append(last)  # the end of the run is always validated, and is no row of metrics unless it was due
    return float(np.mean(kept)) if smoothed_over else last


def tuned_fields(runs: Sequence[Run]) -> tuple[str, ...]:
    """Fields that are chosen by the validation; where cohorts are sampled bands are, whose best number depends on epsilon."""
    return (*TUNED, "bands") if all(run.config.sampling for run in runs) else TUNED


def best_settings(runs: Sequence[Run], smoothed_over: int = 0) -> list[Best]:
    """For everything compared the tuned fields with the largest mean of `validation_of` over the seeds."""
    names = varying(runs)
    tuned = [name for name in names if name in tuned_fields(runs)]
    compared = [name for name in names if name not in (*tuned, "seed")]
    of: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Run]]] = {}
    for run in runs:
        one = of.setdefault(tuple(getattr(run.config, name) for name in compared), {})
        one.setdefault(tuple(getattr(run.config, name) for name in tuned), []).append(run)
    found = []
    for values, settings in of.items():
        metrics = {setting: [validation_of(run, smoothed_over) for run in group] for setting, group in settings.items()}
        best = max(metrics, key=lambda setting: _mean_or_least(metrics[setting]))
        tried = {name: sorted({setting[i] for setting in settings}) for i, name in enumerate(tuned)}
        found.append(
            Best(
                compared=dict(zip(compared, values, strict=True)),
                tuned=dict(zip(tuned, best, strict=True)),
                validation=metrics[best],
                test=[_metric(run, "test") for run in settings[best]],
                settings=len(settings),
                at_edge=[
                    name
                    for name, value in zip(tuned, best, strict=True)
                    if len(tried[name]) > 2 and value in (tried[name][0], tried[name][-1])
                ],
            )
        )
    return found


def _metric(run: Run, split: str) -> float:
    value = final_metric(run, split)
    return math.nan if value is None else value


def _mean_or_least(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return mean if math.isfinite(mean) else -math.inf  # a model that diverged is no best one


def best_table(runs: Sequence[Run], smoothed_over: int = 0) -> str:
    """`best_settings` as text."""
    found = best_settings(runs, smoothed_over)
    metric = metric_name(runs[0].plan["task"]["headline_metric"])
    head = [*found[0].compared, *found[0].tuned, f"validation {metric}", f"test {metric}", "seeds", "settings tried"]
    rows = [head]
    for best in found:
        tuned = [_shown(value) + ("*" if name in best.at_edge else "") for name, value in best.tuned.items()]
        reached = [_mean_and_range(values) for values in (best.validation, best.test)]
        compared = [_shown(value) for value in best.compared.values()]
        rows.append([*compared, *tuned, *reached, str(len(best.validation)), str(best.settings)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if any(best.at_edge for best in found):
        lines.append("* the smallest or largest that was tried: a better one may lie beyond")
    if smoothed_over:
        lines.append(f"validation: the mean over the last {smoothed_over} rounds")
    lines += textwrap.wrap(simulation_note(runs), 110)
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return "-" if value is None else plain(value) if isinstance(value, float) else str(value)


def _mean_and_range(values: Sequence[float]) -> str:
    mean = f"{sum(values) / len(values):.4f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.4f} to {max(values):.4f})"


def together(runs: Sequence[Run]) -> str:
    """What all runs, finished or not, reveal of one client: they train on the same data, and who chooses one has looked at all.

    Runs that rest on the Gaussian mechanism alone compose exactly: noise multipliers s_i are as one with 1/s^2 = sum of 1/s_i^2 (Dong, Roth
    and Su, Gaussian Differential Privacy, on composition). With amplified ones among them, or deltas that differ, epsilons and deltas are
    added up, which is an upper bound.
    """
    private = [run.plan for run in runs if run.plan["epsilon"] is not None]
    bare = len(runs) - len(private)
    others = f" The other {'one promises' if bare == 1 else f'{bare} promise'} no privacy." if bare else ""
    if not private:
        return "None of these runs promises any privacy."
    if len({plan["delta"] for plan in private}) == 1 and not any(plan["sampling"] for plan in private):
        delta = private[0]["delta"]
        epsilon = gaussian_epsilon(sum(plan["noise_multiplier"] ** -2 for plan in private) ** -0.5, delta)
    else:
        epsilon, delta = sum(plan["epsilon"] for plan in private), sum(plan["delta"] for plan in private)
    shown = math.ceil(epsilon * 100) / 100 if math.isfinite(epsilon) else epsilon  # never fewer than the bound
    claimed = ", of the claimed cohorts" if any(plan["claimed_cohort"] for plan in private) else ""
    which = "The private run" if len(private) == 1 else f"The {len(private)} private runs together"
    choice = (
        " That, and not one run's, is the guarantee of a model chosen by looking at all." if len(private) > 1 else ""
    )
    return f"{which}: epsilon {shown:.2f} at delta {plain(delta)}{claimed}.{choice}{others}"
