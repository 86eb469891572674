"""Figures and tables on StackOverflow of Denisov's paper, of the banded paper and of the slides,
judged from the studies in `stackoverflow`.
"""

import collections
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedmf.experiments.papers import accuracy, clause
from fedmf.experiments.papers import comparisons as compare
from fedmf.experiments.papers import stackoverflow as grids
from fedmf.experiments.papers.clause import Clause
from fedmf.experiments.papers.drawing import Line, Lines
from fedmf.experiments.papers.item import Outcome
from fedmf.experiments.papers.stackoverflow_sizes import DENISOV_NOISE, Size
from fedmf.experiments.papers.study import Score, trained
from fedmf.reports.groups import final_metric, validation_curve
from fedmf.runs.folder import Run

# Share of the gap between private and non-private training that Denisov et al. 2022 close with
# Figure 3 (Sec. 5).
CLOSED_SHARE = 2 / 3
# The highest epsilon of the banded paper at which its best banded mechanism differs from the dense
# optimum.
_CENTRE_EPSILON = 8.0


@trained(grids.denisov, "denisov-figure-2")
def denisov_2(scores: Sequence[Score], size: Size) -> Outcome:
    """Judges whether the two optimal mechanisms are more accurate than the two estimators of the
    tree at every epsilon (Denisov's paper, Figure 2).
    """
    lines_in_order = (grids.MOMENTUM, grids.PREFIX, grids.FULL, grids.ONLINE)
    line_pairs = [*itertools.pairwise(lines_in_order), (grids.MOMENTUM, grids.ONLINE)]
    clauses = compare.compare_at_every_epsilon(scores, [*line_pairs, (grids.PREFIX, grids.ONLINE)])
    return accuracy.judged(scores, clauses)


@trained(grids.schedules, "denisov-figure-3")
def denisov_3(scores: Sequence[Score], size: Size) -> Outcome:
    """Judges how much accuracy both schedules of the learning rate gain, the mechanisms that are
    optimised for them, and more clients.
    """
    line_pairs = [
        (grids.AFTER, grids.CONSTANT),
        (grids.M_AFTER, grids.M_CONSTANT),
        (grids.M_INSIDE, grids.M_CONSTANT),
        (grids.DECAY_AFTER, grids.CONSTANT),
        (grids.M_DECAY, grids.M_CONSTANT),
        (grids.M_INSIDE, grids.M_AFTER),
        (grids.M_INSIDE, grids.AFTER),
        (grids.M_DECAY, grids.DECAY_AFTER),
        (grids.MORE, grids.AFTER),
        (grids.M_MORE, grids.M_INSIDE),
    ]
    clauses = compare.compare_at_every_epsilon(scores, line_pairs)
    return accuracy.judged(scores, [*clauses, _closed_gap(scores)])


def _closed_gap(scores: Sequence[Score]) -> Clause:
    """Judges whether the techniques together close two thirds of the gap between the previous state
    of the art and training without noise.
    """
    clause_text = (
        f'"{grids.M_MORE}" closes more than two thirds of the gap between {grids.ONLINE} and '
        "training without noise"
    )
    accuracy_by_line = {score.line: score.test for score in scores}
    line_names = (grids.ONLINE, grids.M_MORE, grids.UNNOISED)
    if not set(line_names) <= set(accuracy_by_line):
        return clause.not_judged(clause_text, compare.NOT_TRAINED)
    former, best, unnoised = (accuracy_by_line[name] for name in line_names)
    return compare.judge_differences(clause_text, best - former, CLOSED_SHARE * (unnoised - former))


@trained(grids.phones, "banded-figure-5")
def banded_5(scores: Sequence[Score], size: Size) -> Outcome:
    """Judges whether BandMF is the most accurate at every epsilon, and multi-epoch MF above the
    mechanisms before it.
    """
    former_lines = (grids.TREE, grids.SINGLE)
    line_pairs = [
        *((grids.BANDED, line) for line in (grids.MULTI, *former_lines, grids.SGD)),
        *((grids.MULTI, line) for line in former_lines),
    ]
    clauses = compare.compare_at_every_epsilon(scores, line_pairs)
    production_clause = clause.not_judged(
        "In a production keyboard, BandMF is more accurate than Online TreeAgg (b)",
        "Its data are a company's and not public.",
    )
    return accuracy.judged(scores, [*clauses, production_clause])


