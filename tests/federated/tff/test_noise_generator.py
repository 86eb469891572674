"""The source of TensorFlow graphs computes what the text of its module says.

The tests implement that description in integers and float64.
"""

import hashlib

import numpy as np
import pytest
import tensorflow as tf

from fedmf.federated.tff.noise_source import box_muller, source_of_key
from fedmf.server.source import noise_key

MASK = 2**32 - 1


def philox(counter, key):
    """Computes Philox4x32-10 of Salmon et al. 2011, with counters of four words and keys of two."""
    x = list(counter)
    k = list(key)
    for _ in range(10):
        product_0 = 0xD2511F53 * x[0]
        product_2 = 0xCD9E8D57 * x[2]
        x = [
            product_2 >> 32 ^ x[1] ^ k[0],
            product_2 & MASK,
            product_0 >> 32 ^ x[3] ^ k[1],
            product_0 & MASK,
        ]
        k = [k[0] + 0x9E3779B9 & MASK, k[1] + 0xBB67AE85 & MASK]
    return x


def words(number):
    return [number & MASK, number >> 32]


def normals_of(radius_word, angle_word):
    """Computes the pair of normals of two words of 64 bits."""
    signed = (angle_word >> 40) - (2**24 if angle_word >= 2**63 else 0)
    angle = (signed + 0.5) * np.pi / 2**23
    # Near 1 float64 holds the distance to 1 and not the number itself.
    logarithm = (
        np.log((radius_word + 0.5) / 2**64)
        if radius_word < 2**63
        else np.log1p(-(2**64 - 1 - radius_word + 0.5) / 2**64)
    )
    return np.sqrt(-2 * logarithm) * np.array([np.cos(angle), np.sin(angle)])


def entry(seed, row, coordinate):
    digest = hashlib.sha256(b"fedmf noise key 2:" + str(seed).encode()).digest()
    key, salt = (int.from_bytes(digest[i : i + 8], "little") for i in (0, 8))
    four = philox(words(coordinate // 2) + words((salt + row) % 2**64), words(key))
    return normals_of(four[0] | four[1] << 32, four[2] | four[3] << 32)[coordinate % 2]


def test_philox_gives_its_known_answers():
    # Random123's own test vectors (kat_vectors, philox4x32 10).
    assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox([MASK] * 4, [MASK] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


@pytest.mark.parametrize("seed", [7, 10**60])
def test_the_source_is_that_of_the_documentation(seed):
    size = 100_003
    for row in (0, 1, 2051):
        drawn_row = source_of_key(noise_key(seed), size)(row).numpy()
        for coordinate in (0, 1, 2, 3, 4, 5, 1023, 50_000, size - 1):
            # Near a right angle the cosine is small, and float32 angles are off by 2e-7.
            assert drawn_row[coordinate] == pytest.approx(
                entry(seed, row, coordinate), rel=2e-6, abs=2e-6
            )


def test_the_tail_is_complete_and_no_draw_is_zero():
    """Radii range from 9.5 down to that of the uniform nearest to 1."""
    rng = np.random.default_rng(0)
    low = [2**i - 1 for i in range(64)]
    pairs = [
        (radius_word, int(rng.integers(0, 2**64, dtype=np.uint64)))
        for i in low
        for radius_word in (i, 2**64 - 1 - i)
    ]
    normals = box_muller(tf.constant(pairs, tf.uint64)).numpy()
    exact_normals = np.array([normals_of(*pair) for pair in pairs])
    np.testing.assert_allclose(np.hypot(*normals.T), np.hypot(*exact_normals.T), rtol=2e-6)
    np.testing.assert_allclose(normals, exact_normals, rtol=2e-6, atol=3e-6)
    assert np.hypot(*normals[0]) == pytest.approx(np.sqrt(2 * 65 * np.log(2)))
    assert (normals != 0).all()
