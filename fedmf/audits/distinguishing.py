"""Distinguishing attack on the releases of a plan, which gives an empirical lower bound on its
epsilon.

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
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fedmf import checks
from fedmf.audits.finding import Finding
from fedmf.audits.worst_case import WorstCase
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.privacy.plan import Plan

_MIN_TRIALS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distinguishing:
    """Result of a distinguishing attack, together with the values that the plan claims.

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
    measured_snr = _measure_snr(present, absent, confidence)
    decision_counts = _count_decisions(present, absent, plan.delta, confidence)
    epsilon_lower = max(0.0, float(_epsilon_bound(decision_counts, plan.delta, 1 - confidence)))
    expected_result = expected_bound(
        case.snr, decision_counts.num_present, decision_counts.num_absent, plan.delta, confidence
    )
    epsilon_finding = Finding(
        name="empirical epsilon above the claim",
        statistic=epsilon_lower,
        p_value=min(1.0, _epsilon_p_value(decision_counts, plan.delta, plan.epsilon)),
    )
    return Distinguishing(
        present=len(present),
        absent=len(absent),
        snr_claimed=1 / plan.noise_multiplier,
        snr_expected=case.snr,
        snr=measured_snr.value,
        snr_lower=measured_snr.value - measured_snr.half_width,
        snr_upper=measured_snr.value + measured_snr.half_width,
        epsilon_claimed=plan.epsilon,
        epsilon_expected=expected_result.epsilon,
        epsilon_lower=epsilon_lower,
        confidence=confidence,
        findings=(*_signal_findings(plan, case, measured_snr), epsilon_finding),
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
    """Measures the signal-to-noise ratio of an attack's trials, with an approximate confidence
    interval.
    """
    import scipy.stats

    degrees_of_freedom = len(present) + len(absent) - 2
    squared_deviations = ((present - present.mean()) ** 2).sum() + (
        (absent - absent.mean()) ** 2
    ).sum()
    mean_difference = float(present.mean() - absent.mean())
    signal_std = math.sqrt(1 / len(present) + 1 / len(absent))
    snr = mean_difference / math.sqrt(float(squared_deviations / degrees_of_freedom))
    normal_quantile = float(scipy.stats.norm.isf((1 - confidence) / 2))
    return _MeasuredSnr(
        value=snr,
        half_width=normal_quantile * math.sqrt(signal_std**2 + snr**2 / (2 * degrees_of_freedom)),
        signal=mean_difference,
        signal_std=signal_std,
        squares=squared_deviations,
        degrees=degrees_of_freedom,
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
    lower_tail = scipy.stats.chi2.cdf(snr.squares, snr.degrees)
    upper_tail = scipy.stats.chi2.sf(snr.squares, snr.degrees)
    yield Finding(
        name="variance of the likelihood-ratio statistic",
        statistic=float(snr.squares / snr.degrees),
        p_value=min(1.0, float(2 * min(lower_tail, upper_tail))),
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
    pooled_std = math.sqrt((present.var() + absent.var()) / 2)
    estimated_snr = max(0.0, float(present.mean() - absent.mean()) / pooled_std)
    expected_result = expected_bound(estimated_snr, len(present), len(absent), delta, confidence)
    return float(absent.mean()) + expected_result.threshold * pooled_std


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

    thresholds = np.linspace(-6, 8 + snr, 401)
    expected_counts = _DecisionCounts(
        num_true_positives=present * scipy.special.ndtr(snr - thresholds),
        num_present=present,
        num_false_positives=absent * scipy.special.ndtr(-thresholds),
        num_absent=absent,
    )
    epsilon_bounds = _epsilon_bound(expected_counts, delta, 1 - confidence)
    best_index = int(epsilon_bounds.argmax())
    return ExpectedBound(
        epsilon=max(0.0, float(epsilon_bounds[best_index])), threshold=float(thresholds[best_index])
    )


def _epsilon_p_value(counts: _DecisionCounts, delta: float, epsilon: float) -> float:
    """Returns the p-value of a claimed epsilon.

    It is the smallest error rate at which the lower bound exceeds the claim.
    """
    if not _epsilon_bound(counts, delta, 1.0) > epsilon:
        return 1.0
    # The search bisects the base-10 logarithm of the allowed error probability.
    low_log = -300.0
    high_log = 0.0
    for _ in range(60):
        middle_log = (low_log + high_log) / 2
        if _epsilon_bound(counts, delta, 10**middle_log) > epsilon:
            high_log = middle_log
        else:
            low_log = middle_log
    return float(10**high_log)
