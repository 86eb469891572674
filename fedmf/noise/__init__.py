"""The correlated noise N Z of a mechanism, where N is the noise matrix and Z has an independent
Gaussian draw in each row. The package has recipes that compute it, and strategies that decide how
and when a run does.

Row t of N Z is the noise vector of round t.
"""
