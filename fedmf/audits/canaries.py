"""A lower bound on epsilon from one run: how many coins of canaries its releases betray.

Each of m canaries is in the run or out of it by a fair coin; an out-canary's updates are zero, as
in the zero-out relation. Whatever scores are computed from what was released, with anything known
but the coins and the noise, few guesses can be right:

- of an (epsilon, delta) mechanism, r guesses are v times right with probability at most `p_value`
  (Steinke, Nasr and Jagielski 2023, arXiv 2305.08846, Sec. 5);
- of a mechanism that is no easier to tell than Normal(0, 1) from Normal(mu, 1), the bound is
  sharper (Mahloujifar, Melis and Chaudhuri 2024, arXiv 2410.22235). A run without sampling claims
  that, with mu = 1 / noise_multiplier;
- where the scores are moreover normal, as sums of Gaussian noise along random directions are
  (Andrew et al. 2024, arXiv 2302.03098), the difference of their means is what tells most.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator

import numpy as np

from fedmf import checks
from fedmf.audits.noise import causal_factor
from fedmf.mechanisms.base import Mechanism
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.privacy.gaussian import gaussian_epsilon
from fedmf.privacy.plan import Plan, unamplified_epsilon

# Entries of columns that are filtered at a time.
_FILTERED_ENTRIES = 2**20


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The chance, at most, of so many correct guesses under (epsilon, delta)-DP.

    Pr[W >= v] + 2 m delta max_i (Pr[v > W >= v - i] / i) for v correct ones, where W is binomial of
    the guesses with probability e^epsilon / (1 + e^epsilon).

    >>> round(p_value(100, 10, 10, 0.0, 0.0) * 2**10, 9)
    1.0
    """
    from scipy import special

    right = special.expit(epsilon)
    i = np.arange(1, correct + 1)
    # bdtrc(k, r, p) = Pr[W > k].
    tail = float(special.bdtrc(correct - 1, guesses, right)) if correct else 1.0
    tails = np.where(
        i < correct, special.bdtrc(np.maximum(correct - 1 - i, 0), guesses, right), 1.0
    )
    return min(1.0, tail + 2 * canaries * delta * float(np.max((tails - tail) / i, initial=0.0)))


def gaussian_refuted(
    canaries: int, guesses: int, correct: int, mu: float, significance: float
) -> bool:
    """Whether so many correct guesses have a chance below `significance` under mu-Gaussian DP: the
    recursion of arXiv 2410.22235.
    """
    from scipy import special

    r = significance * correct / canaries
    h = significance * (guesses - correct) / canaries
    for i in range(correct - 1, -1, -1):
        higher = max(h, float(special.ndtr(special.ndtri(r) - mu)))
        if higher == h or r + h > guesses / canaries:
            break
        r, h = min(1.0, r + i / (guesses - i) * (higher - h)), higher
    return r + h > guesses / canaries


def epsilon_bound(
    scores: np.ndarray, included: np.ndarray, delta: float, significance: float
) -> float:
    """The largest epsilon that the coins refute together with `delta`; 0 where they refute none.

    Args:
      scores: float64 (canaries,), larger for canaries that seem to be in.
      included: bool (canaries,), the coins.
      delta: of the claim.
      significance: chance, at most, that the bound is above an epsilon that holds.
    """
    m = len(included)
    counts, each = _counts(scores, included, significance)
    return _largest(
        lambda epsilon: any(p_value(m, r, v, epsilon, delta) <= each for r, v in counts)
    )


def gaussian_epsilon_bound(
    scores: np.ndarray, included: np.ndarray, delta: float, significance: float
) -> float:
    """`epsilon_bound` for a mechanism that claims to be Gaussian: epsilon at `delta` of the largest
    mu that the coins refute.
    """
    m = len(included)
    counts, each = _counts(scores, included, significance)
    mu = _largest(lambda mu: any(gaussian_refuted(m, r, v, mu, each) for r, v in counts))
    return gaussian_epsilon(1 / mu, delta) if mu else 0.0


