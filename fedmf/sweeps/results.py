"""Results of a sweep, with a CSV row for every run, the best settings, and the joint guarantee of
all runs.
"""

import csv
import dataclasses
import io
import math
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedmf.intervals import mean_interval
from fedmf.privacy.gaussian import gaussian_epsilon
from fedmf.privacy.monte_carlo import FAILURE_OF_CALIBRATION
from fedmf.privacy.sampling import scheme_class
from fedmf.reports.groups import (
    final_metric,
    has_diverged,
    private_curve,
    simulation_note,
    validation_curve,
)
from fedmf.reports.labels import config_as_run, differing_fields, tuned_fields
from fedmf.reports.seeds import LEVEL, by_seed, paired_difference
from fedmf.reports.text import aligned, metric_name, plain
from fedmf.runs.folder import Run, RunFolder
from fedmf.runs.notes import figures_note, smaller_is_better


@dataclasses.dataclass(frozen=True, kw_only=True)
class Best:
    """Best setting of the tuned fields, for one combination of values of the compared fields.

    Attributes:
      compared: field -> value, for the fields that vary and are not tuned.
      tuned: field -> value, for the tuned fields.
      runs: finished runs of the setting.
      validation, test: headline metric by seed; the mean of validation has chosen the setting.
      settings: number of settings that were tried, stopped ones included.
      tied: number of other settings whose difference from this one, paired by seed, has an interval
        that contains 0 or does not exist; None if this setting has no interval of its own.
      at_edge: tuned fields whose best value is the smallest or largest of three or more that were
        tried; none if every model diverged.
    """

    compared: dict[str, Any]
    tuned: dict[str, Any]
    runs: tuple[Run, ...]
    validation: dict[int, float]
    test: dict[int, float]
    settings: int
    tied: int | None
    at_edge: list[str]

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON value of the setting, with its values for each seed and their
        intervals.
        """
        return {
            "compared": self.compared,
            "tuned": self.tuned,
            "seeds": list(self.validation),
            "validation": list(self.validation.values()),
            "validation_interval": _interval_ends(self.validation),
            "test": list(self.test.values()),
            "test_interval": _interval_ends(self.test),
            "settings": self.settings,
            "tied": self.tied,
            "at_edge": self.at_edge,
        }


def _interval_ends(values: Mapping[int, float]) -> list[float] | None:
    """Returns the ends of the interval of a metric over seeds, or None if it has none."""
    interval = mean_interval(list(values.values()))
    return None if interval is None else [interval.low, interval.high]


def varying(runs: Sequence[Run]) -> list[str]:
    """Returns the names of the fields in which the runs differ, except for the path of the data."""
    differing_names = differing_fields([config_as_run(run) for run in runs])
    return [name for name in differing_names if name != "data"]


def stopped_by_data(runs: Iterable[Run]) -> list[Run]:
    """Returns the unfinished runs that were stopped because of their results, for example by
    successive halving.
    """
    return [run for run in runs if run.result is None and RunFolder(run.path).was_stopped_by_data()]


def results_csv(
    runs: Sequence[Run],
    smoothed_over: int = 0,
    *,
    stopped: Sequence[Run] = (),
    total_epsilon: float | None = None,
) -> str:
    """Returns a CSV text with a row for every finished run, which has its varied fields, guarantee
    and metrics.

    Fields that vary among the finished and the `stopped` runs have a column. The smoothed column is
    `validation_of`, if that is a mean. The guarantee of a simulation is that of the cohort in
    simulated_for_cohort, and its achieved_epsilon is empty. A budget for all runs together,
    `total_epsilon`, is in each row.
    """
    varied_names = varying([*runs, *stopped])
    csv_buffer = io.StringIO()
    run_rows = [_row(run, varied_names, smoothed_over) for run in runs]
    if total_epsilon is not None:
        run_rows = [{**csv_row, "total_epsilon": total_epsilon} for csv_row in run_rows]
    csv_writer = csv.DictWriter(csv_buffer, list(run_rows[0]), lineterminator="\n")
    csv_writer.writeheader()
    csv_writer.writerows(run_rows)
    return csv_buffer.getvalue()


def _row(run: Run, names: Sequence[str], smoothed_over: int) -> dict[str, Any]:
    """Returns the row of the CSV for one run."""
    assert run.result is not None
    run_plan = run.plan
    headline_metric = run.plan["task"]["headline_metric"]
    config_values = config_as_run(run).flat()
    csv_row = {
        "run": run.path.name,
        **{name: config_values.get(name) for name in names},
        "plan_epsilon": run_plan["epsilon"],
        "plan_delta": run_plan["delta"],
        "plan_noise_multiplier": None,
        "prefix_sum_rmse": None,
        "achieved_epsilon": None,
        "simulated_for_cohort": run.config.claimed_cohort,
        f"validation_{headline_metric}": run.result["validation"][headline_metric],
    }
    if run.config.family != "none":
        csv_row["plan_noise_multiplier"] = run_plan["noise_multiplier"]
        csv_row["prefix_sum_rmse"] = run_plan["rmse"]
    if run.config.claimed_cohort is None:
        csv_row["achieved_epsilon"] = run.result["achieved"]["epsilon"]
    if smoothed_over:
        csv_row[f"smoothed_validation_{headline_metric}"] = validation_of(run, smoothed_over)
    csv_row[f"test_{headline_metric}"] = run.result["test"].get(headline_metric)
    csv_row["seconds"] = run.result["seconds"]
    return csv_row


def validation_of(run: Run, smoothed_over: int = 0) -> float:
    """Returns the headline metric of a run on the validation set.

    It is the last value, or the mean of those after the last `smoothed_over` rounds.
    """
    final_value = _metric(run, "validation")
    rounds, values = validation_curve(run)
    last_values = list(values[rounds > run.config.rounds - smoothed_over])
    if not len(rounds) or rounds[-1] < run.config.rounds:
        # A run is always validated at its end. The file metrics.jsonl has this validation only if
        # one was due in the last round.
        last_values.append(final_value)
    return float(np.mean(last_values)) if smoothed_over else final_value


def score_of(run: Run, smoothed_over: int = 0) -> float:
    """Returns the score of a finished run, which a search maximises.

    It is the headline metric, negative if smaller is better: the private one if the run has it,
    else `validation_of`. The score of a model that diverged is NaN.
    """
    if has_diverged(run):
        return math.nan
    run_score = validation_of(run, smoothed_over)
    if run.config.private_metrics:
        run_score = next(iter(private_curve(run, "accuracy").means[::-1]), math.nan)
    if not math.isfinite(run_score):
        return math.nan
    is_error = smaller_is_better(run.plan["task"]["headline_metric"])
    return float(-run_score) if is_error else float(run_score)


def best_settings(
    runs: Sequence[Run],
    smoothed_over: int = 0,
    searched: Collection[str] = (),
    *,
    stopped: Sequence[Run] = (),
) -> list[Best]:
    """Returns the best setting of the tuned fields for each combination of the compared fields.

    The best setting has the best mean of `validation_of` over the seeds, for an error or a loss the
    smallest. Fields that were searched are tuned as well, and none of their values is at an edge.
    The settings of `stopped` runs count as tried, and none of them is the best.
    """
    tried_runs = [*runs, *stopped]
    varied_names = varying(tried_runs)
    tuned_names = [name for name in varied_names if name in (*tuned_fields(tried_runs), *searched)]
    compared_names = [name for name in varied_names if name not in (*tuned_names, "seed")]
    groups: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Run]]] = {}
    for run in tried_runs:
        config_values = config_as_run(run).flat()
        runs_by_setting = groups.setdefault(tuple(map(config_values.get, compared_names)), {})
        finished_runs = runs_by_setting.setdefault(tuple(map(config_values.get, tuned_names)), [])
        if run.result is not None:
            finished_runs.append(run)
    return [
        _best(
            dict(zip(compared_names, config_values, strict=True)),
            tuned_names,
            runs_by_setting,
            smoothed_over,
            searched,
        )
        for config_values, runs_by_setting in groups.items()
        if any(runs_by_setting.values())
    ]


def _best(
    compared: dict[str, Any],
    tuned: list[str],
    tried: dict[tuple[Any, ...], list[Run]],
    smoothed_over: int,
    searched: Collection[str],
) -> Best:
    """Returns the best of the tried settings for one combination of the compared fields."""
    values_by_setting = {
        setting: by_seed((run.config.seed, validation_of(run, smoothed_over)) for run in runs)
        for setting, runs in tried.items()
        if runs
    }
    (metric,) = {run.plan["task"]["headline_metric"] for runs in tried.values() for run in runs}
    score_sign = -1 if smaller_is_better(metric) else 1
    mean_by_setting = {
        setting: score_sign * sum(values.values()) / len(values)
        for setting, values in values_by_setting.items()
    }
    for setting, mean in mean_by_setting.items():
        # A setting whose model has diverged cannot be the best one.
        if not math.isfinite(mean) or any(map(has_diverged, tried[setting])):
            mean_by_setting[setting] = -math.inf
    best_setting = max(mean_by_setting, key=mean_by_setting.__getitem__)
    range_by_field = {
        name: (min(values), max(values))
        for name, *values in zip(tuned, *tried, strict=True)
        if name not in searched and len(set(values)) > 2
    }
    num_tied = None
    if mean_interval(list(values_by_setting[best_setting].values())) is not None:
        num_tied = sum(
            setting != best_setting
            and math.isfinite(mean_by_setting[setting])
            and score_sign * paired_difference(values_by_setting[best_setting], values).sign <= 0
            for setting, values in values_by_setting.items()
        )
    chosen_values = dict(zip(tuned, best_setting, strict=True))
    fields_at_edge = [
        name for name, value in chosen_values.items() if value in range_by_field.get(name, ())
    ]
    return Best(
        compared=compared,
        tuned=chosen_values,
        runs=tuple(tried[best_setting]),
        validation=values_by_setting[best_setting],
        test=by_seed((run.config.seed, _metric(run, "test")) for run in tried[best_setting]),
        settings=len(tried),
        tied=num_tied,
        at_edge=[] if math.isinf(mean_by_setting[best_setting]) else fields_at_edge,
    )


def _metric(run: Run, split: str) -> float:
    """Returns a run's final headline metric on a split, or NaN if there is none."""
    final_value = final_metric(run, split)
    return math.nan if final_value is None else final_value


