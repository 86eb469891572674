"""Rows of N Z on tensors: a counter-based Gaussian source and a pure step from one round to the next.

Source. Entry i of z_j is entry i of Philox4x32-10 normals at key K and counter (i // 4, S + j), where (K, S) are 128 bits hashed
from the noise seed. Any row can be drawn again at any time, whatever ran before: that is what makes a resume exact.

Three strategies keep the state that passes through TFF small (a multiple of the model, never bands x model):
  recurrence  x_t = (z_t - sum_j C[t, t-j] x_(t-j)) / C[t, t], state: the last bands - 1 rows; for few bands (banded paper, Alg. 9).
  buffers     x_t from the last draws and a few running sums, both in state (blt, low_rank); see fedmf.mechanisms.Buffers.
  blocks      every L rounds the next L rows are contracted from redrawn z, so that drawing is paid once a block.
"""

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from fedmf.mechanisms.stream import NoiseStream

# Rows kept in state: at most this many, and at most this many bytes of them.
MAX_STATE_ROWS = 32
MAX_STATE_BYTES = 64 * 2**20
# Rows drawn side by side while a block is contracted.
_DRAWN_TOGETHER = 8

Draw = Callable[[Any], Any]


class NoiseState(NamedTuple):
    """State of the noise between rounds: next_round int32 (), rows float32 (state rows, d)."""

    next_round: Any
    rows: Any


