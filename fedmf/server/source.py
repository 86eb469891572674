"""Rows of standard normal numbers, each of which can be drawn again at any time and in any order.

Random words are from AES-256 in counter mode, normals from Box-Muller. This text describes every
bit of the generator; tests/server/test_source.py implements it again from this text. The root key
of a run is the SHA-256 digest (32 bytes) of the ASCII text "fedmf noise key 2:" followed by the
noise seed in decimal digits. Row i of the noise is drawn in five steps.

1. Key. The key of AES-256 is the SHA-256 digest of the ASCII text "fedmf noise of the host:"
   followed by the root key.
2. Stream. AES encrypts blocks of 16 bytes (counter mode, NIST SP 800-38A). A block holds the row
   number i in its first 8 bytes and a block number j in its last 8, both big-endian. The encrypted
   block is the words 4 j to 4 j + 3 of row i, each of 32 bits, little-endian.
3. Chunks. A row is divided into chunks of 1024 coordinates: chunk c has the coordinates 1024 c to
   1024 c + 1023, which use the words of the same numbers. Words p and 512 + p of a chunk, with
   p < 512, give coordinates p and 512 + p of the chunk.
4. Radius. The first word and the low 8 bits of the second word form a number m of 40 bits. The
   uniform number u is (m + 1/2) / 2^40. If m < 2^24, a number e of 64 more bits makes u finer:
   u = (m + (e + 1/2) / 2^64) / 2^40. To get e for the pair of words p in chunk c of row i, AES
   encrypts a block with 2^63 + i in its first 8 bytes and 512 c + p in its last 8; e is the first 8
   bytes of the encrypted block, little-endian. The radius of the pair is sqrt(-2 log u).
5. Angle. The high 24 bits of the second word are a signed number a. The angle of the pair is
   pi (a + 1/2) / 2^23. Coordinate p is the radius times the cosine of the angle, and coordinate
   512 + p is the radius times its sine.

Radius and angle are computed in float32, except that float64 is used for the fraction 2^-11 of
radii nearest to either end of their range. No normal is 0: the uniform number behind a radius has
40 bits and the one behind an angle 24 bits; a float32 number has 24.
"""

import hashlib
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedmf import checks

# Coordinates of a row are drawn in chunks of this size. The first half of a chunk has the cosines
# of its Box-Muller pairs, and the second half has the sines.
CHUNK = 1024
_PAIRS = CHUNK // 2
# A coordinate takes a random word of 4 bytes, and an AES block has 16 bytes.
_BLOCKS = 4 * CHUNK // 16
# Random words are converted to normal numbers in batches of this size, so that the words and the
# numbers fit the cache.
_WORDS = 65_536
# The radius of a Box-Muller pair usually follows from an integer of 32 random bits. If the integer
# is nearer than this to 0 or to 2^32, the radius is computed in float64 from 40 bits.
_NEAR_THE_END = 2**20
# If the integer of 40 random bits is below this, 64 more bits are drawn. Such small numbers give
# the far tail of the normal distribution.
_FAR_OUT = 2**24
_SECOND_STREAM = 2**63
# Seeds are below this limit, because Python converts at most 4300 digits of an int by default.
_SEED_LIMIT = 10**4000


def check_noise_seed(noise_seed: Any) -> int:
    """Checks a noise seed, and returns it as a non-negative int. For "os" it draws 256 bits from
    the operating system.

    There is no default, because a silent seed is either reused or unknown.

    Raises:
      TypeError, ValueError: without the value, which may be a mistyped secret.
    """
    if isinstance(noise_seed, str) and noise_seed == "os":
        return secrets.randbits(256)
    hint = (
        'give a whole number, keep it secret and never use it twice, or "os" to draw one from the '
        "operating system"
    )
    if noise_seed is None:
        raise ValueError(f"noise_seed=None: {hint}")
    try:
        seed = checks.integer("noise_seed", noise_seed, low=0, hint=hint)
    except TypeError:
        raise TypeError(
            f"`noise_seed` is a {type(noise_seed).__name__}, not an int: {hint}"
        ) from None
    except ValueError:
        raise ValueError(f"`noise_seed` is negative: {hint}") from None
    if seed >= _SEED_LIMIT:
        raise ValueError(f"`noise_seed` has more than 4000 digits: {hint}")
    return seed


