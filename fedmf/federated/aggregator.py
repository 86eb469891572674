"""`dp_aggregator`: the plan as a tff.aggregators.UnweightedAggregationFactory, for any TFF process that takes one."""

from typing import Any

import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from fedmf import _checks
from fedmf.accounting import Plan
from fedmf.federated.query import MatrixFactorizationQuery, check_zeroing_norm
from fedmf.federated.source import check_noise_seed


def mean_query(
    plan: Plan,
    record_specs: Any,
    *,
    clients_per_round: int,
    noise_seed: int | str,
    zeroing_norm: float | None,
    noise_strategy: str | None = None,
) -> tfp.NormalizedQuery:
    """The query whose result is (sum of clipped updates + noise) / clients_per_round; both execution paths run exactly this."""
    check_clients_per_round(plan, clients_per_round)
    query = MatrixFactorizationQuery(
        plan, record_specs, noise_seed=noise_seed, zeroing_norm=zeroing_norm, noise_strategy=noise_strategy
    )
    return tfp.NormalizedQuery(query, denominator=float(clients_per_round))


def check_clients_per_round(plan: Plan, clients_per_round: Any) -> None:
    """Raises unless clients_per_round is a positive int and the simulated cohort of the plan, if it has one."""
    _checks.integer("clients_per_round", clients_per_round, low=1, way_out="it is the fixed divisor of the mean")
    if plan.simulated_cohort not in (None, clients_per_round):
        raise ValueError(
            f"clients_per_round={clients_per_round} but the plan simulates {plan.simulated_cohort} clients a round "
            f"for {plan.claimed_cohort}: use clients_per_round={plan.simulated_cohort}"
        )


class MatrixFactorizationAggregator(tff.aggregators.UnweightedAggregationFactory):
    """Factory behind `dp_aggregator`."""

    def __init__(
        self,
        plan: Plan,
        *,
        clients_per_round: int,
        noise_seed: int | str,
        zeroing_norm: float | None,
        noise_strategy: str | None,
    ) -> None:
        if not isinstance(plan, Plan):
            raise TypeError(f"plan={plan!r} must be a fedmf.Plan: make one with fedmf.calibrate")
        check_clients_per_round(plan, clients_per_round)
        self._plan = plan
        self._clients_per_round = clients_per_round
        self._noise_seed = check_noise_seed(noise_seed)
        self._zeroing_norm = check_zeroing_norm(zeroing_norm)
        self._noise_strategy = noise_strategy

    def create(self, value_type: Any) -> tff.templates.AggregationProcess:
        """The aggregation process for updates of `value_type`, a TFF tensor or structure of float tensors."""
        specs = tff.types.structure_from_tensor_type_tree(lambda t: tf.TensorSpec(t.shape, t.dtype), value_type)
        query = mean_query(
            self._plan,
            specs,
            clients_per_round=self._clients_per_round,
            noise_seed=self._noise_seed,
            zeroing_norm=self._zeroing_norm,
            noise_strategy=self._noise_strategy,
        )
        return tff.aggregators.DifferentiallyPrivateFactory(query).create(value_type)


def dp_aggregator(
    plan: Plan,
    *,
    clients_per_round: int,
    noise_seed: int | str,
    zeroing_norm: float | None = 100.0,
    noise_strategy: str | None = None,
) -> tff.aggregators.UnweightedAggregationFactory:
    """Zeroing, clipping, sum, correlated noise, division by the fixed clients_per_round.

    Args:
      plan: what to run; from `fedmf.calibrate`.
      clients_per_round: the divisor, whoever shows up: a data-dependent divisor is not covered by the guarantee.
      noise_seed: non-negative int; secret in a real deployment, never used for two runs.
      zeroing_norm: updates whose l-infinity norm exceeds it count as zero (multi-epoch paper, Sec. 5: 100); None for no limit. NaN
        and infinities always count as zero.

    Returns:
      A factory for tff.learning.algorithms.build_unweighted_fed_avg(model_aggregator=...) or any process of your own.

    Raises:
      TypeError, ValueError: naming the argument, its value and what to do instead.

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
    return MatrixFactorizationAggregator(
        plan,
        clients_per_round=clients_per_round,
        noise_seed=noise_seed,
        zeroing_norm=zeroing_norm,
        noise_strategy=noise_strategy,
    )
