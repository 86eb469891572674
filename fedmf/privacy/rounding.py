"""Rounding of numbers for a privacy statement, where bounds are rounded up and noise is rounded
down, so that no number claims more than was proven.
"""

import decimal
import math


def _rounded(value: float, digits: int, rounding: str) -> str:
    """Returns a number rounded to `digits` significant digits, as text."""
    # The shortest decimal text of a float is rounded. Rounding its exact binary value down would
    # turn 0.7 into 0.699999.
    decimal_context = decimal.Context(prec=digits, rounding=rounding)
    decimal_value = decimal_context.create_decimal(repr(float(value)))
    return f"{float(decimal_value):.{digits}g}"


def finite_or_none(value: float | None) -> float | None:
    """Returns the value if it is finite, and None (null in JSON) otherwise."""
    if value is None or not math.isfinite(value):
        return None
    return value


def up(value: float | None, digits: int = 4) -> str:
    """Returns the text of an upper bound, such as an epsilon, rounded up. None stands for infinity.

    >>> up(1.00001), up(None)
    ('1.001', 'infinity (no guarantee)')
    """
    if value is None:
        return "infinity (no guarantee)"
    return _rounded(value, digits, decimal.ROUND_CEILING)


def down(value: float, digits: int = 6) -> str:
    """Returns the text of a size of noise, such as a noise multiplier, rounded down.

    >>> down(0.7), down(0.12345678)
    ('0.7', '0.123456')
    """
    return _rounded(value, digits, decimal.ROUND_FLOOR)


def factor(epsilon: float) -> str:
    """Returns the text of exp(epsilon), the largest factor between two probabilities, rounded up.

    >>> factor(8.0), factor(0.1)
    ('2981', '1.106')
    """
    return up(math.exp(epsilon) * (1 + 1e-15))
