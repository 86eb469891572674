"""Figures and verdicts over the scores of a study: accuracy with intervals over seeds, and
differences of the same seeds.
"""

import contextlib
import dataclasses
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import scipy.stats
from matplotlib.figure import Figure

from fedmf.experiments.papers.study import Score
from fedmf.reports.canvas import INK, SOFT, canvas, in_percent, legend_above
from fedmf.reports.groups import simulation_note, validation_curve
from fedmf.reports.text import duration, plain
from fedmf.runs.folder import Run

# Of lines in a figure, in order: Okabe and Ito's colours, which differ for colour-blind readers
# too, and their markers.
STYLES = tuple(
    zip(
        "#D55E00 #0072B2 #009E73 #CC79A7 #E69F00 #56B4E9 #222222 #8c6bb1 #7f7f7f".split(),
        "osD^vPX*<",
        strict=True,
    )
)
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
    tail = (
        scipy.stats.norm.cdf(-math.sqrt(n / (n - 1)) * scipy.stats.t.ppf((1 + LEVEL) / 2, n - 1))
        if n > 1
        else 0.0
    )
    means = x[np.random.default_rng(0).integers(0, n, (_RESAMPLES, n))].mean(1)
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(x.mean()), float(low), float(high)


@dataclasses.dataclass(frozen=True)
class Order:
    """That one line is above another: the mean difference, seed by seed, over the targets
    that both have.

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
        said = (
            ""
            if self.shown
            else ", reversed"
            if self.seeds > 1 and self.high < 0
            else ", not resolved"
        )
        ends = f"{100 * self.low:.1f} to {100 * self.high:.1f}"
        return f"{self.better} over {self.worse} {100 * self.mean:+.1f} points ({ends}{said})"


def order(scores: Iterable[Score], better: str, worse: str, *, from_epsilon: float = 0.0) -> Order:
    """Compares two lines at their common targets; those with an epsilon below
    `from_epsilon` do not count.

    Seeds have the same initial model, cohorts and order of examples in both lines, and noise of
    their own.
    """
    of = {
        name: {s.target: s.test for s in scores if s.line == name and s.epsilon >= from_epsilon}
        for name in (better, worse)
    }
    common = [target for target in of[better] if target in of[worse]]
    if not common:  # one of them has a single level, such as no noise
        first, second = (np.mean(list(of[name].values()), axis=0) for name in (better, worse))
        differences = first - second
    else:
        differences = np.mean([of[better][target] - of[worse][target] for target in common], axis=0)
    return Order(better, worse, len(differences), *interval(differences))


def verdict(orders: Sequence[Order]) -> tuple[str, bool]:
    """A sentence, and whether every order shows."""
    shown = sum(one.shown for one in orders)
    seeds = orders[0].seeds
    text = (
        f"{shown} of {len(orders)} orders show, over {seeds} seed{'s' * (seeds != 1)}: "
        f"{'; '.join(map(str, orders))}."
    )
    return text, shown == len(orders)


COLUMNS = (
    "line", "epsilon", "noise multiplier", "settings tried", "server rate", "client rate",
    "momentum", "bands", "seeds",
    "test mean", "test low", "test high", "test std", "test min", "test max", "validation mean",
    "zeroed updates", "diverged runs",
)  # fmt: skip


def rows(scores: Sequence[Score]) -> list[tuple[Any, ...]]:
    """A row of numbers.csv for each score."""
    found = []
    for score in scores:
        test, config = score.test, score.best
        validation = [
            final
            for run in score.runs
            if (final := (run.result or {})["validation"].get(metric(run))) is not None
        ]
        found.append(
            (
                score.line, score.epsilon, score.runs[0].plan["noise_multiplier"],
                len(score.tried) or 1,
                config.server_learning_rate, config.client_learning_rate, config.server_momentum,
                config.bands, len(test),
                *interval(test), float(test.std(ddof=1)) if len(test) > 1 else 0.0, test.min(),
                test.max(),
                float(np.mean(validation)) if validation else math.nan,
                sum(map(zeroed, score.runs)), sum(map(diverged, score.runs)),
            )
        )  # fmt: skip
    return found


def cost(scores: Iterable[Score]) -> str:
    """How many runs there are, tuning included, and how long they trained in all."""
    seconds = {
        run.path: float((run.result or {})["seconds"])
        for score in scores
        for run in (*score.tried, *score.runs)
    }
    return f"{len(seconds)} runs, which trained for {duration(sum(seconds.values()))} in all"


def metric(run: Run) -> str:
    """The headline metric of a run's task."""
    return str(run.plan["task"]["headline_metric"])


def zeroed(run: Run) -> int:
    """Updates that counted as zero, in all rounds."""
    return sum(row["zeroed"] for row in run.metrics)


def diverged(run: Run) -> bool:
    """Whether the model ends worse than it was seen first: its last loss on the validation set is
    above the first, or not finite.
    """
    losses = [row["validation"]["loss"] for row in run.metrics if "validation" in row]
    return not losses[-1] <= losses[0]


