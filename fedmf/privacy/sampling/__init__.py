"""Sampling schemes, whose randomness amplifies a guarantee: one class each, which answers for itself (`base.Sampling`)."""

from fedmf.privacy.sampling.base import SCHEMES, Sampling, scheme_from, scheme_from_facts
from fedmf.privacy.sampling.cyclic import CyclicFixedSize, CyclicPoisson
from fedmf.privacy.sampling.shuffle import CyclicShuffle

__all__ = [
    "SCHEMES",
    "CyclicFixedSize",
    "CyclicPoisson",
    "CyclicShuffle",
    "Sampling",
    "scheme_from",
    "scheme_from_facts",
]
