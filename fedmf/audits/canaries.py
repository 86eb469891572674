"""Empirical lower bounds on epsilon from canaries, artificial clients in a training run.

Each of m canaries is included in the run by a fair coin; the updates of the others are zero, as in
the zero-out relation. An attacker computes a score of each canary from the releases and guesses the
coins. A guarantee bounds the number of correct guesses, whatever the attacker knows besides
(`fedmf.audits.canary_bounds`).
"""

import dataclasses

import numpy as np

from fedmf import checks
from fedmf.audits.canary_bounds import BOUNDS
from fedmf.audits.canary_scores import release_scores
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.privacy.plan import Plan, unamplified_epsilon


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
    """Data of a run with canaries (which were included, in which rounds, and the releases), from
    which lower bounds on epsilon are computed. It is secret.

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
            t, canary_index = not_finite[0]
            raise ValueError(
                f"{len(not_finite)} releases along canaries are not finite, the first in round {t} "
                f"along canary {canary_index}: {self.releases[t, canary_index]}; the run has "
                "diverged, and its canaries prove nothing: audit a run that has not"
            )
        if not np.isfinite(self.model).all():
            canary_index = int(np.flatnonzero(~np.isfinite(self.model))[0])
            raise ValueError(
                f"the final model moved by {self.model[canary_index]} along canary {canary_index}: "
                "the run has diverged, and its canaries prove nothing: audit a run that has not"
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
    error_rate = 1 - checks.positive("confidence", confidence, "use a number such as 0.95", below=1)
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
    score_by_name = {
        "all releases": release_scores(
            plan.mechanism, evidence.rounds, evidence.releases, plan.clip_norm
        ),
        "final model": evidence.model,
    }
    bounds = []
    significance = error_rate / (len(score_by_name) * len(BOUNDS))
    for score_name, scores in score_by_name.items():
        for assumption, compute_bound in BOUNDS.items():
            # Privacy amplification by sampling assumes that the cohorts are secret. Then only the
            # bound from the final model that assumes nothing about the mechanism is valid.
            is_amplified = score_name == "final model" and assumption == "nothing"
            selected = took_part
            epsilon_claimed = unamplified_epsilon(plan)
            if is_amplified:
                selected = is_counted
                epsilon_claimed = plan.epsilon
            epsilon_lower = compute_bound(
                scores[selected], evidence.included[selected], plan.delta, significance
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
