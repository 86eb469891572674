"""Tests of the training loop without a framework, on functions in numpy."""
