"""Epsilon of a mixture of Gaussians by simulation, as an upper bound that fails with a stated
probability over our own coins.

A client takes part in the pattern x with probability p(x). The pair P = sum_x p(x) N(C x, sigma^2
I) and Q = N(0, sigma^2 I) dominates the run where C >= 0 (Choquette-Choo et al. 2024,
arXiv:2410.06266, Lemma 3.2). L = log dP/dQ is the privacy loss, and

    delta_remove(e) = E_P max(0, 1 - exp(e - L)),    delta_add(e) = E_Q max(0, 1 - exp(e + L)).

Remove: importance sampling with bounded weights. Draw K patterns x_1 .. x_K together, from a law h
for which

    T = p(x_1) .. p(x_K) exp(sum over i < l of <C x_i, C x_l> / sigma^2) / h(x_1, .., x_K)

is known, and y ~ N(C (x_1 + .. + x_K), sigma^2 I). Summed over the patterns, T times the density of
y is (dP/dQ)^K dQ. Hence delta_remove(e) = E W with

    W = T exp(-(K - 1) L) max(0, 1 - exp(e - L))
    0 <= W <= T_max exp(-(K - 1) e) (1 - 1/K)^(K - 1) / K.

Where T_max is near E T, the limit is the bound of Renyi accounting of order K. An empirical
Bernstein inequality (Maurer and Pontil 2009, Theorem 4) turns the sample into a bound on E W. K = 1
is plain sampling from P.

Add: L is a convex function of y, the log of a sum of exponentials. So its sublevel sets are convex,
and t -> Phi^-1(Q(L <= t)) is concave (Ehrhard 1983). A line through exact binomial bounds at two
points of moderate probability lies above it in the tail, where no sample is.
"""

import abc
import concurrent.futures
import dataclasses
import functools
import hashlib
import json
import math
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from fedmf.disk_cache import code_digest, store
from fedmf.files import cache_folder, write_atomically
from fedmf.terminal import interrupts, progress_bar

# Chance, over our coins, that one epsilon is too small; of the MAX_ATTEMPTS of a calibration
# together it is ten times as large.
FAILURE = 1e-10
MAX_ATTEMPTS = 10
FAILURE_OF_CALIBRATION = MAX_ATTEMPTS * FAILURE
# Words that separate the sample that chooses (noise, order, points, size) from the one that proves.
SEARCH, PROOF = 0, 1
# Numbers that a search and a proof may draw or compute: seconds, and some minutes.
_SEARCH_WORK, _PROOF_WORK = 1e8, 4e10
_MIN_SIZE, _MAX_SIZE = 2**16, 2**22
_MAX_ORDER = 64
# A larger epsilon is not looked for: no guarantee is worth it. Losses beyond _MAX_LOSS, whose
# exponentials overflow, may then stand there: W falls with L beyond epsilon + 1, or is 1 for K = 1,
# and a loss below -_MAX_LOSS counts in full for adding a client.
_MAX_EPSILON, _MAX_LOSS = 300.0, 700.0
# Shares of delta that the terms of Bernstein's inequality may add, if work allows.
_SHARE = 0.03
_QUANTILES = (0.5, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4)


