"""Sweeps: grids and searches of training runs, several runs at a time, with a comparison of their
results.
"""
