"""What the noise of a plan guarantees clients to whom the run was so sensitive, and those that
broke the plan.
"""

import dataclasses
import functools
from typing import Any

from fedmf.mechanisms.sensitivity import Sensitivity
from fedmf.privacy.describe import guarantee_values
from fedmf.privacy.plan import Plan, unamplified_epsilon
from fedmf.privacy.rounding import finite


@dataclasses.dataclass(frozen=True, kw_only=True)
class Achieved:
    """What the noise of a plan guarantees clients to whom the run was so sensitive; without
    amplification by sampling.

    Attributes:
      planned: the plan.
      sensitivity: for unit clip norm: exact, or an upper bound.
    """

    planned: Plan
    sensitivity: Sensitivity

    @functools.cached_property
    def plan(self) -> Plan:
        """The plan without sampling, with the noise multiplier that the noise has
        for these clients.
        """
        multiplier = self.planned.noise_multiplier * (
            self.planned.sensitivity.value / self.sensitivity.value
        )
        return dataclasses.replace(self.planned, sampling=None, noise_multiplier=multiplier)

    @property
    def noise_multiplier(self) -> float:
        """Of the run, of updates and bits together."""
        return self.plan.noise_multiplier

    @property
    def epsilon(self) -> float:
        """At the plan's delta, whoever knows who was drawn."""
        return unamplified_epsilon(self.plan)

    @property
    def rho(self) -> float:
        """zCDP."""
        return self.plan.rho

    def values(self) -> dict[str, Any]:
        """The guarantee in plain JSON types, as `Plan.guarantee_values`;
        an infinite epsilon is null.
        """
        return guarantee_values(self.plan) | {
            "sensitivity": self.sensitivity.value,
            "sensitivity_exact": self.sensitivity.exact,
            "sensitivity_method": self.sensitivity.method,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Offender:
    """A client that broke the plan.

    Attributes:
      client: as the record names it.
      rounds: in which it took part, numbered as the record does.
      achieved: what its own rounds leave it.
    """

    client: int | str
    rounds: tuple[int, ...]
    achieved: Achieved

    def values(self) -> dict[str, Any]:
        """In plain JSON types; an infinite epsilon is null."""
        achieved = self.achieved
        return {
            "client": self.client,
            "rounds": list(self.rounds),
            "epsilon": finite(achieved.epsilon),
            "rho": finite(achieved.rho),
            "sensitivity": achieved.sensitivity.value,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Offenders:
    """The clients that broke the plan.

    Attributes:
      clients: how many.
      first: at most ten, those with the weakest guarantees first.
      others: the guarantee of all other clients; None where there are none.
    """

    clients: int
    first: tuple[Offender, ...]
    others: Achieved | None

    def values(self) -> dict[str, Any]:
        """In plain JSON types; an infinite epsilon is null."""
        others = self.others
        return {
            "clients": self.clients,
            "first": [offender.values() for offender in self.first],
            "others": None
            if others is None
            else {"epsilon": finite(others.epsilon), "rho": finite(others.rho)},
        }