class Losses(abc.ABC):
    """The privacy losses of one client's pattern of participation, ready to be sampled.

    Equal where they have the same digest.

    Attributes:
      digest: of everything that decides the law of the losses, hexadecimal.
      work: numbers that are drawn or computed for a sample of order 1.
    """

    digest: str
    work: float

    @abc.abstractmethod
    def sample(
        self, order: int, size: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """(log T, L), float64 (size,), of the law of K = order patterns; for order 0 T = 1
        and y ~ Q.
        """

    @abc.abstractmethod
    def log_factor_bound(self, order: int) -> float:
        """The log of an upper bound on T, whatever is drawn; infinite for a useless order."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Losses) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def digest_of(kind: str, *values: np.ndarray | float) -> str:
    """SHA-256 of arrays and numbers, hexadecimal."""
    digest = hashlib.sha256(kind.encode())
    for value in values:
        array = np.ascontiguousarray(np.asarray(value, np.float64))
        digest.update(repr(array.shape).encode() + array.tobytes())
    return digest.hexdigest()


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulatedEpsilon:
    """The outcome of a simulation.

    Attributes:
      epsilon: upper bound, which fails with probability `FAILURE` at most; infinite where the
        sample shows nothing.
      estimate: the epsilon whose estimated delta is the target: without the margin.
      order: K; how many patterns are drawn together.
      samples: of the directions remove and add.
      wanted: samples with which the margin would be a few percent of delta; more than `samples`
        where those would take too long.
    """

    epsilon: float
    estimate: float
    order: int
    samples: tuple[int, int]
    wanted: float

    def __post_init__(self) -> None:
        numbers = (self.epsilon, self.estimate, self.wanted)
        wholes = (self.order, *self.samples)
        fine = (
            all(type(number) is float and number >= 0 for number in numbers)
            and all(type(whole) is int and whole >= 0 for whole in wholes)
            and len(self.samples) == 2
        )
        if not fine:
            raise ValueError(
                f"{self} is no outcome of a simulation: epsilons and samples are not negative"
            )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RemoveSample:
    """A sample of W for the remove direction; losses below 0 are counted and not kept."""

    order: int
    log_factor_bound: float
    size: int
    log_factor: np.ndarray
    loss: np.ndarray

    def moments(self, epsilon: float) -> tuple[float, float]:
        """Mean and mean square of W."""
        inside = self.loss > epsilon
        L = self.loss[inside]
        W = np.exp(self.log_factor[inside] - (self.order - 1) * L) * -np.expm1(epsilon - L)
        return float(W.sum()) / self.size, float((W * W).sum()) / self.size

    def bound(self, epsilon: float, failure: float, size: int | None = None) -> float:
        """Upper bound on delta_remove, decreasing in epsilon; with `size`, that of so many samples
        with these moments.
        """
        mean, square = self.moments(epsilon)
        most = math.exp(min(log_weight_bound(self.order, self.log_factor_bound, epsilon), 700.0))
        return bernstein_bound(mean, square, most, size or self.size, failure)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class AddSample:
    """A sample of L under Q, sorted, for the add direction."""

    loss: np.ndarray

    def estimate(self, epsilon: float, points: tuple[float, float]) -> float:
        """The mean of max(0, 1 - exp(epsilon + L)); where few losses are as low as that, the line
        through two points without a margin.
        """
        few = np.searchsorted(self.loss, -epsilon) < 100
        return (
            self.by_line(epsilon, points, 1.0, len(self.loss)) if few else self._moments(epsilon)[0]
        )

    def _moments(self, epsilon: float) -> tuple[float, float]:
        W = -np.expm1(epsilon + self.loss[: np.searchsorted(self.loss, -epsilon)])
        return float(W.sum()) / len(self.loss), float((W * W).sum()) / len(self.loss)

    def bound(
        self, epsilon: float, points: tuple[float, float], failure: float, size: int | None = None
    ) -> float:
        """Upper bound on delta_add, decreasing in epsilon: by Bernstein's inequality, or by the
        line through two points if that is less.
        """
        n = size or len(self.loss)
        plain = bernstein_bound(*self._moments(epsilon), 1.0, n, failure / 2)
        return min(plain, self.by_line(epsilon, points, failure / 2, n))

    def by_line(self, epsilon: float, points: tuple[float, float], failure: float, n: int) -> float:
        """The bound by Ehrhard's inequality, of n samples with these shares."""
        from scipy import special

        upper, lower = points
        share_upper, share_lower = np.searchsorted(self.loss, points, side="right") / len(self.loss)
        # Exact binomial bounds (Clopper and Pearson), from below at the upper point and from above
        # at the lower one.
        at_least = (
            special.betaincinv(share_upper * n, (1 - share_upper) * n + 1, failure / 2)
            if share_upper
            else 0.0
        )
        at_most = 1 - special.betaincinv((1 - share_lower) * n, share_lower * n + 1, failure / 2)
        if -epsilon > lower or not 0 < at_most < at_least < 1:
            return 1.0
        slope = (special.ndtri(at_least) - special.ndtri(at_most)) / (upper - lower)
        start = special.ndtri(at_most) - slope * lower
        # E max(0, 1 - exp(epsilon + L)) is the integral of exp(epsilon + t) Q(L <= t) over t <
        # -epsilon: with Phi(start + slope t) for Q.
        end = start - slope * epsilon
        log_rest = epsilon - start / slope + 1 / (2 * slope**2) + special.log_ndtr(end - 1 / slope)
        return float(special.ndtr(end) - math.exp(min(log_rest, 0.0)))


def log_weight_bound(order: int, log_factor_bound: float, epsilon: float) -> float:
    """The log of the largest W: exp(-(K - 1) L) (1 - exp(e - L)) is largest at exp(e - L)
    = 1 - 1/K.
    """
    log_peak = (order - 1) * math.log1p(-1 / order) - math.log(order) if order > 1 else 0.0
    return log_factor_bound - (order - 1) * epsilon + log_peak


def bernstein_bound(mean: float, square: float, most: float, size: int, failure: float) -> float:
    """Upper bound on the expectation of a variable in [0, most] (Maurer and Pontil
    2009, Theorem 4).

    The mean square stands for the variance, which is less: then the bound decreases wherever the
    variable does.
    """
    log = math.log(2 / failure)
    return mean + math.sqrt(2 * square * log / (size - 1)) + 7 * most * log / (3 * (size - 1))


def remove_sample(losses: Losses, order: int, size: int, purpose: int) -> RemoveSample:
    """At least `size` samples of W."""
    parts = _shards(
        losses,
        order,
        size,
        purpose,
        keep=lambda log_factor, loss: (log_factor[loss > 0], loss[loss > 0]),
    )
    return RemoveSample(
        order=order,
        log_factor_bound=losses.log_factor_bound(order),
        size=len(parts) * shard_size(losses),
        log_factor=np.concatenate([part[0] for part in parts]),
        loss=np.concatenate([part[1] for part in parts]),
    )


def add_sample(losses: Losses, size: int, purpose: int) -> AddSample:
    """At least `size` samples of L under Q."""
    parts = _shards(losses, 0, size, purpose, keep=lambda _, loss: (loss,))
    return AddSample(loss=np.sort(np.concatenate([part[0] for part in parts])))


def shard_size(losses: Losses) -> int:
    """Samples that are drawn together, from a generator of their own; a matter of the losses alone,
    not of the machine.
    """
    return 2 ** max(8, min(13, round(math.log2(1.2e7 / losses.work))))


def _shards(
    losses: Losses,
    order: int,
    size: int,
    purpose: int,
    keep: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, ...]],
) -> list[tuple[np.ndarray, ...]]:
    """What is kept of each shard, in their order: the same on any number of threads.

    Raises:
      FloatingPointError: the noise is so small that a factor overflows, or a loss is not a number.
    """
    each = shard_size(losses)

    def draw(shard: int) -> tuple[np.ndarray, ...]:
        seed = np.random.SeedSequence([purpose, order, shard])
        with np.errstate(all="ignore"):
            log_factor, loss = losses.sample(
                order, each, np.random.Generator(np.random.Philox(seed))
            )
        if not np.isfinite(log_factor).all() or np.isnan(loss).any():
            raise FloatingPointError("privacy losses leave float64")
        return keep(log_factor, np.clip(loss, -_MAX_LOSS, _MAX_LOSS))

    number = -(-size // each)
    pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
    shown = sys.stderr.isatty()
    with progress_bar.bar(total=number, desc="privacy losses", delay=2, disable=not shown) as bar:
        try:
            parts = []
            for part in pool.map(draw, range(number)):
                interrupts.check()
                parts.append(part)
                bar.update()
            return parts
        finally:
            pool.shutdown(cancel_futures=True)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Search:
    """What a first sample chooses for the proof, and the epsilon that it may expect to prove."""

    order: int
    size: int
    add_size: int
    wanted: float
    points: tuple[float, float]
    epsilon: float


@functools.lru_cache(maxsize=256)
def simulated_epsilon(losses: Losses, delta: float, most: float) -> SimulatedEpsilon:
    """The least epsilon up to `most` that a sample proves; the same for the same arguments, and
    kept on disk as fits are.

    Args:
      losses: of the run.
      delta: target.
      most: an epsilon that holds anyway.
    """
    most = min(most, _MAX_EPSILON)
    folder = cache_folder()
    if folder is None:
        return _simulated(losses, delta, most)
    code = code_digest("privacy/**/*.py")
    key = hashlib.sha256(f"{code} {losses.digest} {delta!r} {most!r}".encode()).hexdigest()
    path = folder / f"epsilon-{key[:32]}.json"
    result = _kept(path, key)
    if result is not None:
        return result
    result = _simulated(losses, delta, most)
    outcome = dataclasses.asdict(result)
    text = json.dumps(outcome | {"digest": _digest(key, outcome)})
    store(path, lambda path: write_atomically(path, text), "epsilon")
    return result


def _kept(path: pathlib.Path, key: str) -> SimulatedEpsilon | None:
    """The outcome that was stored for this key; None where there is none, or the file
    is damaged or another's.
    """
    try:
        outcome = json.loads(path.read_text())
        if outcome.pop("digest") != _digest(key, outcome):
            return None
        return SimulatedEpsilon(**outcome | {"samples": tuple(outcome["samples"])})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _digest(key: str, outcome: dict[str, Any]) -> str:
    return hashlib.sha256(f"{key} {json.dumps(outcome, sort_keys=True)}".encode()).hexdigest()


def _simulated(losses: Losses, delta: float, most: float) -> SimulatedEpsilon:
    if _is_nothing(losses, delta, most):
        return SimulatedEpsilon(epsilon=0.0, estimate=0.0, order=1, samples=(0, 0), wanted=0.0)
    try:
        plan = _search(losses, delta, most)
        removed = remove_sample(losses, plan.order, plan.size, PROOF)
        added = add_sample(losses, plan.add_size, PROOF)
    except FloatingPointError:
        return SimulatedEpsilon(
            epsilon=math.inf, estimate=math.inf, order=1, samples=(0, 0), wanted=0.0
        )

    def bound(epsilon: float) -> float:
        remove, add = (
            removed.bound(epsilon, FAILURE / 2),
            added.bound(epsilon, plan.points, FAILURE / 2),
        )
        return max(remove, add)

    return SimulatedEpsilon(
        epsilon=_least(bound, delta, most),
        estimate=_least(
            lambda epsilon: max(removed.moments(epsilon)[0], added.estimate(epsilon, plan.points)),
            delta,
            most,
        ),
        order=plan.order,
        samples=(removed.size, len(added.loss)),
        wanted=plan.wanted,
    )


def _is_nothing(losses: Losses, delta: float, most: float) -> bool:
    """Whether delta is reached at epsilon 0 whatever a sample shows.

    E T of order 2 is the mean square of dP/dQ under Q, whose log is the Renyi divergence of order
    2. The total variation is by Pinsker's inequality at most the root of half of that.
    """
    return most == 0 or math.sqrt(losses.log_factor_bound(2) / 2) <= delta


def expected_epsilon(losses: Losses, delta: float, most: float) -> float:
    """About what `simulated_epsilon` will be, from a smaller sample
    that is independent of the proof.
    """
    if _is_nothing(losses, delta, most):
        return 0.0
    try:
        return _search(losses, delta, min(most, _MAX_EPSILON)).epsilon
    except FloatingPointError:
        return most


@functools.lru_cache(maxsize=256)
def _search(losses: Losses, delta: float, most: float) -> _Search:
    bounds = _log_factor_bounds(losses, most)

    def best(epsilon: float) -> tuple[float, int]:
        return min((log_weight_bound(K, bound, epsilon), K) for K, bound in enumerate(bounds, 1))

    def sample_size(work: float, order: int) -> int:
        return int(min(max(work / (losses.work * (order + 2)), 2**10), _MAX_SIZE))

    # The weights' bound alone gives a first idea: the order at which it is some ten times delta.
    epsilon = _least(lambda e: math.exp(min(best(e)[0], 0.0)), min(30 * delta, 0.5), most)
    log, at = math.log(4 / FAILURE), min(epsilon, most)
    for _ in range(2):
        order = best(at)[1]
        removed = remove_sample(losses, order, sample_size(_SEARCH_WORK, order), SEARCH)
        at = min(_least(lambda e: removed.moments(e)[0], delta, most), most)  # noqa: B023
        if best(at)[1] == order:
            break
    square, largest = (
        removed.moments(at)[1],
        math.exp(min(log_weight_bound(order, bounds[order - 1], at), 700.0)),
    )
    wanted = max(
        2 * square * log / (_SHARE * delta) ** 2,
        7 * largest * log / (3 * _SHARE * delta),
        float(_MIN_SIZE),
    )
    size = int(min(wanted, sample_size(_PROOF_WORK, order)))
    added = add_sample(losses, sample_size(_SEARCH_WORK, 1), SEARCH)
    add_size = sample_size(_PROOF_WORK / 4, 0)
    points = _points(added, at, add_size)

    def bound(epsilon: float) -> float:
        remove = removed.bound(epsilon, FAILURE / 2, size)
        return max(remove, added.bound(epsilon, points, FAILURE / 2, add_size))

    return _Search(
        order=order,
        size=size,
        add_size=add_size,
        wanted=wanted,
        points=points,
        epsilon=_least(bound, delta, most),
    )


@functools.lru_cache(maxsize=64)
def _log_factor_bounds(losses: Losses, most: float) -> list[float]:
    """Of the orders 1, 2, .. as long as one more may lower the bound on the weights at an epsilon
    up to `most`.
    """
    bounds = [losses.log_factor_bound(1)]
    for order in range(2, _MAX_ORDER + 1):
        bounds.append(losses.log_factor_bound(order))
        if not bounds[-1] - bounds[-2] < most + 1:
            return bounds[:-1]
    return bounds


def _points(added: AddSample, epsilon: float, size: int) -> tuple[float, float]:
    """The two losses, the larger first, through which a line gives the least bound."""
    losses = [
        float(np.quantile(added.loss, share))
        for share in _QUANTILES
        if share * len(added.loss) >= 30
    ]
    pairs = [(losses[i], losses[j]) for i in range(len(losses)) for j in range(i + 1, len(losses))]
    return min(
        (pair for pair in pairs if pair[0] > pair[1]),
        key=lambda pair: added.by_line(epsilon, pair, FAILURE / 4, size),
        default=(0.0, -1.0),
    )


def _least(bound: Callable[[float], float], delta: float, most: float) -> float:
    """The least epsilon at which the decreasing bound is at most delta, to 1e-6 and rounded up;
    infinite if `most` is below it.
    """
    if not bound(most) <= delta:
        return math.inf
    if bound(0.0) <= delta:
        return 0.0
    low, high = 0.0, most
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if bound(middle) <= delta else (middle, high)
    return high
