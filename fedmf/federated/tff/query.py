"""Correlated noise (MF-DP-FTRL) as a DPQuery of TensorFlow Privacy."""

import collections
import copy
import math
from typing import Any, NamedTuple

import dp_accounting
import tensorflow as tf

from fedmf import checks
from fedmf.federated.client_training.records import QuerySample, Records
from fedmf.federated.tff import tfp
from fedmf.federated.tff.graph_tags import tags_clipping, tags_noise, tags_params
from fedmf.federated.tff.noise import GraphNoise
from fedmf.federated.tff.noise_source import RunSeeds
from fedmf.noise.graph_strategies import check_graph_strategy
from fedmf.privacy.plan import Plan, noise_size
from fedmf.privacy.source_tail import GRAPH_END, check_tail
from fedmf.server.aggregation import (
    clip_after,
    initial_clip,
    initial_scaling,
    noise_stddev,
    noisy_mean,
    released_bits,
    scaling_after,
)
from fedmf.server.following import Scaling, check_scaling
from fedmf.server.means import check_clip_norm, check_simulated, check_zeroing_norm
from fedmf.server.messages import ClientParams
from fedmf.server.state import (
    NoiseState,
    check_plan,
    check_single_run,
    plan_fingerprint,
    text_fingerprint,
)


class QueryState(NamedTuple):
    """State of the query between rounds, which is secret because it contains the noise's key.

    Attributes:
      noise: see `NoiseState`.
      clients, clipped, zeroed: int32 (), the counts of the last round; see `QuerySample`.
      scaling: `ScalingState`; empty without a `Scaling`.
      clip: `ClipState`; empty for a constant clip norm.
      records: uint64 (), fingerprint of the zeroing, clipping and scaling of records. A round that
        is repeated with other sums under the same noise gives both sums away.
    """

    noise: NoiseState
    clients: tf.Tensor
    clipped: tf.Tensor
    zeroed: tf.Tensor
    scaling: Any
    clip: Any
    records: tf.Tensor


