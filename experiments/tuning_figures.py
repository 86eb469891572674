"""Noise multipliers and learning rates that the papers tuned on StackOverflow, as data: strings,
with the digits that were printed.

"banded" is Choquette-Choo et al. 2023, App. I, Tables 4 to 7; "multi-epoch" is Choquette-Choo et
al. 2022, App. D. All runs but "Single-epoch MF" (167 clients a round, one epoch) are 2052 rounds of
1000 clients, six epochs, with delta = 1e-6.
"""

from typing import NamedTuple

# The learning rates that were tried: 1.7^i for i = -9 .. 4, as the tables print them.
RATES = tuple(f"{1.7**i:.4f}" for i in range(-9, 5))
EPSILONS = (1.0, 2.0, 4.0, 8.0, 16.0)


class NoiseRow(NamedTuple):
    """A row of banded Table 4 (no row is amplified) or 5.

    Attributes:
      mechanism: the table's name for it.
      epsilon: at delta = 1e-6.
      noise_multiplier: sigma, for matrices of sensitivity 1 under (k = 6, b = 342).
      learning_rate: the best server rate.
      bands: of the encoder where it is banded or, for DP-SGD, diagonal and sampled;
        None for others.
      amplified: by Poisson sampling.
    """

    mechanism: str
    epsilon: float
    noise_multiplier: str
    learning_rate: str
    bands: int | None = None
    amplified: bool = False


_NONE = (None,) * 5
_PLAIN = "4.22468 2.23048 1.19352 0.65294 0.36861"
# mechanism -> sigmas and best rates for EPSILONS.
BANDED_TABLE_4 = tuple(
    NoiseRow(mechanism, *row)
    for mechanism, sigmas, rates, bands in (
        ("DP-SGD", _PLAIN, "0.0244 0.0414 0.0704 0.1197 0.3460", _NONE),
        (
            "Single-epoch MF",
            "4.22468 2.23048 1.19352 0.65293 0.36861",
            "0.1197 0.2035 0.3460 0.5882 1.0000",
            _NONE,
        ),
        ("Optimal TreeAgg", _PLAIN, "0.2035 0.3460 0.5882 1.0000 1.7000", _NONE),
        # Of sensitivity 1.1269 under b-min-sep.
        (
            "Multi-epoch MF",
            "4.76079 2.51352 1.34498 0.73579 0.41539",
            "0.2035 0.3460 0.5882 1.0000 1.7000",
            _NONE,
        ),
        ("Band MF", _PLAIN, "0.2035 0.5882 1.0000 1.0000 1.7000", (342,) * 5),
    )
    for row in zip(EPSILONS, sigmas.split(), rates.split(), bands, strict=True)
)
BANDED_TABLE_5 = tuple(
    NoiseRow(mechanism, *row, amplified=row[-1] is not None and row[-1] < 342)
    for mechanism, sigmas, rates, bands in (
        ("DP-SGD", "0.37313 0.30481 0.25136 0.20567 0.16876", "0.3460 0.3460 0.3460 0.5882 0.5882",
         (1,) * 5),
        ("Multi-epoch MF", _PLAIN, "0.2035 0.3460 0.5882 1.0000 1.7000", _NONE),
        ("Band MF", "0.79118 0.64708 0.52224 0.43490 0.36861",
         "0.3460 0.5882 1.0000 1.7000 1.7000", (9, 18, 32, 64, 2052)),
    )
    for row in zip(EPSILONS, sigmas.split(), rates.split(), bands, strict=True)
)  # fmt: skip


class TunedRow(NamedTuple):
    """A row of banded Table 6 or 7: validation accuracy in percent by server learning rate, and the
    rate that the table marks.
    """

    mechanism: str
    epsilon: float
    accuracies: dict[str, str]
    optimum: str
    bands: int | None = None

    @property
    def neighbours(self) -> tuple[str, ...]:
        """The optimum and the rates beside it."""
        at = RATES.index(self.optimum)
        return RATES[max(at - 1, 0) : at + 2]


def _tuned(table: str) -> tuple[TunedRow, ...]:
    """Rows of "mechanism[/bands] | epsilon | the first rate tried | accuracies from
    there on | optimum".
    """
    rows = []
    for line in table.strip().splitlines():
        mechanism, epsilon, first, accuracies, optimum = (cell.strip() for cell in line.split("|"))
        name, _, bands = mechanism.partition("/")
        tried = dict(zip(RATES[RATES.index(first) :], accuracies.split(), strict=False))
        rows.append(TunedRow(name, float(epsilon), tried, optimum, int(bands) if bands else None))
    return tuple(rows)


# Without its last row, DP-SGD without noise: there is no error to predict a rate from.
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

# Multi-epoch, App. D, Table 3, column MF: noise multiplier -> epsilon at delta = 1e-6.
MULTI_EPOCH_TABLE_3 = {"0.341": "17.648", "0.600": "8.841", "2.231": "2.000"}
# Its column DP-SGD (6e): 2052 Poisson samples of 1000 of 342,477 clients.
MULTI_EPOCH_TABLE_3_DP_SGD = {"0.402": "17.648", "0.491": "8.824", "0.757": "2.000"}
# Its column GD (2052e): everybody in each of 2052 rounds.
MULTI_EPOCH_TABLE_3_GD = {"15.518": "17.648", "27.493": "8.824", "106.023": "2.000"}

# Banded, App. K.1, at delta = 1e-10: rho of zCDP -> epsilon.
BANDED_K_1 = {"0.24": "4.35", "0.52": "6.69"}
