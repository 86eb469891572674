"""Sampling of the eligible clients of a server's rounds, and the record of the clients that took
part.
"""

import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from fedmf import identifiers
from fedmf.cohorts.draws import PoolRanDryWarning
from fedmf.mechanisms.budget import participation_rule
from fedmf.participation.ledger import ParticipationLedger
from fedmf.privacy.plan import Plan
from fedmf.server.drawing import cohort_seed, draw_cohort, server_controller
from fedmf.server.folder import Released, ServerConfig
from fedmf.server.roster import Client, Roster


class Participants:
    """The clients of a server, drawn and checked by the plan's participation schema or sampling
    scheme.

    Args:
      plan: plan of the server.
      config: config of the server; its population is drawn from, or clients of any name check in.
      noise_seed: secret; the seed of the draws follows from it.

    Attributes:
      ledger: the rounds that were released.
      roster: the clients by their ids.

    Raises:
      ValueError: a plan with sampling and no population to sample from.
    """

    def __init__(self, plan: Plan, config: ServerConfig, noise_seed: int) -> None:
        self._participation = plan.participation
        self._config = config
        self._seed = cohort_seed(noise_seed)
        self._controller = server_controller(plan, config, noise_seed)
        cohort_size: int | None = config.clients_per_round
        if plan.sampling is not None and plan.sampling.independent:
            cohort_size = None
        self.ledger = ParticipationLedger(cohort_size=cohort_size)
        rule = participation_rule(plan.mechanism, plan.participation)
        self.roster = Roster(rule, config.population)
        self._added_by_id: dict[str, Client] = {}

    def restore(self, released: Released) -> None:
        """Records the clients of all released rounds that a folder has."""
        cohorts = self.roster.restore(released.clients_by_round)
        selection_by_round = []
        for cohort, round_selection in zip(cohorts, released.selected_by_round, strict=True):
            selected_clients = (
                cohort if round_selection is None else np.array(round_selection, np.int64)
            )
            selection_by_round.append(selected_clients)
        self.ledger.restore(cohorts, selection_by_round)
        if self._controller is not None:
            self._controller.restore(selection_by_round, selection_by_round)

    def cohort(self, t: int, available: Sequence[Client] | None) -> list[Client]:
        """Returns the cohort of round t. Repeated calls with the same available clients return the
        same cohort.

        Args:
          t: the coming round.
          available: clients that have checked in; None with a population.

        Raises:
          TypeError: an id is neither an integer nor a text.
          ValueError: available is missing without a population or passed with one, or an id occurs
            twice.
        """
        if self._controller is not None:
            if available is not None:
                raise ValueError(
                    f"`available` beside population={self._config.population}, from which the "
                    "server draws: leave one of them out"
                )
            drawn: list[Client] = self.draw(t).tolist()
            return drawn
        if available is None:
            raise ValueError(
                "available=None: name the clients that have checked in, or give the server a "
                "population to draw from"
            )
        client_by_id = self.roster.by_normalised_id("available", available)
        available_clients = [client_by_id[client_id] for client_id in sorted(client_by_id)]
        is_eligible = self.roster.is_eligible(available_clients, t)
        eligible_clients = [available_clients[i] for i in np.flatnonzero(is_eligible)]
        return draw_cohort(eligible_clients, self._config.clients_per_round, self._seed, t)

    def draw(self, t: int, *, is_quiet: bool = False) -> np.ndarray:
        """Returns the clients that the server draws from its population for round t; an empty array
        if clients check in instead.

        Args:
          t: the coming round.
          is_quiet: whether to do without `PoolRanDryWarning`.
        """
        if self._controller is None:
            return np.zeros(0, np.int64)
        if not is_quiet:
            return self._controller.cohort(t)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PoolRanDryWarning)
            return self._controller.cohort(t)

    def selected(self, t: int) -> list[int] | None:
        """Returns the clients that the server drew for round t; None if clients check in."""
        if self._controller is None:
            return None
        clients: list[int] = self._controller.ledger.selected(t).tolist()
        return clients

    def max_clients(self, t: int) -> int:
        """Returns the largest number of updates in round t. A sampling scheme may draw more clients
        than clients_per_round.
        """
        return max(self._config.clients_per_round, len(self.draw(t)))

    def admit(self, client_by_id: Mapping[str, Client], t: int) -> None:
        """Adds clients to the coming round t, either all of them or none.

        Args:
          client_by_id: clients that `Roster.by_normalised_id` returned.
          t: the coming round.

        Raises:
          ValueError: one of them is in the round already, was not drawn or is not eligible, or they
            are too many.
        """
        max_clients = self._config.clients_per_round
        drawn_clients: set[Client] | None = None
        if self._controller is not None:
            drawn_clients = set(self.draw(t).tolist())
            max_clients = len(drawn_clients)
        is_eligible = self.roster.is_eligible(list(client_by_id.values()), t).tolist()
        for (client_id, client), may_add in zip(client_by_id.items(), is_eligible, strict=True):
            client_text = f"client={identifiers.format_client(client)}"
            if client_id in self._added_by_id:
                raise ValueError(f"{client_text} is in round {t} already: add one update a client")
            if drawn_clients is not None and client not in drawn_clients:
                raise ValueError(
                    f"{client_text} was not drawn for round {t}: add clients of server.cohort()"
                )
            if not may_add:
                past_rounds = identifiers.format_rounds(self._rounds_of(client))
                raise ValueError(
                    f"{client_text} took part in {past_rounds}, and {self._participation} does not "
                    f"allow round {t}: leave it out, as server.cohort() does"
                )
        if len(self._added_by_id) + len(client_by_id) > max_clients:
            raise ValueError(
                f"round {t} has its clients_per_round={max_clients}: release it, or plan for more"
            )
        self._added_by_id |= {
            client_id: self.roster.recorded_client(client)
            for client_id, client in client_by_id.items()
        }

    def _rounds_of(self, client: Client) -> list[int]:
        """Returns the rounds in which a client has taken part."""
        client_number = self.roster.existing_number(client)
        return [t for t in range(len(self.ledger)) if client_number in self.ledger.cohort(t)]

    def added(self) -> list[Client]:
        """Returns the clients that were added to the coming round, as records spell them."""
        return list(self._added_by_id.values())

    def record(self, t: int) -> None:
        """Records the clients of the released round t, and begins the next round."""
        selected = None if self._controller is None else self.draw(t)
        client_numbers = [self.roster.number(client) for client in self._added_by_id.values()]
        self.ledger.append(np.array(sorted(client_numbers), np.int64), selected=selected)
        self.roster.record(client_numbers, t)
        self._added_by_id = {}
