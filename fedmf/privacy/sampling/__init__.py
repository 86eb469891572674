"""Sampling schemes, which select the clients of each round at random and so lower epsilon at the
same noise as long as the selection stays secret (privacy amplification).

Each scheme is one class in one file, with the interface of
`fedmf.privacy.sampling.base.Sampling`.
"""

# Each import registers a scheme. Help texts and tables list the schemes in the order of these
# imports, so isort must not change it.
# isort: off
from fedmf.privacy.sampling.base import SCHEMES, Sampling, scheme_class, scheme_name, takes
from fedmf.privacy.sampling.poisson import CyclicPoisson
from fedmf.privacy.sampling.fixed_size import CyclicFixedSize
from fedmf.privacy.sampling.allocation import CyclicRandomAllocation
from fedmf.privacy.sampling.balls_in_bins import BallsInBins
from fedmf.privacy.sampling.min_sep_poisson import MinSepPoisson
# isort: on

# The former name of CyclicRandomAllocation remains importable for one release.
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
