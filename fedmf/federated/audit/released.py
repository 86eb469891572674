"""What the real aggregator releases round for round, on small models: by the DPQuery alone, or in TFF's own runtime."""

import collections
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf import checks
from fedmf.federated.aggregation.aggregator import dp_aggregator, mean_query
from fedmf.federated.execution.workers import guard_workers
from fedmf.federated.noise.host import HostNoise
from fedmf.federated.tff import tff
from fedmf.privacy.plan import Plan

PATHS = ("query", "tff")
STRATEGIES = ("recurrent", "regenerated", "host", "host_recurrent", "host_regenerated", "host_spilled")
# The fixed divisor of plans that simulate no cohort.
DIVISOR = 10
# So few clients are summed one by one; of more, so many in one call.
_FEW, _TOGETHER = 4, 64

Updates = Callable[[int], Sequence[Any]]


def model_of(coordinates: int) -> "collections.OrderedDict[str, tuple[int, ...]]":
    """Shapes of a small model's leaves, one of them a scalar, with so many entries in all.

    >>> model_of(42)
    OrderedDict([('embedding', (2, 10)), ('scale', ()), ('kernel', (10,)), ('bias', (11,))])
    """
    quarter = (checks.integer("coordinates", coordinates, low=8, hint="use some hundred or more") - 1) // 4
    return collections.OrderedDict(
        embedding=(2, quarter), scale=(), kernel=(quarter,), bias=(coordinates - 1 - 3 * quarter,)
    )


def divisor_of(plan: Plan) -> int:
    """What the sums of `released_rows` are divided by."""
    return plan.simulated_cohort or DIVISOR


def released_rows(
    plan: Plan,
    shapes: "collections.OrderedDict[str, tuple[int, ...]]",
    *,
    noise_seed: int,
    updates: Updates | None = None,
    path: str = "query",
    strategy: str | None = None,
    resume_at: int | None = None,
) -> Iterator[np.ndarray]:
    """Yields what the aggregator releases in each round of the plan, flat: float64 (coordinates,).

    Args:
      plan: what to run.
      shapes: of the model's leaves.
      noise_seed: of the run.
      updates: round -> the clients' updates, each flat float32 (coordinates,), not to be changed afterwards: a sequence that is returned
        again is summed once. None for two clients that send zeros.
      path: "query", the DPQuery in a tf.function, or "tff", the aggregation process in TFF's runtime.
      strategy: one of STRATEGIES, or None for the query's own choice.
      resume_at: stop before this round, keep nothing but the state as numpy arrays, and go on with all else made anew.

    Raises:
      TypeError, ValueError: naming the argument, its value and what to do instead.
    """
    checks.one_of("path", path, PATHS)
    if strategy is not None:
        checks.one_of("strategy", strategy, STRATEGIES)
    divisor = divisor_of(plan)
    size = sum(math.prod(shape) for shape in shapes.values())
    zeros = [np.zeros(size, np.float32)] * 2
    kind = _QueryRun if path == "query" else _ProcessRun
    state = None
    for t in range(plan.mechanism.rounds):
        if t == 0 or t == resume_at:
            run = kind(plan, shapes, divisor, noise_seed, strategy)
            state = run.begin() if state is None else tf.nest.map_structure(np.array, state)
            host = _host(plan, state, strategy)
        if host is not None:
            state = host.hand_in(state)
        state, row = run.round(state, zeros if updates is None else updates(t))
        yield row


def _host(plan: Plan, state: Any, strategy: str | None) -> HostNoise | None:
    if strategy is None or not strategy.startswith("host"):
        return None
    return HostNoise.for_state(plan, state, strategy=strategy.partition("_")[2] or None)


def _in_graph(strategy: str | None) -> str | None:
    return "precomputed" if strategy is not None and strategy.startswith("host") else strategy


