"""Random number generator of the noise inside TensorFlow graphs, and the keys of runs.

It is Philox4x32-10 (Salmon, Moraes, Dror and Shaw 2011), because TensorFlow has no AES.
docs/randomness.md says for which threats this generator suffices, and for which it does not. This
text describes every bit of it; tests/federated/tff/test_noise_generator.py implements it again from
this text. Row i of the noise is drawn in five steps.

1. Key. The first 8 bytes of the root key (`fedmf.server.source`), little-endian, are the key K of
   Philox. The next 8 bytes of the root key are the salt S.
2. Counter. Coordinates 2 p and 2 p + 1 of row i use the counter whose low 64 bits are p and whose
   high 64 bits are S + i modulo 2^64.
3. Words. Philox turns the counter into two words of 64 bits.
4. Radius. The first word w gives the uniform number u = (w + 1/2) / 2^64, and the radius is
   sqrt(-2 log u), in float32. If w >= 2^63, the logarithm of u is computed as that of 1 - v, with
   v = (2^64 - 1/2 - w) / 2^64.
5. Angle. The high 24 bits of the second word are a signed number a. The angle is
   pi (a + 1/2) / 2^23. Coordinate 2 p is the radius times the cosine of the angle, and coordinate
   2 p + 1 is the radius times its sine.
"""

import hashlib
import itertools
import math
import os
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fedmf.server.source import check_noise_seed, noise_key, seed_of_run

Draw = Callable[[Any], tf.Tensor]
# TensorFlow's number of the random number generator Philox.
_PHILOX = 1
# Each graph with an int as noise seed has a temporary folder here, in which its calls are counted.
# The folders are removed when the program ends.
_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


def source_of_key(key: Any, size: int) -> Draw:
    """Returns a function that draws row i of the independent noise Z, as a float32 array of shape
    (size,).

    Its entries are standard normal.

    Entries are independent over rows and coordinates, and a pure function of (key, i).

    They are Box-Muller transforms of the 64-bit words of Philox4x32-10: entries 2p and 2p + 1 are
    those of words 2p and 2p + 1 at key K and counter (p, S + i), where `key` begins with K and S. A
    radius has all 64 bits, and so a tail to 9.4.

    Args:
      key: uint64 (4,), an array or a tensor; from `noise_key`. The last two words
        are not used here.
      size: number of coordinates.
    """
    key = tf.convert_to_tensor(key, tf.uint64)
    num_pairs = -(-size // 2)

    def draw(i: Any) -> tf.Tensor:
        counter = tf.stack([tf.constant(0, tf.uint64), key[1] + tf.cast(i, tf.uint64)])
        words = tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=[num_pairs, 2], key=key[:1], counter=counter, alg=_PHILOX, dtype=tf.uint64
        )
        return tf.reshape(box_muller(words), [-1])[:size]

    return draw


def box_muller(words: tf.Tensor) -> tf.Tensor:
    """Converts random words, uint64 (pairs, 2), to standard normals, float32 (pairs, 2)."""
    radius_words = words[:, 0]
    angle_words = words[:, 1]
    # The first word of a pair determines a uniform number in (0, 1). If the number is near 1, its
    # distance from 1 is computed instead, because float32 has few numbers near 1.
    is_low = radius_words < tf.constant(2**63, tf.uint64)
    nearer_words = tf.where(is_low, radius_words, tf.bitwise.invert(radius_words))
    distance_to_end = (tf.cast(nearer_words, tf.float32) + 0.5) * 2.0**-64
    log_uniform = tf.where(is_low, tf.math.log(distance_to_end), tf.math.log1p(-distance_to_end))
    radius = tf.sqrt(-2.0 * log_uniform)
    angle_bits = tf.bitwise.right_shift(
        tf.bitcast(angle_words, tf.int64), tf.constant(40, tf.int64)
    )
    angle = (tf.cast(angle_bits, tf.float32) + 0.5) * (math.pi / 2**23)
    return tf.stack([radius * tf.cos(angle), radius * tf.sin(angle)], axis=1)


