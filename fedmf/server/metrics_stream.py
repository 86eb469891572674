"""The stream of private metrics beside that of updates: a client's part, noise, what it says."""

import dataclasses
import functools
import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedmf.mechanisms.noise_rows import NoisingRows
from fedmf.privacy.plan import Plan, metric_stddev
from fedmf.server.rows import HostNoise
from fedmf.server.source import check_noise_seed, derived_seed

# Of a client's vector: its coming, accuracy and loss.
SIZE = 3


class MetricsStream:
    """The sums of a plan's `PrivateMetrics` with their noise: that of round t is released as S +
    row t of N Z, with a Z of this stream alone.

    Formal guarantee: the releases of updates and metrics together are what `plan` says; see
    `PrivateMetrics.other_noise_multiplier`. What is computed from them is post-processing. A client
    moves S by a vector of norm at most 1, whatever its values.

    Args:
      plan: with private_metrics.
      noise_seed: non-negative int, the run's.

    Example:
      >>> import fedmf
      >>> config = fedmf.PlanConfig(
      ...     rounds=4, min_sep=2, noise_multiplier=1.0, family="identity", private_metrics=0.02
      ... )
      >>> metrics = MetricsStream(config.plan(), noise_seed=1)
      >>> one = metrics.contribution({"loss": 2.5, "accuracy": 0.1})
      >>> values = metrics.values(range(1), metrics.release(0, 1000 * one))
      >>> abs(values["loss"] - 2.5) < 6 * values["stddev"]["loss"] < 1
      True
    """

    def __init__(self, plan: Plan, *, noise_seed: int) -> None:
        assert plan.private_metrics is not None
        self._ends = {"accuracy": 1.0, "loss": plan.private_metrics.largest_loss}
        self._stddev, self._weight = metric_stddev(plan), 1 / math.sqrt(SIZE)
        self._mechanism = plan.mechanism
        # The rows of N alone matter: their scale is this stream's.
        alone = dataclasses.replace(plan, quantile_clipping=None, private_metrics=None, longer=None)
        # No row of this stream has anything in common with the updates'.
        seed = derived_seed(f"fedmf private metrics of noise seed {check_noise_seed(noise_seed)}")
        self._noise = HostNoise(alone, SIZE, noise_seed=seed)

    def empty_sum(self) -> np.ndarray:
        """The sum of no client, float64 (3,)."""
        return np.zeros(SIZE)

    def contribution(self, values: Mapping[str, Any]) -> np.ndarray:
        """What a client adds to the sum, float64 (3,), of norm 1 at most.

        Its entries are multiples of 2^-30, cut towards 0: sums of up to eight million clients are
        exact, in any order.

        Args:
          values: its "accuracy" and "loss". One that is beyond its range counts as the nearer end.
            A loss of NaN or minus infinity is that of a model that diverged: it counts as
            largest_loss, with an accuracy of 0. So does an accuracy that is not finite as 0.

        Raises:
          TypeError, ValueError: other names, or a value that is no number; the error tells none.
        """
        hint = f"give numbers for {' and '.join(self._ends)}"
        if not isinstance(values, Mapping):
            raise TypeError(f"`metrics` is a {type(values).__name__}: {hint}")
        given = dict(values)
        if given.keys() != self._ends.keys():
            raise ValueError(f"metrics={sorted(map(str, given))}: {hint}")
        numbers = {name: _number(name, given[name]) for name in self._ends}
        if not math.isfinite(numbers["accuracy"]):
            numbers["accuracy"] = 0.0
        if math.isnan(numbers["loss"]) or numbers["loss"] == -math.inf:
            numbers = {"accuracy": 0.0, "loss": math.inf}
        parts = [1.0]
        for name, end in self._ends.items():
            bounded = min(max(numbers[name], 0.0), end)
            parts.append(bounded / end * 2 - 1)
        exact: np.ndarray = np.trunc(self._weight * np.array(parts) * 2**30) / 2**30
        return exact

    def release(self, t: int, total: np.ndarray) -> np.ndarray:
        """The sum of round t with its noise, float32 (3,), rounded once as updates are."""
        noisy: np.ndarray = total + np.float64(self._stddev) * self._noise.row(t)
        return noisy.astype(np.float32)

    def values(self, rounds: range, released: np.ndarray) -> dict[str, Any]:
        """What the releases of rounds in a row say: "clients" -> how many there were, "accuracy"
        and "loss" -> means over them, "stddev" -> the standard deviation of each by its noise.

        A mean is no bounded number: the noise may take it beyond its range. It is the middle of the
        range where less than one client is seen. Its deviation is that of the quotient to first
        order. None stands where N would have to be formed, and does not fit into memory.

        Args:
          rounds: t, or some in a row: a difference of two running sums, for which N is good.
          released: the sum of their releases.
        """
        scaled = np.asarray(released, np.float64) / self._weight
        clients, spread = float(scaled[0]), self._spread(rounds)
        values: dict[str, Any] = {"clients": clients}
        deviations = {"clients": spread}
        for (name, end), entry in zip(self._ends.items(), scaled[1:], strict=True):
            half, centred = end / 2, float(entry) / clients if clients >= 1 else 0.0
            values[name] = half + half * centred
            deviations[name] = (
                None if spread is None else half * spread * math.hypot(1, centred) / max(clients, 1)
            )
        return values | {"stddev": deviations}

    @functools.cached_property
    def _noise_rows(self) -> NoisingRows:
        return NoisingRows(self._mechanism)

    @functools.cached_property
    def _round_deviations(self) -> np.ndarray | None:
        try:
            return self._noise_rows.round_deviations()
        except ValueError:
            return None

    def _spread(self, rounds: range) -> float | None:
        """Standard deviation of an entry of the sum over these rounds, in clients."""
        if self._round_deviations is None:
            return None
        deviation = self._round_deviations[rounds.start]
        if len(rounds) > 1:
            [deviation] = self._noise_rows.window_deviations([rounds.start], [rounds.stop])
        return float(self._stddev * deviation / self._weight)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number):
        kind = type(value).__name__
        raise TypeError(f"`metrics` has a {kind} for {name}: give an int or a float")
    try:
        return float(value)
    except OverflowError:  # an int beyond float64, which is finite
        largest = sys.float_info.max
        return largest if value > 0 else -largest
