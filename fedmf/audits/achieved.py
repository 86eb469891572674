"""What the noise of a plan guarantees clients to whom the run was so sensitive, and those that
broke the plan.

And what every single client of a record cost, block by block, and which of them broke the plan.

A guarantee is for each client by itself, and follows from the client's own rounds. One that breaks
the plan pays with its own guarantee; the guarantees of the others stay what their own
rounds make them.
"""

import dataclasses
import functools
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from fedmf import checks
from fedmf.mechanisms.budget import spending_histogram
from fedmf.mechanisms.own_rounds import Largest, OwnRounds
from fedmf.mechanisms.sensitivity import Sensitivity
from fedmf.participation.clients import ClientRounds
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
        return dataclasses.replace(
            self.planned, sampling=None, longer=None, noise_multiplier=multiplier
        )

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
        """Returns the guarantee in plain JSON types, as `guarantee_values` of
        `fedmf.privacy.describe` does; an infinite epsilon is null.
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


MOST_NAMED = 10
_ROUNDING = 1e-9


class Tally:
    """What clients cost whose rounds are `counted`.

    Args:
      plan: what they are held against.
      besides: later rounds without a record. A client is counted in all of them once some client
        broke the plan.
    """

    def __init__(self, plan: Plan, besides: Sequence[int] = ()) -> None:
        self.plan = plan
        self.besides = besides
        p = plan.participation
        self._own = OwnRounds(plan.mechanism, besides, by_counts=not p.needs_encoder)
        self._kept = Largest(self._own)
        self._broke = Largest(self._own)
        self._rows = 0
        self._named = list[tuple[float, int, np.ndarray]]()
        self.offenders = 0
        self.most_spent = 0.0  # the root of the largest sum of |X_st|
        self.spent: dict[str, int] = (
            {} if p.budget is None else spending_histogram(p.budget, np.zeros(0))
        )

    def counted(self, blocks: Iterable[ClientRounds]) -> Iterator[ClientRounds]:
        """The blocks, counted on the way."""
        for clients in blocks:
            self._count(clients)
            self._rows += len(clients.rounds)
            yield clients

    def _count(self, clients: ClientRounds) -> None:
        own = self._own.squared(clients)
        p = self.plan.participation
        kept = p.allows_each(clients, spent_squared=own)
        if p.budget is not None:
            for share, count in spending_histogram(p.budget, own).items():
                self.spent[share] += count
            self.most_spent = max(self.most_spent, float(np.sqrt(own.max(initial=0.0))))
        squared = self._own.squared_with_besides(clients, own)
        self._kept.add(clients, squared, kept)
        broke = np.flatnonzero(~kept)
        if not len(broke):
            return
        self._broke.add(clients, squared, ~kept)
        self.offenders += len(broke)
        dearest = broke[np.argsort(-squared[broke], kind="stable")[:MOST_NAMED]]
        self._named += [
            (-float(squared[i]), self._rows + int(clients.starts[i]), clients.of(i).copy())
            for i in dearest.tolist()
        ]
        self._named = sorted(self._named, key=lambda found: found[:2])[:MOST_NAMED]

    def kept(self) -> Sensitivity | None:
        """The largest sensitivity to any client that kept to the plan; None where nobody did, and
        no round is without a record.
        """
        planned = self.plan.sensitivity
        if not self.offenders and self.besides:
            return planned
        if self._kept.squared < 0:
            # Others may have come in the rounds without a record: no more than the dearest
            # offender, who counts in all of them.
            return self._broke.sensitivity() if self.besides else None
        own = self._kept.sensitivity()
        # Bounds of single sets of rounds, and rounding in another way of computing, must not deny
        # what the plan covers.
        return own if self.besides or own.value < planned.value * (1 - _ROUNDING) else planned

    def broke(self) -> Sensitivity | None:
        """The largest sensitivity to any client that broke the plan; None where nobody did."""
        return self._broke.sensitivity() if self.offenders else None

    def named(self) -> list[tuple[int, np.ndarray, Sensitivity]]:
        """At most ten clients that broke the plan: those who cost most, the dearest first.

        Of each the place of its first round among the rows of the record, client after client; its
        rounds, increasing, ints (k,); and the sensitivity to it.
        """
        named = [(row, t, self._own.of(t)) for _, row, t in self._named]
        return sorted(named, key=lambda client: -client[2].value)


def later_rounds(unrecorded: Any) -> Sequence[int]:
    """Returns the argument of this name, checked: numbers of rounds."""
    hint = "give the numbers of rounds, in a list"
    if isinstance(unrecorded, range):
        return unrecorded
    if not isinstance(unrecorded, Sequence | np.ndarray) or isinstance(unrecorded, str | bytes):
        raise TypeError(f"unrecorded={reprlib.repr(unrecorded)} is no list of rounds: {hint}")
    return [checks.integer("unrecorded", t, low=0, hint=hint) for t in np.asarray(unrecorded).flat]


def unrecorded_sentence(tally: Tally, hint: str) -> str | None:
    """Returns a sentence on what rounds without a record are counted as, which ends with `hint`, or
    None where there are none.
    """
    rounds = tally.besides
    if not rounds:
        return None
    assumed = "as much as the plan allows"
    if tally.offenders:
        assumed = (
            "as if every client had taken part in all of them, since the "
            "recorded ones break the plan"
        )
    be, count = ("is", "counts") if len(rounds) == 1 else ("are", "count")
    return (
        f"{named(rounds)} {be} not in the record of participations, and {count} {assumed}: {hint}"
    )


def named(rounds: Sequence[int]) -> str:
    """Returns increasing rounds in words."""
    first = rounds[0]
    last = rounds[-1]
    if first == last:
        return f"round {first}"
    some = "" if last - first < len(rounds) else f"{len(rounds)} of the "
    return f"{some}rounds {first} to {last}"
