"""Figures of Choquette-Choo et al. 2022 (multi-epoch factorization) that are made without
training.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

import fedmf
from fedmf.experiments.papers import printed
from fedmf.experiments.papers.drawing import Line, Lines, heat_maps
from fedmf.experiments.papers.error_tables import stamped_loss, stamped_row
from fedmf.experiments.papers.fits import epochs, fit, sums_once
from fedmf.experiments.papers.item import Outcome, Request, figure
from fedmf.privacy.gaussian import gaussian_noise_multiplier

# On CIFAR-10, each client takes part k = 20 times, b = 100 rounds apart.
CIFAR = epochs(2000, 20)


def stackoverflow(request: Request) -> tuple[fedmf.Workload, fedmf.Participation]:
    """Returns the workload and participation schema of the StackOverflow experiments.

    The workload has momentum 0.95 and a cool-down over the last quarter. A client has k = 6
    participations, b = 342 rounds apart. Tests have fewer rounds.
    """
    n = request.pick(48, 2052, 2052)
    rates = fedmf.WarmupCooldown(rounds=n, peak=1.0, warmup=0.0).learning_rates()
    return fedmf.momentum_sgd(n, momentum=0.95, learning_rates=rates), epochs(n, 6)


def _rounds(request: Request) -> str:
    return "48 rounds in place of 2052" if request.scale == "tiny" else ""


@figure("multi-epoch-figure-2", "multi-epoch-figure-13")
def figure_2(request: Request) -> Outcome:
    """Draws the workload A = B C, its factors B and C, and X = C^T C, for the optimum."""
    workload, six = stackoverflow(request)
    mechanism = fit(workload, six, "dense", tolerance=2e-3)
    A = workload.matrix
    C = mechanism.encoder()
    X = C.T @ C
    n = six.rounds
    b = six.min_sep
    round_distances = np.subtract.outer(np.arange(n), np.arange(n))
    same_client = (round_distances % b == 0) & (round_distances != 0)
    sizes = np.abs(X) / np.diagonal(X).mean()
    largest_size = sizes[same_client].max()
    typical_size = np.median(sizes[~same_client])
    panels = [("A", A), ("B", A @ mechanism.noising()), ("C", C), ("X = CᵀC", X)]
    size_phrase = "over the diagonal's mean"
    return Outcome(
        heat_maps(panels, 2, height=2.6, shared=False),
        f"Columns of C for two rounds of one client (every {b}th diagonal of X) have "
        f"products of at most {largest_size:.1e} of the diagonal's mean, where the median of the "
        f"others is {typical_size:.1e}.",
        largest_size < 0.1 * typical_size,
        columns=("quantity", "value"),
        rows=[
            ("rounds", n),
            ("min_sep", b),
            (f"largest |X| of two rounds of one client, {size_phrase}", largest_size),
            (f"median |X| of other pairs, {size_phrase}", typical_size),
            ("gap", mechanism.certificate.gap),
        ],
        reduced=_rounds(request),
    )


def _variances(
    mechanisms: Mapping[str, Any],
    workload: fedmf.Workload,
    order: fedmf.Participation,
    sigma: float,
) -> tuple[Lines, dict[str, float]]:
    """Returns a panel of each mechanism's variance by round, and the total variance in units of
    sigma squared.
    """
    series = {
        name: (sigma * fedmf.per_round_error(m, workload, order)) ** 2
        for name, m in mechanisms.items()
    }
    panel = Lines(
        series,
        "round",
        f"variance at noise multiplier {sigma:.4g}",
        x=np.arange(1, order.rounds + 1),
        log="y",
    )
    return panel, {name: y.sum() / sigma**2 for name, y in series.items()}


@figure("multi-epoch-figure-4")
def figure_4(request: Request) -> Outcome:
    """Draws the variance of prefix sums by round at (epsilon, delta) = (4.38, 1e-5).

    Clients have k = 20 participations, b = 100 rounds apart.
    """
    all_lines = (
        "(Online) Honaker(n=2000)", "(Online) Honaker(n=200)x10",
        "Optimal Decoder Honaker(n=400)x5", "FFT Optimal Decoder(n=400)x5",
        "MF(k=1, n=1000)x2", "MF(k=20, n=2000)",
    )  # fmt: skip
    tiny_lines = ("(Online) Honaker(n=200)x10", "FFT(n=200)x10")
    chosen_lines = request.pick(tiny_lines, all_lines, all_lines)
    rows = {row.label: row for row in printed.MULTI_EPOCH_TABLE_1}
    sigma = gaussian_noise_multiplier(4.38, 1e-5)
    mechanisms = {name: stamped_row(rows[name]) for name in chosen_lines}
    panel, losses = _variances(mechanisms, fedmf.prefix_sum(2000), CIFAR, sigma)
    words = (f"{loss:.2e} for {k} (Table 1: {rows[k].printed})" for k, loss in losses.items())
    return Outcome(
        [panel],
        f"At one sigma of {sigma:.4f} the totals over sigma squared are {', '.join(words)}.",
        all(printed.agrees(loss, rows[k].printed) for k, loss in losses.items()),
        reduced="two of the mechanisms" if request.scale == "tiny" else "",
    )


@figure("multi-epoch-figure-5")
def figure_5(request: Request) -> Outcome:
    """Draws the variance of the momentum and cool-down workload by round, at noise multiplier 1.

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
    least = totals["MF for six epochs"]
    words = ", ".join(f"{total / least:.2f} {name}" for name, total in totals.items())
    return Outcome(
        [panel],
        f"Total variances, in units of the optimum for six epochs: {words}.",
        least == min(totals.values()) and totals["MF for one epoch"] < totals["Honaker online"],
        reduced=_rounds(request),
    )


