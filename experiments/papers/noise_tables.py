"""Tables of the papers with noise multipliers, epsilons, numbers of bands and server learning
rates.
"""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import fedmf
from fedmf.experiments.papers import printed, stackoverflow
from fedmf.experiments.papers.accuracy import SETTING, by_setting
from fedmf.experiments.papers.band_sweep import sweep
from fedmf.experiments.papers.cells import Cell, Table, Trained, table
from fedmf.experiments.papers.clause import Clause, from_numbers, not_judged
from fedmf.experiments.papers.fits import epochs, fit, say, sums_once
from fedmf.experiments.papers.item import Request, Scale
from fedmf.experiments.papers.study_grid import Grid
from fedmf.privacy.amplification import sampled_gaussian_epsilon, sampled_gaussian_noise_multiplier
from fedmf.privacy.bands import CLOSE, BandSearch
from fedmf.privacy.gaussian import gaussian_epsilon, gaussian_noise_multiplier
from fedmf.privacy.learning_rate import predicted_learning_rate

_DELTA = 1e-6
# The StackOverflow experiments as in Table 5 of the banded paper: an epoch has 342 rounds of 1000
# clients. The runs of a single epoch (Table 4) have 167 clients a round.
ROUNDS, POPULATION, COHORT, SINGLE_EPOCH_COHORT = 2052, 342_000, 1000, 167
PARTICIPATIONS = 6
# A comparison with the paper says "nearly" if the table's epsilon and the epsilon of the printed
# noise multiplier differ by at most this relative amount.
_SAME_EPSILON = 6e-4


def _accuracies(
    grid: Grid, rows: Sequence[printed.NoiseRow] | Sequence[printed.TunedRow]
) -> Trained:
    """Returns a function that compares the accuracies of a study's runs with the printed ones.

    The printed accuracies of Tables 6 and 7 are on the validation set for each learning rate. Those
    of Tables 4 and 5 are on the test set for the best rate.
    """
    printed_accuracies = _printed_accuracies(rows)
    split_name = "test" if isinstance(rows[0], printed.NoiseRow) else "validation"

    def trained(request: Request) -> list[tuple[str, str, str, float, str]]:
        """Returns rows on the accuracies of the settings that have finished runs."""
        table_rows = []
        for values in by_setting(grid(request.scale), request):
            line, epsilon, rate = (values[name] for name in SETTING)
            num_runs = int(values[f"{split_name} runs"])
            if not num_runs:
                continue
            runs_text = "1 run" if num_runs == 1 else f"{num_runs} runs"
            lowest_accuracy = 100 * values[f"{split_name} min"]
            highest_accuracy = 100 * values[f"{split_name} max"]
            epsilon_text = "without noise" if math.isinf(epsilon) else f"epsilon {epsilon:g}"
            table_rows.append(
                (
                    f"{line}, {epsilon_text}, rate {rate:.4f}",
                    f"{split_name} accuracy, %",
                    printed_accuracies.get((line, epsilon, f"{rate:.4f}"), ""),
                    100 * values[f"{split_name} mean"],
                    f"trained: {runs_text}, {lowest_accuracy:.2f} to {highest_accuracy:.2f}",
                )
            )
        return table_rows

    return trained


def _printed_accuracies(
    rows: Sequence[printed.NoiseRow] | Sequence[printed.TunedRow],
) -> dict[tuple[str, float, str], str]:
    """Returns a mapping from (line, epsilon, learning rate) to the printed accuracy."""
    accuracies: dict[tuple[str, float, str], str] = {}
    for row in rows:
        if isinstance(row, printed.NoiseRow):
            # The study trains only matrices with fewer bands than rounds. The dense optimum has as
            # many bands as rounds, so no run of the study belongs to its row.
            if row.bands != ROUNDS:
                accuracies[row.mechanism, row.epsilon, row.learning_rate] = row.test
            continue
        # If two rows of the table have the same mechanism and epsilon, but different numbers of
        # bands, the second row has its own line in the study.
        has_line = any(key[:2] == (row.mechanism, row.epsilon) for key in accuracies)
        line_name = f"{row.mechanism}, {row.bands} bands" if has_line else row.mechanism
        for rate, accuracy in row.accuracies.items():
            accuracies[line_name, row.epsilon, rate] = accuracy
    if rows is printed.BANDED_TABLE_6:
        for rate, accuracy in printed.BANDED_TABLE_6_UNNOISED.items():
            accuracies[stackoverflow.UNNOISED, math.inf, rate] = accuracy
    return accuracies


