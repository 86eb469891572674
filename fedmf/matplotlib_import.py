"""Imports matplotlib even if the environment variable MPLBACKEND names a backend that is missing.

Jupyter sets the variable for every command that a cell starts, and matplotlib cannot be imported if
the variable names a module that is not installed. fedmf draws its figures without any of these
backends. Import this module before every other one that imports matplotlib.
"""

import os

_backend_name = os.environ.pop("MPLBACKEND", None)
try:
    import matplotlib  # noqa: F401
finally:
    if _backend_name is not None:
        os.environ["MPLBACKEND"] = _backend_name