@trained(grids.centre, "banded-figure-1")
def banded_1(scores: Sequence[Score], size: Size) -> Outcome:
    """Judges whether BandMF is the most accurate up to epsilon 8. At epsilon 16 the paper's BandMF
    is the dense optimum.
    """
    line_pairs = [(grids.BANDED, grids.MULTI), (grids.BANDED, grids.SGD)]
    clauses = compare.compare_at_every_epsilon(scores, line_pairs, up_to=_CENTRE_EPSILON)
    return accuracy.judged(scores, clauses)


class _Setting(NamedTuple):
    """Learning rates and momentum of one run of Table 3 of Denisov's paper."""

    server_rate: float
    client_rate: float
    momentum: float

    @property
    def long_run_step(self) -> float:
        """Distance that the server moves in the long run for each unit of the update."""
        return self.server_rate / (1 - self.momentum)


def _setting(run: Run) -> _Setting:
    """Returns the learning rates and the momentum of a run."""
    run_config = run.config
    return _Setting(
        run_config.server_learning_rate, run_config.client_learning_rate, run_config.server_momentum
    )


def _best_settings(score: Score) -> list[_Setting]:
    """Returns the setting with the best validation accuracy for each seed that trains all
    settings.
    """
    accuracies: dict[_Setting, list[float]] = collections.defaultdict(list)
    # In `score.tried`, runs that serve to choose the setting come before runs of later seeds.
    for run in (*score.tried, *score.runs):
        validation_accuracy = final_metric(run, "validation")
        accuracies[_setting(run)].append(
            -math.inf if validation_accuracy is None else validation_accuracy
        )
    settings = list(accuracies)
    num_seeds = min(map(len, accuracies.values()))
    validation_table = np.nan_to_num(
        [accuracies[setting][:num_seeds] for setting in settings], nan=-math.inf
    )
    return [settings[i] for i in np.argmax(validation_table, axis=0)]


@trained(grids.denisov, "denisov-table-4")
def denisov_table_4(scores: Sequence[Score], size: Size) -> Outcome:
    """Compares the best settings with the printed ones, and judges whether the server's long-run
    step and the momentum are smaller at the largest noise than at the smallest.
    """
    table_rows = []
    steps_by_line = dict[str, dict[float, float]]()
    best_settings = dict[str, dict[float, list[_Setting]]]()
    for score in scores:
        config = score.best
        noise_multiplier = score.target or 0.0
        best_setting = _Setting(
            config.server_learning_rate, config.client_learning_rate, config.server_momentum
        )
        printed_setting = grids.DENISOV_TABLE_4[score.line][DENISOV_NOISE.index(noise_multiplier)]
        table_rows.append(
            (score.line, score.epsilon, noise_multiplier, *best_setting, *printed_setting)
        )
        steps_by_line.setdefault(score.line, {})[noise_multiplier] = best_setting.long_run_step
        best_settings.setdefault(score.line, {})[noise_multiplier] = _best_settings(score)
    setting_names = ("server rate", "client rate", "momentum")
    steps_panel = Lines(
        {
            line: Line(*zip(*sorted(step.items()), strict=True))
            for line, step in steps_by_line.items()
        },
        "noise multiplier",
        "server rate / (1 - momentum)",
        log="xy",
        ticks=size.noise,
    )
    num_equal = sum(row[3:6] == row[6:] for row in table_rows)
    return Outcome(
        [steps_panel],
        columns=(
            "line",
            "epsilon",
            "noise multiplier",
            *setting_names,
            *(f"printed {s}" for s in setting_names),
        ),
        rows=table_rows,
        clauses=[
            *_falls_with_noise(best_settings, size),
            clause.not_judged(
                "The best settings are the printed ones",
                f"{num_equal} of {len(table_rows)} are; they were chosen with one seed, at this "
                "scale's size.",
            ),
        ],
    )


