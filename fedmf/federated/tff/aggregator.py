"""An aggregation factory for TFF that clips updates and adds a plan's noise.

Clipped updates can be summed by TFF's secure summation.
"""

import collections
import copy
import functools
import reprlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf import checks
from fedmf.federated.tff import tff
from fedmf.federated.tff.graph_tags import call_scope, tagged_sample
from fedmf.federated.tff.noise_source import RunSeeds
from fedmf.federated.tff.query import MatrixFactorizationQuery, QuerySample
from fedmf.noise.graph_strategies import check_graph_strategy
from fedmf.privacy.plan import Plan
from fedmf.server.following import Scaling, check_scaling
from fedmf.server.means import check_clients_per_round, check_zeroing_norm
from fedmf.server.state import check_plan, check_single_run


class MatrixFactorizationAggregator(tff.aggregators.UnweightedAggregationFactory):
    """Aggregation factory that `dp_aggregator` returns.

    Args:
      plan, clients_per_round, noise_strategy: as of `dp_aggregator`.
      make_query: (record_specs, noise_seed=...) -> the query of a process.
      noise_seed: noise seed of the first process.
      secure_sum: factory of the sum of clipped updates; None for TFF's default sum.
    """

    def __init__(
        self,
        plan: Plan,
        clients_per_round: int,
        noise_strategy: str | None,
        make_query: Callable[..., MatrixFactorizationQuery],
        noise_seed: int | str,
        secure_sum: "SecureSampleSum | None",
    ) -> None:
        self.plan = plan
        self.clients_per_round = clients_per_round
        self.noise_strategy = noise_strategy or "recurrent"
        self._make_query = make_query
        self._secure_sum = secure_sum
        self._seeds = RunSeeds(noise_seed)
        self._scaling: Scaling | None = None

    @property
    def seed_digest(self) -> str | None:
        """A digest of the noise seed; None if the operating system draws the seeds."""
        return self._seeds.digest()

    def with_scaling(self, scaling: Scaling | None) -> "MatrixFactorizationAggregator":
        """Returns a copy of this factory that scales updates before it clips them.

        Each round's broadcast carries the scales to the clients. It is for a server optimizer such
        as Adam; the guarantee is the same.
        """
        check_scaling(scaling)
        scaled_factory = copy.copy(self)
        scaled_factory._scaling = scaling
        return scaled_factory

    def create(self, value_type: Any, *weight_type: Any) -> tff.templates.AggregationProcess:
        """Returns an aggregation process for updates of this TFF type.

        The first process of this factory and its copies has the noise of noise_seed, each later one
        noise of its own: two parts of a model that shared their noise would give away the
        difference of their updates.

        Each process spends the plan's guarantee. Two processes for two parts of one model release
        two sums of the same clients: together they cost as much as a plan of noise_multiplier /
        sqrt(2) (p parts: sqrt(p)), as one mechanism on updates of norm sqrt(2) clip_norm. Divide
        the plan's clip_norm by sqrt(p), or aggregate all parts as one structure, which is clipped
        as one vector and costs the plan once.

        Args:
          value_type: a TFF tensor type, or a structure of float tensors.
          weight_type: refused; FedSGD and the weighted processes pass the type of their weights.

        Raises:
          TypeError: a type of weights is there, or value_type is no type of tensors.
        """
        if weight_type:
            raise TypeError(
                "dp_aggregator takes no weights, and this process gives its clients some: pass "
                "tff.aggregators.as_weighted_aggregator(dp_aggregator(...)), with which all "
                "clients weigh the same"
            )
        value_type = _checked_type(value_type)
        record_specs = tff.types.structure_from_tensor_type_tree(
            lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), value_type
        )
        query = self._make_query(record_specs, noise_seed=self._seeds.next())
        query = query.with_scaling(self._scaling)
        if self._secure_sum is not None:
            query = query.with_entry_rounding(self._secure_sum.entry_rounding)
        dp_factory = tff.aggregators.DifferentiallyPrivateFactory(query, self._secure_sum)
        return dp_factory.create(value_type)


