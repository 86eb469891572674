"""Tables of noise multipliers, epsilons and numbers of bands, for `experiments.paper_tables`."""

import math
import sys
from collections.abc import Iterator

import fedmf
from fedmf.experiments import band_sweep, tuning_figures
from fedmf.experiments import paper_figures as figures
from fedmf.experiments.table_cells import Cell
from fedmf.privacy.amplification import sampled_gaussian_epsilon, sampled_gaussian_noise_multiplier
from fedmf.privacy.bands import CLOSE, BandSearch
from fedmf.privacy.gaussian import gaussian_epsilon, gaussian_noise_multiplier

_DELTA = 1e-6
# StackOverflow as banded Table 5 has it: 342 rounds of 1000 clients an epoch.
ROUNDS, POPULATION, COHORT = 2052, 342_000, 1000
PARTICIPATIONS = 6
# How far the epsilon of a printed multiplier may be from the table's, as a share of it.
_SAME_EPSILON = 6e-4
# Bands tried in quick rows, for epsilon 1.
_QUICK_BANDS = (4, 8, 12, 16)


def shown_on_terminal(phrase: str) -> None:
    """Shows progress on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{phrase}", end="", file=sys.stderr, flush=True)


def _bands(row: str, column: str, printed: int, ours: int, ratio: float) -> Cell:
    """A best number of bands; `ratio` is the rmse of the printed one over the best."""
    nearly = f"the printed has {100 * (ratio - 1):.2f}% more rmse" if ratio <= CLOSE else ""
    return Cell(row, column, str(printed), ours, nearly)


def banded_table_3(quick: bool = False) -> Iterator[Cell]:
    """Choquette-Choo et al. 2023, App. G, Table 3: the best bands. "Nearly": the printed number is
    within 1% of our best rmse.
    """
    epochs = figures.BANDED_TABLE_3_EPOCHS
    targets = (8.0,) if quick else tuple(figures.BANDED_TABLE_3)
    computed = tuple(k for k in epochs if k >= 256) if quick else epochs
    table = band_sweep.sweep(epsilons=targets, epochs=computed, progress=shown_on_terminal)
    for i, epsilon in enumerate(targets):
        for j, k in enumerate(computed):
            printed = figures.BANDED_TABLE_3[epsilon][epochs.index(k)]
            rmse = table.rmse[i, j]
            ratio = float(rmse[table.bands.index(printed)] / rmse.min())
            yield _bands(f"epsilon {epsilon:g}", f"k = {k}", printed, int(table.best[i, j]), ratio)


def banded_table_4(quick: bool = False) -> Iterator[Cell]:
    """Choquette-Choo et al. 2023, App. I, Table 4: noise multipliers at delta = 1e-6 without
    amplification.

    The matrices of "Multi-epoch MF" are not published; their sensitivity under b-min-sep is read
    off their first row.
    """
    first = next(row for row in tuning_figures.BANDED_TABLE_4 if row.mechanism == "Multi-epoch MF")
    sensitivity = float(first.noise_multiplier) / gaussian_noise_multiplier(first.epsilon, _DELTA)
    for row in tuning_figures.BANDED_TABLE_4:
        if row is not first:
            ours = gaussian_noise_multiplier(row.epsilon, _DELTA)
            ours *= sensitivity if row.mechanism == first.mechanism else 1.0
            yield Cell(
                f"{row.mechanism}, epsilon {row.epsilon:g}", "sigma", row.noise_multiplier, ours
            )


def _event(bands: int) -> tuple[float, int]:
    """Sampling probability and number of events for b partitions of StackOverflow's population
    (banded paper, Cor. F.1).
    """
    return bands * COHORT / POPULATION, math.ceil(ROUNDS / bands)


def amplified_noise(bands: int, epsilon: float) -> float:
    """Noise multiplier of StackOverflow with Poisson sampling in `bands` partitions, for a
    sensitivity of 1 under (k = 6, b = 342).

    Each event is one participation of a column-normalised encoder, whose columns then have
    norm 1 / sqrt(6).
    """
    q, events = _event(bands)
    per_event = sampled_gaussian_noise_multiplier(
        epsilon, _DELTA, probability=q, compositions=events
    )
    return per_event / math.sqrt(PARTICIPATIONS)


def banded_table_5(quick: bool = False) -> Iterator[Cell]:
    """Choquette-Choo et al. 2023, App. I, Table 5: sigma. "Nearly": epsilon of the printed one is
    within 0.06% of the table's.
    """
    for row in tuning_figures.BANDED_TABLE_5:
        if quick and row.amplified and (row.mechanism == "DP-SGD" or row.epsilon not in (1.0, 8.0)):
            continue
        ours, nearly = gaussian_noise_multiplier(row.epsilon, _DELTA), ""
        if row.amplified and row.bands is not None:
            ours = amplified_noise(row.bands, row.epsilon)
            q, events = _event(row.bands)
            per_event = float(row.noise_multiplier) * math.sqrt(PARTICIPATIONS)
            share = (
                sampled_gaussian_epsilon(per_event, _DELTA, probability=q, compositions=events)
                / row.epsilon
                - 1
            )
            nearly = (
                f"the printed gives {100 * share:+.3f}% of epsilon"
                if abs(share) <= _SAME_EPSILON
                else ""
            )
        yield Cell(
            f"{row.mechanism}, epsilon {row.epsilon:g}", "sigma", row.noise_multiplier, ours, nearly
        )


def banded_bands(quick: bool = False) -> Iterator[Cell]:
    """Choquette-Choo et al. 2023, Sec. 6: the best bands on StackOverflow. "Nearly": theirs are
    within 1% of our best rmse.
    """
    for row in tuning_figures.BANDED_TABLE_5:
        if (
            row.mechanism == "Band MF"
            and row.bands is not None
            and (row.epsilon == 1.0 or not quick)
        ):
            search = BandSearch(
                workload=fedmf.prefix_sum(ROUNDS),
                population=POPULATION,
                cohort_size=COHORT,
                epsilon=row.epsilon,
                delta=_DELTA,
            )
            shown_on_terminal(f"bands for epsilon {row.epsilon:g}")
            tried = list(search.rows(_QUICK_BANDS if quick else None))
            if not quick:
                tried.append(search.dense())
            best = min(tried, key=lambda candidate: candidate.rmse)
            printed = search.banded(row.bands) if row.amplified else tried[-1]
            yield _bands(
                f"epsilon {row.epsilon:g}", "bands", row.bands, best.bands, printed.rmse / best.rmse
            )


def banded_k_1(quick: bool = False) -> Iterator[Cell]:
    """Choquette-Choo et al. 2023, App. K.1: epsilon at delta = 1e-10 of a rho of zCDP."""
    for rho, printed in tuning_figures.BANDED_K_1.items():
        yield Cell(
            f"rho {rho}",
            "epsilon",
            printed,
            gaussian_epsilon(1.0 / math.sqrt(2.0 * float(rho)), 1e-10),
        )


def multi_epoch_table_3(quick: bool = False) -> Iterator[Cell]:
    """Choquette-Choo et al. 2022, App. D, Table 3: noise multipliers at delta = 1e-6; epsilon of
    the MF column's multipliers.
    """
    for sigma, epsilon in tuning_figures.MULTI_EPOCH_TABLE_3.items():
        yield Cell(
            f"MF, epsilon {epsilon}",
            "sigma",
            sigma,
            gaussian_noise_multiplier(float(epsilon), _DELTA),
        )
        yield Cell(
            f"MF, epsilon {epsilon}", "epsilon", epsilon, gaussian_epsilon(float(sigma), _DELTA)
        )
    for sigma, epsilon in tuple(tuning_figures.MULTI_EPOCH_TABLE_3_DP_SGD.items()) * (not quick):
        ours = sampled_gaussian_noise_multiplier(
            float(epsilon), _DELTA, probability=1000 / 342_477, compositions=ROUNDS
        )
        yield Cell(f"DP-SGD, epsilon {epsilon}", "sigma", sigma, ours)
    for sigma, epsilon in tuning_figures.MULTI_EPOCH_TABLE_3_GD.items():
        ours = gaussian_noise_multiplier(float(epsilon), _DELTA) * math.sqrt(ROUNDS)
        yield Cell(f"GD, epsilon {epsilon}", "sigma", sigma, ours)
        yield Cell(
            f"GD, epsilon {epsilon}", "epsilon on a grid", epsilon, _epsilon_on_a_grid(float(sigma))
        )


def _epsilon_on_a_grid(sigma: float) -> float:
    """Epsilon as the accountant of the time had it: it rounds each round's loss up to a multiple of
    1e-4 and adds the losses.
    """
    from dp_accounting.pld import privacy_loss_distribution

    one = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, value_discretization_interval=1e-4, use_connect_dots=False
    )
    return float(one.self_compose(ROUNDS).get_epsilon_for_delta(_DELTA))
