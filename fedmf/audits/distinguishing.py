"""Distinguishing attack on the releases of a plan: an empirical lower bound on its epsilon.

The attack decides from the releases whether one client took part, in the worst rounds that the plan
allows. The client contributes u_t * clip_norm * e in round t, with u_t in {-1, 0, 1} and a unit
vector e, or nothing. The releases along e are then y = clip_norm * u + N z if the client is present
and N z if it is absent, where N is the noise matrix, C the encoder, and z has normal entries. The
likelihood ratio depends on y only through

    s = <v, L^-1 y> / stddev,   v = L^-1 u / |L^-1 u|       Normal(snr, 1) or, absent, Normal(0, 1)
    snr = clip_norm |L^-1 u| / stddev <= 1 / noise_multiplier,   as |L^-1 u| <= |C u| <= sensitivity

(L L^T = N N^T; any N with N C = I reveals at most what N = pinv(C) does, where |L^-1 u| = |C u|).
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fedmf import checks
from fedmf.audits.finding import Finding
from fedmf.audits.noise import causal_factor
from fedmf.mechanisms.budget import block_sums, pair_costs
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.participation.schema import Budgeted, Participation
from fedmf.privacy.plan import Plan, cohort_scale

# All sets of a client's rounds ("patterns") are tried if there are at most this many.
MAX_PATTERNS = 5_000
# If a pattern has at most this many rounds, all signs of the contributions to them are tried.
_MAX_ROUNDS_FOR_ALL_SIGNS = 8
# If a pattern has at most this many rounds, the search also moves them one at a time.
MAX_MOVED_ROUNDS = 64
_MAX_SWEEPS = 20
# Relative difference below which two values count as equal.
_RELATIVE_TIE = 1e-9
_MIN_TRIALS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorstCase:
    """Contributions of one client to the rounds, and the statistic that detects them best.

    Attributes:
      contributions: u, float64 (n,), entries -1, 0, 1.
      projection: g, float64 (n,); s = sum_t g_t * (released row t along e, in units of stddev).
      snr: mean of s under the claim if the client is present.
    """

    contributions: np.ndarray
    projection: np.ndarray
    snr: float


def worst_case(plan: Plan, *, rounds: tuple[int, ...] | None = None) -> WorstCase:
    """Searches for the rounds and signs of a client's contributions that releases reveal best.

    All patterns of rounds are tried if they are few. Otherwise the search tries windows of rounds
    min_sep apart, and then moves single rounds of the best window: a lower bound on the worst case.
    Of patterns that differ by rounding alone it takes the first.

    Args:
      plan: with noise, and not a simulation of a larger cohort, whose guarantee is not that of the
        run.
      rounds: the client's rounds in place of the worst ones; they may be more than the plan allows.

    Raises:
      ValueError: the plan has no noise, or simulates, or has too many rounds for memory.
    """
    import scipy.linalg

    if plan.noise_multiplier == 0 or cohort_scale(plan) != 1:
        raise ValueError(
            f"noise_multiplier={plan.noise_multiplier} and simulation={plan.simulation}: a plan "
            "without noise, or that simulates a larger cohort, guarantees nothing of what runs"
        )
    n = plan.mechanism.rounds
    # Memory for L, its inverse E, X = E^T E, and one matrix of intermediate results.
    hint = "take a plan of the same family with fewer rounds"
    checks.fits_in_memory("the search of all rounds", (n, n), copies=4, hint=hint)
    L = causal_factor(plan.mechanism.noising())
    E = scipy.linalg.solve_triangular(L, np.eye(len(L)), lower=True, check_finite=False)
    X = E.T @ E
    if rounds is not None:
        u = _with_signs(X, rounds)
    elif isinstance(plan.participation, Budgeted):
        u = _worst_of(X, evenly_spaced(pair_costs(plan.mechanism), plan.participation))
    else:
        u = worst_contributions(X, plan.participation)
    white_contributions = E @ u
    white_norm = float(np.linalg.norm(white_contributions))
    return WorstCase(
        contributions=u,
        projection=E.T @ white_contributions / white_norm,
        snr=white_norm / (plan.sensitivity.value * plan.noise_multiplier),
    )


def _first_largest(values: Iterable[float]) -> int:
    """Returns the index of the first value that equals the largest value up to rounding.

    The result is then the same on all processors.
    """
    array = np.fromiter(values, np.float64)
    largest_value = array.max()
    return int(np.flatnonzero(array >= largest_value - _RELATIVE_TIE * abs(largest_value))[0])


def worst_contributions(X: np.ndarray, participation: Participation) -> np.ndarray:
    """Searches for the contributions of a client to the rounds that releases reveal best.

    These are the contributions u with the largest u^T X u. X is (N N^T)^-1 for the noise matrix N,
    so that u^T X u is the squared signal-to-noise ratio of the client up to a factor. The search is
    the one of `worst_case`.

    The entries of u are -1, 0 and 1, and not 0 only in rounds that the participation allows.
    """
    patterns = list(itertools.islice(participation.patterns(), MAX_PATTERNS + 1))
    if len(patterns) > MAX_PATTERNS:
        n = participation.rounds
        b = participation.min_sep
        k = participation.max_participations
        patterns = [tuple(range(start, min(n, start + (k - 1) * b + 1), b)) for start in range(n)]
        full_length = min(k, len(patterns[0]))
        patterns = [pattern for pattern in patterns if len(pattern) == full_length] or patterns
    contributions = _worst_of(X, patterns)
    num_rounds = participation.max_participations
    if participation.has_movable_rounds and 1 < num_rounds <= MAX_MOVED_ROUNDS:
        contributions = _move_rounds(X, contributions, participation.min_sep)
    return contributions


def _worst_of(X: np.ndarray, patterns: Sequence[Sequence[int]]) -> np.ndarray:
    """Returns the client contributions that releases reveal best, over several patterns of rounds.

    A pattern is a set of rounds. The contributions u have the largest u^T X u.
    """
    candidates = [_with_signs(X, pattern) for pattern in patterns]
    return candidates[_first_largest(_energy(X, u) for u in candidates)]


def evenly_spaced(costs: np.ndarray, budget: Budgeted) -> list[list[int]]:
    """Returns patterns of equally spaced rounds within a participation budget, for every gap.

    The rounds are 0, gap, 2 gap, ... until the budget is spent. The budget allows other patterns
    as well.
    """
    spaced_choices = (np.arange(0, len(costs), gap) for gap in range(1, len(costs) + 1))
    return [rounds[budget.affords(block_sums(costs, rounds))].tolist() for rounds in spaced_choices]


def _energy(X: np.ndarray, u: np.ndarray) -> float:
    """Returns u^T X u, the squared signal-to-noise ratio of contributions u up to a factor."""
    support = np.flatnonzero(u)
    return float(u[support] @ X[np.ix_(support, support)] @ u[support])


def _with_signs(X: np.ndarray, pattern: Iterable[int]) -> np.ndarray:
    """Returns client contributions in given rounds, with the signs that releases reveal best.

    The signs are chosen to make u^T X u large for the contributions u. They are optimal for few
    rounds. For more rounds, signs are flipped one at a time while that increases the value.
    """
    support = np.array(sorted(pattern))
    gram = X[np.ix_(support, support)]
    has_negative = (gram < 0).any()
    signs = np.ones(len(support))
    if has_negative and len(support) <= _MAX_ROUNDS_FOR_ALL_SIGNS:
        later_signs = itertools.product((1.0, -1.0), repeat=len(support) - 1)
        sign_choices = np.array([(1.0, *choice) for choice in later_signs])
        energies = ((sign_choices @ gram) * sign_choices).sum(axis=1)
        signs = sign_choices[_first_largest(energies)]
    elif has_negative:
        for _ in range(len(support)):
            # For signs s, flipping s_i changes s^T X s by -4 s_i (sum over j != i of X_ij s_j).
            flip_gain = -signs * (gram @ signs - np.diagonal(gram) * signs)
            if flip_gain.max() <= _RELATIVE_TIE * gram.max():
                break
            signs[_first_largest(flip_gain)] *= -1
    u = np.zeros(len(X))
    u[support] = signs
    return u


def _move_rounds(X: np.ndarray, u: np.ndarray, min_sep: int) -> np.ndarray:
    """Moves a client's rounds one by one, while that makes the client easier to detect.

    A move is made if it increases u^T X u for the contributions u.
    """
    all_rounds = np.arange(len(u))
    for _ in range(_MAX_SWEEPS):
        previous_energy = _energy(X, u)
        for t in np.flatnonzero(u):
            remaining_direction = u.copy()
            remaining_direction[t] = 0.0
            fixed_rounds = np.flatnonzero(remaining_direction)
            distances = np.abs(np.subtract.outer(all_rounds, fixed_rounds))
            is_too_near = (distances < min_sep).any(axis=1)
            overlap = X[:, fixed_rounds] @ remaining_direction[fixed_rounds]
            gain = np.diagonal(X) + 2 * np.abs(overlap)
            new_round = _first_largest(np.where(is_too_near, -np.inf, gain))
            remaining_direction[new_round] = -1.0
            if overlap[new_round] >= -_RELATIVE_TIE * X[new_round, new_round]:
                remaining_direction[new_round] = 1.0
            u = remaining_direction
        if _energy(X, u) <= previous_energy * (1 + _RELATIVE_TIE):
            break
    return u


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distinguishing:
    """Result of a distinguishing attack, beside the values that the plan claims.

    Attributes:
      present, absent: numbers of trials with and without the client.
      snr_claimed: 1 / noise_multiplier, the largest signal-to-noise ratio under the claim.
      snr_expected: that of the client's rounds under the claim.
      snr, snr_lower, snr_upper: the measured ratio, in units of the actual noise, and its two-sided
        confidence interval, to first order.
      epsilon_claimed: of the plan, at its delta.
      epsilon_expected: lower bound on epsilon that this number of trials proves on average if the
        claim holds.
      epsilon_lower: lower bound on epsilon that the trials prove, for noise of any distribution:
        from Clopper-Pearson intervals of the attack's error rates, at a threshold that one half of
        the trials selects and the other half evaluates.
      confidence: of the interval and of the bound.
      findings: tests of the claim.
    """

    present: int
    absent: int
    snr_claimed: float
    snr_expected: float
    snr: float
    snr_lower: float
    snr_upper: float
    epsilon_claimed: float
    epsilon_expected: float
    epsilon_lower: float
    confidence: float
    findings: tuple[Finding, ...]


@with_numpy_defaults
def audit_distinguishing(
    plan: Plan,
    case: WorstCase,
    present: np.ndarray,
    absent: np.ndarray,
    *,
    confidence: float = 0.95,
) -> Distinguishing:
    """Tests the claim of a plan, and bounds its epsilon from below, by trials of an attack.

    Args:
      plan: the claim.
      case: the rounds of the client in the trials.
      present, absent: the statistic s of independent trials with and without the client, float64
        (trials,), at least 4 each, in random order.
      confidence: of the interval and the bound, in (0, 1).

    Raises:
      TypeError, ValueError: an argument of the wrong type, shape or range.
    """
    present = checks.finite_array("present", present, ndim=1)
    absent = checks.finite_array("absent", absent, ndim=1)
    for name, trials in (("present", present), ("absent", absent)):
        if len(trials) < _MIN_TRIALS:
            raise ValueError(
                f"{name} has {len(trials)} trials: run at least {_MIN_TRIALS} of each kind"
            )
    checks.positive("confidence", confidence, "use a number such as 0.95", below=1)
    snr = _measure_snr(present, absent, confidence)
    counts = _count_decisions(present, absent, plan.delta, confidence)
    epsilon_lower = max(0.0, float(_epsilon_bound(counts, plan.delta, 1 - confidence)))
    expected = expected_bound(
        case.snr, counts.num_present, counts.num_absent, plan.delta, confidence
    )
    epsilon_finding = Finding(
        name="empirical epsilon above the claim",
        statistic=epsilon_lower,
        p_value=min(1.0, _epsilon_p_value(counts, plan.delta, plan.epsilon)),
    )
    return Distinguishing(
        present=len(present),
        absent=len(absent),
        snr_claimed=1 / plan.noise_multiplier,
        snr_expected=case.snr,
        snr=snr.value,
        snr_lower=snr.value - snr.half_width,
        snr_upper=snr.value + snr.half_width,
        epsilon_claimed=plan.epsilon,
        epsilon_expected=expected.epsilon,
        epsilon_lower=epsilon_lower,
        confidence=confidence,
        findings=(*_signal_findings(plan, case, snr), epsilon_finding),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _MeasuredSnr:
    """Signal-to-noise ratio of the attack's statistic s, as measured in the trials.

    Attributes:
      value: the signal divided by the standard deviation.
      half_width: of its confidence interval.
      signal: difference of the means with and without the client.
      signal_std: standard deviation of the signal if s has variance 1.
      squares: sum of squares about the two means.
      degrees: degrees of freedom of `squares`.
    """

    value: float
    half_width: float
    signal: float
    signal_std: float
    squares: float
    degrees: int


def _measure_snr(present: np.ndarray, absent: np.ndarray, confidence: float) -> _MeasuredSnr:
    """Measures the signal-to-noise ratio of the trials, with an approximate confidence interval."""
    import scipy.stats

    degrees = len(present) + len(absent) - 2
    squares = ((present - present.mean()) ** 2).sum() + ((absent - absent.mean()) ** 2).sum()
    signal = float(present.mean() - absent.mean())
    signal_std = math.sqrt(1 / len(present) + 1 / len(absent))
    snr = signal / math.sqrt(float(squares / degrees))
    quantile = float(scipy.stats.norm.isf((1 - confidence) / 2))
    return _MeasuredSnr(
        value=snr,
        half_width=quantile * math.sqrt(signal_std**2 + snr**2 / (2 * degrees)),
        signal=signal,
        signal_std=signal_std,
        squares=squares,
        degrees=degrees,
    )


def _signal_findings(plan: Plan, case: WorstCase, snr: _MeasuredSnr) -> Iterator[Finding]:
    """Yields tests of the signal and the variance of the attack's statistic s.

    Under the claim s has variance 1, which has a test of its own: the difference of the means is
    then exactly normal.
    """
    import scipy.stats

    claimed_snr = 1 / plan.noise_multiplier
    above_claim = float(scipy.stats.norm.sf((snr.signal - claimed_snr) / snr.signal_std))
    yield Finding(
        name="signal above the claim, 1 / noise_multiplier",
        statistic=snr.signal,
        p_value=min(1.0, above_claim),
    )
    above_expected = float(scipy.stats.norm.sf((snr.signal - case.snr) / snr.signal_std))
    yield Finding(
        name="signal other than expected of these rounds",
        statistic=snr.signal,
        p_value=min(1.0, 2 * min(above_expected, 1 - above_expected)),
    )
    smaller = scipy.stats.chi2.cdf(snr.squares, snr.degrees)
    larger = scipy.stats.chi2.sf(snr.squares, snr.degrees)
    yield Finding(
        name="variance of the likelihood-ratio statistic",
        statistic=float(snr.squares / snr.degrees),
        p_value=min(1.0, float(2 * min(smaller, larger))),
    )


class _DecisionCounts(NamedTuple):
    """Counts of the attack's decisions, as numbers or, for several thresholds, as arrays.

    Attributes:
      num_true_positives: trials with the client in which the attack decides "present".
      num_present: trials with the client.
      num_false_positives: trials without the client in which it decides "present".
      num_absent: trials without the client.
    """

    num_true_positives: float | np.ndarray
    num_present: int
    num_false_positives: float | np.ndarray
    num_absent: int


def _count_decisions(
    present: np.ndarray, absent: np.ndarray, delta: float, confidence: float
) -> _DecisionCounts:
    """Selects a threshold from the first half of the trials, and applies it to the second half."""
    present_for_threshold, present_trials = np.split(present, [len(present) // 2])
    absent_for_threshold, absent_trials = np.split(absent, [len(absent) // 2])
    threshold = _select_threshold(present_for_threshold, absent_for_threshold, delta, confidence)
    return _DecisionCounts(
        num_true_positives=int((present_trials > threshold).sum()),
        num_present=len(present_trials),
        num_false_positives=int((absent_trials > threshold).sum()),
        num_absent=len(absent_trials),
    )


def _epsilon_bound(counts: _DecisionCounts, delta: float, error: float) -> np.ndarray:
    """Returns the lower bound on epsilon that the attack's decisions prove.

    It is log((TPR - delta) / FPR), for the true-positive and false-positive rates TPR and FPR.

    (epsilon, delta)-DP implies TPR <= exp(epsilon) * FPR + delta for every attack. Both rates are
    the ends of Clopper-Pearson intervals, each with error / 2.
    """
    import scipy.special

    true_positives = np.asarray(counts.num_true_positives, np.float64)
    false_positives = np.asarray(counts.num_false_positives, np.float64)
    lowest_tpr = np.where(
        true_positives > 0,
        scipy.special.betaincinv(
            np.maximum(true_positives, 1e-300), counts.num_present - true_positives + 1, error / 2
        ),
        0.0,
    )
    true_negatives = np.maximum(counts.num_absent - false_positives, 1e-300)
    highest_fpr = np.where(
        false_positives < counts.num_absent,
        1 - scipy.special.betaincinv(true_negatives, false_positives + 1, error / 2),
        1.0,
    )
    return np.log(np.maximum(lowest_tpr - delta, 1e-300) / highest_fpr)


def _select_threshold(
    present: np.ndarray, absent: np.ndarray, delta: float, confidence: float
) -> float:
    """Returns a threshold on the statistic above which the attack decides "present".

    It maximises the bound that is expected for normal statistics with the means and the variance of
    these trials. That is far less random than the threshold with the largest observed bound. The
    bound from the other trials is valid for any threshold.
    """
    std = math.sqrt((present.var() + absent.var()) / 2)
    snr = max(0.0, float(present.mean() - absent.mean()) / std)
    expected = expected_bound(snr, len(present), len(absent), delta, confidence)
    return float(absent.mean()) + expected.threshold * std


class ExpectedBound(NamedTuple):
    """Lower bound on epsilon that trials prove if all counts equal their expectations.

    Attributes:
      epsilon: the bound.
      threshold: the threshold on s that maximises it.
    """

    epsilon: float
    threshold: float


def expected_bound(
    snr: float, present: int, absent: int, delta: float, confidence: float
) -> ExpectedBound:
    """Returns the lower bound on epsilon that trials prove on average, at the best threshold.

    All counts are replaced by their expectations. At threshold s the true-positive rate is Phi(snr
    - s), and the false-positive rate Phi(-s).

    >>> round(expected_bound(1.0, 10_000, 10_000, 1e-6, 0.95).epsilon, 2)
    2.17
    """
    import scipy.special

    s = np.linspace(-6, 8 + snr, 401)
    counts = _DecisionCounts(
        num_true_positives=present * scipy.special.ndtr(snr - s),
        num_present=present,
        num_false_positives=absent * scipy.special.ndtr(-s),
        num_absent=absent,
    )
    bounds = _epsilon_bound(counts, delta, 1 - confidence)
    best_index = int(bounds.argmax())
    return ExpectedBound(
        epsilon=max(0.0, float(bounds[best_index])), threshold=float(s[best_index])
    )


def _epsilon_p_value(counts: _DecisionCounts, delta: float, epsilon: float) -> float:
    """Returns the p-value of a claimed epsilon.

    It is the smallest error rate at which the lower bound exceeds the claim.
    """
    if not _epsilon_bound(counts, delta, 1.0) > epsilon:
        return 1.0
    # The search bisects the logarithm (base 10) of the allowed error probability.
    low_log = -300.0
    high_log = 0.0
    for _ in range(60):
        middle_log = (low_log + high_log) / 2
        if _epsilon_bound(counts, delta, 10**middle_log) > epsilon:
            high_log = middle_log
        else:
            low_log = middle_log
    return float(10**high_log)
