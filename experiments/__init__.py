"""Experiments: the demo, and reproductions of the papers' tables and figures."""

from fedmf import matplotlib_import  # noqa: F401
