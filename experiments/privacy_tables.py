"""Tables of noise multipliers, epsilons and numbers of bands; rows of `experiments.paper_tables`."""

import functools
import math
import sys
from collections.abc import Iterator
from typing import Any

import fedmf
from fedmf.experiments import band_sweep, tuning_figures
from fedmf.experiments import paper_figures as figures
from fedmf.experiments.table_cells import Cell
from fedmf.privacy.amplification import sampled_gaussian_epsilon, sampled_gaussian_noise_multiplier
from fedmf.privacy.bands import CLOSE, choose_bands
from fedmf.privacy.gaussian import gaussian_epsilon, gaussian_noise_multiplier

_DELTA = 1e-6
# StackOverflow as banded Table 5 has it: 342 rounds of 1000 clients an epoch.
ROUNDS, POPULATION, COHORT = 2052, 342_000, 1000
PARTICIPATIONS = 6


def shown_on_terminal(phrase: str) -> None:
    """Progress, where somebody looks."""
    if sys.stderr.isatty():
        print(f"\r\033[K{phrase}", end="", file=sys.stderr, flush=True)


def banded_table_3(quick: bool = False) -> Iterator[Cell]:
    """Choquette-Choo et al. 2023, App. G, Table 3: the best bands. "Nearly": the printed number is within 1% of our best rmse."""
    epochs = figures.BANDED_TABLE_3_EPOCHS
    targets = (8.0,) if quick else tuple(figures.BANDED_TABLE_3)
    tried = tuple(k for k in epochs if k >= 256) if quick else epochs
    table = band_sweep.sweep(epsilons=targets, epochs=tried, progress=shown_on_terminal)
    for i, epsilon in enumerate(targets):
        printed = dict(zip(epochs, figures.BANDED_TABLE_3[epsilon], strict=True))
        for j, k in enumerate(tried):
            ours, theirs = int(table.best[i, j]), table.bands.index(printed[k])
            worse = float(table.rmse[i, j, theirs] / table.rmse[i, j].min())
            yield Cell(
                table="banded-3",
                row=f"epsilon {epsilon:g}",
                column=f"k = {k}",
                printed=str(printed[k]),
                ours=ours,
                nearly=f"the printed has {100 * (worse - 1):.2f}% more rmse" if worse <= CLOSE else "",
            )


def banded_table_4(quick: bool = False) -> Iterator[Cell]:
    """Choquette-Choo et al. 2023, App. I, Table 4: noise multipliers at delta = 1e-6 without amplification.

    The matrices of "Multi-epoch MF" are not published; their sensitivity under b-min-sep is read off their first row.
    """
    plain = gaussian_noise_multiplier(1.0, _DELTA)
    theirs = next(row for row in tuning_figures.BANDED_TABLE_4 if row.mechanism == "Multi-epoch MF")
    sensitivity = float(theirs.noise_multiplier) / plain
    for row in tuning_figures.BANDED_TABLE_4:
        several = row.mechanism == "Multi-epoch MF"
        if row is theirs:
            continue
        yield Cell(
            table="banded-4",
            row=f"{row.mechanism}, epsilon {row.epsilon:g}",
            column="sigma",
            printed=row.noise_multiplier,
            ours=gaussian_noise_multiplier(row.epsilon, _DELTA) * (sensitivity if several else 1.0),
        )


def _event(bands: int) -> dict[str, Any]:
    """What `bands` parts of StackOverflow's population are sampled with (banded paper, Cor. F.1)."""
    return {"probability": bands * COHORT / POPULATION, "compositions": math.ceil(ROUNDS / bands)}


def amplified_noise(bands: int, epsilon: float) -> float:
    """Noise multiplier of StackOverflow with Poisson sampling in `bands` parts, for a sensitivity of 1 under (k = 6, b = 342)."""
    return sampled_gaussian_noise_multiplier(epsilon, _DELTA, **_event(bands)) / math.sqrt(PARTICIPATIONS)


# How far the epsilon of a printed multiplier may be from the table's, as a share of it.
_SAME_EPSILON = 6e-4


