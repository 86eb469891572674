"""Figures of the slides on correlated noise and buffered linear Toeplitz (BLT) mechanisms, with
errors, times and approximations.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import fedmf
from fedmf.experiments.papers import printed
from fedmf.experiments.papers.clause import Clause, from_numbers
from fedmf.experiments.papers.drawing import Line, Lines
from fedmf.experiments.papers.fits import fit, sums_once
from fedmf.experiments.papers.item import Outcome, Request, figure
from fedmf.noise.stream import NoiseStream


def mechanisms(rounds: int) -> dict[str, Any]:
    """Returns the mechanisms that the slides compare for prefix sums."""
    single_sums = sums_once(rounds)
    return {
        "independent": fit(*single_sums, "identity"),
        "32 bands": fit(*single_sums, "toeplitz", bands=min(rounds, 32), objective="max"),
        "BLT, 2 buffers": fit(*single_sums, "blt", buffers=2, objective="max"),
        "BLT, 4 buffers": fit(*single_sums, "blt", buffers=4, objective="max"),
        "optimal": fit(*single_sums, "toeplitz", coefficients="sqrt"),
    }


@figure("slides-max-error")
def max_error(request: Request) -> Outcome:
    """Plots the largest error of a prefix sum over the number of rounds n, at noise multiplier
    1.
    """
    round_counts = 2 ** np.arange(4, request.pick(9, 15, 18))
    errors_by_rounds = [
        {name: fedmf.max_error(m, *sums_once(int(i))) for name, m in mechanisms(int(i)).items()}
        for i in round_counts
    ]
    error_by_name = {
        name: np.array([row[name] for row in errors_by_rounds]) for name in errors_by_rounds[0]
    }
    error_by_name["log(n) / π + 1.0663"] = np.log(round_counts) / np.pi + printed.SLIDES_CONSTANT
    return Outcome(
        [Lines(error_by_name, "rounds n", "largest error", x=round_counts, column="n", log="xy")],
        clauses=judge_max_error(
            rounds=round_counts, error_by_name=error_by_name, constant=printed.SLIDES_CONSTANT
        ),
    )


# Number of bands of the banded mechanism.
_BANDS = 32


def judge_max_error(
    *, rounds: np.ndarray, error_by_name: Mapping[str, np.ndarray], constant: float
) -> list[Clause]:
    """Judges the slides' claims on the largest error, by the errors of each mechanism over n.

    The optimum is 1 / (4 pi n) above the formula to first order, so that the constant is judged to
    a tenth of that.
    """
    independent, banded, _, blt, optimal = (
        error_by_name[name]
        for name in ("independent", "32 bands", "BLT, 2 buffers", "BLT, 4 buffers", "optimal")
    )
    log_deviation = np.abs(optimal - np.log(rounds) / np.pi - constant)
    root_difference = np.abs(independent / np.sqrt(rounds) - 1).max()
    least_ratio = min(float((y / optimal).min()) for y in (independent, banded, blt))
    blt_excess = (blt / optimal).max() - 1
    banded_power = np.log(banded[-1] / banded[-2]) / np.log(rounds[-1] / rounds[-2])
    return [
        from_numbers(
            f"At every n the largest error of the optimum is log(n) / pi + constant, which is "
            f"{constant:.4f}.",
            bool((np.abs(4 * np.pi * rounds * log_deviation - 1) < 0.1).all()),
            f"to within {log_deviation[0]:.1e} at n = {rounds[0]} and {log_deviation[-1]:.1e} at "
            f"n = {rounds[-1]}, which is 1 / (4 pi n)",
        ),
        from_numbers(
            "No other mechanism has a smaller largest error at any n.",
            least_ratio > 1 - 1e-9,
            f"the least ratio to the optimum is {least_ratio:.6f}",
        ),
        from_numbers(
            "That of independent noise is the square root of n.",
            bool(root_difference < 1e-12),
            f"to a share of {root_difference:.0e} at every n",
        ),
        from_numbers(
            "Buffers are nearly optimal: four have at most 1% more at every n.",
            bool(blt_excess < 0.01),
            f"at most {100 * blt_excess:.2f}% more",
        ),
        from_numbers(
            f"That of {_BANDS} bands grows as the square root of n (power within 0.15 of 0.5).",
            bool(abs(banded_power - 0.5) < 0.15),
            f"power {banded_power:.2f} from n = {rounds[-2]} to {rounds[-1]}",
        ),
    ]


def _seconds(action: Callable[[], object], repeats: int) -> float:
    """Runs an action `repeats` times, and returns the shortest time in seconds."""
    measured_times = []
    for _ in range(repeats):
        start_time = time.perf_counter()
        action()
        measured_times.append(time.perf_counter() - start_time)
    return min(measured_times)


def _row_maker(stream: NoiseStream, Z: np.ndarray, t: int) -> Callable[[], object]:
    """Returns a function that makes the noise vector of round t from the draws Z, which has one row
    of standard normals a round.

    A recurrence or buffers start from a zero state of the right size.
    """
    if stream.contraction is not None:
        noise_weights = stream.contraction[t, : t + 1]
        return lambda: noise_weights @ Z[: t + 1]
    stream_state = np.zeros((stream.width, Z.shape[1]))
    return lambda: stream.step(t, Z[t], stream_state)


def _num_vectors(stream: NoiseStream, t: int) -> int:
    """Returns how many vectors the noise of iteration t, counted from 1, is a sum of."""
    if stream.contraction is not None:
        return t
    # The recurrence reads the `width` vectors of its state, and one vector of new draws.
    return stream.width + 1


@figure("slides-noise-time")
def noise_time(request: Request) -> Outcome:
    """Plots how many vectors the noise of iteration t is a sum of, and measures the time that it
    takes, for a model of d parameters.
    """
    n, d, repeats = request.pick((64, 500, 3), (1024, 20_000, 7), (4096, 20_000, 7))
    Z = np.random.default_rng(0).standard_normal((n, d))
    t = 2 ** np.arange(3, n.bit_length())
    vectors_by_name = {}
    times_by_name = {}
    for name, mechanism in mechanisms(n).items():
        stream = mechanism.stream()
        vectors_by_name[name] = np.array([_num_vectors(stream, int(i)) for i in t])
        times_by_name[name] = 1e3 * np.array(
            [_seconds(_row_maker(stream, Z, int(i) - 1), repeats) for i in t]
        )
    vectors_label = "vectors in the sum"
    vectors_panel = Lines(
        vectors_by_name, "iteration t", vectors_label, x=t, column="iteration", log="xy"
    )
    return Outcome(
        [vectors_panel],
        clauses=judge_noise_time(
            iterations=t, time_by_name=times_by_name, vectors_by_name=vectors_by_name
        ),
        columns=(
            *vectors_panel.columns,
            *(f"{name}, milliseconds at d = {d}" for name in times_by_name),
        ),
        rows=[
            (*row, *ms)
            for row, *ms in zip(vectors_panel.rows, *times_by_name.values(), strict=True)
        ],
        seeds=(0,),
    )


def judge_noise_time(
    *,
    iterations: np.ndarray,
    time_by_name: Mapping[str, np.ndarray],
    vectors_by_name: Mapping[str, np.ndarray],
) -> list[Clause]:
    """Judges the slides' claims on time by the vectors of each iteration, and by how the measured
    time grows from the middle iteration to the last.
    """
    constant_vectors = {name: y for name, y in vectors_by_name.items() if name != "optimal"}
    middle_index = len(iterations) // 2
    iteration_ratio = iterations[-1] / iterations[middle_index]
    growth_by_name = {name: float(y[-1] / y[middle_index]) for name, y in time_by_name.items()}
    optimum_growth = growth_by_name.pop("optimal")
    span_text = f"from iteration {iterations[middle_index]} to {iterations[-1]}"
    growths_text = ", ".join(
        f"{value:.1f} times ({name})" for name, value in growth_by_name.items()
    )
    return [
        from_numbers(
            "The noise of the optimum in iteration t is a sum of t vectors.",
            bool((vectors_by_name["optimal"] == iterations).all()),
            f"{vectors_by_name['optimal'][-1]} in iteration {iterations[-1]}",
        ),
        from_numbers(
            "That of independent noise, bands and buffers is one of a constant number of vectors.",
            all(bool((y == y[0]).all()) for y in constant_vectors.values()),
            ", ".join(f"{y[-1]} ({name})" for name, y in constant_vectors.items()),
        ),
        from_numbers(
            "The time of the optimum grows with t (judged: at least 0.4 times as fast as t).",
            optimum_growth > 0.4 * iteration_ratio,
            f"{optimum_growth:.1f} times as long {span_text}, which is {iteration_ratio:.0f} times "
            f"as far",
        ),
        from_numbers(
            "The time of the others does not (judged: less than twice as long).",
            max(growth_by_name.values()) < 2,
            f"as long {span_text} as before: {growths_text}",
        ),
    ]


def circle(n: int) -> np.ndarray:
    """Returns points on the upper half of the circle abs(x) = 1 - 1 / n, denser where sqrt(1 - x)
    is steep.

    By symmetry the upper half suffices.
    """
    return (1 - 1 / n) * np.exp(1j * np.concatenate([[0.0], np.geomspace(1e-9, np.pi, 20_000)]))


def newman_error(degree: int) -> float:
    """Computes the largest error of Newman's rational function of a degree on sqrt(x), for x from 0
    to 1.

    With y = sqrt(x) it is y (p(y) - p(-y)) / (p(y) + p(-y)), where p is the product of y + xi^k for
    k < 2 degree, and xi = exp(-1 / sqrt(2 degree)).
    """
    y = np.concatenate([[0.0], np.geomspace(1e-9, 1.0, 20_000)])
    num_factors = 2 * degree
    powers = np.exp(-np.arange(num_factors) / np.sqrt(num_factors))
    product, reflected = (np.prod(sign * y[:, None] + powers, axis=1) for sign in (1.0, -1.0))
    rational_values = y * (product - reflected) / (product + reflected)
    return float(np.abs(rational_values - y).max())


@figure("slides-approximation")
def approximation(request: Request) -> Outcome:
    """Plots the largest error of rational and polynomial generating functions on the circle abs(x)
    = 1 - 1 / n.
    """
    n, most = request.pick((64, 3), (2048, 8), (16384, 10))
    x = circle(n)
    degrees = np.arange(1, most + 1)
    single_sums = sums_once(n)
    exact_root = np.sqrt(1 - x)
    optimum = fit(*single_sums, "toeplitz", coefficients="sqrt")
    rational_errors = []
    for d in degrees:
        blt = fit(*single_sums, "blt", buffers=int(d), objective="max")
        rational_values = np.ones_like(x)
        for a, b in zip(blt.decays, blt.inverse_decays, strict=True):
            rational_values *= (1 - a * x) / (1 - b * x)
        excess = fedmf.max_error(blt, *single_sums) - fedmf.max_error(optimum, *single_sums)
        rational_errors.append(
            (
                np.abs(rational_values - exact_root).max(),
                max(excess, 1e-9),
                np.abs(1 / rational_values - 1 / exact_root).max(),
            )
        )
    rational, excesses, inverse = np.array(rational_errors).T
    newman_bound = 3 * np.exp(-np.sqrt(degrees))
    band_counts = 2 ** np.arange(int(np.log2(n)) + 1)
    sqrt_coefficients = optimum.toeplitz_coefficients()
    # All coefficients of the series are positive. So the error from cutting off the series is
    # largest at x = 1 - 1 / n.
    polynomial = np.array(
        [
            1 / abs(exact_root[0])
            - np.polynomial.polynomial.polyval(1 - 1 / n, sqrt_coefficients[:b])
            for b in band_counts
        ]
    )
    error_by_label = {
        "largest |r(x) - √(1 - x)|": rational,
        "3 exp(-√d)": newman_bound,
        "max error above the optimum": excesses,
    }
    error_panel = Lines(error_by_label, "degree d of a rational r", "error", x=degrees, log="y")
    bound_panel = Lines(
        {"polynomial": Line(band_counts, polynomial), "rational": Line(degrees, inverse)},
        "degree: bands or buffers",
        "error on 1/√(1 - x)",
        log="xy",
    )
    return Outcome(
        [error_panel, bound_panel],
        clauses=judge_approximation(
            rational=rational,
            interval=np.array([newman_error(int(d)) for d in degrees]),
            bound=newman_bound,
            excess=excesses,
            inverse=inverse,
            polynomial=polynomial,
        ),
        columns=("degree", *error_by_label, "on 1 / sqrt(1 - x)"),
        rows=[(*row, on) for row, on in zip(error_panel.rows, inverse, strict=True)],
    )


def judge_approximation(
    *,
    rational: np.ndarray,
    interval: np.ndarray,
    bound: np.ndarray,
    excess: np.ndarray,
    inverse: np.ndarray,
    polynomial: np.ndarray,
) -> list[Clause]:
    """Judges the slides' claims on rational and polynomial approximation.

    Args:
      rational: error of degrees 1, 2, ... on sqrt(1 - x), on the circle.
      interval: error of Newman's rational functions of these degrees on sqrt(x), from 0 to 1.
      bound: 3 exp(-sqrt(degree)).
      excess: largest error of the same mechanisms above the optimum's.
      inverse, polynomial: errors on 1 / sqrt(1 - x), of these degrees, and of 1, 2, 4, ... bands.
    """
    largest_degree = len(rational)
    band_counts = 2 ** np.arange(len(polynomial))
    sufficient_bands = band_counts[polynomial <= inverse[-1]]
    fewest_bands = f"more than {band_counts[-1]}"
    if len(sufficient_bands):
        fewest_bands = str(sufficient_bands[0])
    return [
        from_numbers(
            "On the circle a rational function of degree d comes within 3 exp(-sqrt d) of "
            "sqrt(1 - x), at every d.",
            bool((rational <= bound).all()),
            f"{rational[0]:.2g} (bound {bound[0]:.2g}) at d = 1, {rational[-1]:.2g} "
            f"({bound[-1]:.2g}) at d = {largest_degree}",
        ),
        from_numbers(
            "A polynomial needs far more bands for the same error on 1 / sqrt(1 - x) (judged: more "
            "than 4 times the buffers).",
            not len(sufficient_bands) or bool(sufficient_bands[0] > 4 * largest_degree),
            f"{largest_degree} buffers have {inverse[-1]:.2g}, which takes {fewest_bands} bands",
        ),
        from_numbers(
            "With a better approximation the largest error approaches the optimum's.",
            bool((np.diff(excess) <= 0).all()),
            f"{excess[0]:.2g} above it at d = 1, {excess[-1]:.2g} at d = {largest_degree}",
        ),
        from_numbers(
            "On the interval from 0 to 1 a rational function of degree d comes within "
            "3 exp(-sqrt d) of sqrt(x), at every d: Newman's.",
            bool((interval <= bound).all()),
            f"{interval[0]:.2g} at d = 1, {interval[-1]:.2g} at d = {largest_degree}",
        ),
    ]
