"""Toeplitz mechanisms: the class and its fit."""
