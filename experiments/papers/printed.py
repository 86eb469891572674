"""Numbers printed in the papers' tables, stored as strings with the digits that were printed.

"Denisov" is Denisov et al. 2022, "multi-epoch" is Choquette-Choo et al. 2022, "banded" is
Choquette-Choo et al. 2023, "slides" are Pillutla's of 2025 on buffered linear Toeplitz noise.
Runs that were tuned on StackOverflow have 2052 rounds of 1000 clients, which are six epochs, and
delta = 1e-6. Only "Single-epoch MF" has one epoch, with 167 clients a round.
"""

import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple


def agrees(value: float, printed: str) -> bool:
    """Returns whether `value` rounds to the printed number.

    If the number is printed with ≤, every value below it agrees.

    A value halfway between two printed numbers agrees with both. Differences in the last digits of
    float64 are ignored.

    >>> agrees(5.774e6, "5.8e6"), agrees(5.749e6, "5.8e6")
    (True, False)
    >>> agrees(1.1, "≤1.15"), agrees(1.16, "≤1.15")
    (True, False)
    """
    printed_center = Decimal(printed.lstrip("≤"))
    half_unit = float(Decimal(1).scaleb(int(printed_center.as_tuple().exponent))) / 2 * (1 + 1e-9)
    signed_difference = value - float(printed_center)
    return (
        math.isfinite(value)
        and signed_difference <= half_unit
        and (printed.startswith("≤") or signed_difference >= -half_unit)
    )


def table_rows(table: str) -> Iterator[list[str]]:
    """Yields the cells of each row of a table, separated by |.

    A line that begins with | continues the row before it.
    """
    for line in re.sub(r"\n *\|", "|", table.strip()).splitlines():
        yield [cell.strip() for cell in line.split("|")]


class DenisovRow(NamedTuple):
    """Row of Table 2 of Denisov's paper, with sqrt(loss) of prefix sums for a single participation.
    See Denisov et al. 2022, App. H.

    `bands` and `rank` belong to the column "efficient".
    """

    rounds: int
    honaker: str
    optimum: str
    efficient: str
    bands: int
    rank: int


DENISOV_TABLE_2 = tuple(
    DenisovRow(int(rounds), *losses.split(), *map(int, sizes.split()))  # type: ignore[arg-type]
    for rounds, losses, sizes in table_rows("""
         256 |  74.4  40.4  40.4 | 4 4
         512 | 116.5  62.0  62.2 | 5 4
        1024 | 180.8  94.6  95.5 | 5 5
        2048 | 278.3 143.6 145.8 | 6 5
        4096 | 425.6 217.3 224.0 | 6 6
    """)
)


# Values of the noise parameter nu that are tried. The slides print none, and say "For general
# problems ... tune the parameter nu". With nu = 0 the noise is the one for prefix sums.
NUS = (0.0, 0.01, 0.1)


class StampedRow(NamedTuple):
    """Row of Table 1 of the multi-epoch paper, with the loss of a stamped mechanism. See App. D.5.

    The workload is prefix sums of n = 2000 rounds. Clients have k = 20 participations, b = 100
    rounds apart.

    Attributes:
      name: mechanism, as the table writes it.
      participations: number k of participations that a dense part was optimised for; None for other
        mechanisms.
      times: number of stamps; each spans 2000 / times rounds.
      printed: printed loss.
    """

    name: str
    participations: int | None
    times: int
    printed: str

    @property
    def label(self) -> str:
        """Name of the row, as the table writes it."""
        part_rounds = 2000 // self.times
        part_label = (
            f"n={part_rounds}"
            if self.participations is None
            else f"k={self.participations}, n={part_rounds}"
        )
        return f"{self.name}({part_label})" + (f"x{self.times}" if self.times > 1 else "")

    @property
    def part(self) -> tuple[str, dict[str, Any]]:
        """Family and options with which `fedmf.fit` makes the mechanism that is stamped."""
        tolerance = 1e-6 if self.participations == 1 else 2e-3
        parts: dict[str, tuple[str, dict[str, Any]]] = {
            "(Online) Honaker": ("tree", {"decoder": "online"}),
            "Optimal Decoder Honaker": ("tree", {"decoder": "full"}),
            "MF": ("dense", {"tolerance": tolerance}),
            "FFT": ("fft", {"decoder": "plain"}),
            "FFT Optimal Decoder": ("fft", {"decoder": "optimal"}),
        }
        return parts[self.name]


