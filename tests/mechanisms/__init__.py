"""Tests of the mechanisms: their matrices, sensitivities, errors and files."""