def gaussian_source(noise_seed: int, size: int) -> Draw:
    """draw(i) -> row i of Z at unit standard deviation: float32 (size,), independent over i, a pure function of (noise_seed, i).

    Args:
      noise_seed: any non-negative integer; all of it is used (hashed). Secret in a real deployment.
      size: number of coordinates.
    """
    digest = hashlib.sha256(b"fedmf noise source 1:" + str(int(noise_seed)).encode()).digest()
    key, salt = (int.from_bytes(digest[i : i + 8], "little") for i in (0, 8))

    def draw(i: Any) -> Any:
        row = tf.constant(salt, tf.uint64) + tf.cast(i, tf.uint64)
        counter = tf.stack([tf.constant(0, tf.uint64), row])
        return tf.raw_ops.StatelessRandomNormalV2(
            shape=[size], key=tf.constant([key], tf.uint64), counter=counter, alg=1, dtype=tf.float32
        )

    return draw


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseRows:
    """The rows of N Z one after the other, as a pure (state -> row, state) step that traces into any TensorFlow graph.

    Attributes:
      stream: the mechanism's stream.
      size: coordinates in a row.
      draw: the source; see `gaussian_source`.
      strategy: "recurrence", "buffers" or "blocks"; None chooses.
    """

    stream: NoiseStream
    size: int
    draw: Draw
    strategy: str | None = None

    def __post_init__(self) -> None:
        allowed = ("recurrence", "buffers", "blocks", None)
        if self.strategy not in allowed:
            raise ValueError(f"strategy={self.strategy!r} must be one of {allowed}")
        if self.strategy == "recurrence" and self.stream.recurrence is None:
            raise ValueError("strategy='recurrence' needs a mechanism whose encoder is banded: use 'blocks'")
        if self.strategy == "buffers" and self.stream.buffers is None:
            raise ValueError("strategy='buffers' needs a mechanism whose stream has buffers: use 'blocks'")
        if self.strategy is None:
            form = "recurrence" if self.stream.recurrence is not None else "buffers"
            few = self.stream.contraction is None and self._rows_of(form) <= self._affordable_rows()
            object.__setattr__(self, "strategy", form if few else "blocks")

    def _affordable_rows(self) -> int:
        return max(1, min(MAX_STATE_ROWS, self.stream.rounds, MAX_STATE_BYTES // (4 * max(1, self.size))))

    @property
    def state_rows(self) -> int:
        """Rows of model size kept between rounds."""
        assert self.strategy is not None
        return self._rows_of(self.strategy)

    def _rows_of(self, strategy: str) -> int:
        if strategy == "recurrence":
            assert self.stream.recurrence is not None
            return self.stream.recurrence.shape[1] - 1
        if strategy == "buffers":
            assert self.stream.buffers is not None
            return len(self.stream.buffers.decay) + self.stream.buffers.window.shape[1] - 1
        return self._affordable_rows()

    def initial_state(self) -> NoiseState:
        """State before round 0."""
        return NoiseState(tf.constant(0, tf.int32), tf.zeros([self.state_rows, self.size], tf.float32))

    def next(self, state: NoiseState) -> tuple[Any, NoiseState]:
        """Row `state.next_round` of N Z at unit standard deviation, float32 (size,), and the state after it.

        Raises:
          tf.errors.InvalidArgumentError: when executed past the last round, in any strategy.
        """
        t = state.next_round
        last = tf.debugging.assert_less(
            t,
            self.stream.rounds,
            message=f"the noise was planned for rounds={self.stream.rounds}: fit and calibrate a longer mechanism to train on",
        )
        with tf.control_dependencies([last] if last is not None else []):
            t = tf.identity(t)
        steps = {"recurrence": self._recur, "buffers": self._from_buffers, "blocks": self._from_block}
        assert self.strategy is not None
        row, rows = steps[self.strategy](t, state.rows)
        return row, NoiseState(t + 1, rows)

    def _recur(self, t: Any, rows: Any) -> tuple[Any, Any]:
        assert self.stream.recurrence is not None
        recurrence = self.stream.recurrence
        # Divided in float64 on the host, so that a round is one float32 contraction.
        own = tf.constant(1 / recurrence[:, 0], tf.float32)[t]
        row = own * self.draw(t)
        if self.state_rows == 0:
            return row, rows
        past = tf.constant(recurrence[:, 1:] / recurrence[:, :1], tf.float32)[t]
        row -= tf.linalg.matvec(rows, past, transpose_a=True)
        return row, tf.concat([row[None], rows[:-1]], axis=0)

    def _from_buffers(self, t: Any, rows: Any) -> tuple[Any, Any]:
        """State rows: S(t), then z_(t-1) .. z_(t-w+1)."""
        buffers = self.stream.buffers
        assert buffers is not None
        q, w = len(buffers.decay), buffers.window.shape[1]
        sums, earlier = rows[:q], rows[q:]
        recent = tf.concat([self.draw(t)[None], earlier], axis=0)
        row = tf.linalg.matvec(recent, tf.constant(buffers.window, tf.float32)[t], transpose_a=True)
        if q == 0:
            return row, recent[: w - 1]
        row += tf.linalg.matvec(sums, tf.constant(buffers.read, tf.float32)[t], transpose_a=True)
        # S(t + 1) takes in z_(t+1-w), which is the oldest of the recent draws.
        write = np.zeros_like(buffers.write)
        write[w - 1 :] = buffers.write[: len(write) - w + 1]
        sums = tf.constant(buffers.decay[:, None], tf.float32) * sums
        sums += tf.constant(write, tf.float32)[t][:, None] * recent[w - 1]
        return row, tf.concat([sums, recent[: w - 1]], axis=0)

    def _from_block(self, t: Any, rows: Any) -> tuple[Any, Any]:
        length = self.state_rows
        phase = t % length
        rows = tf.cond(tf.equal(phase, 0), lambda: self._contract(t // length), lambda: rows)
        rows.set_shape([length, self.size])
        return rows[phase], rows

    def _contract(self, block: Any) -> Any:
        """Rows block * L .. block * L + L - 1, float32 (L, size)."""
        length, together = self.state_rows, _DRAWN_TOGETHER
        noising = self.stream.as_contraction().contraction
        assert noising is not None
        n, m = noising.shape
        blocks, chunks = -(-n // length), -(-m // together)
        padded = np.zeros((blocks * length, chunks * together), np.float32)
        padded[:n, :m] = noising
        # Chunks of columns that a block needs: everything up to its last non-zero column.
        used = np.abs(padded).reshape(blocks, length, chunks, together).max(axis=(1, 3)) > 0
        needed = chunks - np.argmax(used[:, ::-1], axis=1)
        coefficients = tf.constant(padded)
        start = block * length

        def body(chunk: Any, total: Any) -> tuple[Any, Any]:
            first = chunk * together
            drawn = tf.stack([self.draw(first + i) for i in range(together)])
            part = tf.slice(coefficients, [start, first], [length, together])
            return chunk + 1, total + tf.matmul(part, drawn)

        zero = tf.zeros([length, self.size], tf.float32)
        stop = tf.constant(needed, tf.int32)[block]
        return tf.while_loop(lambda c, _: c < stop, body, (tf.constant(0), zero), parallel_iterations=1)[1]