def styles(scores: Sequence[Score]) -> dict[str, tuple[str, str]]:
    """Colour and marker of each line, in order of appearance."""
    lines = dict.fromkeys(score.line for score in scores)
    return {line: STYLES[i % len(STYLES)] for i, line in enumerate(lines)}


def noted(
    height: float, scores: Iterable[Score]
) -> contextlib.AbstractContextManager[tuple[Figure, io.BytesIO]]:
    """A canvas with a footnote on the cohorts that the runs simulate."""
    return canvas(height, simulation_note([run for score in scores for run in score.runs]))


def over_epsilon(scores: Sequence[Score]) -> bytes:
    """Test accuracy over epsilon, with intervals; a line without noise is a level.

    At one epsilon it is `levels`.
    """
    if len({score.target for score in scores}) == 1:
        return levels(scores)
    with noted(3.4, scores) as (figure, out):
        ax = figure.subplots()
        look = styles(scores)
        for line, (color, mark) in look.items():
            own = sorted((s for s in scores if s.line == line), key=lambda s: s.epsilon)
            ends = np.array([interval(s.test) for s in own])
            if math.isinf(own[0].epsilon):
                ax.axhline(ends[0, 0], color=SOFT, linestyle=(0, (5, 3)), linewidth=1.2, label=line)
                ax.axhspan(ends[0, 1], ends[0, 2], color=SOFT, alpha=0.15, linewidth=0)
                continue
            x = [s.epsilon for s in own]
            ax.plot(
                x, ends[:, 0], color=color, marker=mark, markersize=4.5, linewidth=1.5, label=line
            )
            ax.fill_between(x, ends[:, 1], ends[:, 2], color=color, alpha=0.2, linewidth=0)
            ax.vlines(x, ends[:, 1], ends[:, 2], color=color, linewidth=1.2)
        ticks = sorted({round(s.epsilon, 2) for s in scores if math.isfinite(s.epsilon)})
        if ticks:
            ax.set_xscale("log")
            ax.minorticks_off()
            ax.set_xticks(ticks, labels=[plain(x) for x in ticks])
        ax.set(xlabel="epsilon", ylabel="test accuracy")
        in_percent(ax)
        legend_above(figure, *ax.get_legend_handles_labels())
    return out.getvalue()


def levels(scores: Sequence[Score]) -> bytes:
    """Accuracy of each line as a point with its interval."""
    with noted(0.9 + 0.32 * len(scores), scores) as (figure, out):
        ax = figure.subplots()
        for y, (score, (color, mark)) in enumerate(
            zip(scores, styles(scores).values(), strict=True)
        ):
            mean, low, high = interval(score.test)
            ax.plot([low, high], [y, y], color=color, linewidth=2)
            ax.plot([mean], [y], marker=mark, color=color, markersize=6)
        ax.set_yticks(range(len(scores)), labels=[score.line for score in scores])
        ax.invert_yaxis()
        epsilons = {score.epsilon for score in scores if math.isfinite(score.epsilon)}
        ax.set_xlabel(
            "test accuracy" + "".join(f", epsilon {plain(epsilon)}" for epsilon in epsilons)
        )
        ax.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%")
    return out.getvalue()


def by_round(scores: Sequence[Score], *, first: int = 0, decay: int | None = None) -> bytes:
    """Validation accuracy by round, the mean over the seeds with its interval;
    a panel for each target.

    Args:
      scores: of the lines.
      first: round from which on it is drawn.
      decay: round of a vertical line, where the learning rate begins to fall.
    """
    targets = list(dict.fromkeys(s.target for s in scores))
    with noted(2.9, scores) as (figure, out):
        panels = figure.subplots(1, len(targets), sharey=True, squeeze=False)[0]
        look = styles(scores)
        for ax, target in zip(panels, targets, strict=True):
            for score in (s for s in scores if s.target == target):
                curves = [validation_curve(run) for run in score.runs]
                rounds = curves[0][0]
                kept = rounds >= first
                ends = np.array(
                    [interval(values) for values in np.array([values for _, values in curves]).T]
                )[kept]
                color, mark = look[score.line]
                ax.plot(
                    rounds[kept],
                    ends[:, 0],
                    color=color,
                    marker=mark,
                    markevery=0.25,
                    markersize=4,
                    linewidth=1.4,
                    label=score.line,
                )
                ax.fill_between(
                    rounds[kept], ends[:, 1], ends[:, 2], color=color, alpha=0.18, linewidth=0
                )
            if decay is not None:
                ax.axvline(decay, color=INK, linewidth=0.8, linestyle=":")
            if len(targets) > 1:
                epsilon = next(s.epsilon for s in scores if s.target == target)
                ax.set_title("no noise" if math.isinf(epsilon) else f"epsilon {plain(epsilon)}")
            ax.set_xlabel("round")
            in_percent(ax)
        panels[0].set_ylabel("validation accuracy")
        handles = {
            label: handle
            for ax in panels
            for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
        }
        legend_above(figure, list(handles.values()), list(handles))
    return out.getvalue()