# The table prints MF(k=1, n=100)x20 twice, with the same number. It is listed once here.
MULTI_EPOCH_TABLE_1 = tuple(
    StampedRow(name, int(k) if k else None, int(times), loss)
    for name, k, losses in table_rows("""
        (Online) Honaker        |    | 1 5.8e6  2 3.3e6  5 2.1e6  10 2.0e6  20 2.1e6
        Optimal Decoder Honaker |    | 1 2.4e6  2 1.6e6  5 1.2e6  10 1.4e6  20 1.8e6
        MF                      | 20 | 1 6.5e5
        MF                      | 10 | 2 8.8e5
        MF                      |  5 | 4 1.2e6
        MF                      |  1 | 1 1.6e6  2 1.37e6  4 1.4e6  5 1.5e6  10 1.8e6  20 2.5e6
        FFT                     |    | 1 2.3e6  2 1.8e6  5 1.6e6  10 1.9e6  20 2.5e6
        FFT Optimal Decoder     |    | 1 2.2e6  2 1.5e6  5 1.1e6  10 1.2e6  20 1.7e6
    """)
    for times, loss in (pair.split() for pair in losses.split("  "))
)
# Lower bound on the loss of MF(k=20, n=2000), from the caption of Table 1.
MULTI_EPOCH_TABLE_1_BOUND = "6.53e5"

# Table 6 of the multi-epoch paper, App. I.3, with n = 6 rounds and k = 3 participations, b = 2
# rounds apart. Its columns are the workload, the constraints, the smallest entry of X = C^T C, the
# smallest entry of X for two rounds of one client, and sqrt(loss). The constraints are called
# "signed" (Eq. 34), "pairs" (Eq. 36) and "all" (Eq. 35).
MULTI_EPOCH_TABLE_6 = tuple(
    table_rows("""
        prefix_sum | signed |  0.000 |  0.000 |  6.461
        prefix_sum | pairs  |  0.000 |  0.000 |  6.461
        prefix_sum | all    |  0.000 |  0.000 |  6.461
        momentum   | signed | -0.031 | -0.031 | 16.114
        momentum   | pairs  | -0.015 |  0.000 | 16.131
        momentum   | all    |  0.000 |  0.000 | 16.134
    """)
)


class BandedRow(NamedTuple):
    """Row of Table 2 of the banded paper, for prefix sums of n = 2052 rounds. See App. C.

    Matrices are scaled to sensitivity 1 for clients with k = 6 participations, b = 342 rounds
    apart.

    Attributes:
      label: name of the mechanism.
      family, options: family and options with which `fedmf.fit` makes it.
      single: sensitivity under a single participation.
      fixed_epoch: sensitivity under k = 6 participations in a fixed order, b = 342 rounds apart.
      min_sep: sensitivity under participations at least 342 rounds apart.
      error_fixed_epoch, error_min_sep: rmse under the last two schemas, in units of the rmse of the
        row "MF" under the fixed order.
    """

    label: str
    family: str
    options: dict[str, Any]
    single: str
    fixed_epoch: str
    min_sep: str
    error_fixed_epoch: str
    error_min_sep: str


