"""Numbers as a statement shows them: no shown number claims more than was proven."""

import decimal
import math


def _rounded(value: float, digits: int, rounding: str) -> str:
    # From the shortest text of the number: its exact value would turn 0.7 into 0.699999.
    shown = decimal.Context(prec=digits, rounding=rounding).create_decimal(repr(float(value)))
    return f"{float(shown):.{digits}g}"


def finite_or_none(value: float | None) -> float | None:
    """`value`, or None, which is JSON's null, where it is infinite."""
    return value if value is not None and math.isfinite(value) else None


def up(value: float | None, digits: int = 4) -> str:
    """A bound on what is lost (epsilon, rho, a sensitivity), rounded up; None is an infinite one.

    >>> up(1.00001), up(None)
    ('1.001', 'infinity (no guarantee)')
    """
    if value is None:
        return "infinity (no guarantee)"
    return _rounded(value, digits, decimal.ROUND_CEILING)


def down(value: float) -> str:
    """The size of what is added (a noise multiplier, a standard deviation), rounded down.

    >>> down(0.7), down(0.12345678)
    ('0.7', '0.123456')
    """
    return _rounded(value, 6, decimal.ROUND_FLOOR)
