"""Tests of run configurations and of the folders of runs."""