_TREE: dict[str, Any] = {"decoder": "full", "completion": "none"}
_DENSE: dict[str, Any] = {"tolerance": 1e-4}
# Mechanisms of the banded paper's tables, as family and options of `fedmf.fit`. They are fitted for
# six epochs.
OPTIMAL_TREE = ("tree", _TREE)
EQUAL_NORMS = ("dense", {"equal_norms": True} | _DENSE)
BANDED_TABLE_2 = tuple(
    BandedRow(label, *made, *cells.split())
    for label, made, cells in (
        ("Optimal TreeAgg", OPTIMAL_TREE, "0.32 1.00 1.00 1.53 1.53"),
        ("DP-SGD", ("identity", {}), "0.41 1.00 1.00 9.63 9.63"),
        ("MF, 128 bands", ("banded", {"bands": 128, "equal_norms": False}),
         "0.52 1.00 1.04 1.23 1.29"),
        ("MF, 128 bands, equal norms", ("banded", {"bands": 128}), "0.41 1.00 1.00 1.27 1.27"),
        ("MF, 342 bands", ("banded", {"bands": 342, "equal_norms": False}),
         "0.52 1.00 1.04 1.04 1.08"),
        ("MF, 342 bands, equal norms", ("banded", {"bands": 342}), "0.41 1.00 1.00 1.05 1.05"),
        ("MF", ("dense", _DENSE), "0.50 1.00 ≤1.15 1.00 1.15"),
        ("MF, equal norms", EQUAL_NORMS, "0.41 1.00 ≤1.13 1.01 1.14"),
    )
)  # fmt: skip

# Table 3 of the banded paper, App. G: the best number of bands at n = 1024 rounds and delta = 1e-6.
# Each epsilon has a number for each of k = 1, 2, 4 .. 1024 epochs.
BANDED_TABLE_3_EPOCHS = tuple(2**i for i in range(11))
BANDED_TABLE_3 = {
    float(epsilon): tuple(map(int, bands.split()))
    for epsilon, bands in table_rows("""
        0.03125 |    2   2   1  1  1  1 1 1 1 1 1
        0.0625  |    4   2   1  1  1  1 1 1 1 1 1
        0.125   |    8   4   2  1  1  1 1 1 1 1 1
        0.25    |    8   4   4  2  1  1 1 1 1 1 1
        0.5     |   16   8   4  4  2  1 1 1 1 1 1
        1       |   32  16   8  4  2  2 1 1 1 1 1
        2       |   64  32  16  8  4  2 2 1 1 1 1
        4       |  128  64  32 16  8  4 2 2 1 1 1
        8       | 1024 512 256 32 16  8 4 2 2 1 1
        16      | 1024 512 256 128 64 32 8 4 4 2 1
    """)
}

# The slide "Toeplitz mechanism: optimal max error" states the error log(n) / pi + constant, and
# does not print this constant. The error is a Landau constant, the sum of (binomial(2 t, t) /
# 4^t)^2 over t < n, whose expansion has this constant.
SLIDES_CONSTANT = (0.5772156649015329 + 4.0 * math.log(2.0)) / math.pi

# Learning rates that were tried, 1.7^i for i = -9 .. 4, as the tables print them.
RATES = tuple(f"{1.7**i:.4f}" for i in range(-9, 5))
EPSILONS = (1.0, 2.0, 4.0, 8.0, 16.0)


class NoiseRow(NamedTuple):
    """Row of the banded paper's Table 4, which has no amplification, or of its Table 5.

    Attributes:
      mechanism: the table's name for the mechanism.
      bands: number of bands of a banded encoder, or 1 for sampled DP-SGD; None for other
        mechanisms.
      epsilon: privacy target at delta = 1e-6.
      noise_multiplier: sigma, for matrices of sensitivity 1 under (k = 6, b = 342).
      learning_rate: best server learning rate.
      test: test accuracy with that rate, in percent, or - if none is printed.
    """

    mechanism: str
    bands: int | None
    epsilon: float
    noise_multiplier: str
    learning_rate: str
    test: str

    @property
    def amplified(self) -> bool:
        """Whether Poisson sampling amplifies the row's guarantee."""
        return self.bands is not None and self.bands < 342


def _noise(table: str) -> tuple[NoiseRow, ...]:
    """Parses rows of "mechanism | bands | sigmas | best rates | test accuracies".

    Each column has one value for each epsilon.
    """
    return tuple(
        NoiseRow(name, int(b) if b else None, *cells)
        for name, bands, *columns in table_rows(table)
        for b, *cells in zip(
            bands.split() or [""] * 5, EPSILONS, *(c.split() for c in columns), strict=True
        )
    )


