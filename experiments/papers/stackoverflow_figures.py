"""Figures and tables of the StackOverflow experiments, from the grids in `stackoverflow`."""

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.stats

from fedmf.experiments.papers import accuracy
from fedmf.experiments.papers import stackoverflow as grids
from fedmf.experiments.papers import stackoverflow_sizes as sizes
from fedmf.experiments.papers.item import Item, Outcome, Request, Scale
from fedmf.experiments.papers.study import Score, Study, run_study
from fedmf.reports.canvas import legend_above
from fedmf.reports.text import plain
from fedmf.runs.folder import Run

_Pairs = Sequence[tuple[str, str]]


def _made(
    request: Request,
    grid: Callable[[sizes.Size], Study],
    pairs: _Pairs,
    draw: Callable[[Sequence[Score]], bytes],
    *,
    lines: Iterable[str] = (),
) -> Outcome:
    """The scores of a grid, the verdict on (better, worse) pairs of lines, and a figure; of some
    `lines` alone, if given.
    """
    scores, reduced = _scores(request, grid)
    wanted = set(lines)
    scores = [score for score in scores if not wanted or score.line in wanted]
    text, holds = accuracy.verdict(
        [accuracy.order(scores, better, worse) for better, worse in pairs]
    )
    return _outcome(
        reduced, scores, accuracy.COLUMNS, accuracy.rows(scores), draw(scores), text, holds
    )


def _scores(request: Request, grid: Callable[[sizes.Size], Study]) -> tuple[list[Score], str]:
    """The scores of a grid, and what is smaller than in the paper."""
    size = sizes.size_of(grid.__name__, request.scale)
    scores = run_study(_study(grid, request.scale), request)
    less = (
        [f"the first {request.test_sentences:,} test sentences"] if request.test_sentences else []
    )
    if request.scale != "full":
        less = [sizes.reduced(grid.__name__, size), *less, accuracy.cost(scores)]
    return scores, "; ".join(less)


def _study(grid: Callable[[sizes.Size], Study], scale: Scale) -> Study:
    """The grid of an item at a scale."""
    return grid(sizes.size_of(grid.__name__, scale))


def _outcome(
    reduced: str,
    scores: Sequence[Score],
    columns: Sequence[str],
    rows: Any,
    figure: bytes,
    verdict: str,
    holds: bool,
) -> Outcome:
    return Outcome(
        columns=columns,
        rows=rows,
        figure=figure,
        verdict=verdict,
        holds=holds,
        reduced=reduced,
        seeds=tuple(range(len(scores[0].runs) + 1)),
    )


def denisov_2(request: Request) -> Outcome:
    """Test accuracy over epsilon of four mechanisms."""
    order = [grids.MOMENTUM, grids.PREFIX, grids.FULL, grids.ONLINE]
    pairs = [
        *itertools.pairwise(order),
        (grids.MOMENTUM, grids.ONLINE),
        (grids.PREFIX, grids.ONLINE),
    ]
    return _made(request, grids.denisov, pairs, accuracy.over_epsilon)