class MatrixFactorizationQuery(tfp.SumAggregationDPQuery):
    """A DPQuery that clips records, sums them and adds correlated noise.

    Round t adds row t of N Z, where N is the noise matrix C^-1 and Z has standard normal rows,
    scaled by the noise's standard deviation. A record is the update of one client.

    Denisov et al. 2022, Alg. 1 and Thm. 4.1; banded paper, Alg. 1.

    All methods are pure functions of their arguments, so that they run in TFF's aggregators, in
    tf.function and eagerly. The state is that of the noise (its key, the round number and a few
    rows) and three counts of the last round.

    The guarantee is about one client at a time: each record counts once and for at most clip_norm
    in the sum, however many records a round has. The result of a round without records is the
    noise.

    Records are clipped in float32 (float64 leaves in float64), summed and noised in float64, and
    rounded to float32, and then to half precision for leaves in half precision. The guarantee is
    that of the mechanism on real numbers, as in all papers; docs/randomness.md says what rounding
    adds.

    Args:
      plan: the plan; the only source of the noise scale.
      record_specs: structure of tf.TensorSpec (or anything with shape and dtype) of one record:
        float16, bfloat16, float32 or float64 leaves; some may be empty or scalars.
      noise_seed: non-negative int, secret in a real deployment: the first initial state has the
        noise of this seed, each later one, in a graph each later call, noise of its own. With "os"
        the operating system draws a seed for every initial state, in a graph for every call, and
        only the state holds it.
      zeroing_norm: a record with an entry larger than this in absolute value counts as zero
        (papers: 100); None for no limit. A record with a NaN or an infinity always counts as zero.
      noise_strategy: "recurrent", in the graph, or "precomputed", a noise vector that a `HostNoise`
        hands in each round; None is the former.
      divisor: fixed number by which the result is divided.
      count_metrics: whether the metrics have the counts of the last round. They are exact functions
        of the clients' data and NOT covered by the guarantee: in a real deployment pass False, or
        keep the metrics as secret as the updates.

    Attributes:
      plan, divisor: the arguments of these names.

    Raises:
      TypeError: plan is not a `fedmf.Plan`, or an argument has another type.
      ValueError: a record is not of floats or is too large, noise_seed is negative, zeroing_norm or
        divisor is not positive, noise_strategy is unknown or does not suit the mechanism, or the
        plan does not suit a query in a graph.

    Example:
      >>> import fedmf
      >>> from fedmf import federated
      >>> import tensorflow as tf
      >>> once = fedmf.Participation(rounds=2, schema="single")
      >>> mechanism = fedmf.fit(fedmf.prefix_sum(2), once, family="identity")
      >>> plan = fedmf.Plan(
      ...     mechanism=mechanism, participation=once, noise_multiplier=0.0, clip_norm=1.0,
      ...     delta=1e-6
      ... )
      >>> query = federated.MatrixFactorizationQuery(
      ...     plan, tf.TensorSpec([2], tf.float32), noise_seed=1
      ... )
      >>> state = query.initial_global_state()
      >>> params, empty = query.derive_sample_params(state), query.initial_sample_state()
      >>> sample = query.accumulate_record(params, empty, tf.constant([3.0, 4.0]))
      >>> total, state, _ = query.get_noised_result(sample, state)
      >>> total.numpy().round(3), int(state.noise.next_round), int(state.clipped)
      (array([0.6, 0.8], dtype=float32), 1, 1)
    """

    def __init__(
        self,
        plan: Plan,
        record_specs: Any,
        *,
        noise_seed: int | str,
        zeroing_norm: float | None = None,
        noise_strategy: str | None = None,
        divisor: float = 1.0,
        count_metrics: bool = True,
    ) -> None:
        check_plan(plan)
        check_single_run(plan)
        self.plan = plan
        self._records = Records(record_specs)
        self._flat_specs = self._records.flat_specs
        self._zeroing_norm = check_zeroing_norm(zeroing_norm)
        self.divisor = checks.positive(
            "divisor", divisor, "use the fixed number of records of a round, or 1"
        )
        if self.divisor != 1:
            check_simulated(plan, "divisor", self.divisor)
        self._count_metrics = checks.boolean("count_metrics", count_metrics)
        check_graph_strategy(noise_strategy)
        self._adaptive = plan.quantile_clipping
        if self._adaptive is not None and self.divisor == 1:
            raise ValueError(
                "quantile_clipping needs the fixed number of records of a round, to compute the "
                "fraction that is clipped: give it as divisor, or use a plan of one clip norm"
            )
        check_clip_norm(plan)
        self._clip_norm = plan.clip_norm
        self._scaling: Scaling | None = None
        self._seeds = RunSeeds(noise_seed)
        self._entry_rounding = 0.0
        size = noise_size(plan, self._records.size)
        if noise_strategy != "precomputed":
            check_tail(plan, GRAPH_END, entries=plan.mechanism.rounds * size)
        self._noise = GraphNoise(
            stream=plan.mechanism.stream(),
            size=size,
            plan_fingerprint=plan_fingerprint(plan),
            strategy=noise_strategy,
        )

    def with_entry_rounding(self, entry_rounding: float) -> "MatrixFactorizationQuery":
        """Returns a copy of this query that allows for rounding errors in the sum of records.

        Each entry may change by up to `entry_rounding`, so that the copy clips to clip_norm -
        sqrt(entries) entry_rounding.
        """
        if self._adaptive is not None:
            raise ValueError(
                "quantile_clipping does not go with secure_sum=True, whose range is "
                "fixed: leave one of them out"
            )
        hint = "give the most that the sum adds to an entry"
        entry_rounding = checks.positive("entry_rounding", entry_rounding, hint, allow_zero=True)
        query_with_rounding = copy.copy(self)
        query_with_rounding._entry_rounding = entry_rounding
        query_with_rounding._clip_norm = (
            self.plan.clip_norm - math.sqrt(self._records.size) * entry_rounding
        )
        if not 0 < query_with_rounding._clip_norm <= self.plan.clip_norm:
            raise ValueError(
                f"entry_rounding={entry_rounding} leaves nothing of clip_norm={self.plan.clip_norm}"
            )
        return query_with_rounding

    def with_scaling(self, scaling: Scaling | None) -> "MatrixFactorizationQuery":
        """Returns a copy of this query that scales records before they are zeroed and clipped.

        The result is scaled back; the guarantee is the same.
        """
        check_scaling(scaling)
        scaled_query = copy.copy(self)
        scaled_query._scaling = scaling
        return scaled_query

    def initial_global_state(self) -> QueryState:
        """Returns the state before round 0 of a new run, which has noise of its own.

        No other state of this query or its copies has the noise of this run. In a graph that is
        built once, all calls begin one run, unless noise_seed="os".
        """
        zero_count = tf.constant(0, tf.int32)
        leaf_shapes = [spec.shape for spec in self._flat_specs]
        scaling_state = () if self._scaling is None else initial_scaling(leaf_shapes, tf)
        clip_state = () if self._adaptive is None else initial_clip(self.plan.clip_norm, tf)
        return QueryState(
            noise=self._noise.initial_state(self._seeds.next_key()),
            clients=zero_count,
            clipped=zero_count,
            zeroed=zero_count,
            scaling=scaling_state,
            clip=clip_state,
            records=self._records_fingerprint(),
        )

    @tags_params
    def derive_sample_params(self, global_state: QueryState) -> ClientParams:
        """Returns the parameters of clipping in this round, which are clip norm, zeroing norm and
        scales.

        They are constants of the plan, or follow from past results. The server sends clients no
        other value that depends on the noise.
        """
        clip_norm = tf.constant(self._clip_norm, tf.float64)
        if self._adaptive is not None:
            clip_norm = global_state.clip.norm
        scales = () if self._scaling is None else global_state.scaling.scales
        zeroing_norm = tf.constant(self._zeroing_norm, tf.float64)
        return ClientParams(clip_norm=clip_norm, zeroing_norm=zeroing_norm, scales=scales)

    def initial_sample_state(self, template: Any = None) -> QuerySample:
        """Returns the sum of no records, which is zeros in the structure of `template`.

        The default is the structure of `record_specs`.

        Raises:
          ValueError: the template has other shapes than record_specs.
        """
        return self._records.zero(template)

    @tags_clipping
    def preprocess_record(self, params: ClientParams, record: Any) -> QuerySample:
        """Clips a record, or zeroes it if one of its entries is too large or not finite.

        The L2 norm of the result over all leaves together never exceeds clip_norm.

        Raises:
          ValueError: the record has other shapes than record_specs.
          TypeError: a tensor has a dtype that does not fit into the leaf's without loss.
        """
        return self._records.clipped(params, record)

    @tags_noise
    def get_noised_result(
        self, sample_state: QuerySample, global_state: QueryState
    ) -> tuple[Any, QueryState, Any]:
        """Adds this round's noise to a sum, and returns (sum + noise) / divisor.

        The next state and an event for privacy accounting are returned as well.

        The result has the dtypes of record_specs. The event of a single round is Unsupported on
        purpose: rounds are correlated and do not compose; `fedmf.privacy.plan.dp_event` is the
        event of the run.

        Raises:
          ValueError: inside a tf.function, with a state captured as a constant: every call would
            add the same noise. A state that an operation makes of such a constant is not
            recognised.
          tf.errors.InvalidArgumentError: when executed past the last round.
        """
        noise = NoiseState(*global_state.noise)
        if not tf.executing_eagerly() and not _is_tensor_of_graph(noise.next_round):
            raise ValueError(
                "the state is a constant of this tf.function, so that every call would add the "
                "same noise, which protects nothing: pass the state as an argument"
            )
        if bool(global_state.scaling) != (self._scaling is not None):
            raise ValueError(
                "the state was made with another scaling than this query has: make the aggregator "
                "as it was then"
            )
        t = noise.next_round
        clip_state = global_state.clip
        adaptive_clip = () if self._adaptive is None else clip_state
        stddev = noise_stddev(self.plan, adaptive_clip, tf)
        noise_row, noise = self._noise.next(noise)
        noise_row = self._checked(noise_row, global_state)
        if self._adaptive is not None:
            clip_bits = released_bits(
                self.plan, sample_state.clients, sample_state.clipped, noise_row[-1], tf
            )
            clip_state = clip_after(
                self._adaptive, self.plan.clip_norm, clip_state, clip_bits, self.divisor, t, tf
            )
            noise_row = noise_row[:-1]
        noisy_means = self._noisy_means(sample_state.record, noise_row * stddev)
        scaling_state = global_state.scaling
        if self._scaling is not None:
            noisy_means = [
                mean / scale for mean, scale in zip(noisy_means, scaling_state.scales, strict=True)
            ]
            scaling_state = scaling_after(self._scaling, scaling_state, noisy_means, t, tf)
        noisy_means = [
            tf.cast(mean, spec.dtype)
            for mean, spec in zip(noisy_means, self._flat_specs, strict=True)
        ]
        noisy_mean = tf.nest.pack_sequence_as(sample_state.record, noisy_means)
        next_state = global_state._replace(
            noise=noise,
            clients=sample_state.clients,
            clipped=sample_state.clipped,
            zeroed=sample_state.zeroed,
            scaling=scaling_state,
            clip=clip_state,
        )
        return noisy_mean, next_state, dp_accounting.UnsupportedDpEvent()

    def _noisy_means(self, record_sum: Any, noise: tf.Tensor) -> list[tf.Tensor]:
        """Returns (sum + noise) / divisor for each leaf, given the noise of all leaves as one
        vector.
        """
        sum_leaves = tf.nest.flatten(record_sum)
        noise_leaves = tf.split(noise, self._records.sizes)
        noisy_means = []
        for leaf, noise_leaf, spec in zip(sum_leaves, noise_leaves, self._flat_specs, strict=True):
            shaped_noise = tf.reshape(noise_leaf, spec.shape)
            noisy_means.append(noisy_mean(leaf, shaped_noise, self.divisor, tf))
        return noisy_means

    def derive_metrics(self, global_state: QueryState) -> "collections.OrderedDict[str, Any]":
        """Returns public metrics of the noise, and counts of the last round's records.

        rounds_released and noise_stddev (of Z) are public. So are scale_drift, rho of the last
        round, with a `Scaling`, and clip_norm where it adapts.

        clients (number of records), clip_fraction (fraction of clipped records) and zeroed (number
        of zeroed records) are exact functions of the clients' data and not covered by the
        guarantee; count_metrics=False leaves them out.
        """
        metrics = collections.OrderedDict(
            rounds_released=global_state.noise.next_round,
            noise_stddev=tf.constant(self.plan.stddev, tf.float32),
        )
        if self._adaptive is not None:
            metrics["clip_norm"] = tf.cast(global_state.clip.last, tf.float32)
            metrics["noise_stddev"] *= metrics["clip_norm"] / self.plan.clip_norm
        if self._scaling is not None:
            metrics["scale_drift"] = global_state.scaling.drifts[0]
        if self._count_metrics:
            num_clients = tf.cast(global_state.clients, tf.float32)
            metrics["clients"] = global_state.clients
            metrics["clip_fraction"] = tf.math.divide_no_nan(
                tf.cast(global_state.clipped, tf.float32), num_clients
            )
            metrics["zeroed"] = global_state.zeroed
        return metrics

    def _records_fingerprint(self) -> tf.Tensor:
        """Returns a fingerprint of how records are zeroed, clipped and scaled, a uint64 scalar.

        The divisor is part of it, because adaptive clip norms and scales depend on it.
        """
        settings_text = (
            f"{self._zeroing_norm!r} {self._entry_rounding!r} {self._scaling} {self.divisor!r}"
        )
        return tf.constant(text_fingerprint(settings_text), tf.uint64)

    def _checked(self, row: tf.Tensor, state: QueryState) -> tf.Tensor:
        """Returns the noise vector, after a check that records are still zeroed, clipped and scaled
        as when the run began.

        Raises:
          tf.errors.InvalidArgumentError: clipping differs. XLA drops the check, and then the vector
            is NaN.
        """
        is_same_records = tf.equal(state.records, self._records_fingerprint())
        message = (
            "the state was made with another `zeroing_norm`, scaling, secure_sum or divisor than "
            f"here (zeroing_norm={self._zeroing_norm:g}, scaling={self._scaling}, "
            f"divisor={self.divisor:g}), with which its noise could come again under other "
            "updates: make the aggregator as it was then"
        )
        assertion = tf.debugging.assert_equal(is_same_records, True, message=message)
        control_dependencies = [] if assertion is None else [assertion]
        with tf.control_dependencies(control_dependencies):
            return tf.where(is_same_records, row, float("nan"))


def _is_tensor_of_graph(value: Any) -> bool:
    """Returns whether a value is a tensor of the graph that is being built, or a variable.

    Otherwise it is a constant from outside of the graph.
    """
    if isinstance(value, tf.Variable):
        return True
    return isinstance(value, tf.Tensor) and not isinstance(value, tf.__internal__.EagerTensor)
