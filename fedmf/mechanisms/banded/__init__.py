"""Mechanisms whose encoder has few non-zero diagonals (banded paper): their class, its fit, and the
loss and lower bound that the fit computes.
"""
