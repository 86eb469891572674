"""Clauses about trained models, judged by differences between runs that are paired by seed.

Runs of the same seed have the same initial model, cohorts and order of examples, and independent
noise. A clause says that a quantity is positive, such as the lead of one line over another at one
epsilon. It is reproduced if the 95% interval of the quantity over seeds lies above 0, contradicted
if the interval lies below 0, and inconclusive otherwise. It is Student's interval and not the
bootstrap's of the figures, because the latter misses more often for few seeds.
"""

import math
import operator
from collections.abc import Iterable, Sequence

import numpy as np

from fedmf.experiments.papers import clause
from fedmf.experiments.papers.clause import Clause
from fedmf.experiments.papers.study import Score
from fedmf.intervals import student_interval
from fedmf.reports.groups import final_metric
from fedmf.runs.folder import Run

ONE_SEED = "Fewer than two seeds train what this clause compares, which gives no interval."
NOT_TRAINED = "This scale does not train all lines of the clause."
SAME_RUNS = "The best settings of both lines are the same mechanism and rates, so they share runs."
# A line is as accurate as the best one if it loses at most this share of the lead of the best line
# over the worst one. The papers' words for this have no number.
MATCHING_SHARE = 0.25


def judge(
    text: str, values: Sequence[float] | np.ndarray, *, scale: float = 100.0, unit: str = "points"
) -> Clause:
    """Judges a clause which says that a quantity is positive, from its value for each seed.

    Args:
      text: the clause.
      values: quantity by seed.
      scale, unit: factor and unit of the quantity in words.
    """
    if len(values) < 2:
        return clause.not_judged(text, ONE_SEED)
    mean, low, high = (scale * x for x in student_interval(values))
    mean_text = f"{mean:+.1f} {unit}".rstrip()
    evidence = f"{mean_text}, 95% interval {low:.1f} to {high:.1f}, {len(values)} seeds"
    return clause.from_interval(text, low=low, high=high, evidence=evidence)


def judge_differences(
    text: str,
    larger: Sequence[float] | np.ndarray,
    smaller: Sequence[float] | np.ndarray,
    *,
    scale: float = 100.0,
    unit: str = "points",
) -> Clause:
    """Judges a clause which says that one quantity is larger than another, both by seed."""
    if len(larger) != len(smaller):
        return clause.not_judged(text, ONE_SEED)
    return judge(text, np.subtract(larger, smaller), scale=scale, unit=unit)


def score_of(scores: Sequence[Score], line: str, target: float | None) -> Score | None:
    """Returns the score of a line at a privacy target, or None if the study does not have it."""
    for score in scores:
        if (score.line, score.target) == (line, target):
            return score
    return None


def targets(scores: Sequence[Score]) -> list[float]:
    """Returns the privacy targets of a study in ascending order."""
    return sorted({score.target for score in scores if score.target is not None})


def short(number: float) -> str:
    """Returns an epsilon or a rate with three digits, as the papers print it."""
    return f"{number:.3g}"


def opening(scores: Sequence[Score], target: float | None) -> str:
    """Returns the first words of a clause about a privacy target, such as "At epsilon 8.84"."""
    if target is None:
        return "Without noise"
    epsilon = next(score.epsilon for score in scores if score.target == target)
    return f"At epsilon {short(epsilon)}"


def compare_lines(
    scores: Sequence[Score], better: str, worse: str, *, target: float | None
) -> Clause:
    """Judges whether one line is more accurate on the test set than another at a privacy target.

    A line without noise, which has no target, is compared at every target.
    """
    clause_text = (
        f"{opening(scores, target)}, {_quoted(better)} is more accurate than {_quoted(worse)}"
    )
    better_score = score_of(scores, better, target) or score_of(scores, better, None)
    worse_score = score_of(scores, worse, target) or score_of(scores, worse, None)
    if better_score is None or worse_score is None:
        return clause.not_judged(clause_text, NOT_TRAINED)
    # Two lines may share their runs. For example, if momentum 0 is the best for both, the mechanism
    # that is optimised for momentum is the one for prefix sums.
    if better_score.runs and all(map(operator.is_, better_score.runs, worse_score.runs)):
        return clause.not_judged(clause_text, SAME_RUNS)
    return judge_differences(clause_text, better_score.test, worse_score.test)


def compare_at_every_epsilon(
    scores: Sequence[Score],
    pairs: Iterable[tuple[str, str]],
    *,
    above: float = 0.0,
    up_to: float = math.inf,
) -> list[Clause]:
    """Judges (better, worse) pairs of lines at every epsilon above `above` and up to `up_to`."""
    epsilon_by_target = {score.target: score.epsilon for score in scores}
    return [
        compare_lines(scores, better, worse, target=target)
        for better, worse in pairs
        for target in targets(scores)
        if above < epsilon_by_target[target] <= up_to
    ]


def match_at_every_epsilon(
    scores: Sequence[Score], line: str, best: str, worst: str
) -> list[Clause]:
    """Judges whether a line is as accurate as the best one, and more accurate than the worst one,
    at every epsilon.
    """
    clauses = compare_at_every_epsilon(scores, [(line, worst)])
    for target in targets(scores):
        clause_text = (
            f"{opening(scores, target)}, {_quoted(line)} loses at most a "
            f"quarter of the lead of {_quoted(best)} over {_quoted(worst)}"
        )
        line_score, best_score, worst_score = (
            score_of(scores, name, target) for name in (line, best, worst)
        )
        if line_score is None or best_score is None or worst_score is None:
            clauses.append(clause.not_judged(clause_text, NOT_TRAINED))
            continue
        accuracy_lead = best_score.test - worst_score.test
        accuracy_loss = best_score.test - line_score.test
        clauses.append(judge(clause_text, MATCHING_SHARE * accuracy_lead - accuracy_loss))
    return clauses


def runs_by_rate(score: Score) -> dict[float, list[Run]]:
    """Returns the runs of a line by server rate, in ascending order of rates and then of seeds."""
    runs: dict[float, list[Run]] = {}
    # In `score.tried`, runs that serve to choose the setting come before runs of later seeds.
    for run in (*score.tried, *score.runs):
        runs.setdefault(run.config.server_learning_rate, []).append(run)
    return dict(sorted(runs.items()))


def tests_at_rate(score: Score | None, rate: float) -> np.ndarray:
    """Returns the test accuracies of a line's runs with a server rate, by seed."""
    rate_runs = [] if score is None else runs_by_rate(score).get(rate, [])
    test_values = [final_metric(run, "test") for run in rate_runs]
    # Runs that serve to choose the setting are not evaluated on the test set.
    tested_values = [value for value in test_values if value is not None]
    return np.array([value if math.isfinite(value) else 0.0 for value in tested_values])


def _quoted(line: str) -> str:
    """Returns the name of a line, in quotation marks if it reads like words of the sentence."""
    return f'"{line}"' if line[0].islower() else line
