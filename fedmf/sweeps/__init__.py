"""Sweeps, which are grids and searches of training runs. Several runs train at a time, and their
results are compared.
"""
