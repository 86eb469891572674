"""Audits: the guarantee of an observed participation, tests of released noise, empirical bounds."""