def _bands(row: str, column: str, theirs: int, ours: int, ratio: float) -> Cell:
    """Returns the cell that compares a best number of bands with the printed one.

    `ratio` is the rmse with the printed number, divided by the least rmse.
    """
    near_note = f"the printed has {100 * (ratio - 1):.2f}% more rmse" if ratio <= CLOSE else ""
    return Cell(row, column, str(theirs), ours, near_note)


_SAME_RMSE_RULE = "the printed number of bands has at most 1% more error than the best"


def _claims_of_banded_table_3(cells: Sequence[Cell]) -> list[Clause]:
    """Judges whether the best number of bands falls with more epochs and with a smaller epsilon."""
    best_bands = {(cell.row, cell.column): cell.ours for cell in cells}
    row_names = list(dict.fromkeys(cell.row for cell in cells))
    column_names = list(dict.fromkeys(cell.column for cell in cells))
    bands_by_row = {row: [best_bands[row, column] for column in column_names] for row in row_names}
    bands_by_column = {
        column: [best_bands[row, column] for row in row_names] for column in column_names
    }
    falls_with_epochs = from_numbers(
        "The best number of bands decreases as epochs increase: it never rises, and falls for the "
        "largest epsilon.",
        all(line == sorted(line, reverse=True) for line in bands_by_row.values())
        and bands_by_row[row_names[-1]][0] > bands_by_row[row_names[-1]][-1],
        _ends(bands_by_row),
    )
    epsilon_text = (
        "It decreases as epsilon decreases: it never rises, and falls for the fewest epochs."
    )
    if len(row_names) < 2:
        return [falls_with_epochs, not_judged(epsilon_text, "this scale has one epsilon")]
    is_never_rising = all(line == sorted(line) for line in bands_by_column.values())
    fewest_epochs = bands_by_column[column_names[0]]
    return [
        falls_with_epochs,
        from_numbers(
            epsilon_text,
            is_never_rising and fewest_epochs[0] < fewest_epochs[-1],
            _ends(bands_by_column),
        ),
    ]


def _ends(line_by_name: Mapping[str, Sequence[float]]) -> str:
    """Returns text with the first and the last number of each line."""
    return "; ".join(f"{name}: {line[0]:g} to {line[-1]:g}" for name, line in line_by_name.items())


@table(Table("banded-table-3", rule=_SAME_RMSE_RULE), claims=_claims_of_banded_table_3)
def banded_table_3(scale: Scale) -> Iterator[Cell]:
    """Yields the cells of Table 3 of the banded paper, with the best numbers of bands. See
    Choquette-Choo et al. 2023, App. G.

    A cell is "nearly" right if the rmse of the printed number is within 1% of our best.
    """
    target_epsilons = tuple(printed.BANDED_TABLE_3) if scale == "full" else (8.0,)
    computed_epochs = [k for k in printed.BANDED_TABLE_3_EPOCHS if scale == "full" or k >= 256]
    sweep_results = sweep(epsilons=target_epsilons, epochs=computed_epochs)
    for i, epsilon in enumerate(target_epsilons):
        printed_by_epochs = dict(
            zip(printed.BANDED_TABLE_3_EPOCHS, printed.BANDED_TABLE_3[epsilon], strict=True)
        )
        for j, k in enumerate(computed_epochs):
            rmse_by_bands = sweep_results.rmse[i, j]
            rmse_ratio = (
                rmse_by_bands[sweep_results.bands.index(printed_by_epochs[k])] / rmse_by_bands.min()
            )
            yield _bands(
                f"epsilon {epsilon:g}",
                f"k = {k}",
                printed_by_epochs[k],
                int(sweep_results.best[i, j]),
                rmse_ratio,
            )