def denisov_table_4(request: Request) -> Outcome:
    """The best settings beside the printed ones, and whether rates and momentum fall
    as the noise grows.
    """
    scores, reduced = _scores(request, grids.denisov)
    table = []
    for score in scores:
        best, noise = score.best, score.target or 0.0
        printed = grids.DENISOV_TABLE_4[score.line][sizes.DENISOV_NOISE.index(noise)]
        ours = (best.server_learning_rate, best.client_learning_rate, best.server_momentum)
        table.append((score.line, score.epsilon, noise, *ours, *printed))
    same = sum(row[3:6] == row[6:] for row in table)
    steps = {
        line: [
            row[3] / (1 - row[5])
            for row in sorted((r for r in table if r[0] == line), key=lambda r: r[2])
        ]
        for line in dict.fromkeys(row[0] for row in table)
    }
    falls = sum(step[-1] < step[0] for step in steps.values())
    with accuracy.noted(2.9, scores) as (figure, out):
        ax = figure.subplots()
        looks = zip(steps.items(), accuracy.styles(scores).values(), (11, 8.5, 6, 4), strict=True)
        for (line, step), (color, mark), size in looks:  # smaller ones lie on larger ones
            x = sorted(row[2] for row in table if row[0] == line)
            ax.plot(
                x, step, color=color, marker=mark, markersize=size, linewidth=size / 4, label=line
            )
        ax.set(
            xscale="log",
            yscale="log",
            xlabel="noise multiplier",
            ylabel="server rate / (1 - momentum)",
        )
        ax.minorticks_off()
        ax.set_xticks(x, labels=map(plain, x))
        levels = sorted({value for step in steps.values() for value in step})
        ax.set_yticks(levels, labels=map(plain, levels))
        legend_above(figure, *ax.get_legend_handles_labels())
    verdict = (
        "The server's long-run step, rate / (1 - momentum), is smaller at the largest noise than "
        f"at the smallest for {falls} of "
        f"{len(steps)} mechanisms; {same} of {len(table)} best settings are the printed ones."
    )
    settings = ("server rate", "client rate", "momentum")
    columns = (
        "line",
        "epsilon",
        "noise multiplier",
        *settings,
        *(f"printed {name}" for name in settings),
    )
    return _outcome(reduced, scores, columns, table, out.getvalue(), verdict, falls == len(steps))


def denisov_3(request: Request) -> Outcome:
    """Test accuracy by where momentum and the rates' fall are."""
    pairs = [
        (grids.M_INSIDE, grids.M_CONSTANT),
        (grids.M_INSIDE, grids.AFTER),
        (grids.AFTER, grids.CONSTANT),
        (grids.M_MORE, grids.M_INSIDE),
    ]
    return _made(request, grids.schedules, pairs, accuracy.levels)


