"""The Gaussian source: rows of Z that can be drawn again at any time, whatever ran before. docs/randomness.md says why it is trusted."""

import hashlib
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf import checks

Draw = Callable[[Any], Any]
# Philox makes four numbers of one counter, so that a row can be entered at every fourth coordinate.
COORDINATES_OF_A_COUNTER = 4


def check_noise_seed(noise_seed: Any) -> int:
    """The seed as a non-negative int; "os" draws 128 bits from the operating system.

    There is no default, because a silent seed is either reused or unknown.

    Raises:
      TypeError, ValueError: without the value, which may be a mistyped secret.
    """
    if isinstance(noise_seed, str) and noise_seed == "os":
        return secrets.randbits(128)
    hint = 'give a whole number, keep it secret and never use it twice, or "os" to draw one from the operating system'
    if noise_seed is None:
        raise ValueError(f"noise_seed=None: {hint}")
    try:
        return checks.integer("noise_seed", noise_seed, low=0, hint=hint)
    except TypeError:
        raise TypeError(f"noise_seed is a {type(noise_seed).__name__}, not an int: {hint}") from None
    except ValueError:
        raise ValueError(f"noise_seed is negative: {hint}") from None


def noise_key(noise_seed: int) -> np.ndarray:
    """The 128 bits that make the rows, uint64 (2,): the generator's key and the row number's offset.

    Args:
      noise_seed: any non-negative int; all of it is used (SHA-256).
    """
    digest = hashlib.sha256(b"fedmf noise source 1:" + str(int(noise_seed)).encode()).digest()
    return np.frombuffer(digest[:16], dtype="<u8").astype(np.uint64)


def source_of_key(key: Any, size: int, start: Any = 0) -> Draw:
    """draw(i) -> coordinates start .. start + size - 1 of row i of Z at unit standard deviation, float32 (size,).

    Entry c of row i is entry c of the Philox4x32-10 normals at key K and counter (c // 4, S + i), where key = (K, S): independent
    over i and c, and a pure function of (key, i, c).

    Args:
      key: uint64 (2,), an array or a tensor; from `noise_key`.
      size: number of coordinates.
      start: a multiple of 4, an int or an integer tensor.
    """
    key = tf.convert_to_tensor(key, tf.uint64)

    def draw(i: Any) -> Any:
        counter = tf.stack([tf.cast(start // COORDINATES_OF_A_COUNTER, tf.uint64), key[1] + tf.cast(i, tf.uint64)])
        return tf.raw_ops.StatelessRandomNormalV2(shape=[size], key=key[:1], counter=counter, alg=1, dtype=tf.float32)

    return draw


def gaussian_source(noise_seed: int, size: int) -> Draw:
    """The rows of `noise_seed`; see `source_of_key`."""
    return source_of_key(noise_key(noise_seed), size)
