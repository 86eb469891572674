"""`MatrixFactorizationQuery`: MF-DP-FTRL as a TensorFlow Privacy DPQuery."""

import collections
from typing import Any, NamedTuple

import dp_accounting
import numpy as np
import tensorflow as tf
import tensorflow_privacy as tfp

from fedmf import _checks
from fedmf.accounting import Plan
from fedmf.federated.noise import NoiseRows, NoiseState
from fedmf.federated.source import check_noise_seed

# Clipped records are scaled by this much less than allowed, so that float32 rounding cannot lift their norm over clip_norm.
_ROUNDING_MARGIN = 1 - 1e-6


class SampleParams(NamedTuple):
    """What clients need: clip_norm and zeroing_norm, float32 scalars."""

    clip_norm: Any
    zeroing_norm: Any


def check_zeroing_norm(zeroing_norm: Any) -> float | None:
    """The norm as a positive float, or None for no limit."""
    if zeroing_norm is None:
        return None
    way_out = "use a positive number such as 100, or None for no limit"
    if _checks.real("zeroing_norm", zeroing_norm, way_out=way_out) <= 0:
        raise ValueError(f"zeroing_norm={zeroing_norm} must be positive: {way_out}")
    return float(zeroing_norm)


class MatrixFactorizationQuery(tfp.SumAggregationDPQuery):
    """Sum of clipped records plus row t of N Z in round t (Denisov et al. 2022, Sec. 2; banded paper, Alg. 1).

    Pure: every call is a function of its arguments, so it runs in TFF's aggregators, in tf.function and eagerly alike. State is the
    round number and a few rows of noise; the Gaussians themselves are drawn again from (noise_seed, row) when needed.

    Args:
      plan: what to run; the only source of the noise scale.
      record_specs: structure of tf.TensorSpec (or anything with shape and dtype) of one record; float32 or float64 leaves.
      noise_seed: non-negative int; the same (seed, round) gives the same noise. Secret in a real deployment.
      zeroing_norm: a record with an entry larger than this in absolute value counts as zero (papers: 100); None for no limit. A
        record with a NaN or an infinity always counts as zero.

    Raises:
      TypeError, ValueError: naming the argument, its value and what to do instead.

    Example:
      >>> import fedmf
      >>> from fedmf import federated
      >>> import tensorflow as tf
      >>> once = fedmf.Participation(rounds=2, schema="single")
      >>> mechanism = fedmf.fit(fedmf.prefix_sum(2), once, family="identity")
      >>> plan = fedmf.Plan(mechanism=mechanism, participation=once, noise_multiplier=0.0, clip_norm=1.0, delta=1e-6)
      >>> query = federated.MatrixFactorizationQuery(plan, tf.TensorSpec([2], tf.float32), noise_seed=1)
      >>> state = query.initial_global_state()
      >>> record = query.preprocess_record(query.derive_sample_params(state), tf.constant([3.0, 4.0]))
      >>> total, state, _ = query.get_noised_result(record, state)
      >>> total.numpy().round(3), int(state.next_round)
      (array([0.6, 0.8], dtype=float32), 1)
    """

    def __init__(
        self,
        plan: Plan,
        record_specs: Any,
        *,
        noise_seed: int | str,
        zeroing_norm: float | None = None,
        noise_strategy: str | None = None,
    ) -> None:
        if not isinstance(plan, Plan):
            raise TypeError(f"plan={plan!r} must be a fedmf.Plan: make one with fedmf.calibrate")
        self._plan = plan
        self._specs = tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), record_specs)
        leaves = tf.nest.flatten(self._specs)
        for leaf in leaves:
            if not leaf.shape.is_fully_defined() or leaf.dtype not in (tf.float32, tf.float64):
                raise TypeError(
                    f"record_specs has a leaf {leaf}: use float32 or float64 tensors of fully defined shape (half precision rounds "
                    "clipped updates above the clip norm)"
                )
        checked = check_zeroing_norm(zeroing_norm)
        self._zeroing_norm = float("inf") if checked is None else checked
        self._sizes = [int(np.prod(leaf.shape)) for leaf in leaves]
        size = sum(self._sizes)
        self._noise = NoiseRows(
            stream=plan.mechanism.stream(), size=size, noise_seed=check_noise_seed(noise_seed), strategy=noise_strategy
        )

    @property
    def plan(self) -> Plan:
        """The plan whose guarantee this query gives."""
        return self._plan

    def initial_global_state(self) -> NoiseState:
        """State before round 0."""
        return self._noise.initial_state()

    def derive_sample_params(self, global_state: NoiseState) -> SampleParams:
        """Constants of the plan: nothing about the noise leaves the server."""
        del global_state
        return SampleParams(tf.constant(self._plan.clip_norm, tf.float32), tf.constant(self._zeroing_norm, tf.float32))

    def initial_sample_state(self, template: Any = None) -> Any:
        """Zeros like `template`, by default like `record_specs`."""
        return super().initial_sample_state(self._specs if template is None else template)

    def preprocess_record(self, params: SampleParams, record: Any) -> Any:
        """Zeroing, then clipping to clip_norm in L2 over all leaves together. The result's norm never exceeds clip_norm."""
        leaves = tf.nest.flatten(record)
        limit = tf.cast(params.zeroing_norm, tf.float64)
        # Written so that a NaN fails the comparison and counts as too large.
        good = tf.reduce_all(
            [tf.reduce_all(tf.math.is_finite(leaf) & (tf.cast(tf.abs(leaf), tf.float64) <= limit)) for leaf in leaves]
        )
        kept = [tf.where(good, leaf, tf.zeros_like(leaf)) for leaf in leaves]
        # float64: the squares of large float32 values overflow float32.
        norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(tf.cast(leaf, tf.float64))) for leaf in kept]))
        clip = tf.cast(params.clip_norm, tf.float64)
        scale = tf.where(norm > clip * _ROUNDING_MARGIN, clip * _ROUNDING_MARGIN / norm, tf.ones_like(norm))
        clipped = [tf.cast(tf.cast(leaf, tf.float64) * scale, leaf.dtype) for leaf in kept]
        return tf.nest.pack_sequence_as(record, clipped)

    def get_noised_result(self, sample_state: Any, global_state: NoiseState) -> tuple[Any, NoiseState, Any]:
        """The sum plus this round's noise, and the state for the next round.

        The event of a single round is Unsupported on purpose: rounds are correlated and do not compose; `plan.event` is the event of
        the whole run.
        """
        row, new_state = self._noise.next(NoiseState(*global_state))
        row = row * tf.constant(self._plan.stddev, tf.float32)
        leaves = tf.nest.flatten(sample_state)
        parts = tf.split(row, self._sizes) if self._sizes else []
        noised = [
            leaf + tf.cast(tf.reshape(part, leaf.shape), leaf.dtype) for leaf, part in zip(leaves, parts, strict=True)
        ]
        result = tf.nest.pack_sequence_as(sample_state, noised)
        return result, new_state, dp_accounting.UnsupportedDpEvent()

    def derive_metrics(self, global_state: NoiseState) -> "collections.OrderedDict[str, Any]":
        """Rounds done and the standard deviation of Z; both are public."""
        return collections.OrderedDict(
            rounds_done=global_state.next_round, noise_stddev=tf.constant(self._plan.stddev, tf.float32)
        )
