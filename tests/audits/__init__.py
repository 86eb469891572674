"""Tests of the audits, with honest code and with known mistakes."""
