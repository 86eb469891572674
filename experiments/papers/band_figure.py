"""Banded Fig. 4: rmse of prefix sums of mean updates for delta = 1e-6, over epsilon and epochs.

DP-SGD is amplified by Poisson sampling; multi-epoch MF is the best encoder of all for that many
epochs, without amplification; BandMF has its best number of bands, amplified.
"""

import numpy as np

import fedmf
from fedmf.experiments.papers.band_sweep import sweep
from fedmf.experiments.papers.drawing import Lines
from fedmf.experiments.papers.fits import epochs, fit, say
from fedmf.experiments.papers.item import Outcome, Request, figure
from fedmf.privacy.gaussian import gaussian_noise_multiplier

DELTA = 1e-6


def span(values: np.ndarray) -> str:
    """From the smallest to the largest."""
    return f"{values.min():.2f} to {values.max():.2f}"


@figure("banded-figure-4")
def figure_4(request: Request) -> Outcome:
    """RMSE of three mechanisms over epsilon and epochs, of means in units of the clip norm over one
    epoch's cohort. A run of k epochs has cohorts of k times that size.
    """
    every = tuple(2.0**i for i in range(-5, 5))
    rounds, epsilons = request.pick((16, (1.0, 8.0)), (256, every[::3]), (1024, every))
    numbers = tuple(2**i for i in range(rounds.bit_length()))
    found = sweep(rounds=rounds, delta=DELTA, epsilons=epsilons, epochs=numbers)
    workload, dense = fedmf.prefix_sum(rounds), []
    for k in numbers:
        say(f"fitting the dense optimum of {k} epochs")
        order = epochs(rounds, k)
        mechanism = fit(workload, order, "dense", tolerance=1e-3)
        dense.append(fedmf.rmse(mechanism, workload, order))
    noise = [gaussian_noise_multiplier(epsilon, DELTA) for epsilon in epsilons]
    dp_sgd, multi_epoch = found.rmse[:, :, 0] / numbers, np.outer(noise, dense) / numbers
    banded = found.rmse.min(axis=-1) / numbers
    over_sgd, over_mf, between = banded / dp_sgd, banded / multi_epoch, multi_epoch / dp_sgd
    ratios = {"BandMF / DP-SGD": over_sgd, "BandMF / multi-epoch MF": over_mf}
    panels = [
        Lines(
            {f"epsilon {e:g}": ratio[i] for i, e in enumerate(epsilons)},
            "epochs",
            "ratio of rmse",
            x=numbers,
            title=title,
            log="xy",
        )
        for title, ratio in (ratios | {"multi-epoch MF / DP-SGD": between}).items()
    ]
    return Outcome(
        panels,
        f"BandMF has {span(over_sgd)} times the rmse of DP-SGD and {span(over_mf)} times "
        f"that of multi-epoch MF, which has {span(between)} times that of DP-SGD.",
        bool((over_sgd <= 1).all()) and over_mf.max() < 1.15 and between.min() < 1 < between.max(),
        columns=("epsilon", "epochs", "DP-SGD", "multi-epoch MF", "BandMF", "bands"),
        rows=[
            (epsilon, k, dp_sgd[i, j], multi_epoch[i, j], banded[i, j], int(found.best[i, j]))
            for i, epsilon in enumerate(epsilons)
            for j, k in enumerate(numbers)
        ],
        reduced=f"n = {rounds} in place of 1024 and {len(epsilons)} epsilons"
        if rounds < 1024
        else "",
    )
