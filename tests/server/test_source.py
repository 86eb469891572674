"""The source follows the description in its module: here it is written again from that description,
on AES of single blocks.
"""

import hashlib
import pickle

import numpy as np
import pytest
import scipy.stats
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedmf.server.source import CHUNK, GaussianSource, aes_counter_mode, noise_key
from tests.power import (
    has_distribution,
    is_uncorrelated,
    missed_by_count,
    p_of_count,
    trials_that_detect,
)


def aes256(key, high, low):
    """Returns one block, of the counter (high, low)."""
    block = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()
    return block.update(high.to_bytes(8, "big") + low.to_bytes(8, "big"))


def entry(seed, row, coordinate):
    """Returns the normal in float64, by the description of the module."""
    root = hashlib.sha256(b"fedmf noise key 2:" + str(seed).encode()).digest()
    key = hashlib.sha256(b"fedmf noise of the host:" + root).digest()
    chunk, chunk_place = divmod(coordinate, 1024)

    def word(number):
        block = aes256(key, row, 256 * chunk + number // 4)
        return int.from_bytes(block[4 * (number % 4) :][:4], "little")

    first_word = word(chunk_place % 512)
    second_word = word(512 + chunk_place % 512)
    bits = first_word << 8 | second_word & 255
    uniform = (bits + 0.5) / 2**40
    if bits < 2**24:
        extra_block = aes256(key, 2**63 + row, 512 * chunk + chunk_place % 512)
        uniform = (bits + (int.from_bytes(extra_block[:8], "little") + 0.5) / 2**64) / 2**40
    signed = second_word >> 8
    angle = (signed - (2**24 if signed >= 2**23 else 0) + 0.5) * np.pi / 2**23
    return np.sqrt(-2 * np.log(uniform)) * (np.cos if chunk_place < 512 else np.sin)(angle)


def drawn(seed, size, row=0, rows=1, start=0):
    drawn_rows = np.empty((rows, size), np.float32)
    GaussianSource(noise_key(seed)).fill(drawn_rows, row, start)
    return drawn_rows


def test_aes_in_counter_mode_has_the_vectors_of_nist():
    # SP 800-38A, F.5.5, CTR-AES256.Encrypt: key, first counter, and the key stream, which is
    # plaintext xor ciphertext.
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    counter = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    plain_blocks = (
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    cipher = (
        "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
        "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
    )
    stream = int(plain_blocks, 16) ^ int(cipher, 16)
    cipher_bytes = np.empty(64, np.uint8)
    high, low = (int.from_bytes(counter[i : i + 8], "big") for i in (0, 8))
    aes_counter_mode(key)(cipher_bytes, high, low)
    assert cipher_bytes.tobytes() == stream.to_bytes(64, "big")
    assert aes256(key, high, low) == cipher_bytes[:16].tobytes()  # and the oracle's


@pytest.mark.parametrize("seed", [0, 7, 2**256 - 1, 10**99])
def test_source_follows_the_document(seed):
    size = 70_001
    for row in (0, 2051, 10**9):
        noise = drawn(seed, size, row)[0]
        for coordinate in (0, 1, 511, 512, 1023, 1024, 65_535, 65_536, size - 1):
            # Near a right angle the cosine is small, and float32 angles are off by 2e-7.
            assert noise[coordinate] == pytest.approx(
                entry(seed, row, coordinate), rel=2e-6, abs=2e-6
            )


@pytest.mark.parametrize("size", [1, 62, 1024, 5000, 200_000])
def test_entry_depends_on_seed_row_and_coordinate_alone(size):
    rows = 70 if size < 2000 else 3
    whole_row = drawn(8, size, row=5, rows=rows)
    source = GaussianSource(noise_key(8))
    for row, start, count in ((5, 0, 1), (4 + rows, 0, size), (6, (size - 1) // CHUNK * CHUNK, 1)):
        drawn_part = np.empty((1, count), np.float32)
        source.fill(drawn_part, row, start)
        np.testing.assert_array_equal(drawn_part[0], whole_row[row - 5, start : start + count])
    narrow = np.full((rows, size + 3), 9.0, np.float32)  # The rows are not contiguous.
    source.fill(narrow[:, 1 : size + 1], 5)
    np.testing.assert_array_equal(narrow[:, 1 : size + 1], whole_row)
    assert (narrow[:, [0, -1]] == 9).all()


def stream_of(first, second, more=None):
    """Returns a key stream with these words for the pairs of a chunk, and `more` for pairs that
    need more bits.
    """

    def bits(out, high, low):
        words = out.view("<u4")
        if high >= 2**63:
            out[:8] = np.frombuffer(int(more[low]).to_bytes(8, "little"), np.uint8)
        else:
            words[:] = np.concatenate([first, second])

    return bits


def normals(first, second, more=None):
    drawn_chunk = np.empty((1, CHUNK), np.float32)
    words = (np.asarray(chunk, np.uint32) for chunk in (first, second))
    GaussianSource(noise_key(0), bits=stream_of(*words, more)).fill(drawn_chunk, 0)
    return drawn_chunk[0].astype(np.float64)


def test_tail_is_right_as_far_as_float64_reaches():
    """Every radius is that of its uniform number, from 1e-32 to the last one below 1, by 40 bits or
    by 104 in the tail.
    """
    rng = np.random.default_rng(0)
    length = CHUNK // 2
    first_words = np.array(
        [int(2 ** (32 * i / length)) - 1 for i in range(length // 2)] * 2, np.uint64
    )
    first_words[length // 2 :] = 2**32 - 1 - first_words[: length // 2]  # both ends
    middle_pairs = slice(length // 4, length // 2)
    first_words[middle_pairs] = rng.integers(0, 2**32, length // 4)
    second_words = rng.integers(0, 2**32, length)
    second_words[:2] &= ~np.uint32(255)
    extra_bits = rng.integers(0, 2**64, length, np.uint64)
    extra_bits[0] = 0
    z = normals(first_words, second_words, extra_bits)
    radius = np.hypot(z[:length], z[length:])
    exact_radii = []
    for a, b, m in zip(
        first_words.tolist(), second_words.tolist(), extra_bits.tolist(), strict=True
    ):
        bits = a << 8 | b & 255
        uniform = bits + (m + 0.5) / 2**64 if bits < 2**24 else bits + 0.5
        exact_radii.append(np.sqrt(-2 * np.log(uniform / 2**40)))
    # float32 has 24 bits: between its own numbers near 1 a radius is off by so much.
    np.testing.assert_allclose(radius, exact_radii, rtol=1e-5, atol=2e-6)
    # 12.06: the largest there is
    assert radius[0] == pytest.approx(np.sqrt(2 * 105 * np.log(2)), rel=1e-6)
    assert radius[length // 2] > 0  # of the uniform nearest to 1


def test_draws_beyond_6_have_the_frequency_of_the_normal():
    """First words are below 2^9, where radii are above 5.64, so that the whole tail is sampled.

    False positives 1e-6; the trials see a tail that lacks half of what it should have.
    """
    expected_share = scipy.stats.norm.sf(6.0) * 2 * 2**23
    trials = trials_that_detect(
        lambda trials: missed_by_count(trials, expected_share, 0.5 * expected_share)
    )
    rng = np.random.default_rng(1)
    drawn_normals = []
    while len(drawn_normals) < trials:
        words = rng.integers(0, 2**9, 512), rng.integers(0, 2**32, 512)
        # One of the two of a pair: their radius is the same.
        drawn_normals.extend(normals(*words, rng.integers(0, 2**64, 512, np.uint64))[:512])
    count = int((np.abs(drawn_normals[:trials]) > 6.0).sum())
    assert p_of_count(count, trials, expected_share) > 1e-6
    assert (
        p_of_count(int(0.5 * expected_share * trials), trials, expected_share) < 1e-6
    )  # This is the negative control.


def test_draws_are_standard_normal_and_the_test_can_fail():
    values = drawn(8, 2**21, 3)[0].astype(np.float64)
    # A scale off by 2% is 0.48% away at 1, a mean of 0.01 is 0.4% away at 0.
    assert has_distribution(values, "norm", departure=0.0039)
    assert not has_distribution(1.02 * values, "norm", departure=0.0039)
    assert not has_distribution(values + 0.01, "norm", departure=0.0039)


def test_rows_seeds_and_coordinates_are_independent_and_the_test_can_fail():
    size = 200_000  # correlations of 0.025 are seen
    row = drawn(8, size)[0]
    other_samples = [
        drawn(8, size, 1),
        drawn(8, size, 2**31 - 1),
        drawn(9, size),
        drawn(8 + 2**64, size),
    ]
    for other_sample in other_samples:
        assert is_uncorrelated(row, other_sample[0], departure=0.025)
        assert is_uncorrelated(row**2, other_sample[0] ** 2, departure=0.025)
    for lag in (1, 2, 4, 511, 512, 1024):
        assert is_uncorrelated(row[lag:], row[:-lag], departure=0.025)
        assert is_uncorrelated(row[lag:] ** 2, row[:-lag] ** 2, departure=0.025)
    assert not is_uncorrelated(row, row + 20 * other_samples[0][0], departure=0.025)


def test_repr_does_not_show_the_key():
    """No text that Python makes of a source has the key, and a source is not pickled."""
    source = GaussianSource(noise_key(987654321))
    assert all(str(key_word) not in repr(source) for key_word in noise_key(987654321))
    with pytest.raises((TypeError, AttributeError)):
        pickle.dumps(source)
