"""Rows of N Z on tensors: a pure step from one round to the next, for any TensorFlow graph.

Three strategies keep the state that passes through a graph small (a multiple of the model, never bands x model):
  carried    [x_t; S_(t+1)] = M_t [z_t; S_t], state: the few rows S that the future needs of the past (`fedmf.noise.blocks`).
  redrawn    every L rounds the next L rows are contracted from redrawn z, so that drawing is paid once a block.
  precomputed  row t is made by the host and put in the state before round t; see `fedmf.federated.noise.host`.
All write the same rows for the same key, up to float32 rounding: those of `NoiseStream.causal`.
"""

import dataclasses
import hashlib
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from fedmf.federated.noise.source import Draw, noise_key, source_of_key
from fedmf.noise.blocks import BlockForm
from fedmf.noise.float32_check import check_float32
from fedmf.noise.strategies import graph_strategies
from fedmf.noise.stream import NoiseStream
from fedmf.privacy.plan import Plan
from fedmf.privacy.statement import mechanism_digest

# A choice that costs more than this is worth a word.
_SLOW_SECONDS = 3.0
# Rows drawn side by side while a block is contracted.
_DRAWN_TOGETHER = 8


class NoiseState(NamedTuple):
    """State of the noise between rounds; secret, because it holds the key.

    Attributes:
      key: uint64 (2,), of the source.
      next_round: int32 ().
      made_for: int32 (), the round whose row was handed in; -1 before that and where nothing is.
      mechanism: uint64 (), of which plan this is the noise, and by what strategy; see `state_mark`.
      rows: float32 (state rows, d).
    """

    key: Any
    next_round: Any
    made_for: Any
    mechanism: Any
    rows: Any


def plan_mark(plan: Plan) -> int:
    """64 bits by which plans are told apart, 0 <= mark < 2^64: by mechanism, standard deviation and clip norm.

    A round that is done again with another scale of the same noise, or with updates clipped to another norm beside it, gives both away.
    The two numbers count to six digits: another processor may calibrate the same plan to others beyond.

    >>> import fedmf
    >>> once = fedmf.Participation(rounds=4, schema="single")
    >>> identity = fedmf.fit(fedmf.prefix_sum(4), once, family="identity")
    >>> plans = [fedmf.calibrate(identity, once, epsilon=epsilon, delta=1e-6) for epsilon in (2.0, 2.0, 8.0)]
    >>> [plan_mark(plan) == plan_mark(plans[0]) for plan in plans]
    [True, True, False]
    """
    text = f"{mechanism_digest(plan.mechanism)} {plan.stddev:.5e} {plan.clip_norm:.5e}"
    return int(hashlib.sha256(text.encode()).hexdigest()[:16], 16)


