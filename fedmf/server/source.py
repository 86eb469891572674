"""The Gaussian source: rows of Z that can be drawn again at any time, whatever ran before.

Its bits are AES-256 in counter mode, its normals Box-Muller's. docs/randomness.md describes it to
the last bit.
"""

import hashlib
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedmf import checks

# A chunk of coordinates is drawn together: the cosines of its pairs are its first half, the sines
# its second. A row can be entered at every chunk.
CHUNK = 1024
_PAIRS = CHUNK // 2
_BLOCKS = 4 * CHUNK // 16  # of 16 bytes, for one word of 4 bytes a coordinate
# Words worked on together: they and what is made of them stay in the cache.
_WORDS = 65_536
# Radii whose first 32 bits are this near to either end of their range are computed in float64, from
# all 40 bits.
_NEAR_THE_END = 2**20
# Radii whose 40 bits are below this get 64 more: the tail is right as far out as float64 tells
# numbers from 0.
_FAR_OUT = 2**24
_SECOND_STREAM = 2**63
_SEED_LIMIT = 10**4000  # what Python writes in digits, and to spare


def check_noise_seed(noise_seed: Any) -> int:
    """The seed as a non-negative int; "os" draws 256 bits from the operating system.

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
    """The 256 bits that make all rows of a run, uint64 (4,).

    Args:
      noise_seed: any non-negative int; all of it is used (SHA-256).
    """
    digest = hashlib.sha256(b"fedmf noise key 2:" + str(int(noise_seed)).encode()).digest()
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


def derived_seed(text: str, size: int = 32) -> int:
    """A seed of so many bytes, as secret as the noise seed in the text, and independent of it."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size])


def seed_of_run(noise_seed: int, number: int) -> int:
    """The noise seed of the run that an object begins after `number` others: noise_seed itself of
    the first one.
    """
    if number == 0:
        return noise_seed
    return derived_seed(f"fedmf run {number} of noise seed {noise_seed}")


# (out, high, low) writes the key stream of the counters (high, low), (high, low + 1), ... into out,
# uint8 (16 times their number,).
Bits = Callable[[np.ndarray, int, int], None]


def aes_counter_mode(key: bytes) -> Bits:
    """AES-256 of 128-bit big-endian counters (NIST SP 800-38A, Sec. 6.5).

    Args:
      key: 32 bytes.
    """
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    zeros = memoryview(bytes(4 * _WORDS))

    def bits(out: np.ndarray, high: int, low: int) -> None:
        stream.reset_nonce(high.to_bytes(8, "big") + low.to_bytes(8, "big"))
        stream.update_into(zeros[: len(out)], out.data)

    return bits


class GaussianSource:
    """Independent standard normals by row and coordinate, each a pure function
    of (key, row, coordinate).

    They have the Gaussian's tail: no draw beyond 12 standard deviations exists, and a Gaussian has
    one in 10^32.

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
        secret = hashlib.sha256(
            b"fedmf noise of the host:" + np.asarray(key, "<u8").tobytes()
        ).digest()
        self._bits = aes_counter_mode(secret) if bits is None else bits
        self._words = np.empty(_WORDS, "<u4")
        # Arrays of their own: numpy's fast cosine does not run from one part
        # of an array into another.
        self._radius, self._cosine, self._sine = (
            np.empty(_WORDS // 2, np.float32) for _ in range(3)
        )
        self._number, self._near = np.empty(_WORDS // 2, "<u4"), np.empty(_WORDS // 2, bool)
        self._normals = np.empty(_WORDS, np.float32)

    def fill(self, out: np.ndarray, row: int, start: int = 0) -> None:
        """Draws coordinates start, start + 1, ... of the rows row, row + 1, ... into out.

        Args:
          out: float32 (rows, coordinates).
          row: 0 <= row < 2^63 - rows.
          start: a multiple of CHUNK.
        """
        width = out.shape[1]
        for first in range(0, width, _WORDS):
            part = out[:, first : first + _WORDS]
            chunks = -(-part.shape[1] // CHUNK)
            together = _WORDS // (CHUNK * chunks)
            for i in range(0, len(part), together):
                rows = part[i : i + together]
                self._draw(rows, row + i, (start + first) // CHUNK, chunks)

    def _draw(self, out: np.ndarray, row: int, chunk: int, chunks: int) -> None:
        """Draws `chunks` chunks of each row, and writes what of them fits into out."""
        rows, width = out.shape
        words = self._words[: rows * chunks * CHUNK]
        for r, part in enumerate(words.reshape(rows, chunks * CHUNK)):
            self._bits(part.view(np.uint8), row + r, chunk * _BLOCKS)
        pairs = words.reshape(rows * chunks, 2, _PAIRS)
        radius, cosine, sine, near = (
            array[: len(words) // 2].reshape(rows * chunks, _PAIRS)
            for array in (self._radius, self._cosine, self._sine, self._near)
        )
        first, second = pairs[:, 0], pairs[:, 1]
        np.copyto(radius, first, casting="unsafe")
        np.multiply(radius, np.float32(2**-32), out=radius)
        with np.errstate(divide="ignore"):  # these are replaced
            np.log(radius, out=radius)
        np.multiply(radius, np.float32(-2), out=radius)
        np.sqrt(radius, out=radius)
        number = self._number[: len(words) // 2].reshape(radius.shape)
        np.add(first, np.uint32(_NEAR_THE_END), out=number)  # modulo 2^32: both ends are near 0 now
        np.less(number, np.uint32(2 * _NEAR_THE_END), out=near)
        block, pair = np.divmod(np.flatnonzero(near), _PAIRS)
        bits = first[block, pair].astype(np.uint64) << np.uint64(8) | second[
            block, pair
        ] & np.uint32(255)
        uniform = (bits + 0.5) * 2.0**-40
        for i in np.flatnonzero(bits < _FAR_OUT):
            where = row + block[i] // chunks, (chunk + block[i] % chunks) * _PAIRS + pair[i]
            uniform[i] = self._far_out(int(bits[i]), *map(int, where))
        radius[block, pair] = np.sqrt(-2 * np.log(uniform))
        angle = number.view(np.int32)
        np.right_shift(second.view(np.int32), 8, out=angle)
        np.copyto(sine, angle, casting="unsafe")
        np.add(sine, np.float32(0.5), out=sine)  # exact; no angle has the sine 0
        np.multiply(sine, np.float32(np.pi / 2**23), out=sine)
        np.cos(sine, out=cosine)
        np.sin(sine, out=sine)
        whole = rows == 1 and width == len(words) and out.strides[1] == out.itemsize
        normals = (out[0] if whole else self._normals[: len(words)]).reshape(pairs.shape)
        np.multiply(radius, cosine, out=normals[:, 0])
        np.multiply(radius, sine, out=normals[:, 1])
        if not whole:
            out[:] = normals.reshape(rows, chunks * CHUNK)[:, :width]

    def _far_out(self, bits: int, row: int, pair: int) -> float:
        """The uniform whose first 40 bits are these, from 64 more."""
        more = np.empty(16, np.uint8)
        self._bits(more, _SECOND_STREAM + row, pair)
        return (bits + (int(more[:8].view("<u8")[0]) + 0.5) * 2.0**-64) * 2.0**-40