# The mechanism of the multi-epoch row has sensitivity 1.1269 under b-min-sep participation.
BANDED_TABLE_4 = _noise("""
    DP-SGD          | | 4.22468 2.23048 1.19352 0.65294 0.36861 | 0.0244 0.0414 0.0704 0.1197 0.3460
                      | 16.69 18.42 19.81 21.08 22.26
    Single-epoch MF | | 4.22468 2.23048 1.19352 0.65293 0.36861 | 0.1197 0.2035 0.3460 0.5882 1.0000
                      | 20.44 21.70 22.90 23.88 24.62
    Optimal TreeAgg | | 4.22468 2.23048 1.19352 0.65294 0.36861 | 0.2035 0.3460 0.5882 1.0000 1.7000
                      | 21.25 22.59 23.62 24.45 25.14
    Multi-epoch MF  | | 4.76079 2.51352 1.34498 0.73579 0.41539 | 0.2035 0.3460 0.5882 1.0000 1.7000
                      | 21.92 23.04 24.02 - 25.33
    Band MF | 342 342 342 342 342
                      | 4.22468 2.23048 1.19352 0.65294 0.36861 | 0.2035 0.5882 1.0000 1.0000 1.7000
                      | 22.05 23.19 24.16 24.88 25.41
""")
BANDED_TABLE_5 = _noise("""
    DP-SGD | 1 1 1 1 1
                      | 0.37313 0.30481 0.25136 0.20567 0.16876 | 0.3460 0.3460 0.3460 0.5882 0.5882
                      | 22.22 22.62 22.94 23.30 23.61
    Multi-epoch MF  | | 4.22468 2.23048 1.19352 0.65294 0.36861 | 0.2035 0.3460 0.5882 1.0000 1.7000
                      | 22.10 23.24 24.16 24.88 25.43
    Band MF | 9 18 32 64 2052
                      | 0.79118 0.64708 0.52224 0.43490 0.36861 | 0.3460 0.5882 1.0000 1.7000 1.7000
                      | 22.83 23.71 24.42 24.99 25.43
""")


class TunedRow(NamedTuple):
    """Row of Table 6 or 7 of the banded paper, with validation accuracy in percent by server
    learning rate.

    `optimum` is the rate that the table marks as the best.
    """

    mechanism: str
    epsilon: float
    accuracies: dict[str, str]
    optimum: str
    bands: int | None = None

    @property
    def neighbours(self) -> tuple[str, ...]:
        """Best rate and the rates next to it on the grid."""
        rate_index = RATES.index(self.optimum)
        return RATES[max(rate_index - 1, 0) : rate_index + 2]


def _tuned(table: str) -> tuple[TunedRow, ...]:
    """Parses rows of "mechanism[/bands] | epsilon | first rate | accuracies from that rate on |
    best rate".
    """
    tuned_rows = []
    for mechanism, epsilon, first, accuracies, optimum in table_rows(table):
        name, _, bands = mechanism.partition("/")
        accuracy_by_rate = dict(zip(RATES[RATES.index(first) :], accuracies.split(), strict=False))
        tuned_rows.append(
            TunedRow(name, float(epsilon), accuracy_by_rate, optimum, int(bands) if bands else None)
        )
    return tuple(tuned_rows)


