"""The server's side of a plan, without a framework: clipped sums, noise vectors, releases, and the
journal of committed rounds.
"""
