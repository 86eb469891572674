"""The correlated noise of a mechanism, N Z, where N is the noise matrix and Z has an independent
Gaussian draw in each row: recipes that compute it, and strategies that decide how and when a run
does.

Row t of N Z is the noise vector of round t.
"""
