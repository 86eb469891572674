"""Banded Tables 6 and 7 against the learning-rate rule of its App. I; rows of
`experiments.paper_tables`.
"""

import functools
from collections.abc import Iterator
from typing import Any

import fedmf
from fedmf.experiments import tuning_figures
from fedmf.experiments.privacy_tables import COHORT, PARTICIPATIONS, ROUNDS, amplified_noise
from fedmf.experiments.table_cells import Cell, fit, one_participation
from fedmf.experiments.tuning_figures import TunedRow
from fedmf.privacy.gaussian import gaussian_noise_multiplier
from fedmf.privacy.learning_rate import predicted_learning_rate

# Printed in banded Table 4: single-epoch runs have 167 clients a round.
_SINGLE_EPOCH_COHORT = 167
# Seconds to fit.
_QUICK = ("DP-SGD", "Optimal TreeAgg")
_FITS: dict[str, tuple[str, dict[str, Any]]] = {
    "DP-SGD": ("identity", {}),
    "Optimal TreeAgg": ("tree", {"decoder": "full", "completion": "none"}),
    "Multi-epoch MF": ("dense", {"equal_norms": True, "tolerance": 2e-3}),
    "Single-epoch MF": ("dense", {"tolerance": 1e-4}),
}


@functools.cache
def unit_rmse(mechanism: str, bands: int | None, measured: str = "prefix_sum") -> float:
    """rmse at sensitivity 1 under (k = 6, b = 342), or a single participation where
    the table has one.

    All are made for prefix sums; `measured` is that workload, or "identity".
    """
    workload, single = fedmf.prefix_sum(ROUNDS), one_participation(ROUNDS)
    query = workload if measured == "prefix_sum" else fedmf.identity(ROUNDS)
    epochs = fedmf.Participation(
        rounds=ROUNDS, schema="fixed_epoch", min_sep=ROUNDS // PARTICIPATIONS
    )
    if mechanism == "Band MF":  # the same fit as `choose_bands` makes
        return fedmf.rmse(fit(workload, single, "banded", bands=bands), query, epochs)
    participation = single if mechanism == "Single-epoch MF" else epochs
    family, options = _FITS[mechanism]
    return fedmf.rmse(fit(workload, participation, family, **options), query, participation)


def effective_rmse(row: TunedRow, *, amplified: bool, workload: str = "prefix_sum") -> float:
    """rmse of the sums of mean updates, with sigma calibrated by us (banded Eq. 11); of single
    updates for workload "identity".

    `amplified`: Table 7's rows that name bands below 342.
    """
    sigma = gaussian_noise_multiplier(row.epsilon, 1e-6)
    if amplified and row.bands is not None and row.bands < ROUNDS // PARTICIPATIONS:
        sigma = amplified_noise(row.bands, row.epsilon)
    # For a sensitivity under b-min-sep of 1.1269
    elif row.mechanism == "Multi-epoch MF" and not amplified:
        rows = {(r.mechanism, r.epsilon): r.noise_multiplier for r in tuning_figures.BANDED_TABLE_4}
        sigma = float(rows[row.mechanism, row.epsilon])
    cohort = _SINGLE_EPOCH_COHORT if row.mechanism == "Single-epoch MF" else COHORT
    return unit_rmse(row.mechanism, row.bands, workload) * sigma / cohort


def _cells(rows: tuple[TunedRow, ...], *, amplified: bool, quick: bool) -> Iterator[Cell]:
    for row in rows:
        if quick and (row.mechanism not in _QUICK or (amplified and row.epsilon < 8.0)):
            continue
        rate = predicted_learning_rate(effective_rmse(row, amplified=amplified))
        nearest = min(tuning_figures.RATES, key=lambda printed: abs(float(printed) - rate))
        nearly = ""
        if nearest in row.neighbours:
            measured = "not measured there"
            if nearest in row.accuracies:
                measured = (
                    f"{row.accuracies[row.optimum]}% at the optimum, "
                    f"{row.accuracies[nearest]}% there"
                )
            nearly = f"beside the optimum; {measured}"
        bands = f", {row.bands} bands" if row.mechanism == "Band MF" else ""
        yield Cell(
            f"{row.mechanism}{bands}, epsilon {row.epsilon:g}",
            "server rate",
            row.optimum,
            rate,
            nearly,
        )


def banded_table_6(quick: bool = False) -> Iterator[Cell]:
    """Choquette-Choo et al. 2023, App. I, Table 6: best server rates, and the rule's. "Nearly": a
    neighbour on the grid 1.7^i.
    """
    yield from _cells(tuning_figures.BANDED_TABLE_6, amplified=False, quick=quick)


def banded_table_7(quick: bool = False) -> Iterator[Cell]:
    """Choquette-Choo et al. 2023, App. I, Table 7, with amplification: as Table 6."""
    yield from _cells(tuning_figures.BANDED_TABLE_7, amplified=True, quick=quick)
