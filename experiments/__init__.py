"""Drivers: grids of runs, and the reports that compare them."""

from fedmf import matplotlib_import  # noqa: F401
