"""Figures and tables of the test accuracy of trained runs, with intervals over seeds."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmf.experiments.papers.clause import Clause
from fedmf.experiments.papers.comparisons import short
from fedmf.experiments.papers.drawing import Line, Lines
from fedmf.experiments.papers.item import Outcome, Request
from fedmf.experiments.papers.study import Score, finished
from fedmf.experiments.papers.study_grid import TUNING_SEED, Study
from fedmf.intervals import bootstrap_interval
from fedmf.reports.groups import final_metric, validation_curve
from fedmf.runs.folder import Run
from fedmf.sweeps.results import validation_of


def judged(scores: Sequence[Score], clauses: Sequence[Clause]) -> Outcome:
    """Returns the outcome of a study with these clauses, and plots test accuracy over epsilon."""
    score_rows = [row(score) for score in scores]
    return Outcome(
        over_epsilon(scores),
        columns=list(score_rows[0]),
        rows=[list(values.values()) for values in score_rows],
        clauses=clauses,
    )


def row(score: Score) -> dict[str, Any]:
    """Returns the row of numbers.csv that describes a score, the result of one line of a figure."""
    test_accuracies = score.test
    config = score.best
    final_values = [final_metric(run, "validation") for run in score.runs]
    finite_validations = [value for value in final_values if value is not None]
    test_std = test_accuracies.std(ddof=1) if len(test_accuracies) > 1 else 0.0
    validation_mean = np.mean(finite_validations) if finite_validations else math.nan
    mean, low, high = bootstrap_interval(test_accuracies)
    return {
        "line": score.line,
        "epsilon": score.epsilon,
        "noise multiplier": score.runs[0].plan["noise_multiplier"],
        "settings tried": sum(run.config.seed == TUNING_SEED for run in score.tried) or 1,
        "server rate": config.server_learning_rate,
        "client rate": config.client_learning_rate,
        "momentum": config.server_momentum,
        "bands": config.bands,
        "seeds": len(test_accuracies),
        "test mean": mean,
        "test low": low,
        "test high": high,
        "test std": test_std,
        "test min": test_accuracies.min(),
        "test max": test_accuracies.max(),
        "validation mean": validation_mean,
        "zeroed updates": sum(r["zeroed"] for run in score.runs for r in run.metrics),
        "diverged runs": sum(map(diverged, score.runs)),
    }


SETTING = ("line", "epsilon", "server rate")
_STATISTICS = ("runs", "mean", "std", "min", "max")
SETTING_COLUMNS = (
    *SETTING,
    *(f"validation {name}" for name in _STATISTICS),
    *(f"test {name}" for name in _STATISTICS),
)


def by_setting(study: Study, request: Request) -> list[dict[str, Any]]:
    """Returns a row of statistics for each setting that has finished runs.

    The validation metric is smoothed as for tuning. Epsilon is infinite without noise. Statistics
    are NaN if no run has the metric.
    """
    return [
        _setting_row(line, config.server_learning_rate, runs, study.smoothed_over)
        for line, config, runs in finished(study, request)
    ]


def by_rate(scores: Sequence[Score]) -> dict[str, Any]:
    """Returns the fields `columns` and `rows` of an `Outcome`, with a row for each line and server
    rate.

    The statistics are over the tuning runs as well as the reported ones.
    """
    table_rows = []
    for score in scores:
        runs_by_rate: dict[float, list[Run]] = {}
        for run in (*score.tried, *score.runs):
            runs_by_rate.setdefault(run.config.server_learning_rate, []).append(run)
        for rate in sorted(runs_by_rate):
            table_rows.append(tuple(_setting_row(score.line, rate, runs_by_rate[rate]).values()))
    return {"columns": SETTING_COLUMNS, "rows": table_rows}


def _setting_row(
    line: str, rate: float, runs: Sequence[Run], smoothed_over: int = 0
) -> dict[str, Any]:
    """Returns a row of statistics over the runs of one setting, with the columns
    `SETTING_COLUMNS`.
    """
    config = runs[0].config
    test_values = [final_metric(run, "test") for run in runs]
    epsilon = config.epsilon or runs[0].plan["epsilon"] or math.inf
    row_values = [line, epsilon, rate]
    smoothed_accuracies = [validation_of(run, smoothed_over) for run in runs]
    for metric_values in (
        smoothed_accuracies,
        [value for value in test_values if value is not None],
    ):
        metric_array = np.array(metric_values or [math.nan])
        standard_deviation = metric_array.std(ddof=1) if len(metric_array) > 1 else 0.0
        row_values += [
            len(metric_values),
            metric_array.mean(),
            standard_deviation,
            metric_array.min(),
            metric_array.max(),
        ]
    return dict(zip(SETTING_COLUMNS, row_values, strict=True))


def diverged(run: Run) -> bool:
    """Returns whether a run's last validation loss is above its first, or not finite."""
    validation_losses = [row["validation"]["loss"] for row in run.metrics if "validation" in row]
    return not validation_losses[-1] <= validation_losses[0]


