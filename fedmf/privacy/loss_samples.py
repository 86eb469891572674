"""Samples of privacy losses, and upper bounds on delta that such samples prove.

With the distributions P and Q of the output y with and without a client, and the privacy loss L =
log dP/dQ, as defined in `fedmf.privacy.losses`, delta at epsilon e is the larger one of

    delta_remove(e) = E_P max(0, 1 - exp(e - L)),    delta_add(e) = E_Q max(0, 1 - exp(e + L)).

Removing a client: importance sampling with bounded weights. Draw K patterns x_1 .. x_K together,
from a distribution h for which

    T = p(x_1) .. p(x_K) exp(sum over i < l of <C x_i, C x_l> / sigma^2) / h(x_1, .., x_K)

is known, and y ~ N(C (x_1 + .. + x_K), sigma^2 I). Summed over the patterns, T times the density of
y is (dP/dQ)^K dQ. Hence delta_remove(e) = E W with

    W = T exp(-(K - 1) L) max(0, 1 - exp(e - L))
    0 <= W <= T_max exp(-(K - 1) e) (1 - 1/K)^(K - 1) / K.

Where T_max is near E T, the limit is the bound of Renyi accounting of order K. An empirical
Bernstein inequality (Maurer and Pontil 2009, Theorem 4) turns the sample into a bound on E W. K = 1
is plain sampling from P.

Adding a client: L is a convex function of y, the log of a sum of exponentials. So its sublevel sets
are convex, and t -> Phi^-1(Q(L <= t)) is concave (Ehrhard 1983), where Phi is the normal
distribution function. A line through exact binomial bounds at two points of moderate probability
lies above this function in the tail, where there are no samples.
"""

import concurrent.futures
import dataclasses
import math
import os
import sys
from collections.abc import Callable

import numpy as np

from fedmf.privacy.losses import Losses
from fedmf.terminal import interrupts, progress_bar

# First words of the seeds of two independent samples, one for the search and one for the proof of
# epsilon. The search chooses the parameters of the proof, such as the size of its sample.
SEARCH = 0
PROOF = 1
# Losses are clipped to this absolute value, because exponentials of larger numbers overflow.
# Clipping lowers no bound on delta at the epsilons that are tried, which are at most 300 in
# `fedmf.privacy.monte_carlo`, and at most 600 in `fedmf.privacy.curves`.
MAX_LOSS = 700.0
# If fewer losses of the sample than this are below -epsilon, the line through two points estimates
# the delta of adding a client better than the mean over so few losses.
_FEW_LOSSES = 100
# A sample is drawn in shards, each of which has its own random generator. A shard draws or computes
# about _SHARD_WORK numbers, and its number of losses is a power of two between the two limits
# below.
_SHARD_WORK = 1.2e7
_MIN_LOG2_SHARD = 8
_MAX_LOG2_SHARD = 13

