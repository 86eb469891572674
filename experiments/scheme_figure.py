"""Noise under every way to draw clients: `python -m fedmf.experiments.scheme_figure [--quick]
[--out schemes.png]`, with a CSV beside it.

rmse of prefix sums of sums of updates (clip norm 1) over epsilon at the papers' settings, delta =
1e-6. Each client comes once in so many rounds, on average; the server draws whom it likes. Every
banded scheme has its best number of bands of those tried. Balls in bins and min-sep Poisson are
accounted by the sample with which `calibrate` searches, to 1% of epsilon.
"""

import csv
import io
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import fedmf
from fedmf.experiments.band_sweep import inverse
from fedmf.experiments.figure_command import asked
from fedmf.experiments.table_cells import exit_status, fit, one_participation
from fedmf.files import write_atomically
from fedmf.privacy.gaussian import gaussian_noise_multiplier
from fedmf.privacy.sampling import Sampling
from fedmf.privacy.sampling.base import column_norm
from fedmf.reports.canvas import canvas, legend_above

DELTA = 1e-6
EPSILONS = tuple(2.0**i for i in range(-2, 5))
# (rounds, rounds in which every client comes once): (20, 100) and (6, 342) of the papers, and two
# columns of banded Fig. 4.
SETTINGS = ((2000, 100), (2052, 342), (1024, 256), (1024, 32))
# For tests and a first look.
QUICK_SETTINGS, QUICK_EPSILONS = ((16, 4),), (2.0, 4.0)

UNAMPLIFIED = "dense, unamplified"
STYLES = {  # colour and marker
    UNAMPLIFIED: ("#6b6b6b", "o"),
    "cyclic Poisson": ("#1f5f8b", "s"),
    "random allocation": ("#c1440e", "D"),
    "min-sep Poisson": ("#2e7d4f", "^"),
    "balls in bins, banded": ("#8e5ea2", "v"),
    "balls in bins, Toeplitz": ("#d4a017", "P"),
    "balls in bins, BLT": ("#5bb5c5", "X"),
}


class Point(NamedTuple):
    """The least rmse of a scheme at one epsilon, and its bands; `rounds` for a full matrix."""

    rounds: int
    separation: int
    scheme: str
    epsilon: float
    bands: int
    noise_multiplier: float
    rmse: float


class Setting:
    """One setting, with a population of 1000 clients a round.

    Args:
      rounds: n.
      separation: b, rounds in which every client comes once on average.
      epsilons: targets.
      progress: called with a phrase before each step.
    """

    def __init__(
        self,
        rounds: int,
        separation: int,
        epsilons: tuple[float, ...],
        progress: Callable[[str], None],
    ) -> None:
        self.rounds, self.separation, self.epsilons, self.progress = (
            rounds,
            separation,
            epsilons,
            progress,
        )
        self.workload, self.once = fedmf.prefix_sum(rounds), one_participation(rounds)
        self.repeated = fedmf.Participation(rounds=rounds, schema="fixed_epoch", min_sep=separation)
        self.size: dict[str, Any] = {"population": 1000 * separation, "cohort_size": 1000}
        # Divisors of b, which all schemes allow, each about twice the last.
        self.bands = [1]
        for b in range(2, separation + 1):
            if separation % b == 0 and b >= 1.9 * self.bands[-1]:
                self.bands.append(b)

    def points(self) -> Iterator[Point]:
        """The points of all schemes."""
        yield from self._unamplified()
        banded = {}
        for b in self.bands:
            self.progress(f"fitting {b} bands of {self.rounds}")
            banded[b] = fit(self.workload, self.once, "banded", bands=b)
        sampled = {b: mechanism for b, mechanism in banded.items() if b < self.separation}
        yield from self._best(
            "cyclic Poisson", sampled, lambda b: fedmf.CyclicPoisson(**self.size, partitions=b)
        )
        yield from self._best(
            "random allocation",
            sampled,
            lambda b: fedmf.CyclicShuffle(**self.size, partitions=b),
        )
        yield from self._best(
            "min-sep Poisson", sampled, lambda b: fedmf.MinSepPoisson(**self.size, min_sep=b)
        )
        bins = fedmf.BallsInBins(population=self.size["population"], bins=self.separation)
        yield from self._best("balls in bins, banded", banded, lambda b: bins)
        # Fitted for as many participations. The dense optimum for them has negative entries, for
        # which nothing is proven.
        for name, family in (("Toeplitz", "toeplitz"), ("BLT", "blt")):
            mechanism = fit(self.workload, self.repeated, family)
            yield from self._best(
                f"balls in bins, {name}", {self.rounds: mechanism}, lambda b: bins
            )

    def _unamplified(self) -> Iterator[Point]:
        self.progress(f"fitting the dense optimum of {self.rounds}")
        mechanism = fit(self.workload, self.repeated, "dense", tolerance=1e-3)
        error = fedmf.rmse(mechanism, self.workload, self.repeated)
        for epsilon in self.epsilons:
            sigma = gaussian_noise_multiplier(epsilon, DELTA)
            yield self._point(UNAMPLIFIED, epsilon, self.rounds, sigma, sigma * error)

    def _best(
        self, name: str, mechanisms: dict[int, fedmf.Mechanism], scheme: Callable[[int], Sampling]
    ) -> Iterator[Point]:
        """The mechanism of least rmse at each epsilon; the noise multiplier is in units of its
        largest column norm.
        """
        noise, error = (
            np.empty((len(mechanisms), len(self.epsilons))),
            np.empty((len(mechanisms), 1)),
        )
        for i, (b, mechanism) in enumerate(mechanisms.items()):
            self.progress(f"noise of {name}, {b} bands")
            sampling, norm = scheme(b).for_mechanism(mechanism), column_norm(mechanism)

            def epsilon_of(sigma: float) -> float:
                return sampling.expected_epsilon(mechanism, sigma * norm, DELTA)  # noqa: B023

            how = {"tolerance": 0.01, "ratio": 2.0} if sampling.simulated else {"tolerance": 1e-3}
            noise[i] = inverse(epsilon_of, self.epsilons, **how)
            error[i] = fedmf.rmse(mechanism, self.workload, self.once)
        for j, i in enumerate(np.argmin(noise * error, axis=0)):
            rmse = float(noise[i, j] * error[i, 0])
            yield self._point(name, self.epsilons[j], list(mechanisms)[i], float(noise[i, j]), rmse)

    def _point(
        self, scheme: str, epsilon: float, bands: int, noise_multiplier: float, rmse: float
    ) -> Point:
        return Point(self.rounds, self.separation, scheme, epsilon, bands, noise_multiplier, rmse)


