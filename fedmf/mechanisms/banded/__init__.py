"""Banded mechanisms (banded paper): the class, its fit, its loss and its bound."""

from fedmf.mechanisms.banded.fit import fit_banded
from fedmf.mechanisms.banded.mechanism import BandedMechanism

__all__ = ["BandedMechanism", "fit_banded"]
