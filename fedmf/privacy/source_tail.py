"""Checks that the Gaussian noise of a plan has long enough tails. Computers draw normal numbers of
bounded size, which is a problem for very small deltas.

fedmf has two sources of normal numbers. The one on the host draws for `fedmf.train`,
`fedmf.Server`, Flower and noise_strategy="precomputed". The one inside TensorFlow graphs draws for
all other aggregators of a TFF pipeline.

TensorFlow's own normal numbers come from uniform numbers of 23 bits, and are never larger than 5.68
standard deviations. With that largest value and one participation at epsilon 8, releases that prove
that a client is there happen 17 times as often as delta 1e-6 allows.
"""

import dataclasses
import math
from typing import Protocol

import numpy as np

from fedmf import checks
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.sensitivity import Sensitivity
from fedmf.participation.schema import Participation
from fedmf.privacy.gaussian import has_infinite_epsilon
from fedmf.privacy.sampling.base import Sampling
from fedmf.privacy.selection_bounds import trial_delta
from fedmf.privacy.trial_count import TrialCount


class NoisyPlan(Protocol):
    """The attributes of a plan that determine how long the tails of its noise must be."""

    @property
    def mechanism(self) -> Mechanism: ...  # noqa: D102
    @property
    def participation(self) -> Participation: ...  # noqa: D102
    @property
    def noise_multiplier(self) -> float: ...  # noqa: D102
    @property
    def delta(self) -> float: ...  # noqa: D102
    @property
    def sampling(self) -> Sampling | None: ...  # noqa: D102
    @property
    def selection(self) -> TrialCount | None: ...  # noqa: D102
    @property
    def sensitivity(self) -> Sensitivity: ...  # noqa: D102


# Normal numbers are drawn in pairs, from a uniform number and an angle. The smallest possible
# uniform number gives the largest radius of a pair, in standard deviations: HOST_END on the host,
# where the uniform number has 104 bits, and GRAPH_END in TensorFlow graphs, where it has 64 bits.
HOST_END = (2 * 105 * math.log(2)) ** 0.5
GRAPH_END = (2 * 65 * math.log(2)) ** 0.5


def check_tail(
    plan: NoisyPlan,
    end: float,
    *,
    entries: int | None = None,
    delta: float | None = None,
) -> None:
    """Raises ValueError if delta is so small that the bounded size of the draws weakens the
    guarantee.

    No pair of draws has a radius above `end`, so a release outside the range of the noise without
    the client proves that the client is there.

    A plan without client sampling whose epsilon is infinite is not checked.

    Args:
      plan: the plan of the run.
      end: the largest radius of a pair of draws, in standard deviations.
      entries: number of draws in the run; None for a model of unknown size, for which shifts that
        are spread over many draws are left out.
      delta: the delta of the guarantee, if it is not the plan's.

    Raises:
      ValueError: the bound on the probability that the noise reveals a client is above a tenth of
        delta.
    """
    z = plan.noise_multiplier
    if z == 0 or (plan.sampling is None and has_infinite_epsilon(z)):
        return
    if delta is None:
        delta = plan.delta
    shift = _Shift(plan=plan, sensitivity=plan.sensitivity.value)
    reveal_probability = _reveal_probability(shift, end, delta / 10, entries)
    if reveal_probability <= delta / 10:
        return
    way_out = "use a larger delta or more noise"
    if end < HOST_END:
        way_out += (
            ', and in a TFF pipeline noise_strategy="precomputed", whose draws have a larger range'
        )
    raise ValueError(
        f"delta={delta:g} is too small for draws of at most {end:.2f} standard deviations: "
        f"they reveal a client with probability {reveal_probability:.1g} at "
        f"noise_multiplier={z:g}, above a tenth of delta; {way_out}"
    )


def check_noise_tail(plan: NoisyPlan) -> None:
    """Raises ValueError if the bounded size of normal draws on the host weakens the guarantee of a
    plan, which may be that of a private selection.
    """
    if plan.selection is None:
        check_tail(plan, HOST_END)
    else:
        check_trial_tail(plan, plan.selection, plan.delta)


def check_trial_tail(plan: NoisyPlan, trials: TrialCount, delta: float) -> None:
    """Raises ValueError if the bounded size of normal draws weakens the guarantee of a private
    selection at a delta.

    A score may prefer trials whose noise reveals a client. So the probability of such noise in one
    trial is multiplied by the mean number of trials.

    Args:
      plan: plan of each trial.
      trials: distribution of the number of trials.
      delta: the selection's delta.
    """
    delta_of_trial = trial_delta(delta, trials)
    # A selection among trials of infinite epsilon guarantees nothing.
    if not has_infinite_epsilon(plan.noise_multiplier):
        check_tail(plan, HOST_END, delta=delta_of_trial)


