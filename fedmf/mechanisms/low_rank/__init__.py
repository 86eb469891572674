"""Low-rank mechanisms (Denisov et al. 2022, App. H): the class and its fit."""

from fedmf.mechanisms.low_rank.fit import fit_low_rank
from fedmf.mechanisms.low_rank.mechanism import LowRankMechanism

__all__ = ["LowRankMechanism", "fit_low_rank"]
