"""Random numbers that are a function of a key and of whole numbers, without memory for any client.

The generator is not cryptographic. It serves simulations of availability and behavior, never noise.
"""

import functools

import numpy as np

# Odd multipliers and shifts of the finaliser of splitmix64 (Stafford's variant 13 of murmur3's).
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
# Odd, and without a simple relation to each other, so that columns do not cancel: 2^64 divided by
# the golden ratio (as in splitmix64), and by the square root of 2.
_COLUMNS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xB504F333F9DE6485))


@functools.lru_cache(maxsize=256)
def key(*words: int) -> np.uint64:
    """A key made from whole numbers, such as (seed, purpose, round); other numbers give an
    unrelated key.

    Trailing zeros do not count, so that a purpose is never 0 and a round is passed as t + 1.
    """
    return np.random.SeedSequence(words).generate_state(1, np.uint64)[0]


def bits(of: np.uint64, *columns: np.ndarray) -> np.ndarray:
    """64 random bits, uint64 of the columns' shape, for each row of one or two int64 columns."""
    x = columns[0].astype(np.uint64)
    x *= _COLUMNS[0]
    for column, multiplier in zip(columns[1:], _COLUMNS[1:], strict=False):
        x += column.astype(np.uint64) * multiplier
    x += of
    shifted = x >> np.uint64(30)
    x ^= shifted
    x *= _FIRST
    np.right_shift(x, np.uint64(27), out=shifted)
    x ^= shifted
    x *= _SECOND
    np.right_shift(x, np.uint64(31), out=shifted)
    x ^= shifted
    return x


def uniform(of: np.uint64, *columns: np.ndarray) -> np.ndarray:
    """Uniform on [0, 1), float64 of the columns' shape: one number for each row of one
    or two int64 columns.

    >>> uniform(key(7, 1), np.arange(3)).round(3)
    array([0.706, 0.918, 0.078])
    """
    x = bits(of, *columns)
    x >>= np.uint64(11)
    return x * 2.0**-53
