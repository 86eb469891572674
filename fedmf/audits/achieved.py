"""Guarantees of clients from their recorded rounds, whether or not they followed the plan.

A `Tally` goes through the clients of a record block by block. It computes the sensitivity of the
run to each client's own rounds, and counts the clients whose rounds the plan does not allow.

A guarantee holds for each client by itself and follows from the client's own rounds. Non-compliant
clients affect only their own guarantee.
"""

import dataclasses
import functools
import math
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from fedmf import checks
from fedmf.mechanisms.budget import spending_histogram
from fedmf.mechanisms.client_sensitivity import ClientSensitivity, LargestSensitivity
from fedmf.mechanisms.sensitivity import Sensitivity
from fedmf.participation.clients import ClientRounds
from fedmf.privacy.describe import group_values, guarantee_values, noise_end
from fedmf.privacy.plan import Plan, unamplified_epsilon
from fedmf.privacy.rounding import finite_or_none
from fedmf.privacy.source_tail import is_revealed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Achieved:
    """Guarantee that a plan's noise gives for the observed participation of clients.

    It does not count amplification by sampling, which a record of participation cannot prove.

    Attributes:
      planned: the plan.
      sensitivity: of the run to its clients, for clip norm 1: exact, or an upper bound.
      complies: whether the plan allows the rounds of each of these clients.
    """

    planned: Plan
    sensitivity: Sensitivity
    complies: bool = False

    @functools.cached_property
    def plan(self) -> Plan:
        """The plan without client sampling, with its noise multiplier adjusted to the observed
        sensitivity.
        """
        achieved_multiplier = self.planned.noise_multiplier * (
            self.planned.sensitivity.value / self.sensitivity.value
        )
        return dataclasses.replace(
            self.planned, sampling=None, longer=None, noise_multiplier=achieved_multiplier
        )

    @property
    def noise_multiplier(self) -> float:
        """Noise multiplier of the run at the observed sensitivity.

        It accounts for the noise of the updates and of the bits that adapt the clip norm.
        """
        return self.plan.noise_multiplier

    @property
    def epsilon(self) -> float:
        """Epsilon at the plan's delta, valid even if an attacker knows the cohorts, for noise that
        may be drawn on the host or in a TensorFlow graph.
        """
        return self.epsilon_in("ledger")

    @property
    def rho(self) -> float:
        """Rho of the guarantee in zero-concentrated differential privacy."""
        return self.plan.rho

    def epsilon_in(self, system: str) -> float:
        """Computes epsilon for the noise of a kind of system. It is infinite where the bounded size
        of its normal draws reveals clients that broke the plan.

        Args:
          system: the kind of system that was audited.
        """
        if not self.complies and self._is_revealed(end=noise_end(system)):
            return math.inf
        return unamplified_epsilon(self.plan)

    def values(self, system: str) -> dict[str, Any]:
        """Returns the guarantee and the sensitivity in plain JSON types.

        The names are those of `fedmf.privacy.describe.guarantee_values`. An infinite epsilon is
        null.

        Args:
          system: the kind of system that was audited.
        """
        epsilon = finite_or_none(self.epsilon_in(system))
        return guarantee_values(self.plan) | {
            "epsilon": epsilon,
            "unamplified_epsilon": epsilon,
            "sensitivity": self.sensitivity.value,
            "sensitivity_exact": self.sensitivity.exact,
            "sensitivity_method": self.sensitivity.method,
        }

    def group_values(self, system: str) -> list[dict[str, Any]]:
        """Returns the guarantee for users with several devices, one dict for each number of
        devices.

        Args:
          system: the kind of system that was audited.
        """
        rows = group_values(self.plan, system)
        for row in rows:
            if self._is_revealed(row["devices"], end=noise_end(system)):
                row["epsilon"] = None
        return rows

    def _is_revealed(self, devices: int = 1, *, end: float) -> bool:
        """Returns whether the bounded size of normal draws weakens the guarantee of a user with
        several devices.
        """
        observed_sensitivity = None if self.complies else self.sensitivity.value
        return is_revealed(
            self.planned, devices=devices, end=end, observed_sensitivity=observed_sensitivity
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoncompliantClient:
    """Client that took part in rounds which the plan does not allow, with the privacy guarantee
    that it still has.

    Attributes:
      client: its id in the record.
      rounds: in which it took part, numbered as in the record.
      achieved: the guarantee that follows from these rounds.
    """

    client: int | str
    rounds: tuple[int, ...]
    achieved: Achieved

    def values(self, system: str) -> dict[str, Any]:
        """Returns the attributes in plain JSON types; an infinite epsilon is null.

        Args:
          system: the kind of system that was audited.
        """
        achieved = self.achieved
        return {
            "client": self.client,
            "rounds": list(self.rounds),
            "epsilon": finite_or_none(achieved.epsilon_in(system)),
            "rho": finite_or_none(achieved.rho),
            "sensitivity": achieved.sensitivity.value,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoncompliantClients:
    """Clients that took part in rounds which the plan does not allow.

    The guarantee of all other clients is there for comparison.

    Attributes:
      clients: number of them.
      first: at most ten of them, those with the weakest guarantees first.
      others: the guarantee of all other clients; None if there are none.
    """

    clients: int
    first: tuple[NoncompliantClient, ...]
    others: Achieved | None

    def values(self, system: str) -> dict[str, Any]:
        """Returns the attributes in plain JSON types; an infinite epsilon is null.

        Args:
          system: the kind of system that was audited.
        """
        compliant_guarantee = None
        if self.others is not None:
            compliant_guarantee = {
                "epsilon": finite_or_none(self.others.epsilon_in(system)),
                "rho": finite_or_none(self.others.rho),
            }
        return {
            "clients": self.clients,
            "first": [client.values(system) for client in self.first],
            "others": compliant_guarantee,
        }


MAX_LISTED_CLIENTS = 10
_ROUNDING_ERROR = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True)
class CostlyClient:
    """Non-compliant client, with the sensitivity of the run to its rounds.

    Attributes:
      row: index of the client's first row in the record, which is sorted by client and round.
      rounds: increasing, int64 (k,).
      squared_sensitivity: of the run to the client, or an upper bound.
    """

    row: int
    rounds: np.ndarray
    squared_sensitivity: float


class Tally:
    """Largest sensitivities of a run to its clients, which are updated as `counted` yields the
    clients.

    Args:
      plan: the allowed participation, and the mechanism.
      unrecorded: later rounds without a record. Every client counts in all of them once some client
        has broken the plan.

    Attributes:
      num_noncompliant: number of clients whose rounds the plan does not allow.
      max_spent: of a participation budget, the largest sensitivity to one client.
      clients_by_spending: of a participation budget, range of the spending -> number of clients.
    """

    def __init__(self, plan: Plan, unrecorded: Sequence[int] = ()) -> None:
        self.plan = plan
        self.unrecorded = unrecorded
        participation = plan.participation
        self._client_sensitivity = ClientSensitivity(
            plan.mechanism, unrecorded, by_counts=not participation.needs_encoder
        )
        self._largest_compliant = LargestSensitivity(self._client_sensitivity)
        self._largest_noncompliant = LargestSensitivity(self._client_sensitivity)
        self._num_rows = 0
        self._costly_clients = list[CostlyClient]()
        self.num_noncompliant = 0
        self.max_spent = 0.0
        self.clients_by_spending: dict[str, int] = {}
        if participation.budget is not None:
            self.clients_by_spending = spending_histogram(participation.budget, np.zeros(0))

    def counted(self, blocks: Iterable[ClientRounds]) -> Iterator[ClientRounds]:
        """Yields blocks of clients unchanged, and adds the clients of each to the tally."""
        for clients in blocks:
            self._count(clients)
            self._num_rows += len(clients.rounds)
            yield clients

    def _count(self, clients: ClientRounds) -> None:
        """Adds the clients of one block to the tally."""
        squared_sensitivities = self._client_sensitivity.squared(clients)
        participation = self.plan.participation
        is_compliant = participation.allows_each(clients, spent_squared=squared_sensitivities)
        if participation.budget is not None:
            for spending, count in spending_histogram(
                participation.budget, squared_sensitivities
            ).items():
                self.clients_by_spending[spending] += count
            self.max_spent = max(
                self.max_spent, float(np.sqrt(squared_sensitivities.max(initial=0.0)))
            )
        squared_sensitivities = self._client_sensitivity.squared_with_extra_rounds(
            clients, squared_sensitivities
        )
        self._largest_compliant.add(clients, squared_sensitivities, is_compliant)
        noncompliant_indices = np.flatnonzero(~is_compliant)
        if not len(noncompliant_indices):
            return
        self._largest_noncompliant.add(clients, squared_sensitivities, ~is_compliant)
        self.num_noncompliant += len(noncompliant_indices)
        cost_order = np.argsort(-squared_sensitivities[noncompliant_indices], kind="stable")
        for i in noncompliant_indices[cost_order[:MAX_LISTED_CLIENTS]].tolist():
            self._costly_clients.append(
                CostlyClient(
                    row=self._num_rows + int(clients.starts[i]),
                    rounds=clients.of(i).copy(),
                    squared_sensitivity=float(squared_sensitivities[i]),
                )
            )
        self._costly_clients.sort(key=lambda client: (-client.squared_sensitivity, client.row))
        del self._costly_clients[MAX_LISTED_CLIENTS:]

    def compliant_sensitivity(self) -> Sensitivity | None:
        """Returns the largest sensitivity of the run to a client that followed the plan.

        It is None if there was no such client, and every round has a record.
        """
        planned_sensitivity = self.plan.sensitivity
        if not self.num_noncompliant and self.unrecorded:
            return planned_sensitivity
        if self._largest_compliant.squared < 0:
            # No recorded client followed the plan, but clients without a record may have done so in
            # unrecorded rounds. The sensitivity to them is covered, since non-compliant clients are
            # assumed to take part in all unrecorded rounds.
            if not self.unrecorded:
                return None
            return self._largest_noncompliant.sensitivity()
        observed_sensitivity = self._largest_compliant.sensitivity()
        # The planned sensitivity covers every client that followed the plan. It is used if the
        # observed sensitivity is larger, which happens by rounding or because that value is an
        # upper bound.
        if self.unrecorded or observed_sensitivity.value < planned_sensitivity.value * (
            1 - _ROUNDING_ERROR
        ):
            return observed_sensitivity
        return planned_sensitivity

    def noncompliant_sensitivity(self) -> Sensitivity | None:
        """Returns the largest sensitivity of the run to a non-compliant client.

        It is None if all clients followed the plan.
        """
        if not self.num_noncompliant:
            return None
        return self._largest_noncompliant.sensitivity()

    def costly_clients(self) -> list[tuple[CostlyClient, Sensitivity]]:
        """Returns the ten non-compliant clients with the largest sensitivities, largest first."""
        sensitivities = [
            self._client_sensitivity.of(client.rounds) for client in self._costly_clients
        ]
        clients = zip(self._costly_clients, sensitivities, strict=True)
        return sorted(clients, key=lambda client: -client[1].value)


def later_rounds(unrecorded: Any) -> Sequence[int]:
    """Checks that the argument `unrecorded` is a sequence of round numbers, and returns it."""
    rounds_hint = "give the numbers of rounds, in a list"
    if isinstance(unrecorded, range):
        return unrecorded
    if not isinstance(unrecorded, Sequence | np.ndarray) or isinstance(unrecorded, str | bytes):
        raise TypeError(
            f"unrecorded={reprlib.repr(unrecorded)} is no list of rounds: {rounds_hint}"
        )
    return [
        checks.integer("unrecorded", t, low=0, hint=rounds_hint)
        for t in np.asarray(unrecorded).flat
    ]


def unrecorded_sentence(tally: Tally, hint: str) -> str | None:
    """Returns a sentence that says how an audit counts rounds without a record. It is None if all
    rounds have one.

    Args:
      tally: of the recorded rounds.
      hint: the end of the sentence, which says what to do.
    """
    unrecorded_rounds = tally.unrecorded
    if not unrecorded_rounds:
        return None
    assumption = "as much as the plan allows"
    if tally.num_noncompliant:
        assumption = (
            "as if every client had taken part in all of them, since the "
            "recorded ones break the plan"
        )
    verb_phrase = "are not in the record of participations, and count"
    if len(unrecorded_rounds) == 1:
        verb_phrase = "is not in the record of participations, and counts"
    return f"{rounds_in_words(unrecorded_rounds)} {verb_phrase} {assumption}: {hint}"


def rounds_in_words(rounds: Sequence[int]) -> str:
    """Returns increasing round numbers in words, such as "rounds 3 to 7"."""
    first_round = rounds[0]
    last_round = rounds[-1]
    if first_round == last_round:
        return f"round {first_round}"
    interval = f"rounds {first_round} to {last_round}"
    if last_round - first_round < len(rounds):
        return interval
    return f"{len(rounds)} of the {interval}"
