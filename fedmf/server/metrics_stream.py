"""Noisy sums of clients' metrics, which are released beside the noisy sums of updates and have
noise of their own.
"""

import dataclasses
import functools
import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedmf.mechanisms.noising_rows import NoisingRows
from fedmf.privacy.plan import Plan, metric_stddev
from fedmf.server.host_noise import HostNoise
from fedmf.server.source import check_noise_seed, derived_seed

# The number of entries of a client's vector, which are a constant for its participation, its
# accuracy and its loss.
SIZE = 3


class MetricsStream:
    """Noisy sums of a plan's private metrics. The sum S of round t is released as S + row t of N Z,
    where N is the plan's noise matrix and the Gaussian noise Z is independent of that of updates.

    Formal guarantee: the releases of updates and metrics together have the guarantee of `plan`; see
    `PrivateMetrics.other_noise_multiplier`. All values computed from them are post-processing. A
    client moves S by a vector of norm at most 1, whatever its values.

    Args:
      plan: plan with private_metrics.
      noise_seed: non-negative int, of the run.

    Example:
      >>> import fedmf
      >>> config = fedmf.PlanConfig(
      ...     rounds=4, min_sep=2, noise_multiplier=1.0, family="identity", private_metrics=0.02
      ... )
      >>> metrics = MetricsStream(config.plan(), noise_seed=1)
      >>> contribution = metrics.contribution({"loss": 2.5, "accuracy": 0.1})
      >>> values = metrics.values(range(1), metrics.release(0, 1000 * contribution))
      >>> abs(values["loss"] - 2.5) < 6 * values["stddev"]["loss"] < 1
      True
    """

    def __init__(self, plan: Plan, *, noise_seed: int) -> None:
        assert plan.private_metrics is not None
        self._largest_by_name = {"accuracy": 1.0, "loss": plan.private_metrics.largest_loss}
        self._stddev = metric_stddev(plan)
        self._weight = 1 / math.sqrt(SIZE)
        self._mechanism = plan.mechanism
        # Only the mechanism of this plan matters here. quantile_clipping is left out, because
        # `HostNoise` would add an entry for it.
        plain_plan = dataclasses.replace(
            plan, quantile_clipping=None, private_metrics=None, longer=None
        )
        # The noise of the metrics has a seed of its own, so that it is independent of the noise of
        # the updates.
        seed = derived_seed(f"fedmf private metrics of noise seed {check_noise_seed(noise_seed)}")
        self._noise = HostNoise(plain_plan, SIZE, noise_seed=seed)

    def empty_sum(self) -> np.ndarray:
        """Returns a sum over no clients, float64 (3,)."""
        return np.zeros(SIZE)

    def contribution(self, values: Mapping[str, Any]) -> np.ndarray:
        """Returns the vector that a client adds to the sum, as a float64 array of shape (3,), of
        norm at most 1.

        Its entries are rounded towards 0 to multiples of 2^-30: sums of up to eight million clients
        are exact, in any order.

        Args:
          values: the client's "accuracy" and "loss". A value outside its range counts as the nearer
            end. A loss of NaN or minus infinity means that the model diverged: it counts as
            largest_loss, and the accuracy as 0. An accuracy that is not finite counts as 0.

        Raises:
          TypeError, ValueError: other names, or a value that is no number. The error does not show
            the value.
        """
        hint = f"give numbers for {' and '.join(self._largest_by_name)}"
        if not isinstance(values, Mapping):
            raise TypeError(f"`metrics` is a {type(values).__name__}: {hint}")
        value_by_name = dict(values)
        if value_by_name.keys() != self._largest_by_name.keys():
            raise ValueError(f"metrics={sorted(map(str, value_by_name))}: {hint}")
        number_by_name = {
            name: _number(name, value_by_name[name]) for name in self._largest_by_name
        }
        if not math.isfinite(number_by_name["accuracy"]):
            number_by_name["accuracy"] = 0.0
        if math.isnan(number_by_name["loss"]) or number_by_name["loss"] == -math.inf:
            number_by_name = {"accuracy": 0.0, "loss": math.inf}
        vector_entries = [1.0]
        for name, largest in self._largest_by_name.items():
            bounded_value = min(max(number_by_name[name], 0.0), largest)
            vector_entries.append(bounded_value / largest * 2 - 1)
        exact: np.ndarray = np.trunc(self._weight * np.array(vector_entries) * 2**30) / 2**30
        return exact

    def release(self, t: int, total: np.ndarray) -> np.ndarray:
        """Adds the noise of round t to a sum of contributions, and returns the noisy sum as a
        float32 array of shape (3,).
        """
        noisy: np.ndarray = total + np.float64(self._stddev) * self._noise.row(t)
        return noisy.astype(np.float32)

    def values(self, rounds: range, released: np.ndarray) -> dict[str, Any]:
        """Returns the metrics of consecutive rounds from their released sum. They are the number of
        "clients", their mean "accuracy" and "loss", and in "stddev" the standard deviation of the
        noise in each.

        A mean is not bounded: the noise may move it out of its range. It is the middle of the range
        where the noisy number of clients is below 1. Its deviation is that of the quotient, to
        first order. A deviation is None where N does not fit into memory.

        Args:
          rounds: consecutive ones, or one; the noise of their sum is a difference of two prefix
            sums, for which N is fitted.
          released: the sum of their releases.
        """
        scaled_sums = np.asarray(released, np.float64) / self._weight
        num_clients = float(scaled_sums[0])
        count_stddev = self._count_stddev(rounds)
        values: dict[str, Any] = {"clients": num_clients}
        stddev_by_name = {"clients": count_stddev}
        for (name, largest), entry in zip(
            self._largest_by_name.items(), scaled_sums[1:], strict=True
        ):
            half_range = largest / 2
            centred_mean = float(entry) / num_clients if num_clients >= 1 else 0.0
            values[name] = half_range + half_range * centred_mean
            stddev_by_name[name] = None
            if count_stddev is not None:
                sum_stddev = half_range * count_stddev * math.hypot(1, centred_mean)
                stddev_by_name[name] = sum_stddev / max(num_clients, 1)
        return values | {"stddev": stddev_by_name}

    @functools.cached_property
    def _noise_rows(self) -> NoisingRows:
        """The rows of the noise matrix N."""
        return NoisingRows(self._mechanism)

    @functools.cached_property
    def _round_deviations(self) -> np.ndarray | None:
        """The standard deviation of each round's noise at unit scale; None if the noise matrix is
        too large for the memory.
        """
        try:
            return self._noise_rows.round_deviations()
        except ValueError:
            return None

    def _count_stddev(self, rounds: range) -> float | None:
        """Returns the standard deviation of the noise in the number of clients, summed over these
        rounds.
        """
        if self._round_deviations is None:
            return None
        round_stddev = self._round_deviations[rounds.start]
        if len(rounds) > 1:
            [round_stddev] = self._noise_rows.window_deviations([rounds.start], [rounds.stop])
        return float(self._stddev * round_stddev / self._weight)


def _number(name: str, value: Any) -> float:
    """Returns a metric as a float. An int that is too large gives the largest float.

    Raises:
      TypeError: it is no number.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number):
        type_name = type(value).__name__
        raise TypeError(f"`metrics` has a {type_name} for {name}: give an int or a float")
    try:
        return float(value)
    # Python raises OverflowError if the int is finite but too large for float64.
    except OverflowError:
        largest_float = sys.float_info.max
        return largest_float if value > 0 else -largest_float
