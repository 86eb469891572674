"""Sampling schemes, whose randomness amplifies a guarantee: one class each, which answers for
itself (`base.Sampling`).
"""

from fedmf.privacy.sampling.base import SCHEMES, Sampling, scheme_class, scheme_name, takes
from fedmf.privacy.sampling.cyclic import CyclicFixedSize, CyclicPoisson, CyclicRandomAllocation
from fedmf.privacy.sampling.simulated import BallsInBins, MinSepPoisson

# The former name of the class, for one release.
CyclicShuffle = CyclicRandomAllocation

__all__ = [
    "SCHEMES",
    "BallsInBins",
    "CyclicFixedSize",
    "CyclicPoisson",
    "CyclicRandomAllocation",
    "MinSepPoisson",
    "Sampling",
    "scheme_class",
    "scheme_name",
    "takes",
]
