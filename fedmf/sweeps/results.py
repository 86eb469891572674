"""The results of a sweep: a row for every run, the best settings, and what all
runs reveal together.
"""

import csv
import dataclasses
import io
import math
import textwrap
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from fedmf.privacy.gaussian import gaussian_epsilon
from fedmf.privacy.monte_carlo import FAILURE_OF_CALIBRATION
from fedmf.privacy.sampling import scheme_class
from fedmf.reports.groups import (
    final_metric,
    private_curve,
    simulation_note,
    validation_curve,
)
from fedmf.reports.labels import TUNED, config_as_run, differing_fields
from fedmf.reports.text import aligned, metric_name, plain
from fedmf.runs.folder import Run, RunFolder
from fedmf.runs.notes import figures_note, smaller_is_better


@dataclasses.dataclass(frozen=True, kw_only=True)
class Best:
    """The best setting of the tuned fields for one thing compared.

    Attributes:
      compared: field -> value, of the fields that vary and are not tuned.
      tuned: field -> value, of those that are.
      validation, test: the headline metric, a value for each seed; validation is what the setting
        was chosen by.
      settings: how many were tried, those that were stopped among them.
      at_edge: the tuned fields whose best value is the smallest or largest of three or more that
        were tried; none where every model diverged.
    """

    compared: dict[str, Any]
    tuned: dict[str, Any]
    validation: list[float]
    test: list[float]
    settings: int
    at_edge: list[str]


def varying(runs: Sequence[Run]) -> list[str]:
    """The fields in which the runs differ; where the data lies is none."""
    return [
        name for name in differing_fields([config_as_run(run) for run in runs]) if name != "data"
    ]


def stopped_by_data(runs: Iterable[Run]) -> list[Run]:
    """Returns the unfinished runs that were stopped because of their results, as by halving: their
    settings were tried.
    """
    return [run for run in runs if run.result is None and RunFolder(run.path).was_stopped_by_data()]


def results_csv(runs: Sequence[Run], smoothed_over: int = 0, *, stopped: Sequence[Run] = ()) -> str:
    """A line for every finished run: its folder, the fields that vary, the guarantee,
    and its metrics.

    Fields that vary among the finished and the `stopped` runs have a column. The smoothed column is
    `validation_of`, where that is a mean. The guarantee of a simulation is that of the cohort in
    simulated_for_cohort, and its achieved_epsilon is empty.
    """
    names = varying([*runs, *stopped])
    out = io.StringIO()
    rows = [_row(run, names, smoothed_over) for run in runs]
    table = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return out.getvalue()


def _row(run: Run, names: Sequence[str], smoothed_over: int) -> dict[str, Any]:
    assert run.result is not None
    plan = run.plan
    metric = run.plan["task"]["headline_metric"]
    private = run.config.family != "none"
    values = config_as_run(run).flat()
    claimed = run.config.claimed_cohort
    smoothed = (
        {f"smoothed_validation_{metric}": validation_of(run, smoothed_over)}
        if smoothed_over
        else {}
    )
    return {
        "run": run.path.name,
        **{name: values.get(name) for name in names},
        "plan_epsilon": plan["epsilon"],
        "plan_delta": plan["delta"],
        "plan_noise_multiplier": plan["noise_multiplier"] if private else None,
        "prefix_sum_rmse": plan["rmse"] if private else None,
        "achieved_epsilon": run.result["achieved"]["epsilon"] if claimed is None else None,
        "simulated_for_cohort": claimed,
        f"validation_{metric}": run.result["validation"][metric],
        **smoothed,
        f"test_{metric}": run.result["test"].get(metric),
        "seconds": run.result["seconds"],
    }


def validation_of(run: Run, smoothed_over: int = 0) -> float:
    """The headline metric on the validation set: the last value, or the mean of those after the
    last `smoothed_over` rounds.
    """
    last = _metric(run, "validation")
    rounds, values = validation_curve(run)
    kept = list(values[rounds > run.config.rounds - smoothed_over])
    if not len(rounds) or rounds[-1] < run.config.rounds:
        # The end of the run is always validated, and is no row of metrics unless it was due
        kept.append(last)
    return float(np.mean(kept)) if smoothed_over else last


