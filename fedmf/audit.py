"""The guarantee after the fact: what a plan's noise gives for the participation that was observed."""

import dataclasses

from fedmf.accounting import Plan
from fedmf.ledger import Observed, ParticipationLedger
from fedmf.participation import Participation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit:
    """The guarantee after the fact: planned and achieved, side by side.

    `achieved` is the plan's noise accounted with the participation that was observed; where the controller was obeyed it is
    never weaker than `planned`. None where nobody took part.
    """

    planned: Plan
    observed: Observed
    achieved: Plan | None

    @property
    def epsilon(self) -> float:
        """Achieved epsilon at the plan's delta."""
        return 0.0 if self.achieved is None else self.achieved.epsilon

    @property
    def rho(self) -> float:
        """Achieved zCDP."""
        return 0.0 if self.achieved is None else self.achieved.rho


def audit_ledger(ledger: ParticipationLedger, plan: Plan) -> Audit:
    """Accounts the plan's noise with the participation observed in `ledger` (banded paper, Sec. 6: planned 400, achieved 385).

    The noise's standard deviation is what it was; a different sensitivity makes it a different multiplier.

    Raises:
      ValueError: the ledger is longer than the plan.
    """
    observed = ledger.observed()
    if observed.rounds > plan.participation.rounds:
        raise ValueError(
            f"ledger has {observed.rounds} rounds but the plan covers {plan.participation.rounds}: audit a run with its own plan"
        )
    if observed.participations == 0:
        return Audit(planned=plan, observed=observed, achieved=None)
    p = plan.participation
    obeyed = (
        observed.max_participations <= p.max_participations
        and (observed.min_separation is None or observed.min_separation >= p.min_sep)
        and (p.schema != "fixed_epoch" or all(p.allows(rounds) for rounds in ledger.rounds_of_clients().values()))
    )
    if p.schema == "fixed_epoch" and obeyed:
        seen = dataclasses.replace(p, max_participations=observed.max_participations)
    elif observed.min_separation is None:
        seen = Participation(rounds=p.rounds, schema="single")
    else:
        seen = Participation(
            rounds=p.rounds,
            schema="min_sep",
            min_sep=observed.min_separation,
            max_participations=observed.max_participations,
        )
    achieved = dataclasses.replace(plan, participation=seen)
    multiplier = plan.noise_multiplier * plan.sensitivity.value / achieved.sensitivity.value
    if obeyed:
        # The planned guarantee holds; rounding in a second way of computing the same sensitivity must not deny it.
        multiplier = max(multiplier, plan.noise_multiplier)
    return Audit(planned=plan, observed=observed, achieved=dataclasses.replace(achieved, noise_multiplier=multiplier))
