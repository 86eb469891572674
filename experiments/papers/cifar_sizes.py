"""Sizes of the experiments on CIFAR-10, and the settings that the papers print."""

import dataclasses
from typing import Any

from fedmf.participation.schema import Participation

# The privacy parameter delta is that of Figure 4 of the multi-epoch paper.
DELTA = 1e-5
# Noise multipliers in the papers' code. NOISE is for matrix mechanisms with sensitivity 1, and
# NOISE_DP_SGD is for DP-SGD with sampling at the same epsilons.
NOISE = (0.3, 0.4, 0.5, 0.75, 1.0, 2.0)
NOISE_DP_SGD = (0.498, 0.559, 0.61, 0.715, 0.807, 1.16)
# Epsilons of the noise multipliers NOISE at DELTA. They are stored here, because computing them
# takes most of a second, and commands that only list the figures would have to wait. A test
# computes them again.
EPSILONS = (19.131, 13.207, 9.997, 6.129, 4.377, 1.993)
# Learning rates that are tried are 1, 2 and 5 times 10^i, where i is -2 or -1 in the multi-epoch
# paper (App. E), and -2 to 3 in the banded paper (App. H.1).
RATES_BANDED = tuple(float(f"{c}e{i}") for i in range(-2, 4) for c in (1, 2, 5))
RATES = RATES_BANDED[:6]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """Size of an experiment on CIFAR-10, with its images, steps, network, tuning grid and seeds.

    Attributes:
      images, cohort, epochs: number of training images, of images in a step, and of passes over
        the images. An epoch has images / cohort steps.
      simulated: number of images that train in a step and simulate `cohort` images; None for all.
      model: name of the network.
      momentum: server momentum for correlated noise in the banded paper.
      momentums: server momentums that the multi-epoch paper tries (App. E); None for `momentum`
        alone.
      epsilons, epsilons_banded: privacy targets of the multi-epoch paper, and of the banded paper,
        whose figures start at 0.5.
      rates, rates_banded: learning rates to tune.
      rates_sgd: learning rates to tune of DP-SGD, which has no momentum; None for the same rates.
      stamps: numbers of stamps (parts) that are tried, all divisors of the steps.
      test_images: number of test images of the synthetic substitute; None for as many as training
        images, and at most 1000.
      repeats: number of seeds.
    """

    images: int = 50_000
    cohort: int = 500
    simulated: int | None = None
    epochs: int = 20
    model: str = "vgg"
    momentum: float = 0.95
    momentums: tuple[float, ...] | None = (0.0, 0.85, 0.9, 0.95)
    epsilons: tuple[float, ...] = EPSILONS
    epsilons_banded: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0)
    rates: tuple[float, ...] = RATES
    rates_banded: tuple[float, ...] = RATES_BANDED
    rates_sgd: tuple[float, ...] | None = None
    stamps: tuple[int, ...] = (1, 2, 5, 10, 20)
    test_images: int | None = None
    repeats: int = 12

    @property
    def participation(self) -> Participation:
        """Participation schema with the images in a fixed order."""
        epoch_steps = self.images // self.cohort
        return Participation(
            rounds=self.epochs * epoch_steps, schema="fixed_epoch", min_sep=epoch_steps
        )

    @property
    def optimal(self) -> str:
        """Label of the optimal mechanism for all epochs, as in the figures."""
        return f"MF(k={self.epochs})"


SIZES: dict[Any, Size] = {
    "full": Size(),
    "small": Size(
        images=800,
        cohort=80,
        epochs=10,
        model="small",
        momentum=0.9,
        momentums=None,
        epsilons=(6.129, 9.997, 19.131),
        epsilons_banded=(1.0, 2.0, 4.0),
        rates=(0.05, 0.1, 0.2, 0.5),
        rates_sgd=(0.2, 0.5, 1.0, 2.0),
        rates_banded=(0.05, 0.1, 0.2, 0.5),
        stamps=(1, 2, 5, 10),
        repeats=8,
    ),
    "tiny": Size(
        images=20,
        cohort=5,
        epochs=2,
        model="small",
        momentums=None,
        epsilons=(16.0,),
        epsilons_banded=(16.0,),
        rates=(0.1,),
        rates_banded=(0.1,),
        stamps=(1, 2),
        repeats=1,
    ),
}
