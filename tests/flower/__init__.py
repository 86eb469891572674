"""Tests of `fedmf.flower`, which run in an environment with Flower."""