class RunSeeds:
    """Noise seeds for the runs that a query or a factory begins, a different seed for each run.

    Copies of the object share the sequence of seeds.

    Args:
      noise_seed: as of `check_noise_seed`. With an int the first run has that seed, and each later
        run a seed derived from it. The first call of a graph has the seed of the run for which the
        graph was built; its later calls are runs with keys of their own.
    """

    def __init__(self, noise_seed: int | str) -> None:
        checked_seed = check_noise_seed(noise_seed)
        self._noise_seed = None if isinstance(noise_seed, str) else checked_seed
        self._run_numbers = itertools.count()
        self._process = os.getpid()

    def __copy__(self) -> "RunSeeds":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "RunSeeds":
        return self

    def __reduce__(self) -> Any:
        if self._noise_seed is None:
            return RunSeeds, ("os",)
        raise TypeError(
            "a query or factory with a `noise_seed` of your own is not pickled: its copies would "
            "begin runs with the same noise; make it "
            'where it is used, or use noise_seed="os"'
        )

    def digest(self) -> str | None:
        """Returns a SHA-256 digest of the noise seed; None if the operating system draws the
        seeds.
        """
        if self._noise_seed is None:
            return None
        return hashlib.sha256(f"fedmf noise seed {self._noise_seed}".encode()).hexdigest()

    def next(self) -> int | str:
        """Returns the seed of the next run; "os" if the operating system draws the seeds.

        Raises:
          ValueError: the process was forked, and its copies would begin the same runs.
        """
        if self._noise_seed is None:
            return "os"
        if os.getpid() != self._process:
            raise ValueError(
                "a query or factory with a `noise_seed` of your own was forked: its copies would "
                'begin runs with the same noise; make it where it is used, or use noise_seed="os"'
            )
        return seed_of_run(self._noise_seed, next(self._run_numbers))

    def next_key(self) -> tf.Tensor:
        """Returns the key of the next run, four uint64 words.

        Each call of a graph that is being built begins another run.
        """
        seed = self.next()
        key = tf.constant(noise_key(check_noise_seed(seed)), tf.uint64)
        if tf.executing_eagerly():
            return key
        return _key_of_this_call(key) if seed == "os" else _key_once(key)


def _key_of_this_call(key: tf.Tensor) -> tf.Tensor:
    """Returns a key that differs from call to call of the graph that is being built.

    It is as secret as `key`. Calls differ by the clock and by a number that TensorFlow draws from
    the operating system.
    """
    call_words = tf.bitcast(
        tf.stack([tf.bitcast(tf.timestamp(), tf.int64), _system_draw()]), tf.uint64
    )
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[4],
        key=key[:1],
        counter=tf.bitwise.bitwise_xor(key[1:3], call_words),
        alg=_PHILOX,
        dtype=tf.uint64,
    )


def _key_once(key: tf.Tensor) -> tf.Tensor:
    """Returns `key` in the first call of the graph that is being built, and new keys later.

    A new key is that of `_key_of_this_call`.

    Each call writes a file of its own, then counts the files: of parallel calls at most one finds
    its own beside the first file alone. TFF's runtime keeps files from call to call, and makes
    variables anew. Where the folder is gone, as on another machine, no call has `key`.
    """
    calls_folder = tempfile.TemporaryDirectory(prefix="fedmf-runs-")
    _FOLDERS.append(calls_folder)
    pathlib.Path(calls_folder.name, "first").touch()
    # The name of a call contains the time, because forked processes draw the same random numbers.
    time_text = tf.strings.as_string(tf.timestamp(), precision=6)
    call_name = tf.strings.join([tf.strings.as_string(_system_draw()), time_text], "-")
    call_file = tf.strings.join([calls_folder.name, "/", call_name])
    with tf.control_dependencies([tf.io.write_file(call_file, "")]):
        # `folder_prefix` is the folder's path. It is computed from `call_name` although it does not
        # contain it, because TensorFlow could match a constant pattern before the file is written.
        folder_prefix = tf.strings.join(
            [calls_folder.name, "/", tf.strings.substr(call_name, 0, 0)]
        )
        num_files = tf.size(tf.io.matching_files(folder_prefix + "*"))
        num_first_files = tf.size(tf.io.matching_files(folder_prefix + "first"))
    is_only_call = tf.logical_and(tf.equal(num_files, 2), tf.equal(num_first_files, 1))
    return tf.where(is_only_call, key, _key_of_this_call(key))


def _system_draw() -> tf.Tensor:
    """Returns a random number that TensorFlow draws from the operating system, an int64 scalar."""
    draw_limit = tf.constant(2**62, tf.int64)
    [number] = tf.unstack(
        tf.raw_ops.RandomUniformInt(
            shape=[1], minval=-draw_limit, maxval=draw_limit, seed=0, seed2=0
        )
    )
    return number