_Arrays = tuple[np.ndarray, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RemoveSample:
    """A sample of the weighted losses W (see above), whose mean is delta for removing a client.

    Attributes:
      order: K, the number of patterns that are drawn together.
      log_factor_bound: log of the largest possible weight T.
      size: number of samples.
      log_factor, loss: log T and L of the samples with L > 0, float64; W is 0 for the others.
    """

    order: int
    log_factor_bound: float
    size: int
    log_factor: np.ndarray
    loss: np.ndarray

    def moments(self, epsilon: float) -> tuple[float, float]:
        """Computes the mean and the mean square, over the sample, of the variable W that is defined
        above.
        """
        is_above = self.loss > epsilon
        L = self.loss[is_above]
        W = np.exp(self.log_factor[is_above] - (self.order - 1) * L) * -np.expm1(epsilon - L)
        return float(W.sum()) / self.size, float((W * W).sum()) / self.size

    def bound(self, epsilon: float, failure: float, size: int | None = None) -> float:
        """Computes an upper bound on delta for removing a client, which decreases with epsilon.

        Args:
          epsilon: e.
          failure: probability with which the bound may be wrong.
          size: computes the bound of a sample of this size with the same moments; None for the
            sample's own.
        """
        mean, mean_square = self.moments(epsilon)
        log_largest = log_weight_bound(self.order, self.log_factor_bound, epsilon)
        largest_loss = math.exp(min(log_largest, MAX_LOSS))
        return bernstein_bound(mean, mean_square, largest_loss, size or self.size, failure)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class AddSample:
    """A sample of the privacy loss L of outputs without the client, for the delta of adding a
    client.

    Attributes:
      loss: the losses in ascending order, float64.
    """

    loss: np.ndarray

    def estimate(self, epsilon: float, points: tuple[float, float]) -> float:
        """Estimates delta for adding a client, without a margin for the sampling error. The
        estimate is the mean of max(0, 1 - exp(epsilon + L)) or, if few losses are below -epsilon,
        by the line through two points.
        """
        if np.searchsorted(self.loss, -epsilon) < _FEW_LOSSES:
            return self.line_bound(epsilon, points, 1.0, len(self.loss))
        mean, _ = self._moments(epsilon)
        return mean

    def _moments(self, epsilon: float) -> tuple[float, float]:
        """Computes the mean of max(0, 1 - exp(epsilon + L)) and the mean of its square over the
        sample.
        """
        W = -np.expm1(epsilon + self.loss[: np.searchsorted(self.loss, -epsilon)])
        return float(W.sum()) / len(self.loss), float((W * W).sum()) / len(self.loss)

    def bound(
        self, epsilon: float, points: tuple[float, float], failure: float, size: int | None = None
    ) -> float:
        """Computes an upper bound on delta for adding a client, which decreases with epsilon. It is
        the smaller one of the bounds by Bernstein's inequality and by the line through two points.

        Args:
          epsilon: e.
          points: two losses of moderate probability, the larger one first.
          failure: probability with which the bound may be wrong.
          size: as in `RemoveSample.bound`.
        """
        sample_size = size or len(self.loss)
        mean, mean_square = self._moments(epsilon)
        plain_bound = bernstein_bound(mean, mean_square, 1.0, sample_size, failure / 2)
        return min(plain_bound, self.line_bound(epsilon, points, failure / 2, sample_size))

    def line_bound(
        self, epsilon: float, points: tuple[float, float], failure: float, size: int
    ) -> float:
        """Computes the bound on delta for adding a client by Ehrhard's inequality, for a sample of
        `size` losses of which the same shares as here are below the two points.
        """
        from scipy import special

        upper, lower = points
        counts_below = np.searchsorted(self.loss, points, side="right")
        upper_share, lower_share = counts_below / len(self.loss)
        # These are exact binomial confidence bounds (Clopper and Pearson) on the probabilities that
        # a loss is below each of the two points.
        upper_probability = 0.0
        if upper_share:
            upper_probability = special.betaincinv(
                upper_share * size, (1 - upper_share) * size + 1, failure / 2
            )
        lower_probability = 1 - special.betaincinv(
            (1 - lower_share) * size, lower_share * size + 1, failure / 2
        )
        if -epsilon > lower or not 0 < lower_probability < upper_probability < 1:
            return 1.0
        score_difference = special.ndtri(upper_probability) - special.ndtri(lower_probability)
        slope = score_difference / (upper - lower)
        intercept = special.ndtri(lower_probability) - slope * lower
        # E max(0, 1 - exp(epsilon + L)) is the integral of exp(epsilon + t) Q(L <= t) over t <
        # -epsilon. Here it is computed with the upper bound Phi(intercept + slope t) on Q(L <= t).
        cutoff_score = intercept - slope * epsilon
        log_integral = (
            epsilon
            - intercept / slope
            + 1 / (2 * slope**2)
            + special.log_ndtr(cutoff_score - 1 / slope)
        )
        return float(special.ndtr(cutoff_score) - math.exp(min(log_integral, 0.0)))


def log_weight_bound(order: int, log_factor_bound: float, epsilon: float) -> float:
    """Computes the log of the largest possible value, at an epsilon e, of the variable W that is
    defined above.

    The factor exp(-(K - 1) L) (1 - exp(e - L)) of W is largest where exp(e - L) = 1 - 1/K.
    """
    log_peak = 0.0
    if order > 1:
        log_peak = (order - 1) * math.log1p(-1 / order) - math.log(order)
    return log_factor_bound - (order - 1) * epsilon + log_peak


def bernstein_bound(
    mean: float, mean_square: float, largest: float, size: int, failure: float
) -> float:
    """Computes an upper bound on the expectation of a random variable in [0, largest] from a
    sample, by the empirical Bernstein inequality (Maurer and Pontil 2009, Theorem 4).

    The mean square replaces the variance, which is smaller. So the bound decreases whenever the
    variable does.
    """
    log_inverse_failure = math.log(2 / failure)
    deviation_term = math.sqrt(2 * mean_square * log_inverse_failure / (size - 1))
    return mean + deviation_term + 7 * largest * log_inverse_failure / (3 * (size - 1))


def remove_sample(losses: Losses, order: int, size: int, purpose: int) -> RemoveSample:
    """Draws at least `size` samples of the variable W, for the delta of removing a client."""

    def positive_losses(log_factor: np.ndarray, loss: np.ndarray) -> _Arrays:
        is_positive = loss > 0
        return log_factor[is_positive], loss[is_positive]

    shards = _shards(losses, order, size, purpose, positive_losses)
    return RemoveSample(
        order=order,
        log_factor_bound=losses.log_factor_bound(order),
        size=len(shards) * shard_size(losses),
        log_factor=np.concatenate([log_factor for log_factor, _ in shards]),
        loss=np.concatenate([loss for _, loss in shards]),
    )


def add_sample(losses: Losses, size: int, purpose: int) -> AddSample:
    """Draws at least `size` samples of the privacy loss of outputs without the client, for the
    delta of adding a client.
    """
    shards = _shards(losses, 0, size, purpose, lambda _, loss: (loss,))
    return AddSample(loss=np.sort(np.concatenate([loss for (loss,) in shards])))


def shard_size(losses: Losses) -> int:
    """Returns the number of samples in a shard, which has a random generator of its own.

    The number depends on the losses alone and not on the machine, so that results are
    deterministic.
    """
    log2_size = round(math.log2(_SHARD_WORK / losses.work))
    return 2 ** max(_MIN_LOG2_SHARD, min(_MAX_LOG2_SHARD, log2_size))


def _shards(
    losses: Losses,
    order: int,
    size: int,
    purpose: int,
    select: Callable[[np.ndarray, np.ndarray], _Arrays],
) -> list[_Arrays]:
    """Draws at least `size` samples in shards, in parallel threads. The result has for each shard
    the arrays that `select` returns for it, and does not depend on the number of threads.

    Raises:
      FloatingPointError: the noise is so small that a factor overflows, or a loss is not a number.
    """
    samples_per_shard = shard_size(losses)

    def draw(shard: int) -> _Arrays:
        seed = np.random.SeedSequence([purpose, order, shard])
        generator = np.random.Generator(np.random.Philox(seed))
        with np.errstate(all="ignore"):
            log_factor, loss = losses.sample(order, samples_per_shard, generator)
        if not np.isfinite(log_factor).all() or np.isnan(loss).any():
            raise FloatingPointError("privacy losses leave float64")
        return select(log_factor, np.clip(loss, -MAX_LOSS, MAX_LOSS))

    num_shards = -(-size // samples_per_shard)
    thread_pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
    hides_progress = not sys.stderr.isatty()
    with progress_bar.bar(
        total=num_shards, desc="privacy losses", delay=2, disable=hides_progress
    ) as bar:
        try:
            shards = []
            for shard in thread_pool.map(draw, range(num_shards)):
                interrupts.check()
                shards.append(shard)
                bar.update()
            return shards
        finally:
            thread_pool.shutdown(cancel_futures=True)
