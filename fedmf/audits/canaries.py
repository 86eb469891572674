"""Empirical lower bounds on epsilon from canaries, artificial clients in a training run.

Each of m canaries is included in the run by a fair coin; the updates of the others are zero, as in
the zero-out relation. An attacker computes a score of each canary from the releases and guesses the
coins. A guarantee bounds the number of correct guesses, whatever the attacker knows besides:

- for an (epsilon, delta)-DP mechanism, `p_value` bounds the chance of v correct ones among r
  guesses (Steinke, Nasr and Jagielski 2023, arXiv 2305.08846, Sec. 5);
- for a mu-Gaussian-DP mechanism, whose releases are no easier to distinguish than Normal(0, 1) and
  Normal(mu, 1), the bound is sharper (Mahloujifar, Melis and Chaudhuri 2024, arXiv 2410.22235). A
  run without sampling claims this, with mu = 1 / noise_multiplier;
- if the scores are normal as well, as sums of Gaussian noise along random directions are (Andrew et
  al. 2024, arXiv 2302.03098), the difference of their means gives the sharpest bound.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from fedmf import checks
from fedmf.audits.noise import causal_factor
from fedmf.mechanisms.base import Mechanism
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.privacy.gaussian import gaussian_epsilon
from fedmf.privacy.plan import Plan, unamplified_epsilon

# A convolution filters several columns at once, with at most this many entries in all.
_MAX_FILTERED_ENTRIES = 2**20


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Returns an upper bound on the chance of this many correct guesses under (epsilon, delta)-DP.

    For v correct guesses of m canaries it is Pr[W >= v] + 2 m delta max_i (Pr[v > W >= v - i] / i),
    where W is binomial with the number of guesses and probability e^epsilon / (1 + e^epsilon).

    >>> round(p_value(100, 10, 10, 0.0, 0.0) * 2**10, 9)
    1.0
    """
    from scipy import special

    chance_correct = special.expit(epsilon)
    i = np.arange(1, correct + 1)
    # scipy's bdtrc(k, r, p) is Pr[W > k] for a binomial W of r trials with probability p.
    tail = 1.0
    if correct:
        tail = float(special.bdtrc(correct - 1, guesses, chance_correct))
    fewer_correct = np.maximum(correct - 1 - i, 0)
    tails = np.where(i < correct, special.bdtrc(fewer_correct, guesses, chance_correct), 1.0)
    return min(1.0, tail + 2 * canaries * delta * float(np.max((tails - tail) / i, initial=0.0)))


def gaussian_refuted(
    canaries: int, guesses: int, correct: int, mu: float, significance: float
) -> bool:
    """Returns whether this many correct guesses refute mu-Gaussian DP at a significance level.

    This is the recursion of arXiv 2410.22235, in its notation.
    """
    from scipy import special

    r = significance * correct / canaries
    h = significance * (guesses - correct) / canaries
    for i in range(correct - 1, -1, -1):
        next_h = max(h, float(special.ndtr(special.ndtri(r) - mu)))
        if next_h == h or r + h > guesses / canaries:
            break
        r = min(1.0, r + i / (guesses - i) * (next_h - h))
        h = next_h
    return r + h > guesses / canaries


def epsilon_bound(
    scores: np.ndarray, included: np.ndarray, delta: float, significance: float
) -> float:
    """Returns the largest epsilon that the correct guesses refute for this delta.

    It is 0 if they refute no epsilon. The guesses are about the coins that included canaries.

    Args:
      scores: float64 (canaries,), larger for canaries that seem to be included.
      included: bool (canaries,), the coins.
      delta: of the claim.
      significance: largest chance that the bound exceeds a valid epsilon.
    """
    m = len(included)
    guess_counts = _guess_counts(scores, included, significance)
    level = significance / max(1, len(guess_counts))
    return _largest_refuted(
        lambda epsilon: any(
            p_value(m, count.guesses, count.correct, epsilon, delta) <= level
            for count in guess_counts
        )
    )


