"""Buffered linear Toeplitz (BLT) mechanisms, whose correlated noise is computed from a few running
sums. The package has their class and its fit.
"""

from fedmf.mechanisms.blt.fit import fit_blt
from fedmf.mechanisms.blt.mechanism import BLTMechanism

__all__ = ["BLTMechanism", "fit_blt"]
