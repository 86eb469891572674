"""Rounding of the numbers in a statement, so that no number claims more than was proven."""

import decimal
import math


def _rounded(value: float, digits: int, rounding: str) -> str:
    """Returns a number with so many significant digits, as text."""
    # The shortest text of the number is rounded: its exact value would turn 0.7 into 0.699999.
    context = decimal.Context(prec=digits, rounding=rounding)
    decimal_value = context.create_decimal(repr(float(value)))
    return f"{float(decimal_value):.{digits}g}"


def finite_or_none(value: float | None) -> float | None:
    """Returns the value if it is finite, and else None, which is null in JSON."""
    if value is None or not math.isfinite(value):
        return None
    return value


def up(value: float | None, digits: int = 4) -> str:
    """Returns a bound on a loss (epsilon, rho, a sensitivity), rounded up; None is infinity.

    >>> up(1.00001), up(None)
    ('1.001', 'infinity (no guarantee)')
    """
    if value is None:
        return "infinity (no guarantee)"
    return _rounded(value, digits, decimal.ROUND_CEILING)


def down(value: float) -> str:
    """Returns the size of noise (a noise multiplier, a standard deviation), rounded down.

    >>> down(0.7), down(0.12345678)
    ('0.7', '0.123456')
    """
    return _rounded(value, 6, decimal.ROUND_FLOOR)