def score_of(run: Run, smoothed_over: int = 0) -> float:
    """What a search maximises, of a finished run: the headline metric, with a minus where smaller
    is better. It is the private one where the run has it, else `validation_of`.

    NaN of a model that diverged.
    """
    if _has_diverged(run):
        return math.nan
    if run.config.private_metrics:
        value = next(iter(private_curve(run, "accuracy").means[::-1]), math.nan)
    else:
        value = validation_of(run, smoothed_over)
    return _larger_is_better(run, value)


def _has_diverged(run: Run) -> bool:
    """Returns whether the last validation loss is not finite.

    The headline metric does not show that: of outputs that are NaN the first class is the largest,
    and an accuracy is the share of that class.
    """
    loss = run.result["validation"].get("loss", 0.0) if run.result else 0.0
    return not math.isfinite(loss)


def _larger_is_better(run: Run, value: float) -> float:
    """NaN for what is not finite."""
    if not math.isfinite(value):
        return math.nan
    return float(-value if smaller_is_better(run.plan["task"]["headline_metric"]) else value)


def tuned_fields(runs: Sequence[Run]) -> tuple[str, ...]:
    """Fields that are chosen by the validation; where cohorts are sampled bands are, whose best
    number depends on epsilon.
    """
    return (*TUNED, "bands") if all(run.config.sampling for run in runs) else TUNED


def best_settings(
    runs: Sequence[Run],
    smoothed_over: int = 0,
    searched: Collection[str] = (),
    *,
    stopped: Sequence[Run] = (),
) -> list[Best]:
    """For everything compared the tuned fields with the best mean of `validation_of` over the
    seeds: the smallest of an error or loss.

    Fields that were searched are tuned as well; none of their values is at an edge. Of `stopped`
    runs the settings count as tried, and none is the best.
    """
    tried = [*runs, *stopped]
    names = varying(tried)
    tuned = [name for name in names if name in (*tuned_fields(tried), *searched)]
    compared = [name for name in names if name not in (*tuned, "seed")]
    groups: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Run]]] = {}
    for run in tried:
        values = config_as_run(run).flat()
        settings = groups.setdefault(tuple(map(values.get, compared)), {})
        finished_runs = settings.setdefault(tuple(map(values.get, tuned)), [])
        if run.result is not None:
            finished_runs.append(run)
    return [
        _best(dict(zip(compared, values, strict=True)), tuned, settings, smoothed_over, searched)
        for values, settings in groups.items()
        if any(settings.values())
    ]


def _best(
    compared: dict[str, Any],
    tuned: list[str],
    tried: dict[tuple[Any, ...], list[Run]],
    smoothed_over: int,
    searched: Collection[str],
) -> Best:
    metrics = {
        setting: [validation_of(run, smoothed_over) for run in runs]
        for setting, runs in tried.items()
        if runs
    }
    (metric,) = {run.plan["task"]["headline_metric"] for runs in tried.values() for run in runs}
    sign = -1 if smaller_is_better(metric) else 1
    means = {
        setting: -math.inf if any(map(_has_diverged, tried[setting])) else sign * np.mean(values)
        for setting, values in metrics.items()
    }
    # A model that diverged is no best one.
    best = max(
        means, key=lambda setting: means[setting] if math.isfinite(means[setting]) else -math.inf
    )
    edges = {
        name: (min(values), max(values))
        for name, *values in zip(tuned, *tried, strict=True)
        if name not in searched and len(set(values)) > 2
    }
    chosen = dict(zip(tuned, best, strict=True))
    at_edge = [name for name, value in chosen.items() if value in edges.get(name, ())]
    return Best(
        compared=compared,
        tuned=chosen,
        validation=metrics[best],
        test=[_metric(run, "test") for run in tried[best]],
        settings=len(tried),
        at_edge=at_edge if math.isfinite(means[best]) else [],
    )


