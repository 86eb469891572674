"""Conversion to JSON that conforms to RFC 8259. That standard has no NaN and no infinities, so they
become null.
"""

import json
import math
from typing import Any


def dumps(values: Any, *, indent: int | None = None) -> str:
    """Returns the values as JSON text, with null for NaN and the infinities.

    >>> dumps({"loss": math.nan, "epsilon": [1.0, math.inf]})
    '{"loss": null, "epsilon": [1.0, null]}'
    """
    return json.dumps(null_nonfinite(values), indent=indent, allow_nan=False)


def null_nonfinite(values: Any) -> Any:
    """Returns the values with None in place of NaN and the infinities, at any depth."""
    if isinstance(values, dict):
        return {name: null_nonfinite(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [null_nonfinite(value) for value in values]
    if isinstance(values, float) and not math.isfinite(values):
        return None
    return values
