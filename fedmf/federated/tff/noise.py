"""The Gaussian source inside TensorFlow graphs, which have no AES. docs/randomness.md says what it
is good for, and what not.

Rows of N Z on tensors: a pure step from one round to the next, for any TensorFlow graph.

Two strategies keep the state that passes through a graph small:
  recurrent    [x_t; S_(t+1)] = M_t [z_t; S_t], state: the few rows S that the future needs of the
               past (`fedmf.noise.blocks`).
  precomputed  row t is made by the host and put in the state before round t (`fedmf.server.rows`).
Both write the rows of `NoiseStream.causal`, each of the draws of its own source.
"""

import dataclasses
import itertools
import math
import os
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf import fields
from fedmf.noise.blocks import BlockForm
from fedmf.noise.strategies import choose_graph_strategy
from fedmf.noise.stream import NoiseStream
from fedmf.server.source import check_noise_seed, noise_key, seed_of_run
from fedmf.server.state import NoiseState, state_mark

Draw = Callable[[Any], Any]
_PHILOX = 1  # TensorFlow's number of the algorithm
# Of graphs with a seed of one's own; they go when the program ends.
_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


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


def _with_unknown_shape(state_rows: Any) -> Any:
    """Returns the same rows, with a shape that the graph being built does not know.

    TFF takes the type of its state from this tensor. If that type had the shape of this plan's
    rows, TFF would refuse another plan's rows by "Failed to serialize", before `NoiseRows.next`
    compares the plans.
    """
    if tf.executing_eagerly():
        return state_rows
    return tf.compat.v1.placeholder_with_default(state_rows, [None, None])


def _drawn() -> Any:
    limit = tf.constant(2**62, tf.int64)
    return tf.raw_ops.RandomUniformInt(shape=[1], minval=-limit, maxval=limit, seed=0, seed2=0)[0]


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
            rows=_with_unknown_shape(tf.zeros([self.state_rows, self.size], tf.float32)),
        )

    def next(self, state: NoiseState) -> tuple[Any, NoiseState]:
        """Row `state.next_round` of N Z at unit standard deviation, float32 (size,), and the state
        after it.

        Raises:
          tf.errors.InvalidArgumentError: when executed past the last round, in either strategy;
            with a state of another plan or strategy; or with no row handed in, or one of another
            round. In round 0 that makes the row NaN. XLA drops these checks (jit_compile=True):
            there the row is NaN.
          ValueError: inside a tf.function, with a state whose rows have the shape of another plan.
        """
        in_time = state.next_round < self.stream.rounds
        ours = tf.equal(state.mechanism, self._mark_of_state())
        handed_in = tf.equal(state.made_for, state.next_round) | (self.strategy != "precomputed")
        # The plans are compared first: in a state of another plan that is what is wrong.
        # TFF asks for a result of the initial state when it initialises, to learn its type: that
        # one is NaN, no error.
        checks = [
            (self._other_plan(), ours),
            (
                f"the noise was planned for rounds={self.stream.rounds}: fit and calibrate a "
                "longer mechanism to train on",
                in_time,
            ),
            (
                "no noise was handed in for this round: call "
                "process.next(noise.hand_in(state), ...) with a HostNoise",
                handed_in | tf.equal(state.next_round, 0),
            ),
        ]
        asserted: list[Any] = []
        for message, holds in checks:
            with tf.control_dependencies(asserted):
                assertion = tf.debugging.assert_equal(holds, True, message=message)
            if assertion is not None:
                asserted.append(assertion)
        with tf.control_dependencies(asserted):
            t = tf.identity(state.next_round)
            state = state._replace(rows=self._with_shape_of_plan(state.rows))
        row, rows = (
            (state.rows[0], state.rows) if self._form is None else self._recur(self._form, state, t)
        )
        row = tf.where(in_time & ours & handed_in, row, float("nan"))
        return row, state._replace(next_round=t + 1, made_for=tf.constant(-1, tf.int32), rows=rows)

    def _other_plan(self) -> str:
        """Returns the words with which the state of another plan is refused."""
        return (
            "the state's noise is that of another mechanism, noise scale, clip norm, model size or "
            "`noise_strategy`, with which noise "
            "could come again that was seen: make the aggregator as it was when the state was made "
            f"(here noise_strategy={self.strategy!r}, {self.state_rows} rows)"
        )

    def _with_shape_of_plan(self, state_rows: Any) -> Any:
        """Returns the rows with the shape that this plan's have, for the graph being built.

        Without rows in the state nothing follows from their shape.

        Raises:
          ValueError: the graph knows another shape.
        """
        state_rows = tf.identity(state_rows)
        if self.state_rows == 0:
            return state_rows
        shape_of_plan = [self.state_rows, self.size]
        if not state_rows.shape.is_compatible_with(shape_of_plan):
            raise ValueError(self._other_plan())
        return tf.ensure_shape(state_rows, shape_of_plan)

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
        matrices = [self._padded(form, t) for t in range(form.rounds)]
        while len(matrices) > 1 and np.array_equal(matrices[-1], matrices[-2]):
            del matrices[-1]
        return np.stack(matrices)

    @staticmethod
    def _padded(form: BlockForm, t: int) -> np.ndarray:
        """Returns M_t with as many rows of the state before and after each round."""
        M = form.matrix(t)
        padded = np.zeros((1 + form.width, 1 + form.width))
        padded[: M.shape[0], : M.shape[1]] = M
        return padded[:1] if form.rolling else padded
