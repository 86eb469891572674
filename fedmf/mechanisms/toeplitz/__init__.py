"""Toeplitz mechanisms, whose encoder has the same coefficients in every round. The package has
their class and its fits.
"""

from fedmf.mechanisms.toeplitz.fit import fit_toeplitz
from fedmf.mechanisms.toeplitz.mechanism import ToeplitzMechanism

__all__ = ["ToeplitzMechanism", "fit_toeplitz"]
