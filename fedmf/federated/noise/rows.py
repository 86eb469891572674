"""Rows of N Z on tensors: a pure step from one round to the next, for any TensorFlow graph.

Two strategies keep the state that passes through a graph small:
  recurrent    [x_t; S_(t+1)] = M_t [z_t; S_t], state: the few rows S that the future needs of the past (`fedmf.noise.blocks`).
  precomputed  row t is made by the host and put in the state before round t; see `fedmf.federated.noise.host`.
Both write the same rows for the same key, up to float32 rounding: those of `NoiseStream.causal`.
"""

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from fedmf.federated.noise.source import Draw, noise_key, source_of_key
from fedmf.noise.blocks import BlockForm
from fedmf.noise.strategies import choose_graph_strategy
from fedmf.noise.stream import NoiseStream
from fedmf.privacy.plan import Plan
from fedmf.privacy.statement import mechanism_digest


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
    """64 bits by which plans are told apart, 0 <= mark < 2^64: by mechanism, standard deviation and clip norm, and how it adapts.

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
    if plan.quantile_clipping is not None:
        text += f" {plan.bit_stddev:.5e} {plan.quantile_clipping}"
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
      strategy: one of GRAPH_STRATEGIES; None is "recurrent".
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
        chosen = choose_graph_strategy(self.stream, self.size, self.strategy)
        for name, value in (("strategy", chosen.name), ("state_rows", chosen.width), ("_form", chosen.form)):
            object.__setattr__(self, name, value)

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
          tf.errors.InvalidArgumentError: when executed past the last round, in either strategy; with a state of another plan or
            strategy; or with no row handed in, or one of another round. In round 0 that makes the row NaN. XLA drops these checks
            (jit_compile=True): there the row is NaN.
        """
        in_time = state.next_round < self.stream.rounds
        ours = tf.equal(state.mechanism, self._mark_of_state())
        handed_in = tf.equal(state.made_for, state.next_round) | (self.strategy != "precomputed")
        # TFF asks for a result of the initial state when it initialises, to learn its type: that one is NaN, no error.
        messages = {
            f"the noise was planned for rounds={self.stream.rounds}: fit and calibrate a longer mechanism to train on": in_time,
            "the state's noise is that of another mechanism, noise scale, clip norm or noise_strategy, with which noise could come again "
            "that was seen: make the aggregator as it was when the state was made "
            f"(here noise_strategy={self.strategy!r}, {self.state_rows} rows)": ours,
            "no noise was handed in for this round: call process.next(noise.hand_in(state), ...) with a HostNoise": handed_in
            | tf.equal(state.next_round, 0),
        }
        asserts = [tf.debugging.assert_equal(holds, True, message=text) for text, holds in messages.items()]
        with tf.control_dependencies([check for check in asserts if check is not None]):
            t = tf.identity(state.next_round)
        row, rows = (state.rows[0], state.rows) if self._form is None else self._recur(self._form, state, t)
        row = tf.where(in_time & ours & handed_in, row, float("nan"))
        return row, NoiseState(state.key, t + 1, tf.constant(-1, tf.int32), state.mechanism, rows)

    def _mark_of_state(self) -> Any:
        return tf.constant(state_mark(self.mark, str(self.strategy), self.state_rows), tf.uint64)

    def _recur(self, form: BlockForm, state: NoiseState, t: Any) -> tuple[Any, Any]:
        table = self._table(form)
        M, z = tf.constant(table, tf.float32)[tf.minimum(t, len(table) - 1)], self.source(state.key, self.size)(t)
        if not form.rolling:
            out = tf.matmul(M, tf.concat([z[None], state.rows], axis=0))
            return out[0], out[1:]
        row = M[0, 0] * z
        if form.width == 0:
            return row, state.rows
        # The new state is the new row and all but the oldest of the others: a copy, not a product.
        row += tf.linalg.matvec(state.rows, M[0, 1:], transpose_a=True)
        return row, tf.concat([row[None], state.rows[:-1]], axis=0)

    def _table(self, form: BlockForm) -> np.ndarray:
        """M_t, (rounds, 1 + width, 1 + width), or its first row where the state is rolling; without the last rounds if all have one M."""
        matrices = [form.matrix(t)[: 1 if form.rolling else None] for t in range(form.rounds)]
        while len(matrices) > 1 and np.array_equal(matrices[-1], matrices[-2]):
            del matrices[-1]
        return np.stack(matrices)
