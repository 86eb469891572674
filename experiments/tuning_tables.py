"""Banded Tables 6 and 7 against the learning-rate rule of its App. I; rows of `experiments.paper_tables`."""

import functools
from collections.abc import Iterator, Sequence
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


@functools.cache
def unit_rmse(mechanism: str, bands: int | None) -> float:
    """rmse of prefix sums at sensitivity 1 under (k = 6, b = 342), or a single participation where the table has one."""
    workload = fedmf.prefix_sum(ROUNDS)
    epochs = fedmf.Participation(rounds=ROUNDS, schema="fixed_epoch", min_sep=ROUNDS // PARTICIPATIONS)
    if mechanism == "Single-epoch MF":
        once = one_participation(ROUNDS)
        return fedmf.rmse(fit(workload, once, "dense", tolerance=1e-4), workload, once)
    if mechanism == "Band MF":
        # The same fit as `choose_bands` makes.
        return fedmf.rmse(fit(workload, one_participation(ROUNDS), "banded", bands=bands), workload, epochs)
    families: dict[str, tuple[str, dict[str, Any]]] = {
        "DP-SGD": ("identity", {}),
        "Optimal TreeAgg": ("tree", {"decoder": "full", "completion": "none"}),
        "Multi-epoch MF": ("dense", {"equal_norms": True, "tolerance": 2e-3}),
    }
    family, options = families[mechanism]
    return fedmf.rmse(fit(workload, epochs, family, **options), workload, epochs)


def effective_rmse(row: TunedRow, *, amplified: bool) -> float:
    """Banded Eq. 11: of the mean update, with sigma calibrated by us. `amplified`: Table 7's rows that name bands below 342."""
    sampled = amplified and row.bands is not None and row.bands < ROUNDS // PARTICIPATIONS
    if sampled:
        assert row.bands is not None
        sigma = amplified_noise(row.bands, row.epsilon)
    else:
        sigma = gaussian_noise_multiplier(row.epsilon, 1e-6)
    if row.mechanism == "Multi-epoch MF" and not amplified:
        printed = next(
            r for r in tuning_figures.BANDED_TABLE_4 if (r.mechanism, r.epsilon) == (row.mechanism, row.epsilon)
        )
        sigma = float(printed.noise_multiplier)  # for a sensitivity under b-min-sep of 1.1269
    cohort = _SINGLE_EPOCH_COHORT if row.mechanism == "Single-epoch MF" else COHORT
    return unit_rmse(row.mechanism, row.bands) * sigma / cohort


def _cells(table: str, rows: Sequence[TunedRow], *, amplified: bool, quick: bool) -> Iterator[Cell]:
    for row in rows:
        if quick and (row.mechanism not in _QUICK or (amplified and row.epsilon < 8.0)):
            continue
        error = effective_rmse(row, amplified=amplified)
        rate = predicted_learning_rate(error)
        name = f"{row.mechanism}{f', {row.bands} bands' if row.bands and row.mechanism == 'Band MF' else ''}"
        nearest = min(tuning_figures.RATES, key=lambda printed: abs(float(printed) - rate))
        accuracy = row.accuracy(nearest)
        nearly = ""
        if nearest in row.neighbours:
            known = (
                f"{row.accuracy(row.optimum)}% at the optimum, {accuracy}% there" if accuracy else "not measured there"
            )
            nearly = f"beside the optimum; {known}"
        yield Cell(
            table=table,
            row=f"{name}, epsilon {row.epsilon:g}",
            column="server rate",
            printed=row.optimum,
            ours=rate,
            nearly=nearly,
            note=f"effective rmse {error:.5f}",
        )


def banded_table_6(quick: bool = False) -> Iterator[Cell]:
    """Choquette-Choo et al. 2023, App. I, Table 6: best server rates, and the rule's. "Nearly": a neighbour on the grid 1.7^i."""
    yield from _cells("banded-6", tuning_figures.BANDED_TABLE_6, amplified=False, quick=quick)


def banded_table_7(quick: bool = False) -> Iterator[Cell]:
    """Choquette-Choo et al. 2023, App. I, Table 7, with amplification: as Table 6."""
    yield from _cells("banded-7", tuning_figures.BANDED_TABLE_7, amplified=True, quick=quick)
