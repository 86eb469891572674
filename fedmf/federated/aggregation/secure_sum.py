"""The sum of clipped records by TFF's secure summation."""

import collections
from typing import Any

import numpy as np

from fedmf.federated.aggregation import marks
from fedmf.federated.aggregation.query import QuerySample
from fedmf.federated.tff import tff

# tff.aggregators.SecureSumFactory rounds floats to whole multiples of (upper - lower) / LEVELS.
_LEVELS = 2**32 - 1


class SecureSampleSum(tff.aggregators.UnweightedAggregationFactory):
    """Sums QuerySamples with tff.aggregators.SecureSumFactory: the records rounded to 32 bits in
    [-clip_norm, clip_norm], the counts exactly.

    Args:
      clip_norm: no entry of a record is larger in absolute value.
    """

    def __init__(self, clip_norm: float) -> None:
        self._bound = clip_norm

    @property
    def entry_rounding(self) -> float:
        """The most that rounding adds to an entry: half a step, and a thousandth for TFF's float64
        arithmetic (2^-20 of a step).
        """
        return 0.501 * 2 * self._bound / _LEVELS

    def create(self, value_type: Any) -> tff.templates.AggregationProcess:
        """The process for samples of `value_type`."""
        record_type = value_type[0]
        counts_type = tff.to_type(
            collections.OrderedDict((name, np.int32) for name in QuerySample._fields[1:])
        )
        records = tff.aggregators.SecureSumFactory(self._bound).create(record_type)
        counts = tff.aggregators.SecureSumFactory(1, 0).create(counts_type)

        @tff.federated_computation
        def initialize() -> Any:
            return tff.federated_zip((records.initialize(), counts.initialize()))

        @tff.tensorflow.computation(value_type)
        def parts(sample: Any) -> Any:
            with marks.scope("parts"):
                sample = marks.marked_sample(sample)
            return sample.record, collections.OrderedDict(
                (name, getattr(sample, name)) for name in QuerySample._fields[1:]
            )

        @tff.tensorflow.computation(record_type, counts_type)
        def whole(record: Any, counts: Any) -> Any:
            with marks.scope("whole"):
                return marks.marked_sample(QuerySample(record, **counts))

        @tff.federated_computation(
            initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
        )
        def one_round(state: Any, value: Any) -> Any:
            record, count = tff.federated_map(parts, value)
            summed, counted = records.next(state[0], record), counts.next(state[1], count)
            return tff.templates.MeasuredProcessOutput(
                tff.federated_zip((summed.state, counted.state)),
                tff.federated_map(whole, (summed.result, counted.result)),
                tff.federated_zip(
                    collections.OrderedDict(
                        records=summed.measurements, counts=counted.measurements
                    )
                ),
            )

        return tff.templates.AggregationProcess(initialize, one_round)