def table(points: list[Point]) -> bytes:
    """All points as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Point._fields)
    writer.writerows(
        [f"{value:.6g}" if isinstance(value, float) else value for value in point]
        for point in points
    )
    return text.getvalue().encode()


def picture(points: list[Point]) -> bytes:
    """A PNG: for each setting rmse over epsilon, and its ratio to that without amplification."""
    settings = list(dict.fromkeys((point.rounds, point.separation) for point in points))
    schemes = [scheme for scheme in STYLES if any(point.scheme == scheme for point in points)]
    with canvas(2.3 * len(settings), "") as (figure, out):
        for (rounds, separation), (left, right) in zip(
            settings, figure.subplots(len(settings), 2, squeeze=False), strict=True
        ):
            lines = []
            here = [
                point
                for point in points
                if (point.rounds, point.separation) == (rounds, separation)
            ]
            for scheme in schemes:
                epsilons, errors = zip(
                    *((p.epsilon, p.rmse) for p in here if p.scheme == scheme), strict=True
                )
                base = np.array(
                    [p.rmse for p in here if p.scheme == UNAMPLIFIED and p.epsilon in epsilons]
                )
                color, marker = STYLES[scheme]
                style = {"color": color, "markersize": 4, "linewidth": 1.5, "marker": marker}
                lines += left.plot(epsilons, errors, **style)
                right.plot(epsilons, np.array(errors) / base, **style)
            left.set_yscale("log")
            left.set_title(f"n = {rounds}, once in {separation} rounds", fontsize=9.5)
            left.set_ylabel("rmse, clip norms", fontsize=8.5)
            right.set_ylabel("over unamplified", fontsize=8.5)
            for ax in (left, right):
                ax.set_xscale("log", base=2)
                ax.set_xlabel("epsilon", fontsize=8.5)
                ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
                ax.tick_params(labelsize=8)
            left.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        legend_above(figure, lines, schemes)
    return out.getvalue()


def main(arguments: list[str] | None = None) -> int:
    """Computes and draws the figure, and says where it is."""
    module = "fedmf.experiments.scheme_figure"
    quick, out, progress = asked(
        module, __doc__, arguments, out="schemes.png", quick="16 rounds and two epsilons"
    )
    settings, epsilons = (QUICK_SETTINGS, QUICK_EPSILONS) if quick else (SETTINGS, EPSILONS)
    points = [point for n, b in settings for point in Setting(n, b, epsilons, progress).points()]
    write_atomically(out, picture(points))
    write_atomically(out.with_suffix(".csv"), table(points))
    progress(f"{out} and {out.with_suffix('.csv')}")
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
