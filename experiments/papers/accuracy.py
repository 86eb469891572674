"""Figures and verdicts from the scores of a study: test accuracy with intervals over seeds, and
differences between lines that are paired by seed.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.stats

from fedmf.experiments.papers.drawing import Line, Lines
from fedmf.experiments.papers.item import Outcome, Request
from fedmf.experiments.papers.study import Judge, Score, finished
from fedmf.experiments.papers.study_grid import Study
from fedmf.reports.groups import final_metric, validation_curve
from fedmf.reports.text import plain
from fedmf.runs.folder import Run
from fedmf.sweeps.results import validation_of

_RESAMPLES = 4000
LEVEL = 0.95


def interval(values: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """Returns the mean of some values, and a bootstrap interval for the mean with confidence
    `LEVEL`.

    The ends of the interval are percentiles of resampled means. For few values the percentiles are
    expanded to those at which a normal interval would be as wide as Student's (Hesterberg 2015,
    "What teachers should know about the bootstrap"). The interval of 6 normal values lies above the
    true mean in 3% of cases, that of 4 values in 7%. For a single value all three numbers are that
    value.

    Returns:
      Mean, low end, high end.
    """
    x = np.asarray(values, float)
    n = len(x)
    tail = 0.0
    if n > 1:
        student = scipy.stats.t.ppf((1 + LEVEL) / 2, n - 1)
        tail = scipy.stats.norm.cdf(-math.sqrt(n / (n - 1)) * student)
    resampled_means = x[np.random.default_rng(0).integers(0, n, (_RESAMPLES, n))].mean(1)
    low, high = np.quantile(resampled_means, [tail, 1 - tail])
    return float(x.mean()), float(low), float(high)


@dataclasses.dataclass(frozen=True)
class Ordering:
    """Comparison of two lines of a figure by the mean of paired differences at their common
    targets.

    Attributes:
      better, worse: the lines, as the paper orders them.
      seeds: number of seeds.
      mean, low, high: mean difference and the ends of its interval.
    """

    better: str
    worse: str
    seeds: int
    mean: float
    low: float
    high: float

    @property
    def is_reproduced(self) -> bool:
        """Whether the interval of the difference lies above 0. One seed does not suffice for
        that.
        """
        return self.seeds > 1 and self.low > 0

    def __str__(self) -> str:
        interval_text = f"{100 * self.low:.1f} to {100 * self.high:.1f}"
        if not self.is_reproduced:
            is_contradicted = self.seeds > 1 and self.high < 0
            interval_text += ", reversed" if is_contradicted else ", not resolved"
        return f"{self.better} over {self.worse} {100 * self.mean:+.1f} points ({interval_text})"


def compare_lines(
    scores: Sequence[Score], better: str, worse: str, *, from_epsilon: float = 0.0
) -> Ordering:
    """Compares two lines at their common targets, leaving out epsilons below `from_epsilon`.

    Each seed has the same initial model, cohorts and order of examples in both lines, and
    independent noise.
    """
    better_tests = _tests_by_target(scores, better, from_epsilon)
    worse_tests = _tests_by_target(scores, worse, from_epsilon)
    common_targets = [target for target in better_tests if target in worse_tests]
    if common_targets:
        differences = np.mean(
            [better_tests[target] - worse_tests[target] for target in common_targets], axis=0
        )
    # The two lines of the figure have no privacy target in common, for example because one of them
    # is without noise. So their mean accuracies over all targets are compared.
    else:
        better_mean = np.mean(list(better_tests.values()), axis=0)
        worse_mean = np.mean(list(worse_tests.values()), axis=0)
        differences = better_mean - worse_mean
    return Ordering(better, worse, len(differences), *interval(differences))


def _tests_by_target(
    scores: Sequence[Score], line: str, from_epsilon: float
) -> dict[float | None, np.ndarray]:
    """Returns a mapping from privacy target to the test values of a line."""
    line_scores = [score for score in scores if score.line == line]
    return {score.target: score.test for score in line_scores if score.epsilon >= from_epsilon}


def verdict(orderings: Sequence[Ordering]) -> dict[str, Any]:
    """Returns the fields `verdict` and `holds` of an `Outcome`, which say whether all orderings are
    reproduced.
    """
    num_reproduced = sum(ordering.is_reproduced for ordering in orderings)
    num_seeds = orderings[0].seeds
    seeds = "1 seed" if num_seeds == 1 else f"{num_seeds} seeds"
    text = (
        f"{num_reproduced} of {len(orderings)} orders show, over {seeds}: "
        f"{'; '.join(map(str, orderings))}."
    )
    return {"verdict": text, "holds": num_reproduced == len(orderings)}


def compared(*pairs: tuple[str, str]) -> Judge:
    """Returns a judge that compares (better, worse) pairs of lines and draws accuracy over
    epsilon.
    """
    return lambda scores, size: ordered(scores, [compare_lines(scores, *pair) for pair in pairs])


def matched(line: str, best: str, worst: str) -> Judge:
    """Returns a judge that decides whether the accuracy of `line` matches that of `best`.

    It matches if two things hold. The line is above `worst`, and the upper end of the interval of
    the lead of `best` over the line is at most a quarter of the lead of `best` over `worst`.
    """

    def judge(scores: Sequence[Score], size: Any) -> Outcome:
        """Compares the three lines, and returns the outcome."""
        over_worst = compare_lines(scores, line, worst)
        gap = compare_lines(scores, best, line)
        lead = compare_lines(scores, best, worst).mean
        is_close = gap.high <= lead / 4
        relation = "at most" if is_close else "which may be more than"
        text = (
            f"{over_worst}; {gap}, {relation} a quarter of the "
            f"lead of {best} over {worst}, {100 * lead:.1f} points."
        )
        holds = over_worst.is_reproduced and is_close
        return dataclasses.replace(ordered(scores, [over_worst]), verdict=text, holds=holds)

    return judge


def ordered(scores: Sequence[Score], orderings: Sequence[Ordering]) -> Outcome:
    """Returns the outcome of a study in which these orderings compare the scores."""
    score_rows = [row(score) for score in scores]
    return Outcome(
        over_epsilon(scores),
        columns=list(score_rows[0]),
        rows=[list(values.values()) for values in score_rows],
        **verdict(orderings),
    )


def row(score: Score) -> dict[str, Any]:
    """Returns a score as a row of numbers.csv."""
    test = score.test
    config = score.best
    final_values = [final_metric(run, "validation") for run in score.runs]
    validation = [value for value in final_values if value is not None]
    test_std = test.std(ddof=1) if len(test) > 1 else 0.0
    validation_mean = np.mean(validation) if validation else math.nan
    mean, low, high = interval(test)
    return {
        "line": score.line,
        "epsilon": score.epsilon,
        "noise multiplier": score.runs[0].plan["noise_multiplier"],
        "settings tried": len(score.tried) or 1,
        "server rate": config.server_learning_rate,
        "client rate": config.client_learning_rate,
        "momentum": config.server_momentum,
        "bands": config.bands,
        "seeds": len(test),
        "test mean": mean,
        "test low": low,
        "test high": high,
        "test std": test_std,
        "test min": test.min(),
        "test max": test.max(),
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
    values = [line, epsilon, rate]
    smoothed_accuracies = [validation_of(run, smoothed_over) for run in runs]
    for metric_values in (
        smoothed_accuracies,
        [value for value in test_values if value is not None],
    ):
        x = np.array(metric_values or [math.nan])
        spread = x.std(ddof=1) if len(x) > 1 else 0.0
        values += [len(metric_values), x.mean(), spread, x.min(), x.max()]
    return dict(zip(SETTING_COLUMNS, values, strict=True))


def diverged(run: Run) -> bool:
    """Returns whether a run's last validation loss is above its first, or not finite."""
    losses = [row["validation"]["loss"] for row in run.metrics if "validation" in row]
    return not losses[-1] <= losses[0]


