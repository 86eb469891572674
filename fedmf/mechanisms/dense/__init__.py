"""Mechanisms whose encoder may be any lower-triangular matrix. The package has their class, its
fit, and the dual bound that the fit computes (Denisov et al. 2022; multi-epoch paper).
"""
