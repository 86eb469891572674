"""Tests of the parts of fedmf that need TensorFlow."""
