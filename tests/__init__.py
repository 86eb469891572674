"""Tests of fedmf; each folder tests the package of its name."""
