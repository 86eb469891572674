"""Buffered linear Toeplitz (BLT) mechanisms, whose noise a few running sums compute: their class
and its fit.
"""

from fedmf.mechanisms.blt.fit import fit_blt
from fedmf.mechanisms.blt.mechanism import BLTMechanism

__all__ = ["BLTMechanism", "fit_blt"]