def gaussian_epsilon_bound(
    scores: np.ndarray, included: np.ndarray, delta: float, significance: float
) -> float:
    """Returns a lower bound on epsilon that assumes a Gaussian mechanism.

    It is the epsilon of the largest mu for which the correct guesses refute mu-Gaussian DP.

    The arguments are those of `epsilon_bound`.
    """
    m = len(included)
    guess_counts = _guess_counts(scores, included, significance)
    level = significance / max(1, len(guess_counts))
    mu = _largest_refuted(
        lambda mu: any(
            gaussian_refuted(m, count.guesses, count.correct, mu, level) for count in guess_counts
        )
    )
    return gaussian_epsilon(1 / mu, delta) if mu else 0.0


def normal_epsilon_bound(
    scores: np.ndarray, included: np.ndarray, delta: float, significance: float
) -> float:
    """Returns a lower bound on epsilon that assumes normally distributed scores.

    It is the epsilon of a lower bound on their signal-to-noise ratio.

    The difference of the means, divided by its standard error, has a non-central t distribution if
    the scores have equal variances. If the signal differs between canaries, the bound is on its
    mean. The arguments are those of `epsilon_bound`.
    """
    from scipy import special

    scores_present = scores[included]
    scores_absent = scores[~included]
    degrees = len(scores) - 2
    if min(len(scores_present), len(scores_absent)) < 2:
        return 0.0
    signal = float(scores_present.mean() - scores_absent.mean())
    squares = float(
        ((scores_present - scores_present.mean()) ** 2).sum()
        + ((scores_absent - scores_absent.mean()) ** 2).sum()
    )
    if squares == 0:
        return math.inf if signal > 0 else 0.0
    relative_error = math.sqrt(1 / len(scores_present) + 1 / len(scores_absent))
    t = signal / (relative_error * math.sqrt(squares / degrees))
    mu = relative_error * float(special.nctdtrinc(degrees, 1 - significance, t))
    return gaussian_epsilon(1 / mu, delta) if mu > 0 else 0.0