def best_table(
    runs: Sequence[Run],
    smoothed_over: int = 0,
    searched: Collection[str] = (),
    *,
    stopped: Sequence[Run] = (),
    total_epsilon: float | None = None,
) -> str:
    """Returns the result of `best_settings` as a text table. A budget for all runs together,
    `total_epsilon`, is in each row.
    """
    best_rows = best_settings(runs, smoothed_over, searched, stopped=stopped)
    metric_words = metric_name(runs[0].plan["task"]["headline_metric"])
    has_intervals = any(setting.tied is not None for setting in best_rows)
    tied_heading = ["tied"] if has_intervals else []
    table_rows = [
        [
            *best_rows[0].compared,
            *best_rows[0].tuned,
            f"validation {metric_words}",
            f"test {metric_words}",
            "seeds",
            "settings tried",
            *tied_heading,
        ]
    ]
    for setting in best_rows:
        row_texts = list(map(_value_text, setting.compared.values()))
        for name, value in setting.tuned.items():
            cell_text = _value_text(value)
            row_texts.append(f"{cell_text}*" if name in setting.at_edge else cell_text)
        row_texts += [_mean_and_interval(values) for values in (setting.validation, setting.test)]
        row_texts += [str(len(setting.validation)), str(setting.settings)]
        if has_intervals:
            row_texts.append(_value_text(setting.tied))
        table_rows.append(row_texts)
    if total_epsilon is not None:
        _add_column(table_rows, "epsilon of all runs", plain(total_epsilon))
    table_lines = aligned(table_rows)
    if any(setting.at_edge for setting in best_rows):
        table_lines.append("* the smallest or largest that was tried: a better one may lie beyond")
    if smoothed_over:
        table_lines.append(f"validation: the mean over the last {smoothed_over} rounds")
    if has_intervals:
        table_lines += [
            f"in brackets: {LEVEL} intervals of the means over seeds",
            "tied: other settings whose difference from the best, paired by seed, has an interval "
            "with 0 in it",
        ]
    seed_note = figures_note(runs)
    if seed_note:
        table_lines.append(seed_note)
    return "\n".join([*table_lines, *textwrap.wrap(simulation_note(runs), 110)])


