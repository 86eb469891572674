"""Imports matplotlib whatever the environment variable MPLBACKEND names.

Jupyter sets it for every command that a cell starts, and matplotlib refuses to be imported where it
names a module that this environment does not have. Pictures are drawn here without a backend of
matplotlib's. This module is imported before all others that import matplotlib.
"""

import os

_backend = os.environ.pop("MPLBACKEND", None)
try:
    import matplotlib  # noqa: F401
finally:
    if _backend is not None:
        os.environ["MPLBACKEND"] = _backend