# Functions that compute a lower bound on epsilon, by the assumption on the mechanism that each
# makes.
BOUNDS = {
    "nothing": epsilon_bound,
    "Gaussian mechanism": gaussian_epsilon_bound,
    "normal scores": normal_epsilon_bound,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _GuessCount:
    """Number of guesses, and how many of them are correct."""

    guesses: int
    correct: int


def _guess_counts(
    scores: np.ndarray, included: np.ndarray, significance: float
) -> list[_GuessCount]:
    """Counts the correct guesses of an attacker, for several numbers of guesses.

    One half of the guesses is that the canaries with the highest scores are included, the other
    half that those with the lowest are not. Half of the canaries, a quarter and so on are guessed
    on each side, while correct guesses alone could refute epsilon = 0. These numbers do not depend
    on the coins, so that Bonferroni's correction is valid.
    """
    coins_by_score = included[np.argsort(scores, kind="stable")]
    guess_counts = []
    k = len(coins_by_score) // 2
    while k and 2.0 ** (-2 * k) <= significance:
        num_correct = int((~coins_by_score[:k]).sum() + coins_by_score[-k:].sum())
        guess_counts.append(_GuessCount(guesses=2 * k, correct=num_correct))
        k //= 2
    return guess_counts


def _largest_refuted(is_refuted: Callable[[float], bool]) -> float:
    """Returns the largest value that a test refutes, rounded down with a relative error of 1e-9.

    The test must refute all values below a refuted one. The result is 0 if it refutes no value.
    """
    if not is_refuted(0.0):
        return 0.0
    low_epsilon = 0.0
    high_epsilon = 1.0
    while is_refuted(high_epsilon):
        low_epsilon = high_epsilon
        high_epsilon = 2 * high_epsilon
    while high_epsilon - low_epsilon > 1e-9 * max(1.0, high_epsilon):
        middle_epsilon = (low_epsilon + high_epsilon) / 2
        if is_refuted(middle_epsilon):
            low_epsilon = middle_epsilon
        else:
            high_epsilon = middle_epsilon
    return low_epsilon


def release_scores(
    mechanism: Mechanism, rounds: np.ndarray, projections: np.ndarray, clip_norm: float
) -> np.ndarray:
    """Returns the log-likelihood ratio of "included" to "not included" for each canary.

    The ratios are right up to a positive factor. The noise matrix N is C^-1, or a pseudoinverse.
    Column j of x has the contributions of canary j to the rounds, and y_j the releases along it.

    In coordinates in which the noise is white according to the mechanism, N N^T = L L^T, an
    included canary j adds a_j = L^-1 x_j, and <a_j, S^-1 (L^-1 y_j - a_j / 2)> is its
    log-likelihood ratio for noise of covariance S. The claim is that S is the identity. S is
    estimated from the projections here, with shrinkage towards the identity for few canaries, so
    that noise with another covariance than claimed makes the scores more accurate.

    Args:
      mechanism: with N, (n, m).
      rounds: bool (n, canaries), the rounds in which each canary took part.
      projections: float64 (n, canaries), the released sum of each round along the direction of each
        canary.
      clip_norm: norm of a canary's update.

    Raises:
      ValueError: N would have to be formed, and does not fit into memory.
    """
    whiten_columns = _whitener(mechanism)
    a = clip_norm * whiten_columns(rounds.astype(np.float64))
    y = whiten_columns(projections)
    return (a * _solve_covariance(y, y - a / 2)).sum(axis=0)


def _whitener(mechanism: Mechanism) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function that makes columns of correlated noise independent.

    It multiplies them by L^-1, where L L^T = N N^T for the noise matrix N. For Toeplitz and banded
    mechanisms the function multiplies by the encoder C, since L then equals N = C^-1 up to the
    signs of its columns.
    """
    import scipy.linalg
    import scipy.signal

    n = mechanism.rounds
    coefficients = mechanism.toeplitz_coefficients()
    rows = mechanism.banded_rows()
    if coefficients is not None:

        def filtered(columns: np.ndarray) -> np.ndarray:
            """Multiplies columns by the encoder C, in batches that fit into memory."""
            batch_width = max(1, _MAX_FILTERED_ENTRIES // n)
            starts = range(0, columns.shape[1], batch_width)
            batches = [columns[:, start : start + batch_width] for start in starts]
            products = [
                scipy.signal.oaconvolve(coefficients[:, None], batch, axes=0) for batch in batches
            ]
            return np.hstack([product[:n] for product in products])

        return filtered
    if rows is not None:
        return lambda columns: checks.banded_times(rows, columns)
    # Memory is needed for N, which may have twice as many columns as rounds, for its QR factors,
    # and for L.
    hint = "audit the canaries of a run with fewer rounds"
    checks.fits_in_memory("the audit of these canaries", (n, n), copies=6, hint=hint)
    L = causal_factor(mechanism.noising())
    return lambda columns: scipy.linalg.solve_triangular(L, columns, lower=True, check_finite=False)


def _solve_covariance(y: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Returns S^-1 times the columns, where S is an estimate of the covariance of y.

    The estimate is S = y y^T / m + c I for the m columns of y. The shrinkage c is the sum of
    squares of y divided by m^2. By the Woodbury identity the matrix that is inverted has the
    smaller dimension of y.
    """
    import scipy.linalg

    n, m = y.shape
    shrinkage = float(np.square(y).sum()) / m**2 or 1.0
    if n <= m:
        S = y @ y.T / m + shrinkage * np.eye(n)
        return scipy.linalg.solve(S, columns, assume_a="pos")
    inner_matrix = y.T @ y + m * shrinkage * np.eye(m)
    return (
        columns - y @ scipy.linalg.solve(inner_matrix, y.T @ columns, assume_a="pos")
    ) / shrinkage


@dataclasses.dataclass(frozen=True, kw_only=True)
class CanaryBound:
    """Lower bound on epsilon from one score of the canaries, under one assumption.

    Attributes:
      score: "all releases" or "final model".
      assumes: a key of `BOUNDS`.
      epsilon_lower: the bound, at the plan's delta.
      epsilon_claimed: the plan's epsilon for an attacker with the knowledge that the score uses;
        infinite without noise.
    """

    score: str
    assumes: str
    epsilon_lower: float
    epsilon_claimed: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class CanaryAudit:
    """Lower bounds on epsilon from the canaries of a run, beside the epsilon that the plan claims.

    Attributes:
      canaries, included: number of canaries, and of the included ones among them.
      took_part: number of canaries that were in any cohort, included or not.
      delta: of the plan.
      confidence: of all bounds together.
      bounds: one for each score and assumption.
    """

    canaries: int
    included: int
    took_part: int
    delta: float
    confidence: float
    bounds: tuple[CanaryBound, ...]

    @property
    def exceeded(self) -> tuple[CanaryBound, ...]:
        """Bounds above the claimed epsilon, which refute the claim."""
        return tuple(bound for bound in self.bounds if bound.epsilon_lower > bound.epsilon_claimed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CanaryEvidence:
    """Record of a run with canaries, from which lower bounds on epsilon follow. It is secret.

    Attributes:
      included: bool (canaries,), the coins.
      rounds: bool (n, canaries), the rounds in which each canary took part, included or not.
      releases: float64 (n, canaries), the released sum of each round along each canary's direction.
      model: float64 (canaries,), the movement of the final model along each direction.
    """

    included: np.ndarray
    rounds: np.ndarray
    releases: np.ndarray
    model: np.ndarray

    def check_finite(self) -> None:
        """Raises a ValueError if a release or the model is not finite.

        Scores that are not finite would be sorted like numbers and count as guesses.
        """
        not_finite = [*np.argwhere(~np.isfinite(self.releases))]
        if not_finite:
            t, canary = not_finite[0]
            raise ValueError(
                f"{len(not_finite)} releases along canaries are not finite, the first in round {t} "
                f"along canary {canary}: {self.releases[t, canary]}; the run has diverged, and its "
                "canaries prove nothing: audit a run that has not"
            )
        if not np.isfinite(self.model).all():
            canary = int(np.flatnonzero(~np.isfinite(self.model))[0])
            raise ValueError(
                f"the final model moved by {self.model[canary]} along canary {canary}: the run has "
                "diverged, and its canaries prove nothing: audit a run that has not"
            )


@with_numpy_defaults
def audit_canaries(
    plan: Plan, evidence: CanaryEvidence, *, confidence: float = 0.95
) -> CanaryAudit:
    """Computes lower bounds on epsilon from the canaries of a run.

    One set of bounds uses all releases, and another the final model only.

    The score of all releases uses the rounds of a canary, and is compared with the epsilon for
    known cohorts; so are the bounds that assume a Gaussian mechanism. Canaries that never took part
    are excluded, unless their absence is part of what amplification by sampling protects.

    Args:
      plan: of the run; not a simulation of a larger cohort.
      evidence: of the run.
      confidence: of all bounds together (Bonferroni), in (0, 1).

    Raises:
      TypeError, ValueError: a confidence out of range, a plan that simulates a larger cohort, whose
        claim is not about the noise of the run, or releases that are not finite.
    """
    error = 1 - checks.positive("confidence", confidence, "use a number such as 0.95", below=1)
    if plan.simulation is not None:
        raise ValueError(
            f"claimed_cohort={plan.simulation.claimed}: the claim is about the noise of a cohort "
            "that was not run; audit a run that trains its own cohort"
        )
    evidence.check_finite()
    took_part = evidence.rounds.any(axis=0)
    is_counted = took_part
    if plan.sampling is not None:
        is_counted = np.ones_like(took_part)
    scores = {
        "all releases": release_scores(
            plan.mechanism, evidence.rounds, evidence.releases, plan.clip_norm
        ),
        "final model": evidence.model,
    }
    bounds = []
    significance = error / (len(scores) * len(BOUNDS))
    for score_name, canary_scores in scores.items():
        for assumption, compute_bound in BOUNDS.items():
            # Amplification assumes that the cohorts are secret. Only the bound from the final
            # model, without an assumption, is valid then.
            is_amplified = score_name == "final model" and assumption == "nothing"
            is_selected = took_part
            epsilon_claimed = unamplified_epsilon(plan)
            if is_amplified:
                is_selected = is_counted
                epsilon_claimed = plan.epsilon
            epsilon_lower = compute_bound(
                canary_scores[is_selected], evidence.included[is_selected], plan.delta, significance
            )
            bounds.append(
                CanaryBound(
                    score=score_name,
                    assumes=assumption,
                    epsilon_lower=epsilon_lower,
                    epsilon_claimed=epsilon_claimed,
                )
            )
    return CanaryAudit(
        canaries=len(took_part),
        included=int(evidence.included.sum()),
        took_part=int(took_part.sum()),
        delta=plan.delta,
        confidence=confidence,
        bounds=tuple(bounds),
    )
