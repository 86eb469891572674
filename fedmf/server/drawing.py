"""How a server draws the clients of its rounds."""

from fedmf.cohorts.controller import ParticipationController
from fedmf.mechanisms.budget import Budget
from fedmf.participation.schema import Participation
from fedmf.privacy.plan import Plan
from fedmf.server.folder import ServerConfig
from fedmf.server.source import derived_seed


def cohort_seed(noise_seed: int) -> int:
    """The seed of the cohorts' draws, as secret as the noise seed: amplification needs a sample
    that nobody knows.
    """
    return derived_seed(f"fedmf cohorts {noise_seed}", 16)


def kept_by_clients(plan: Plan) -> Participation | Budget:
    """What each client keeps to."""
    p = plan.participation
    if p.schema != "budget":
        return p
    return Budget(mechanism=plan.mechanism, participation=p, pace=p.rounds)


def controller_of(plan: Plan, config: ServerConfig, seed: int) -> ParticipationController | None:
    """Draws from the server's population; None where clients of any name check in.

    Args:
      plan, config: of the server.
      seed: of `cohort_seed`.

    Raises:
      ValueError: a plan with sampling, whose clients the server has to draw.
    """
    if config.population is None:
        if plan.sampling is not None:
            raise ValueError(
                f"population=None, but the plan is amplified by {plan.sampling}: let the "
                "server draw, with the population that it names"
            )
        return None
    return ParticipationController(
        kept_by_clients(plan),
        population=config.population,
        cohort_size=config.clients_per_round,
        seed=seed,
        sampling=plan.sampling,
    )