def denisov_6(request: Request) -> Outcome:
    """Validation accuracy over the last 748 of 2048 rounds; who is ahead in the body of training,
    and in the second half of the fall.
    """
    scores, reduced = _scores(request, grids.decays)
    rounds = scores[0].best.rounds
    fall = rounds - round(rounds / 4)
    orders = []
    for when, better, worse, first, last in (
        ("before the fall", grids.AFTER, grids.M_INSIDE, 0, fall),
        ("at its end", grids.M_INSIDE, grids.AFTER, (fall + rounds) // 2, rounds),
    ):
        ahead = _between(scores, better, first, last) - _between(scores, worse, first, last)
        orders.append(
            accuracy.Order(f"{when}, {better}", worse, len(ahead), *accuracy.interval(ahead))
        )
    text, holds = accuracy.verdict(orders)
    figure = accuracy.by_round(scores, first=rounds - round(rounds * 748 / 2048), decay=fall)
    return _outcome(reduced, scores, *_curves(scores), figure, text, holds)


def _between(scores: Sequence[Score], line: str, first: int, last: int) -> np.ndarray:
    """Mean validation accuracy of each seed from round `first` to `last`: a single validation is of
    few sentences.
    """
    runs = next(score.runs for score in scores if score.line == line)
    found = [accuracy.validation_curve(run) for run in runs]
    return np.array(
        [values[(rounds >= first) & (rounds <= last)].mean() for rounds, values in found]
    )


def _curves(scores: Sequence[Score]) -> tuple[Sequence[str], list[tuple[Any, ...]]]:
    rows = []
    for score in scores:
        for seed, run in enumerate(score.runs, start=1):
            for t, value in zip(*accuracy.validation_curve(run), strict=True):
                rows.append(
                    (
                        score.line,
                        score.epsilon,
                        score.best.server_learning_rate,
                        seed,
                        int(t),
                        float(value),
                    )
                )
    return ("line", "epsilon", "server rate", "seed", "round", "validation accuracy"), rows


def multi_epoch_3(request: Request) -> Outcome:
    """Test accuracy over epsilon; Figure 12 and Tables 4 and 5 are the same runs,
    and in numbers.csv.
    """
    pairs = [
        (grids.MF_6_6, grids.MF_1_6),
        (grids.MF_6_6, grids.MF_1_1),
        (grids.MF_6_6, grids.SGDM),
        (grids.MF_6_6, grids.HONAKER_6),
        (grids.GDM, grids.MF_6_6),
        (grids.UNNOISED, grids.MF_6_6),
    ]
    return _made(request, grids.epochs, pairs, accuracy.over_epsilon)


def multi_epoch_12(request: Request) -> Outcome:
    """Figure 3 with every rate: the validation accuracy of the runs with seed 0."""
    scores, reduced = _scores(request, grids.epochs)
    private = [score for score in scores if score.target is not None]
    table = [
        (
            score.line,
            score.epsilon,
            run.config.server_learning_rate,
            float((run.result or {})["validation"][accuracy.metric(run)]),
        )
        for score in private
        for run in score.tried or score.runs[:1]
    ]
    epsilons = list(dict.fromkeys(row[1] for row in table))
    with accuracy.noted(2.9, scores) as (figure, out):
        panels = figure.subplots(1, len(epsilons), sharey=True, squeeze=False)[0]
        for ax, epsilon in zip(panels, epsilons, strict=True):
            for line, (color, mark) in accuracy.styles(private).items():
                points = sorted(
                    (rate, value) for name, e, rate, value in table if (name, e) == (line, epsilon)
                )
                ax.plot(
                    *zip(*points, strict=True),
                    color=color,
                    marker=mark,
                    markersize=4.5,
                    linewidth=1.4,
                    label=line,
                )
            ax.set(xscale="log", xlabel="server rate", title=f"epsilon {plain(epsilon)}")
            rates = sorted({row[2] for row in table})
            ax.minorticks_off()
            ax.set_xticks(rates, labels=[plain(rate) for rate in rates])
            accuracy.in_percent(ax)
        panels[0].set_ylabel("validation accuracy")
        legend_above(figure, *panels[0].get_legend_handles_labels())
    best = {
        (line, e): max((v, rate) for name, x, rate, v in table if (name, x) == (line, e))[1]
        for line, e, *_ in table
    }
    above = sum(
        best[grids.MF_6_6, e] >= best[other, e]
        for e in epsilons
        for other in (grids.SGDM, grids.HONAKER_6)
    )
    verdict = (
        f"The best rate of {grids.MF_6_6} is at least that of {grids.SGDM} and of "
        f"{grids.HONAKER_6} in {above} of "
        f"{2 * len(epsilons)} cases (one seed a rate, so this is no test)."
    )
    columns = ("line", "epsilon", "server rate", "validation accuracy")
    return _outcome(
        reduced, scores, columns, table, out.getvalue(), verdict, above == 2 * len(epsilons)
    )


def _rate(run: Run) -> float:
    return run.config.server_learning_rate


def multi_epoch_11(request: Request) -> Outcome:
    """Updates that were zeroed, by round, in the runs of Figure 3: more with more noise
    and larger rates.
    """
    scores, reduced = _scores(request, grids.epochs)
    private = [score for score in scores if score.line == grids.MF_6_6]
    table, total = [], {}
    with accuracy.noted(2.9, scores) as (figure, out):
        ax = figure.subplots()
        runs = [(score.epsilon, run) for score in private for run in (*score.tried, *score.runs)]
        settings = dict.fromkeys((epsilon, _rate(run)) for epsilon, run in runs)
        epsilons = list(dict.fromkeys(epsilon for epsilon, _ in settings))
        for i, (epsilon, rate) in enumerate(settings):
            counts = [
                [row["zeroed"] for row in run.metrics]
                for e, run in runs
                if (e, _rate(run)) == (epsilon, rate)
            ]
            mean = np.mean(counts, axis=0)
            color = accuracy.STYLES[i % len(accuracy.STYLES)][0]
            ax.plot(
                np.arange(len(mean)) + 1,
                mean,
                color=color,
                linestyle=("-", "--", ":")[epsilons.index(epsilon)],
                linewidth=1.3,
                label=f"epsilon {plain(epsilon)}, rate {plain(rate)}",
            )
            total[epsilon, rate] = float(mean.sum())
            table += [(epsilon, rate, len(counts), t, float(value)) for t, value in enumerate(mean)]
        ax.set(xlabel="round", ylabel="updates zeroed, mean of runs")
        ax.set_ylim(bottom=0)
        legend_above(figure, *ax.get_legend_handles_labels())
    noisiest, calmest = min(total), max(total, key=lambda key: (key[0], -key[1]))
    most = max(rate for epsilon, rate in total if epsilon == noisiest[0])
    ours, least = total[noisiest[0], most], total[calmest]
    verdict = (
        f"With the most noise and the largest rate {ours:.1f} updates of a run are zeroed, with "
        f"the least of both {least:.1f}."
    )
    return _outcome(
        reduced,
        scores,
        ("epsilon", "server rate", "runs", "round", "zeroed"),
        table,
        out.getvalue(),
        verdict,
        ours > least,
    )


def multi_epoch_table_2(request: Request) -> Outcome:
    """Runs that diverge, with zeroing and without."""
    scores, reduced = _scores(request, grids.divergence)
    table = [
        (
            *(
                s.line.partition(",6e")[0],
                s.line.endswith("no zeroing"),
                s.epsilon,
                s.best.server_learning_rate,
            ),
            *(sum(map(accuracy.diverged, s.runs)), len(s.runs)),
        )
        for s in scores
    ]
    with accuracy.noted(2.6, scores) as (figure, out):
        ax = figure.subplots()
        cases = list(dict.fromkeys((row[0], row[2], row[3]) for row in table))
        for without, (color, mark) in zip((False, True), accuracy.STYLES, strict=False):
            shares = [
                next(r[4] / r[5] for r in table if (r[0], r[2], r[3], r[1]) == (*case, without))
                for case in cases
            ]
            ax.plot(
                shares,
                range(len(cases)),
                mark,
                color=color,
                markersize=8 - 3 * without,
                label="no zeroing" if without else "zeroing",
            )
        ax.set_yticks(
            range(len(cases)),
            labels=[f"{name}, epsilon {plain(e)}, rate {plain(rate)}" for name, e, rate in cases],
        )
        ax.set(xlabel="share of runs that diverged", xlim=(-0.05, 1.05))
        ax.margins(y=0.3)
        legend_above(figure, *ax.get_legend_handles_labels())
    count = {
        without: sum(row[4] for row in table if row[1] == without) for without in (False, True)
    }
    runs = sum(row[5] for row in table) // 2
    # Fisher's exact test: how often as many more or more diverge without zeroing where
    # it does nothing.
    cells = [[n, runs - n] for n in (count[True], count[False])]
    _, p = scipy.stats.fisher_exact(cells, alternative="greater")
    verdict = (
        f"With the clip of the paper's own code {count[False]} of {runs} runs diverge with "
        f"zeroing, {count[True]} of {runs} without "
        f"(p = {p:.1g}, Fisher's exact test). fedmf's clip bounds huge updates in any case."
    )
    columns = ("mechanism", "without zeroing", "epsilon", "server rate", "diverged", "runs")
    return _outcome(
        reduced,
        scores,
        columns,
        table,
        out.getvalue(),
        verdict,
        p < 0.05 and 2 * count[False] < count[True],
    )


def multi_epoch_10(request: Request) -> Outcome:
    """Accuracy without noise by clients per round."""
    scores, _ = _scores(request, grids.unnoised)
    cohorts = sorted({score.best.cohort_size for score in scores})
    names = [
        next(s.line for s in scores if s.best.cohort_size == cohort and s.best.cooldown)
        for cohort in cohorts
    ]
    pairs = [(more, fewer) for fewer, more in itertools.pairwise(names)]
    return _made(request, grids.unnoised, pairs, accuracy.levels)


def banded_5(request: Request) -> Outcome:
    """Test accuracy over epsilon for phones."""
    pairs = [
        (grids.BANDED, grids.MULTI),
        (grids.MULTI, grids.TREE),
        (grids.TREE, grids.SGD),
        (grids.BANDED, grids.SINGLE),
    ]
    return _made(request, grids.phones, pairs, accuracy.over_epsilon)


def banded_12(request: Request) -> Outcome:
    """Validation accuracy by round, of the best settings of Figure 5 (a)."""
    scores, reduced = _scores(request, grids.phones)
    text, holds = accuracy.verdict(
        [
            accuracy.order(scores, grids.BANDED, other)
            for other in (grids.TREE, grids.SINGLE, grids.SGD)
        ]
    )
    return _outcome(reduced, scores, *_curves(scores), accuracy.by_round(scores), text, holds)


def banded_1(request: Request) -> Outcome:
    """Test accuracy over epsilon where clients are drawn."""
    pairs = [(grids.BANDED, grids.MULTI), (grids.BANDED, grids.SGD)]
    return _made(request, grids.centre, pairs, accuracy.over_epsilon)


_WHY = (
    "At scale small it trains a small LSTM on a synthetic corpus; scale full takes "
    "StackOverflow's file in --data."
)
_MAKERS: Mapping[str, Callable[[Request], Outcome]] = {
    "denisov | Figure 2": denisov_2,
    "denisov | Table 4": denisov_table_4,
    "denisov | Figure 3": denisov_3,
    "denisov | Figure 6": denisov_6,
    "multi-epoch | Figure 3": multi_epoch_3,
    "multi-epoch | Figure 12": multi_epoch_12,
    "multi-epoch | Table 4": multi_epoch_3,
    "multi-epoch | Table 5": multi_epoch_3,
    "multi-epoch | Figure 11": multi_epoch_11,
    "multi-epoch | Table 2": multi_epoch_table_2,
    "multi-epoch | Figure 10": multi_epoch_10,
    "banded | Figure 5": banded_5,
    "banded | Figure 12": banded_12,
    "banded | Figure 1": banded_1,
}
# The grid, and seconds at scale small; figures of the same runs train them once.
_LISTED = """
    denisov | Figure 2 | denisov | 1100 | \
        The optimum of the momentum matrix, then of prefix sums, is above both trees at every \
        epsilon.
    denisov | Table 4 | denisov | 1100 | \
        The best settings of Table 3's grid: rates and momentum fall with noise.
    denisov | Figure 3 | schedules | 1150 | \
        A fall of the rate helps, most inside the mechanism; more clients help again.
    denisov | Figure 6 | decays | 1100 | \
        Momentum and fall inside the mechanism are behind at first and ahead at the end.
    multi-epoch | Figure 3 | epochs | 900 | \
        The optimum for six epochs is ahead of all, at epsilon 8.8 within 2% of no noise.
    multi-epoch | Figure 12 | epochs | 900 | \
        Figure 3 with all learning rates: matrix factorisation tolerates larger ones.
    multi-epoch | Table 4 | epochs | 900 | \
        Accuracies of DP-SGDM and DP-GDM (with those of Table 5 in one CSV).
    multi-epoch | Table 5 | epochs | 900 | Accuracies of the factorisations.
    multi-epoch | Figure 11 | epochs | 900 | \
        More updates of huge magnitude are zeroed with more noise and larger rates.
    multi-epoch | Table 2 | divergence | 300 | Zeroing huge updates prevents most divergences.
    multi-epoch | Figure 10 | unnoised | 400 | \
        Without noise more clients a round and a larger rate help.
    banded | Figure 1 | centre | 500 | \
        With sampling banded matrices beat DP-SGD and the multi-epoch optimum (b; a is Figure 10).
    banded | Figure 5 | phones | 700 | \
        For phones banded matrices are the most accurate (a; the data of b are not public).
    banded | Figure 12 | phones | 700 | Convergence of all runs of Figure 5 (a).
"""
ITEMS = tuple(
    Item(
        name=f"{source}-{number.lower().replace(' ', '-')}",
        source=source,
        number=number,
        claim=claim,
        state="trained at reduced scale",
        why=_WHY,
        make=_MAKERS[f"{source} | {number}"],
        study=functools.partial(_study, getattr(grids, grid)),
        seconds={"small": float(seconds)},
    )
    for source, number, grid, seconds, claim in (
        " ".join(line.split()).split(" | ") for line in _LISTED.strip().splitlines()
    )
)
