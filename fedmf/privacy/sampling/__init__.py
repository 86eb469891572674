"""Sampling schemes, whose randomness amplifies a guarantee: one class and one file each, all with
the interface of `fedmf.privacy.sampling.base.Sampling`.
"""

# The order of these imports is the order of the schemes in help texts and tables.
# isort: off
from fedmf.privacy.sampling.base import SCHEMES, Sampling, scheme_class, scheme_name, takes
from fedmf.privacy.sampling.poisson import CyclicPoisson
from fedmf.privacy.sampling.fixed_size import CyclicFixedSize
from fedmf.privacy.sampling.allocation import CyclicRandomAllocation
from fedmf.privacy.sampling.balls_in_bins import BallsInBins
from fedmf.privacy.sampling.min_sep_poisson import MinSepPoisson
# isort: on

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
