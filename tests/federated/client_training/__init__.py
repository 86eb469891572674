"""Tests of the work of clients in TensorFlow, in every execution."""