def normal_epsilon_bound(
    scores: np.ndarray, included: np.ndarray, delta: float, significance: float
) -> float:
    """`epsilon_bound` for normal scores of one spread: epsilon at `delta` of the least ratio of
    signal and spread that they leave.

    Student's t of the difference of the means has its non-central distribution. Where the signal
    varies among canaries the mean one counts.
    """
    from scipy import special

    present = scores[included]
    absent = scores[~included]
    degrees = len(scores) - 2
    if min(len(present), len(absent)) < 2:
        return 0.0
    signal = float(present.mean() - absent.mean())
    squares = float(((present - present.mean()) ** 2).sum() + ((absent - absent.mean()) ** 2).sum())
    if squares == 0:
        return math.inf if signal > 0 else 0.0
    width = math.sqrt(1 / len(present) + 1 / len(absent))
    t = signal / (width * math.sqrt(squares / degrees))
    mu = width * float(special.nctdtrinc(degrees, 1 - significance, t))
    return gaussian_epsilon(1 / mu, delta) if mu > 0 else 0.0


# What a bound assumes -> the bound.
BOUNDS = {
    "nothing": epsilon_bound,
    "Gaussian mechanism": gaussian_epsilon_bound,
    "normal scores": normal_epsilon_bound,
}


def _counts(
    scores: np.ndarray, included: np.ndarray, significance: float
) -> tuple[list[tuple[int, int]], float]:
    """(guesses, correct ones) for some numbers of guesses, and the significance of each
    of them (Bonferroni).

    As many highest scores are guessed in as lowest out. The numbers do not depend on the coins: to
    choose them by what was right would void the correction.
    """
    order = included[np.argsort(scores, kind="stable")]
    sides = list(_sides(len(order), significance))
    counts = [(2 * k, int((~order[:k]).sum() + order[-k:].sum())) for k in sides]
    return counts, significance / max(1, len(sides))


def _sides(canaries: int, significance: float) -> Iterator[int]:
    """Half of the canaries, a quarter and so on, as long as guesses that are all right could refute
    epsilon = 0.
    """
    k = canaries // 2
    while k and 2.0 ** (-2 * k) <= significance:
        yield k
        k //= 2


def _largest(refuted: Callable[[float], bool]) -> float:
    """The largest number that is refuted, to 1e-9 of it or of 1 and not above it; refuted means
    that all smaller ones are as well.
    """
    if not refuted(0.0):
        return 0.0
    low = 0.0
    high = 1.0
    while refuted(high):
        low, high = high, 2 * high
    while high - low > 1e-9 * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def release_scores(
    mechanism: Mechanism, rounds: np.ndarray, projections: np.ndarray, clip_norm: float
) -> np.ndarray:
    """Returns how much likelier the releases are with each canary than without, up to a positive
    factor: a matched filter.

    In coordinates in which the noise of the rounds is white by the mechanism, N N^T = L L^T, canary
    j is in with mean a_j = L^-1 x_j, and <a_j, S^-1 (L^-1 y_j - a_j / 2)> is its log-likelihood
    ratio for noise of covariance S. By the claim S is the identity. Here it is what the canaries'
    own projections show, shrunk to the identity the more the fewer canaries there are: noise that
    does not vary as claimed helps to tell.

    Args:
      mechanism: with N, (n, m).
      rounds: bool (n, canaries), who took part in which round.
      projections: float64 (n, canaries): the released sum of round t along
        the direction of canary j.
      clip_norm: length of a canary's update.

    Raises:
      ValueError: N would have to be formed, and does not fit into memory.
    """
    white = _whitener(mechanism)
    a = clip_norm * white(rounds.astype(np.float64))
    y = white(projections)
    return (a * _over_covariance(y, y - a / 2)).sum(axis=0)


def _whitener(mechanism: Mechanism) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the function that multiplies columns by L^-1: by C where that is square, lower
    triangular and given by few numbers, as L is then N up to the signs of its columns.
    """
    import scipy.linalg
    import scipy.signal

    n = mechanism.rounds
    coefficients = mechanism.toeplitz_coefficients()
    rows = mechanism.banded_rows()
    if coefficients is not None:

        def filtered(columns: np.ndarray) -> np.ndarray:
            # Some columns at a time: the transforms of all would take several times their memory.
            width = max(1, _FILTERED_ENTRIES // n)
            products = [
                scipy.signal.oaconvolve(coefficients[:, None], columns[:, i : i + width], axes=0)
                for i in range(0, columns.shape[1], width)
            ]
            return np.hstack([product[:n] for product in products])

        return filtered
    if rows is not None:
        return lambda columns: checks.banded_times(rows, columns)
    # N with twice as many sources as rounds, its QR factors, and L.
    hint = "audit the canaries of a run with fewer rounds"
    checks.fits_in_memory("the audit of these canaries", (n, n), copies=6, hint=hint)
    L = causal_factor(mechanism.noising())
    return lambda columns: scipy.linalg.solve_triangular(L, columns, lower=True, check_finite=False)


def _over_covariance(y: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Returns S^-1 times the columns, S = y y^T / m + c I of m columns y, c their mean square over
    m: what is inverted is as large as y is narrow or short, whichever is less.
    """
    import scipy.linalg

    n, m = y.shape
    shrinkage = float(np.square(y).sum()) / m**2 or 1.0
    if n <= m:
        S = y @ y.T / m + shrinkage * np.eye(n)
        return scipy.linalg.solve(S, columns, assume_a="pos")
    inner = y.T @ y + m * shrinkage * np.eye(m)
    return (columns - y @ scipy.linalg.solve(inner, y.T @ columns, assume_a="pos")) / shrinkage


