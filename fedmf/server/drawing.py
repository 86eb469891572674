"""How a server draws the clients of its rounds."""

from collections.abc import Sequence

import numpy as np

from fedmf.cohorts.controller import ParticipationController
from fedmf.mechanisms.budget import participation_rule
from fedmf.privacy.plan import Plan
from fedmf.privacy.sampling.draws import draw_generator
from fedmf.server.folder import ServerConfig
from fedmf.server.roster import Client
from fedmf.server.source import derived_seed


def cohort_seed(noise_seed: int) -> int:
    """The seed of the cohorts' draws, as secret as the noise seed: amplification needs a sample
    that nobody knows.
    """
    return derived_seed(f"fedmf cohorts {noise_seed}", 16)


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
        participation_rule(plan.mechanism, plan.participation),
        population=config.population,
        cohort_size=config.clients_per_round,
        seed=seed,
        sampling=plan.sampling,
    )


def drawn_of(eligible: Sequence[Client], size: int, seed: int, t: int) -> list[Client]:
    """Returns `size` of the clients, or all, drawn evenly for round t, in their order."""
    number = min(size, len(eligible))
    chosen = draw_generator(seed, t).choice(len(eligible), number, replace=False)
    return [eligible[i] for i in np.sort(chosen).tolist()]