def check_tail_of_runs(noise_multiplier: float, num_runs: int, delta: float) -> None:
    """Raises ValueError if the bounded size of normal draws on the host weakens the guarantee that
    runs without client sampling have together.

    Args:
      noise_multiplier: noise multiplier of each run.
      num_runs: number of runs.
      delta: delta of all runs together.
    """
    run_shift = 1 / noise_multiplier
    total_shift = math.sqrt(num_runs) * run_shift
    if _bound_of_pairs(total_shift, run_shift, HOST_END, None) > delta / 10:
        raise ValueError(
            f"noise_multiplier={noise_multiplier:.3g} is too small for {num_runs} runs at "
            f"delta={delta:g}: the bounded size of the noise could reveal a client; use a smaller "
            "total epsilon"
        )


def is_revealed(
    plan: NoisyPlan,
    *,
    devices: int = 1,
    end: float = HOST_END,
    observed_sensitivity: float | None = None,
) -> bool:
    """Returns whether the bounded size of the draws weakens the guarantee, at the plan's delta, of
    a user with several devices, or of clients that were observed.

    Args:
      plan: the plan of the run.
      devices: number of clients that belong to the user.
      end: the largest radius of a pair of draws, in standard deviations.
      observed_sensitivity: sensitivity of the run to clients that may have broken the plan; None
        for clients that comply with it.
    """
    if plan.noise_multiplier == 0:
        return True
    delta = plan.delta
    if plan.selection is not None:
        delta = trial_delta(delta, plan.selection)
    complies = observed_sensitivity is None
    sensitivity = plan.sensitivity.value if observed_sensitivity is None else observed_sensitivity
    shift = _Shift(plan=plan, sensitivity=sensitivity, devices=devices, complies=complies)
    return _reveal_probability(shift, end, delta / 10, None) > delta / 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Shift:
    """The shift of a run's draws that the updates of some clients cause.

    Attributes:
      plan: the plan of the run.
      sensitivity: sensitivity of the run to each of the clients.
      devices: number of clients.
      complies: whether the clients comply with the plan's participation.
    """

    plan: NoisyPlan
    sensitivity: float
    devices: int = 1
    complies: bool = True

    @property
    def length(self) -> float:
        """The largest length of the shift of all draws together, in standard deviations."""
        relative_sensitivity = self.sensitivity / self.plan.sensitivity.value
        return self.devices * relative_sensitivity / self.plan.noise_multiplier

    def row_length(self) -> float:
        """Computes an upper bound on the length of the shift of one row of draws.

        The draws of a square, lower-triangular encoder C have a row for each row of C. A client
        shifts row i by the sum of C_it x_t over its rounds t, where x_t is its update. So the shift
        is at most the sum of |C_it|, in which any min_sep consecutive rounds have one term at most.
        """
        participation = self.plan.participation
        min_sep, max_rounds = 1, participation.rounds
        if self.complies:
            min_sep, max_rounds = participation.min_sep, participation.max_participations
        rows = _triangular_rows(self.plan.mechanism)
        if rows is None:
            return self.length
        num_blocks = -(-rows.shape[1] // min_sep)
        magnitudes = np.zeros((len(rows), num_blocks * min_sep))
        magnitudes[:, : rows.shape[1]] = np.abs(rows)
        block_maxima = magnitudes.reshape(len(rows), num_blocks, min_sep).max(axis=2)
        largest_maxima = np.sort(block_maxima, axis=1)[:, -max_rounds:]
        unit_noise = self.plan.noise_multiplier * self.plan.sensitivity.value
        return self.devices * float(largest_maxima.sum(axis=1).max()) / unit_noise


def _triangular_rows(mechanism: Mechanism) -> np.ndarray | None:
    """Returns rows of numbers that contain all rows of the encoder, with consecutive rounds in
    consecutive columns; None if the encoder is too large, or not square and lower-triangular.
    """
    toeplitz_column = mechanism.toeplitz_coefficients()
    if toeplitz_column is not None:
        return toeplitz_column[None]
    banded_rows = mechanism.banded_rows()
    if banded_rows is not None:
        return banded_rows
    trees = mechanism.binary_trees()
    if trees is not None and trees.num_nodes > trees.rounds:
        return None
    try:
        C = mechanism.encoder()
    except checks.TooLargeForMemory:
        return None
    is_triangular = C.shape[0] == C.shape[1] and not np.triu(C, 1).any()
    return C if is_triangular else None


def _reveal_probability(shift: _Shift, end: float, enough: float, entries: int | None) -> float:
    """Returns an upper bound on the probability that a release is outside the range of the noise
    without the clients. It is the smaller one of two bounds, of which the second one is computed
    only if the first one is above `enough`.

    Args:
      shift: shift of the draws that the clients cause.
      end: the largest radius of a pair of draws, in standard deviations.
      enough: a probability.
      entries: as of `check_tail`.
    """
    a = shift.length
    if entries is None and a < end:
        # Q_1(a, end) is Marcum's function, the probability that is to be bounded. It is at most
        # exp(-(end - a)^2 / 2). Where this bound is small enough, Q_1 need not be integrated.
        simple_bound = math.exp(-((end - a) ** 2) / 2)
        if simple_bound <= enough:
            return simple_bound
    probability = _bound_of_pairs(a, a, end, entries)
    if probability <= enough:
        return probability
    # Both draws of a pair are in one row of draws.
    pair_shift = min(a, shift.row_length())
    return min(probability, _bound_of_pairs(a, pair_shift, end, entries))


def _bound_of_pairs(a: float, c: float, end: float, entries: int | None) -> float:
    """Returns an upper bound on the probability that any pair of draws is outside its range.
    Without `entries`, shifts that are spread over many draws are left out.

    Let the shift have length a_p in pair p, in standard deviations. The probability in one pair is
    at most f(a_p), with f(a) <= Q_1(a, end), Marcum's function, and f(a) <= end a
    exp(-(end - a)^2 / 2) / pi, the largest density times the area between two discs. All a_p^2
    together are at most a^2, and each a_p is at most c. As a function of a^2, f is concave and then
    convex, so that the sum over P pairs is at most that of shifts of length c in a^2 / c^2 pairs,
    rounded up, and of a shift that is spread over all: ceil(a^2 / c^2) f(c) + P f(min(c, a /
    sqrt(P))).

    Args:
      a: length of the shift of all draws together.
      c: largest length of the shift of one pair.
      end, entries: as of `check_tail`.
    """
    if c >= end:
        return 1.0
    # The quotient may be above an integer by rounding.
    num_shifted_pairs = math.ceil((a / c) ** 2 * (1 - 1e-12))
    probability = num_shifted_pairs * _marcum(c, end)
    if entries is not None:
        # A pair may have one draw whose other one is not needed.
        num_pairs = max(1, entries)
        mean_shift = min(c, a / math.sqrt(num_pairs))
        crescent_probability = end * mean_shift * math.exp(-((end - mean_shift) ** 2) / 2) / math.pi
        probability += num_pairs * min(_marcum(mean_shift, end), crescent_probability)
    return probability


def _marcum(a: float, b: float) -> float:
    """Computes Marcum's function Q_1(a, b), that is the probability that a pair of normal numbers,
    whose mean has distance a from 0, has a distance of more than b from 0.
    """
    # These imports take a tenth of a second, for which `fedmf --help` should not wait.
    import scipy.integrate
    import scipy.special

    def density(r: float) -> float:
        return float(r * math.exp(-((r - a) ** 2) / 2) * scipy.special.ive(0, a * r))

    upper_limit = max(a, b) + 40
    # The density of the radius underflows to 0 at large radii.
    with np.errstate(under="ignore"):
        probability, _ = scipy.integrate.quad(
            density, b, upper_limit, points=[b + 1], epsabs=0, epsrel=1e-6
        )
    return float(probability)


def tail_remark(plan: NoisyPlan) -> str | None:
    """Returns a warning for the privacy statement if delta is too small for noise that is drawn
    inside TensorFlow graphs; None for other plans.

    >>> import fedmf
    >>> once = fedmf.Participation(rounds=4, schema="single")
    >>> identity = fedmf.fit(fedmf.prefix_sum(4), once, family="identity")
    >>> plans = [
    ...     fedmf.calibrate(identity, once, epsilon=epsilon, delta=1e-6) for epsilon in (8.0, 30.0)
    ... ]
    >>> [tail_remark(plan) is None for plan in plans]
    [True, False]
    """
    try:
        check_tail(plan, GRAPH_END)
    except ValueError:
        return (
            f"Noise drawn inside a TensorFlow graph ends at {GRAPH_END:.2f} standard deviations, "
            f"too near for noise multiplier {plan.noise_multiplier:.3g} at delta {plan.delta:g}: "
            'in a TFF pipeline use noise_strategy="precomputed", elsewhere fedmf.Server'
        )
    return None
