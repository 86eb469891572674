"""Metrics of a round that the guarantee covers: counts and means over clients, with noise of their
own that a part of the budget pays for.
"""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedmf import checks
from fedmf.privacy.plan import Plan, metric_stddev
from fedmf.server.clipping import clip_margin
from fedmf.server.rows import HostNoise
from fedmf.server.source import check_noise_seed

# The count of clients is released beside the metrics, under this name.
CLIENTS = "clients"
_HINT = "give name -> (lowest, highest), such as {'loss': (0.0, 10.0), 'accuracy': (0.0, 1.0)}"


class PrivateMetrics:
    """The number of clients of a round, and the means over them of q metrics.

    A client adds (1, c_1, ..., c_q) / sqrt(q + 1), where c_j in [-1, 1] is its value, held to the
    range of the metric and centred in it. The sum S of round t is released as S + row t of N Z,
    with a Z of this stream alone. The mean of a metric follows from S_j / S_0. It is one over
    clients, and not over examples.

    Formal guarantee: the releases of updates and metrics together are what `plan` says; see
    `fedmf.privacy.plan.noise_multiplier_without_metrics`. What is computed from them is
    post-processing. Adding a client moves S by a vector of norm at most 1, whatever its values.

    Args:
      plan: with private_metrics.
      ranges: name -> (lowest, highest) value, fixed before the run; values beyond count as the
        nearer end, and NaN as the middle.
      noise_seed: non-negative int, the run's.

    Raises:
      TypeError, ValueError: naming the argument, its value and what to do instead.

    Example:
      >>> import fedmf
      >>> config = fedmf.PlanConfig(
      ...     rounds=4, min_sep=2, noise_multiplier=1.0, family="identity", private_metrics=0.02
      ... )
      >>> metrics = PrivateMetrics(
      ...     config.plan(), {"loss": (0.0, 10.0)}, noise_seed=1
      ... )
      >>> total = sum(metrics.contribution({"loss": 2.5}, clients=1000) for _ in range(1000))
      >>> values = metrics.values(range(1), metrics.release(0, total))
      >>> abs(values["loss"] - 2.5) < 6 * values["stddev"]["loss"] < 1
      True
    """

    def __init__(
        self,
        plan: Plan,
        ranges: Mapping[str, tuple[float, float]],
        *,
        noise_seed: int,
    ) -> None:
        if not plan.private_metrics:
            raise ValueError(
                "the plan has private_metrics=0.0, and pays for none: plan with a part of the "
                "budget such as 0.02, or leave the metrics out"
            )
        self.ranges = _checked(ranges)
        q = len(self.ranges)
        self._stddev, self._weight = metric_stddev(plan), 1 / math.sqrt(q + 1)
        self._mechanism = plan.mechanism
        # The rows of N alone matter: their scale is this stream's.
        alone = dataclasses.replace(plan, quantile_clipping=None, private_metrics=0.0, longer=None)
        self._noise = HostNoise(alone, q + 1, noise_seed=_seed(check_noise_seed(noise_seed)))

    def empty_sum(self) -> np.ndarray:
        """The sum of no client, float64 (q + 1,)."""
        return np.zeros(len(self.ranges) + 1)

    def contribution(self, values: Mapping[str, Any], *, clients: int) -> np.ndarray:
        """What a client adds to the sum, float64 (q + 1,): of norm 1 at most, and less by as much
        as the rounding of a sum of so many clients may move it.

        Args:
          values: name -> number.
          clients: of the round, at most.

        Raises:
          TypeError, ValueError: other names than those of the ranges, or a value that is no number.
        """
        if not isinstance(values, Mapping) or set(values) != set(self.ranges):
            given = sorted(values) if isinstance(values, Mapping) else type(values).__name__
            raise ValueError(f"metrics={given}: give a value for each of {sorted(self.ranges)}")
        parts = [1.0]
        for name, (low, high) in self.ranges.items():
            try:
                value = float(values[name])
            except (TypeError, ValueError):
                raise TypeError(
                    f"{name}={values[name]!r} is a {type(values[name]).__name__}: give a number"
                ) from None
            value = (low + high) / 2 if math.isnan(value) else min(max(value, low), high)
            centred = (value - low) / (high - low) * 2 - 1
            parts.append(min(max(centred, -1.0), 1.0))
        return self._weight * (1 - clip_margin(len(parts), clients)) * np.array(parts)

    def release(self, t: int, total: np.ndarray) -> np.ndarray:
        """The sum of round t with its noise, float32 (q + 1,), rounded once as updates are."""
        noisy: np.ndarray = total + np.float64(self._stddev) * self._noise.row(t)
        return noisy.astype(np.float32)

    def values(self, rounds: range, released: np.ndarray) -> dict[str, Any]:
        """What the releases of rounds in a row say: name -> mean over the clients, "clients" -> how
        many there were, and "stddev" -> the standard deviation of each by its noise.

        A mean is no bounded number: the noise may take it beyond its range. It is the middle of the
        range where less than one client is seen. Its deviation is that of the quotient to first
        order. None stands where the rows of N are too many to be written out.

        Args:
          rounds: t, or some in a row: a difference of two running sums, for which N is good.
          released: the sum of their releases.
        """
        scaled = np.asarray(released, np.float64) / self._weight
        clients, spread = float(scaled[0]), self._spread(rounds)
        values: dict[str, Any] = {CLIENTS: clients}
        deviations = {CLIENTS: spread}
        for (name, (low, high)), entry in zip(self.ranges.items(), scaled[1:], strict=True):
            half, centred = (high - low) / 2, float(entry) / clients if clients >= 1 else 0.0
            values[name] = (low + high) / 2 + half * centred
            deviations[name] = (
                None if spread is None else half * spread * math.hypot(1, centred) / max(clients, 1)
            )
        return values | {"stddev": deviations}

    @functools.cached_property
    def _noising(self) -> np.ndarray | None:
        try:
            return self._mechanism.noising()
        except ValueError:
            return None

    def _spread(self, rounds: range) -> float | None:
        """Standard deviation of an entry of the sum over these rounds, in clients."""
        if (N := self._noising) is None:
            return None
        row = N[rounds.start : rounds.stop].sum(axis=0)
        return float(self._stddev * np.linalg.norm(row) / self._weight)


def _checked(ranges: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    if not isinstance(ranges, Mapping) or not ranges:
        raise ValueError(f"metrics={ranges!r} name no metric: {_HINT}")
    checked = {}
    for name, ends in ranges.items():
        if not isinstance(name, str) or name in (CLIENTS, "stddev"):
            raise ValueError(f"metrics has a {name!r}, which is no name for one: {_HINT}")
        if not isinstance(ends, tuple | list) or len(ends) != 2:
            raise ValueError(f"metrics has {name}={ends!r}: {_HINT}")
        low, high = (checks.real(f"metrics[{name!r}]", end, hint=_HINT) for end in ends)
        if not 0 < high - low < math.inf:
            raise ValueError(f"metrics has {name}={ends!r}, whose lowest is not below: {_HINT}")
        checked[name] = (low, high)
    return checked


def _seed(noise_seed: int) -> int:
    """The seed of this stream: no row of it has anything in common with the updates'."""
    digest = hashlib.sha256(f"fedmf private metrics of noise seed {noise_seed}".encode())
    return int.from_bytes(digest.digest())
