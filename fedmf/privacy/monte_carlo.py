"""Simulation of epsilon for sampling schemes without a closed form. The result is an upper bound
that is wrong with a small, stated probability over the random numbers of the simulation.

A first sample serves to choose parameters of the bound: the number of patterns that are drawn
together (the order), two points of a line, and the size of the second sample. The second sample,
which is independent, then proves the bound. `fedmf.privacy.loss_samples` explains the mathematics.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from fedmf.disk_cache import code_digest, store
from fedmf.files import cache_folder, write_atomically
from fedmf.privacy.loss_samples import (
    PROOF,
    SEARCH,
    AddSample,
    add_sample,
    log_weight_bound,
    remove_sample,
)
from fedmf.privacy.losses import Losses

# Probability that one simulated epsilon is too small, over the simulation's random numbers. A
# calibration simulates up to MAX_ATTEMPTS times, so its failure probability is MAX_ATTEMPTS times
# larger.
FAILURE = 1e-10
MAX_ATTEMPTS = 10
FAILURE_OF_CALIBRATION = MAX_ATTEMPTS * FAILURE
# A search may draw or compute _SEARCH_WORK numbers, which takes seconds, and a proof _PROOF_WORK
# numbers, which takes some minutes. Sizes of samples and orders are limited too.
_SEARCH_WORK = 1e8
_PROOF_WORK = 4e10
_MIN_SIZE = 2**16
_MAX_SIZE = 2**22
_MAX_ORDER = 64
# Largest epsilon that a simulation considers. A guarantee with a larger one would be worthless.
_MAX_EPSILON = 300.0
# The sample is so large that each error term of Bernstein's inequality is at most this fraction of
# delta, unless that would exceed the limit on work.
_SHARE = 0.03
# The two points of the line for adding a client are quantiles of the sample, chosen among these. A
# quantile is only used if at least _MIN_LOSSES_BELOW losses are below it.
_QUANTILES = (0.5, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4)
_MIN_LOSSES_BELOW = 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulatedEpsilon:
    """The result of a simulation of epsilon.

    Attributes:
      epsilon: the upper bound, wrong with probability `FAILURE` at most; infinite if the sample
        proves no finite bound.
      estimate: an estimate of epsilon from the same sample, without a safety margin.
      order: K, the number of patterns that are drawn together.
      samples: numbers of samples for removing and for adding a client.
      needed_samples: number of samples for removing a client that would make the margin a few
        percent of delta. It is larger than `samples` if drawing as many would take too long.
    """

    epsilon: float
    estimate: float
    order: int
    samples: tuple[int, int]
    needed_samples: float

    def __post_init__(self) -> None:
        checked_numbers = (self.epsilon, self.estimate, self.needed_samples)
        checked_counts = (self.order, *self.samples)
        is_valid = (
            all(type(number) is float and number >= 0 for number in checked_numbers)
            and all(type(count) is int and count >= 0 for count in checked_counts)
            and len(self.samples) == 2
        )
        if not is_valid:
            raise ValueError(
                f"{self} is no outcome of a simulation: epsilons and samples are not negative"
            )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Search:
    """Parameters of the proof that the search has chosen, and the epsilon that it is expected to
    prove.

    Attributes:
      order, size: order and size of the sample for removing a client.
      add_size: size of the sample for adding a client.
      needed_samples: as in `SimulatedEpsilon`.
      points: the two losses that define the line in the bound for adding a client.
      epsilon: the expected result of the proof.
    """

    order: int
    size: int
    add_size: int
    needed_samples: float
    points: tuple[float, float]
    epsilon: float


@functools.lru_cache(maxsize=256)
def simulated_epsilon(losses: Losses, delta: float, largest: float) -> SimulatedEpsilon:
    """Computes the least epsilon that a sample of privacy losses proves. The result is
    deterministic, and it is cached on disk.

    Args:
      losses: the distribution of privacy losses.
      delta: the delta of the guarantee.
      largest: an epsilon that holds without the simulation, such as the one without amplification;
        larger ones are not tried.
    """
    largest = min(largest, _MAX_EPSILON)
    cache_directory = cache_folder()
    if cache_directory is None:
        return _simulate(losses, delta, largest)
    source_digest = code_digest("privacy/**/*.py")
    cache_key = hashlib.sha256(
        f"{source_digest} {losses.digest} {delta!r} {largest!r}".encode()
    ).hexdigest()
    path = cache_directory / f"epsilon-{cache_key[:32]}.json"
    cached_result = _read_cached(path, cache_key)
    if cached_result is not None:
        return cached_result
    simulation = _simulate(losses, delta, largest)
    simulation_fields = dataclasses.asdict(simulation)
    json_text = json.dumps(simulation_fields | {"digest": _digest(cache_key, simulation_fields)})
    store(path, lambda path: write_atomically(path, json_text), "epsilon")
    return simulation


def _read_cached(path: pathlib.Path, key: str) -> SimulatedEpsilon | None:
    """Reads a cached result from its file. Returns None if the file does not exist, is damaged, or
    holds the result of another key.
    """
    try:
        cached_fields = json.loads(path.read_text())
        if cached_fields.pop("digest") != _digest(key, cached_fields):
            return None
        return SimulatedEpsilon(**cached_fields | {"samples": tuple(cached_fields["samples"])})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _digest(key: str, values: dict[str, Any]) -> str:
    """Returns a digest of a cached result and its key, with which damage of the file is
    detected.
    """
    return hashlib.sha256(f"{key} {json.dumps(values, sort_keys=True)}".encode()).hexdigest()


def _simulate(losses: Losses, delta: float, largest: float) -> SimulatedEpsilon:
    """Runs the search and then the proof with independent samples, and returns the result."""
    if _is_reached_at_zero(losses, delta, largest):
        return _without_samples(0.0)
    try:
        search = _search(losses, delta, largest)
        removal_sample = remove_sample(losses, search.order, search.size, PROOF)
        addition_sample = add_sample(losses, search.add_size, PROOF)
    except FloatingPointError:
        return _without_samples(math.inf)

    def bound(epsilon: float) -> float:
        remove_bound = removal_sample.bound(epsilon, FAILURE / 2)
        add_bound = addition_sample.bound(epsilon, search.points, FAILURE / 2)
        return max(remove_bound, add_bound)

    def estimate(epsilon: float) -> float:
        remove_mean, _ = removal_sample.moments(epsilon)
        return max(remove_mean, addition_sample.estimate(epsilon, search.points))

    return SimulatedEpsilon(
        epsilon=_least_epsilon(bound, delta, largest),
        estimate=_least_epsilon(estimate, delta, largest),
        order=search.order,
        samples=(removal_sample.size, len(addition_sample.loss)),
        needed_samples=search.needed_samples,
    )


def _without_samples(epsilon: float) -> SimulatedEpsilon:
    """Returns a result for which no samples were drawn, with epsilon 0, or infinity if the losses
    overflow.
    """
    return SimulatedEpsilon(
        epsilon=epsilon, estimate=epsilon, order=1, samples=(0, 0), needed_samples=0.0
    )


def _is_reached_at_zero(losses: Losses, delta: float, largest: float) -> bool:
    """Returns whether the guarantee holds with epsilon 0, which needs no simulation.

    The mean of T at order 2 is the mean square of dP/dQ under Q, and its log is the Renyi
    divergence of order 2. By Pinsker's inequality, delta at epsilon 0 is at most the square root of
    half of that divergence.
    """
    return largest == 0 or math.sqrt(losses.log_factor_bound(2) / 2) <= delta


def expected_epsilon(losses: Losses, delta: float, largest: float) -> float:
    """Estimates the result of `simulated_epsilon` from a smaller sample, which is independent of
    the one that `simulated_epsilon` uses for its proof.
    """
    if _is_reached_at_zero(losses, delta, largest):
        return 0.0
    try:
        return _search(losses, delta, min(largest, _MAX_EPSILON)).epsilon
    except FloatingPointError:
        return largest


@functools.lru_cache(maxsize=256)
def _search(losses: Losses, delta: float, largest: float) -> _Search:
    """Chooses the order, the points and the sizes of the proof's samples from a smaller sample."""
    factor_bounds = _log_factor_bounds(losses, largest)

    def affordable_size(work: float, order: int) -> int:
        unlimited_size = max(work / (losses.work * (order + 2)), 2**10)
        return int(min(unlimited_size, _MAX_SIZE))

    # A first epsilon follows from the bound on the importance weights W alone, without a sample. At
    # this epsilon, the bound is some ten times delta.
    epsilon = _least_epsilon(
        lambda e: math.exp(min(_best_order(factor_bounds, e)[0], 0.0)),
        min(30 * delta, 0.5),
        largest,
    )
    epsilon = min(epsilon, largest)
    for _ in range(2):
        _, order = _best_order(factor_bounds, epsilon)
        removal_sample = remove_sample(losses, order, affordable_size(_SEARCH_WORK, order), SEARCH)
        epsilon = _least_epsilon(
            lambda e: removal_sample.moments(e)[0],  # noqa: B023  (called at once)
            delta,
            largest,
        )
        epsilon = min(epsilon, largest)
        if _best_order(factor_bounds, epsilon)[1] == order:
            break
    _, mean_square = removal_sample.moments(epsilon)
    log_weight = log_weight_bound(order, factor_bounds[order - 1], epsilon)
    log_inverse_failure = math.log(4 / FAILURE)
    needed_samples = max(
        2 * mean_square * log_inverse_failure / (_SHARE * delta) ** 2,
        7 * math.exp(min(log_weight, 700.0)) * log_inverse_failure / (3 * _SHARE * delta),
        float(_MIN_SIZE),
    )
    proof_size = int(min(needed_samples, affordable_size(_PROOF_WORK, order)))
    addition_sample = add_sample(losses, affordable_size(_SEARCH_WORK, 1), SEARCH)
    add_size = affordable_size(_PROOF_WORK / 4, 0)
    points = _best_points(addition_sample, epsilon, add_size)

    def bound(epsilon: float) -> float:
        remove_bound = removal_sample.bound(epsilon, FAILURE / 2, proof_size)
        return max(remove_bound, addition_sample.bound(epsilon, points, FAILURE / 2, add_size))

    return _Search(
        order=order,
        size=proof_size,
        add_size=add_size,
        needed_samples=needed_samples,
        points=points,
        epsilon=_least_epsilon(bound, delta, largest),
    )