@table(
    Table("banded-table-4", trained_by="banded-figure-5", is_whole=True),
    _accuracies(stackoverflow.phones, printed.BANDED_TABLE_4),
)
def banded_table_4(scale: Scale) -> Iterator[Cell]:
    """Yields the cells of Table 4 of the banded paper, with noise multipliers at delta = 1e-6
    without amplification. See Choquette-Choo et al. 2023, App. I.

    The matrices of "Multi-epoch MF" are not published, so their sensitivity under b-min-sep is
    computed from the table's first row of that mechanism.
    """
    multi_epoch_row = next(
        row for row in printed.BANDED_TABLE_4 if row.mechanism == "Multi-epoch MF"
    )
    sensitivity = float(multi_epoch_row.noise_multiplier) / gaussian_noise_multiplier(
        multi_epoch_row.epsilon, _DELTA
    )
    for row in printed.BANDED_TABLE_4:
        if row is not multi_epoch_row:
            computed_noise = gaussian_noise_multiplier(row.epsilon, _DELTA)
            computed_noise *= sensitivity if row.mechanism == multi_epoch_row.mechanism else 1.0
            row_name = f"{row.mechanism}, epsilon {row.epsilon:g}"
            yield Cell(row_name, "sigma", row.noise_multiplier, computed_noise)


def event(bands: int) -> dict[str, Any]:
    """Returns the sampling probability and number of Poisson-sampled events, if StackOverflow's
    population is divided into `bands` partitions. See the banded paper, Cor. F.1.
    """
    return {"probability": bands * COHORT / POPULATION, "compositions": math.ceil(ROUNDS / bands)}


def amplified_noise(bands: int, epsilon: float) -> float:
    """Computes the noise multiplier of StackOverflow with Poisson sampling in `bands` partitions.

    The sensitivity is 1 for clients with k = 6 participations, b = 342 rounds apart.

    Each event is one participation of a column-normalised encoder, whose columns then have norm 1 /
    sqrt(6).
    """
    event_noise = sampled_gaussian_noise_multiplier(epsilon, _DELTA, **event(bands))
    return event_noise / math.sqrt(PARTICIPATIONS)


@table(
    Table(
        "banded-table-5",
        rule="the printed sigma has the table's epsilon to 0.06%",
        trained_by="banded-figure-1",
    ),
    _accuracies(stackoverflow.centre, printed.BANDED_TABLE_5),
)
def banded_table_5(scale: Scale) -> Iterator[Cell]:
    """Yields the cells of Table 5 of the banded paper, with noise multipliers sigma of the
    amplified mechanisms. See Choquette-Choo et al. 2023, App. I.

    A cell is "nearly" right if the epsilon of the printed sigma is within 0.06% of the table's.
    """
    for row in printed.BANDED_TABLE_5:
        computed_noise = gaussian_noise_multiplier(row.epsilon, _DELTA)
        near_note = ""
        if row.amplified and row.bands is not None:
            if scale != "full" and (row.mechanism == "DP-SGD" or row.epsilon not in (1.0, 8.0)):
                continue
            computed_noise = amplified_noise(row.bands, row.epsilon)
            event_noise = float(row.noise_multiplier) * math.sqrt(PARTICIPATIONS)
            printed_epsilon = sampled_gaussian_epsilon(event_noise, _DELTA, **event(row.bands))
            if abs(share := printed_epsilon / row.epsilon - 1) <= _SAME_EPSILON:
                near_note = f"the printed gives {100 * share:+.3f}% of epsilon"
        row_name = f"{row.mechanism}, epsilon {row.epsilon:g}"
        yield Cell(row_name, "sigma", row.noise_multiplier, computed_noise, near_note)


@table(Table("banded-sec-6", rule=_SAME_RMSE_RULE))
def banded_bands(scale: Scale) -> Iterator[Cell]:
    """Yields cells that compare the best numbers of bands on StackOverflow with those in the text
    of the banded paper. See Choquette-Choo et al. 2023, Sec. 6.

    A cell is "nearly" right if the rmse of the paper's number is within 1% of our best.
    """
    for row in printed.BANDED_TABLE_5:
        if row.mechanism != "Band MF" or row.bands is None or (scale != "full" and row.epsilon > 1):
            continue
        band_search = BandSearch(
            workload=fedmf.prefix_sum(ROUNDS),
            population=POPULATION,
            cohort_size=COHORT,
            epsilon=row.epsilon,
            delta=_DELTA,
        )
        say(f"bands for epsilon {row.epsilon:g}")
        tried_candidates = list(band_search.rows(None if scale == "full" else (4, 8, 12, 16)))
        if scale == "full":
            tried_candidates.append(band_search.dense())
        best_candidate = min(tried_candidates, key=lambda candidate: candidate.rmse)
        rmse_ratio = (
            band_search.banded(row.bands) if row.amplified else tried_candidates[-1]
        ).rmse / best_candidate.rmse
        yield _bands(
            f"epsilon {row.epsilon:g}", "bands", row.bands, best_candidate.bands, rmse_ratio
        )


