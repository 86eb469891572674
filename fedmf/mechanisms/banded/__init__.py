"""Banded mechanisms (banded paper): the class, its fit, its loss and its bound."""
