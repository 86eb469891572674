"""Noise on tensors: the counter-based source, rows of N Z in the graph and from the host."""