def _add_column(table_rows: list[list[str]], heading: str, cell_text: str) -> None:
    """Adds a column to a table, with the same text in each row below the heading."""
    for row_number, row_texts in enumerate(table_rows):
        row_texts.append(cell_text if row_number else heading)


def _value_text(value: Any) -> str:
    """Returns the text of a field's value in the table of the best settings."""
    if value is None:
        return "-"
    return plain(value) if isinstance(value, float) else str(value)


def _mean_and_interval(values: Mapping[int, float]) -> str:
    """Returns a text with the mean of some values by seed and, if they have one, its interval."""
    mean_text = f"{sum(values.values()) / len(values):.4f}"
    interval_ends = _interval_ends(values)
    if interval_ends is None:
        return mean_text
    low, high = interval_ends
    return f"{mean_text} ({low:.4f} to {high:.4f})"


def together(runs: Sequence[Run]) -> str:
    """Describes in words the joint guarantee of all runs of the sweep, finished or not.

    All runs train on the same data, and all results are used when one run is chosen.
    """
    private_plans = [run.plan for run in runs if run.plan["epsilon"] is not None]
    if not private_plans:
        return "None of these runs promises any privacy."
    epsilon, delta = _composed(private_plans)
    if math.isfinite(epsilon):
        # Epsilon is rounded up, since it is an upper bound.
        epsilon = math.ceil(epsilon * 100) / 100
    runs_phrase = (
        "The private run"
        if len(private_plans) == 1
        else f"The {len(private_plans)} private runs together"
    )
    guarantee_text = f"{runs_phrase}: epsilon {epsilon:.2f} at delta {plain(delta)}"
    if any(plan["claimed_cohort"] for plan in private_plans):
        guarantee_text += ", of the claimed cohorts"
    sampling_schemes = [
        scheme_class(plan["config"]["sampling"]) for plan in private_plans if plan["sampling"]
    ]
    num_simulated = sum(scheme.simulated for scheme in sampling_schemes)
    if num_simulated:
        failure_text = plain(num_simulated * FAILURE_OF_CALIBRATION)
        guarantee_text += f" (simulated: wrong with probability at most {failure_text})"
    guarantee_text += "."
    if len(private_plans) > 1:
        guarantee_text += (
            " That, and not one run's, is the guarantee of a model chosen by looking at all."
        )
    num_runs_without_noise = len(runs) - len(private_plans)
    if num_runs_without_noise == 1:
        guarantee_text += " The other one promises no privacy."
    elif num_runs_without_noise:
        guarantee_text += f" The other {num_runs_without_noise} promise no privacy."
    return guarantee_text


def _composed(plans: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Returns the epsilon and delta of several runs on the same data, taken together.

    Runs that use the Gaussian mechanism without sampling compose exactly: noise multipliers s_i are
    as one with 1/s^2 = sum of 1/s_i^2 (Dong, Roth and Su, Gaussian Differential Privacy, on
    composition). With amplified runs among them, or different deltas, epsilons and deltas are added
    up, which is an upper bound.
    """
    has_sampling = any(plan["sampling"] for plan in plans)
    if has_sampling or len({plan["delta"] for plan in plans}) > 1:
        return sum(plan["epsilon"] for plan in plans), sum(plan["delta"] for plan in plans)
    delta = plans[0]["delta"]
    noise_multiplier = sum(plan["noise_multiplier"] ** -2 for plan in plans) ** -0.5
    return gaussian_epsilon(noise_multiplier, delta), delta