def _metric(run: Run, split: str) -> float:
    value = final_metric(run, split)
    return math.nan if value is None else value


def best_table(
    runs: Sequence[Run],
    smoothed_over: int = 0,
    searched: Collection[str] = (),
    *,
    stopped: Sequence[Run] = (),
) -> str:
    """`best_settings` as text."""
    best = best_settings(runs, smoothed_over, searched, stopped=stopped)
    metric = metric_name(runs[0].plan["task"]["headline_metric"])
    rows = [
        [
            *best[0].compared,
            *best[0].tuned,
            f"validation {metric}",
            f"test {metric}",
            "seeds",
            "settings tried",
        ]
    ]
    for one in best:
        tuned = [_shown(value) + "*" * (name in one.at_edge) for name, value in one.tuned.items()]
        metrics = [_mean_and_range(values) for values in (one.validation, one.test)]
        rows.append(
            [
                *map(_shown, one.compared.values()),
                *tuned,
                *metrics,
                str(len(one.validation)),
                str(one.settings),
            ]
        )
    lines = aligned(rows)
    if any(one.at_edge for one in best):
        lines.append("* the smallest or largest that was tried: a better one may lie beyond")
    if smoothed_over:
        lines.append(f"validation: the mean over the last {smoothed_over} rounds")
    if note := figures_note(runs):
        lines.append(note)
    return "\n".join([*lines, *textwrap.wrap(simulation_note(runs), 110)])


def _shown(value: Any) -> str:
    return "-" if value is None else plain(value) if isinstance(value, float) else str(value)


def _mean_and_range(values: Sequence[float]) -> str:
    mean = f"{sum(values) / len(values):.4f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.4f} to {max(values):.4f})"


def together(runs: Sequence[Run]) -> str:
    """The guarantee of all runs together, finished or not.

    They train on the same data, and choosing one looks at all.

    Runs that rest on the Gaussian mechanism alone compose exactly: noise multipliers s_i are as one
    with 1/s^2 = sum of 1/s_i^2 (Dong, Roth and Su, Gaussian Differential Privacy, on composition).
    With amplified ones among them, or different deltas, epsilons and deltas are added up, which is
    an upper bound. Simulated ones fail with a chance, which is the sum of theirs.
    """
    private = [run.plan for run in runs if run.plan["epsilon"] is not None]
    bare = len(runs) - len(private)
    others = (
        f" The other {'one promises' if bare == 1 else f'{bare} promise'} no privacy."
        if bare
        else ""
    )
    if not private:
        return "None of these runs promises any privacy."
    if len({plan["delta"] for plan in private}) == 1 and not any(
        plan["sampling"] for plan in private
    ):
        delta = private[0]["delta"]
        epsilon = gaussian_epsilon(
            sum(plan["noise_multiplier"] ** -2 for plan in private) ** -0.5, delta
        )
    else:
        epsilon = sum(plan["epsilon"] for plan in private)
        delta = sum(plan["delta"] for plan in private)
    # Never fewer than the bound
    shown = math.ceil(epsilon * 100) / 100 if math.isfinite(epsilon) else epsilon
    claimed = ", of the claimed cohorts" if any(plan["claimed_cohort"] for plan in private) else ""
    simulated = sum(
        scheme_class(plan["config"]["sampling"]).simulated for plan in private if plan["sampling"]
    )
    chance = (
        f" (simulated: wrong with probability at most {plain(simulated * FAILURE_OF_CALIBRATION)})"
        * (simulated > 0)
    )
    which = "The private run" if len(private) == 1 else f"The {len(private)} private runs together"
    choice = (
        " That, and not one run's, is the guarantee of a model chosen by looking at all."
        if len(private) > 1
        else ""
    )
    return f"{which}: epsilon {shown:.2f} at delta {plain(delta)}{claimed}{chance}.{choice}{others}"
