"""Correlated noise in TensorFlow graphs, with one noise vector for each round.

The noise vectors are the rows of N Z. N is the noise matrix C^-1, and Z has a row of standard
normal draws for each round. The noise is a pure function of a state that passes from round to
round. Two strategies keep the state that passes through a graph small:
  recurrent    [x_t; S_(t+1)] = M_t [z_t; S_t], state: the few rows S of the past that future rounds
               need (`fedmf.noise.blocks`).
  precomputed  the host makes row t and puts it into the state before round t
               (`fedmf.server.host_noise`).
Both compute the rows of `NoiseStream.causal`, each from the draws of its own source.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf import fields
from fedmf.federated.tff.noise_source import Draw, source_of_key
from fedmf.noise.blocks import BlockForm
from fedmf.noise.graph_strategies import choose_graph_strategy
from fedmf.noise.stream import NoiseStream
from fedmf.server.state import NoiseState, state_fingerprint


def _with_unknown_shape(state_rows: tf.Tensor) -> tf.Tensor:
    """Returns the rows of a noise state, with a static shape that is unknown in the graph being
    built.

    TFF takes the type of its state from this tensor. If that type had the shape of this plan's
    rows, TFF would refuse another plan's rows by "Failed to serialize", before `GraphNoise.next`
    compares the plans.
    """
    if tf.executing_eagerly():
        return state_rows
    return tf.compat.v1.placeholder_with_default(state_rows, [None, None])


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraphNoise:
    """The noise of a plan, as a pure function in a TensorFlow graph.

    The function maps a state to the row of N Z for the next round, and to the next state. N is the
    noise matrix, and Z has a standard normal draw in each entry.

    Attributes:
      stream: the mechanism's stream.
      size: number of coordinates of a row, d.
      plan_fingerprint: as of `fedmf.server.state`; a state holds `state_fingerprint` of it.
      strategy: one of GRAPH_STRATEGIES; None is "recurrent".
      source: (key, size) -> draw; see `source_of_key`.
      state_rows: number of rows of model size in the state between rounds.

    Raises:
      ValueError: the strategy does not exist, or cannot make this noise; float32 cannot hold the
        noise.
    """

    stream: NoiseStream
    size: int
    plan_fingerprint: int = 0
    strategy: str | None = None
    source: Callable[[Any, int], Draw] = source_of_key
    state_rows: int = dataclasses.field(default=0, init=False)
    _form: BlockForm | None = dataclasses.field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        chosen_strategy = choose_graph_strategy(self.stream, self.size, self.strategy)
        field_values = {
            "strategy": chosen_strategy.name,
            "state_rows": chosen_strategy.width,
            "_form": chosen_strategy.form,
        }
        fields.set_fields(self, field_values)

    def initial_state(self, key: Any) -> NoiseState:
        """Returns the state before round 0 of the run with this key, four uint64 words."""
        return NoiseState(
            key=tf.convert_to_tensor(key, tf.uint64),
            next_round=tf.constant(0, tf.int32),
            made_for=tf.constant(-1, tf.int32),
            mechanism=self._state_fingerprint(),
            rows=_with_unknown_shape(tf.zeros([self.state_rows, self.size], tf.float32)),
        )

    def next(self, state: NoiseState) -> tuple[tf.Tensor, NoiseState]:
        """Returns the noise vector of the state's round, and the next state.

        The vector is row `state.next_round` of N Z, for Z of standard deviation 1: float32 (size,).

        Raises:
          tf.errors.InvalidArgumentError: when executed past the last round, in either strategy;
            with a state of another plan or strategy; or with no row handed in, or one of another
            round. In round 0 that makes the row NaN. XLA drops these checks (jit_compile=True):
            there the row is NaN.
          ValueError: inside a tf.function, with a state whose rows have the shape of another plan.
        """
        is_in_time = state.next_round < self.stream.rounds
        is_same_plan = tf.equal(state.mechanism, self._state_fingerprint())
        is_handed_in = tf.equal(state.made_for, state.next_round) | (self.strategy != "precomputed")
        # The plans are compared first, because the messages of the later checks would mislead if
        # the state belongs to another plan.
        assertions = self._assertions(
            (is_same_plan, self._other_plan_error()),
            (
                is_in_time,
                f"the noise was planned for rounds={self.stream.rounds}: fit and calibrate a "
                "longer mechanism to train on",
            ),
            (
                # With precomputed noise, the caller puts each round's noise vector into the state.
                # TFF computes a result from the initial state to learn its type, so a missing
                # vector gives NaN and no error in round 0.
                is_handed_in | tf.equal(state.next_round, 0),
                "no noise was handed in for this round: call "
                "process.next(noise.hand_in(state), ...) with a HostNoise",
            ),
        )
        with tf.control_dependencies(assertions):
            t = tf.identity(state.next_round)
            state = state._replace(rows=self._with_shape_of_plan(state.rows))
        if self._form is None:
            noise_row = state.rows[0]
            next_rows = state.rows
        else:
            noise_row, next_rows = self._recur(self._form, state, t)
        noise_row = tf.where(is_in_time & is_same_plan & is_handed_in, noise_row, float("nan"))
        next_state = state._replace(
            next_round=t + 1, made_for=tf.constant(-1, tf.int32), rows=next_rows
        )
        return noise_row, next_state

    @staticmethod
    def _assertions(*conditions: tuple[tf.Tensor, str]) -> list[tf.Operation]:
        """Returns operations that check conditions one after the other, each with its own error
        message.
        """
        assertions: list[tf.Operation] = []
        for is_fulfilled, message in conditions:
            with tf.control_dependencies(assertions):
                equality_assertion = tf.debugging.assert_equal(is_fulfilled, True, message=message)
            if equality_assertion is not None:
                assertions.append(equality_assertion)
        return assertions

    def _other_plan_error(self) -> str:
        """Returns the error message for a state that belongs to another plan."""
        return (
            "the state's noise is that of another mechanism, noise scale, clip norm, model size or "
            "`noise_strategy`, with which noise "
            "could come again that was seen: make the aggregator as it was when the state was made "
            f"(here noise_strategy={self.strategy!r}, {self.state_rows} rows)"
        )

    def _with_shape_of_plan(self, state_rows: tf.Tensor) -> tf.Tensor:
        """Returns the rows of a state with the static shape that this plan's rows have.

        If the state has no rows, they are returned as they are.

        Raises:
          ValueError: the graph knows another shape.
        """
        state_rows = tf.identity(state_rows)
        if self.state_rows == 0:
            return state_rows
        shape_of_plan = [self.state_rows, self.size]
        if not state_rows.shape.is_compatible_with(shape_of_plan):
            raise ValueError(self._other_plan_error())
        return tf.ensure_shape(state_rows, shape_of_plan)

    def _state_fingerprint(self) -> tf.Tensor:
        """Returns the fingerprint that states of this plan and strategy hold, a uint64 scalar."""
        fingerprint = state_fingerprint(
            self.plan_fingerprint, str(self.strategy), self.state_rows, self.size
        )
        return tf.constant(fingerprint, tf.uint64)

    def _recur(
        self, form: BlockForm, state: NoiseState, t: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Computes the noise vector of round t, and the rows of the next state."""
        recurrence_matrices, matrix_of_round = self._table(form)
        last_index = len(matrix_of_round) - 1
        matrix_index = tf.constant(matrix_of_round)[tf.minimum(t, last_index)]
        M = tf.constant(recurrence_matrices, tf.float32)[tf.cast(matrix_index, tf.int32)]
        z = self.source(state.key, self.size)(t)
        if not form.is_rolling:
            noise_and_state = tf.matmul(M, tf.concat([z[None], state.rows], axis=0))
            return noise_and_state[0], noise_and_state[1:]
        noise_row = M[0, 0] * z
        if form.width == 0:
            return noise_row, state.rows
        # The next state has the new row and all old rows except the oldest one. Copying the old
        # rows is faster than computing the next state as a product with M_t.
        noise_row += tf.linalg.matvec(state.rows, M[0, 1:], transpose_a=True)
        return noise_row, tf.concat([noise_row[None], state.rows[:-1]], axis=0)

    def _table(self, form: BlockForm) -> tuple[np.ndarray, np.ndarray]:
        """Returns the different matrices M_t of the noise recurrence, and for each round t the
        index of its matrix.

        The first array has the shape (matrices, 1 + width, 1 + width). If the state is rolling, it
        has only their first rows. If the last rounds have the same matrix, the second array ends
        with the first of them.
        """
        if self.stream.tree is not None:
            _, first_rounds, matrix_of_round = np.unique(
                self.stream.tree.round_kinds(), return_index=True, return_inverse=True
            )
            tree_matrices = [self._padded(form, t) for t in first_rounds.tolist()]
            index_type = np.min_scalar_type(len(first_rounds))
            return np.stack(tree_matrices), matrix_of_round.astype(index_type)
        padded_matrices = [self._padded(form, t) for t in range(form.rounds)]
        while len(padded_matrices) > 1 and np.array_equal(padded_matrices[-1], padded_matrices[-2]):
            del padded_matrices[-1]
        return np.stack(padded_matrices), np.arange(len(padded_matrices))

    @staticmethod
    def _padded(form: BlockForm, t: int) -> np.ndarray:
        """Returns the matrix M_t of the noise recurrence in round t, padded so that all M_t have
        the same shape.

        If the state is rolling, only its first row is returned.
        """
        M = form.matrix(t)
        padded_matrix = np.zeros((1 + form.width, 1 + form.width))
        padded_matrix[: M.shape[0], : M.shape[1]] = M
        return padded_matrix[:1] if form.is_rolling else padded_matrix
