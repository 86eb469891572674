"""Tests of `fedmf.experiments`: the demo, and the reproduction of the papers."""
