"""Figures of the slides on correlated noise and buffered linear Toeplitz (BLT) mechanisms, with
errors, times and approximations.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import fedmf
from fedmf.experiments.papers import printed
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
    """Draws the largest error of a prefix sum over the number of rounds n, at noise multiplier
    1.
    """
    n = 2 ** np.arange(4, request.pick(9, 15, 18))
    errors = [
        {name: fedmf.max_error(m, *sums_once(int(i))) for name, m in mechanisms(int(i)).items()}
        for i in n
    ]
    series = {name: np.array([row[name] for row in errors]) for name in errors[0]}
    series[formula := "log(n) / π + 1.0663"] = np.log(n) / np.pi + printed.SLIDES_CONSTANT
    deviation = np.abs(series["optimal"] - series[formula])
    root = np.abs(series["independent"] / np.sqrt(n) - 1).max()
    excess = (series["BLT, 4 buffers"] / series["optimal"]).max() - 1
    return Outcome(
        [Lines(series, "rounds n", "largest error", x=n, column="n", log="xy")],
        f"The optimum is log(n) / pi + 1.0663 to within {deviation[-1]:.1e} at n = {n[-1]} and "
        f"{deviation[0]:.1e} at n = {n[0]}; independent noise is the root of n to {root:.0e}; four "
        f"buffers have at most {100 * excess:.2f}% more than the optimum.",
        (np.abs(4 * np.pi * n * deviation - 1) < 0.1).all() and root < 1e-12 and excess < 0.01,
    )


def _seconds(action: Callable[[], object], repeats: int) -> float:
    """Runs an action `repeats` times, and returns the shortest time in seconds."""
    times = []
    for _ in range(repeats):
        start_time = time.perf_counter()
        action()
        times.append(time.perf_counter() - start_time)
    return min(times)


def _row_maker(stream: NoiseStream, Z: np.ndarray, t: int) -> Callable[[], object]:
    """Returns a function that makes the noise vector of round t from the draws Z, which has one row
    of standard normals a round.

    A recurrence or buffers start from a zero state of the right size.
    """
    if stream.contraction is not None:
        weights = stream.contraction[t, : t + 1]
        return lambda: weights @ Z[: t + 1]
    state = np.zeros((stream.width, Z.shape[1]))
    return lambda: stream.step(t, Z[t], state)


@figure("slides-noise-time")
def noise_time(request: Request) -> Outcome:
    """Draws the time that the noise of iteration t takes, for a model of d parameters."""
    n, d, repeats = request.pick((64, 500, 3), (1024, 20_000, 7), (4096, 20_000, 7))
    Z = np.random.default_rng(0).standard_normal((n, d))
    t = 2 ** np.arange(3, n.bit_length())
    series = {}
    for name, mechanism in mechanisms(n).items():
        stream = mechanism.stream()
        series[name] = 1e3 * np.array(
            [_seconds(_row_maker(stream, Z, int(i) - 1), repeats) for i in t]
        )
    middle_index = len(t) // 2
    factor = t[-1] / t[middle_index]
    growth = {name: y[-1] / y[middle_index] for name, y in series.items()}
    other_growth = max(growth[name] for name in growth if name not in ("optimal", "independent"))
    return Outcome(
        [
            Lines(
                series, "iteration t", f"milliseconds, d = {d:,}", x=t, column="iteration", log="xy"
            )
        ],
        f"From iteration {t[middle_index]} to {t[-1]}, {factor:.0f} times as far, the optimum's "
        f"noise takes {growth['optimal']:.1f} times as long, that of bands and buffers at most "
        f"{other_growth:.1f} times.",
        growth["optimal"] > 0.4 * factor and other_growth < 2,
        seeds=(0,),
    )


def circle(n: int) -> np.ndarray:
    """Returns points on the upper half of the circle abs(x) = 1 - 1 / n, denser where sqrt(1 - x)
    is steep.

    By symmetry the upper half suffices.
    """
    return (1 - 1 / n) * np.exp(1j * np.concatenate([[0.0], np.geomspace(1e-9, np.pi, 20_000)]))


@figure("slides-approximation")
def approximation(request: Request) -> Outcome:
    """Draws the largest error of rational and polynomial generating functions on the circle abs(x)
    = 1 - 1 / n.
    """
    n, most = request.pick((64, 3), (2048, 8), (16384, 10))
    x = circle(n)
    degrees = np.arange(1, most + 1)
    single_sums = sums_once(n)
    root = np.sqrt(1 - x)
    optimum = fit(*single_sums, "toeplitz", coefficients="sqrt")
    errors = []
    for d in degrees:
        blt = fit(*single_sums, "blt", buffers=int(d), objective="max")
        r = np.ones_like(x)
        for a, b in zip(blt.decays, blt.inverse_decays, strict=True):
            r *= (1 - a * x) / (1 - b * x)
        excess = fedmf.max_error(blt, *single_sums) - fedmf.max_error(optimum, *single_sums)
        errors.append((np.abs(r - root).max(), max(excess, 1e-9), np.abs(1 / r - 1 / root).max()))
    rational, excesses, inverse = np.array(errors).T
    bound = 3 * np.exp(-np.sqrt(degrees))
    bands = 2 ** np.arange(int(np.log2(n)) + 1)
    c = optimum.toeplitz_coefficients()
    # All coefficients of the series are positive. So the error from cutting off the series is
    # largest at x = 1 - 1 / n.
    polynomial = np.array(
        [1 / abs(root[0]) - np.polynomial.polynomial.polyval(1 - 1 / n, c[:b]) for b in bands]
    )
    series = {
        "largest |r(x) - √(1 - x)|": rational,
        "3 exp(-√d)": bound,
        "max error above the optimum": excesses,
    }
    error_panel = Lines(series, "degree d of a rational r", "error", x=degrees, log="y")
    bound_panel = Lines(
        {"polynomial": Line(bands, polynomial), "rational": Line(degrees, inverse)},
        "degree: bands or buffers",
        "error on 1/√(1 - x)",
        log="xy",
    )
    sufficient_bands = bands[polynomial <= inverse[-1]]
    fewest_bands = sufficient_bands[0] if len(sufficient_bands) else f"more than {n}"
    return Outcome(
        [error_panel, bound_panel],
        f"On abs(x) = 1 - 1/{n} the error falls from {rational[0]:.2g} with one buffer to "
        f"{rational[-1]:.1g} with {most}; 3 exp(-sqrt d) at that degree is {bound[-1]:.2g}. On "
        f"1 / sqrt(1 - x) it takes a polynomial {fewest_bands} "
        f"bands to come to what {most} buffers have.",
        (rational <= bound).all() and (not len(sufficient_bands) or sufficient_bands[0] > 4 * most),
        columns=("degree", *series, "on 1 / sqrt(1 - x)"),
        rows=[(*row, on) for row, on in zip(error_panel.rows, inverse, strict=True)],
    )