# The last row of Table 6 of the banded paper is DP-SGD without noise. It is stored separately,
# because without error there is no predicted rate.
BANDED_TABLE_6_UNNOISED = {
    "1.0000": "25.96",
    "1.7000": "26.23",
    "2.8900": "26.24",
    "4.9130": "8.03",
}
BANDED_TABLE_6 = _tuned("""
    DP-SGD          |  1 | 0.0084 | 14.31 15.98 16.82 16.53 15.46 4.67  | 0.0244
    Single-epoch MF |  1 | 0.0704 | 20.16 20.29 19.68                   | 0.1197
    Optimal TreeAgg |  1 | 0.1197 | 21.08 21.15 20.34                   | 0.2035
    Multi-epoch MF  |  1 | 0.1197 | 21.56 21.96 21.60                   | 0.2035
    Band MF/342     |  1 | 0.1197 | 21.70 22.12 21.96                   | 0.2035
    DP-SGD          |  2 | 0.0143 | 16.20 17.88 18.70 18.22 17.75 15.52 | 0.0414
    Single-epoch MF |  2 | 0.1197 | 21.46 21.66 21.26                   | 0.2035
    Optimal TreeAgg |  2 | 0.2035 | 22.40 22.52 21.87                   | 0.3460
    Multi-epoch MF  |  2 | 0.2035 | 22.80 23.15 22.96                   | 0.3460
    Band MF/342     |  2 | 0.3460 | 23.27 23.31 22.57                   | 0.5882
    DP-SGD          |  4 | 0.0244 | 18.08 19.45 20.07 19.97 19.48 18.08 | 0.0704
    Single-epoch MF |  4 | 0.2035 | 22.66 22.94 22.60                   | 0.3460
    Optimal TreeAgg |  4 | 0.3460 | 23.57 23.66 23.27                   | 0.5882
    Multi-epoch MF  |  4 | 0.3460 | 23.87 24.19 24.01                   | 0.5882
    Band MF/342     |  4 | 0.5882 | 24.26 24.35 23.74                   | 1.0000
    DP-SGD          |  8 | 0.0704 | 20.61 21.26 21.24 20.89 20.00       | 0.1197
    Single-epoch MF |  8 | 0.3460 | 23.73 24.03 23.71                   | 0.5882
    Optimal TreeAgg |  8 | 0.5882 | 24.52 24.54 24.15                   | 1.0000
    Multi-epoch MF  |  8 | 0.5882 | 24.72 24.95 24.77 24.17             | 1.0000
    Band MF/342     |  8 | 0.5882 | 24.76 25.06 24.92                   | 1.0000
    DP-SGD          | 16 | 0.2035 | 22.39 22.51 22.17                   | 0.3460
    Single-epoch MF | 16 | 0.5882 | 24.66 24.80 24.50                   | 1.0000
    Optimal TreeAgg | 16 | 0.5882 | 24.89 25.15 25.15                   | 1.7000
    Multi-epoch MF  | 16 | 1.0000 | 25.38 25.50 25.34                   | 1.7000
    Band MF/342     | 16 | 1.0000 | 25.38 25.59 25.47                   | 1.7000
""")
BANDED_TABLE_7 = _tuned("""
    DP-SGD/1        |  1 | 0.2035 | 22.39 22.50 22.03                   | 0.3460
    Multi-epoch MF  |  1 | 0.1197 | 21.75 22.11 21.95                   | 0.2035
    Band MF/9       |  1 | 0.2035 | 22.83 23.11 23.03                   | 0.3460
    DP-SGD/1        |  2 | 0.2035 | 22.70 22.89 22.66                   | 0.3460
    Multi-epoch MF  |  2 | 0.2035 | 22.89 23.36 23.26                   | 0.3460
    Band MF/18      |  2 | 0.3460 | 23.80 24.01 23.77                   | 0.5882
    DP-SGD/1        |  4 | 0.2035 | 22.88 23.27 23.20                   | 0.3460
    Multi-epoch MF  |  4 | 0.3460 | 23.96 24.36 24.22 23.71             | 0.5882
    Band MF/32      |  4 | 0.5882 | 24.52 24.67 24.43                   | 1.0000
    DP-SGD/1        |  8 | 0.3460 | 23.48 23.59 23.28                   | 0.5882
    Multi-epoch MF  |  8 | 0.5882 | 24.79 25.08 24.98 24.55             | 1.0000
    Band MF/64      |  8 | 1.0000 | 25.15 25.26 24.79                   | 1.7000
    DP-SGD/1        | 16 | 0.3460 | 23.85 23.96 23.72                   | 0.5882
    Multi-epoch MF  | 16 | 1.0000 | 25.42 25.59 25.50 24.92             | 1.7000
    Band MF/342     | 16 | 1.0000 | 25.37 25.55 25.45 24.90             | 1.7000
    Band MF/64      | 16 | 1.0000 | 25.38 25.54 25.40                   | 1.7000
""")

