"""Correlated noise N Z of any mechanism: streams, blocks, and strategies to compute it.

Row t of N Z is the noise vector of round t.
"""
