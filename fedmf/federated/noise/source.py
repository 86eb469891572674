"""The Gaussian source inside TensorFlow graphs, which have no AES. docs/randomness.md says what it
is good for, and what not.
"""

import itertools
import math
import os
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fedmf.server.source import check_noise_seed, noise_key, seed_of_run

Draw = Callable[[Any], Any]
_PHILOX = 1  # TensorFlow's number of the algorithm
# Of graphs with a seed of one's own; they go when the program ends.
_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []
LARGEST = (2 * 65 * math.log(2)) ** 0.5  # of all draws


def source_of_key(key: Any, size: int) -> Draw:
    """draw(i) -> row i of Z at unit standard deviation, float32 (size,): independent over i and
    entries, a pure function of (key, i).

    Box-Muller on the 64-bit words of Philox4x32-10: entries 2p and 2p + 1 are those of words 2p and
    2p + 1 at key K and counter (p, S + i), where key begins with K and S. A radius has all 64 bits,
    and so a tail to 9.4.

    Args:
      key: uint64 (4,), an array or a tensor; from `noise_key`. The last two words
        are not used here.
      size: number of coordinates.
    """
    key, pairs = tf.convert_to_tensor(key, tf.uint64), -(-size // 2)

    def draw(i: Any) -> Any:
        counter = tf.stack([tf.constant(0, tf.uint64), key[1] + tf.cast(i, tf.uint64)])
        words = tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=[pairs, 2], key=key[:1], counter=counter, alg=_PHILOX, dtype=tf.uint64
        )
        return tf.reshape(box_muller(words), [-1])[:size]

    return draw


def box_muller(words: Any) -> Any:
    """Pairs of standard normals, float32 (pairs, 2), from uniform words, uint64 (pairs, 2)."""
    first, second = words[:, 0], words[:, 1]
    # The nearer end of (0, 1) decides: float32 has few numbers near 1.
    low = first < tf.constant(2**63, tf.uint64)
    near = (tf.cast(tf.where(low, first, tf.bitwise.invert(first)), tf.float32) + 0.5) * 2.0**-64
    radius = tf.sqrt(-2.0 * tf.where(low, tf.math.log(near), tf.math.log1p(-near)))
    turn = tf.bitwise.right_shift(tf.bitcast(second, tf.int64), tf.constant(40, tf.int64))
    angle = (tf.cast(turn, tf.float32) + 0.5) * (math.pi / 2**23)
    return tf.stack([radius * tf.cos(angle), radius * tf.sin(angle)], axis=1)


class RunSeeds:
    """The noise seeds of the runs that one object begins, a different one for each; its copies
    share them.

    Args:
      noise_seed: as of `check_noise_seed`. Of an int the first run has that seed, and each later
        one a seed derived from it. A graph's first call has the seed of the run for which the graph
        was built; its later calls are runs with keys of their own.
    """

    def __init__(self, noise_seed: int | str) -> None:
        checked = check_noise_seed(noise_seed)
        self._noise_seed = None if isinstance(noise_seed, str) else checked
        self._begun, self._process = itertools.count(), os.getpid()

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

    def next(self) -> int | str:
        """The seed of the next run, or "os"."""
        if self._noise_seed is None:
            return "os"
        if os.getpid() != self._process:
            raise ValueError(
                "a query or factory with a `noise_seed` of your own was forked: its copies would "
                'begin runs with the same noise; make it where it is used, or use noise_seed="os"'
            )
        return seed_of_run(self._noise_seed, next(self._begun))

    def next_key(self) -> Any:
        """The key of the next run, uint64 (4,).

        Each call of a graph that is being built begins another run.
        """
        seed = self.next()
        key = tf.constant(noise_key(check_noise_seed(seed)), tf.uint64)
        if tf.executing_eagerly():
            return key
        return _key_of_this_call(key) if seed == "os" else _key_once(key)


def _key_of_this_call(key: Any) -> Any:
    """A key that differs from call to call of the graph that is being built,
    and is as secret as `key`.

    Secrecy is from `key`. Calls are told apart by the clock and by a number that TensorFlow draws
    from the system.
    """
    call = tf.bitcast(tf.stack([tf.bitcast(tf.timestamp(), tf.int64), _drawn()]), tf.uint64)
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[4],
        key=key[:1],
        counter=tf.bitwise.bitwise_xor(key[1:3], call),
        alg=_PHILOX,
        dtype=tf.uint64,
    )


def _key_once(key: Any) -> Any:
    """`key` in one call of the graph that is being built, and a `_key_of_this_call` in every other.

    Each call leaves a file of its own, then counts the files: of calls side by side at most one
    finds its own beside the first alone. Files are what TFF's runtime keeps from call to call; it
    makes variables anew. Where the folder is gone, as on another machine, no call has `key`.
    """
    folder = tempfile.TemporaryDirectory(prefix="fedmf-runs-")
    _FOLDERS.append(folder)
    pathlib.Path(folder.name, "first").touch()
    # With the time: forked processes draw the same numbers.
    now = tf.strings.as_string(tf.timestamp(), precision=6)
    mark = tf.strings.join([tf.strings.as_string(_drawn()), now], "-")
    with tf.control_dependencies([tf.io.write_file(tf.strings.join([folder.name, "/", mark]), "")]):
        # Patterns depend on the mark: constant ones could be looked up before the file is there.
        within = tf.strings.join([folder.name, "/", tf.strings.substr(mark, 0, 0)])
        begun, first = (tf.size(tf.io.matching_files(within + name)) for name in ("*", "first"))
    alone = tf.logical_and(tf.equal(begun, 2), tf.equal(first, 1))
    return tf.where(alone, key, _key_of_this_call(key))


def _drawn() -> Any:
    limit = tf.constant(2**62, tf.int64)
    return tf.raw_ops.RandomUniformInt(shape=[1], minval=-limit, maxval=limit, seed=0, seed2=0)[0]