# Table 3 of the multi-epoch paper, App. D, column MF: maps the noise multiplier to epsilon at delta
# = 1e-6.
MULTI_EPOCH_TABLE_3 = {"0.341": "17.648", "0.600": "8.841", "2.231": "2.000"}
# Column DP-SGD (6e) of Table 3 of the multi-epoch paper, for 2052 Poisson samples of 1000 of the
# 342,477 clients.
MULTI_EPOCH_TABLE_3_DP_SGD = {"0.402": "17.648", "0.491": "8.824", "0.757": "2.000"}
# Column GD (2052e) of Table 3 of the multi-epoch paper, where every client takes part in each of
# 2052 rounds.
MULTI_EPOCH_TABLE_3_GD = {"15.518": "17.648", "27.493": "8.824", "106.023": "2.000"}


class AccuracyRow(NamedTuple):
    """Row of Table 4 or 5 of the multi-epoch paper, with the mean test accuracy of several runs and
    its spread. See App. F.4.

    Attributes:
      mechanism: name of the line in Figure 3.
      epsilon: privacy target with two decimals, at delta = 1e-6.
      rate: server learning rate.
      mean, std, minimum, maximum: statistics of test accuracy; no standard deviation is printed for
        a single run.
      runs: number of runs.
    """

    mechanism: str
    epsilon: str
    rate: str
    mean: str
    std: str
    minimum: str
    maximum: str
    runs: int