def _checked_type(value_type: Any) -> Any:
    """Converts a value to a TFF type of tensors, or raises TypeError if it is none."""
    hint = "give a TensorType of TFF, or a structure of them, as of tff.to_type"
    type_text = reprlib.repr(value_type)
    try:
        checked_type = tff.to_type(value_type)
    except (TypeError, ValueError) as error:
        raise TypeError(f"value_type={type_text} is no type ({error}): {hint}") from None
    is_nonempty_structure = isinstance(checked_type, tff.StructType) and len(checked_type) > 0
    if not (is_nonempty_structure or isinstance(checked_type, tff.TensorType)):
        raise TypeError(f"value_type={type_text} is no type of tensors: {hint}")
    return checked_type


# Before they call this factory, the weighted processes of TFF raise a TypeError "Expected
# ...WeightedAggregationFactory, found NAME.", where NAME is the name of the class. So the name
# tells a user what to do.
MatrixFactorizationAggregator.__name__ = (
    "dp_aggregator, which takes no weights: pass "
    "tff.aggregators.as_weighted_aggregator(dp_aggregator(...)), with which all "
    "clients weigh the same"
)


def dp_aggregator(
    plan: Plan,
    *,
    clients_per_round: int,
    noise_seed: int | str,
    zeroing_norm: float | None = 100.0,
    noise_strategy: str | None = None,
    secure_sum: bool = False,
    count_metrics: bool = True,
) -> MatrixFactorizationAggregator:
    """Returns a TFF aggregation factory, whose processes clip, sum and add correlated noise.

    Updates are zeroed before they are clipped. The noisy sum is divided by the fixed
    clients_per_round.

    The guarantee is of one process that aggregates the whole update. Processes for p parts of a
    model cost together as much as a plan of noise_multiplier / sqrt(p); see
    `MatrixFactorizationAggregator.create`.

    A round's metrics are output.measurements["dp_query_metrics"], in TFF's learning processes
    output.metrics["aggregator"]["dp_query_metrics"]; see `MatrixFactorizationQuery.derive_metrics`.

    Args:
      plan: the plan, from `fedmf.calibrate`. Its clip_norm is fixed for the whole run, unless it
        has quantile_clipping.
      clients_per_round: the divisor, whoever participates: a data-dependent divisor is not covered
        by the guarantee. More clients than this are all summed, each for at most clip_norm: the
        mean is then larger, the guarantee the same, and the metric `clients` is their number. With
        no clients the result is noise / clients_per_round.
      noise_seed: with "os" the operating system draws a seed whenever a process is initialised. Or
        a non-negative int, secret in a real deployment and never used for two runs: the first
        process of the factory has its noise when it is first initialised; each later process, and
        each later call of `initialize`, has noise of its own. The state holds the key: keep it
        secret. `HostNoise.for_state` makes a `HostNoise` for it.
      zeroing_norm: updates whose l-infinity norm exceeds it count as zero (multi-epoch paper, Sec.
        5: 100); None for no limit. NaN and infinities always count as zero.
      noise_strategy: "recurrent", in the graph, or "precomputed", a noise vector that a `HostNoise`
        hands in each round; None is the former.
      secure_sum: whether to sum with tff.aggregators.SecureSumFactory, on integers of 32 bits.
        Updates are clipped to a lower norm (by 5e-7 of clip_norm at 4 million parameters), so that
        rounding to integers cannot lift one over clip_norm. TFF's default runtime has no secure sum
        and fails with "Cannot embed a federated value": call
        tff.backends.test.set_sync_test_cpp_execution_context() before any computation runs, which
        adds the integers in the open.
      count_metrics: as of `MatrixFactorizationQuery`: exact counts, NOT covered by the guarantee.

    Returns:
      A factory for tff.learning.algorithms.build_unweighted_fed_avg(model_aggregator=...), FedProx,
      FedSGD or a process of your own. Its `with_scaling` makes one for adaptive server optimizers.
      `federated.check_process` refuses a built process that aggregates any other values of the
      clients, as Mime does.

    Raises:
      TypeError: plan is not a `fedmf.Plan`, or an argument has another type.
      ValueError: clients_per_round does not suit the plan, noise_seed is negative, zeroing_norm is
        not positive, or noise_strategy is unknown or does not suit the mechanism.

    Example:
      >>> import fedmf, numpy as np, tensorflow_federated as tff
      >>> from fedmf import federated
      >>> once = fedmf.Participation(rounds=4, schema="single")
      >>> mechanism = fedmf.fit(fedmf.prefix_sum(4), once, family="tree")
      >>> plan = fedmf.calibrate(mechanism, once, epsilon=8.0, delta=1e-6)
      >>> factory = federated.dp_aggregator(plan, clients_per_round=2, noise_seed=7)
      >>> process = factory.create(tff.TensorType(np.float32, [3]))
      >>> str(process.next.type_signature.result.result.member)
      'float32[3]'
    """
    check_plan(plan)
    check_single_run(plan)
    clients_per_round = check_clients_per_round(plan, clients_per_round)
    check_zeroing_norm(zeroing_norm)
    check_graph_strategy(noise_strategy)
    checks.boolean("count_metrics", count_metrics)
    make_query = functools.partial(
        MatrixFactorizationQuery,
        plan,
        divisor=clients_per_round,
        zeroing_norm=zeroing_norm,
        noise_strategy=noise_strategy,
        count_metrics=count_metrics,
    )
    is_secure_sum = checks.boolean("secure_sum", secure_sum)
    sum_factory = SecureSampleSum(plan.clip_norm) if is_secure_sum else None
    return MatrixFactorizationAggregator(
        plan, clients_per_round, noise_strategy, make_query, noise_seed, sum_factory
    )


