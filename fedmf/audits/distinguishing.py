"""How well released rows tell whether one client took part: the worst case played many times,
against what a plan claims.

A client contributes u_t * clip_norm * e in round t, u_t in {-1, 0, 1}, e a unit vector, or nothing
at all. What is released along e is then y = clip_norm * u + N z (present) or N z (absent). The
likelihood ratio depends on y only through

    s = <v, L^-1 y> / stddev,   v = L^-1 u / |L^-1 u|       Normal(snr, 1) or, absent, Normal(0, 1)
    snr = clip_norm |L^-1 u| / stddev <= 1 / noise_multiplier,   as |L^-1 u| <= |C u| <= sensitivity

(L L^T = N N^T; any N with N C = I reveals at most what N = pinv(C) does, where |L^-1 u| = |C u|).
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedmf import checks
from fedmf.audits.finding import Finding
from fedmf.audits.noise import causal_factor
from fedmf.mechanisms.budget import block_sums, pair_costs
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.participation.schema import Budgeted, Participation
from fedmf.privacy.plan import Plan, cohort_scale

# Patterns of rounds that are all tried; beyond, windows and then better rounds one at a time.
MAX_PATTERNS = 5_000
# Signs of so many rounds are all tried.
_FEW_ROUNDS = 8
MAX_MOVED_ROUNDS, _SWEEPS = 64, 20
# Relative difference of values that are equal but for rounding.
_TIE = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorstCase:
    """The neighbouring streams that one client's presence makes, and how to tell them apart.

    Attributes:
      contributions: u, float64 (n,), entries -1, 0, 1.
      projection: g, float64 (n,); s = sum_t g_t * (row t of what is released, in units of stddev).
      snr: mean of s if present, under the claim.
    """

    contributions: np.ndarray
    projection: np.ndarray
    snr: float


def worst_case(plan: Plan, *, rounds: tuple[int, ...] | None = None) -> WorstCase:
    """The pattern of rounds and signs that the released rows tell best,
    as far as a search finds it.

    All patterns are tried where they are few. Otherwise the windows of rounds min_sep apart, and
    from the best of them better rounds one at a time: a lower bound on the worst. Of patterns that
    differ by rounding alone the first one is taken.

    Args:
      plan: with noise, not a simulation of a larger cohort (its guarantee is not
        that of what runs).
      rounds: the client's rounds in place of the worst ones, also more than the plan allows.

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
    # L, its inverse E, X, and what is multiplied to make them.
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
    v = E @ u
    norm = float(np.linalg.norm(v))
    return WorstCase(
        contributions=u,
        projection=E.T @ v / norm,
        snr=norm / (plan.sensitivity.value * plan.noise_multiplier),
    )


def _first_largest(values: Iterable[float]) -> int:
    """Index of the first value that is the largest but for rounding (processors differ)."""
    array = np.fromiter(values, np.float64)
    largest = array.max()
    return int(np.flatnonzero(array >= largest - _TIE * abs(largest))[0])


def worst_contributions(X: np.ndarray, participation: Participation) -> np.ndarray:
    """Searches for u, entries -1, 0 and 1 in rounds that the participation allows, with the
    largest u^T X u; see `worst_case`.
    """
    patterns = list(itertools.islice(participation.patterns(), MAX_PATTERNS + 1))
    if len(patterns) > MAX_PATTERNS:
        n = participation.rounds
        b = participation.min_sep
        k = participation.max_participations
        patterns = [tuple(range(first, min(n, first + (k - 1) * b + 1), b)) for first in range(n)]
        patterns = [p for p in patterns if len(p) == min(k, len(patterns[0]))] or patterns
    best = _worst_of(X, patterns)
    num_rounds = participation.max_participations
    if participation.has_movable_rounds and 1 < num_rounds <= MAX_MOVED_ROUNDS:
        best = _improved(X, best, participation.min_sep)
    return best


def _worst_of(X: np.ndarray, patterns: Sequence[Sequence[int]]) -> np.ndarray:
    candidates = [_with_signs(X, pattern) for pattern in patterns]
    return candidates[_first_largest(_energy(X, u) for u in candidates)]


def evenly_spaced(costs: np.ndarray, budget: Budgeted) -> list[list[int]]:
    """Of rounds 0, gap, 2 gap, ... as many as the budget pays for, for every gap:
    some of what it allows.
    """
    spaced = (np.arange(0, len(costs), gap) for gap in range(1, len(costs) + 1))
    return [rounds[budget.affords(block_sums(costs, rounds))].tolist() for rounds in spaced]