def noise_key(noise_seed: int) -> np.ndarray:
    """Returns the key that determines all noise of a run, 256 bits as a uint64 array of shape (4,).

    Args:
      noise_seed: any non-negative int; all of it is used (SHA-256).
    """
    seed_digest = hashlib.sha256(b"fedmf noise key 2:" + str(int(noise_seed)).encode()).digest()
    return np.frombuffer(seed_digest, dtype="<u8").astype(np.uint64)


def derived_seed(text: str, size: int = 32) -> int:
    """Derives a seed of `size` bytes from a text that contains the noise seed. It is as secret as
    the noise seed, and independent of it.
    """
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size])


def seed_of_run(noise_seed: int, number: int) -> int:
    """Returns the noise seed of an aggregator's run with this number. Run 0 has `noise_seed`
    itself, and later runs have seeds that are derived from it.
    """
    if number == 0:
        return noise_seed
    return derived_seed(f"fedmf run {number} of noise seed {noise_seed}")


# A function (out, high, low) that writes the key stream of the counters (high, low), (high, low +
# 1), ... into out, a uint8 array with 16 bytes for each counter.
Bits = Callable[[np.ndarray, int, int], None]


def aes_counter_mode(key: bytes) -> Bits:
    """Returns a function that writes the key stream of AES-256 for 128-bit big-endian counters.
    This is the counter mode of NIST SP 800-38A, Sec. 6.5.

    Args:
      key: 32 bytes.
    """
    key_stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    zero_bytes = memoryview(bytes(4 * _WORDS))

    def bits(out: np.ndarray, high: int, low: int) -> None:
        key_stream.reset_nonce(high.to_bytes(8, "big") + low.to_bytes(8, "big"))
        key_stream.update_into(zero_bytes[: len(out)], out.data)

    return bits