def _best_order(factor_bounds: list[float], epsilon: float) -> tuple[float, int]:
    """Finds the order whose bound on the weights W is least at an epsilon. Returns the log of the
    bound, and the order.
    """
    return min(
        (log_weight_bound(order, factor_bound, epsilon), order)
        for order, factor_bound in enumerate(factor_bounds, 1)
    )


@functools.lru_cache(maxsize=64)
def _log_factor_bounds(losses: Losses, largest: float) -> list[float]:
    """Computes upper bounds on log T for increasing orders, and stops when a larger order cannot
    lower the bound on the weights W for any epsilon up to `largest`.
    """
    log_bounds = [losses.log_factor_bound(1)]
    for order in range(2, _MAX_ORDER + 1):
        log_bounds.append(losses.log_factor_bound(order))
        if not log_bounds[-1] - log_bounds[-2] < largest + 1:
            return log_bounds[:-1]
    return log_bounds


def _best_points(added: AddSample, epsilon: float, size: int) -> tuple[float, float]:
    """Chooses the two losses whose line gives the least bound for adding a client. Returns the
    larger one first.
    """
    candidates = [
        float(np.quantile(added.loss, share))
        for share in _QUANTILES
        if share * len(added.loss) >= _MIN_LOSSES_BELOW
    ]
    candidate_pairs = [pair for pair in itertools.combinations(candidates, 2) if pair[0] > pair[1]]
    return min(
        candidate_pairs,
        key=lambda pair: added.line_bound(epsilon, pair, FAILURE / 4, size),
        default=(0.0, -1.0),
    )


def _least_epsilon(bound: Callable[[float], float], delta: float, largest: float) -> float:
    """Computes the least epsilon at which a decreasing bound is at most delta, rounded up by at
    most 1e-6, relatively. It is infinite if the bound exceeds delta at `largest`.
    """
    if not bound(largest) <= delta:
        return math.inf
    if bound(0.0) <= delta:
        return 0.0
    low_epsilon = 0.0
    high_epsilon = largest
    while high_epsilon - low_epsilon > 1e-6 * high_epsilon:
        middle_epsilon = (low_epsilon + high_epsilon) / 2
        if bound(middle_epsilon) <= delta:
            high_epsilon = middle_epsilon
        else:
            low_epsilon = middle_epsilon
    return high_epsilon
