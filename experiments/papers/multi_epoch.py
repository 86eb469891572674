"""Figures of the paper on multi-epoch matrix factorization that are made without training. See
Choquette-Choo et al. 2022.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import fedmf
from fedmf.experiments.papers import printed
from fedmf.experiments.papers.clause import Clause, from_numbers, not_judged
from fedmf.experiments.papers.drawing import Line, Lines, heat_maps
from fedmf.experiments.papers.error_tables import stamped_loss, stamped_row
from fedmf.experiments.papers.fits import epochs, fit, sums_once
from fedmf.experiments.papers.item import Outcome, Request, figure
from fedmf.experiments.papers.lower_bounds import trace_norm_bound
from fedmf.privacy.gaussian import gaussian_noise_multiplier

# On CIFAR-10, each client takes part k = 20 times, b = 100 rounds apart.
CIFAR = epochs(2000, 20)


def stackoverflow(request: Request) -> tuple[fedmf.Workload, fedmf.Participation]:
    """Returns the workload and participation schema of the StackOverflow experiments.

    The workload has momentum 0.95 and a cool-down over the last quarter. A client has k = 6
    participations, b = 342 rounds apart. Tests have fewer rounds.
    """
    num_rounds = request.pick(48, 2052, 2052)
    learning_rates = fedmf.WarmupCooldown(rounds=num_rounds, peak=1.0, warmup=0.0).learning_rates()
    return fedmf.momentum_sgd(num_rounds, momentum=0.95, learning_rates=learning_rates), epochs(
        num_rounds, 6
    )


def _rounds(request: Request) -> str:
    return "48 rounds in place of 2052" if request.scale == "tiny" else ""


@figure("multi-epoch-figure-2", "multi-epoch-figure-13")
def figure_2(request: Request) -> Outcome:
    """Plots the workload A = B C, its factors B and C, and X = C^T C, for the optimum."""
    workload, six_epochs = stackoverflow(request)
    mechanism = fit(workload, six_epochs, "dense", tolerance=2e-3)
    A = workload.matrix
    C = mechanism.encoder()
    X = C.T @ C
    num_rounds = six_epochs.rounds
    b = six_epochs.min_sep
    largest_size, typical_size = _sizes(X, b)
    matrix_panels = [("A", A), ("B", A @ mechanism.noising()), ("C", C), ("X = CᵀC", X)]
    size_phrase = "over the diagonal's mean"
    return Outcome(
        heat_maps(matrix_panels, 2, height=2.6, shared=False),
        clauses=judge_figure_2(X=X, min_sep=b),
        columns=("quantity", "value"),
        rows=[
            ("rounds", num_rounds),
            ("min_sep", b),
            (f"largest |X| of two rounds of one client, {size_phrase}", largest_size),
            (f"median |X| of other pairs, {size_phrase}", typical_size),
            ("gap", mechanism.certificate.gap),
        ],
        reduced=_rounds(request),
    )


def _sizes(X: np.ndarray, min_sep: int) -> tuple[float, float]:
    """Returns the largest absolute entry of X for two rounds of one client, and the median of all
    others, over the mean of the diagonal.
    """
    round_distances = np.subtract.outer(np.arange(len(X)), np.arange(len(X)))
    is_same_client = (round_distances % min_sep == 0) & (round_distances != 0)
    relative_sizes = np.abs(X) / np.diagonal(X).mean()
    return float(relative_sizes[is_same_client].max()), float(
        np.median(relative_sizes[~is_same_client])
    )


# Columns of the encoder are called orthogonal if their inner product is below this share of the
# mean squared norm.
_ORTHOGONAL = 1e-6


def judge_figure_2(*, X: np.ndarray, min_sep: int) -> list[Clause]:
    """Judges Figures 2 and 13 of the multi-epoch paper by X = C^T C, where C is the encoder."""
    largest_size, typical_size = _sizes(X, min_sep)
    return [
        from_numbers(
            "The columns of C for two rounds of one client are orthogonal.",
            largest_size < _ORTHOGONAL,
            f"every {min_sep}th diagonal of X is at most {largest_size:.1e} of the main one's mean",
        ),
        from_numbers(
            "These diagonals of X stand out, because other columns are not orthogonal.",
            typical_size > 1000 * _ORTHOGONAL,
            f"the median of all other entries is {typical_size:.1e} of the main diagonal's mean",
        ),
    ]


def _variances(
    mechanisms: Mapping[str, Any],
    workload: fedmf.Workload,
    order: fedmf.Participation,
    sigma: float,
) -> tuple[Lines, dict[str, float]]:
    """Returns a panel of each mechanism's variance by round, and the total variance in units of
    sigma squared.
    """
    variance_by_name = {
        name: (sigma * fedmf.per_round_error(m, workload, order)) ** 2
        for name, m in mechanisms.items()
    }
    variance_panel = Lines(
        variance_by_name,
        "round",
        f"variance at noise multiplier {sigma:.4g}",
        x=np.arange(1, order.rounds + 1),
        log="y",
    )
    return variance_panel, {name: y.sum() / sigma**2 for name, y in variance_by_name.items()}


# Names of the mechanisms of Figure 4 of the multi-epoch paper, as in its Table 1.
ALL_LINES = (
    "(Online) Honaker(n=2000)", "(Online) Honaker(n=200)x10",
    "Optimal Decoder Honaker(n=400)x5", "FFT Optimal Decoder(n=400)x5",
    "MF(k=1, n=1000)x2", "MF(k=20, n=2000)",
)  # fmt: skip
OPTIMUM = "MF(k=20, n=2000)"


@figure("multi-epoch-figure-4")
def figure_4(request: Request) -> Outcome:
    """Plots the variance of prefix sums by round at (epsilon, delta) = (4.38, 1e-5).

    Clients have k = 20 participations, b = 100 rounds apart.
    """
    tiny_lines = ("(Online) Honaker(n=200)x10", "FFT(n=200)x10")
    chosen_lines = request.pick(tiny_lines, ALL_LINES, ALL_LINES)
    row_by_label = {row.label: row for row in printed.MULTI_EPOCH_TABLE_1}
    sigma = gaussian_noise_multiplier(4.38, 1e-5)
    mechanisms = {name: stamped_row(row_by_label[name]) for name in chosen_lines}
    panel, losses = _variances(mechanisms, fedmf.prefix_sum(2000), CIFAR, sigma)
    return Outcome(
        [panel],
        clauses=judge_figure_4(
            loss_by_name=losses,
            printed_losses={name: row_by_label[name].printed for name in losses},
        ),
        reduced="two of the mechanisms" if request.scale == "tiny" else "",
    )


def judge_figure_4(
    *,
    loss_by_name: Mapping[str, float],
    printed_losses: Mapping[str, str],
) -> list[Clause]:
    """Judges Figure 4 of the multi-epoch paper by the total variances over sigma squared, which are
    the losses of Table 1.

    The loss of a mechanism is its total variance at sensitivity 1, so that one sigma gives all of
    them the same privacy.
    """
    losses_text = ", ".join(
        f"{loss:.2e} {name} (printed: {printed_losses[name]})"
        for name, loss in loss_by_name.items()
    )
    sorted_losses = sorted(loss_by_name.values())
    least_gap = min(high / low - 1 for low, high in itertools.pairwise(sorted_losses))
    clauses = [
        from_numbers(
            "The total variances at equal privacy are the losses of Table 1.",
            all(printed.agrees(loss, printed_losses[k]) for k, loss in loss_by_name.items()),
            losses_text,
        ),
        from_numbers(
            "At equal privacy the mechanisms have different total variances.",
            least_gap > 0.01,
            f"any two differ by {100 * least_gap:.0f}% or more",
        ),
    ]
    optimum_text = "The optimum for 20 epochs has the least total variance."
    if OPTIMUM not in loss_by_name:
        return [*clauses, not_judged(optimum_text, "this scale has no optimum")]
    least_other_loss = min(loss for name, loss in loss_by_name.items() if name != OPTIMUM)
    loss_ratio = least_other_loss / loss_by_name[OPTIMUM]
    evidence = f"the least of the others is {loss_ratio:.2f} times as large"
    return [*clauses, from_numbers(optimum_text, loss_ratio > 1, evidence)]


@figure("multi-epoch-figure-5")
def figure_5(request: Request) -> Outcome:
    """Plots the variance of the momentum and cool-down workload by round, at noise multiplier 1.

    Clients have k = 6 participations, b = 342 rounds apart.
    """
    workload, six = stackoverflow(request)
    sums, single = sums_once(six.rounds)
    mechanisms = {
        "Honaker online": fit(sums, six, "tree", decoder="online"),
        "Honaker full": fit(sums, six, "tree", decoder="full"),
        "MF for one epoch": fit(workload, single, "dense", tolerance=1e-4),
        "MF for six epochs": fit(workload, six, "dense", tolerance=2e-3),
    }
    panel, totals = _variances(mechanisms, workload, six, 1.0)
    return Outcome([panel], clauses=judge_figure_5(total_by_name=totals), reduced=_rounds(request))


def judge_figure_5(*, total_by_name: Mapping[str, float]) -> list[Clause]:
    """Judges Figure 5 of the multi-epoch paper by the total variances of its mechanisms."""
    optimum_name = "MF for six epochs"
    relative_totals = {
        k: total / total_by_name[optimum_name]
        for k, total in total_by_name.items()
        if k != optimum_name
    }
    return [
        from_numbers(
            "For momentum and cool-down the optimum for six epochs has the least total variance.",
            min(relative_totals.values()) > 1,
            "in units of its total: "
            + ", ".join(f"{x:.2f} {k}" for k, x in relative_totals.items()),
        )
    ]


@figure("multi-epoch-figure-6")
def figure_6(request: Request) -> Outcome:
    """Plots the loss of prefix sums over the number of stamps, for both decoders of Honaker's
    tree.
    """
    workload = fedmf.prefix_sum(2000)
    is_tiny = request.scale == "tiny"
    honaker_rows = [
        row
        for row in printed.MULTI_EPOCH_TABLE_1
        if "Honaker" in row.name and (not is_tiny or row.times >= 10)
    ]
    losses = [stamped_loss(row) for row in honaker_rows]
    stamp_counts = sorted({row.times for row in honaker_rows})
    # In the table, the rows of the online decoder come first.
    online, full = np.array(losses).reshape(2, -1)
    printed_losses = np.array([float(row.printed) for row in honaker_rows]).reshape(2, -1)
    loss_by_decoder = {"online decoder": online, "optimal decoder": full}
    loss_by_decoder |= {
        f"{name}, printed": y for name, y in zip(list(loss_by_decoder), printed_losses, strict=True)
    }
    beside = {}
    optimum = None
    if not is_tiny:
        optimum = fedmf.loss(fit(workload, CIFAR, "dense", tolerance=2e-3), workload, CIFAR)
        beside["MF for 20 epochs, no stamps"] = Line([np.inf], [optimum])
    return Outcome(
        [
            Lines(
                loss_by_decoder,
                "stamps",
                "loss",
                x=stamp_counts,
                beside=beside,
                log="xy",
                ticks=stamp_counts,
                points=True,
            )
        ],
        clauses=judge_figure_6(
            times=stamp_counts,
            online=online,
            full=full,
            optimum=optimum,
            printed_losses=[row.printed for row in honaker_rows],
        ),
        reduced="losses in place of accuracies: training needs CIFAR-10"
        + ("; two numbers of stamps" if is_tiny else ""),
    )


def judge_figure_6(
    *,
    times: Sequence[int],
    online: np.ndarray,
    full: np.ndarray,
    optimum: float | None,
    printed_losses: Sequence[str],
) -> list[Clause]:
    """Judges Figure 6 of the multi-epoch paper by the losses of both decoders for each number of
    stamps.

    `printed_losses` has those of Table 1, first the online decoder's. `optimum` is the loss of the
    optimum for 20 epochs; None if it was not computed.
    """
    losses = [*online, *full]
    num_agreeing = sum(map(printed.agrees, losses, printed_losses))
    decoder_ratio = full / online
    ratios_text = ", ".join(f"{r:.2f} at {s}" for s, r in zip(times, decoder_ratio, strict=True))
    clauses = [
        from_numbers(
            "The optimal decoder has less loss than the online one at every number of stamps.",
            bool((decoder_ratio < 1).all()),
            f"ratios of the losses: {ratios_text}",
        ),
        from_numbers(
            "The losses of both decoders are those of Table 1.",
            num_agreeing == len(losses),
            f"{num_agreeing} of {len(losses)} losses are as printed",
        ),
    ]
    least_places = [int(np.argmin(online)), int(np.argmin(full))]
    unjudged_text = "The best number of stamps of both decoders is inside of the sweep (App. D.5)."
    if optimum is None:
        clauses.append(not_judged(unjudged_text, "this scale has two numbers of stamps"))
    else:
        clauses += [
            from_numbers(
                unjudged_text,
                all(0 < place < len(times) - 1 for place in least_places),
                f"{times[least_places[0]]} stamps (online), {times[least_places[1]]} (optimal)",
            ),
            from_numbers(
                "The optimum for 20 epochs has less loss than both decoders at any number.",
                optimum < min(losses),
                f"{optimum:.2e}, and the least of both {min(losses):.2e}",
            ),
        ]
    unjudged_reason = "accuracies need training, which the item multi-epoch-figure-6-trained does"
    return [*clauses, not_judged("The accuracies are ordered as the losses.", unjudged_reason)]


def lower_bound(n: np.ndarray) -> np.ndarray:
    """Computes a lower bound on the mean squared error of prefix sums of n rounds at noise
    multiplier 1.

    It is that of App. J.1 (Henzinger et al. 2022, Thm. 2).
    """
    return ((2 + np.log((2 * n + 1) / 3) + np.log(2 * n + 1) / (2 * n)) / np.pi) ** 2


def analytic_error(n: int) -> float:
    """Computes the FFT mechanism's mean squared error by Corollary J.1 at noise multiplier 1, where
    the sum runs to n - 1.
    """
    return ((n + (1 / np.sin(np.pi * (2 * np.arange(n) + 1) / (2 * n))).sum()) / n) ** 2


@figure("multi-epoch-figure-14")
def figure_14(request: Request) -> Outcome:
    """Plots the mean squared error of the FFT mechanism over the number of rounds n, beside
    bounds.
    """
    round_counts = 2 ** np.arange(3, request.pick(8, 12, 13))

    def error(decoder: str, rounds: int) -> float:
        sums, single = sums_once(rounds)
        return fedmf.rmse(fit(sums, single, "fft", decoder=decoder), sums, single) ** 2

    bound = lower_bound(round_counts)
    error_by_decoder = {
        "FFT, Corollary J.1": np.array([analytic_error(int(i)) for i in round_counts]),
        "FFT, plain decoder": np.array([error("plain", int(i)) for i in round_counts]),
        "FFT, optimal decoder": np.array([error("optimal", int(i)) for i in round_counts]),
        "lower bound (Henzinger et al.)": bound,
    }
    drawn_series = error_by_decoder | {"lower bound (trace norm)": trace_norm_bound(round_counts)}
    return Outcome(
        [
            Lines(
                drawn_series, "rounds n", "mean squared error", x=round_counts, column="n", log="xy"
            )
        ],
        clauses=judge_figure_14(rounds=round_counts, error_by_name=error_by_decoder),
    )


def judge_figure_14(*, rounds: np.ndarray, error_by_name: Mapping[str, np.ndarray]) -> list[Clause]:
    """Judges Figure 14 by the mean squared errors of the FFT mechanism, the last of which is the
    lower bound.
    """
    analytic, plain, optimal, bound = error_by_name.values()
    rmse_ratio = np.sqrt(plain / bound)
    is_within = rmse_ratio <= 1.2
    analytic_ratio = analytic / bound
    smallest_ratio = min(float((y / bound).min()) for y in (analytic, plain, optimal))
    return [
        from_numbers(
            "The noise of the FFT mechanism, as root mean squared error, is within a factor of 1.2 "
            "of the lower bound at the largest n.",
            bool(is_within[-1]),
            f"{rmse_ratio[-1]:.3f} at n = {rounds[-1]}; the mean squared error, which the figure "
            f"shows, is {plain[-1] / bound[-1]:.2f} times the bound",
        ),
        from_numbers(
            "It is within this factor at every n that is drawn.",
            bool(is_within.all()),
            ", ".join(f"{r:.3f} at {n}" for n, r in zip(rounds, rmse_ratio, strict=True)),
        ),
        from_numbers(
            "Corollary J.1 is about 6 times the lower bound (judged: 5 to 7) at every n.",
            bool(((analytic_ratio >= 5) & (analytic_ratio <= 7)).all()),
            ", ".join(f"{r:.2f} at {n}" for n, r in zip(rounds, analytic_ratio, strict=True)),
        ),
        from_numbers(
            "The bound holds: no mechanism has less error at any n.",
            smallest_ratio >= 1,
            f"the least error, with the optimal decoder, is {smallest_ratio:.2f} times the bound",
        ),
    ]