@figure("multi-epoch-figure-6")
def figure_6(request: Request) -> Outcome:
    """Draws the loss of prefix sums over the number of stamps, for both decoders of Honaker's
    tree.
    """
    workload = fedmf.prefix_sum(2000)
    is_tiny = request.scale == "tiny"
    rows = [
        row
        for row in printed.MULTI_EPOCH_TABLE_1
        if "Honaker" in row.name and (not is_tiny or row.times >= 10)
    ]
    losses = [stamped_loss(row) for row in rows]
    num_agreeing = sum(map(printed.agrees, losses, (row.printed for row in rows)))
    times = sorted({row.times for row in rows})
    # In the table, the rows of the online decoder come first.
    online, full = np.array(losses).reshape(2, -1)
    printed_losses = np.array([float(row.printed) for row in rows]).reshape(2, -1)
    series = {"online decoder": online, "optimal decoder": full}
    series |= {f"{name}, printed": y for name, y in zip(list(series), printed_losses, strict=True)}
    beside = {}
    if not is_tiny:
        optimum = fedmf.loss(fit(workload, CIFAR, "dense", tolerance=2e-3), workload, CIFAR)
        beside["MF for 20 epochs, no stamps"] = Line([np.inf], [optimum])
    ratio = full / online
    return Outcome(
        [
            Lines(
                series, "stamps", "loss", x=times, beside=beside, log="xy", ticks=times, points=True
            )
        ],
        f"{num_agreeing} of {len(rows)} losses are as printed. The least is at "
        f"{times[int(np.argmin(online))]} stamps with the online decoder and at "
        f"{times[int(np.argmin(full))]} with the optimal one, whose loss is {ratio.min():.2f} to "
        f"{ratio.max():.2f} times the other's.",
        num_agreeing == len(rows) and (ratio < 1).all(),
        reduced="losses in place of accuracies: training needs CIFAR-10"
        + ("; two numbers of stamps" if is_tiny else ""),
    )


def lower_bound(n: np.ndarray) -> np.ndarray:
    """Computes a lower bound on the mean squared error of prefix sums of n rounds at noise
    multiplier 1 (App. J.1; Henzinger et al. 2022, Thm. 2).
    """
    return ((2 + np.log((2 * n + 1) / 3) + np.log(2 * n + 1) / (2 * n)) / np.pi) ** 2


def analytic_error(n: int) -> float:
    """Computes the FFT mechanism's mean squared error by Corollary J.1 at noise multiplier 1, where
    the sum runs to n - 1.
    """
    return ((n + (1 / np.sin(np.pi * (2 * np.arange(n) + 1) / (2 * n))).sum()) / n) ** 2


@figure("multi-epoch-figure-14")
def figure_14(request: Request) -> Outcome:
    """Draws the mean squared error of the FFT mechanism over the number of rounds n, beside
    bounds.
    """
    n = 2 ** np.arange(3, request.pick(8, 12, 13))

    def error(decoder: str, rounds: int) -> float:
        sums, single = sums_once(rounds)
        return fedmf.rmse(fit(sums, single, "fft", decoder=decoder), sums, single) ** 2

    bound = lower_bound(n)
    series = {
        "FFT, Corollary J.1": np.array([analytic_error(int(i)) for i in n]),
        "FFT, plain decoder": np.array([error("plain", int(i)) for i in n]),
        "FFT, optimal decoder": np.array([error("optimal", int(i)) for i in n]),
        "lower bound (Henzinger et al.)": bound,
    }
    analytic, plain, optimal = (y[-1] / bound[-1] for y in list(series.values())[:3])
    return Outcome(
        [Lines(series, "rounds n", "mean squared error", x=n, column="n", log="xy")],
        f"At n = {n[-1]} the FFT's rmse is {plain**0.5:.2f} times the bound's (printed: "
        f"within 1.2; its square is {plain:.2f}), with the optimal decoder {optimal**0.5:.2f} "
        f"times. Corollary J.1 is {analytic:.1f} times the bound's square (printed: about 6).",
        printed.agrees(plain**0.5, "≤1.2")
        and 5 <= analytic <= 7
        and all((y >= bound).all() for y in series.values()),
    )