MULTI_EPOCH_TABLES_4_AND_5 = tuple(
    AccuracyRow(*setting, *statistics.replace("-", "").split(" "), int(count))  # type: ignore
    for *setting, statistics, count in table_rows("""
        DP-SGDM,6e   |  2.00 | 0.25 | 0.22654 0.00009 0.22648 0.22660 | 2
        DP-SGDM,6e   |  2.00 | 0.50 | 0.22592 0.00013 0.22581 0.22606 | 3
        DP-SGDM,6e   |  2.00 | 1.00 | 0.21869 - 0.21869 0.21869 | 1
        DP-SGDM,6e   |  8.82 | 0.25 | 0.23154 0.00015 0.23143 0.23164 | 2
        DP-SGDM,6e   |  8.82 | 0.50 | 0.23447 0.00033 0.23419 0.23495 | 4
        DP-SGDM,6e   |  8.82 | 1.00 | 0.23135 0.00041 0.23106 0.23164 | 2
        DP-SGDM,6e   | 17.65 | 0.25 | 0.23290 0.00002 0.23289 0.23291 | 2
        DP-SGDM,6e   | 17.65 | 0.50 | 0.23728 0.00014 0.23710 0.23741 | 4
        DP-SGDM,6e   | 17.65 | 1.00 | 0.23571 0.00019 0.23558 0.23585 | 2
        DP-GDM,2052e |  2.00 | 0.50 | 0.24074 - 0.24074 0.24074 | 1
        DP-GDM,2052e |  2.00 | 1.00 | 0.24056 0.00097 0.23886 0.24125 | 5
        DP-GDM,2052e |  8.82 | 0.50 | 0.24640 0.00011 0.24632 0.24647 | 2
        DP-GDM,2052e |  8.82 | 1.00 | 0.25279 0.00019 0.25261 0.25306 | 4
        DP-GDM,2052e | 17.65 | 0.50 | 0.24686 0.00025 0.24668 0.24704 | 2
        DP-GDM,2052e | 17.65 | 1.00 | 0.25370 0.00039 0.25312 0.25394 | 4
        Honaker,6e   |  2.00 | 0.25 | 0.20951 0.00134 0.20857 0.21046 | 2
        Honaker,6e   |  2.00 | 0.50 | 0.19535 0.00114 0.19429 0.19655 | 3
        Honaker,6e   |  2.00 | 1.00 | 0.00011 - 0.00011 0.00011 | 1
        Honaker,6e   |  8.84 | 0.50 | 0.23952 0.00101 0.23881 0.24023 | 2
        Honaker,6e   |  8.84 | 1.00 | 0.23799 0.00212 0.23649 0.23949 | 2
        Honaker,6e   | 17.65 | 0.50 | 0.24422 0.00037 0.24383 0.24456 | 3
        Honaker,6e   | 17.65 | 1.00 | 0.24675 0.00128 0.24540 0.24810 | 5
        MF1,1e       |  2.00 | 0.25 | 0.19674 0.00057 0.19633 0.19715 | 2
        MF1,1e       |  2.00 | 0.50 | 0.00093 0.00108 0.00017 0.00169 | 2
        MF1,1e       |  8.84 | 0.25 | 0.23500 0.00009 0.23493 0.23506 | 2
        MF1,1e       |  8.84 | 0.50 | 0.24105 0.00083 0.24019 0.24190 | 4
        MF1,1e       |  8.84 | 1.00 | 0.23909 0.00196 0.23767 0.24132 | 3
        MF1,1e       | 17.65 | 0.25 | 0.23576 0.00019 0.23562 0.23590 | 2
        MF1,1e       | 17.65 | 0.50 | 0.24503 0.00056 0.24408 0.24565 | 6
        MF1,1e       | 17.65 | 1.00 | 0.24522 0.00102 0.24424 0.24628 | 3
        MF1,6e       |  2.00 | 0.25 | 0.22953 0.00046 0.22921 0.22985 | 2
        MF1,6e       |  2.00 | 0.50 | 0.22324 0.00017 0.22308 0.22341 | 3
        MF1,6e       |  2.00 | 1.00 | 0.00010 - 0.00010 0.00010 | 1
        MF1,6e       |  8.84 | 0.50 | 0.24516 - 0.24516 0.24516 | 1
        MF1,6e       |  8.84 | 1.00 | 0.24676 0.00044 0.24628 0.24714 | 3
        MF1,6e       | 17.65 | 0.50 | 0.24628 - 0.24628 0.24628 | 1
        MF1,6e       | 17.65 | 1.00 | 0.25194 0.00085 0.25124 0.25288 | 3
        MF6,6e       |  2.00 | 0.25 | 0.22978 0.00038 0.22939 0.23014 | 3
        MF6,6e       |  2.00 | 0.50 | 0.23237 0.00078 0.23147 0.23286 | 3
        MF6,6e       |  2.00 | 1.00 | 0.22413 0.00055 0.22365 0.22472 | 3
        MF6,6e       |  8.84 | 0.50 | 0.24509 0.00010 0.24497 0.24515 | 3
        MF6,6e       |  8.84 | 1.00 | 0.24897 0.00081 0.24804 0.24955 | 3
        MF6,6e       | 17.65 | 0.50 | 0.24632 0.00015 0.24618 0.24648 | 3
        MF6,6e       | 17.65 | 1.00 | 0.25265 0.00025 0.25240 0.25291 | 3
    """)
)
# Test accuracies in the text of Sec. 5.3 of the multi-epoch paper, in percent: (mechanism, epsilon)
# -> accuracy. Those without noise have epsilon "inf". The last one is of Kairouz et al.
# 2021.
MULTI_EPOCH_TEXT = {
    ("MF6,6e", "17.7"): "25.25",
    ("MF6,6e", "8.84"): "24.94",
    ("MF1,1e", "8.84"): "24.11",
    ("DP-GDM,2052e", "17.7"): "25.31",
    ("no noise", "inf"): "25.43",
    ("Honaker,6e", "21.0"): "24.86",
    ("no noise, Kairouz et al.", "inf"): "25.2",
}

# App. K.1 of the banded paper, at delta = 1e-10: maps the rho of zCDP to epsilon.
BANDED_K_1 = {"0.24": "4.35", "0.52": "6.69"}
