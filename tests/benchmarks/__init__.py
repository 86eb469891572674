"""Tests that run the benchmarks at toy size."""