@table(
    Table(
        "banded-app-k-1",
        rule="a rho that rounds to the printed one has the printed epsilon",
        is_whole=True,
    )
)
def banded_k_1(scale: Scale) -> Iterator[Cell]:
    """Yields cells that compare epsilon at delta = 1e-10 for a rho of zCDP with the banded paper's.
    See Choquette-Choo et al. 2023, App. K.1.
    """

    def epsilon_of(rho: float) -> float:
        return gaussian_epsilon(1.0 / math.sqrt(2.0 * rho), 1e-10)

    for rho, theirs in printed.BANDED_K_1.items():
        near_note = ""
        least, most = (epsilon_of(float(rho) + shift) for shift in (-0.005, 0.005))
        if least <= float(theirs) <= most:
            near_note = f"rho of {rho} +- 0.005 has {least:.2f} to {most:.2f}"
        yield Cell(f"rho {rho}", "epsilon", theirs, epsilon_of(float(rho)), near_note)


@table(
    Table(
        "multi-epoch-table-3",
        rule="by the accountant of the time, which rounds the losses of a round up to multiples of "
        "1e-4, the printed sigma has the printed epsilon",
    )
)
def multi_epoch_table_3(scale: Scale) -> Iterator[Cell]:
    """Yields the cells of Table 3 of the multi-epoch paper, with noise multipliers at delta = 1e-6.
    See Choquette-Choo et al. 2022, App. D.

    For the columns MF and GD, epsilons of the printed multipliers are compared as well.
    """
    for sigma, epsilon in printed.MULTI_EPOCH_TABLE_3.items():
        computed_value = gaussian_noise_multiplier(float(epsilon), _DELTA)
        yield Cell(f"MF, epsilon {epsilon}", "sigma", sigma, computed_value)
        computed_value = gaussian_epsilon(float(sigma), _DELTA)
        yield Cell(f"MF, epsilon {epsilon}", "epsilon", epsilon, computed_value)
    if scale == "full":
        for sigma, epsilon in printed.MULTI_EPOCH_TABLE_3_DP_SGD.items():
            computed_value = sampled_gaussian_noise_multiplier(
                float(epsilon), _DELTA, probability=1000 / 342_477, compositions=ROUNDS
            )
            yield Cell(f"DP-SGD, epsilon {epsilon}", "sigma", sigma, computed_value)
    for sigma, epsilon in printed.MULTI_EPOCH_TABLE_3_GD.items():
        computed_value = gaussian_noise_multiplier(float(epsilon), _DELTA) * math.sqrt(ROUNDS)
        grid_epsilon = epsilon_on_a_grid(float(sigma))
        near_note = ""
        if printed.agrees(grid_epsilon, epsilon):
            near_note = f"the printed has epsilon {grid_epsilon:.3f} on that grid"
        yield Cell(f"GD, epsilon {epsilon}", "sigma", sigma, computed_value, near_note)


def epsilon_on_a_grid(sigma: float) -> float:
    """Computes epsilon of all rounds with privacy losses on a grid, as accountants of 2022 did.

    They round each round's privacy loss up to a multiple of 1e-4, and add the losses.
    """
    from dp_accounting.pld import privacy_loss_distribution

    round_loss = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, value_discretization_interval=1e-4, use_connect_dots=False
    )
    return float(round_loss.self_compose(ROUNDS).get_epsilon_for_delta(_DELTA))


