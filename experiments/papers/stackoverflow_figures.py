"""Figures and tables of the StackOverflow experiments, judged from the studies in
`stackoverflow`.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from fedmf.experiments.papers import accuracy
from fedmf.experiments.papers import stackoverflow as grids
from fedmf.experiments.papers.drawing import Line, Lines
from fedmf.experiments.papers.item import Outcome
from fedmf.experiments.papers.printed_accuracies import beside_printed
from fedmf.experiments.papers.stackoverflow_sizes import DENISOV_NOISE, Size
from fedmf.experiments.papers.study import Score, trained
from fedmf.reports.groups import final_metric, validation_curve
from fedmf.reports.text import plain

_DENISOV = (grids.MOMENTUM, grids.PREFIX, grids.FULL, grids.ONLINE)
trained(grids.denisov, "denisov-figure-2")(
    accuracy.compared(
        *itertools.pairwise(_DENISOV), (grids.MOMENTUM, grids.ONLINE), (grids.PREFIX, grids.ONLINE)
    )
)
trained(grids.schedules, "denisov-figure-3")(
    accuracy.compared(
        (grids.M_INSIDE, grids.M_CONSTANT),
        (grids.M_INSIDE, grids.AFTER),
        (grids.AFTER, grids.CONSTANT),
        (grids.M_MORE, grids.M_INSIDE),
    )
)
_epochs = accuracy.compared(
    (grids.MF_6_6, grids.MF_1_6),
    (grids.MF_6_6, grids.MF_1_1),
    (grids.MF_6_6, grids.SGDM),
    (grids.MF_6_6, grids.HONAKER_6),
    (grids.GDM, grids.MF_6_6),
    (grids.UNNOISED, grids.MF_6_6),
)
trained(grids.epochs, "multi-epoch-figure-3")(_epochs)


@trained(grids.epochs, "multi-epoch-table-4", "multi-epoch-table-5")
def multi_epoch_tables(scores: Sequence[Score], size: Size) -> Outcome:
    """Judges Figure 3 of the multi-epoch paper, with the rows of Tables 4 and 5: mean, deviation,
    minimum, maximum and number of runs for each rate, beside the printed ones.
    """
    return dataclasses.replace(_epochs(scores, size), **beside_printed(**accuracy.by_rate(scores)))


trained(grids.phones, "banded-figure-5")(
    accuracy.compared(
        (grids.BANDED, grids.MULTI),
        (grids.MULTI, grids.TREE),
        (grids.TREE, grids.SGD),
        (grids.BANDED, grids.SINGLE),
    )
)
trained(grids.centre, "banded-figure-1")(
    accuracy.compared((grids.BANDED, grids.MULTI), (grids.BANDED, grids.SGD))
)


@trained(grids.denisov, "denisov-table-4")
def denisov_table_4(scores: Sequence[Score], size: Size) -> Outcome:
    """Compares the best settings with the printed ones, and judges whether rates and momentum fall
    as the noise grows.
    """
    rows = []
    steps = dict[str, dict[float, float]]()
    for score in scores:
        best_setting = score.best
        noise = score.target or 0.0
        computed_setting = (
            best_setting.server_learning_rate,
            best_setting.client_learning_rate,
            best_setting.server_momentum,
        )
        printed_setting = grids.DENISOV_TABLE_4[score.line][DENISOV_NOISE.index(noise)]
        rows.append((score.line, score.epsilon, noise, *computed_setting, *printed_setting))
        steps.setdefault(score.line, {})[noise] = computed_setting[0] / (1 - computed_setting[2])
    num_equal = sum(row[3:6] == row[6:] for row in rows)
    falls = sum(step[max(step)] < step[min(step)] for step in steps.values())
    settings = ("server rate", "client rate", "momentum")
    panel = Lines(
        {line: Line(*zip(*sorted(step.items()), strict=True)) for line, step in steps.items()},
        "noise multiplier",
        "server rate / (1 - momentum)",
        log="xy",
        ticks=size.noise,
    )
    return Outcome(
        [panel],
        "The server's long-run step, rate / (1 - momentum), is smaller at the largest "
        f"noise than at the smallest for {falls} of {len(steps)} mechanisms; {num_equal} of "
        f"{len(rows)} best settings are the printed ones.",
        falls == len(steps),
        columns=(
            "line",
            "epsilon",
            "noise multiplier",
            *settings,
            *(f"printed {s}" for s in settings),
        ),
        rows=rows,
    )


@trained(grids.decays, "denisov-figure-6")
def denisov_6(scores: Sequence[Score], size: Size) -> Outcome:
    """Draws the validation accuracy over the last 748 of 2048 rounds.

    It judges which line is ahead before the rates fall, and which in the second half of the fall.
    """
    rounds = scores[0].best.rounds
    fall = rounds - round(rounds / 4)
    comparisons = []
    for when, better, worse, first, last in (
        ("before the fall", grids.AFTER, grids.M_INSIDE, 0, fall),
        ("at its end", grids.M_INSIDE, grids.AFTER, (fall + rounds) // 2, rounds),
    ):
        lead = _between(scores, better, first, last) - _between(scores, worse, first, last)
        lead_interval = accuracy.interval(lead)
        comparisons.append(accuracy.Ordering(f"{when}, {better}", worse, len(lead), *lead_interval))
    first = rounds - round(rounds * 748 / 2048)
    return Outcome(
        **accuracy.by_round(scores, first=first, decay=fall), **accuracy.verdict(comparisons)
    )


def _between(scores: Sequence[Score], line: str, first: int, last: int) -> np.ndarray:
    """Returns the mean validation accuracy of each seed from round `first` to round `last`.

    One validation alone is noisy, since it has few sentences.
    """
    runs = next(score.runs for score in scores if score.line == line)
    curves = [validation_curve(run) for run in runs]
    return np.array([v[(rounds >= first) & (rounds <= last)].mean() for rounds, v in curves])


@trained(grids.epochs, "multi-epoch-figure-12")
def multi_epoch_12(scores: Sequence[Score], size: Size) -> Outcome:
    """Draws the validation accuracy of the runs of Figure 3 with seed 0, for every learning
    rate.
    """
    found: dict[float, dict[str, dict[float, float]]] = {}
    for score in scores:
        if score.target is not None:
            found.setdefault(score.epsilon, {})[score.line] = {
                run.config.server_learning_rate: final_metric(run, "validation") or 0.0
                for run in score.tried or score.runs[:1]
            }
    best_rates = {
        (line, e): max(of, key=lambda rate: (of[rate], rate))
        for e, lines in found.items()
        for line, of in lines.items()
    }
    other_lines = (grids.SGDM, grids.HONAKER_6)
    num_above = sum(
        best_rates[grids.MF_6_6, e] >= best_rates[other, e] for e in found for other in other_lines
    )
    return Outcome(
        [
            Lines(
                {line: Line(*zip(*sorted(of.items()), strict=True)) for line, of in lines.items()},
                "server rate",
                "validation accuracy" if i == 0 else "",
                title=f"epsilon {plain(e)}",
                log="x",
                ticks=sorted({rate for of in lines.values() for rate in of}),
                percent=True,
            )
            for i, (e, lines) in enumerate(found.items())
        ],
        f"The best rate of {grids.MF_6_6} is at least that of {grids.SGDM} and of "
        f"{grids.HONAKER_6} in {num_above} of {2 * len(found)} cases (one seed a rate, so this is "
        "no test).",
        num_above == 2 * len(found),
        columns=("line", "epsilon", "server rate", "validation accuracy"),
        rows=[
            (line, e, rate, value)
            for e, lines in found.items()
            for line, of in lines.items()
            for rate, value in of.items()
        ],
    )


@trained(grids.epochs, "multi-epoch-figure-11")
def multi_epoch_11(scores: Sequence[Score], size: Size) -> Outcome:
    """Draws the number of zeroed updates by round, in the runs of Figure 3.

    It should be larger with more noise and larger rates.
    """
    counts: dict[tuple[float, float], list[list[int]]] = {}
    for score in scores:
        if score.line == grids.MF_6_6:
            for run in (*score.tried, *score.runs):
                setting = (score.epsilon, run.config.server_learning_rate)
                counts.setdefault(setting, []).append([row["zeroed"] for row in run.metrics])
    mean = {setting: np.mean(runs, axis=0) for setting, runs in counts.items()}
    noisiest_epsilon = min(e for e, _ in mean)
    most_zeroed = mean[
        noisiest_epsilon, max(rate for e, rate in mean if e == noisiest_epsilon)
    ].sum()
    least = mean[max(mean, key=lambda key: (key[0], -key[1]))].sum()
    panel = Lines(
        {
            f"epsilon {plain(e)}, rate {plain(rate)}": Line(np.arange(len(y)) + 1, y)
            for (e, rate), y in mean.items()
        },
        "round",
        "updates zeroed, mean of runs",
        ylim=(0, None),
    )
    return Outcome(
        [panel],
        f"With the most noise and the largest rate {most_zeroed:.1f} updates of a run are zeroed, "
        f"with the least of both {least:.1f}.",
        most_zeroed > least,
        columns=("epsilon", "server rate", "runs", "round", "zeroed"),
        rows=[
            (*setting, len(counts[setting]), t, float(value))
            for setting, y in mean.items()
            for t, value in enumerate(y)
        ],
    )


@trained(grids.divergence, "multi-epoch-table-2")
def multi_epoch_table_2(scores: Sequence[Score], size: Size) -> Outcome:
    """Counts the runs that diverge although huge updates are zeroed."""
    rows = []
    series = {}
    count = 0
    for i, s in enumerate(scores):
        rate = s.best.server_learning_rate
        diverged = sum(map(accuracy.diverged, s.runs))
        rows.append((s.line, s.epsilon, rate, diverged, len(s.runs)))
        label = f"{s.line}, epsilon {plain(s.epsilon)}, rate {plain(rate)}"
        series[label] = Line([i], [diverged / len(s.runs)])
        count += diverged
    runs = sum(len(s.runs) for s in scores)
    return Outcome(
        [Lines(series, points=True, ylabel="share of runs that diverged", percent=True)],
        f"With zeroing {count} of {runs} runs diverge. Without it fedmf's clip bounds huge "
        "updates, of which the clip of the paper's code makes NaN.",
        2 * count < runs,
        columns=("mechanism", "epsilon", "server rate", "diverged", "runs"),
        rows=rows,
    )


@trained(grids.unnoised, "multi-epoch-figure-10")
def multi_epoch_10(scores: Sequence[Score], size: Size) -> Outcome:
    """Draws the accuracy without noise by clients per round, beside private runs."""
    cohort_lines = sorted(
        (s.best.cohort_size, s.line) for s in scores if s.best.cooldown and s.target is None
    )
    pairs = [(more, fewer) for (_, fewer), (_, more) in itertools.pairwise(cohort_lines)]
    return accuracy.compared(*pairs)(scores, size)


trained(grids.nu_noise, "slides-nu-dp-ftrl-on-stackoverflow")(
    accuracy.matched(grids.NU, grids.MULTI, grids.SGD)
)


@trained(grids.phones, "banded-figure-12")
def banded_12(scores: Sequence[Score], size: Size) -> Outcome:
    """Draws the validation accuracy by round of the best settings of Figure 5 (a)."""
    other_lines = (grids.TREE, grids.SINGLE, grids.SGD)
    comparisons = [accuracy.compare_lines(scores, grids.BANDED, other) for other in other_lines]
    return Outcome(**accuracy.by_round(scores), **accuracy.verdict(comparisons))