def over_epsilon(scores: Sequence[Score]) -> list[Lines]:
    """Draws test accuracy over epsilon with intervals, where a line without noise is horizontal.

    If all scores have the same epsilon, it draws `levels`.
    """
    if len({score.target for score in scores}) == 1:
        return levels(scores)
    series = {}
    for line in dict.fromkeys(s.line for s in scores):
        line_scores = [score for score in scores if score.line == line]
        line_scores.sort(key=lambda score: score.epsilon)
        intervals = np.array([interval(score.test) for score in line_scores]).T
        series[line] = Line([score.epsilon for score in line_scores], *intervals)
    ticks = sorted({round(s.epsilon, 2) for s in scores if math.isfinite(s.epsilon)})
    return [Lines(series, "epsilon", "test accuracy", log="x", ticks=ticks, percent=True)]


def levels(scores: Sequence[Score]) -> list[Lines]:
    """Draws the accuracy of each line as a point with its interval."""
    series = {s.line: Line([i], *np.array([interval(s.test)]).T) for i, s in enumerate(scores)}
    epsilons = dict.fromkeys(f"epsilon {plain(s.epsilon)}" for s in scores if s.epsilon < math.inf)
    return [
        Lines(series, points=True, title=", ".join(epsilons), ylabel="test accuracy", percent=True)
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
    rows = []
    for score in scores:
        curves = [validation_curve(run) for run in score.runs]
        for seed, curve in enumerate(curves, start=1):
            for t, value in zip(*curve, strict=True):
                setting = (score.line, score.epsilon, score.best.server_learning_rate, seed)
                rows.append((*setting, int(t), float(value)))
        rounds = curves[0][0]
        values_by_round = np.array([values for _, values in curves]).T
        intervals = np.array([interval(values) for values in values_by_round])
        line = Line(rounds[rounds >= first], *intervals[rounds >= first].T)
        panels.setdefault(score.epsilon, {})[score.line] = line
    figure: list[Lines] = []
    for epsilon, series in panels.items():
        figure.append(
            Lines(
                series,
                "round",
                "" if figure else "validation accuracy",
                title="no noise" if math.isinf(epsilon) else f"epsilon {plain(epsilon)}",
                percent=True,
                at=decay,
            )
        )
    return {
        "columns": ("line", "epsilon", "server rate", "seed", "round", "validation accuracy"),
        "rows": rows,
        "figure": figure,
    }
