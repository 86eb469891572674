"""Checks that the Gaussian noise of a plan has long enough tails. Computers draw normal numbers of
bounded size, which is a problem for very small deltas.

fedmf has two sources of normal numbers. The one on the host draws for `fedmf.train`,
`fedmf.Server`, Flower and noise_strategy="precomputed". The one inside TensorFlow graphs draws for
all other aggregators of a TFF pipeline.

TensorFlow's own normal numbers come from uniform numbers of 23 bits, and are never larger than 5.68
standard deviations. With that largest value and one participation at epsilon 8, releases that prove
that a client is there happen 17 times as often as delta 1e-6 allows.
"""

import math
from typing import Protocol

import numpy as np

from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.leading import column_norm
from fedmf.mechanisms.sensitivity import Sensitivity
from fedmf.participation.schema import Participation
from fedmf.privacy.gaussian import has_infinite_epsilon
from fedmf.privacy.sampling.base import Sampling
from fedmf.privacy.sampling.encoder_checks import proven_bands
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
    a = 1 / z
    is_far_away = a < end and math.exp(-((end - a) ** 2) / 2) <= delta / 10
    if entries is None and is_far_away:
        # Q_1(a, end) is Marcum's function, the probability that is to be bounded. It is at most
        # exp(-(end - a)^2 / 2). Where this bound is small enough, Q_1 need not be integrated.
        return
    reveal_probability = _reveal_probability(plan, end, entries)
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


def _reveal_probability(plan: NoisyPlan, end: float, entries: int | None) -> float:
    """Returns an upper bound on the probability that a release is outside the range of the noise
    without the client. Without `entries`, shifts that are spread over many draws are left out.

    Let the client's shift have length a_p in pair p, in standard deviations. The probability in one
    pair is at most f(a_p), with f(a) <= Q_1(a, end), Marcum's function, and
    f(a) <= end a exp(-(end - a)^2 / 2) / pi, the largest density times the area between two discs.
    All a_p^2 together are at most a^2 for a = 1 / noise_multiplier, and each a_p is at most c (see
    `_largest_pair_shift`). As a function of a^2, f is concave and then convex, so that the sum over
    P pairs is at most that of shifts of length c in a^2 / c^2 pairs, rounded up, and of a shift
    that is spread over all: ceil(a^2 / c^2) f(c) + P f(min(c, a / sqrt(P))).
    """
    total_shift = 1 / plan.noise_multiplier
    pair_shift = _largest_pair_shift(plan)
    if pair_shift >= end:
        return 1.0
    num_shifted_pairs = math.ceil((total_shift / pair_shift) ** 2)
    probability = num_shifted_pairs * _marcum(pair_shift, end)
    if entries is not None:
        # A pair may have one draw whose other one is not needed.
        num_pairs = max(1, entries)
        mean_shift = min(pair_shift, total_shift / math.sqrt(num_pairs))
        crescent_probability = end * mean_shift * math.exp(-((end - mean_shift) ** 2) / 2) / math.pi
        probability += num_pairs * min(_marcum(mean_shift, end), crescent_probability)
    return probability


def _largest_pair_shift(plan: NoisyPlan) -> float:
    """Returns an upper bound on the length of a client's shift in one pair of draws, in standard
    deviations.

    It is at most the length of the whole shift, 1 / noise_multiplier. A smaller bound is computed
    for client sampling alone, where noise that protects may be that small. A row of the encoder
    with b bands meets ceil(b / min_sep) rounds of one client, each of which shifts the row by at
    most the largest column norm. The two draws of a pair are in at most two rows.
    """
    total_shift = 1 / plan.noise_multiplier
    if plan.sampling is None:
        return total_shift
    min_sep = plan.participation.min_sep or 1
    rounds_in_row = math.ceil(proven_bands(plan.mechanism) / min_sep)
    row_share = rounds_in_row * column_norm(plan.mechanism) / plan.sensitivity.value
    return total_shift * min(1.0, math.sqrt(2) * row_share)


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