@functools.cache
def unit_rmse(mechanism: str, bands: int | None, measured: str = "prefix_sum") -> float:
    """Computes the rmse of a mechanism that is scaled to sensitivity 1.

    Clients have k = 6 participations, b = 342 rounds apart, or one where the table has a single
    epoch.

    All mechanisms are made for prefix sums. `measured` is the workload whose rmse is computed,
    "prefix_sum" or "identity".
    """
    workload, single = sums_once(ROUNDS)
    six_epochs = epochs(ROUNDS, PARTICIPATIONS)
    measured_workload = workload if measured == "prefix_sum" else fedmf.identity(ROUNDS)
    # The banded mechanism is fitted as if clients took part only once, as `choose_bands` does.
    if mechanism == "Band MF":
        return fedmf.rmse(
            fit(workload, single, "banded", bands=bands), measured_workload, six_epochs
        )
    participation = single if mechanism == "Single-epoch MF" else six_epochs
    family, options = {
        "DP-SGD": ("identity", {}),
        "Optimal TreeAgg": printed.OPTIMAL_TREE,
        "Multi-epoch MF": printed.EQUAL_NORMS,
        "Single-epoch MF": ("dense", {"tolerance": 1e-4}),
    }[mechanism]
    return fedmf.rmse(
        fit(workload, participation, family, **options), measured_workload, participation
    )


def effective_rmse(
    row: printed.TunedRow, *, amplified: bool, workload: str = "prefix_sum"
) -> float:
    """Computes the rmse of sums of mean updates at the noise multiplier sigma that we calibrate.

    It is the effective rmse of Eq. 11 of the banded paper. For the workload "identity" it is the
    rmse of single updates.

    With `amplified`, rows with fewer than 342 bands have amplified noise, as in Table 7.
    """
    sigma = gaussian_noise_multiplier(row.epsilon, _DELTA)
    if amplified and row.bands is not None and row.bands < ROUNDS // PARTICIPATIONS:
        sigma = amplified_noise(row.bands, row.epsilon)
    elif row.mechanism == "Multi-epoch MF" and not amplified:
        # The multi-epoch mechanism has sensitivity 1.1269 under b-min-sep participation. The
        # table's sigma includes this factor.
        printed_noise = {
            (r.mechanism, r.epsilon): r.noise_multiplier for r in printed.BANDED_TABLE_4
        }
        sigma = float(printed_noise[row.mechanism, row.epsilon])
    cohort_size = SINGLE_EPOCH_COHORT if row.mechanism == "Single-epoch MF" else COHORT
    return unit_rmse(row.mechanism, row.bands, workload) * sigma / cohort_size


_RATE_RULE = "the best rate of the grid is next to the rule's"


def rates(rows: tuple[printed.TunedRow, ...], amplified: bool, scale: Scale) -> Iterator[Cell]:
    """Yields cells that compare the printed best server learning rate with the one that a rule
    predicts from the rmse. See the banded paper, App. I.

    A cell is "nearly" right if the rule's rate is next to the best rate on the grid.
    """
    for row in rows:
        is_quick = row.mechanism in ("DP-SGD", "Optimal TreeAgg")
        if scale != "full" and (not is_quick or (amplified and row.epsilon < 8.0)):
            continue
        predicted_rate = predicted_learning_rate(effective_rmse(row, amplified=amplified))
        nearest_rate = min(printed.RATES, key=lambda tried: abs(float(tried) - predicted_rate))
        near_note = ""
        if nearest_rate in row.neighbours:
            best_accuracy = row.accuracies[row.optimum]
            predicted_accuracy = row.accuracies.get(nearest_rate)
            measured_text = (
                f"{best_accuracy}% at the optimum, {predicted_accuracy}% there"
                if predicted_accuracy
                else "not measured there"
            )
            near_note = f"beside the optimum; {measured_text}"
        bands_text = f", {row.bands} bands" if row.mechanism == "Band MF" else ""
        row_name = f"{row.mechanism}{bands_text}, epsilon {row.epsilon:g}"
        yield Cell(row_name, "server rate", row.optimum, predicted_rate, near_note)


@table(
    Table("banded-table-6", rule=_RATE_RULE, trained_by="banded-figure-5"),
    _accuracies(stackoverflow.phones, printed.BANDED_TABLE_6),
)
def banded_table_6(scale: Scale) -> Iterator[Cell]:
    """Returns the cells of Table 6 of the banded paper. See Choquette-Choo et al. 2023, App. I."""
    return rates(printed.BANDED_TABLE_6, False, scale)


@table(
    Table("banded-table-7", rule=_RATE_RULE, trained_by="banded-figure-1"),
    _accuracies(stackoverflow.centre, printed.BANDED_TABLE_7),
)
def banded_table_7(scale: Scale) -> Iterator[Cell]:
    """Returns the cells of Table 7 of the banded paper, with amplification. See Choquette-Choo et
    al. 2023, App. I.
    """
    return rates(printed.BANDED_TABLE_7, True, scale)
