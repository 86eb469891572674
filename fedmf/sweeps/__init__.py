"""Grids of runs: several trained at a time, and the results compared."""
