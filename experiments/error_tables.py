"""Tables of errors and sensitivities; rows of `experiments.paper_tables`."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

import fedmf
from fedmf.experiments import paper_figures as figures
from fedmf.experiments.sign_constraints import constrained_encoder
from fedmf.experiments.table_cells import Cell, fit, one_participation

# Rows that take seconds.
_QUICK_ROUNDS = 1024
_QUICK_STAMPED = {
    "(Online) Honaker(n=400)x5",
    "(Online) Honaker(n=200)x10",
    "Optimal Decoder Honaker(n=400)x5",
    "MF(k=1, n=100)x20",
    "FFT(n=200)x10",
    "FFT Optimal Decoder(n=1000)x2",
}


def denisov_table_2(quick: bool = False) -> Iterator[Cell]:
    """Denisov et al. 2022, App. H, Table 2."""
    for row in figures.DENISOV_TABLE_2:
        if quick and row.rounds >= _QUICK_ROUNDS:
            return
        workload, single = fedmf.prefix_sum(row.rounds), one_participation(row.rounds)
        for column, printed, mechanism in (
            ("Honaker", row.honaker, fit(workload, single, "tree", decoder="online")),
            ("optimum", row.optimum, fit(workload, single, "dense", tolerance=1e-4)),
            (
                "efficient",
                row.efficient,
                fit(workload, single, "low_rank", bands=row.bands, rank=row.rank),
            ),
        ):
            yield Cell(
                f"{row.rounds} rounds",
                column,
                printed,
                math.sqrt(fedmf.loss(mechanism, workload, single)),
            )


def multi_epoch_table_1(quick: bool = False) -> Iterator[Cell]:
    """Choquette-Choo et al. 2022, App. D.5, Table 1, with the lower bound of its caption."""
    workload = fedmf.prefix_sum(2000)
    epochs = fedmf.Participation(rounds=2000, schema="fixed_epoch", min_sep=100)  # 20 of them
    for row in figures.MULTI_EPOCH_TABLE_1:
        if quick and row.label not in _QUICK_STAMPED:
            continue
        mechanism = stamped_row(row)
        loss = fedmf.loss(mechanism, workload, epochs)
        yield Cell(row.label, "loss", row.printed, loss)
        if row.family == "fft":
            spectral = _spectral_sensitivity(mechanism.encoder(), epochs)
            ours = fedmf.sensitivity(mechanism, epochs).value
            yield Cell(row.label, "loss, Thm. 2.1", row.printed, loss * (spectral / ours) ** 2)
        if row.participations == 20:
            yield Cell(
                row.label,
                "lower bound",
                figures.MULTI_EPOCH_TABLE_1_BOUND,
                mechanism.part.certificate.lower_bound,
            )


def stamped_row(row: figures.StampedRow) -> Any:
    """The mechanism of a row of multi-epoch Table 1."""
    return stamped(
        row.family, 2000, row.times, participations=row.participations or 1, **row.options
    )


def stamped(
    family: str, rounds: int, times: int, *, participations: int = 1, **options: Any
) -> Any:
    """Prefix sums of `rounds` rounds by a mechanism for a part of them, used `times` times, as the
    multi-epoch paper makes them.

    Trees are completed: virtual rounds fill the last level of each part, without noise (App. D.3).
    Trees with Honaker's online decoder and FFTs are restarted; all other stamps use the optimal
    decoder (App. D.4).

    Args:
      family, options: of the part, as of `fedmf.fit`.
      rounds, times: of the run; how many parts it has, a divisor.
      participations: that a dense part is optimised for.
    """
    n = rounds // times
    participation = one_participation(n)
    if participations > 1:
        participation = fedmf.Participation(
            rounds=n, schema="fixed_epoch", min_sep=n // participations
        )
    if family == "tree":
        options = {"completion": "virtual"} | options
    part = fit(fedmf.prefix_sum(n), participation, family, **options)
    return fedmf.stamp(part, times, decoder="optimal" if family == "dense" else "restarted")


def _spectral_sensitivity(C: np.ndarray, participation: fedmf.Participation) -> float:
    """sqrt(k) times the largest spectral norm of C's columns of one client (multi-epoch paper, Thm.
    2.1, claim 1).
    """
    b, k = participation.min_sep, participation.max_participations
    grams = ((columns := C[:, start::b]).T @ columns for start in range(b))
    return math.sqrt(k * max(np.linalg.eigvalsh(gram)[-1] for gram in grams))


def multi_epoch_table_6(quick: bool = False) -> Iterator[Cell]:
    """Choquette-Choo et al. 2022, App. I.3, Table 6. Its sensitivity is for scalar contributions,
    so that ours is, here.
    """
    pairs = np.subtract.outer(np.arange(6), np.arange(6)) % 2 == 0
    workloads = {
        "prefix_sum": fedmf.prefix_sum(6),
        "momentum": fedmf.momentum_sgd(6, momentum=0.95),
    }
    for (workload, constraints), (
        smallest,
        smallest_of_pairs,
        error,
    ) in figures.MULTI_EPOCH_TABLE_6.items():
        A, row = workloads[workload].matrix, f"{workload}, {constraints}"
        C = constrained_encoder(A, min_sep=2, constraints=constraints)
        X = C.T @ C
        yield Cell(row, "min X", smallest, float(X.min()))
        yield Cell(row, "min X, pairs", smallest_of_pairs, float(X[pairs].min()))
        yield Cell(row, "error", error, float(np.linalg.norm(A @ np.linalg.inv(C))))


def banded_table_2(quick: bool = False) -> Iterator[Cell]:
    """Choquette-Choo et al. 2023, App. C, Table 2. Errors are in units of the row "MF". Quick rows
    have sensitivities only.
    """
    n = 2052
    workload = fedmf.prefix_sum(n)
    epochs = fedmf.Participation(rounds=n, schema="fixed_epoch", min_sep=342)
    separated = fedmf.Participation(rounds=n, schema="min_sep", min_sep=342)
    unit = (
        0.0
        if quick
        else fedmf.rmse(fit(workload, epochs, "dense", tolerance=2e-3), workload, epochs)
    )
    for row in figures.BANDED_TABLE_2:
        if quick and row.family not in ("tree", "identity"):
            continue
        mechanism = fit(workload, epochs, row.family, **row.options)
        under_epochs = fedmf.sensitivity(mechanism, epochs).value
        single, apart = (
            fedmf.sensitivity(mechanism, other).value / under_epochs
            for other in (one_participation(n), separated)
        )
        yield Cell(row.label, "k = 1", row.single, single)
        yield Cell(row.label, "(6, 342)", row.fixed_epoch, 1.0)
        yield Cell(row.label, "b >= 342", row.min_sep, apart)
        if quick:
            continue
        error = fedmf.rmse(mechanism, workload, epochs) / unit
        yield Cell(row.label, "(A)", row.error_fixed_epoch, error)
        yield Cell(row.label, "(B)", row.error_min_sep, error * apart)


def slides_max_error(quick: bool = False) -> Iterator[Cell]:
    """Slides, "optimal max error": log(n) / pi + constant."""
    for n in figures.SLIDES_ROUNDS:
        if quick and n > _QUICK_ROUNDS:
            return
        workload, single = fedmf.prefix_sum(n), one_participation(n)
        mechanism = fit(workload, single, "toeplitz", coefficients="sqrt")
        printed = f"{math.log(n) / math.pi + figures.SLIDES_CONSTANT:.3f}"
        ours = float(fedmf.per_round_error(mechanism, workload, single).max())
        yield Cell(f"optimal Toeplitz, {n} rounds", "max error", printed, ours)
