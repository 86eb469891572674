"""docs/randomness.md says what the generator computes: here it is written again from that description, in integers and float64."""

import hashlib

import numpy as np
import pytest

from fedmf import federated  # noqa: F401  (imports TensorFlow)
from fedmf.federated.noise.source import gaussian_source

pytestmark = pytest.mark.tensorflow

MASK = 2**32 - 1
LARGEST = np.sqrt(-2 * np.log(1e-7))


def philox(counter, key):
    """Philox4x32-10 of Salmon et al. 2011: four words of a counter of four words and a key of two."""
    x, k = list(counter), list(key)
    for _ in range(10):
        first, second = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [second >> 32 ^ x[1] ^ k[0], second & MASK, first >> 32 ^ x[3] ^ k[1], first & MASK]
        k = [k[0] + 0x9E3779B9 & MASK, k[1] + 0xBB67AE85 & MASK]
    return x


def words(number):
    return [number & MASK, number >> 32]


def entry(seed, row, coordinate):
    """Box-Muller on 23 bits of two words; sine first."""
    digest = hashlib.sha256(b"fedmf noise source 1:" + str(seed).encode()).digest()
    key, salt = (int.from_bytes(digest[i : i + 8], "little") for i in (0, 8))
    counter = words(coordinate // 4) + words((salt + row) % 2**64)
    pair = philox(counter, words(key))[coordinate % 4 // 2 * 2 :][:2]
    radius, angle = ((word & 2**23 - 1) / 2**23 for word in pair)
    wave = np.cos if coordinate % 2 else np.sin
    return np.sqrt(-2 * np.log(max(radius, 1e-7))) * wave(2 * np.pi * angle)


def test_philox_known_answers():
    # Random123's own test vectors (kat_vectors, philox4x32 10).
    assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox([MASK] * 4, [MASK] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


@pytest.mark.parametrize("seed", [0, 7, 2**128 - 1, 10**60])
def test_the_source_is_what_the_document_says(seed):
    size = 100_003
    for row in (0, 1, 2051):
        drawn = gaussian_source(seed, size)(row).numpy()
        for coordinate in (0, 1, 2, 3, 4, 5, 1023, 50_000, size - 1):
            # Near angles of multiples of pi the sine is small, and float32 angles are off by 4e-7.
            assert drawn[coordinate] == pytest.approx(entry(seed, row, coordinate), rel=2e-6, abs=4e-6)


def test_neighbouring_counters_are_not_taken_for_one_another():
    drawn = gaussian_source(7, 16)(3).numpy()
    assert all(abs(drawn[5] - entry(7, row, c)) > 1e-3 for row in range(6) for c in range(16) if (row, c) != (3, 5))


def test_nothing_is_larger_than_the_generator_can_make():
    # A row of 2^25 coordinates: a true Gaussian has 0.45 beyond this on average; what counts is that the limit is nearly reached.
    # None beyond 5 has a chance of exp(-19).
    largest = np.abs(gaussian_source(1, 2**25)(0).numpy()).max()
    assert 5.0 < largest <= np.float32(LARGEST) * (1 + 1e-6)


def test_the_variance_of_the_generator_is_one_and_a_millionth():
    # The exact mean of radius^2 / 2 over the 2^23 values that a radius has; docs/randomness.md gives the number.
    u = np.arange(2**23) / 2**23
    u[0] = 1e-7
    assert np.mean(-np.log(u)) - 1 == pytest.approx(8.6e-7, rel=0.02)
