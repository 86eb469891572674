"""The audit of TensorFlow Privacy's side: the query that `dp_aggregator` puts into a process."""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.federated.tff.query import MatrixFactorizationQuery
from fedmf.privacy.plan import Plan, bit_stddev
from fedmf.server.audit import divisor_of, model_of


class Query:
    """The query of an aggregator, traced once: `fedmf.server.audit.Subject`."""

    def __init__(self, plan: Plan, coordinates: int, noise_seed: int) -> None:
        shapes = model_of(coordinates)
        sizes = [math.prod(shape) for shape in shapes]
        specs = [tf.TensorSpec(shape) for shape in shapes]
        query = MatrixFactorizationQuery(
            plan, specs, divisor=divisor_of(plan), noise_seed=noise_seed
        )

        def add(params: Any, places: Any, size: Any) -> Any:
            sample = query.initial_sample_state()
            for place in places:
                parts = tf.split(tf.one_hot(place, coordinates) * size, sizes)
                record = [
                    tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)
                ]
                sample = query.accumulate_record(params, sample, record)
            return sample

        def finish(sample: Any, state: Any) -> Any:
            result, state, _ = query.get_noised_result(sample, state)
            row = tf.concat([tf.reshape(part, [-1]) for part in result], axis=0)
            if plan.quantile_clipping is not None:
                noise = (
                    state.clip.bits
                    - tf.cast(sample.clients, tf.float32) / 2
                    + tf.cast(sample.clipped, tf.float32)
                )
                bits = noise * (plan.stddev / divisor_of(plan) / bit_stddev(plan))
                row = tf.concat(
                    [row * tf.cast(plan.clip_norm / state.clip.last, tf.float32), [bits]], axis=0
                )
            return row, state

        self.initial_state, self._clip_norm = query.initial_global_state(), plan.clip_norm
        self._params = query.derive_sample_params
        params, sample = self._params(self.initial_state), query.initial_sample_state()
        spec = tf.TensorSpec([None], tf.int64), tf.TensorSpec([])
        self._add = tf.function(add).get_concrete_function(params, *spec)
        self._finish = tf.function(finish).get_concrete_function(sample, self.initial_state)
        self._sums: dict[Any, Any] = {}

    def release(self, state: Any, places: np.ndarray, size: float) -> tuple[Any, np.ndarray]:
        """See `fedmf.server.audit.Subject`."""
        state = tf.nest.map_structure(np.array, state)  # as a checkpoint has it
        params = self._params(state)
        # A client knows the clip norm of the round
        size *= float(params.clip_norm) / self._clip_norm
        # The same updates under the same parameters have the same sum: a pure function, and the
        # cost of a round.
        key = (
            places.tobytes(),
            size,
            *(np.asarray(part).tobytes() for part in tf.nest.flatten(params)),
        )
        if key not in self._sums:
            self._sums[key] = self._add(params, tf.constant(places), tf.constant(size, tf.float32))
        row, state = self._finish(self._sums[key], state)
        return state, row.numpy().astype(np.float64)
