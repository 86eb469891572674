"""Banded mechanisms (banded paper): the class, its fit, its loss and its bound."""

from fedmf.mechanisms.banded.fit import BandedMechanism, fit_banded

__all__ = ["BandedMechanism", "fit_banded"]
