"""JSON as RFC 8259 has it: NaN and the infinities, of which it knows none, are null."""

import json
import math
from typing import Any


def dumps(values: Any, *, indent: int | None = None) -> str:
    """Returns the values as JSON.

    >>> dumps({"loss": math.nan, "epsilon": [1.0, math.inf]})
    '{"loss": null, "epsilon": [1.0, null]}'
    """
    return json.dumps(finite(values), indent=indent, allow_nan=False)


def finite(values: Any) -> Any:
    """Returns the values with None in place of every float that is not finite."""
    if isinstance(values, dict):
        return {name: finite(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [finite(value) for value in values]
    if isinstance(values, float) and not math.isfinite(values):
        return None
    return values
