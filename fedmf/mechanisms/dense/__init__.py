"""Mechanisms whose encoder is any lower-triangular matrix (Denisov et al. 2022; multi-epoch paper):
their class, its fit, and the dual bound that the fit computes.
"""
