"""Sampling schemes, whose randomness amplifies a guarantee: one class each, which answers for
itself (`base.Sampling`).
"""

from fedmf.privacy.sampling.base import SCHEMES, Sampling, takes
from fedmf.privacy.sampling.cyclic import CyclicFixedSize, CyclicPoisson, CyclicShuffle
from fedmf.privacy.sampling.simulated import BallsInBins, MinSepPoisson

__all__ = [
    "SCHEMES",
    "BallsInBins",
    "CyclicFixedSize",
    "CyclicPoisson",
    "CyclicShuffle",
    "MinSepPoisson",
    "Sampling",
    "takes",
]