class _QueryRun:
    """Rounds of the query that both executions of training run."""

    def __init__(self, plan: Plan, shapes: Any, divisor: int, noise_seed: int, strategy: str | None) -> None:
        specs = collections.OrderedDict((name, tf.TensorSpec(shape)) for name, shape in shapes.items())
        query = mean_query(
            plan,
            specs,
            clients_per_round=divisor,
            noise_seed=noise_seed,
            zeroing_norm=None,
            noise_strategy=_in_graph(strategy),
        )

        def finish(sample: Any, state: Any) -> Any:
            result, state, _ = query.get_noised_result(sample, state)
            return tf.concat([tf.reshape(result[name], [-1]) for name in shapes], axis=0), state

        # Traced once here: TensorFlow would warn of many tf.functions of one name.
        state, sample = query.initial_global_state(), query.initial_sample_state()
        self._finish = tf.function(finish).get_concrete_function(sample, state)
        self._query, self._shapes = query, shapes
        self._add_many: Any = None
        self._sums: dict[Any, tuple[Any, Sequence[Any]]] = {}

    def _sum(self, params: Any, updates: Sequence[Any]) -> Any:
        sizes = [math.prod(shape) for shape in self._shapes.values()]

        def add(params: Any, sample: Any, update: Any) -> Any:
            parts = zip(self._shapes.items(), tf.split(update, sizes), strict=True)
            record = collections.OrderedDict([(name, tf.reshape(part, shape)) for (name, shape), part in parts])
            return self._query.accumulate_record(params, sample, record)

        def add_many(params: Any, sample: Any, updates: Any, count: Any) -> Any:
            for i in tf.range(count):
                sample = add(params, sample, updates[i])
            return sample

        sample = self._query.initial_sample_state()
        if len(updates) <= _FEW:
            for update in updates:
                sample = add(params, sample, tf.constant(update))
            return sample
        together = np.zeros((_TOGETHER, sum(sizes)), np.float32)
        if self._add_many is None:
            traced = tf.function(add_many).get_concrete_function
            self._add_many = traced(params, sample, tf.constant(together), tf.constant(0))
        for first in range(0, len(updates), _TOGETHER):
            count = min(_TOGETHER, len(updates) - first)
            for i in range(count):
                together[i] = updates[first + i]
            sample = self._add_many(params, sample, tf.constant(together), tf.constant(count))
        return sample

    def begin(self) -> Any:
        return self._query.initial_global_state()

    def round(self, state: Any, updates: Sequence[Any]) -> tuple[Any, np.ndarray]:
        params = self._query.derive_sample_params(state)
        # The same clients under the same parameters have the same sum: it is a pure function of them, and the cost of a round.
        key = (id(updates), *(np.asarray(part).tobytes() for part in tf.nest.flatten(params)))
        if key not in self._sums:
            # Beside its clients, who keep their id as long as they are held: that of a freed list is given to the next one.
            self._sums[key] = self._sum(params, updates), updates
        row, state = self._finish(self._sums[key][0], state)
        return state, row.numpy().astype(np.float64)


class _ProcessRun:
    """Rounds of the aggregation process in TFF's own runtime."""

    def __init__(self, plan: Plan, shapes: Any, divisor: int, noise_seed: int, strategy: str | None) -> None:
        self._shapes = shapes
        value_type = tff.to_type(
            collections.OrderedDict((name, tff.TensorType(np.float32, shape)) for name, shape in shapes.items())
        )
        self._process = dp_aggregator(
            plan,
            clients_per_round=divisor,
            noise_seed=noise_seed,
            zeroing_norm=None,
            noise_strategy=_in_graph(strategy),
        ).create(value_type)

    def begin(self) -> Any:
        guard_workers()
        return self._process.initialize()

    def round(self, state: Any, updates: Sequence[Any]) -> tuple[Any, np.ndarray]:
        output = self._process.next(state, [self._structured(update) for update in updates])
        row = np.concatenate([np.ravel(output.result[name]) for name in self._shapes])
        return output.state, row.astype(np.float64)

    def _structured(self, update: np.ndarray) -> Any:
        ends = np.cumsum([math.prod(shape) for shape in self._shapes.values()])
        parts = np.split(update, ends[:-1])
        return collections.OrderedDict(
            (name, part.reshape(shape)) for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        )