def state_mark(plan: int, strategy: str, state_rows: int) -> int:
    """64 bits by which states are told apart, 0 <= mark < 2^64: another plan or strategy would make other noise of their rows.

    A row that another strategy takes for that of the round may be one which was released already.

    Args:
      plan: of `plan_mark`.
      strategy, state_rows: of `NoiseRows`.

    >>> state_mark(7, "recurrent", 32) == state_mark(7, "regenerated", 32)
    False
    """
    return int(hashlib.sha256(f"{plan} {strategy} {state_rows}".encode()).hexdigest()[:16], 16)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseRows:
    """The rows of N Z one after the other, as a pure (state -> row, state) step that traces into any TensorFlow graph.

    Attributes:
      stream: the mechanism's stream.
      size: coordinates in a row, d.
      noise_seed: non-negative int. It makes the key of `initial_state`; a state goes on with the key it holds.
      mark: the plan's, of `plan_mark`; a state holds `state_mark` of it.
      strategy: one of GRAPH_STRATEGIES; None takes the choice of `fedmf.noise.strategies.graph_strategies`.
      source: (key, size) -> draw; see `source_of_key`.
      state_rows: rows of model size kept between rounds.

    Raises:
      ValueError: a strategy that is none, or that cannot make this noise; noise that float32 does not hold.
    """

    stream: NoiseStream
    size: int
    noise_seed: int = dataclasses.field(repr=False)
    mark: int = 0
    strategy: str | None = None
    source: Callable[[Any, int], Draw] = source_of_key
    state_rows: int = dataclasses.field(default=0, init=False)
    _form: BlockForm | None = dataclasses.field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        chosen = graph_strategies(self.stream, self.size, self.strategy)[0]
        if self.strategy is None and chosen.seconds(self.size) > _SLOW_SECONDS:
            warnings.warn(
                f"making this noise in the graph will take about {chosen.seconds(self.size):.0f} s a round on average "
                f"({chosen.reason}): use noise_strategy='precomputed' with federated.HostNoise, which is faster",
                stacklevel=3,
            )
        for name, value in (("strategy", chosen.name), ("state_rows", chosen.width), ("_form", chosen.form)):
            object.__setattr__(self, name, value)
        if chosen.name != "precomputed":  # rows that the host makes, it has checked
            causal = self.stream.causal()
            check_float32(causal.as_contraction() if chosen.name == "regenerated" else causal, form=chosen.form)

    def initial_state(self) -> NoiseState:
        """State before round 0."""
        return NoiseState(
            key=tf.constant(noise_key(self.noise_seed), tf.uint64),
            next_round=tf.constant(0, tf.int32),
            made_for=tf.constant(-1, tf.int32),
            mechanism=self._mark_of_state(),
            rows=tf.zeros([self.state_rows, self.size], tf.float32),
        )

    def next(self, state: NoiseState) -> tuple[Any, NoiseState]:
        """Row `state.next_round` of N Z at unit standard deviation, float32 (size,), and the state after it.

        Raises:
          tf.errors.InvalidArgumentError: when executed past the last round, in any strategy; with a state of another plan or
            strategy; or with no row handed in, or one of another round. In round 0 that makes the row NaN. XLA drops these checks
            (jit_compile=True): there the row is NaN.
        """
        in_time = state.next_round < self.stream.rounds
        ours = tf.equal(state.mechanism, self._mark_of_state())
        handed = tf.equal(state.made_for, state.next_round) if self.strategy == "precomputed" else tf.constant(True)
        checks = [
            tf.debugging.assert_equal(condition, True, message=message)
            for condition, message in (
                (
                    in_time,
                    f"the noise was planned for rounds={self.stream.rounds}: fit and calibrate a longer mechanism to train on",
                ),
                (
                    ours,
                    "the state's noise is that of another mechanism, noise scale, clip norm or noise_strategy, with which noise could "
                    "come again that was seen: make the aggregator as it was when the state was made "
                    f"(here noise_strategy={self.strategy!r}, {self.state_rows} rows)",
                ),
                (
                    # TFF asks for a result of the initial state when it initialises, to learn its type: that one is NaN, no error.
                    handed | tf.equal(state.next_round, 0),
                    "no noise was handed in for this round: call process.next(noise.hand_in(state), ...) with a HostNoise",
                ),
            )
        ]
        with tf.control_dependencies([check for check in checks if check is not None]):
            t = tf.identity(state.next_round)
        draw = self.source(state.key, self.size)
        if self.strategy == "recurrent":
            row, rows = self._carry(draw, t, state.rows)
        elif self.strategy == "regenerated":
            row, rows = self._from_block(draw, t, state.rows)
        else:
            row, rows = state.rows[0], state.rows
        row = tf.where(in_time & ours & handed, row, float("nan"))
        return row, NoiseState(state.key, t + 1, tf.constant(-1, tf.int32), state.mechanism, rows)

    def _mark_of_state(self) -> Any:
        return tf.constant(state_mark(self.mark, str(self.strategy), self.state_rows), tf.uint64)

    def _carry(self, draw: Draw, t: Any, rows: Any) -> tuple[Any, Any]:
        form = self._form
        assert form is not None
        now = draw(t)[None]
        recurrence = self.stream.recurrence
        if recurrence is not None:
            # The new state is the new row and all but the oldest of the others: a copy, not a product.
            table = np.hstack([np.ones((len(recurrence), 1)), -recurrence[:, 1:]]) / recurrence[:, :1]
            weights = tf.constant(table, tf.float32)[tf.minimum(t, len(table) - 1)]
            row = weights[0] * now
            if form.width == 0:
                return row[0], rows
            row += tf.linalg.matvec(rows, weights[1:], transpose_a=True)[None]
            return row[0], tf.concat([row, rows[:-1]], axis=0)
        table = self._table(form)
        M = tf.constant(table, tf.float32)[tf.minimum(t, len(table) - 1)]
        out = tf.matmul(M, tf.concat([now, rows], axis=0))
        return out[0], out[1:]

    def _table(self, form: BlockForm) -> np.ndarray:
        """M_t, (rounds, 1 + width, 1 + width), up to the first round from which on they are all the same."""
        last, buffers = form.rounds - 1, self.stream.buffers
        if buffers is not None:
            window = buffers.window.shape[1]
            changing = [np.flatnonzero((a != a[-1]).any(axis=1)) for a in (buffers.window, buffers.read)]
            changing += [np.flatnonzero((buffers.write != buffers.write[-1]).any(axis=1)) + window]
            last = min(last, max([window, *(int(rounds[-1]) + 1 for rounds in changing if len(rounds))]))
        return np.stack([form.matrix(t) for t in range(last + 1)])

    def _from_block(self, draw: Draw, t: Any, rows: Any) -> tuple[Any, Any]:
        length = self.state_rows
        phase = t % length
        rows = tf.cond(tf.equal(phase, 0), lambda: self._contract(draw, t // length), lambda: rows)
        rows.set_shape([length, self.size])
        return rows[phase], rows

    def _contract(self, draw: Draw, block: Any) -> Any:
        """Rows block * L .. block * L + L - 1, float32 (L, size)."""
        length, together = self.state_rows, _DRAWN_TOGETHER
        noising = self.stream.causal().as_contraction().contraction
        assert noising is not None
        n = len(noising)
        blocks, chunks = -(-n // length), -(-n // together)
        padded = np.zeros((blocks * length, chunks * together), np.float32)
        padded[:n, :n] = noising
        coefficients = tf.constant(padded)
        start = block * length

        def body(chunk: Any, total: Any) -> tuple[Any, Any]:
            first = chunk * together
            drawn = tf.stack([draw(first + i) for i in range(together)])
            part = tf.slice(coefficients, [start, first], [length, together])
            return chunk + 1, total + tf.matmul(part, drawn)

        zero = tf.zeros([length, self.size], tf.float32)
        # N is lower-triangular: the block ends with the draw of its last round.
        stop = tf.minimum((start + length - 1) // together + 1, chunks)
        return tf.while_loop(lambda c, _: c < stop, body, (tf.constant(0), zero), parallel_iterations=1)[1]
