"""Audits of private training runs, which check that the privacy guarantee was met.

Three kinds of audit exist. The first computes the guarantee from the rounds in which clients took
part. The second tests the noise of releases. The third runs attacks, which give empirical lower
bounds on epsilon.
"""
