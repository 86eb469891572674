"""The privacy statement of a plan, in the structure of the banded paper's Appendix K.1 (after Ponomareva et al. 2023, Sec. 5.3)."""

import decimal
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedmf.accounting import Plan


def _participation_in_words(plan: "Plan") -> str:
    p = plan.participation
    if p.schema == "single":
        return f"Every client takes part in at most one of the {p.rounds} rounds."
    if p.schema == "every_round":
        return f"A client may take part in every one of the {p.rounds} rounds."
    apart = "exactly" if p.schema == "fixed_epoch" else "at least"
    return (
        f"Every client takes part in at most {p.max_participations} of the {p.rounds} rounds, "
        f"and any two consecutive participations of a client are {apart} {p.min_sep} rounds apart."
    )


def _upper(value: float) -> str:
    """A bound to four digits, rounded up: rounded to nearest it could claim more privacy than was proven."""
    if math.isinf(value):
        return "infinity (no guarantee)"
    four_digits = decimal.Context(prec=4, rounding=decimal.ROUND_CEILING)
    return f"{float(four_digits.create_decimal_from_float(value)):.4g}"


def privacy_statement(plan: "Plan") -> str:
    """Markdown text of the statement; see `Plan.statement`."""
    s = plan.sensitivity
    kind = "exact" if s.exact else "a proven upper bound"
    formal = (
        f"The run satisfies (epsilon = {_upper(plan.epsilon)}, delta = {plan.delta})-differential privacy "
        f"and rho = {_upper(plan.rho)} zCDP."
    )
    head = ""
    if plan.noise_multiplier == 0:
        formal = "No noise is added: the run has no differential privacy guarantee."
        head = "> **No privacy.** The noise multiplier of this plan is 0.\n\n"
        if plan.simulated_cohort is not None:
            head += f"> **Simulation.** {plan.simulated_cohort} clients a round stand for {plan.claimed_cohort}.\n\n"
    elif plan.simulated_cohort is not None:
        head = (
            f"> **Simulation.** {plan.simulated_cohort} clients a round stand for {plan.claimed_cohort}; the noise is scaled by "
            f"{plan.simulated_cohort}/{plan.claimed_cohort}. The guarantee below is that of a run with {plan.claimed_cohort} "
            "clients a round. The model trained here carries less noise and does **not** have this guarantee.\n\n"
        )
        formal = f"For the claimed cohort of {plan.claimed_cohort} clients a round: {formal[0].lower()}{formal[1:]}"
    return f"""# Privacy statement

{head}1. **DP setting.** Central differential privacy: the service provider is trusted to run the mechanism as described.
2. **Instantiating the definition.**
   1. **Data accesses covered.** All well-behaved clients of one training run. A client that disobeys its participation limit
      weakens its own guarantee and nobody else's. Not covered: hyperparameter tuning, the choice of a checkpoint by evaluation
      metrics, and the evaluation itself.
   2. **Final mechanism output.** The whole sequence of privatised aggregates, one for each of the {plan.mechanism.rounds} rounds;
      every intermediate and the final model are post-processing of it and covered.
   3. **Unit of privacy.** One client (device) with its whole local data set, however large. It is user-level where a user has one
      device; for a user with several devices use group privacy.
   4. **Adjacency.** Zero-out: in a neighbouring data set one client's update is the zero vector in every round in which it takes
      part.
3. **Accounting.**
   1. **Type.** Privacy loss distributions for (epsilon, delta), and rho-zCDP beside it. The run is one Gaussian mechanism with noise
      multiplier {plan.noise_multiplier:.6g} on C x (Denisov et al. 2022, Theorem 2.1); no amplification by sampling or shuffling is
      claimed.
   2. **Assumptions.** {_participation_in_words(plan)} The participation controller enforces it. Each update has L2 norm at most
      {plan.clip_norm:g} after clipping. The sensitivity of the encoder (family {plan.mechanism.family}, {plan.mechanism.bands} bands)
      under this participation, for unit clip norm, is {s.value:.6g}, {kind} ({s.method}). The entries of Z are independent Gaussians
      with standard deviation {plan.stddev:.6g}; the seed of the noise is kept secret. Noise is drawn in float32 by a counter-based
      pseudo-random generator; attacks on floating-point arithmetic are out of scope.
   3. **Formal statement.** {formal}
"""
