"""Tests of the fits of all families, against independent solvers and printed figures."""
