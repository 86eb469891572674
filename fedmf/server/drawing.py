"""Drawing of cohorts, the clients of each round, for servers and for training runs."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from fedmf.cohorts.availability import Availability
from fedmf.cohorts.controller import ParticipationController
from fedmf.cohorts.devices import DeviceBehavior
from fedmf.mechanisms.budget import Budget, participation_rule
from fedmf.participation.schema import Participation
from fedmf.privacy.plan import Plan
from fedmf.privacy.sampling import Sampling
from fedmf.privacy.sampling.randomness import SamplingRandomness
from fedmf.server.folder import ServerConfig
from fedmf.server.roster import Client
from fedmf.server.source import derived_seed


def cohort_seed(noise_seed: int) -> int:
    """Returns the seed from which cohorts are drawn. It is as secret as the noise seed, because
    privacy amplification needs a sample that nobody knows.
    """
    return derived_seed(f"fedmf cohorts {noise_seed}", 16)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CohortSettings:
    """Settings of how cohorts are drawn for a plan, the same for servers and for runs.

    A sampling scheme draws from all clients, with a secret seed: amplification needs a sample that
    nobody knows. Without one, cohorts are drawn from the clients that `rule` allows.

    Attributes:
      rule: rule of the plan's participation, for as many rounds as the plan has.
      sampling: the scheme, for cohorts of `cohort_size`; or None.
      population: number of clients.
      cohort_size: clients a round, the expected number where they are drawn independently.
      noise_seed: secret; the secret seed of the cohorts follows from it.
      public_seed: seeds draws without a sampling scheme; None for the secret seed.
      availability, behavior: attributes of the clients, as `ParticipationController` takes them.
    """

    rule: Participation | Budget
    sampling: Sampling | None
    population: int
    cohort_size: int
    noise_seed: int
    public_seed: int | None = None
    availability: Availability | None = None
    behavior: DeviceBehavior | None = None

    def controller(self) -> ParticipationController:
        """Returns a participation controller with these settings, before round 0.

        Raises:
          TypeError, ValueError: as of `ParticipationController`.
        """
        rule = self.rule
        seed = self.public_seed
        if self.sampling is not None:
            rounds = rule.participation.rounds if isinstance(rule, Budget) else rule.rounds
            rule = self.sampling.participation(rounds)
        if self.sampling is not None or seed is None:
            seed = cohort_seed(self.noise_seed)
        return ParticipationController(
            rule,
            population=self.population,
            cohort_size=self.cohort_size,
            seed=seed,
            sampling=self.sampling,
            availability=self.availability,
            behavior=self.behavior,
        )


def server_controller(
    plan: Plan, config: ServerConfig, noise_seed: int
) -> ParticipationController | None:
    """Returns the controller that draws a server's clients from its population; None for a server
    without a population, where clients check in.

    Raises:
      ValueError: a plan with sampling and no population to sample from.
    """
    if config.population is not None:
        cohort_settings = CohortSettings(
            rule=participation_rule(plan.mechanism, plan.participation),
            sampling=plan.sampling,
            population=config.population,
            cohort_size=config.clients_per_round,
            noise_seed=noise_seed,
        )
        return cohort_settings.controller()
    if plan.sampling is not None:
        raise ValueError(
            f"population=None, but the plan is amplified by {plan.sampling}: let the "
            "server draw, with the population that it names"
        )
    return None


def draw_cohort(eligible: Sequence[Client], size: int, seed: int, t: int) -> list[Client]:
    """Draws the cohort of round t uniformly from the eligible clients, and keeps their order.

    Args:
      eligible: clients that have checked in.
      size: size of the cohort; where fewer are eligible, all of them are drawn.
      seed: seed that `cohort_seed` returned.
      t: the round.
    """
    cohort_size = min(size, len(eligible))
    eligible_indices = (
        SamplingRandomness(seed).of_round(t).choice(len(eligible), cohort_size, replace=False)
    )
    return [eligible[index] for index in np.sort(eligible_indices).tolist()]
