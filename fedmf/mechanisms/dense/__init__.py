"""Dense mechanisms (Denisov et al. 2022; multi-epoch paper): class, fit and dual bound."""

from fedmf.mechanisms.dense.fit import DenseMechanism, fit_dense

__all__ = ["DenseMechanism", "fit_dense"]
