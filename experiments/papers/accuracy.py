"""Figures and verdicts over the scores of a study: accuracy with intervals over seeds, and
differences of the same seeds.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.stats

from fedmf.experiments.papers.drawing import Line, Lines
from fedmf.experiments.papers.item import Outcome, Request
from fedmf.experiments.papers.study import Judge, Score, Study, finished
from fedmf.reports.groups import final_metric, validation_curve
from fedmf.reports.text import plain
from fedmf.runs.folder import Run
from fedmf.sweeps.results import validation_of

_RESAMPLES = 4000
LEVEL = 0.95


def interval(values: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """Mean, and the ends of a bootstrap interval for it at `LEVEL`; of one value three times that.

    Percentiles of resampled means, expanded for few values (Hesterberg 2015, "What teachers should
    know about the bootstrap"): those at which a normal interval would be as wide as Student's. Of 6
    normal values it lies above the true mean in 3% of cases, of 4 in 7%.
    """
    x = np.asarray(values, float)
    n = len(x)
    tail = 0.0
    if n > 1:
        student = scipy.stats.t.ppf((1 + LEVEL) / 2, n - 1)
        tail = scipy.stats.norm.cdf(-math.sqrt(n / (n - 1)) * student)
    means = x[np.random.default_rng(0).integers(0, n, (_RESAMPLES, n))].mean(1)
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(x.mean()), float(low), float(high)


@dataclasses.dataclass(frozen=True)
class Order:
    """That one line is above another: the mean difference, seed by seed, over the targets that both
    have.

    Attributes:
      better, worse: the lines, as the paper orders them.
      seeds: how many.
      mean, low, high: of the difference; the ends are the interval's.
    """

    better: str
    worse: str
    seeds: int
    mean: float
    low: float
    high: float

    @property
    def shown(self) -> bool:
        """Whether the interval lies above 0. One seed shows nothing."""
        return self.seeds > 1 and self.low > 0

    def __str__(self) -> str:
        reversed_ = self.seeds > 1 and self.high < 0
        said = "" if self.shown else ", reversed" if reversed_ else ", not resolved"
        ends = f"{100 * self.low:.1f} to {100 * self.high:.1f}"
        return f"{self.better} over {self.worse} {100 * self.mean:+.1f} points ({ends}{said})"


def order(scores: Sequence[Score], better: str, worse: str, *, from_epsilon: float = 0.0) -> Order:
    """Compares two lines at their common targets; those with an epsilon below `from_epsilon` do not
    count.

    Seeds have the same initial model, cohorts and order of examples in both lines, and noise of
    their own.
    """
    first, second = (
        {s.target: s.test for s in scores if s.line == name and s.epsilon >= from_epsilon}
        for name in (better, worse)
    )
    common = [target for target in first if target in second]
    if common:
        differences = np.mean([first[target] - second[target] for target in common], axis=0)
    else:  # one of them has a single level, such as no noise
        differences = np.mean(list(first.values()), axis=0) - np.mean(list(second.values()), axis=0)
    return Order(better, worse, len(differences), *interval(differences))


def verdict(orders: Sequence[Order]) -> dict[str, Any]:
    """A sentence, and whether every order shows: `verdict` and `holds` of an `Outcome`."""
    shown = sum(one.shown for one in orders)
    seeds = orders[0].seeds
    text = (
        f"{shown} of {len(orders)} orders show, over {seeds} seed{'s' * (seeds != 1)}: "
        f"{'; '.join(map(str, orders))}."
    )
    return {"verdict": text, "holds": shown == len(orders)}


def compared(*pairs: tuple[str, str]) -> Judge:
    """Judges (better, worse) pairs of lines, and draws them over epsilon."""
    return lambda scores, size: ordered(scores, [order(scores, *pair) for pair in pairs])


def matched(line: str, best: str, worst: str) -> Judge:
    """Judges that `line` matches `best`: it is above `worst`, and what `best` is ahead of it is at
    most a quarter of the lead of `best` over `worst`, by the end of the interval.
    """

    def judge(scores: Sequence[Score], size: Any) -> Outcome:
        over = order(scores, line, worst)
        gap = order(scores, best, line)
        lead = order(scores, best, worst).mean
        close = gap.high <= lead / 4
        text = (
            f"{over}; {gap}, {'at most' if close else 'which may be more than'} a quarter of the "
            f"lead of {best} over {worst}, {100 * lead:.1f} points."
        )
        made = ordered(scores, [over])
        return dataclasses.replace(made, verdict=text, holds=over.shown and close)

    return judge


def ordered(scores: Sequence[Score], orders: Sequence[Order]) -> Outcome:
    """The scores, and whether they are in these orders."""
    table = [row(score) for score in scores]
    return Outcome(
        over_epsilon(scores),
        columns=list(table[0]),
        rows=[list(one.values()) for one in table],
        **verdict(orders),
    )


def row(score: Score) -> dict[str, Any]:
    """A row of numbers.csv."""
    test = score.test
    config = score.best
    found = [final_metric(run, "validation") for run in score.runs]
    validation = [value for value in found if value is not None]
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
        "test std": test.std(ddof=1) if len(test) > 1 else 0.0,
        "test min": test.min(),
        "test max": test.max(),
        "validation mean": np.mean(validation) if validation else math.nan,
        "zeroed updates": sum(r["zeroed"] for run in score.runs for r in run.metrics),
        "diverged runs": sum(map(diverged, score.runs)),
    }


SETTING = ("line", "epsilon", "server rate")
_OF_RUNS = ("runs", "mean", "std", "min", "max")
SETTING_COLUMNS = (
    *SETTING,
    *(f"validation {name}" for name in _OF_RUNS),
    *(f"test {name}" for name in _OF_RUNS),
)


def by_setting(study: Study, request: Request) -> list[dict[str, Any]]:
    """What a study's finished runs reached with each setting: validation, smoothed as for its
    tuning, and test.

    Epsilon is infinite without noise; of no run there is no mean.
    """
    return [
        _reached(line, config.server_learning_rate, runs, study.smoothed_over)
        for line, config, runs in finished(study, request)
    ]


def by_rate(scores: Sequence[Score]) -> dict[str, Any]:
    """What the runs of each server rate reached, tuning and reported: `columns` and `rows` of an
    `Outcome`.
    """
    rows = []
    for score in scores:
        of_rate: dict[float, list[Run]] = {}
        for run in (*score.tried, *score.runs):
            of_rate.setdefault(run.config.server_learning_rate, []).append(run)
        rows += [tuple(_reached(score.line, *of).values()) for of in sorted(of_rate.items())]
    return {"columns": SETTING_COLUMNS, "rows": rows}


def _reached(line: str, rate: float, runs: Sequence[Run], smoothed_over: int = 0) -> dict[str, Any]:
    """A row of `SETTING_COLUMNS`."""
    config = runs[0].config
    tested = [final_metric(run, "test") for run in runs]
    epsilon = config.epsilon or runs[0].plan["epsilon"] or math.inf
    values = [line, epsilon, rate]
    smoothed = [validation_of(run, smoothed_over) for run in runs]
    for found in (smoothed, [value for value in tested if value is not None]):
        x = np.array(found) if found else np.array([math.nan])
        spread = x.std(ddof=1) if len(x) > 1 else 0.0
        values += [len(found), x.mean(), spread, x.min(), x.max()]
    return dict(zip(SETTING_COLUMNS, values, strict=True))


def diverged(run: Run) -> bool:
    """Whether the model ends worse than it was seen first: its last loss on the validation set is
    above the first, or not finite.
    """
    losses = [row["validation"]["loss"] for row in run.metrics if "validation" in row]
    return not losses[-1] <= losses[0]


def over_epsilon(scores: Sequence[Score]) -> list[Lines]:
    """Test accuracy over epsilon, with intervals; a line without noise is a level.

    At one epsilon it is `levels`.
    """
    if len({score.target for score in scores}) == 1:
        return levels(scores)
    series = {}
    for line in dict.fromkeys(s.line for s in scores):
        own = sorted((s for s in scores if s.line == line), key=lambda s: s.epsilon)
        ends = np.array([interval(s.test) for s in own]).T
        series[line] = Line([s.epsilon for s in own], *ends)
    ticks = sorted({round(s.epsilon, 2) for s in scores if math.isfinite(s.epsilon)})
    return [Lines(series, "epsilon", "test accuracy", log="x", ticks=ticks, percent=True)]


def levels(scores: Sequence[Score]) -> list[Lines]:
    """Accuracy of each line as a point with its interval."""
    series = {s.line: Line([i], *np.array([interval(s.test)]).T) for i, s in enumerate(scores)}
    epsilons = dict.fromkeys(f"epsilon {plain(s.epsilon)}" for s in scores if s.epsilon < math.inf)
    return [
        Lines(series, points=True, title=", ".join(epsilons), ylabel="test accuracy", percent=True)
    ]


def by_round(
    scores: Sequence[Score], *, first: int = 0, decay: int | None = None
) -> dict[str, Any]:
    """Validation accuracy by round: a panel for each target with the mean over the seeds and its
    interval, and all values; `figure`, `columns` and `rows` of an `Outcome`.

    Args:
      scores: of the lines.
      first: round from which on it is drawn.
      decay: round of a vertical line, where the learning rate begins to fall.
    """
    panels: dict[float, dict[str, Line]] = {}
    table = []
    for score in scores:
        curves = [validation_curve(run) for run in score.runs]
        for seed, curve in enumerate(curves, start=1):
            for t, value in zip(*curve, strict=True):
                head = (score.line, score.epsilon, score.best.server_learning_rate, seed)
                table.append((*head, int(t), float(value)))
        rounds = curves[0][0]
        ends = np.array([interval(values) for values in np.array([v for _, v in curves]).T])
        line = Line(rounds[rounds >= first], *ends[rounds >= first].T)
        panels.setdefault(score.epsilon, {})[score.line] = line
    return {
        "columns": ("line", "epsilon", "server rate", "seed", "round", "validation accuracy"),
        "rows": table,
        "figure": [
            Lines(
                series,
                "round",
                "validation accuracy" if i == 0 else "",
                title="no noise" if math.isinf(epsilon) else f"epsilon {plain(epsilon)}",
                percent=True,
                at=decay,
            )
            for i, (epsilon, series) in enumerate(panels.items())
        ],
    }
