"""Rows of N Z on tensors: a pure step from one round to the next, for any TensorFlow graph.

Two strategies keep the state that passes through a graph small:
  recurrent    [x_t; S_(t+1)] = M_t [z_t; S_t], state: the few rows S that the future needs of the
               past (`fedmf.noise.blocks`).
  precomputed  row t is made by the host and put in the state before round t (`fedmf.server.rows`).
Both write the rows of `NoiseStream.causal`, each of the draws of its own source.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf import fields
from fedmf.federated.noise.source import Draw, source_of_key
from fedmf.noise.blocks import BlockForm
from fedmf.noise.strategies import choose_graph_strategy
from fedmf.noise.stream import NoiseStream
from fedmf.server.state import NoiseState, state_mark


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseRows:
    """The rows of N Z one after the other, as a pure (state -> row, state) step that traces into
    any TensorFlow graph.

    Attributes:
      stream: the mechanism's stream.
      size: coordinates in a row, d.
      mark: the plan's, of `plan_mark`; a state holds `state_mark` of it.
      strategy: one of GRAPH_STRATEGIES; None is "recurrent".
      source: (key, size) -> draw; see `source_of_key`.
      state_rows: rows of model size kept between rounds.

    Raises:
      ValueError: a strategy that is none, or that cannot make this noise; noise that float32 does
        not hold.
    """

    stream: NoiseStream
    size: int
    mark: int = 0
    strategy: str | None = None
    source: Callable[[Any, int], Draw] = source_of_key
    state_rows: int = dataclasses.field(default=0, init=False)
    _form: BlockForm | None = dataclasses.field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        chosen = choose_graph_strategy(self.stream, self.size, self.strategy)
        made = {"strategy": chosen.name, "state_rows": chosen.width, "_form": chosen.form}
        fields.set_fields(self, made)

    def initial_state(self, key: Any) -> NoiseState:
        """State before round 0 of the run with this key, uint64 (4,)."""
        return NoiseState(
            key=tf.convert_to_tensor(key, tf.uint64),
            next_round=tf.constant(0, tf.int32),
            made_for=tf.constant(-1, tf.int32),
            mechanism=self._mark_of_state(),
            rows=tf.zeros([self.state_rows, self.size], tf.float32),
        )

    def next(self, state: NoiseState) -> tuple[Any, NoiseState]:
        """Row `state.next_round` of N Z at unit standard deviation, float32 (size,), and the state
        after it.

        Raises:
          tf.errors.InvalidArgumentError: when executed past the last round, in either strategy;
            with a state of another plan or strategy; or with no row handed in, or one of another
            round. In round 0 that makes the row NaN. XLA drops these checks (jit_compile=True):
            there the row is NaN.
        """
        in_time = state.next_round < self.stream.rounds
        ours = tf.equal(state.mechanism, self._mark_of_state())
        handed_in = tf.equal(state.made_for, state.next_round) | (self.strategy != "precomputed")
        # TFF asks for a result of the initial state when it initialises, to learn its type: that
        # one is NaN, no error.
        messages = {
            f"the noise was planned for rounds={self.stream.rounds}: fit and calibrate a "
            "longer mechanism to train on": in_time,
            "the state's noise is that of another mechanism, noise scale, clip norm, model size or "
            "`noise_strategy`, with which noise "
            "could come again that was seen: make the aggregator as it was when the state was made "
            f"(here noise_strategy={self.strategy!r}, {self.state_rows} rows)": ours,
            "no noise was handed in for this round: call "
            "process.next(noise.hand_in(state), ...) with a HostNoise": handed_in
            | tf.equal(state.next_round, 0),
        }
        asserts = [
            tf.debugging.assert_equal(holds, True, message=text) for text, holds in messages.items()
        ]
        with tf.control_dependencies([check for check in asserts if check is not None]):
            t = tf.identity(state.next_round)
        row, rows = (
            (state.rows[0], state.rows) if self._form is None else self._recur(self._form, state, t)
        )
        row = tf.where(in_time & ours & handed_in, row, float("nan"))
        return row, state._replace(next_round=t + 1, made_for=tf.constant(-1, tf.int32), rows=rows)

    def _mark_of_state(self) -> Any:
        return tf.constant(
            state_mark(self.mark, str(self.strategy), self.state_rows, self.size), tf.uint64
        )

    def _recur(self, form: BlockForm, state: NoiseState, t: Any) -> tuple[Any, Any]:
        table = self._table(form)
        M = tf.constant(table, tf.float32)[tf.minimum(t, len(table) - 1)]
        z = self.source(state.key, self.size)(t)
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
        """M_t, (rounds, 1 + width, 1 + width), or its first row where the state is rolling; without
        the last rounds if all have one M.
        """
        matrices = [form.matrix(t)[: 1 if form.rolling else None] for t in range(form.rounds)]
        while len(matrices) > 1 and np.array_equal(matrices[-1], matrices[-2]):
            del matrices[-1]
        return np.stack(matrices)
