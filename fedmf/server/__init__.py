"""The server's side of a plan without a framework: the Gaussian source,
and rows of noise made ahead.
"""
