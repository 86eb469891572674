"""Figures of the paper on banded matrix factorization that are made without training. See
Choquette-Choo et al. 2023.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import fedmf
from fedmf.experiments.papers import printed
from fedmf.experiments.papers.clause import Clause, from_numbers
from fedmf.experiments.papers.drawing import (
    COLORS,
    Line,
    Lines,
    heat_maps,
)
from fedmf.experiments.papers.fits import epochs, fit, sums_once
from fedmf.experiments.papers.item import Outcome, Request, figure
from fedmf.experiments.papers.noise_tables import effective_rmse
from fedmf.reports.canvas import INK, blank

# Sizes for Figures 2, 3 and 8, small enough to draw: the number of parts of the population (b in
# the paper), of rounds (n), of clients (m), and of clients in a round (B), and a seed.
PARTS, ROUNDS, POPULATION, COHORT, SEED = 3, 9, 24, 3, 1


@figure("banded-figure-2")
def figure_2(request: Request) -> Outcome:
    """Plots the clients that take part in each round, which the participation controller samples.

    It samples as in Alg. 6 with subsets of fixed size. Round t samples from part t mod b, where b
    is the number of parts.
    """
    scheme = fedmf.CyclicFixedSize(population=POPULATION, cohort_size=COHORT, partitions=PARTS)
    controller = fedmf.ParticipationController(
        scheme.participation(ROUNDS),
        population=POPULATION,
        cohort_size=COHORT,
        seed=SEED,
        sampling=scheme,
    )
    cohorts = [list(map(int, controller.cohort(t))) for t in range(ROUNDS)]
    # Part j has the clients with the indices j, j + b, j + 2 b, ...
    client_parts = [range(j, POPULATION, PARTS) for j in range(PARTS)]
    return Outcome(
        _schedule(cohorts, client_parts),
        clauses=judge_figure_2(cohorts=cohorts),
        columns=("round", "part", "clients"),
        rows=[(t + 1, t % PARTS + 1, " ".join(map(str, c))) for t, c in enumerate(cohorts)],
        seeds=(SEED,),
    )


def _schedule(cohorts: Sequence[Sequence[int]], client_parts: Sequence[Sequence[int]]) -> Figure:
    """Plots the ids of each part's clients in every round, and fills those that take part."""
    drawing = blank(4.6)
    ax = drawing.subplots()
    clients_by_part = [client for part in client_parts for client in part]
    rows_by_client = {
        client: len(clients_by_part) - 1 - i for i, client in enumerate(clients_by_part)
    }
    for t, cohort in enumerate(cohorts):
        for client in client_parts[t % PARTS]:
            is_sampled = client in cohort
            style: dict[str, Any] = {"color": COLORS[t % PARTS], "fill": is_sampled}
            ax.add_patch(Rectangle((t + 0.55, rows_by_client[client] - 0.45), 0.9, 0.9, **style))
            text_color = "white" if is_sampled else INK
            text_position = (t + 1, rows_by_client[client])
            ax.text(
                *text_position,
                str(client),
                ha="center",
                va="center",
                fontsize=7.5,
                color=text_color,
            )
    ax.set(xlim=(0.4, ROUNDS + 0.6), ylim=(-0.7, len(clients_by_part) - 0.3), xlabel="round")
    ax.set_xticks(range(1, ROUNDS + 1))
    part_centres = [np.mean([rows_by_client[client] for client in part]) for part in client_parts]
    ax.set_yticks(part_centres, labels=[f"part {j + 1}" for j in range(PARTS)])
    ax.grid(visible=False)
    ax.set_title("clients by id; those that take part in the round are filled", fontsize=9)
    return drawing


