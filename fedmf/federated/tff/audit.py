"""Adapter that lets an audit run the query of `dp_aggregator`, without a TFF process."""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf.federated.tff.query import MatrixFactorizationQuery
from fedmf.privacy.plan import Plan, bit_stddev
from fedmf.server.audited_code import divisor_of, model_of


class Query:
    """Query of TensorFlow Privacy in the form that an audit runs, an `AuditedCode`.

    Its functions are traced once, so that many rounds run fast.

    Args:
      plan: the plan of the query.
      coordinates: number of entries of the model.
      noise_seed: as of `MatrixFactorizationQuery`.
    """

    def __init__(self, plan: Plan, coordinates: int, noise_seed: int) -> None:
        model_shapes = model_of(coordinates)
        self._sizes = [math.prod(shape) for shape in model_shapes]
        self._specs = [tf.TensorSpec(shape) for shape in model_shapes]
        self._plan = plan
        self._query = MatrixFactorizationQuery(
            plan, self._specs, divisor=divisor_of(plan), noise_seed=noise_seed
        )
        self.initial_state = self._query.initial_global_state()
        params = self._query.derive_sample_params(self.initial_state)
        sample = self._query.initial_sample_state()
        traced_sum = tf.function(self._sum_updates)
        self._traced_sum = traced_sum.get_concrete_function(
            params, tf.TensorSpec([None], tf.int64), tf.TensorSpec([])
        )
        traced_release = tf.function(self._release_sum)
        self._traced_release = traced_release.get_concrete_function(sample, self.initial_state)
        self._sum_cache: dict[Any, Any] = {}

    def _sum_updates(self, params: Any, places: Any, size: Any) -> Any:
        """Returns the clipped sum of several updates. Each of them is nonzero at one coordinate,
        given by `places`.

        The update of a place is `size` in this coordinate, and 0 elsewhere.
        """
        sample = self._query.initial_sample_state()
        for place in places:
            one_hot_update = tf.one_hot(place, sum(self._sizes)) * size
            update_leaves = tf.split(one_hot_update, self._sizes)
            leaf_pairs = zip(update_leaves, self._specs, strict=True)
            update_record = [tf.reshape(leaf, spec.shape) for leaf, spec in leaf_pairs]
            sample = self._query.accumulate_record(params, sample, update_record)
        return sample

    def _release_sum(self, sample: Any, state: Any) -> tuple[Any, Any]:
        """Adds noise to a sum, and returns the release as one vector, and the next state.

        With an adaptive clip norm the vector is for the plan's clip norm, and its last entry is the
        noise of the released bits.
        """
        result, state, _ = self._query.get_noised_result(sample, state)
        release_row = tf.concat([tf.reshape(leaf, [-1]) for leaf in result], axis=0)
        plan = self._plan
        if plan.quantile_clipping is None:
            return release_row, state
        num_clients = tf.cast(sample.clients, tf.float32)
        num_clipped = tf.cast(sample.clipped, tf.float32)
        bit_noise = state.clip.bits - num_clients / 2 + num_clipped
        scaled_noise = bit_noise * (plan.stddev / divisor_of(plan) / bit_stddev(plan))
        release_row *= tf.cast(plan.clip_norm / state.clip.last, tf.float32)
        return tf.concat([release_row, [scaled_noise]], axis=0), state

    def release(self, state: Any, places: np.ndarray, size: float) -> tuple[Any, np.ndarray]:
        """Runs a round in which clients send updates along these coordinates.

        It returns the next state and the release, float64 (coordinates,).
        """
        # The server state may come from a checkpoint, and then consists of numpy arrays. Tensors
        # are converted to arrays as well.
        state = tf.nest.map_structure(np.array, state)
        clip_params = self._query.derive_sample_params(state)
        # The attacking client knows the clip norm of the round, and scales its update to this norm.
        size *= float(clip_params.clip_norm) / self._plan.clip_norm
        # Sums are cached, because they take most of the time of a round. A sum is a pure function
        # of the updates and the parameters.
        param_bytes = [np.asarray(leaf).tobytes() for leaf in tf.nest.flatten(clip_params)]
        sum_key = (places.tobytes(), size, *param_bytes)
        if sum_key not in self._sum_cache:
            self._sum_cache[sum_key] = self._traced_sum(
                clip_params, tf.constant(places), tf.constant(size, tf.float32)
            )
        row, state = self._traced_release(self._sum_cache[sum_key], state)
        return state, row.numpy().astype(np.float64)
