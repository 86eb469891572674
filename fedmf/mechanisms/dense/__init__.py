"""Dense mechanisms (Denisov et al. 2022; multi-epoch paper): class, fit and dual bound."""

from fedmf.mechanisms.dense.fit import fit_dense
from fedmf.mechanisms.dense.mechanism import DenseMechanism

__all__ = ["DenseMechanism", "fit_dense"]
