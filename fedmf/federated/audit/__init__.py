"""Noise taken from the running aggregator."""
