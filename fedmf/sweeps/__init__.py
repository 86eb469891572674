"""Grids of runs and searches: several trained at a time, and the results compared."""