def judge_figure_2(*, cohorts: Sequence[Sequence[int]]) -> list[Clause]:
    """Judges Figure 2 of the banded paper by the clients of each round."""
    parts_by_client: dict[int, set[int]] = {}
    for t, cohort in enumerate(cohorts):
        for client in cohort:
            parts_by_client.setdefault(client, set()).add(t % PARTS)
    num_in_two_parts = sum(len(parts) > 1 for parts in parts_by_client.values())
    cohort_sizes = sorted({len(set(cohort)) for cohort in cohorts})
    num_distinct = [len({frozenset(c) for c in cohorts[j::PARTS]}) for j in range(PARTS)]
    return [
        from_numbers(
            f"The rounds of one part sample from clients that no other of the {PARTS} parts has.",
            num_in_two_parts == 0,
            f"{num_in_two_parts} of {len(parts_by_client)} clients came in rounds of two parts",
        ),
        from_numbers(
            "Every cohort has the same size B.",
            cohort_sizes == [COHORT],
            f"B = {COHORT}; cohorts have {', '.join(map(str, cohort_sizes))} clients",
        ),
        from_numbers(
            "The subsets are random: a part has different cohorts in its rounds.",
            min(num_distinct) > 1,
            f"different cohorts of each part: {', '.join(map(str, num_distinct))}",
        ),
    ]


def _decomposed(rounds: int, request: Request) -> Outcome:
    """Plots the rows of C x that one client's participations change, where C is a banded encoder
    and x the updates.
    """
    C = fit(*sums_once(rounds), "banded", bands=PARTS).encoder()
    touched_rows = [
        [np.flatnonzero(C[:, t]) for t in range(j, rounds, PARTS)] for j in range(PARTS)
    ]
    part_panels = []
    for j, rows in enumerate(touched_rows):
        touched_image = np.where(C != 0, 0.1, 0.0)
        for k, here in enumerate(rows):
            # The image shows successive participations of a client in different colours.
            touched_image[here, j + k * PARTS] = (-1) ** k
        part_panels.append((f"part {j + 1} of {PARTS}", touched_image))
    return Outcome(
        heat_maps(part_panels, PARTS, height=6.2 / PARTS),
        clauses=judge_decomposed(touched_rows=touched_rows),
        columns=("part", "round", "rows of C x"),
        rows=[
            (j + 1, j + k * PARTS + 1, " ".join(str(i + 1) for i in rows))
            for j in range(PARTS)
            for k, rows in enumerate(touched_rows[j])
        ],
    )


def judge_decomposed(*, touched_rows: Sequence[Sequence[np.ndarray]]) -> list[Clause]:
    """Judges Figures 3 and 8 of the banded paper by the rows of C x that the participations of each
    part touch.
    """
    times_touched = [
        np.unique(np.concatenate(list(rows)), return_counts=True)[1] for rows in touched_rows
    ]
    return [
        from_numbers(
            f"With {PARTS} bands the participations of one client, {PARTS} rounds apart, touch "
            f"different rows of C x, so that they are independent queries.",
            all(bool((times == 1).all()) for times in times_touched),
            "; ".join(
                f"part {j + 1}: {len(times)} rows, each touched {times.min()} to {times.max()} "
                f"times"
                for j, times in enumerate(times_touched)
            ),
        )
    ]


figure("banded-figure-3")(functools.partial(_decomposed, 9))
figure("banded-figure-8")(functools.partial(_decomposed, 18))


@figure("banded-figure-6")
def figure_6(request: Request) -> Outcome:
    """Plots C and C^-1, the encoder and its inverse, of eight factorisations for n = 64 rounds."""
    num_rounds = 64
    workload, once = sums_once(num_rounds)
    four_epochs = epochs(num_rounds, 4)
    mechanisms = {
        "single-epoch": fit(workload, once, "dense"),
        "DP-SGD": fit(workload, once, "identity"),
        "8 epochs": fit(workload, epochs(num_rounds, 8), "dense"),
        "4 epochs": fit(workload, four_epochs, "dense"),
        "8 bands": fit(workload, four_epochs, "banded", bands=8, equal_norms=False),
        "EN, 8 bands": fit(workload, four_epochs, "banded", bands=8),
        "16 bands": fit(workload, four_epochs, "banded", bands=16, equal_norms=False),
        "EN, 16 bands": fit(workload, four_epochs, "banded", bands=16),
    }
    matrix_panels = []
    factorisation_rows = []
    for name, m in mechanisms.items():
        C = m.encoder()
        matrix_panels += [(f"{name}, C", C), (f"{name}, C⁻¹", m.noising())]
        column_norms = np.linalg.norm(C, axis=0)
        num_bands = int(max(i - j for i, j in np.argwhere(np.abs(C) > 1e-12))) + 1
        norm_ratio = float(column_norms.max() / column_norms.min())
        factorisation_rows.append(
            Factorisation(name, num_bands, norm_ratio, fedmf.rmse(m, workload, four_epochs))
        )
    return Outcome(
        heat_maps(matrix_panels, 4, height=1.4),
        clauses=judge_figure_6(rows=factorisation_rows),
        columns=(
            "mechanism",
            "bands",
            "largest over smallest column norm",
            "rmse under (k, b) = (4, 16)",
        ),
        rows=factorisation_rows,
    )