class GaussianSource:
    """Independent standard normal numbers by row and coordinate. Each is a pure function of (key,
    row, coordinate).

    They have the tail of a Gaussian up to 12 standard deviations. None is beyond, where one
    Gaussian number in 10^32 is.

    Args:
      key: uint64 (4,); from `noise_key`.
      bits: the key stream; None for AES of the key.

    >>> draws = np.empty((2, 3), np.float32)
    >>> GaussianSource(noise_key(7)).fill(draws, 5)
    >>> again = np.empty((1, 2), np.float32)
    >>> GaussianSource(noise_key(7)).fill(again, 6)
    >>> np.array_equal(draws[1, :2], again[0])
    True
    """

    def __init__(self, key: np.ndarray, *, bits: Bits | None = None) -> None:
        if bits is None:
            key_text = b"fedmf noise of the host:" + np.asarray(key, "<u8").tobytes()
            bits = aes_counter_mode(hashlib.sha256(key_text).digest())
        self._bits = bits
        self._words = np.empty(_WORDS, "<u4")
        # The arrays are separate, because numpy's fast cosine does not write from one slice of an
        # array to another slice of it.
        self._radius, self._cosine, self._sine = (
            np.empty(_WORDS // 2, np.float32) for _ in range(3)
        )
        self._number = np.empty(_WORDS // 2, "<u4")
        self._near = np.empty(_WORDS // 2, bool)
        self._normals = np.empty(_WORDS, np.float32)

    def fill(self, out: np.ndarray, row: int, start: int = 0) -> None:
        """Draws the coordinates from `start` on, of the rows from `row` on, into `out`.

        Args:
          out: float32 (rows, coordinates).
          row: 0 <= row < 2^63 - rows.
          start: a multiple of CHUNK.
        """
        width = out.shape[1]
        for first in range(0, width, _WORDS):
            column_slice = out[:, first : first + _WORDS]
            num_chunks = -(-column_slice.shape[1] // CHUNK)
            rows_at_once = _WORDS // (CHUNK * num_chunks)
            for i in range(0, len(column_slice), rows_at_once):
                row_block = column_slice[i : i + rows_at_once]
                self._draw(row_block, row + i, (start + first) // CHUNK, num_chunks)

    def _draw(self, out: np.ndarray, row: int, chunk: int, chunks: int) -> None:
        """Draws the same range of chunks for several consecutive rows into `out`.

        Args:
          out: float32 (rows, coordinates); of the last chunk it takes the first coordinates.
          row: the first row.
          chunk: the first chunk of each row.
          chunks: chunks of each row.
        """
        rows, width = out.shape
        random_words = self._words[: rows * chunks * CHUNK]
        for r, row_words in enumerate(random_words.reshape(rows, chunks * CHUNK)):
            self._bits(row_words.view(np.uint8), row + r, chunk * _BLOCKS)
        word_pairs = random_words.reshape(rows * chunks, 2, _PAIRS)
        first_words = word_pairs[:, 0]
        second_words = word_pairs[:, 1]
        radius, cosine, sine = self._polar_coordinates(
            first_words, second_words, row, chunk, chunks
        )
        is_contiguous = rows == 1 and width == len(random_words) and out.strides[1] == out.itemsize
        normal_numbers = out[0] if is_contiguous else self._normals[: len(random_words)]
        normal_pairs = normal_numbers.reshape(word_pairs.shape)
        np.multiply(radius, cosine, out=normal_pairs[:, 0])
        np.multiply(radius, sine, out=normal_pairs[:, 1])
        if not is_contiguous:
            out[:] = normal_numbers.reshape(rows, chunks * CHUNK)[:, :width]

    def _polar_coordinates(
        self, first: np.ndarray, second: np.ndarray, row: int, chunk: int, chunks: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Converts pairs of random words to radii, cosines and sines of the Box-Muller transform,
        float32.

        Args:
          first, second: uint32 (chunks of all rows, pairs); the angles overwrite the second.
          row, chunk, chunks: arguments of `_draw`.
        """
        num_pairs = first.size
        radius, cosine, sine, is_near_end = (
            array[:num_pairs].reshape(first.shape)
            for array in (self._radius, self._cosine, self._sine, self._near)
        )
        np.copyto(radius, first, casting="unsafe")
        np.multiply(radius, np.float32(2**-32), out=radius)
        # The logarithm of 0 gives an infinite radius, which is replaced in a later step.
        with np.errstate(divide="ignore"):
            np.log(radius, out=radius)
        np.multiply(radius, np.float32(-2), out=radius)
        np.sqrt(radius, out=radius)
        pair_indices = self._number[:num_pairs].reshape(radius.shape)
        # Unsigned sums wrap around at 2^32, so after the addition both numbers near 0 and numbers
        # near 2^32 are small.
        np.add(first, np.uint32(_NEAR_THE_END), out=pair_indices)
        np.less(pair_indices, np.uint32(2 * _NEAR_THE_END), out=is_near_end)
        chunk_index, pair_index = np.divmod(np.flatnonzero(is_near_end), _PAIRS)
        low_bits = second[chunk_index, pair_index] & np.uint32(255)
        first_bits = first[chunk_index, pair_index].astype(np.uint64) << np.uint64(8) | low_bits
        uniform_numbers = (first_bits + 0.5) * 2.0**-40
        for i in np.flatnonzero(first_bits < _FAR_OUT):
            pair_row = int(row + chunk_index[i] // chunks)
            pair_number = int((chunk + chunk_index[i] % chunks) * _PAIRS + pair_index[i])
            uniform_numbers[i] = self._far_out(int(first_bits[i]), pair_row, pair_number)
        radius[chunk_index, pair_index] = np.sqrt(-2 * np.log(uniform_numbers))
        angle = pair_indices.view(np.int32)
        np.right_shift(second.view(np.int32), 8, out=angle)
        np.copyto(sine, angle, casting="unsafe")
        # Adding 0.5 to the integer angles is exact in float32, and no angle then has a sine of 0.
        np.add(sine, np.float32(0.5), out=sine)
        np.multiply(sine, np.float32(np.pi / 2**23), out=sine)
        np.cos(sine, out=cosine)
        np.sin(sine, out=sine)
        return radius, cosine, sine

    def _far_out(self, bits: int, row: int, pair: int) -> float:
        """Draws 64 more bits of a uniform number whose first 40 bits are `bits`, and returns the
        number.
        """
        drawn_bytes = np.empty(16, np.uint8)
        self._bits(drawn_bytes, _SECOND_STREAM + row, pair)
        low_bits = int(drawn_bytes[:8].view("<u8")[0])
        return (bits + (low_bits + 0.5) * 2.0**-64) * 2.0**-40