@dataclasses.dataclass(frozen=True, kw_only=True)
class CanaryBound:
    """What one score proves.

    Attributes:
      score: "all releases" or "final model".
      assumes: a key of `BOUNDS`.
      epsilon_lower: at the plan's delta.
      epsilon_claimed: what the plan claims of somebody who knows what the score uses; infinite
        without noise.
    """

    score: str
    assumes: str
    epsilon_lower: float
    epsilon_claimed: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class CanaryAudit:
    """What the canaries of one run prove, beside its claim.

    Attributes:
      canaries, included: how many there were, and how many of them were in.
      took_part: how many were in some cohort, in or out.
      delta: of the plan.
      confidence: with which all the bounds hold together.
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
        """Bounds above what is claimed: with the confidence, the claim does not hold."""
        return tuple(bound for bound in self.bounds if bound.epsilon_lower > bound.epsilon_claimed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CanaryEvidence:
    """What a run kept of its canaries; secret, as it tells the coins.

    Attributes:
      included: bool (canaries,), the coins.
      rounds: bool (n, canaries), who took part in which round, in or out.
      releases: float64 (n, canaries), the released sum of each round along each canary's direction.
      model: float64 (canaries,), how far the final model moved along it.
    """

    included: np.ndarray
    rounds: np.ndarray
    releases: np.ndarray
    model: np.ndarray

    def check_finite(self) -> None:
        """Refuses releases and models that are not finite: they are ordered like numbers, and would
        count as guesses.
        """
        wrong = [*np.argwhere(~np.isfinite(self.releases))]
        if wrong:
            t, canary = wrong[0]
            raise ValueError(
                f"{len(wrong)} releases along canaries are not finite, the first in round {t} "
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
    """Lower bounds on epsilon from all releases and from the final model,
    beside the claim of `plan`.

    The score of all releases uses the rounds of a canary. It is held against the epsilon that does
    not rest on the secrecy of who is drawn, and so are bounds that assume a Gaussian mechanism.
    Canaries that never took part say nothing; they are left out, but not where it is a secret that
    they did not.

    Args:
      plan: what the run was planned with; not a simulation of a larger cohort.
      evidence: of the run.
      confidence: with which all bounds hold together (Bonferroni), in (0, 1).

    Raises:
      TypeError, ValueError: a confidence out of range; a plan that simulates, as its claim is not
        about the noise of the run; or releases that are not finite, from which nothing follows.
    """
    error = 1 - checks.positive("confidence", confidence, "use a number such as 0.95", below=1)
    if plan.simulation is not None:
        raise ValueError(
            f"claimed_cohort={plan.simulation.claimed}: the claim is about the noise of a cohort "
            "that was not run; audit a run that trains its own cohort"
        )
    evidence.check_finite()
    took_part = evidence.rounds.any(axis=0)
    kept = took_part if plan.sampling is None else np.ones_like(took_part)
    scores = {
        "all releases": release_scores(
            plan.mechanism, evidence.rounds, evidence.releases, plan.clip_norm
        ),
        "final model": evidence.model,
    }
    bounds = []
    for score, values in scores.items():
        for assumes, bound in BOUNDS.items():
            secret = score == "final model" and assumes == "nothing"
            of = kept if secret else took_part
            lower = bound(
                values[of], evidence.included[of], plan.delta, error / (len(scores) * len(BOUNDS))
            )
            claimed = plan.epsilon if secret else unamplified_epsilon(plan)
            bounds.append(
                CanaryBound(
                    score=score, assumes=assumes, epsilon_lower=lower, epsilon_claimed=claimed
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