class Factorisation(NamedTuple):
    """Bands, column norms and error of a factorisation in Figure 6 of the banded paper.

    Attributes:
      name: name of the mechanism.
      bands: number of diagonals of the encoder with entries that are not 0.
      norm_ratio: largest column norm of the encoder, divided by its smallest.
      rmse: error for four epochs, 16 rounds apart.
    """

    name: str
    bands: int
    norm_ratio: float
    rmse: float


def judge_figure_6(*, rows: Sequence[Factorisation]) -> list[Clause]:
    """Judges Figure 6 of the banded paper by its eight factorisations."""
    rmse_by_name = {row.name: row.rmse for row in rows}
    banded_rows = [row for row in rows if "bands" in row.name]
    normalized_rows = [row for row in rows if row.name.startswith("EN")]
    best_name = min(rmse_by_name, key=lambda name: rmse_by_name[name])
    largest_ratio = max(row.norm_ratio for row in normalized_rows)
    return [
        from_numbers(
            "The encoders of the banded factorisations have 8 and 16 bands.",
            all(f"{row.bands} bands" in row.name for row in banded_rows),
            ", ".join(f"{row.name}: {row.bands}" for row in banded_rows),
        ),
        from_numbers(
            "The columns of the EN- encoders have equal norms.",
            largest_ratio < 1 + 1e-9,
            f"the largest norm is at most 1 + {largest_ratio - 1:.0e} times the smallest",
        ),
        from_numbers(
            "For four epochs the optimum for four epochs has the least error of the eight.",
            best_name == "4 epochs",
            "rmse: " + ", ".join(f"{value:.3f} {name}" for name, value in rmse_by_name.items()),
        ),
    ]


@figure("banded-figure-7")
def figure_7(request: Request) -> Outcome:
    """Plots the transposed encoder of the tree mechanism, and the encoder's pseudo-inverse."""
    num_rounds = 64
    mechanism = fit(*sums_once(num_rounds), "tree", decoder="full")
    C = mechanism.encoder()
    N = mechanism.noising()
    matrix_panels = [("Cᵀ of the binary tree", C.T), ("pseudo-inverse of C", N)]
    return Outcome(
        heat_maps(matrix_panels, 1, height=2.3, shared=False),
        clauses=judge_figure_7(encoder=C, noising=N),
        columns=("quantity", "value"),
        rows=[
            ("nodes", len(C)),
            ("rounds", num_rounds),
            (
                "largest difference of N from numpy's pseudo-inverse",
                np.abs(N - np.linalg.pinv(C)).max(),
            ),
        ],
    )


def judge_figure_7(*, encoder: np.ndarray, noising: np.ndarray) -> list[Clause]:
    """Judges Figure 7 of the banded paper by the encoder of the tree and the noise matrix of its
    full decoder.
    """
    num_nodes, num_rounds = encoder.shape
    node_sizes = sorted({int(row.sum()) for row in encoder})
    largest_difference = np.abs(noising - np.linalg.pinv(encoder)).max()
    noising_density = float((np.abs(noising) > 1e-12).mean())
    encoder_density = float((encoder != 0).mean())
    return [
        from_numbers(
            "The encoder is the binary tree over the rounds.",
            num_nodes == 2 * num_rounds - 1
            and node_sizes == [2**i for i in range(num_rounds.bit_length())]
            and bool(np.isin(encoder, (0, 1)).all()),
            f"{num_nodes} nodes over {num_rounds} rounds, of {', '.join(map(str, node_sizes))} "
            f"rounds each",
        ),
        from_numbers(
            "The full decoder of Honaker is the pseudo-inverse of the encoder.",
            bool(largest_difference < 1e-9),
            f"the largest difference from numpy's pseudo-inverse is {largest_difference:.0e}",
        ),
        from_numbers(
            "The pseudo-inverse is dense.",
            noising_density > 0.9,
            f"{100 * noising_density:.0f}% of its entries are not 0, and "
            f"{100 * encoder_density:.0f}% of the encoder's",
        ),
    ]


