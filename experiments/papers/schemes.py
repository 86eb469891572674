"""Noise under every sampling scheme, as rmse of prefix sums of summed updates over epsilon.

The settings are the papers', with clip norm 1 and delta = 1e-6.

Each client takes part once in a given number of rounds on average, and the server samples the
clients. Every banded scheme has the best of the numbers of bands that are tried. Balls in bins and
min-sep Poisson are accounted by the sample with which `calibrate` searches, to 1% of epsilon.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import fedmf
from fedmf.experiments.papers.band_sweep import inverse
from fedmf.experiments.papers.clause import Clause, from_numbers
from fedmf.experiments.papers.drawing import Lines
from fedmf.experiments.papers.fits import epochs, fit, say, sums_once
from fedmf.experiments.papers.item import Outcome, Request, figure
from fedmf.mechanisms.leading import column_norm
from fedmf.privacy.gaussian import gaussian_noise_multiplier
from fedmf.privacy.sampling import Sampling

DELTA = 1e-6
UNAMPLIFIED, POISSON, ALLOCATION = "dense, unamplified", "cyclic Poisson", "random allocation"


class Point(NamedTuple):
    """Least rmse of a sampling scheme at one epsilon, with the best number of bands.

    For a full matrix `bands` is the number of rounds.
    """

    rounds: int
    separation: int
    scheme: str
    epsilon: float
    bands: int
    noise_multiplier: float
    rmse: float


Schemes = Mapping[str, tuple[Mapping[int, fedmf.Mechanism], Callable[[int], Sampling]]]


def schemes(rounds: int, separation: int) -> Schemes:
    """Returns for the name of each sampling scheme its mechanisms by number of bands, and a
    function that makes the scheme for a number of bands.

    A round has 1000 clients, and each client comes once in `separation` rounds on average.
    """
    size: dict[str, Any] = {"population": 1000 * separation, "cohort_size": 1000}
    # The numbers of bands divide the separation, because all sampling schemes allow such numbers.
    # Each is about twice the previous one.
    band_counts = [1]
    for b in range(2, separation + 1):
        if separation % b == 0 and b >= 1.9 * band_counts[-1]:
            band_counts.append(b)
    workload, once = sums_once(rounds)
    banded_by_bands = {b: fit(workload, once, "banded", bands=b) for b in band_counts}
    sampled_banded = {b: mechanism for b, mechanism in banded_by_bands.items() if b < separation}
    # Toeplitz and BLT mechanisms are fitted for the average number of participations. The dense
    # optimum for that number has negative entries, for which no guarantee is proven, so it is left
    # out.
    toeplitz, blt = (
        {rounds: fit(workload, epochs(rounds, rounds // separation), family)}
        for family in ("toeplitz", "blt")
    )
    balls_in_bins = fedmf.BallsInBins(population=size["population"], bins=separation)
    return {
        POISSON: (sampled_banded, lambda b: fedmf.CyclicPoisson(**size, partitions=b)),
        ALLOCATION: (sampled_banded, lambda b: fedmf.CyclicRandomAllocation(**size, partitions=b)),
        "min-sep Poisson": (sampled_banded, lambda b: fedmf.MinSepPoisson(**size, min_sep=b)),
        "balls in bins, banded": (banded_by_bands, lambda b: balls_in_bins),
        "balls in bins, Toeplitz": (toeplitz, lambda b: balls_in_bins),
        "balls in bins, BLT": (blt, lambda b: balls_in_bins),
    }


def points(rounds: int, separation: int, epsilons: Sequence[float]) -> Iterator[Point]:
    """Yields the best point (number of bands and rmse) of every scheme at every epsilon.

    Noise multipliers are in units of the largest column norm of the encoder.
    """
    workload, once = sums_once(rounds)
    fixed_order = fedmf.Participation(rounds=rounds, schema="fixed_epoch", min_sep=separation)
    dense_rmse = fedmf.rmse(
        fit(workload, fixed_order, "dense", tolerance=1e-3), workload, fixed_order
    )
    for epsilon in epsilons:
        sigma = gaussian_noise_multiplier(epsilon, DELTA)
        yield Point(rounds, separation, UNAMPLIFIED, epsilon, rounds, sigma, sigma * dense_rmse)
    for name, (mechanisms, scheme) in schemes(rounds, separation).items():
        noise_multipliers = []
        rmse_by_bands = []
        for b, mechanism in mechanisms.items():
            say(f"noise of {name}, {b} bands")
            sampling = scheme(b).for_mechanism(mechanism)
            noise_multipliers.append(_noise(sampling, mechanism, epsilons))
            rmse_by_bands.append(noise_multipliers[-1] * fedmf.rmse(mechanism, workload, once))
        for j, i in enumerate(np.argmin(rmse_by_bands, axis=0)):
            best_point = (
                list(mechanisms)[i],
                float(noise_multipliers[i][j]),
                float(rmse_by_bands[i][j]),
            )
            yield Point(rounds, separation, name, epsilons[j], *best_point)


def _noise(sampling: Sampling, mechanism: fedmf.Mechanism, epsilons: Sequence[float]) -> np.ndarray:
    largest_column_norm = column_norm(mechanism)
    search_options = (
        {"tolerance": 0.01, "ratio": 2.0} if sampling.simulated else {"tolerance": 1e-3}
    )
    return inverse(
        lambda s: sampling.expected_epsilon(mechanism, s * largest_column_norm, DELTA),
        epsilons,
        **search_options,
    )


@figure("fedmf-schemes")
def ways_to_draw(request: Request) -> Outcome:
    """Plots, for each setting and over epsilon, the ratio of the rmse of every sampling scheme to
    the rmse without amplification.
    """
    # A setting is a pair: the number of rounds, and the number of rounds in which every client
    # takes part once. Scale "full" has the settings (k, b) = (20, 100) and (6, 342) of the papers,
    # and two columns of Figure 4 of the banded paper.
    settings, epsilons = request.pick(
        (((16, 4),), (2.0, 4.0)),
        (((64, 16),), (1.0, 2.0, 4.0)),
        (((2000, 100), (2052, 342), (1024, 256), (1024, 32)), [2.0**i for i in range(-2, 5)]),
    )
    all_points = [point for n, b in settings for point in points(n, b, epsilons)]
    panels = []
    ratios = []
    for n, b in settings:
        setting_points = [point for point in all_points if point[:2] == (n, b)]
        rmse = {
            name: np.array([p.rmse for p in setting_points if p.scheme == name])
            for name in dict.fromkeys(p.scheme for p in setting_points)
        }
        ratios.append(rmse[ALLOCATION] / rmse[POISSON])
        panels.append(
            Lines(
                {name: y / rmse[UNAMPLIFIED] for name, y in rmse.items()},
                x=epsilons,
                xlabel="epsilon",
                ylabel="rmse over unamplified",
                title=f"n = {n}, once in {b} rounds",
                log="x",
                ticks=epsilons,
            )
        )
    return Outcome(
        panels,
        clauses=judge_ways_to_draw(settings=settings, epsilons=epsilons, ratios=ratios),
        columns=Point._fields,
        rows=all_points,
        reduced=""
        if request.scale == "full"
        else f"{len(settings)} settings, {len(epsilons)} epsilons",
    )


def judge_ways_to_draw(
    *,
    settings: Sequence[tuple[int, int]],
    epsilons: Sequence[float],
    ratios: Sequence[np.ndarray],
) -> list[Clause]:
    """Judges random allocation by its rmse over that of cyclic Poisson sampling, for
    each setting and epsilon.
    """
    return [
        from_numbers(
            f"At n = {n}, once in {b} rounds, random allocation has less error than cyclic Poisson "
            f"sampling at every epsilon.",
            bool((ratio < 1).all()),
            ", ".join(f"{r:.3f} times at {e:g}" for e, r in zip(epsilons, ratio, strict=True)),
        )
        for (n, b), ratio in zip(settings, ratios, strict=True)
    ]