def _falls_with_noise(
    best_settings: Mapping[str, Mapping[float, Sequence[_Setting]]], size: Size
) -> list[Clause]:
    """Judges for each line whether the best step, momentum and client rate fall from the smallest
    noise to the largest. The best setting is that of each seed.
    """
    clauses = []
    for line, settings_by_noise in best_settings.items():
        least_noise = min(settings_by_noise)
        most_noise = max(settings_by_noise)
        noise_range = f"from noise multiplier {least_noise} to {most_noise}"
        settings_at_ends = [settings_by_noise[least_noise], settings_by_noise[most_noise]]
        step_text = f"The best server rate / (1 - momentum) of {line} falls {noise_range}"
        log_steps = [
            [math.log2(setting.long_run_step) for setting in end] for end in settings_at_ends
        ]
        clauses.append(
            compare.judge_differences(step_text, *log_steps, scale=1.0, unit="powers of two")
        )
        momentum_text = f"The best momentum of {line} falls {noise_range}"
        momentums = [[setting.momentum for setting in end] for end in settings_at_ends]
        clauses.append(compare.judge_differences(momentum_text, *momentums, scale=1.0, unit=""))
        rate_text = f"The best client rate of {line} falls {noise_range}"
        if len(size.client_rates) == 1:
            clauses.append(clause.not_judged(rate_text, "One client rate trains at this scale."))
            continue
        log_rates = [
            [math.log2(setting.client_rate) for setting in end] for end in settings_at_ends
        ]
        clauses.append(
            compare.judge_differences(rate_text, *log_rates, scale=1.0, unit="powers of two")
        )
    return clauses


@trained(grids.decays, "denisov-figure-6")
def denisov_6(scores: Sequence[Score], size: Size) -> Outcome:
    """Plots the validation accuracy over the last 748 of 2048 rounds.

    It judges which line is ahead before the rates fall, in all these rounds and in those that the
    picture shows, and which in the second half of the fall.
    """
    num_rounds = scores[0].best.rounds
    fall_round = num_rounds - round(num_rounds / 4)
    first_drawn = num_rounds - round(num_rounds * 748 / 2048)
    score_by_line = {score.line: score for score in scores}
    clauses = []
    body_text = "before the rates fall"
    middle_round = (fall_round + num_rounds) // 2
    for when, better, worse, first, last in (
        (f"In all rounds {body_text}", grids.AFTER, grids.M_INSIDE, 0, fall_round),
        (f"In the last rounds {body_text}", grids.AFTER, grids.M_INSIDE, first_drawn, fall_round),
        ("In the second half of the fall", grids.M_INSIDE, grids.AFTER, middle_round, num_rounds),
    ):
        clause_text = f'{when}, "{better}" has the higher validation accuracy'
        accuracies = [_between(score_by_line[line], first, last) for line in (better, worse)]
        clauses.append(compare.judge_differences(clause_text, *accuracies))
    return Outcome(
        **accuracy.by_round(scores, first=first_drawn, decay=fall_round), clauses=clauses
    )


def _between(score: Score, first: int, last: int) -> np.ndarray:
    """Returns the mean validation accuracy of each seed from round `first` to round `last`.

    One validation alone is noisy, since it has few sentences.
    """
    curves = [validation_curve(run) for run in score.runs]
    return np.array([v[(rounds >= first) & (rounds <= last)].mean() for rounds, v in curves])


@trained(grids.nu_noise, "slides-nu-dp-ftrl-on-stackoverflow")
def nu_figure(scores: Sequence[Score], size: Size) -> Outcome:
    """Judges whether nu-DP-FTRL of the slides is as accurate as the optimal mechanism."""
    clauses = compare.match_at_every_epsilon(scores, grids.NU, grids.MULTI, grids.SGD)
    return accuracy.judged(scores, clauses)


@trained(grids.blt, "fedmf-blt-trained")
def blt_trained(scores: Sequence[Score], size: Size) -> Outcome:
    """Judges whether BLT is as accurate as BandMF, and more accurate than TreeAgg."""
    clauses = compare.match_at_every_epsilon(scores, grids.BLT, grids.BANDED, grids.TREE)
    return accuracy.judged(scores, clauses)


@trained(grids.phones, "banded-figure-12")
def banded_12(scores: Sequence[Score], size: Size) -> Outcome:
    """Plots the validation accuracy by round of the best settings of Figure 5 (a), and judges its
    order over the last fifth of the rounds.
    """
    clauses = []
    for target in compare.targets(scores):
        epsilon_text = compare.opening(scores, target)
        for line in (grids.TREE, grids.SINGLE, grids.SGD):
            clause_text = (
                f"{epsilon_text}, {grids.BANDED} is above {line} over the last fifth of the rounds"
            )
            final_accuracies = [
                _between(score, score.best.rounds - score.best.rounds // 5, score.best.rounds)
                for name in (grids.BANDED, line)
                if (score := compare.score_of(scores, name, target)) is not None
            ]
            if len(final_accuracies) == 2:
                clauses.append(compare.judge_differences(clause_text, *final_accuracies))
            else:
                clauses.append(clause.not_judged(clause_text, compare.NOT_TRAINED))
    return Outcome(**accuracy.by_round(scores), clauses=clauses)