def _energy(X: np.ndarray, u: np.ndarray) -> float:
    taken = np.flatnonzero(u)
    return float(u[taken] @ X[np.ix_(taken, taken)] @ u[taken])


def _with_signs(X: np.ndarray, pattern: Iterable[int]) -> np.ndarray:
    """u on these rounds: the best signs where there are few rounds, otherwise a sign at a time as
    long as it helps.
    """
    taken = np.array(sorted(pattern))
    part = X[np.ix_(taken, taken)]
    signs = np.ones(len(taken))
    if (part < 0).any() and len(taken) <= _FEW_ROUNDS:
        choices = np.array(
            [(1.0, *rest) for rest in itertools.product((1.0, -1.0), repeat=len(taken) - 1)]
        )
        signs = choices[_first_largest(((choices @ part) * choices).sum(axis=1))]
    elif (part < 0).any():
        for _ in range(len(taken)):
            # Flipping sign i changes the energy by -4 s_i (sum_(j != i) X_ij s_j).
            gain = -signs * (part @ signs - np.diagonal(part) * signs)
            if gain.max() <= _TIE * part.max():
                break
            signs[_first_largest(gain)] *= -1
    u = np.zeros(len(X))
    u[taken] = signs
    return u


def _improved(X: np.ndarray, u: np.ndarray, min_sep: int) -> np.ndarray:
    """Moves one round at a time to where it counts most, as long as that helps."""
    for _ in range(_SWEEPS):
        before = _energy(X, u)
        for t in np.flatnonzero(u):
            rest = u.copy()
            rest[t] = 0.0
            others = np.flatnonzero(rest)
            near = (np.abs(np.subtract.outer(np.arange(len(u)), others)) < min_sep).any(axis=1)
            overlap = X[:, others] @ rest[others]
            place = _first_largest(np.where(near, -np.inf, np.diagonal(X) + 2 * np.abs(overlap)))
            rest[place] = 1.0 if overlap[place] >= -_TIE * X[place, place] else -1.0
            u = rest
        if _energy(X, u) <= before * (1 + _TIE):
            break
    return u


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distinguishing:
    """What many trials showed, beside the claim.

    Attributes:
      present, absent: numbers of trials.
      snr_claimed: 1 / noise_multiplier, the most that the guarantee allows.
      snr_expected: of the pattern that was played, under the claim.
      snr, snr_lower, snr_upper: measured, in units of the noise that is there, with a two-sided
        interval of the confidence to first order.
      epsilon_claimed: of the plan, at its delta.
      epsilon_expected: the lower bound that so many trials can be expected
        to prove at snr_expected.
      epsilon_lower: the lower bound that they proved: Clopper-Pearson at the confidence, the
        threshold chosen on one half of the trials and judged on the other. Assumes nothing about
        the noise.
      confidence: of interval and bound.
      findings: tests for the verdict, with p-values.
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
    """Judges statistics s of trials with the client and without.

    Args:
      plan: the claim.
      case: the pattern that was played.
      present, absent: s of independent trials, float64 (trials,), at least 4 each, in random order.
      confidence: of the interval and the bound, in (0, 1).

    Raises:
      TypeError, ValueError: naming the argument, its value and what to do instead.
    """
    present = checks.finite_array("present", present, ndim=1)
    absent = checks.finite_array("absent", absent, ndim=1)
    for name, values in (("present", present), ("absent", absent)):
        if len(values) < 4:
            raise ValueError(f"{name} has {len(values)} trials: play at least 4 of each kind")
    checks.positive("confidence", confidence, "use a number such as 0.95", below=1)
    import scipy.stats

    claimed = 1 / plan.noise_multiplier
    delta = plan.delta
    degrees = len(present) + len(absent) - 2
    squares = ((present - present.mean()) ** 2).sum() + ((absent - absent.mean()) ** 2).sum()
    variance = float(squares / degrees)
    p_variance = 2 * min(
        scipy.stats.chi2.cdf(squares, degrees), scipy.stats.chi2.sf(squares, degrees)
    )
    # Under the claim s has variance 1, which has a test of its own: the difference of the means is
    # then exactly normal.
    signal = float(present.mean() - absent.mean())
    width = math.sqrt(1 / len(present) + 1 / len(absent))
    above_claim, above_expected = (
        float(scipy.stats.norm.sf((signal - mean) / width)) for mean in (claimed, case.snr)
    )
    snr = signal / math.sqrt(variance)
    reach = float(scipy.stats.norm.isf((1 - confidence) / 2)) * math.sqrt(
        width**2 + snr**2 / (2 * degrees)
    )
    (one, judged), (other, judged_absent) = (np.split(s, [len(s) // 2]) for s in (present, absent))
    threshold = _chosen_threshold(one, other, delta, confidence)
    counts = (
        int((judged > threshold).sum()),
        len(judged),
        int((judged_absent > threshold).sum()),
        len(judged_absent),
    )
    epsilon = max(0.0, float(_bound(*counts, delta, 1 - confidence)))
    tests = (
        ("signal above the claim, 1 / noise_multiplier", signal, above_claim),
        (
            "signal other than expected of these rounds",
            signal,
            2 * min(above_expected, 1 - above_expected),
        ),
        ("variance of the likelihood-ratio statistic", variance, float(p_variance)),
        ("empirical epsilon above the claim", epsilon, _p_of_epsilon(counts, delta, plan.epsilon)),
    )
    return Distinguishing(
        present=len(present),
        absent=len(absent),
        snr_claimed=claimed,
        snr_expected=case.snr,
        snr=snr,
        snr_lower=snr - reach,
        snr_upper=snr + reach,
        epsilon_claimed=plan.epsilon,
        epsilon_expected=expected_bound(
            case.snr, len(judged), len(judged_absent), delta, confidence
        )[0],
        epsilon_lower=epsilon,
        confidence=confidence,
        findings=tuple(
            Finding(name=name, statistic=value, p_value=min(1.0, p)) for name, value, p in tests
        ),
    )


def _bound(
    hits: Any, trials: int, alarms: Any, others: int, delta: float, error: float
) -> np.ndarray:
    """log((hit rate - delta) / false alarm rate), both rates at the ends of Clopper-Pearson
    intervals, error / 2 each.

    (epsilon, delta) allows hit rate <= exp(epsilon) * false alarm rate + delta. Numbers or arrays.
    """
    import scipy.special

    hits = np.asarray(hits, np.float64)
    alarms = np.asarray(alarms, np.float64)
    low = np.where(
        hits > 0,
        scipy.special.betaincinv(np.maximum(hits, 1e-300), trials - hits + 1, error / 2),
        0.0,
    )
    rest = np.maximum(others - alarms, 1e-300)
    high = np.where(alarms < others, 1 - scipy.special.betaincinv(rest, alarms + 1, error / 2), 1.0)
    return np.log(np.maximum(low - delta, 1e-300) / high)


def _chosen_threshold(
    present: np.ndarray, absent: np.ndarray, delta: float, confidence: float
) -> float:
    """A threshold above which "present" is guessed, chosen from these trials alone.

    It is the one with the largest bound if their means and spread were all there is to know: far
    less random than the largest bound that is found among them. Wrong or right, the bound of the
    other trials holds.
    """
    spread = math.sqrt((present.var() + absent.var()) / 2)
    snr = max(0.0, float(present.mean() - absent.mean()) / spread)
    return (
        float(absent.mean())
        + expected_bound(snr, len(present), len(absent), delta, confidence)[1] * spread
    )


def expected_bound(
    snr: float, present: int, absent: int, delta: float, confidence: float
) -> tuple[float, float]:
    """The bound that the best threshold gives when the trials fall as expected, and that threshold.

    Phi(snr - s) are hits, Phi(-s) false alarms.

    >>> round(expected_bound(1.0, 10_000, 10_000, 1e-6, 0.95)[0], 2)
    2.17
    """
    import scipy.special

    s = np.linspace(-6, 8 + snr, 401)
    hits = present * scipy.special.ndtr(snr - s)
    alarms = absent * scipy.special.ndtr(-s)
    bounds = _bound(hits, present, alarms, absent, delta, 1 - confidence)
    best = int(bounds.argmax())
    return max(0.0, float(bounds[best])), float(s[best])


def _p_of_epsilon(counts: tuple[int, int, int, int], delta: float, epsilon: float) -> float:
    """The least error at which the bound is above epsilon."""
    if not _bound(*counts, delta, 1.0) > epsilon:
        return 1.0
    low = -300.0
    high = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (low, middle) if _bound(*counts, delta, 10**middle) > epsilon else (middle, high)
        )
    return float(10**high)
