"""Drivers: grids of runs, and the reports that compare them."""