@figure("banded-figure-11")
def figure_11(request: Request) -> Outcome:
    """Plots tuned server learning rates over the effective rmse of sums and of single gradients.

    The effective rmse is that of Eq. 11 of the banded paper, and the rates are those of Table 6.
    """
    is_tiny = request.scale == "tiny"
    tuned_rows = [
        row
        for row in printed.BANDED_TABLE_6
        if not is_tiny or row.mechanism in ("DP-SGD", "Optimal TreeAgg")
    ]
    tuned_rates = np.array([float(row.optimum) for row in tuned_rows])
    mechanism_names = np.array([row.mechanism for row in tuned_rows])
    panels: list[Lines] = []
    error_columns = []
    for name, workload in (("prefix sums", "prefix_sum"), ("single gradients", "identity")):
        effective_errors = np.array(
            [effective_rmse(r, amplified=False, workload=workload) for r in tuned_rows]
        )
        slope, intercept = np.polyfit(np.log(effective_errors), np.log(tuned_rates), 1)
        correlation = np.corrcoef(np.log(effective_errors), np.log(tuned_rates))[0, 1]
        error_range = np.array([effective_errors.min(), effective_errors.max()])
        panels.append(
            Lines(
                {
                    m: Line(
                        effective_errors[mechanism_names == m], tuned_rates[mechanism_names == m]
                    )
                    for m in dict.fromkeys(mechanism_names)
                },
                f"effective rmse, {name}",
                "" if panels else "best server rate",
                beside={"regression": Line(error_range, np.exp(intercept) * error_range**slope)},
                points=True,
                log="xy",
                title=f"slope {slope:.2f}, correlation {correlation:.2f}",
            )
        )
        error_columns.append(effective_errors)
    return Outcome(
        panels,
        clauses=judge_figure_11(
            of_sums=error_columns[0], of_single=error_columns[1], rates=tuned_rates
        ),
        columns=("mechanism", "epsilon", "best rate", "prefix sums", "single gradients"),
        rows=[
            (row.mechanism, row.epsilon, row.optimum, *effective_errors)
            for row, *effective_errors in zip(tuned_rows, *error_columns, strict=True)
        ],
        reduced="two of the five mechanisms" if is_tiny else "",
    )


# Coefficients of the regression log(rate) = SLOPE log(rmse) + INTERCEPT in App. I.
SLOPE, INTERCEPT = -0.95, -4.64
# A correlation is called strong if it is at least this large in absolute value.
_STRONG = 0.9


def judge_figure_11(
    *, of_sums: np.ndarray, of_single: np.ndarray, rates: np.ndarray
) -> list[Clause]:
    """Judges Figure 11 of the banded paper by the best rates, and the errors of prefix sums and of
    single gradients.

    The regression is judged by its standard errors, because the rates are those of a grid.
    """
    log_rates = np.log(rates)
    (slope, intercept), covariance = np.polyfit(np.log(of_sums), log_rates, 1, cov=True)
    slope_error, intercept_error = np.sqrt(np.diagonal(covariance))
    sums_correlation, single_correlation = (
        float(np.corrcoef(np.log(errors), log_rates)[0, 1]) for errors in (of_sums, of_single)
    )
    return [
        from_numbers(
            "The logarithm of the best rate has a strong linear correlation with that of the "
            f"error of prefix sums (judged: beyond {_STRONG}).",
            abs(sums_correlation) > _STRONG,
            f"correlation {sums_correlation:.3f}",
        ),
        from_numbers(
            "It has none with the error of single gradients.",
            abs(single_correlation) < _STRONG,
            f"correlation {single_correlation:.3f}",
        ),
        from_numbers(
            f"The regression is log(rate) = {SLOPE} log(rmse) - {-INTERCEPT}, to a standard error "
            f"of each number.",
            bool(
                abs(slope - SLOPE) <= slope_error and abs(intercept - INTERCEPT) <= intercept_error
            ),
            f"{slope:.3f} (standard error {slope_error:.3f}) and {intercept:.3f} "
            f"({intercept_error:.3f})",
        ),
    ]
