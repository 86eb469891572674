"""Tests of what fedmf adds to TensorFlow Federated."""
