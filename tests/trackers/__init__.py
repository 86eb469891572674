"""Tests of `fedmf.trackers`."""