# tff.aggregators.SecureSumFactory rounds floats in [lower, upper] to whole multiples of
# (upper - lower) / _LEVELS.
_LEVELS = 2**32 - 1
_COUNT_NAMES = ("clients", "clipped", "zeroed")


class SecureSampleSum(tff.aggregators.UnweightedAggregationFactory):
    """Aggregation factory that sums clipped updates by TFF's secure summation.

    Records are rounded to 32 bits in [-clip_norm, clip_norm], and counts are exact.

    Args:
      clip_norm: bound on the absolute value of each entry of a record.
    """

    def __init__(self, clip_norm: float) -> None:
        self._bound = clip_norm

    @property
    def entry_rounding(self) -> float:
        """Largest error of an entry by rounding to integers.

        It is half a step, and a thousandth of a step for TFF's float64 arithmetic, which errs by
        2^-20 of a step.
        """
        return 0.501 * 2 * self._bound / _LEVELS

    def create(self, value_type: Any) -> tff.templates.AggregationProcess:
        """Returns the aggregation process for `QuerySample` values of this type."""
        record_type = value_type.record
        counts_type = tff.to_type(
            collections.OrderedDict((name, np.int32) for name in _COUNT_NAMES)
        )
        secure_record_sum = tff.aggregators.SecureSumFactory(self._bound).create(record_type)
        counts = tff.aggregators.SecureSumFactory(1, 0).create(counts_type)

        @tff.federated_computation
        def initialize() -> Any:
            return tff.federated_zip((secure_record_sum.initialize(), counts.initialize()))

        @tff.tensorflow.computation(value_type)
        def split_sample(sample: Any) -> Any:
            with call_scope("parts"):
                sample = tagged_sample(sample)
            return sample.record, collections.OrderedDict(
                (name, getattr(sample, name)) for name in _COUNT_NAMES
            )

        @tff.tensorflow.computation(record_type, counts_type)
        def join_sample(record: Any, counts: Any) -> Any:
            with call_scope("whole"):
                return tagged_sample(QuerySample(record, **counts))

        @tff.federated_computation(
            initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
        )
        def next_round(state: Any, value: Any) -> Any:
            record, count = tff.federated_map(split_sample, value)
            records_state, counts_state = state
            records_output = secure_record_sum.next(records_state, record)
            counts_output = counts.next(counts_state, count)
            measurements_by_name = collections.OrderedDict(
                records=records_output.measurements, counts=counts_output.measurements
            )
            return tff.templates.MeasuredProcessOutput(
                tff.federated_zip((records_output.state, counts_output.state)),
                tff.federated_map(join_sample, (records_output.result, counts_output.result)),
                tff.federated_zip(measurements_by_name),
            )

        return tff.templates.AggregationProcess(initialize, next_round)
