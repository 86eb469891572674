"""Mechanisms whose encoder matrix has few non-zero diagonals (banded paper). The package has their
class, its fit, and the loss and lower bound that the fit computes.
"""
