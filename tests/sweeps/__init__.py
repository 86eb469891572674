"""Tests of sweeps: their grids, searches, processes and results."""