def banded_table_5(quick: bool = False) -> Iterator[Cell]:
    """Choquette-Choo et al. 2023, App. I, Table 5: sigma. "Nearly": epsilon of the printed one is within 0.06% of the table's."""
    for row in tuning_figures.BANDED_TABLE_5:
        if quick and row.amplified and (row.mechanism == "DP-SGD" or row.epsilon not in (1.0, 8.0)):
            continue
        nearly = ""
        if row.amplified:
            assert row.bands is not None
            ours = amplified_noise(row.bands, row.epsilon)
            event_noise = float(row.noise_multiplier) * math.sqrt(PARTICIPATIONS)
            share = sampled_gaussian_epsilon(event_noise, _DELTA, **_event(row.bands)) / row.epsilon - 1
            nearly = f"the printed gives {100 * share:+.3f}% of epsilon" if abs(share) <= _SAME_EPSILON else ""
        else:
            ours = gaussian_noise_multiplier(row.epsilon, _DELTA)
        cell = functools.partial(
            Cell, table="banded-5", row=f"{row.mechanism}, epsilon {row.epsilon:g}", column="sigma"
        )
        yield cell(printed=row.noise_multiplier, ours=ours, nearly=nearly)


def banded_bands(quick: bool = False) -> Iterator[Cell]:
    """Choquette-Choo et al. 2023, Sec. 6: the best bands on StackOverflow. "Nearly": theirs are within 1% of our best rmse."""
    if quick:
        return
    workload = fedmf.prefix_sum(ROUNDS)
    for row in tuning_figures.BANDED_TABLE_5:
        if row.mechanism != "Band MF":
            continue
        ask = functools.partial(
            choose_bands,
            workload,
            population=POPULATION,
            cohort_size=COHORT,
            epsilon=row.epsilon,
            delta=_DELTA,
            progress=shown_on_terminal,
        )
        ours = ask(dense=True).best
        theirs = (
            ask(bands=[row.bands]).best if row.amplified and row.bands is not None else ask(bands=[], dense=True).best
        )
        worse = theirs.rmse / ours.rmse
        yield Cell(
            table="banded-bands",
            row=f"epsilon {row.epsilon:g}",
            column="bands",
            printed=str(row.bands),
            ours=ours.bands,
            nearly=f"the printed has {100 * (worse - 1):.2f}% more rmse" if worse <= CLOSE else "",
        )


def banded_k_1(quick: bool = False) -> Iterator[Cell]:
    """Choquette-Choo et al. 2023, App. K.1: epsilon at delta = 1e-10 of a rho of zCDP."""
    for rho, printed in tuning_figures.BANDED_K_1.items():
        ours = gaussian_epsilon(1.0 / math.sqrt(2.0 * float(rho)), 1e-10)
        yield Cell(table="banded-k1", row=f"rho {rho}", column="epsilon", printed=printed, ours=ours)


def multi_epoch_table_3(quick: bool = False) -> Iterator[Cell]:
    """Choquette-Choo et al. 2022, App. D, Table 3: noise multipliers at delta = 1e-6; epsilon of the MF column's multipliers."""
    for sigma, printed in tuning_figures.MULTI_EPOCH_TABLE_3.items():
        cell = functools.partial(Cell, table="multi-epoch-3", row=f"MF, epsilon {printed}")
        yield cell(column="sigma", printed=sigma, ours=gaussian_noise_multiplier(float(printed), _DELTA))
        yield cell(column="epsilon", printed=printed, ours=gaussian_epsilon(float(sigma), _DELTA))
    for sigma, printed in tuning_figures.MULTI_EPOCH_TABLE_3_DP_SGD.items():
        if quick:
            continue
        ours = sampled_gaussian_noise_multiplier(
            float(printed), _DELTA, probability=1000 / 342_477, compositions=ROUNDS
        )
        yield Cell(table="multi-epoch-3", row=f"DP-SGD, epsilon {printed}", column="sigma", printed=sigma, ours=ours)
    for sigma, printed in tuning_figures.MULTI_EPOCH_TABLE_3_GD.items():
        cell = functools.partial(Cell, table="multi-epoch-3", row=f"GD, epsilon {printed}")
        ours = gaussian_noise_multiplier(float(printed), _DELTA) * math.sqrt(ROUNDS)
        yield cell(column="sigma", printed=sigma, ours=ours)
        yield cell(column="epsilon on a grid", printed=printed, ours=_epsilon_on_a_grid(float(sigma)))


def _epsilon_on_a_grid(sigma: float) -> float:
    """As the accountant of the time had it: the loss of each round up to a multiple of 1e-4, and then the sum of all rounds' losses."""
    from dp_accounting.pld import privacy_loss_distribution

    one = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, value_discretization_interval=1e-4, use_connect_dots=False
    )
    return float(one.self_compose(ROUNDS).get_epsilon_for_delta(_DELTA))
