"""Random numbers as pure functions of a key and of whole numbers such as a client's index, so that
simulated clients need no state.

The generator is not cryptographic. It serves simulations of availability and behavior, never noise.
"""

import functools

import numpy as np

# Odd multipliers with which splitmix64 mixes the bits of a number (variant 13 of Stafford's mixers,
# which follow murmur3).
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
# `bits` multiplies each column by one of these odd numbers before it adds up the columns. The
# numbers, 2^64 divided by the golden ratio and by the square root of 2, have no simple ratio, so
# that columns do not cancel.
_COLUMNS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xB504F333F9DE6485))


@functools.lru_cache(maxsize=256)
def key(*words: int) -> np.uint64:
    """Returns the key of a sequence of whole numbers such as (seed, purpose, round).

    Different sequences have unrelated keys, except that zeros at the end do not count. So a purpose
    is never 0, and round t is passed as t + 1.
    """
    return np.random.SeedSequence(words).generate_state(1, np.uint64)[0]


def bits(seed_key: np.uint64, *columns: np.ndarray) -> np.ndarray:
    """Returns 64 random bits for each entry of the columns, as a uint64 array of the same shape.

    Args:
      seed_key: a result of `key`.
      columns: one or two int64 arrays of the same shape, such as client indices. Entries at the
        same position determine the bits at this position.
    """
    mixed_bits = columns[0].astype(np.uint64)
    mixed_bits *= _COLUMNS[0]
    for column, multiplier in zip(columns[1:], _COLUMNS[1:], strict=False):
        mixed_bits += column.astype(np.uint64) * multiplier
    mixed_bits += seed_key
    shifted_bits = mixed_bits >> np.uint64(30)
    mixed_bits ^= shifted_bits
    mixed_bits *= _FIRST
    np.right_shift(mixed_bits, np.uint64(27), out=shifted_bits)
    mixed_bits ^= shifted_bits
    mixed_bits *= _SECOND
    np.right_shift(mixed_bits, np.uint64(31), out=shifted_bits)
    mixed_bits ^= shifted_bits
    return mixed_bits


def uniform(seed_key: np.uint64, *columns: np.ndarray) -> np.ndarray:
    """Returns a uniform number in [0, 1) for each entry of the columns, as a float64 array of the
    same shape.

    Args:
      seed_key, columns: as in `bits`.

    >>> uniform(key(7, 1), np.arange(3)).round(3)
    array([0.706, 0.918, 0.078])
    """
    random_bits = bits(seed_key, *columns)
    random_bits >>= np.uint64(11)
    return random_bits * 2.0**-53