def over_epsilon(scores: Sequence[Score]) -> list[Lines]:
    """Plots test accuracy over epsilon with intervals, where a line without noise is horizontal.

    If all scores with noise have the same epsilon, `levels` plots them.
    """
    if len({score.target for score in scores} - {None}) <= 1:
        return levels(scores)
    line_by_name = {}
    for line in dict.fromkeys(s.line for s in scores):
        line_scores = [score for score in scores if score.line == line]
        line_scores.sort(key=lambda score: score.epsilon)
        intervals = np.array([bootstrap_interval(score.test) for score in line_scores]).T
        line_by_name[line] = Line([score.epsilon for score in line_scores], *intervals)
    epsilon_ticks = sorted({round(s.epsilon, 2) for s in scores if math.isfinite(s.epsilon)})
    return [
        Lines(line_by_name, "epsilon", "test accuracy", log="x", ticks=epsilon_ticks, percent=True)
    ]


def levels(scores: Sequence[Score]) -> list[Lines]:
    """Plots the accuracy of each line as a point with its interval."""
    point_by_line = {
        s.line: Line([i], *np.array([bootstrap_interval(s.test)]).T) for i, s in enumerate(scores)
    }
    epsilons = dict.fromkeys(f"epsilon {short(s.epsilon)}" for s in scores if s.epsilon < math.inf)
    return [
        Lines(
            point_by_line,
            points=True,
            title=", ".join(epsilons),
            ylabel="test accuracy",
            percent=True,
        )
    ]


def by_round(
    scores: Sequence[Score], *, first: int = 0, decay: int | None = None
) -> dict[str, Any]:
    """Returns the fields `figure`, `columns` and `rows` of an `Outcome`, with validation accuracy
    by round.

    The figure has a panel for each target with the mean over seeds and its interval; the rows have
    all values.

    Args:
      scores: scores of the lines.
      first: first round that is drawn.
      decay: round of a vertical line, at which the learning rate begins to fall.
    """
    panels: dict[float, dict[str, Line]] = {}
    table_rows = []
    for score in scores:
        curves = [validation_curve(run) for run in score.runs]
        for run, curve in zip(score.runs, curves, strict=True):
            server_rate = score.best.server_learning_rate
            setting = (score.line, score.epsilon, server_rate, run.config.seed)
            for t, value in zip(*curve, strict=True):
                table_rows.append((*setting, int(t), float(value)))
        validated_rounds = curves[0][0]
        values_by_round = np.array([values for _, values in curves]).T
        intervals = np.array([bootstrap_interval(values) for values in values_by_round])
        accuracy_line = Line(
            validated_rounds[validated_rounds >= first], *intervals[validated_rounds >= first].T
        )
        panels.setdefault(score.epsilon, {})[score.line] = accuracy_line
    figure: list[Lines] = []
    for epsilon, series in panels.items():
        figure.append(
            Lines(
                series,
                "round",
                "" if figure else "validation accuracy",
                title="no noise" if math.isinf(epsilon) else f"epsilon {short(epsilon)}",
                percent=True,
                at=decay,
            )
        )
    return {
        "columns": ("line", "epsilon", "server rate", "seed", "round", "validation accuracy"),
        "rows": table_rows,
        "figure": figure,
    }
