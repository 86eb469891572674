"""Figures and tables of the multi-epoch paper on StackOverflow, judged from the studies in
`stackoverflow`.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np
import scipy.stats

from fedmf.experiments.papers import accuracy, clause
from fedmf.experiments.papers import comparisons as compare
from fedmf.experiments.papers import stackoverflow as grids
from fedmf.experiments.papers.clause import Clause
from fedmf.experiments.papers.comparisons import short
from fedmf.experiments.papers.drawing import Line, Lines
from fedmf.experiments.papers.item import Outcome
from fedmf.experiments.papers.printed_accuracies import beside_printed
from fedmf.experiments.papers.stackoverflow_sizes import Size
from fedmf.experiments.papers.study import Score, trained
from fedmf.intervals import CONFIDENCE, bootstrap_interval
from fedmf.reports.groups import final_metric
from fedmf.reports.text import plain
from fedmf.runs.folder import Run

# The caption of Figure 3 of the multi-epoch paper says that the best mechanism is within 2% of
# training without noise at epsilon 8.8.
WITHIN = 0.02
WITHIN_EPSILON = 8.841
# The two server rates of Figure 12 of the multi-epoch paper, and the epsilon at which it says that
# the lower rate is better.
LOWER_RATE, LARGER_RATE = 0.5, 1.0
LOWER_RATE_EPSILON = 2.0
_BASELINES = (grids.MF_1_1, grids.HONAKER_6, grids.SGDM)
# Reasons why clauses on printed accuracies are not judged, at smaller sizes and at the papers'
# size.
_REAL_DATA = "The printed accuracies are of the real data and the published model."
_NO_TOLERANCE = "They stand beside ours in numbers.csv; the paper does not say how near is equal."


@trained(grids.epochs, "multi-epoch-figure-3")
def figure_3(scores: Sequence[Score], size: Size) -> Outcome:
    """Judges the order of the accuracies in Figure 3 of the multi-epoch paper, by its caption and
    by Section 5.3.
    """
    line_pairs = [
        *((grids.MF_6_6, line) for line in (grids.MF_1_6, *_BASELINES)),
        *((grids.MF_1_6, line) for line in _BASELINES),
        (grids.GDM, grids.MF_6_6),
    ]
    clauses = compare.compare_at_every_epsilon(scores, line_pairs)
    return accuracy.judged(
        scores, [*clauses, _near_no_noise(scores), *_less_epsilon_suffices(scores)]
    )


def _near_no_noise(scores: Sequence[Score]) -> Clause:
    """Judges whether MF6,6e is within 2% of training without noise at epsilon 8.8."""
    clause_text = (
        f"At epsilon {short(WITHIN_EPSILON)}, {grids.MF_6_6} is within {WITHIN:.0%} (relative) of "
        "training without noise"
    )
    best_score = compare.score_of(scores, grids.MF_6_6, WITHIN_EPSILON)
    unnoised_score = compare.score_of(scores, grids.UNNOISED, None)
    if best_score is None or unnoised_score is None:
        return clause.not_judged(clause_text, compare.NOT_TRAINED)
    return compare.judge_differences(
        clause_text, best_score.test, (1 - WITHIN) * unnoised_score.test
    )


def _less_epsilon_suffices(scores: Sequence[Score]) -> list[Clause]:
    """Judges whether MF6,6e at epsilon 8.84 is above the earlier methods at epsilon 17.7."""
    largest_target = max(compare.targets(scores))
    best_score = compare.score_of(scores, grids.MF_6_6, WITHIN_EPSILON)
    clauses = []
    for line in _BASELINES:
        clause_text = (
            f"{grids.MF_6_6} at epsilon {short(WITHIN_EPSILON)} is more accurate than {line} at "
            f"epsilon {short(largest_target)}"
        )
        former_score = compare.score_of(scores, line, largest_target)
        if best_score is None or former_score is None or largest_target <= WITHIN_EPSILON:
            clauses.append(clause.not_judged(clause_text, compare.NOT_TRAINED))
        else:
            clauses.append(
                compare.judge_differences(clause_text, best_score.test, former_score.test)
            )
    return clauses


@trained(grids.epochs, "multi-epoch-table-4")
def table_4(scores: Sequence[Score], size: Size) -> Outcome:
    """Judges whether accuracy rises with epsilon, and is larger with GDM than with SGDM
    (multi-epoch paper, Table 4).

    The outcome has the rows of Tables 4 and 5, with the mean, deviation, minimum, maximum and
    number of runs for each rate, beside the printed ones.
    """
    clauses = compare.compare_at_every_epsilon(scores, [(grids.GDM, grids.SGDM)])
    return _table(scores, size, clauses, (grids.SGDM, grids.GDM))


@trained(grids.epochs, "multi-epoch-table-5")
def table_5(scores: Sequence[Score], size: Size) -> Outcome:
    """Judges whether accuracy rises with epsilon, and orders the mechanisms as in Table 5 of the
    multi-epoch paper.
    """
    line_pairs = [
        (grids.MF_6_6, grids.MF_1_6),
        (grids.MF_1_6, grids.MF_1_1),
        (grids.MF_1_6, grids.HONAKER_6),
    ]
    clauses = compare.compare_at_every_epsilon(scores, line_pairs)
    table_lines = (grids.HONAKER_6, grids.MF_1_1, grids.MF_1_6, grids.MF_6_6)
    return _table(scores, size, clauses, table_lines)


def _table(
    scores: Sequence[Score], size: Size, clauses: Sequence[Clause], lines: Sequence[str]
) -> Outcome:
    """Returns the outcome of a table, and judges whether the accuracy of each of `lines` rises with
    epsilon.
    """
    rising_clauses = []
    for line in lines:
        for smaller, larger in itertools.pairwise(compare.targets(scores)):
            rising_text = (
                f"{line} is more accurate at epsilon {short(larger)} than at {short(smaller)}"
            )
            better_score = compare.score_of(scores, line, larger)
            worse_score = compare.score_of(scores, line, smaller)
            if better_score is None or worse_score is None:
                rising_clauses.append(clause.not_judged(rising_text, compare.NOT_TRAINED))
            else:
                rising_clauses.append(
                    compare.judge_differences(rising_text, better_score.test, worse_score.test)
                )
    unjudged_reason = _REAL_DATA if size.corpus else _NO_TOLERANCE
    printed_clause = clause.not_judged("The accuracies are the printed ones", unjudged_reason)
    outcome = accuracy.judged(scores, [*clauses, *rising_clauses, printed_clause])
    return dataclasses.replace(outcome, **beside_printed(**accuracy.by_rate(scores)))


@trained(grids.epochs, "multi-epoch-figure-12")
def figure_12(scores: Sequence[Score], size: Size) -> Outcome:
    """Plots the validation accuracy of the runs of Figure 3 over the server rates, and judges
    which mechanisms tolerate the larger rate.
    """
    series: dict[float, dict[str, Line]] = {}
    table_rows = []
    for score in scores:
        if score.target is None:
            continue
        accuracies = {
            rate: [_validation(run) for run in runs]
            for rate, runs in compare.runs_by_rate(score).items()
        }
        for rate, values in accuracies.items():
            table_rows.append(
                (score.line, score.epsilon, rate, len(values), float(np.mean(values)))
            )
        intervals = np.array([bootstrap_interval(values) for values in accuracies.values()]).T
        accuracy_line = Line(list(accuracies), *intervals)
        series.setdefault(score.epsilon, {})[score.line] = accuracy_line
    epsilon_panels = [
        Lines(
            lines,
            "server rate",
            "validation accuracy" if i == 0 else "",
            title=f"epsilon {plain(epsilon)}",
            log="x",
            ticks=sorted({rate for accuracy_line in lines.values() for rate in accuracy_line.x}),
            percent=True,
        )
        for i, (epsilon, lines) in enumerate(series.items())
    ]
    return Outcome(
        epsilon_panels,
        columns=("line", "epsilon", "server rate", "runs", "validation accuracy"),
        rows=table_rows,
        clauses=[*_tolerates_larger_rates(scores), *_lower_rates_are_better(scores)],
    )


def _validation(run: Run) -> float:
    """Returns the final validation accuracy of a run, which is 0 if the model is not finite."""
    validation_accuracy = final_metric(run, "validation")
    return (
        validation_accuracy
        if validation_accuracy is not None and math.isfinite(validation_accuracy)
        else 0.0
    )


def _gains(scores: Sequence[Score], line: str, target: float) -> np.ndarray:
    """Returns by seed what a line gains in test accuracy by the larger rate. It is empty if the
    rates have different seeds.
    """
    line_score = compare.score_of(scores, line, target)
    larger, lower = (compare.tests_at_rate(line_score, rate) for rate in (LARGER_RATE, LOWER_RATE))
    return larger - lower if len(larger) == len(lower) else np.array([])


def _tolerates_larger_rates(scores: Sequence[Score]) -> list[Clause]:
    """Judges whether MF6,6e loses less, or gains more, by the larger rate than other lines."""
    clauses = []
    for other_line in (grids.SGDM, grids.HONAKER_6):
        for target in compare.targets(scores):
            clause_text = (
                f"At epsilon {short(target)}, from server rate {LOWER_RATE:g} to {LARGER_RATE:g} "
                f"{grids.MF_6_6} gains more, or loses less, accuracy than {other_line}"
            )
            gains = [_gains(scores, line, target) for line in (grids.MF_6_6, other_line)]
            clauses.append(compare.judge_differences(clause_text, *gains))
    return clauses


def _lower_rates_are_better(scores: Sequence[Score]) -> list[Clause]:
    """Judges whether the lower rate is better at epsilon 2 for all lines."""
    clauses = []
    for line in dict.fromkeys(score.line for score in scores if score.target is not None):
        clause_text = (
            f"At epsilon {short(LOWER_RATE_EPSILON)}, {line} is more accurate with server rate "
            f"{LOWER_RATE:g} than with {LARGER_RATE:g}"
        )
        clauses.append(compare.judge(clause_text, -_gains(scores, line, LOWER_RATE_EPSILON)))
    return clauses


@trained(grids.epochs, "multi-epoch-figure-11")
def figure_11(scores: Sequence[Score], size: Size) -> Outcome:
    """Plots the number of zeroed updates by round in the runs of MF6,6e of Figure 3, and judges
    whether it grows with noise and with the rate.
    """
    counts: dict[tuple[float, float], list[list[int]]] = {}
    for score in scores:
        if score.line == grids.MF_6_6:
            for rate, runs in compare.runs_by_rate(score).items():
                counts[score.epsilon, rate] = [[row["zeroed"] for row in r.metrics] for r in runs]
    mean_counts = {setting: np.mean(runs, axis=0) for setting, runs in counts.items()}
    run_totals = {setting: np.sum(runs, axis=1) for setting, runs in counts.items()}
    epsilons = sorted({epsilon for epsilon, _ in run_totals})
    server_rates = sorted({rate for _, rate in run_totals})
    clauses = []
    for rate in server_rates:
        for smaller, larger in itertools.pairwise(epsilons):
            clause_text = (
                f"With server rate {short(rate)}, more updates are zeroed at epsilon "
                f"{short(smaller)} than at {short(larger)}"
            )
            clauses.append(_more_zeroed(clause_text, run_totals, (smaller, rate), (larger, rate)))
    for epsilon in epsilons:
        for smaller, larger in itertools.pairwise(server_rates):
            clause_text = (
                f"At epsilon {short(epsilon)}, more updates are zeroed with server rate "
                f"{short(larger)} than with {short(smaller)}"
            )
            clauses.append(
                _more_zeroed(clause_text, run_totals, (epsilon, larger), (epsilon, smaller))
            )
    zeroed_panel = Lines(
        {
            f"epsilon {plain(e)}, rate {plain(rate)}": Line(np.arange(len(y)) + 1, y)
            for (e, rate), y in mean_counts.items()
        },
        "round",
        "updates zeroed, mean of runs",
        ylim=(0, None),
    )
    return Outcome(
        [zeroed_panel],
        columns=("epsilon", "server rate", "runs", "round", "zeroed"),
        rows=[
            (*setting, len(counts[setting]), t, float(value))
            for setting, y in mean_counts.items()
            for t, value in enumerate(y)
        ],
        clauses=clauses,
    )


def _more_zeroed(
    text: str,
    totals: dict[tuple[float, float], np.ndarray],
    more: tuple[float, float],
    fewer: tuple[float, float],
) -> Clause:
    """Judges whether the runs of one setting have more zeroed updates than those of another."""
    none: np.ndarray = np.array([])
    larger, smaller = totals.get(more, none), totals.get(fewer, none)
    has_updates = larger.any() or smaller.any()
    if len(larger) and len(smaller) and not has_updates:
        return clause.not_judged(text, "No update is zeroed in either: none is huge at this scale.")
    return compare.judge_differences(text, larger, smaller, scale=1.0, unit="updates a run")


@trained(grids.divergence, "multi-epoch-table-2")
def table_2(scores: Sequence[Score], size: Size) -> Outcome:
    """Counts the runs that diverge although huge updates are zeroed, and judges their share."""
    table_rows = []
    share_by_label = {}
    num_diverged = 0
    for i, s in enumerate(scores):
        server_rate = s.best.server_learning_rate
        num_line_diverged = sum(map(accuracy.diverged, s.runs))
        table_rows.append((s.line, s.epsilon, server_rate, num_line_diverged, len(s.runs)))
        label = f"{s.line}, epsilon {plain(s.epsilon)}, rate {plain(server_rate)}"
        share_by_label[label] = Line([i], [num_line_diverged / len(s.runs)])
        num_diverged += num_line_diverged
    num_runs = sum(len(s.runs) for s in scores)
    diverged_interval = scipy.stats.binomtest(num_diverged, num_runs).proportion_ci(CONFIDENCE)
    with_zeroing = clause.from_interval(
        "With zeroing most runs converge",
        low=0.5 - diverged_interval.high,
        high=0.5 - diverged_interval.low,
        evidence=f"{num_diverged} of {num_runs} diverge, 95% interval of the share "
        f"{diverged_interval.low:.0%} to {diverged_interval.high:.0%}",
    )
    without_zeroing = clause.not_judged(
        "Without zeroing more runs diverge",
        "Without it fedmf's clip bounds huge updates, of which the clip of the paper's code makes "
        "NaN, so that fedmf's runs do not diverge for this reason.",
    )
    return Outcome(
        [Lines(share_by_label, points=True, ylabel="share of runs that diverged", percent=True)],
        columns=("mechanism", "epsilon", "server rate", "diverged", "runs"),
        rows=table_rows,
        clauses=[with_zeroing, without_zeroing],
    )


@trained(grids.unnoised, "multi-epoch-figure-10")
def figure_10(scores: Sequence[Score], size: Size) -> Outcome:
    """Plots the accuracy without noise by clients per round, beside private runs, and judges the
    text of Appendix F.2 and Section 5.3.
    """
    cohort_lines = sorted(
        (s.best.cohort_size, s.line) for s in scores if not s.best.cooldown and s.target is None
    )
    clauses = [
        compare.compare_lines(scores, more, fewer, target=None)
        for (_, fewer), (_, more) in itertools.pairwise(cohort_lines)
    ]
    clauses += _larger_rates_help(scores)
    line_pairs = [(grids.MF_6_6, grids.MF_PREFIX), (grids.MF_6_6, grids.MF_CONSTANT)]
    clauses += compare.compare_at_every_epsilon(scores, line_pairs)
    clauses.append(_cooldown_helps_more_with_noise(scores))
    return accuracy.judged(scores, clauses)


def _larger_rates_help(scores: Sequence[Score]) -> list[Clause]:
    """Judges whether the larger rate is better without noise, and for MF6,6e at the largest
    epsilon.
    """
    unnoised_scores = [s for s in scores if s.target is None and s.best.cooldown]
    most_clients = max(unnoised_scores, key=lambda s: s.best.cohort_size)
    largest_target = max(compare.targets(scores))
    clauses = []
    for score in (most_clients, compare.score_of(scores, grids.MF_6_6, largest_target)):
        if score is None:
            continue
        clause_text = (
            f"{compare.opening(scores, score.target)}, {score.line} is more accurate with server "
            f"rate {LARGER_RATE:g} than with {LOWER_RATE:g}"
        )
        test_accuracies = [compare.tests_at_rate(score, rate) for rate in (LARGER_RATE, LOWER_RATE)]
        clauses.append(compare.judge_differences(clause_text, *test_accuracies))
    return clauses


def _cooldown_helps_more_with_noise(scores: Sequence[Score]) -> Clause:
    """Judges whether cool-down gains more at the smallest epsilon than at the largest."""
    privacy_targets = compare.targets(scores)
    smallest, largest = privacy_targets[0], privacy_targets[-1]
    clause_text = (
        f"Cool-down gains {grids.MF_6_6} more accuracy at epsilon {short(smallest)} than at "
        f"{short(largest)}"
    )
    cooldown_gains = []
    for target in (smallest, largest):
        with_cooldown = compare.score_of(scores, grids.MF_6_6, target)
        constant_rate = compare.score_of(scores, grids.MF_CONSTANT, target)
        if with_cooldown is None or constant_rate is None:
            return clause.not_judged(clause_text, compare.NOT_TRAINED)
        cooldown_gains.append(with_cooldown.test - constant_rate.test)
    return compare.judge_differences(clause_text, *cooldown_gains)
